"""The table of formats: what each needs, and what it takes."""

import dataclasses
import importlib
import importlib.util
import inspect
from collections.abc import Callable

from keras_transformer.checking import shorten

_HERE = "keras_transformer.exporting"


@dataclasses.dataclass(frozen=True)
class Format:
    """One format that a model is exported to.

    Args:
        name: str, what `export` is given.
        backend: str, the backend that converts to it; None for any. On another backend a child
            process converts, with the weights of the model.
        extra: str, the extra of this package that brings what it needs; None where the backend is
            enough.
        packages: the packages that must be there, by the names that Python imports.
        kinds: the kinds of backbone that it takes.
        tasks: the names of the tasks that it takes, beside a backbone alone; None for all.
        quantizers: the packages that `quantization` needs beside them.
        module: str, that of its function `write(task, directory, **options)`, which is imported
            when it is used. The options that it names are those of the format.
    """

    name: str
    backend: str | None
    extra: str | None
    packages: tuple[str, ...]
    kinds: tuple[str, ...]
    module: str
    tasks: tuple[str, ...] | None = None
    quantizers: tuple[str, ...] = ()

    @property
    def write(self) -> Callable[..., None]:
        """Fills a folder: `write(task, directory, **options)`."""
        return importlib.import_module(self.module).write

    @property
    def options(self) -> tuple[str, ...]:
        """The names of its options."""
        return tuple(inspect.signature(self.write).parameters)[2:]

    def check_packages(self, quantizes: bool = False) -> None:
        """ImportError that names the extra, where a package is missing.

        Args:
            quantizes: bool, whether those that make fewer bits of weights are needed too.
        """
        needed = (*self.packages, *(self.quantizers if quantizes else ()))
        missing = [name for name in needed if importlib.util.find_spec(name) is None]
        if missing:
            extra = self.extra or self.backend
            raise ImportError(
                f"The format {self.name!r} needs {' and '.join(missing)}, not installed here. Run "
                f'`pip install "keras_transformer[{extra}]"`.'
            )


_ALL = ("encoder", "decoder", "seq2seq")
_TENSORFLOW = ("tensorflow", "tensorflow_text")

FORMATS = {
    each.name: each
    for each in (
        Format(
            "onnx",
            "torch",
            "onnx",
            ("onnx", "onnxscript"),
            _ALL,
            f"{_HERE}.onnx",
            quantizers=("onnxruntime",),
        ),
        Format(
            "openvino",
            "torch",
            "openvino",
            ("openvino", "onnxscript"),
            _ALL,
            f"{_HERE}.openvino",
            quantizers=("nncf",),
        ),
        Format("pt2", "torch", None, (), _ALL, f"{_HERE}.pt2"),
        Format("saved_model", "tensorflow", None, _TENSORFLOW, _ALL, f"{_HERE}.saved_model"),
        Format("litert", "tensorflow", None, _TENSORFLOW[:1], _ALL, f"{_HERE}.litert"),
        Format(
            "ctranslate2",
            None,
            "ctranslate2",
            ("ctranslate2",),
            _ALL,
            f"{_HERE}.ctranslate2",
            ("CausalLM", "Seq2SeqLM", "TextEmbedder"),
        ),
        Format("huggingface", None, None, (), (*_ALL, "dual"), f"{_HERE}.huggingface"),
    )
}


def format_named(name: str) -> Format:
    """The format of a name. ValueError for one that there is not."""
    if name not in FORMATS:
        known = ", ".join(map(repr, FORMATS))
        raise ValueError(f"There is no format {shorten(name)} to export to. Known are: {known}.")
    return FORMATS[name]
