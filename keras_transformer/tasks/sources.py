"""The processor of sources that are no texts, beside the tokenizer of the texts about them."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_transformer.checking import describe
from keras_transformer.config import TransformerConfig
from keras_transformer.files import has_file
from keras_transformer.processors import AudioProcessor, ImageProcessor
from keras_transformer.processors.processor import Processor
from keras_transformer.tasks.speech_tokens import SpeechTokens
from keras_transformer.tasks.text import TextProcessor
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.folder import TOKENIZER_FILES


class SourceProcessor(Processor):
    """A processor of images or sound, and a tokenizer.

    Args:
        source: of `source_class`.
        tokenizer: `Tokenizer`.
    """

    source_class: ClassVar[type[Processor]]
    options = ("max_length",)
    made = "arrays and ids"
    has_tokenizer = True
    needs_tokenizer: ClassVar[bool] = True

    def __init__(self, source: Processor, tokenizer: Tokenizer | None = None):
        if not isinstance(source, self.source_class):
            raise ValueError(
                f"`processor` must be of {self.source_class.__name__}, received {describe(source)}."
            )
        left_out = tokenizer is None and not self.needs_tokenizer
        if not left_out and not isinstance(tokenizer, Tokenizer):
            raise ValueError(f"`tokenizer` must be a Tokenizer, received {describe(tokenizer)}.")
        self.source, self.tokenizer = source, tokenizer

    @classmethod
    def joined(cls, processor: Any, tokenizer: Tokenizer | None) -> "SourceProcessor | None":
        """The two that a task is given, or one that was joined before."""
        if isinstance(processor, cls):
            return processor
        if processor is None and tokenizer is None:
            return None
        if processor is None or (tokenizer is None and cls.needs_tokenizer):
            missing = "`processor`" if processor is None else "`tokenizer`"
            raise ValueError(
                f"{missing} is missing: a task of {cls.source_class.raw} and texts needs both, or "
                "neither to take arrays and ids."
            )
        return cls(processor, tokenizer)

    @classmethod
    def takes(cls, x: Any) -> bool:
        """Whether `x` is sources, or a tuple of sources and prompts; valid or not."""
        if isinstance(x, tuple) and not cls.source_class.is_one(x):
            return len(x) == 2 and cls.source_class.takes(x[0])
        return cls.source_class.takes(x)

    @classmethod
    def stream(cls, task, data, batch_size=None, steps=None, **options):
        return cls.source_class.stream(task, data, batch_size, steps, **options)

    @classmethod
    def whole(cls, task, data, options):
        return cls.source_class.whole(task, data, options)

    def parts(self, x: Any) -> tuple[Sequence, Any]:
        """Sources as a sequence, and the prompts beside them, if any."""
        if isinstance(x, tuple) and not self.source_class.is_one(x):
            return self.source.rows(x[0]), x[1]
        return self.source.rows(x), None

    def save(self, directory: str) -> None:
        self.source.save(directory)
        if self.tokenizer is not None:
            self.tokenizer.save(directory)

    @classmethod
    def from_files(cls, directory: str) -> "SourceProcessor":
        source, tokenizer = cls.source_class.from_files(directory), None
        if cls.needs_tokenizer or any(has_file(Path(directory, n)) for n in TOKENIZER_FILES):
            tokenizer = Tokenizer.from_files(directory)
        return cls(source, tokenizer)

    def check(self, config: TransformerConfig) -> None:
        self.source.check(config)
        if self.tokenizer is not None:
            TextProcessor(self.tokenizer).check(config.sides[-1])


class SpeechProcessor(SourceProcessor):
    """An `AudioProcessor` and a tokenizer."""

    source_class = AudioProcessor
    options = ("max_length", "language")
    kind = "audio processor and tokenizer"
    raw = "recordings"
    files = AudioProcessor.files

    def __init__(self, source: AudioProcessor, tokenizer: Tokenizer):
        super().__init__(source, tokenizer)
        # None for another vocabulary than Whisper's.
        self.speech_tokens = SpeechTokens.of(tokenizer)


class PictureProcessor(SourceProcessor):
    """An `ImageProcessor` and a tokenizer."""

    source_class = ImageProcessor
    kind = "image processor and tokenizer"
    raw = "images"
    files = ImageProcessor.files


class PairProcessor(PictureProcessor):
    """An `ImageProcessor`, and a tokenizer for a model that has a side of texts."""

    needs_tokenizer = False


class SourceRows:
    """The arrays of sources, made when they are asked for: the rows of an input of a backbone.

    Args:
        name: str, the input.
        arrays: makes the arrays of sources at given places, by name.
    """

    def __init__(self, name: str, arrays: Callable[[tuple[int, ...]], Mapping[str, np.ndarray]]):
        self.name, self.arrays = name, arrays

    def __getitem__(self, places) -> np.ndarray:
        return self.arrays(tuple(map(int, places)))[self.name]

    @classmethod
    def of(cls, task, sources: Sequence) -> "dict[str, SourceRows]":
        """Those of all inputs of the first side of a task's backbone, by name.

        Inputs that are asked for the same sources in turn are made of them once.
        """

        @functools.lru_cache(maxsize=1)
        def arrays(places):
            return task.arrays_of([sources[i] for i in places], places)

        prefix, (stem, _) = next(iter(task.backbone.sides.items()))
        names = (f"{prefix}{each.name}" for each in stem.inputs)
        return {name: cls(name, arrays) for name in names}
