"""Conversion of KerasHub's tokenizers to this package's, with the same ids.

A `tokenizer.json` of KerasHub is a serialized Keras object: its class is looked up in the table at
the end, its arguments are read as values. The vocabulary is in `assets/tokenizer`. Special tokens
are added as KerasHub's preprocessors do. Facts are from KerasHub 0.32, `tokenizers/*.py` and
`models/*/*_tokenizer.py`.
"""

import dataclasses
import functools
import io
import os
import re
import string
import unicodedata
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from keras_transformer.checkpoints.keras_hub.family import (
    registered_class,
    serialized_arguments,
)
from keras_transformer.support.files import path_inside, read_json
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.backend import CHINESE, WORD_BREAK, check_ids, refusing
from keras_transformer.tokenizers.folder import read_text
from keras_transformer.tokenizers.preparing import set_clip_words
from keras_transformer.tokenizers.published import PAIRS
from keras_transformer.tokenizers.rwkv import (
    END_OF_TEXT,
    RWKVTokenizer,
    make_backend,
    read_vocabulary,
    spell,
)
from keras_transformer.tokenizers.sentencepiece import read_sentencepiece
from keras_transformer.tokenizers.sentencepiece_file import parse_sentencepiece
from keras_transformer.tokenizers.training import BERT_ROLES, TEMPLATES, set_template

TOKENIZER_FILE = "tokenizer.json"
PREPROCESSOR_FILE = "preprocessor.json"
ASSETS = "assets/tokenizer"
_VOCABULARY_LIMIT = 16 * 2**20  # bytes, ten times the largest published one

# Control characters that mark places in a text during normalization. They cannot occur in the text
# itself, from which control characters are removed first.
_BREAK, _FILL, _LONG = WORD_BREAK, "\x1e", "\x1d"
_SPACES = r"[ \t\n\r\f\p{Cc}\p{Cf}]"
_PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"
_MOST_BYTES = 100  # in a word; longer words are unknown

Roles = dict[str, str | None]


def has_tokenizer(folder: str | os.PathLike) -> bool:
    """Return whether a folder has a tokenizer in KerasHub's form."""
    path = path_inside(folder, TOKENIZER_FILE)
    return path.is_file() and path_inside(folder, ASSETS, is_folder=True).is_dir()


def read_tokenizer(
    folder: str | os.PathLike, tokenizer_class: type[Tokenizer] = Tokenizer
) -> Tokenizer:
    r"""Read the tokenizer of a KerasHub preset."""
    options = _options(path_inside(folder, TOKENIZER_FILE), _READERS)
    backend, roles = _READERS[options.name](Path(folder), options)
    with refusing(f"The tokenizer in {folder} is not usable"):
        check_ids(backend)
    own = {"RWKVTokenizer": RWKVTokenizer}.get(options.name)
    return (own or tokenizer_class)(backend, **roles)


@dataclasses.dataclass(frozen=True)
class _Options:
    """Class and arguments of a serialized object, and the file that they come from."""

    path: Path
    name: str
    values: dict[str, Any]

    def get(self, name: str, default: bool | str) -> Any:
        """Return an argument or its default. Raises ValueError if the two types differ."""
        value, kind = self.values.get(name), type(default)
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{self.path}: {name} must be a {kind.__name__}, not {value!r}.")
        return default if value is None else value

    def id(self, name: str, default: int | None) -> int | None:
        """Return an id or its default, which may be None."""
        value = self.values.get(name)
        if value is not None and not (type(value) is int and 0 <= value < 2**31):
            raise ValueError(f"{self.path}: {name} must be a number from 0, not {value!r}.")
        return default if value is None else value

    def texts(self, name: str) -> list[str]:
        value = self.values.get(name)
        value = [] if value is None else value
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ValueError(f"{self.path}: {name} must be a list of strings, not {value!r}.")
        return value


def _options(path: Path, known: Container[str] | None = None) -> _Options:
    """Return the content of a file with a serialized object."""
    values = read_json(path)
    try:
        name = registered_class(values)
        if known is not None and name not in known:
            raise ValueError(
                f"The KerasHub class {name!r} is not supported. Supported are: "
                f"{', '.join(sorted(known))}."
            )
        return _Options(path, name, serialized_arguments(values))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _preprocessor(folder: Path) -> _Options | None:
    """Return the arguments of the preprocessor that is saved beside the tokenizer."""
    path = path_inside(folder, PREPROCESSOR_FILE)
    return _options(path) if path.is_file() else None


