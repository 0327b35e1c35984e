"""Tokenizer of M2M100: one SentencePiece file, a vocabulary, and languages behind it."""

import os
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, models

from keras_transformer.tokenizers.backend import check_ids, refusing
from keras_transformer.tokenizers.folder import M2M100_FILES, Folder, read_json_object
from keras_transformer.tokenizers.languages import M2M100_CODES, set_language
from keras_transformer.tokenizers.published import source_language
from keras_transformer.tokenizers.segmented import SegmentedTokenizer, piece_decoder
from keras_transformer.tokenizers.sentencepiece import Segmenter
from keras_transformer.tokenizers.sentencepiece_file import parse_sentencepiece

_SPELLING = "__{}__"
_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
}


class M2M100Tokenizer(SegmentedTokenizer, format="m2m100"):
    """Tokenizer of an M2M100 model, which `Tokenizer.from_files` returns for its files."""

    of = "M2M100"

    @classmethod
    def from_files(cls, directory: str | os.PathLike) -> "M2M100Tokenizer":
        """Load a folder with `sentencepiece.bpe.model` and `vocab.json`."""
        folder = Folder(directory)
        pieces, words = (folder.path / name for name in M2M100_FILES)
        folder.of_class(words, _TOKENS)
        with refusing(f"{folder.where} is not a usable vocabulary"):
            vocabulary = read_json_object(words)
            names = folder.values.get("language_codes", "m2m100")
            if not isinstance(names, str) or names not in M2M100_CODES:
                raise ValueError(
                    f"'language_codes' must be one of {', '.join(map(repr, M2M100_CODES))} in "
                    f"{folder.where}, but is {names!r}."
                )
            # Transformers takes a language for a special token only if a file of the folder lists
            # it, as all published ones do.
            languages = [_SPELLING.format(code) for code in M2M100_CODES[names]]
            vocabulary |= {token: len(vocabulary) + i for i, token in enumerate(languages)}
            backend = tokenizers.Tokenizer(
                models.WordLevel(vocabulary, unk_token=folder.tokens["unk_token"])
            )
            folder.add_tokens(backend)
            backend.add_tokens([AddedToken(t, special=True, normalized=False) for t in languages])
            end, _ = folder.needed(backend, "eos_token", "unk_token")
            own = source_language(backend, folder, "en", _SPELLING)
            set_language(backend, own, end, first=True)
            backend.decoder = piece_decoder()
            check_ids(backend)
        return cls(backend, Segmenter(parse_sentencepiece(pieces)), **folder.roles(backend))

    def save(self, directory: str | os.PathLike) -> None:
        """Write M2M100's own files, which Transformers can read too."""
        languages = self.languages
        named = {languages.spelling.format(name) for name in languages.names}
        words = {word: index for word, index in self._words().items() if word not in named}
        of_wmt = set(languages.names) == set(M2M100_CODES["wmt21"])
        source = self.languages.name_of(self.encode("")[0])
        config = {
            "tokenizer_class": "M2M100Tokenizer",
            "language_codes": "wmt21" if of_wmt else "m2m100",
            "src_lang": source,
            "bos_token": self._roles["start"],
        }
        files = {M2M100_FILES[0]: self._source}
        self._write(Path(directory), config, words, files)
