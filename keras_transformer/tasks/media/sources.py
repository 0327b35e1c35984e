"""Processors that combine an image or audio processor with a tokenizer."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.data import Conversation, as_conversations
from keras_transformer.data.conversations import conversation_columns
from keras_transformer.data.pictured import is_messages
from keras_transformer.data.record_objects import column_names
from keras_transformer.processors import AudioProcessor, ImageProcessor, VideoProcessor
from keras_transformer.processors.processor import Processor
from keras_transformer.support.checking import describe, with_article
from keras_transformer.support.files import has_file
from keras_transformer.tasks.data.text import TextProcessor
from keras_transformer.tasks.media.speech_tokens import SpeechTokens
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.folder import TOKENIZER_FILES


class SourceProcessor(Processor):
    """A processor of images or audio, and a tokenizer.

    Args:
        source: an instance of `source_class`.
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
                f"`processor` must be {with_article(self.source_class.__name__)}, received "
                f"{describe(source)}."
            )
        left_out = tokenizer is None and not self.needs_tokenizer
        if not left_out and not isinstance(tokenizer, Tokenizer):
            raise ValueError(f"`tokenizer` must be a Tokenizer, received {describe(tokenizer)}.")
        self.source, self.tokenizer = source, tokenizer

    @classmethod
    def joined(cls, processor: Any, tokenizer: Tokenizer | None) -> "SourceProcessor | None":
        """Combine a task's two arguments, or return a processor that is already combined."""
        if isinstance(processor, cls):
            return processor
        if processor is None and tokenizer is None:
            return None
        if processor is None or (tokenizer is None and cls.needs_tokenizer):
            missing = "`processor`" if processor is None else "`tokenizer`"
            raise ValueError(
                f"{missing} is missing: a task of {cls.source_class.raw} and texts needs a "
                "`processor` and a `tokenizer`, or neither if it only takes arrays and ids."
            )
        return cls(processor, tokenizer)

    @classmethod
    def takes(cls, x: Any) -> bool:
        """Return True if `x` holds sources, or is a tuple of sources and prompts, valid or not."""
        if isinstance(x, tuple) and not cls.source_class.is_one(x):
            return len(x) == 2 and cls.source_class.takes(x[0])
        return cls.source_class.takes(x)

    @classmethod
    def stream(cls, task, data, batch_size=None, steps=None, **options):
        return cls.source_class.stream(task, data, batch_size, steps, **options)

    @classmethod
    def load_dataset(cls, task, data, options):
        return cls.source_class.load_dataset(task, data, options)

    def parts(self, x: Any) -> tuple[Sequence, Any]:
        """Return sources as a sequence, and the prompts or texts in a tuple with them, or None."""
        if isinstance(x, tuple) and not self.source_class.is_one(x):
            return self.source.rows(x[0]), x[1]
        return self.source.rows(x), None

    def save(self, directory: str) -> None:
        self.source.save(directory)
        if self.tokenizer is not None:
            self.tokenizer.save(directory)

    def config_values(self) -> dict[str, Any]:
        known = self.tokenizer and {
            name: self.tokenizer.token_to_id(token)
            for name, token in self.source.token_values().items()
        }
        ids = {name: id for name, id in (known or {}).items() if id is not None}
        return {**self.source.config_values(), **ids}

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
    reads_arrays = ("encoder_frames", "encoder_images", "encoder_samples")

    def __init__(self, source: AudioProcessor, tokenizer: Tokenizer):
        super().__init__(source, tokenizer)
        # None if the vocabulary is not Whisper's.
        self.speech_tokens = SpeechTokens.from_tokenizer(tokenizer)


class PictureProcessor(SourceProcessor):
    """An `ImageProcessor` and a tokenizer."""

    source_class = ImageProcessor
    options = ("max_length", "train_on", "num_orders")
    kind = "image processor and tokenizer"
    raw = "images"
    files = ImageProcessor.files
    reads_arrays = ("encoder_images", "encoder_patches", "source_images")

    @classmethod
    def takes(cls, x: Any) -> bool:
        return holds_chats(x) or super().takes(x)

    @classmethod
    def stream(cls, task, data, batch_size=None, steps=None, **options):
        names = column_names(data)
        if names is not None and conversation_columns(names) is not None:
            return as_conversations(data)
        return super().stream(task, data, batch_size, steps, **options)


def holds_chats(x: Any) -> bool:
    """Return whether `x` is one conversation or a list of them, or rows that hold them."""
    if is_messages(x):
        return True
    first = x[0] if isinstance(x, (list, tuple)) and len(x) else None
    rows = isinstance(first, Mapping) and conversation_columns(list(first)) is not None
    return isinstance(first, Conversation) or is_messages(first) or rows


class PageProcessor(SourceProcessor):
    """An `ImageProcessor` for pages, and a tokenizer for queries."""

    source_class = ImageProcessor
    kind = "image processor and tokenizer"
    raw = "images"
    files = ImageProcessor.files
    reads_arrays = ("encoder_images", "encoder_patches")


class PairProcessor(SourceProcessor):
    """An `ImageProcessor`, and a tokenizer if the model also embeds texts."""

    source_class = ImageProcessor
    kind = "image processor and tokenizer"
    raw = "images"
    files = ImageProcessor.files
    needs_tokenizer = False
    reads_arrays = ("images", "patches")


class RecordingPairProcessor(SourceProcessor):
    """An `AudioProcessor`, and a tokenizer if the model also embeds texts."""

    source_class = AudioProcessor
    kind = "audio processor and tokenizer"
    raw = "recordings"
    files = AudioProcessor.files
    needs_tokenizer = False
    reads_arrays = AudioProcessor.reads_arrays


class VideoPairProcessor(SourceProcessor):
    """A `VideoProcessor`, and a tokenizer if the model also embeds texts."""

    source_class = VideoProcessor
    kind = "video processor and tokenizer"
    raw = "videos"
    files = VideoProcessor.files
    needs_tokenizer = False
    reads_arrays = VideoProcessor.reads_arrays


class SourceRows:
    """Rows of a backbone input, computed from sources when they are indexed.

    Args:
        name: str, the name of the input.
        arrays: function from row indices to the arrays of those sources, by name.
    """

    def __init__(self, name: str, arrays: Callable[[tuple[int, ...]], Mapping[str, np.ndarray]]):
        self.name, self.arrays = name, arrays

    def __getitem__(self, places) -> np.ndarray | None:
        """Return the rows; None if these sources have no such input."""
        return self.arrays(tuple(map(int, places))).get(self.name)

    @classmethod
    def by_name(cls, task, sources: Sequence | Mapping[int, Any]) -> "dict[str, SourceRows]":
        """Return the rows of all inputs of the backbone's first side, by name.

        Inputs that are indexed with the same sources in turn share one computation.
        """

        @functools.lru_cache(maxsize=1)
        def arrays(places):
            return task.arrays_of([sources[i] for i in places], places)

        return {name: cls(name, arrays) for name in task.source_inputs}