def _asset(folder: Path, name: str) -> Path:
    path = path_inside(folder, f"{ASSETS}/{name}")
    if not path.is_file():
        raise FileNotFoundError(f"The tokenizer of the preset {folder} has no file {path}.")
    size = path.stat().st_size
    if size > _VOCABULARY_LIMIT:
        raise ValueError(f"{path} has {size:,} bytes; at most {_VOCABULARY_LIMIT:,} are read.")
    return path


def _lines(path: Path) -> list[str]:
    """Return the lines of a text file without the spaces at their ends."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None
    return [line.rstrip() for line in io.StringIO(text, newline=None)]


def _backend(path: Path, make: Callable[[], models.Model]) -> tokenizers.Tokenizer:
    """Return a backend whose model is made from a file. Raises ValueError if it is damaged."""
    with refusing(f"{path} is not a usable vocabulary"):
        return tokenizers.Tokenizer(make())


def _add_specials(backend: tokenizers.Tokenizer, tokens: Sequence[str], path: Path) -> None:
    missing = [token for token in tokens if backend.token_to_id(token) is None]
    if missing:
        raise ValueError(f"{path} lacks the special tokens {missing} of its class.")
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in tokens])


def _reader(read: Callable, template: Sequence[str] | None = None, **roles: str):
    """Return a tokenizer reader for these special tokens, which `template` adds to a text."""
    # Decoders have no template: their preprocessor decides whether the start token is added.

    def whole(folder: Path, options: _Options) -> tuple[tokenizers.Tokenizer, Roles]:
        backend, path, more = read(folder, options)
        _add_specials(backend, [*dict.fromkeys([*roles.values(), *more])], path)
        around = template
        preprocessor = _preprocessor(folder) if template is None else None
        if preprocessor and "start" in roles and preprocessor.get("add_start_token", True):
            # A prompt has no end token; tasks add it when they train.
            around = ("{start} $A", "{start} $A $B")
        if around is not None:
            set_template(backend, around, roles["start"], roles["end"])
        return backend, dict(roles)

    return whole


# WordPiece


def _word_piece(folder: Path, options: _Options) -> tuple[tokenizers.Tokenizer, Roles]:
    """Return BERT's tokenizer, which splits a text into words and then folds the case of each."""
    path = _asset(folder, "vocabulary.txt")
    vocabulary = {token: index for index, token in enumerate(_lines(path))}
    roles: Roles = {**BERT_ROLES, "unknown": options.get("oov_token", "[UNK]")}
    if roles["unknown"] not in vocabulary:
        raise ValueError(f"{path} has no token {roles['unknown']!r}, its unknown token.")
    prefix = options.get("suffix_indicator", "##")
    backend = _backend(
        path,
        lambda: models.WordPiece(
            vocabulary, unk_token=roles["unknown"], continuing_subword_prefix=prefix
        ),
    )
    splits = options.get("split", True)
    steps = []
    if options.get("strip_accents", False):
        steps += [normalizers.NFD(), normalizers.Replace(Regex(r"\p{Mn}"), "")]
    if splits:
        kept = f"[{_PUNCTUATION}{CHINESE if options.get('split_on_cjk', True) else ''}]"
        steps += [
            normalizers.Replace(Regex(_SPACES), _BREAK),
            # Not at the very start of a text, where the library cannot insert characters.
            normalizers.Replace(Regex(rf"(?!\A)(?={kept})|(?<={kept})"), _BREAK),
        ]
    if options.get("lowercase", False):
        steps += _case_fold(set().union(*vocabulary))
    backend.normalizer = normalizers.Sequence(steps + _long_words())
    backend.pre_tokenizer = pre_tokenizers.Split(_BREAK, behavior="removed")
    backend.decoder = decoders.WordPiece(prefix=prefix, cleanup=False)
    special = [BERT_ROLES[role] for role in ("start", "end", "pad", "mask")]
    _add_specials(backend, special + options.texts("special_tokens"), path)
    backend.encode_special_tokens = not (splits and options.get("special_tokens_in_strings", False))
    set_template(backend, TEMPLATES["bert"], BERT_ROLES["start"], BERT_ROLES["end"])
    return backend, roles


def _case_fold(alphabet: set[str]) -> list[normalizers.Normalizer]:
    """Return Unicode's NFKC_Casefold: beyond lowercase, `ß` becomes `ss`, `ς` becomes `σ`."""
    steps = [normalizers.NFKC(), normalizers.Lowercase()]
    for character in _folded_otherwise():
        folded = unicodedata.normalize("NFKC", character.casefold())
        if character in alphabet or alphabet.issuperset(folded):
            steps.append(normalizers.Replace(character, folded))
    invisible = Regex(r"\p{Default_Ignorable_Code_Point}")
    return [*steps, normalizers.NFKC(), normalizers.Replace(invisible, "")]


