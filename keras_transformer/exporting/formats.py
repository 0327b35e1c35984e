"""The table of formats: for each, the packages it needs and the models it supports."""

import dataclasses
import importlib
import importlib.util
import inspect
from collections.abc import Callable

from keras_transformer.support.checking import shorten

_HERE = "keras_transformer.exporting"


@dataclasses.dataclass(frozen=True)
class Format:
    """One format that a model can be exported to.

    Args:
        name: str, the name that `export` takes.
        backend: str, the backend on which models are converted; None means any. On another backend
            a child process converts the model.
        extra: str, the extra of this package that installs the needed packages; None if the
            backend is enough.
        packages: tuple of import names of the needed packages.
        kinds: tuple of the kinds of backbone that the format supports.
        tasks: tuple of the names of the tasks that it supports, besides a backbone alone; None
            means all.
        quantizers: tuple of import names of further packages that `quantization` needs.
        module: str, the module with a function `write(task, directory, **options)`, imported on
            first use. The keyword arguments of `write` are the format's options.
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
        """The function that fills a folder: `write(task, directory, **options)`."""
        return importlib.import_module(self.module).write

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options."""
        return tuple(inspect.signature(self.write).parameters)[2:]

    def check_packages(self, quantizes: bool = False) -> None:
        """Raise ImportError if a package is missing; the message names the extras to install.

        Args:
            quantizes: bool, whether packages for quantization are needed too.
        """
        missing, extras = self._missing(quantizes)
        if missing:
            able = [name for name, each in FORMATS.items() if not each._missing(False)[0]]
            raise ImportError(
                f"The format {self.name!r} needs {' and '.join(dict.fromkeys(missing))}, not "
                f'installed here. Run `pip install "keras_transformer'
                f'[{",".join(dict.fromkeys(extras))}]"`. Formats for which all is installed: '
                f"{', '.join(map(repr, able))}."
            )

    def _missing(self, quantizes: bool) -> tuple[list[str], list[str | None]]:
        """Return what the format needs and is not installed, and the extras that bring it."""
        needed = (*self.packages, *(self.quantizers if quantizes else ()))
        missing = [name for name in needed if importlib.util.find_spec(name) is None]
        extras = [self.extra or self.backend] if missing else []
        if self.backend and importlib.util.find_spec(self.backend) is None:
            missing.append(f"the backend {self.backend!r}")
            extras.append(self.backend)
        return missing, extras


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
        Format("gguf", None, "gguf", ("gguf",), ("decoder",), f"{_HERE}.gguf", ("CausalLM",)),
        Format("huggingface", None, None, (), (*_ALL, "dual"), f"{_HERE}.huggingface"),
    )
}


def format_named(name: str) -> Format:
    """Return the format with this name. Raises ValueError if it is unknown."""
    if name not in FORMATS:
        known = ", ".join(map(repr, FORMATS))
        raise ValueError(
            f"There is no format {shorten(name)} to export to. Known formats: {known}."
        )
    return FORMATS[name]
