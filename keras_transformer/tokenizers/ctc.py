"""Tokenizer for CTC models, with a token for each character."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from keras_transformer.support.checking import check_bool, check_text, describe
from keras_transformer.support.files import write_text
from keras_transformer.tokenizers.backend import check_ids, refusing
from keras_transformer.tokenizers.folder import CONFIG_FILE, Folder, read_json_object
from keras_transformer.tokenizers.tokenizer import Tokenizer

_TOKENS = {
    "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
}  # fmt: skip
_ROLES = {"pad": "pad_token", "start": "bos_token", "end": "eos_token", "unknown": "unk_token"}
_FILE = "vocab.json"


class CTCTokenizer(Tokenizer, format="ctc"):
    """Tokenizer with a token for each character, and one between words, as in wav2vec 2.0.

    `Tokenizer.from_files` returns it for the files of such a model. No special tokens are added to
    a text. `CTCSpeechToText` uses the padding token as CTC's blank.

    Args:
        vocabulary: dict with the id of each character, of the delimiter and of the special tokens.
        delimiter: str, the token between words, in place of a space.
        lowercase: bool, whether texts are in lower case and the vocabulary in upper case: encoding
            and decoding convert them.
        **roles: the tokens `pad`, `start`, `end` and `unknown`, as in `Tokenizer`.

    Raises:
        ValueError: if the vocabulary lacks the delimiter or the unknown token.

    Example:
    ```python
    import keras_transformer as kt

    tokenizer = kt.tokenizers.CTCTokenizer.of_characters("abc")
    assert tokenizer.encode("a cab") == [5, 4, 7, 5, 6]  # 0 is the padding, 4 between words
    assert tokenizer.decode([5, 4, 7, 5, 6]) == "a cab"
    ```

    Source: Baevski et al. 2020, "wav2vec 2.0", section 4.2.
    """

    def __init__(
        self,
        vocabulary: dict[str, int],
        delimiter: str = "|",
        lowercase: bool = False,
        **roles: str | None,
    ):
        lowercase = check_bool("lowercase", lowercase)
        unknown = roles.get("unknown")
        for what, token in (("delimiter", delimiter), ("unknown token", unknown)):
            if token not in vocabulary:
                raise ValueError(f"The vocabulary has no {what} {token!r}.")
        with refusing("The vocabulary is not usable"):
            backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
            options = {"lstrip": True, "rstrip": True, "normalized": False, "special": True}
            whole = [AddedToken(token, **options) for token in vocabulary if len(token) > 1]
            backend.add_tokens(whole)
            backend.normalizer = normalizers.Replace(" ", delimiter)
            backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
            check_ids(backend)
        super().__init__(backend, **roles)
        self.delimiter, self.lowercase = delimiter, lowercase
        self._tokens = {number: token for token, number in vocabulary.items()}
        choices = "|".join(map(re.escape, sorted((t.content for t in whole), key=len)[::-1]))
        self._whole = re.compile(f"({choices})" if choices else r"(?!)()")

    @classmethod
    def of_characters(
        cls, characters: Iterable[str], delimiter: str = "|", lowercase: bool = False
    ) -> "CTCTokenizer":
        """Build a tokenizer of characters, with `<pad>`, `<s>`, `</s>`, `<unk>` and a delimiter.

        Args:
            characters: a string of the characters, or texts that contain them; they are sorted.
            delimiter: str, one character that is not in `characters`.
            lowercase: bool, as for the class: the characters are then converted to upper case.

        Raises:
            ValueError: if there are no characters, or the delimiter is among them.
        """
        if isinstance(characters, (bytes, dict)) or not isinstance(characters, Iterable):
            raise ValueError(
                f"`characters` must be a string, or texts, received {describe(characters)}."
            )
        texts = [check_text("characters", text) for text in characters]
        found = set("".join(texts).upper() if lowercase else "".join(texts)) - {" "}
        if not found:
            raise ValueError("`characters` is empty: give the characters that texts consist of.")
        if len(check_text("delimiter", delimiter)) != 1 or delimiter in found:
            raise ValueError(
                f"`delimiter` must be one character that is in no text, received {delimiter!r}."
            )
        tokens = [*_TOKENS.values(), delimiter, *sorted(found)]
        roles = {role: _TOKENS[name] for role, name in _ROLES.items()}
        return cls({token: i for i, token in enumerate(tokens)}, delimiter, lowercase, **roles)

    @classmethod
    def from_files(cls, directory: str | os.PathLike) -> "CTCTokenizer":
        """Load a folder with a `vocab.json` of characters."""
        folder = Folder(directory)
        if not folder.has(_FILE):
            raise FileNotFoundError(f"{str(directory)!r} needs the file {_FILE}.")
        path = folder.path / _FILE
        vocabulary, values = read_json_object(path), folder.of_class(path, _TOKENS).values
        if any(isinstance(ids, dict) for ids in vocabulary.values()):
            raise ValueError(
                f"{folder.where} has a vocabulary for each language, which is not supported."
            )
        wrong = next((t for t, i in vocabulary.items() if not t or type(i) is not int), None)
        if wrong is not None:
            raise ValueError(
                f"{folder.where} must map non-empty tokens to integer ids, but maps {wrong!r} to "
                f"{vocabulary[wrong]!r}."
            )
        delimiter = values.get("word_delimiter_token", "|")
        if not isinstance(delimiter, str) or len(delimiter) != 1:
            raise ValueError(
                f"'word_delimiter_token' must be one character in {folder.where}, but is "
                f"{delimiter!r}."
            )
        roles = {role: folder.tokens[name] for role, name in _ROLES.items()}
        roles = {role: token if token in vocabulary else None for role, token in roles.items()}
        try:
            return cls(vocabulary, delimiter, folder.flag("do_lower_case", False), **roles)
        except ValueError as error:
            raise ValueError(f"{folder.where}: {error}") from None

    @property
    def delimiter_id(self) -> int:
        """Id of the token between words."""
        return self.token_to_id(self.delimiter)

    def save(self, directory: str | os.PathLike) -> None:
        """Write `vocab.json` and `tokenizer_config.json`, which Transformers can read too."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        config = {
            "tokenizer_class": "Wav2Vec2CTCTokenizer",
            "word_delimiter_token": self.delimiter,
            "replace_word_delimiter_char": " ",
            "do_lower_case": self.lowercase,
            **{name: self._roles[role] for role, name in _ROLES.items()},
        }
        vocabulary = {token: number for number, token in sorted(self._tokens.items())}
        for name, values in ((_FILE, vocabulary), (CONFIG_FILE, config)):
            text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
            write_text(directory / name, text)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of ids. Only padding is left out: all other tokens were predicted."""
        return self.decode_batch([ids])[0]

    def decode_batch(self, ids: Sequence[Sequence[int]] | np.ndarray) -> list[str]:
        """Return the texts of many rows of ids; see `decode`."""
        rows = [self._check_ids(row, f"ids[{index}]") for index, row in enumerate(ids)]
        spelled = {**self._tokens, self.delimiter_id: " ", self.pad_id: ""}
        texts = ["".join(spelled.get(i, "") for i in row).strip() for row in rows]
        return [text.lower() for text in texts] if self.lowercase else texts

    def to_tensorflow(self, sequence_length: int | None = None):
        """Raise ValueError: CTC tokenizers are not available in TensorFlow."""
        raise ValueError("to_tensorflow() does not support a CTCTokenizer.")

    def _rows(self, texts, pairs) -> list:
        rows = super()._rows(texts, pairs)
        if not self.lowercase:
            return rows
        if pairs is None:
            return [self._upper(text) for text in rows]
        return [(self._upper(first), self._upper(second)) for first, second in rows]

    def _upper(self, text: str) -> str:
        """Return the text in upper case, its special tokens as they are."""
        parts = enumerate(self._whole.split(text))
        return "".join(part if place % 2 else part.upper() for place, part in parts)
