"""Marian's translation models: two SentencePiece files and one vocabulary."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, processors

from keras_transformer.files import write_bytes, write_text
from keras_transformer.tokenizers.backend import refusing
from keras_transformer.tokenizers.bounds import check_ids
from keras_transformer.tokenizers.folder import CONFIG_FILE, MARIAN_FILES, Folder, read_json_object
from keras_transformer.tokenizers.loading import read_roles
from keras_transformer.tokenizers.sentencepiece import SPACE, Segmenter
from keras_transformer.tokenizers.sentencepiece_file import parse_sentencepiece
from keras_transformer.tokenizers.tokenizer import Tokenizer

_TOKENS = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class MarianTokenizer(Tokenizer):
    """The tokenizer of a Marian model, which `Tokenizer.from_files` gives for its files.

    A source is segmented by `source.spm`, a target (`encode_targets`) by `target.spm`, and
    `vocab.json` has the ids of the pieces of both: a piece that it lacks is the unknown token.
    `</s>` is put behind a source. A source may start with the language to translate into, as in
    `">>fra<< hello"`. There is no token that starts a sequence: a target starts with padding.

    Args:
        backend: maps pieces to ids and ids to text, and puts the end behind.
        source: segments sources.
        target: segments targets.
        roles: as of `Tokenizer`.

    Raises:
        ValueError: as of `Tokenizer`.

    Example:

    ```python
    from keras_transformer.tokenizers.marian import MarianTokenizer

    def translate_to_french(tokenizer: MarianTokenizer, text: str) -> list[int]:
        return tokenizer.encode(f">>fra<< {text}")
    ```

    Source: Junczys-Dowmunt et al. 2018; Tiedemann & Thottingal 2020.
    """

    _takes_pieces = True

    def __init__(
        self, backend: tokenizers.Tokenizer, source: Segmenter, target: Segmenter, **roles
    ):
        super().__init__(backend, **roles)
        self._source, self._target = source, target
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
        # The longest first: the first alternative that fits is taken.
        choices = "|".join(map(re.escape, sorted(added, key=len, reverse=True)))
        self._parts = re.compile(f"({choices})" if added else r"(?!)()")

    @classmethod
    def from_files(cls, directory: str | os.PathLike) -> "MarianTokenizer":
        """Loads a folder with `source.spm`, `target.spm` and `vocab.json`.

        Args:
            directory: the folder.

        Returns:
            The tokenizer.

        Raises:
            FileNotFoundError: if one of the files is missing.
            ValueError: if one is broken, or there is a vocabulary for each side.
        """
        folder = Folder(directory)
        if not folder.has(*MARIAN_FILES):
            raise FileNotFoundError(
                f"{str(directory)!r} needs the files {', '.join(MARIAN_FILES)}."
            )
        path = folder.path / "vocab.json"
        settings = folder.settings(path, _TOKENS)
        if settings.flag("separate_vocabs", False):
            raise ValueError(
                f"{settings.where} has a vocabulary for each side, which is not supported: the "
                "sides are to share one."
            )
        with refusing(f"{settings.where} is not a usable vocabulary"):
            vocabulary = read_json_object(path)
            unknown = settings.tokens["unk_token"]
            backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
            folder.add_tokens(
                backend, folder.listed_tokens(), settings.tokens, folder.further_tokens() or []
            )
            end, _ = settings.needed(backend, "eos_token", "unk_token")
            backend.post_processor = processors.TemplateProcessing(
                single=["$A", end],
                pair=["$A", "$B:0", end],
                special_tokens=[(end, backend.token_to_id(end))],
            )
            # Not `Strip`, which panics for a text that is nothing but what it strips.
            strip = decoders.Replace(Regex(r"\A +| +\z"), "")
            backend.decoder = decoders.Sequence(
                [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), strip]
            )
            check_ids(backend)
        segmenters = [
            Segmenter(parse_sentencepiece(folder.path / name)) for name in MARIAN_FILES[:2]
        ]
        return cls(backend, *segmenters, **read_roles(backend, settings))

    def save(self, directory: str | os.PathLike) -> None:
        """Writes Marian's own files, which Transformers reads too.

        Args:
            directory: the folder; made if it does not exist.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        model = json.loads(self._backend.to_str())["model"]
        options = ("content", "lstrip", "rstrip", "single_word", "normalized", "special")
        added = {
            str(index): {option: getattr(token, option) for option in options}
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
        """The ids of targets, segmented by `target.spm`, without the end."""
        rows = self._pieces(super()._rows(texts, None), self._target)
        with self._refusing("encode"):
            encodings = self._backend.encode_batch_fast(
                rows, is_pretokenized=True, add_special_tokens=False
            )
        return [encoding.ids for encoding in encodings]

    def encode_batch_with_offsets(self, texts, pairs=None) -> list[tokenizers.Encoding]:
        """Not for Marian.

        Raises:
            ValueError: always.
        """
        raise ValueError("The pieces of a Marian tokenizer have no places in the original text.")

    def to_tensorflow(self, sequence_length: int | None = None):
        """Not for Marian.

        Raises:
            ValueError: always.
        """
        raise ValueError("to_tensorflow() does not support Marian's tokenizers.")

    def _rows(self, texts, pairs) -> list:
        rows = super()._rows(texts, pairs)
        if pairs is None:
            return self._pieces(rows, self._source)
        first, second = zip(*rows, strict=True) if rows else ((), ())
        return list(
            zip(self._pieces(first, self._source), self._pieces(second, self._source), strict=True)
        )

    def _pieces(self, texts: Iterable[str], segment: Segmenter) -> list[list[str]]:
        """The pieces of texts: special tokens and languages as they are, the rest segmented."""
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