@functools.cache
def _folded_otherwise() -> list[str]:
    """Return the characters that are lowercase but changed by case folding."""
    return [
        character
        for character in map(chr, (*range(0x80, 0xD800), *range(0xE000, 0x10000)))
        if character.lower() == character != character.casefold()
        and unicodedata.is_normalized("NFKC", character)
        and unicodedata.normalize("NFKC", character.casefold()) != character
    ]


def _long_words() -> list[normalizers.Normalizer]:
    """Return normalizers that make words of too many bytes (not characters) unknown."""
    # The library counts characters, so each is padded to as many characters as it has bytes, and
    # restored afterwards.
    word = f"[^{_BREAK}]{{{_MOST_BYTES + 1},}}"
    fills = [
        normalizers.Replace(Regex(rf"(?<=[\x{{{first}}}-\x{{10FFFF}}])"), _FILL)
        for first in ("80", "800", "10000")
    ]
    return [
        *fills,
        normalizers.Replace(Regex(word), _LONG),
        normalizers.Replace(_FILL, ""),
    ]


# Byte-level BPE


def _pairs(folder: Path) -> tuple[Path, dict[str, int], list[tuple[str, str]]]:
    """Return the path of a vocabulary, the vocabulary, and the merges of its tokens."""
    path, merges_path = (_asset(folder, name) for name in ("vocabulary.json", "merges.txt"))
    vocabulary = read_json(path, _VOCABULARY_LIMIT)
    if not all(type(index) is int and 0 <= index < 2**31 for index in vocabulary.values()):
        raise ValueError(f"{path} must give every token a number of at least 0.")
    merges = []
    for line in _lines(merges_path):
        if "#version:" in line:
            continue
        first, *rest = line.split(" ")
        if len(rest) != 1:
            raise ValueError(f"{merges_path} must have two tokens per line, not {line!r}.")
        merges.append((first, rest[0]))
    return path, vocabulary, merges


def _byte_pair(folder: Path, options: _Options) -> tuple[tokenizers.Tokenizer, Path, list[str]]:
    path, vocabulary, merges = _pairs(folder)
    backend = _backend(path, lambda: models.BPE(vocabulary, merges))
    # When called, KerasHub's tokenizer does not split a text into words first. (It does as part of
    # a TensorFlow graph. The ids differ for few texts, such as "'save".)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=options.get("add_prefix_space", False), use_regex=False
    )
    backend.decoder = decoders.ByteLevel()
    return backend, path, options.texts("unsplittable_tokens")


def _smollm3(folder: Path, options: _Options) -> tuple[tokenizers.Tokenizer, Path, list[str]]:
    backend, path, tokens = _byte_pair(folder, options)
    return backend, path, [*tokens, "<|begin_of_text|>", "<think>", "</think>"]


def _clip(folder: Path, options: _Options) -> tuple[tokenizers.Tokenizer, Roles]:
    """Return CLIP's tokenizer, whose words end with `</w>`."""
    path, vocabulary, merges = _pairs(folder)
    ends = {"end_of_word_suffix": "</w>", "unk_token": _TEXT_END}
    backend = _backend(path, lambda: models.BPE(vocabulary, merges, **ends))
    set_clip_words(backend)
    start = "<|startoftext|>"
    _add_specials(backend, [start, _TEXT_END], path)
    set_template(backend, TEMPLATES["start_end"], start, _TEXT_END)
    return backend, {"start": start, **dict.fromkeys(("end", "pad", "unknown"), _TEXT_END)}


# SentencePiece


def _pieces(folder: Path, options: _Options) -> tuple[tokenizers.Tokenizer, Path, list[str]]:
    for name in ("add_bos", "add_eos"):
        if options.get(name, False):
            raise ValueError(f"{options.path}: {name}=True is not supported, only False.")
    path = _asset(folder, "vocabulary.spm")
    return read_sentencepiece(path), path, []


def _bare(folder: Path, options: _Options) -> tuple[tokenizers.Tokenizer, Roles]:
    """Return a tokenizer that puts no tokens around a text."""
    backend, path, _ = _pieces(folder, options)
    named = (("pad", "<pad>"), ("unknown", "<unk>"))
    roles = {role: token for role, token in named if backend.token_to_id(token) is not None}
    _add_specials(backend, [*roles.values()], path)
    return backend, dict(roles)


