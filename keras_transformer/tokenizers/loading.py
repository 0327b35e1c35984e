"""Tokenizer files: read the published formats, write `tokenizer.json`.

Only JSON values and text are read, from fixed names in one folder. Nothing is imported or
executed, and no path found in a file is followed.
"""

import json
import os
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from keras_transformer.tokenizers.training import BERT_ROLES, TEMPLATES, set_template

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"

# A role and the names that published files have for it, the more telling first.
_PUBLISHED_KEYS = {
    "pad": ("pad_token",),
    "start": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "mask": ("mask_token",),
    "unknown": ("unk_token",),
}
# Used when no file says which token has the role.
_WELL_KNOWN = {
    "pad": ("<pad>", "[PAD]"),
    "start": ("<s>", "[CLS]", "<|endoftext|>"),
    "end": ("</s>", "[SEP]", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]"),
    "unknown": ("<unk>", "[UNK]"),
}


def read_directory(
    directory: str | os.PathLike,
) -> tuple[tokenizers.Tokenizer, dict[str, str | None]]:
    """Reads `tokenizer.json`, else `vocab.txt`, else `vocab.json` and `merges.txt`.

    Args:
        directory: the folder.

    Returns:
        The backend and the special token of each role, `None` for a role without one.

    Raises:
        FileNotFoundError: if the folder has none of these files.
        ValueError: if a file is broken, naming the file and what is wrong.
    """
    directory = Path(directory)
    config = _read_json_object(directory / CONFIG_FILE)
    if (directory / TOKENIZER_FILE).is_file():
        backend = _read_tokenizer_json(directory / TOKENIZER_FILE)
    elif (directory / "vocab.txt").is_file():
        backend = _read_vocab_txt(directory / "vocab.txt", config)
    elif (directory / "vocab.json").is_file() and (directory / "merges.txt").is_file():
        backend = _read_vocab_and_merges(directory, config)
    else:
        raise FileNotFoundError(
            f"No tokenizer in {str(directory)!r}"
            f"{'' if directory.is_dir() else ' (which is not a folder)'}. Looked for "
            "tokenizer.json, then vocab.txt, then vocab.json with merges.txt."
        )
    return backend, _roles(
        backend, config, _read_json_object(directory / "special_tokens_map.json")
    )


def write_directory(
    directory: str | os.PathLike, backend: tokenizers.Tokenizer, roles: dict[str, str | None]
) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`, readable by Transformers too."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    # A role without a token is written as null, so that reading does not guess one.
    for role, keys in _PUBLISHED_KEYS.items():
        config.update(dict.fromkeys(keys, roles[role]))
    _write_text(directory / TOKENIZER_FILE, backend.to_str(pretty=True))
    _write_text(directory / CONFIG_FILE, json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    """Writes beside the target and renames: a reader sees the old file or the whole new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} is not UTF-8 text: {error}") from None


def _read_json_object(path: Path) -> dict:
    """The object in a JSON file; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{str(path)!r} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(
            f"{str(path)!r} must hold a JSON object, but holds a {type(value).__name__}."
        )
    return value


def _read_tokenizer_json(path: Path) -> tokenizers.Tokenizer:
    text = _read_text(path)
    try:
        backend = tokenizers.Tokenizer.from_str(text)
        # Some faults show only in use, such as a template whose token has no id.
        backend.encode("a", "b")
    except BaseException as error:
        # The library's own failures are plain `Exception`s, or panics of its Rust code,
        # which are no `Exception`s.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(
            f"{str(path)!r} is not a usable tokenizer.json: {error}. It may be truncated or "
            "written by another version of the `tokenizers` library; fetch it again."
        ) from None
    return backend


def _read_vocab_txt(path: Path, config: dict) -> tokenizers.Tokenizer:
    """BERT's format: one token a line, its id is the line number."""
    lines = _read_text(path).removesuffix("\n").split("\n")
    vocabulary = {line.rstrip("\r"): index for index, line in enumerate(lines)}
    tokens = {
        role: _content(config.get(key)) or BERT_ROLES[role]
        for role, key in (
            ("pad", "pad_token"),
            ("unknown", "unk_token"),
            ("start", "cls_token"),
            ("end", "sep_token"),
            ("mask", "mask_token"),
        )
    }
    for role in ("unknown", "start", "end"):
        if tokens[role] not in vocabulary:
            raise ValueError(
                f"{str(path)!r} is not a WordPiece vocabulary: it has no token "
                f"{tokens[role]!r} ({len(vocabulary)} lines read). Its form is one token a line."
            )
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=tokens["unknown"]))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=config.get("do_lower_case", True),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([token for token in tokens.values() if token in vocabulary])
    set_template(backend, TEMPLATES["bert"], tokens["start"], tokens["end"])
    return backend


def _read_vocab_and_merges(directory: Path, config: dict) -> tokenizers.Tokenizer:
    """GPT-2's format of byte-level BPE, with RoBERTa's template if it has RoBERTa's tokens."""
    vocab_path, merges_path = directory / "vocab.json", directory / "merges.txt"
    vocabulary = _read_json_object(vocab_path)
    if any(token.endswith("</w>") for token in vocabulary):
        raise ValueError(
            f"{str(vocab_path)!r} is not byte-level BPE: its words end in '</w>'. "
            "Give the model's tokenizer.json instead."
        )
    # The first line is a version; a merge may itself start with '#'.
    lines = _read_text(merges_path).removesuffix("\n").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if not line.startswith("#version") and line]
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    except Exception as error:
        raise ValueError(
            f"{str(vocab_path)!r} and {str(merges_path)!r} are not a usable BPE vocabulary: {error}"
        ) from None
    prefix = bool(config.get("add_prefix_space", False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()
    specials = [
        # RoBERTa's mask takes the space before it along.
        AddedToken(token, lstrip=token == "<mask>", normalized=False)
        for token in ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>")
        if token in vocabulary
    ]
    backend.add_special_tokens(specials)
    if "<s>" in vocabulary and "</s>" in vocabulary:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>",
            pair="<s> $A </s> </s> $B </s>",
            special_tokens=[(token, vocabulary[token]) for token in ("<s>", "</s>")],
        )
    return backend


def _content(token) -> str | None:
    """The text of a special token, which files give as a string or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _roles(backend: tokenizers.Tokenizer, *sources: dict) -> dict[str, str | None]:
    """Which token has which role: what the files say, else well-known names."""
    roles = {}
    for role, keys in _PUBLISHED_KEYS.items():
        sayings = [[source[key] for key in keys if key in source] for source in sources]
        said = next((saying for saying in sayings if saying), _WELL_KNOWN[role])
        tokens = (_content(token) for token in said)
        # A file may name a token that its vocabulary lacks: then no embedding row has it.
        roles[role] = next((t for t in tokens if t and backend.token_to_id(t) is not None), None)
    return roles
