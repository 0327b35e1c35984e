"""Tokenizers of Marian's translation models: two SentencePiece files and one vocabulary."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import models, processors

from keras_transformer.tokenizers.backend import check_ids, refusing
from keras_transformer.tokenizers.folder import MARIAN_FILES, Folder, read_json_object
from keras_transformer.tokenizers.segmented import SegmentedTokenizer, piece_decoder
from keras_transformer.tokenizers.sentencepiece import Segmenter
from keras_transformer.tokenizers.sentencepiece_file import parse_sentencepiece

_TOKENS = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class MarianTokenizer(SegmentedTokenizer, format="marian"):
    """Tokenizer of a Marian model, which `Tokenizer.from_files` returns for its files."""

    of = "Marian"

    def __init__(
        self, backend: tokenizers.Tokenizer, source: Segmenter, target: Segmenter, **roles
    ):
        super().__init__(backend, source, **roles)
        self._target = target

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
            backend.decoder = piece_decoder()
            check_ids(backend)
        segmenters = [
            Segmenter(parse_sentencepiece(folder.path / name)) for name in MARIAN_FILES[:2]
        ]
        return cls(backend, *segmenters, **folder.roles(backend))

    def save(self, directory: str | os.PathLike) -> None:
        """Write Marian's own files, which Transformers can read too."""
        config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": False}
        files = dict(zip(MARIAN_FILES, (self._source, self._target), strict=False))
        self._write(Path(directory), config, self._words(), files)

    def encode_targets(self, texts: Sequence[str] | np.ndarray) -> list[list[int]]:
        """Return the ids of targets, segmented by `target.spm`, without the end token."""
        rows = self._rows(texts, None, self._target)
        with self._refusing("encode"):
            encodings = self._backend.encode_batch_fast(
                rows, is_pretokenized=True, add_special_tokens=False
            )
        return [encoding.ids for encoding in encodings]

    def _split(self, part: str, special: bool) -> list[tuple[bool, str]]:
        language = None if special else re.match(">>.*?<<", part, re.DOTALL)
        if language is None:
            return super()._split(part, special)
        return [(False, language[0]), (True, part[language.end() :])]