def _t5(folder: Path, options: _Options) -> tuple[tokenizers.Tokenizer, Roles]:
    backend, path, _ = _pieces(folder, options)
    end, pad = "</s>", "<pad>"
    _add_specials(backend, [end, pad], path)
    preprocessor = _preprocessor(folder) or _Options(options.path, "", {})
    if preprocessor.get("add_end_token", True):
        starts = preprocessor.get("add_start_token", False)
        set_template(backend, TEMPLATES["start_end" if starts else "end"], end, end)
    # No start token: the decoder starts with the padding, as in T5.
    unknown = None if backend.token_to_id("<unk>") is None else "<unk>"
    return backend, {"end": end, "pad": pad, "unknown": unknown}


def _lower() -> list[normalizers.Normalizer]:
    """Return the normalizers that make the letters of English small, and leave all others."""
    return [normalizers.Replace(each.upper(), each) for each in string.ascii_lowercase]


def _before(backend: tokenizers.Tokenizer, steps: list[normalizers.Normalizer]) -> None:
    """Put steps before the normalizer of a backend."""
    own = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([*steps, *own])


def _siglip(folder: Path, options: _Options) -> tuple[tokenizers.Tokenizer, Roles]:
    """Return SigLIP's tokenizer; its preprocessor makes letters small and removes punctuation."""
    backend, path, _ = _pieces(folder, options)
    end, unknown = "</s>", "<unk>"
    preprocessor = _preprocessor(folder)
    if preprocessor and preprocessor.get("canonicalize_text", True):
        spaces = [(r"[!-/:-@\[-`{-~]", ""), (r"[\t\n\f\r ]+", " "), (r"\A | \z", "")]
        steps = [normalizers.Replace(Regex(each), by) for each, by in spaces]
        _before(backend, [*_lower(), *steps])
    _add_specials(backend, [end, unknown], path)
    set_template(backend, TEMPLATES["end"], end, end)
    return backend, {"end": end, "pad": end, "unknown": unknown}


def _fairseq(mask: bool, folder: Path, options: _Options) -> tuple[tokenizers.Tokenizer, Roles]:
    """Return a tokenizer with fairseq's ids: four special tokens, the pieces, and XLM-R's mask."""
    backend, path, _ = _pieces(folder, options)
    roles: Roles = {"start": "<s>", "pad": "<pad>", "end": "</s>", "unknown": "<unk>"}
    specials = [(token, 0.0) for token in roles.values()]
    further = [("<mask>", 0.0)] if mask else []
    roles |= {"mask": "<mask>"} if mask else {}
    scored = parse_sentencepiece(path).scored[3:]
    model = _backend(path, lambda: models.Unigram([*specials, *scored, *further], 3, False))
    model.normalizer, model.decoder = backend.normalizer, backend.decoder
    preprocessor = _preprocessor(folder)
    if preprocessor and preprocessor.values.get("to_lower") is True:  # of MetaCLIP 2
        _before(model, _lower())
    _add_specials(model, list(roles.values()), path)
    set_template(model, PAIRS, roles["start"], roles["end"])
    return model, roles


# RWKV


def _rwkv(folder: Path, options: _Options) -> tuple[tokenizers.Tokenizer, Roles]:
    """Read RWKV's tokenizer, whose file usually has no line for the padding token."""
    path = _asset(folder, "vocabulary.txt")
    ids = {
        "pad": options.id("pad_token_id", 0),
        "start": options.id("start_token_id", None),
        "end": options.id("end_token_id", None),
    }
    with refusing(f"{path} is not a usable vocabulary"):
        vocabulary = read_vocabulary(read_text(path))
        tokens = {index: token for token, index in vocabulary.items()}
        further = {} if ids["pad"] in tokens else {END_OF_TEXT: ids["pad"]}
        backend = make_backend(vocabulary, further)
        backend.add_special_tokens([AddedToken(token, normalized=False) for token in further])
    tokens |= {index: token for token, index in further.items()}
    # KerasHub ends a text with two line breaks unless it is told another token than the padding.
    if ids["end"] in (None, ids["pad"]):
        ids["end"] = vocabulary.get(spell("\n\n"), ids["pad"])
    for role, index in ids.items():
        if index is not None and index not in tokens:
            raise ValueError(f"{options.path}: {role}_token_id={index} is not in the vocabulary.")
    return backend, {role: None if index is None else tokens[index] for role, index in ids.items()}


# PARSeq

_OF_CHARACTERS = {"end": "[E]", "start": "[B]", "pad": "[P]"}


