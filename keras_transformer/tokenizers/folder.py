"""Files of a published tokenizer: their JSON values, and the tokens that they add.

Only JSON values, text and SentencePiece files are read, from fixed names in one folder. Nothing is
imported or executed, and no path found in a file is followed.
"""

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from keras_transformer.support.checking import load_json
from keras_transformer.support.files import has_file, read_file
from keras_transformer.tokenizers.backend import MAX_FILE
from keras_transformer.tokenizers.chat import MAX_TEMPLATE

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
CHAT_FILE = "chat_template.jinja"
MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")
M2M100_FILES = ("sentencepiece.bpe.model", "vocab.json")
RWKV_FILE = "rwkv_vocab_v20230424.txt"
# Files that hold a tokenizer, and files with more information about it.
TOKENIZER_FILES = (
    TOKENIZER_FILE,
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "sentencepiece.model",
    "tokenizer.model",
    RWKV_FILE,
)
FURTHER_FILES = (
    "merges.txt",
    *MARIAN_FILES[:2],
    CONFIG_FILE,
    "special_tokens_map.json",
    "added_tokens.json",
    CHAT_FILE,
)
# Entries that this package adds to the `tokenizer_config.json` it writes: the key of an option that
# tokenizer.json cannot hold, and a mark of its author.
ENDS_ONCE = "ends_once"  # see `Folder.ends_once`
OUR_MARK = {"written_by": "keras_transformer"}

# Special tokens, in the order in which missing ones are added to the vocabulary.
TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# The keys of each role in published files, the most reliable first.
PUBLISHED_KEYS = {
    "pad": ("pad_token",),
    "start": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "mask": ("mask_token",),
    "unknown": ("unk_token",),
}
# Used if no file says which token has which role.
_WELL_KNOWN = {
    "pad": ("<pad>", "[PAD]"),
    "start": ("<s>", "[CLS]", "<|endoftext|>"),
    "end": ("</s>", "[SEP]", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]"),
    "unknown": ("<unk>", "[UNK]"),
}
# Maximum bytes of a file. Published vocabularies of the older files have up to 5 MB, configs up to
# 2 MB.
_LIMIT = 16 * 2**20
_LIMITS = {TOKENIZER_FILE: MAX_FILE, CHAT_FILE: MAX_TEMPLATE, "config.json": 4 * 2**20}
TOKEN_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")

