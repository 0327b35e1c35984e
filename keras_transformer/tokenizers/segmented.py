"""Base of tokenizers that split texts with a SentencePiece file, and look pieces up elsewhere."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import tokenizers
from tokenizers import Regex, decoders

from keras_transformer.support.files import write_bytes, write_text
from keras_transformer.tokenizers.folder import CONFIG_FILE, TOKEN_FLAGS
from keras_transformer.tokenizers.sentencepiece import SPACE, Segmenter
from keras_transformer.tokenizers.tokenizer import Tokenizer


def piece_decoder() -> decoders.Decoder:
    """Return a decoder of pieces that drops the spaces at both ends of a text."""
    # Not `Strip`, which panics on a text of nothing but spaces.
    strip = decoders.Replace(Regex(r"\A +| +\z"), "")
    return decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    )


class SegmentedTokenizer(Tokenizer):
    """A tokenizer whose pieces are those of a SentencePiece file, with ids of its own.

    Args:
        backend: a `tokenizers.Tokenizer` of words, which are the pieces.
        source: the `Segmenter` of texts.
        **roles: the special tokens, as for `Tokenizer`.
    """

    of: ClassVar[str]  # whose tokenizer it is, for error messages
    _takes_pieces = True

    def __init__(self, backend: tokenizers.Tokenizer, source: Segmenter, **roles):
        super().__init__(backend, **roles)
        self._source = source
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
        # Longest first, since the first matching alternative is taken.
        choices = "|".join(map(re.escape, sorted(added, key=len, reverse=True)))
        self._parts = re.compile(f"({choices})" if added else r"(?!)()")

    def encode_batch_with_offsets(self, texts, pairs=None) -> list[tokenizers.Encoding]:
        """Raise ValueError: the tokens have no offsets."""
        raise ValueError(
            f"The pieces of a {self.of} tokenizer have no offsets in the original text."
        )

    def to_tensorflow(self, sequence_length: int | None = None):
        """Raise ValueError: the tokenizer is not available in TensorFlow."""
        raise ValueError(f"to_tensorflow() does not support {self.of}'s tokenizers.")

    def _write(
        self,
        directory: Path,
        config: dict[str, Any],
        vocabulary: dict[str, int],
        models: dict[str, Segmenter],
    ) -> None:
        """Write the SentencePiece files, the vocabulary, and the config with the added tokens."""
        directory.mkdir(parents=True, exist_ok=True)
        added = {
            str(index): {option: getattr(token, option) for option in ("content", *TOKEN_FLAGS)}
            for index, token in sorted(self._backend.get_added_tokens_decoder().items())
        }
        config = {
            **config,
            "added_tokens_decoder": added,
            "eos_token": self._roles["end"],
            "pad_token": self._roles["pad"],
            "unk_token": self._roles["unknown"],
        }
        for name, segmenter in models.items():
            write_bytes(directory / name, segmenter.model.data)
        for name, values in (("vocab.json", vocabulary), (CONFIG_FILE, config)):
            text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
            write_text(directory / name, text)

    def _words(self) -> dict[str, int]:
        """Return the words of the backend's model, without tokens that were added to it."""
        return json.loads(self._backend.to_str())["model"]["vocab"]

    def _rows(self, texts, pairs, segment: Segmenter | None = None) -> list:
        rows = super()._rows(texts, pairs)
        if pairs is None:
            return self._pieces(rows, segment or self._source)
        sides = zip(*rows, strict=True) if rows else ((), ())
        return list(zip(*(self._pieces(side, self._source) for side in sides), strict=True))

    def _pieces(self, texts: Iterable[str], segment: Segmenter) -> list[list[str]]:
        """Return the pieces of texts; special tokens are not segmented."""
        rows: list[list[tuple[bool, str]]] = []
        for text in texts:
            parts = enumerate(self._parts.split(text))
            rows.append([x for i, part in parts for x in self._split(part, bool(i % 2))])
        segmented = iter(segment([part for row in rows for to_do, part in row if to_do]))
        return [
            [piece for to_do, part in row for piece in (next(segmented) if to_do else [part])]
            for row in rows
        ]

    def _split(self, part: str, special: bool) -> list[tuple[bool, str]]:
        """Split a special token, or the text between two, into parts to segment and others."""
        return [(not special, part)]
