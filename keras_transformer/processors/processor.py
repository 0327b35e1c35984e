"""Base class of processors, which convert user data, such as strings, to rows of numbers."""

import abc
import base64
import os
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Self

from keras_transformer.config import TransformerConfig


class Processor(abc.ABC):
    """Base class that converts raw data to rows of arrays, for tasks with it as `processor_class`.

    The task's `make_dataset` makes batches of the rows. `fit`, `evaluate` and `predict` call
    `make_dataset` for data that the processor `takes`, and pass on the arguments named in
    `options`. The files of a processor are part of the task's preset and of its `.keras` file.

    Example:
    ```python
    import pathlib
    import keras_transformer as kt

    class Pitches(kt.tasks.Processor):  # tunes, lists of pitches
        def __init__(self, lowest: int):
            self.lowest = lowest

        @classmethod
        def takes(cls, x):
            return isinstance(x, list)

        def save(self, directory):
            pathlib.Path(directory, "processor.txt").write_text(str(self.lowest))

        @classmethod
        def from_files(cls, directory):
            return cls(int(pathlib.Path(directory, "processor.txt").read_text()))

    class TuneClassifier(kt.TextClassifier):
        processor_class = Pitches

        def make_dataset(self, x, y=None, sample_weight=None, **options):
            rows = [[pitch - self.processor.lowest for pitch in tune] for tune in x]
            return self._bucketed({"rows": rows}, lambda arrays, masks: (
                {"token_ids": arrays["rows"], "padding_mask": masks["rows"]},
            ), **options)

    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=12, hidden_dim=8, num_layers=1, num_heads=2,
        intermediate_dim=8,
    )
    classifier = TuneClassifier(kt.models.Encoder(config), Pitches(lowest=60), num_classes=2)
    assert classifier.predict([[62, 65], [60]], verbose=0).shape == (2, 2)
    ```
    """

    options: ClassVar[tuple[str, ...]] = ()  # arguments of `make_dataset` that `fit` takes too
    kind: ClassVar[str] = "processor"  # name of the processor in errors
    raw: ClassVar[str] = "raw data"  # name of its inputs in errors
    made: ClassVar[str] = "arrays"  # name of its outputs in errors
    has_tokenizer: ClassVar[bool] = False
    # Possible names of the first input of the task's backbone.
    reads_arrays: ClassVar[tuple[str, ...]] = ("token_ids", "encoder_token_ids")
    # Names of the processor's files in a preset. Without any of them a task only takes arrays.
    files: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def checked(cls, given: Any) -> Self | None:
        """Return `given`, a processor of this class. Raises ValueError if it is anything else."""
        if not isinstance(given, cls | None):
            raise ValueError(
                f"`processor` must be a {cls.__name__} or None, received {type(given).__name__}."
            )
        return given

    @property
    def argument(self) -> Any:
        """The argument to pass to a task class for this processor."""
        return self

    @classmethod
    @abc.abstractmethod
    def takes(cls, x: Any) -> bool:
        """Return whether `x` is raw data for this processor, valid or not."""

    @abc.abstractmethod
    def save(self, directory: str) -> None:
        """Write the files of the processor to a folder.

        Their names are in `files`, or are `processor.` and a suffix.
        """

    @classmethod
    @abc.abstractmethod
    def from_files(cls, directory: str) -> Self:
        """Load a processor from the files that `save` wrote to a folder."""

    @classmethod
    def of_published(cls) -> Self | None:
        """Return the processor of a published model without a file for it; None if it needs one."""
        return None

    @classmethod
    def stream(cls, task, data: Any, batch_size=None, steps=None, **options) -> Any:
        """Return batches of a dataset of raw data, made on the fly; return other data unchanged."""
        return data

    @classmethod
    def load_dataset(cls, task, data: Any, options: dict[str, Any]) -> Any:
        """Return the rows of a dataset of raw data, in memory; return other data unchanged."""
        return data

    def check(self, config: TransformerConfig) -> None:  # noqa: B027
        """Raise ValueError if the processor does not fit a model of this config."""

    def config_values(self) -> dict[str, Any]:
        """Return its values that the `config.json` of a published model holds too."""
        return {}

    def packed(self) -> dict[str, str]:
        """Return a dict from the names of the processor's files to their contents in base64.

        Raises OSError if the files cannot be written to the process's temporary folder.
        """
        try:
            with tempfile.TemporaryDirectory() as folder:
                self.save(folder)
                files = sorted(path for path in Path(folder).iterdir() if path.is_file())
                return {path.name: base64.b64encode(path.read_bytes()).decode() for path in files}
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(
                error.errno,
                f"The {self.kind} could not be written to the temporary folder: {reason}. Free "
                "some space there, or set TMPDIR to another folder.",
            ) from error

    @classmethod
    def unpacked(cls, files: dict[str, str]) -> Self:
        """Load a processor from the result of `packed`."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                if Path(name).name != name:
                    raise ValueError(f"The config of the task has a processor's file {name!r}.")
                Path(folder, name).write_bytes(base64.b64decode(content))
            return cls.from_files(folder)
