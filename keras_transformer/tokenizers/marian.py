"""Tokenizers of Marian's translation models: two SentencePiece files and one vocabulary."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, processors

from keras_transformer.support.files import write_bytes, write_text
from keras_transformer.tokenizers.backend import refusing
from keras_transformer.tokenizers.bounds import check_ids
from keras_transformer.tokenizers.folder import (
    CONFIG_FILE,
    MARIAN_FILES,
    TOKEN_FLAGS,
    Folder,
    read_json_object,
)
from keras_transformer.tokenizers.sentencepiece import SPACE, Segmenter
from keras_transformer.tokenizers.sentencepiece_file import parse_sentencepiece
from keras_transformer.tokenizers.tokenizer import Tokenizer

_TOKENS = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class MarianTokenizer(Tokenizer, format="marian"):
    """Tokenizer of a Marian model, which `Tokenizer.from_files` returns for its files."""

    _takes_pieces = True

    def __init__(
        self, backend: tokenizers.Tokenizer, source: Segmenter, target: Segmenter, **roles
    ):
        super().__init__(backend, **roles)
        self._source, self._target = source, target
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
        # Longest first, since the first matching alternative is taken.
        choices = "|".join(map(re.escape, sorted(added, key=len, reverse=True)))
        self._parts = re.compile(f"({choices})" if added else r"(?!)()")

    @classmethod
    def from_files(cls, directory: str | os.PathLike) -> "MarianTokenizer":
        """Load a folder with `source.spm`, `target.spm` and `vocab.json`."""
        folder = Folder(directory)
        if not folder.has(*MARIAN_FILES):
            raise FileNotFoundError(
                f"{str(directory)!r} needs the files {', '.join(MARIAN_FILES)}."
            )
        path = folder.path / "vocab.json"
        if folder.of_class(path, _TOKENS).flag("separate_vocabs", False):
            raise ValueError(
                f"{folder.where} has a vocabulary for each side ('separate_vocabs'), which is not "
                "supported: source and target must share one."
            )
        with refusing(f"{folder.where} is not a usable vocabulary"):
            vocabulary = read_json_object(path)
            unknown = folder.tokens["unk_token"]
            backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
            folder.add_tokens(backend)
            end, _ = folder.needed(backend, "eos_token", "unk_token")
            backend.post_processor = processors.TemplateProcessing(
                single=["$A", end],
                pair=["$A", "$B:0", end],
                special_tokens=[(end, backend.token_to_id(end))],
            )
            # Not `Strip`, which panics on a text of nothing but spaces.
            strip = decoders.Replace(Regex(r"\A +| +\z"), "")
            backend.decoder = decoders.Sequence(
                [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), strip]
            )
            check_ids(backend)
        segmenters = [
            Segmenter(parse_sentencepiece(folder.path / name)) for name in MARIAN_FILES[:2]
        ]
        return cls(backend, *segmenters, **folder.roles(backend))

    def save(self, directory: str | os.PathLike) -> None:
        """Write Marian's own files, which Transformers can read too."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        model = json.loads(self._backend.to_str())["model"]
        added = {
            str(index): {option: getattr(token, option) for option in ("content", *TOKEN_FLAGS)}
            for index, token in sorted(self._backend.get_added_tokens_decoder().items())
        }
        config = {
            "tokenizer_class": "MarianTokenizer",
            "added_tokens_decoder": added,
            "separate_vocabs": False,
            "eos_token": self._roles["end"],
            "pad_token": self._roles["pad"],
            "unk_token": self._roles["unknown"],
        }
        write_bytes(directory / "source.spm", self._source.model.data)
        write_bytes(directory / "target.spm", self._target.model.data)
        for name, values in (("vocab.json", model["vocab"]), (CONFIG_FILE, config)):
            text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
            write_text(directory / name, text)

    def encode_targets(self, texts: Sequence[str] | np.ndarray) -> list[list[int]]:
        """Return the ids of targets, segmented by `target.spm`, without the end token."""
        rows = self._rows(texts, None, self._target)
        with self._refusing("encode"):
            encodings = self._backend.encode_batch_fast(
                rows, is_pretokenized=True, add_special_tokens=False
            )
        return [encoding.ids for encoding in encodings]

    def encode_batch_with_offsets(self, texts, pairs=None) -> list[tokenizers.Encoding]:
        """Raise ValueError: Marian's tokens have no offsets."""
        raise ValueError("The pieces of a Marian tokenizer have no offsets in the original text.")

    def to_tensorflow(self, sequence_length: int | None = None):
        """Raise ValueError: Marian's tokenizers are not available in TensorFlow."""
        raise ValueError("to_tensorflow() does not support Marian's tokenizers.")

    def _rows(self, texts, pairs, segment: Segmenter | None = None) -> list:
        rows = super()._rows(texts, pairs)
        if pairs is None:
            return self._pieces(rows, segment or self._source)
        sides = zip(*rows, strict=True) if rows else ((), ())
        return list(zip(*(self._pieces(side, self._source) for side in sides), strict=True))

    def _pieces(self, texts: Iterable[str], segment: Segmenter) -> list[list[str]]:
        """Return the pieces of texts; special tokens and languages are not segmented."""
        rows: list[list[tuple[bool, str]]] = []
        for text in texts:
            rows.append([])
            for place, part in enumerate(self._parts.split(text)):
                if place % 2:
                    rows[-1].append((False, part))
                    continue
                language = re.match(">>.*?<<", part, re.DOTALL)
                if language:
                    rows[-1].append((False, language[0]))
                    part = part[language.end() :]
                rows[-1].append((True, part))
        segmented = iter(segment([part for row in rows for to_do, part in row if to_do]))
        return [
            [piece for to_do, part in row for piece in (next(segmented) if to_do else [part])]
            for row in rows
        ]
