"""Processors: from what a user has, such as strings, to rows of numbers, and back."""

import abc
import base64
import os
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Self

from keras_transformer.config import TransformerConfig


class Processor(abc.ABC):
    """Turns raw data into rows of arrays, for a task whose `processor_class` it is.

    The task's `make_dataset` makes batches of the rows. `fit`, `evaluate` and `predict` call it
    for whatever the processor `takes`, with those of its `options` that they are given. The files
    of a processor are a part of the task's preset and of its `.keras` file.

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

    options: ClassVar[tuple[str, ...]] = ()  # of `make_dataset`, which `fit` takes too
    kind: ClassVar[str] = "processor"  # what errors call it
    raw: ClassVar[str] = "raw data"  # likewise what it reads, and what a model is given then
    made: ClassVar[str] = "arrays"
    has_tokenizer: ClassVar[bool] = False
    # Its files in a preset; a task of a preset that has none of them takes arrays only.
    files: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, given: Any) -> Self | None:
        """`given`, checked to be a processor of this class. ValueError for anything else."""
        if not isinstance(given, cls | None):
            raise ValueError(
                f"`processor` must be a {cls.__name__} or None, received {type(given).__name__}."
            )
        return given

    @property
    def argument(self) -> Any:
        """What a task is given to have this processor."""
        return self

    @classmethod
    @abc.abstractmethod
    def takes(cls, x: Any) -> bool:
        """Whether `x` is raw data for this processor, valid or not."""

    @abc.abstractmethod
    def save(self, directory: str) -> None:
        """Writes its files into a folder: its `files`, or named `processor.` and something."""

    @classmethod
    @abc.abstractmethod
    def from_files(cls, directory: str) -> Self:
        """The processor whose files `save` wrote."""

    @classmethod
    def of_published(cls) -> Self | None:
        """That of a published folder, which has none of its files; None if it needs them."""
        return None

    @classmethod
    def stream(cls, task, data: Any, batch_size=None, steps=None, **options) -> Any:
        """A dataset of raw data as batches, made as they come; anything else unchanged."""
        return data

    @classmethod
    def whole(cls, task, data: Any, options: dict[str, Any]) -> Any:
        """A dataset of raw data as rows in memory; anything else unchanged."""
        return data

    def check(self, config: TransformerConfig) -> None:  # noqa: B027
        """ValueError unless it belongs to a model of this config."""

    def packed(self) -> dict[str, str]:
        """Return its files by name, in base64.

        Raises OSError if they cannot be written to the temporary folder of the process.
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
        """The processor of such files."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                if Path(name).name != name:
                    raise ValueError(f"The config of the task has a processor's file {name!r}.")
                Path(folder, name).write_bytes(base64.b64decode(content))
            return cls.from_files(folder)