# Class name, without the ending "Fast", in the files of a tokenizer without a class of its own.
GENERIC = "PreTrainedTokenizer"
# Tokenizer class of a model whose tokenizer_config.json names none. The Llama classes are known
# only from their files.
_CLASS_OF_MODEL = {
    "albert": "AlbertTokenizer",
    "bart": "RobertaTokenizer",
    "bert": "BertTokenizer",
    "blenderbot": "BlenderbotTokenizer",
    "clip": "CLIPTokenizer",
    "codegen": "GPT2Tokenizer",
    "data2vec-text": "RobertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "esm": "EsmTokenizer",
    "fnet": "FNetTokenizer",
    "gpt2": "GPT2Tokenizer",
    "gpt_bigcode": GENERIC,
    "gpt_neo": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "gte": "XLMRobertaTokenizer",
    "hubert": "Wav2Vec2CTCTokenizer",
    "m2m_100": "M2M100Tokenizer",
    "jina_embeddings_v3": "XLMRobertaTokenizer",
    "marian": "MarianTokenizer",
    "mbart": "MBartTokenizer",
    "megatron-bert": "BertTokenizer",
    "mistral": GENERIC,
    "modernbert": GENERIC,
    "mpt": "GPTNeoXTokenizer",
    "modernbert-decoder": GENERIC,
    "mt5": "T5Tokenizer",
    "switch_transformers": "T5Tokenizer",
    "nemotron": GENERIC,
    "openai-gpt": "OpenAIGPTTokenizer",
    "pegasus": "PegasusTokenizer",
    "persimmon": GENERIC,
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "rembert": "RemBertTokenizer",
    "roberta": "RobertaTokenizer",
    "roberta-prelayernorm": "RobertaTokenizer",
    "roformer": "RoFormerTokenizer",
    "siglip": "SiglipTokenizer",
    "starcoder2": "GPT2Tokenizer",
    "t5": "T5Tokenizer",
    "umt5": GENERIC,
    "wav2vec2": "Wav2Vec2CTCTokenizer",
    "xglm": "XGLMTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
# Models whose files often name a wrong class.
_WRONGLY_NAMED = ("modernbert", "modernbert-decoder", "qwen2")


class Folder:
    """Contents of the JSON files that describe a folder's tokenizer.

    `of_class` adds the defaults of its published class.
    """

    def __init__(self, directory: str | os.PathLike):
        self.path = Path(directory)
        self.where, self.tokens, self.charsmap = repr(str(self.path)), {}, b""
        self.flags: dict[str, dict[str, bool]] = {}
        self.values = read_json_object(self.path / CONFIG_FILE)
        self.model_config = read_json_object(self.path / "config.json")
        # A config that lists the added tokens is complete; otherwise the older files add to it.
        self.lists_added = "added_tokens_decoder" in self.values
        if not self.lists_added:
            self.values |= read_json_object(self.path / "special_tokens_map.json")
        self.tokenizer_json = None
        if self.has(TOKENIZER_FILE):
            self.tokenizer_json = read_text(self.path / TOKENIZER_FILE)
            # The template in this file determines which tokens are put around a text.
            for name in ("add_bos_token", "add_eos_token"):
                self.values.pop(name, None)
        self.class_name = GENERIC
        if not OUR_MARK.items() <= self.values.items():
            self.class_name = self._class_name()

    def of_class(
        self,
        path: Path,
        tokens: dict[str, str],
        charsmap: bytes = b"",
        flags: dict[str, dict[str, bool]] | None = None,
    ) -> "Folder":
        """Set the defaults of a published class, and return the folder.

        Args:
            path: the main file of the tokenizer, which error messages name.
            tokens: special tokens by name, used where the files name no others.
            charsmap: SentencePiece's compiled normalization rules.
            flags: options of special tokens by name, used where the files give only their text.
        """
        self.where, self.charsmap, self.flags = repr(str(path)), charsmap, flags or {}
        self.tokens = {
            name: _content(self.values.get(name, tokens.get(name))) for name in TOKEN_NAMES
        }
        return self

    def has(self, *names: str) -> bool:
        """Return whether all these files exist."""
        return all(has_file(self.path / name) for name in names)

    @property
    def format(self) -> str | None:
        """`"marian"`, `"m2m100"`, `"rwkv"` or `"ctc"`: the subclass that reads the files."""
        if self.has(RWKV_FILE) or (self.class_name == "RwkvTokenizer" and self.has("vocab.txt")):
            return "rwkv"
        marian = self.class_name == "MarianTokenizer" or self.tokenizer_json is None
        if marian and self.has(*MARIAN_FILES):
            return "marian"
        if self.class_name == "M2M100Tokenizer" and self.has(*M2M100_FILES):
            return "m2m100"
        named = self.class_name == "Wav2Vec2CTCTokenizer"
        return "ctc" if named and self.tokenizer_json is None and self.has("vocab.json") else None

    def _class_name(self) -> str:
        """Return the class that `AutoTokenizer` uses, without the ending "Fast", or `GENERIC`."""
        # The tokenizer's file decides, except for models that are known for wrong names or have no
        # class of their own.
        named = self.values.get("tokenizer_class") or self.model_config.get("tokenizer_class")
        named = named.removesuffix("Fast") if isinstance(named, str) else None
        model_type = self.model_config.get("model_type")
        registered = _CLASS_OF_MODEL.get(model_type) if isinstance(model_type, str) else None
        if named is None:
            return registered or GENERIC
        # Files of Llama 3, which spells words in bytes, often name the class of Llama 2.
        in_bytes = '"ByteLevel"' in (self.tokenizer_json or "")
        if named == "LlamaTokenizer" and in_bytes and model_type not in _WRONGLY_NAMED:
            return GENERIC
        if registered == GENERIC or (registered and model_type in _WRONGLY_NAMED):
            return registered
        return named

    @property
    def ends_once(self) -> bool:
        """True if no end token is added to a text that ends with one; no template can say that."""
        return self.class_name == "SiglipTokenizer" or self.flag(ENDS_ONCE, False)

    def flag(self, name: str, default: bool | None) -> bool | None:
        """Return an option that must be true, false or missing."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{name!r} must be true or false in {self.where}, but is {value!r}.")
        return default if value is None else value

    def size(self, name: str, default: int, most: int) -> int:
        """Return an option that must be an integer from 0 to `most`."""
        value = self.values.get(name, default)
        if not isinstance(value, int) or not 0 <= value <= most:
            raise ValueError(
                f"{name!r} must be an integer from 0 to {most} in {self.where}, but is {value!r}."
            )
        return value

    def needed(self, backend: tokenizers.Tokenizer, *names: str) -> list[str]:
        """Return the special tokens of these names. Raises ValueError if one is missing."""
        found = [self.tokens.get(name) for name in names]
        for name, token in zip(names, found, strict=True):
            if token is None or backend.token_to_id(token) is None:
                raise ValueError(
                    f"{self.where} is not a {type(backend.model).__name__} vocabulary of its "
                    f"class: it has no token {token!r}, which is the {name!r} "
                    f"({backend.get_vocab_size()} tokens read)."
                )
        return found

    def roles(self, backend: tokenizers.Tokenizer) -> dict[str, str | None]:
        """Return the token of each role: from the files and the class, or else a well-known one."""
        said = any(self.tokens.values()) or not self.values.keys().isdisjoint(TOKEN_NAMES)
        roles = {}
        for role, keys in PUBLISHED_KEYS.items():
            tokens = [self.tokens[key] for key in keys] if said else _WELL_KNOWN[role]
            # A file may name a token that is not in its vocabulary: it has no embedding row.
            found = (t for t in tokens if t and backend.token_to_id(t) is not None)
            roles[role] = next(found, None)
        return roles

    def chat_template(self) -> str | None:
        """Return the chat template from its own file, or else from the config, or `None`."""
        if self.has(CHAT_FILE):
            return read_text(self.path / CHAT_FILE)
        where = f"'chat_template' in {str(self.path / CONFIG_FILE)!r}"
        template = self.values.get("chat_template")
        if isinstance(template, list):  # several named templates
            if not all(isinstance(item, dict) and "template" in item for item in template):
                raise ValueError(f"{where} must be a list of objects with 'name' and 'template'.")
            named = {str(item.get("name")): item["template"] for item in template}
            template = named.get("default")
        if template is not None and not isinstance(template, str):
            raise ValueError(f"{where} must be a string, but is {type(template).__name__}.")
        if template is not None and len(template) > MAX_TEMPLATE:
            raise ValueError(
                f"{where} has {len(template):,} characters; the maximum is {MAX_TEMPLATE:,}."
            )
        return template

    def add_tokens(
        self,
        backend: tokenizers.Tokenizer,
        usual: Sequence[AddedToken] = (),
        own: dict[int, AddedToken] | None = None,
    ) -> None:
        """Add the tokens that the files list or name to a backend.

        Args:
            backend: the backend.
            usual: further special tokens of the class, used if the files mention no further ones.
            own: the added tokens of `tokenizer.json` by id, used if the config does not list any.
        """
        listed = self.listed_tokens() | ({} if self.lists_added else own or {})
        names = {token for token in self.tokens.values() if token}
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
        # A token that is only named, and not in the vocabulary, is added if the model has an
        # embedding row for it. If the number of rows is unknown, only a class's mask is added,
        # which files of pieces lack. (Transformers always adds it.)
        rows = self._rows()
        mask = None if self.class_name == GENERIC else self.tokens.get("mask_token")
        room = 0 if rows is None else rows - backend.get_vocab_size()
        adding = []
        named = [
            _added_token(self._described(name) or token, special=True)
            for name, token in self.tokens.items()
            if token
        ]
        further = self.further_tokens()
        for token in [*named, *(usual if further is None else further)]:
            if not token.content or token.content in known:
                continue
            if backend.token_to_id(token.content) is None:
                if room < 1 and (rows is not None or token.content != mask):
                    continue
                room -= 1
            known.add(token.content)
            adding.append(token)
        backend.add_tokens(adding)

    def _described(self, name: str) -> Any:
        """Return a special token as the files describe it; plain text gets its class's options."""
        said = self.values.get(name)
        if isinstance(said, dict) or name not in self.flags:
            return said
        return {"content": said or self.tokens[name], **self.flags[name]}

    def _rows(self) -> int | None:
        """Return the number of embedding rows of the model in this folder, if it is known."""
        parts = [self.model_config, *self.model_config.values()]
        sizes = [part.get("vocab_size") for part in parts if isinstance(part, dict)]
        return max((size for size in sizes if isinstance(size, int)), default=None)

    def listed_tokens(self) -> dict[int, AddedToken]:
        """Return the added tokens by id, from the config or `added_tokens.json`."""
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
            raise ValueError(f"{str(path)!r} must map each token to its id, an integer.")
        special = {_content(self.values.get(name)) for name in TOKEN_NAMES}
        special.update(token.content for token in self.further_tokens() or ())
        return {
            index: AddedToken(token, normalized=token not in special, special=token in special)
            for token, index in listed.items()
        }

    def further_tokens(self) -> list[AddedToken] | None:
        """Return special tokens beyond the named ones, or `None` if no file mentions any."""
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


def read_text(path: Path) -> str:
    """Return the content of a text file of limited size."""
    data = read_file(path, _LIMITS.get(path.name, _LIMIT))
    try:
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} is not UTF-8 text: {error}") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if the file does not exist."""
    if not has_file(path):
        return {}
    text = read_text(path)
    try:
        value = load_json(text)
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
    """Return the text of a special token, which files give as a string or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _added_token(value, special: bool = False) -> AddedToken:
    """Return a token with its options, such as whether it absorbs spaces."""
    text = _content(value)
    if text is None:
        raise ValueError(
            f"A special token must be a string or an object with 'content', but is {value!r}."
        )
    options = value if isinstance(value, dict) else {}
    flags = {name: options[name] for name in TOKEN_FLAGS if isinstance(options.get(name), bool)}
    return AddedToken(text, **flags | {"special": special or flags.get("special", False)})
