"""The files of a published tokenizer: what their JSON says, and the tokens that they add."""

import io
import json
import os
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from keras_transformer.files import has_file, read_file
from keras_transformer.tokenizers.bounds import MAX_FILE
from keras_transformer.tokenizers.chat import MAX_TEMPLATE
from keras_transformer.tokenizers.preparing import Settings
from keras_transformer.tokenizers.published import GENERIC, class_of

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
CHAT_FILE = "chat_template.jinja"
MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")
# Files that hold a tokenizer, and files that say more of it.
TOKENIZER_FILES = (
    TOKENIZER_FILE,
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
FURTHER_FILES = (
    "merges.txt",
    *MARIAN_FILES[:2],
    CONFIG_FILE,
    "special_tokens_map.json",
    "added_tokens.json",
    CHAT_FILE,
)
# In the config of a folder that this package wrote, which is what its tokenizer.json says.
OUR_MARK = {"written_by": "keras_transformer"}

# Special tokens in the order in which those that the vocabulary lacks are added to it.
TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# Bytes that a file may have: vocabularies of one kind have up to 5 MB, configs up to 2 MB.
_LIMIT = 16 * 2**20
_LIMITS = {TOKENIZER_FILE: MAX_FILE, CHAT_FILE: MAX_TEMPLATE, "config.json": 4 * 2**20}
_TOKEN_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


class Folder:
    """What the JSON files of a folder say of its tokenizer.

    Args:
        directory: the folder.

    Raises:
        ValueError: if one of the files is broken.
    """

    def __init__(self, directory: str | os.PathLike):
        self.path = Path(directory)
        self.values = read_json_object(self.path / CONFIG_FILE)
        self.model_config = read_json_object(self.path / "config.json")
        # A config that lists the added tokens is complete; else the older files say more.
        self.lists_added = "added_tokens_decoder" in self.values
        if not self.lists_added:
            self.values |= read_json_object(self.path / "special_tokens_map.json")
        self.tokenizer_json = None
        if self.has(TOKENIZER_FILE):
            self.tokenizer_json = read_text(self.path / TOKENIZER_FILE)
            # Its own template says what is put around a text.
            for name in ("add_bos_token", "add_eos_token"):
                self.values.pop(name, None)
        self.class_name = GENERIC
        if not OUR_MARK.items() <= self.values.items():
            self.class_name = class_of(self.values, self.model_config, self.tokenizer_json or "")

    def has(self, *names: str) -> bool:
        """Whether all these files are there."""
        return all(has_file(self.path / name) for name in names)

    @property
    def is_marian(self) -> bool:
        """Whether it is to be read from Marian's files."""
        named = self.class_name == "MarianTokenizer" or self.tokenizer_json is None
        return named and self.has(*MARIAN_FILES)

    @property
    def names_tokens(self) -> bool:
        """Whether a file says which token is what."""
        return not self.values.keys().isdisjoint(TOKEN_NAMES)

    def chat_template(self) -> str | None:
        """The template of chats, `None` if no file has one.

        The file of its own counts, else the config, where it may be one of several with names.

        Raises:
            ValueError: if it is no text, or too long for one.
        """
        path = self.path / CHAT_FILE
        if has_file(path):
            return read_text(path)
        where = f"'chat_template' in {str(self.path / CONFIG_FILE)!r}"
        template = self.values.get("chat_template")
        if isinstance(template, list):
            if not all(isinstance(item, dict) and "template" in item for item in template):
                raise ValueError(f"{where} must be a list of objects with 'name' and 'template'.")
            named = {str(item.get("name")): item["template"] for item in template}
            template = named.get("default")
        if template is not None and not isinstance(template, str):
            raise ValueError(f"{where} must be a string, but is {type(template).__name__}.")
        if template is not None and len(template) > MAX_TEMPLATE:
            raise ValueError(
                f"{where} has {len(template):,} characters; it may have {MAX_TEMPLATE:,}."
            )
        return template

    def settings(self, where: Path, defaults: dict[str, str], charsmap: bytes = b"") -> Settings:
        """The values, with the special tokens of a class where no file names others."""
        tokens = {name: _content(self.values.get(name, defaults.get(name))) for name in TOKEN_NAMES}
        return Settings(self.values, repr(str(where)), tokens, charsmap)

    def listed_tokens(self) -> dict[int, AddedToken]:
        """The added tokens that the config or `added_tokens.json` lists with their ids."""
        if self.lists_added:
            listed = self.values["added_tokens_decoder"]
            if not isinstance(listed, dict) or not all(map(_is_id, listed)):
                raise ValueError(
                    f"'added_tokens_decoder' in {str(self.path / CONFIG_FILE)!r} must be an "
                    "object whose keys are ids."
                )
            return {int(index): _added_token(token) for index, token in listed.items()}
        path = self.path / "added_tokens.json"
        listed = read_json_object(path)
        if not all(isinstance(index, int) for index in listed.values()):
            raise ValueError(f"{str(path)!r} must hold the ids of its tokens.")
        special = {_content(self.values.get(name)) for name in TOKEN_NAMES}
        special.update(token.content for token in self.further_tokens() or ())
        return {
            index: AddedToken(token, normalized=token not in special, special=token in special)
            for token, index in listed.items()
        }

    def further_tokens(self) -> list[AddedToken] | None:
        """Special tokens beyond the named ones, `None` if no file speaks of them."""
        # The newer name first.
        for name in ("extra_special_tokens", "additional_special_tokens"):
            tokens = self.values.get(name)
            if tokens:
                if not isinstance(tokens, list | dict):
                    raise ValueError(
                        f"{name!r} in {str(self.path)!r} must be a list or an object of tokens."
                    )
                tokens = tokens.values() if isinstance(tokens, dict) else tokens
                return [_added_token(token, special=True) for token in tokens]
        return None

    def add_tokens(
        self,
        backend: tokenizers.Tokenizer,
        listed: dict[int, AddedToken],
        tokens: dict[str, str | None],
        more: list[AddedToken],
    ) -> None:
        """Adds the tokens that the files list or name to a backend.

        A token that is only named, and that the vocabulary lacks, is added to it if the model
        has an embedding for it. (Transformers always adds it.)

        Args:
            backend: the backend, with the model's own vocabulary.
            listed: the added tokens by id.
            tokens: the special tokens by name.
            more: further special tokens.

        Raises:
            ValueError: if a listed token has another id in the vocabulary.
        """
        names = {token for token in tokens.values() if token}
        present = backend.get_added_tokens_decoder().values()
        known = {token.content for token in present}
        same = {repr(token) for token in present}
        adding = []
        for _, token in sorted(listed.items()):
            if repr(token) not in same:
                token.special = token.special or token.content in names
                adding.append(token)
                known.add(token.content)
        backend.add_tokens(adding)
        for index, token in listed.items():
            if token.content and backend.token_to_id(token.content) != index:
                raise ValueError(
                    f"The files in {str(self.path)!r} contradict each other: they list the token "
                    f"{token.content!r} with the id {index}, but in the vocabulary it has "
                    f"{backend.token_to_id(token.content)}."
                )
        room = self.model_config.get("vocab_size")
        room = room - backend.get_vocab_size() if isinstance(room, int) else 0
        adding = []
        named = [
            _added_token(self.values.get(name) or token, special=True)
            for name, token in tokens.items()
            if token
        ]
        for token in [*named, *more]:
            if not token.content or token.content in known:
                continue
            if backend.token_to_id(token.content) is None:
                if room < 1:
                    continue
                room -= 1
            known.add(token.content)
            adding.append(token)
        backend.add_tokens(adding)


def read_text(path: Path) -> str:
    """A text file, of a size that such a file may have.

    Raises:
        ValueError: if it is larger, or not UTF-8.
    """
    data = read_file(path, _LIMITS.get(path.name, _LIMIT))
    try:
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} is not UTF-8 text: {error}") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file.

    Raises:
        ValueError: if it is not JSON, or not an object.
    """
    if not has_file(path):
        return {}
    text = read_text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(
            f"{str(path)!r} must hold a JSON object, but holds a {type(value).__name__}."
        )
    return value


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _content(token) -> str | None:
    """The text of a special token, which files give as a string or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _added_token(value, special: bool = False) -> AddedToken:
    """A token with its options: whether it takes spaces along, and so on."""
    text = _content(value)
    if text is None:
        raise ValueError(f"A token must be a string or have a 'content', but is {value!r}.")
    options = value if isinstance(value, dict) else {}
    flags = {name: options[name] for name in _TOKEN_FLAGS if isinstance(options.get(name), bool)}
    return AddedToken(text, **flags | {"special": special or flags.get("special", False)})