def _characters(folder: Path, options: _Options) -> tuple[tokenizers.Tokenizer, Roles]:
    """Return PARSeq's tokenizer: a token for each character; others are left out of a text."""
    path = _asset(folder, "vocabulary.txt")
    characters = "".join(_lines(path))
    if len({*characters}) != len(characters) or not re.fullmatch(r"\S+", characters):
        raise ValueError(f"{path} must have different characters, none of them white space.")
    names = [_OF_CHARACTERS["end"], *characters, _OF_CHARACTERS["start"], _OF_CHARACTERS["pad"]]
    vocabulary = {name: place for place, name in enumerate(names)}
    backend = _backend(path, lambda: models.WordLevel(vocabulary, unk_token=names[0]))
    steps = []
    if options.get("remove_whitespace", True):
        steps.append(normalizers.Replace(Regex(r"\s+"), ""))
    if options.get("normalize_unicode", True):
        steps += [normalizers.NFKD(), normalizers.Replace(Regex("[^!-~]"), "")]
    if characters == characters.lower():
        steps.append(normalizers.Lowercase())
    elif characters == characters.upper():
        steps += [normalizers.Replace(each, each.upper()) for each in string.ascii_lowercase]
    known = "".join(f"\\x{{{ord(each):x}}}" for each in characters)
    backend.normalizer = normalizers.Sequence(
        [*steps, normalizers.Replace(Regex(f"[^{known}]"), "")]
    )
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    _add_specials(backend, list(_OF_CHARACTERS.values()), path)
    backend.encode_special_tokens = True
    return backend, dict(_OF_CHARACTERS)


_TEXT_END = "<|endoftext|>"
_FRAME = {"start": "<s>", "end": "</s>", "pad": "<pad>"}
_BERT_PIECES = {**BERT_ROLES, "pad": "<pad>", "unknown": "<unk>"}
_LLAMA = _reader(_pieces, start="<s>", end="</s>", unknown="<unk>")
_GPT = _reader(_byte_pair, start=_TEXT_END, end=_TEXT_END)
_READERS = {
    **dict.fromkeys(
        ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "RoformerV2Tokenizer"),
        _word_piece,
    ),
    "RobertaTokenizer": _reader(_byte_pair, PAIRS, **_FRAME, mask="<mask>"),
    "BartTokenizer": _reader(_byte_pair, PAIRS, **_FRAME),
    **dict.fromkeys(("GPT2Tokenizer", "GPTNeoXTokenizer", "FalconTokenizer"), _GPT),
    **dict.fromkeys(("LlamaTokenizer", "MistralTokenizer", "MixtralTokenizer"), _LLAMA),
    **dict.fromkeys(
        ("GemmaTokenizer", "Gemma3Tokenizer", "T5GemmaTokenizer"),
        _reader(_pieces, start="<bos>", end="<eos>", pad="<pad>", unknown="<unk>"),
    ),
    "Phi3Tokenizer": _reader(_pieces, start="<s>", end=_TEXT_END, unknown="<unk>"),
    "OPTTokenizer": _reader(_byte_pair, start="</s>", end="</s>", pad="<pad>"),
    "BloomTokenizer": _reader(_byte_pair, **_FRAME),
    "Llama3Tokenizer": _reader(_byte_pair, start="<|begin_of_text|>", end="<|end_of_text|>"),
    **dict.fromkeys(
        ("QwenTokenizer", "QwenMoeTokenizer", "GptOssTokenizer"),
        _reader(_byte_pair, end=_TEXT_END),
    ),
    **dict.fromkeys(
        ("Qwen3Tokenizer", "Qwen3MoeTokenizer", "Qwen3_5Tokenizer", "Qwen3_5MoeTokenizer"),
        _reader(_byte_pair, end="<|im_end|>", pad=_TEXT_END),
    ),
    "SmolLM3Tokenizer": _reader(_smollm3, end="<|end_of_text|>"),
    "T5Tokenizer": _t5,
    **dict.fromkeys(
        ("AlbertTokenizer", "FNetTokenizer"), _reader(_pieces, TEMPLATES["bert"], **_BERT_PIECES)
    ),
    "XLMRobertaTokenizer": functools.partial(_fairseq, True),
    "MetaCLIP2Tokenizer": functools.partial(_fairseq, False),
    "CLIPTokenizer": _clip,
    "SigLIPTokenizer": _siglip,
    "VideoPrismTokenizer": _bare,
    "RWKVTokenizer": _rwkv,
    "PARSeqTokenizer": _characters,
}
