"""Tokenizer files: read the published formats, write `tokenizer.json`.

Only JSON values, text and SentencePiece's files are read, from fixed names in one folder.
Nothing is imported or executed, and no path found in a file is followed.
"""

import base64
import dataclasses
import json
import os
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from keras_transformer.files import has_file, write_text
from keras_transformer.tokenizers.backend import refusing
from keras_transformer.tokenizers.bounds import bounded, check_ids, try_out
from keras_transformer.tokenizers.folder import (
    CHAT_FILE,
    CONFIG_FILE,
    MARIAN_FILES,
    OUR_MARK,
    TOKENIZER_FILE,
    Folder,
    read_json_object,
    read_text,
)
from keras_transformer.tokenizers.preparing import Settings, start_and_end
from keras_transformer.tokenizers.published import CLASSES, GENERIC_CLASSES, Published
from keras_transformer.tokenizers.sentencepiece import (
    SPACE,
    charsmap_normalizers,
    space_decoder,
)
from keras_transformer.tokenizers.sentencepiece_file import parse_sentencepiece

# A role and the names that published files have for it, the more telling first.
_PUBLISHED_KEYS = {
    "pad": ("pad_token",),
    "start": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "mask": ("mask_token",),
    "unknown": ("unk_token",),
}
# Used when no file says which token has which role.
_WELL_KNOWN = {
    "pad": ("<pad>", "[PAD]"),
    "start": ("<s>", "[CLS]", "<|endoftext|>"),
    "end": ("</s>", "[SEP]", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]"),
    "unknown": ("<unk>", "[UNK]"),
}
# What "clean_up_tokenization_spaces" asks for in decoded text, in this order.
_CLEAN_UP = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)


def read_directory(
    directory: str | os.PathLike,
) -> tuple[tokenizers.Tokenizer, dict[str, str | None], str | None]:
    """Reads `tokenizer.json`, else the older files of a published class.

    Args:
        directory: the folder.

    Returns:
        The backend, the special token of each role, `None` for a role without one, and the
        template of chats, `None` if there is none.

    Raises:
        FileNotFoundError: if the folder has none of these files.
        ValueError: if a file is broken, naming the file and what is wrong.
    """
    folder = Folder(directory)
    if folder.tokenizer_json is None:
        backend, settings = _read_older_files(folder)
    else:
        backend, settings = _read_tokenizer_json(folder)
    backend.encode_special_tokens = settings.flag("split_special_tokens", False)
    if settings.flag("clean_up_tokenization_spaces", False):
        _clean_up(backend)
    with refusing(f"The tokenizer in {str(folder.path)!r} is not usable"):
        check_ids(backend)
    named = folder.names_tokens or any(settings.tokens.values())
    return backend, read_roles(backend, settings, guess=not named), folder.chat_template()


def is_marian(directory: str | os.PathLike) -> bool:
    """Whether a folder has the files of Marian's tokenizer, see `MarianTokenizer`."""
    return has_file(Path(directory, MARIAN_FILES[0])) and Folder(directory).is_marian


def write_directory(
    directory: str | os.PathLike,
    backend: tokenizers.Tokenizer,
    roles: dict[str, str | None],
    chat_template: str | None = None,
) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`, readable by Transformers too.

    The template of chats goes into the config: a file of its own would stay behind where another
    tokenizer is saved over this one.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    # A role without a token is written as null, so that reading does not guess one.
    for role, keys in _PUBLISHED_KEYS.items():
        config.update(dict.fromkeys(keys, roles[role]))
    if backend.encode_special_tokens:  # which their file does not keep
        config["split_special_tokens"] = True
    if chat_template is not None:
        config["chat_template"] = chat_template
    config.update(OUR_MARK)
    write_text(directory / TOKENIZER_FILE, backend.to_str(pretty=True))
    write_text(directory / CONFIG_FILE, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    remove_chat_file(directory)


def remove_chat_file(directory: str | os.PathLike) -> None:
    """Removes the template of the tokenizer that was in a folder before: it would count."""
    Path(directory, CHAT_FILE).unlink(missing_ok=True)


# tokenizer.json


def _read_tokenizer_json(folder: Folder) -> tuple[tokenizers.Tokenizer, Settings]:
    path = folder.path / TOKENIZER_FILE
    with refusing(
        f"{str(path)!r} is not a usable tokenizer.json. It may be truncated or written by "
        "another version of the `tokenizers` library; fetch it again"
    ):
        backend = tokenizers.Tokenizer.from_str(bounded(folder.tokenizer_json))
        charsmap = _charsmap(backend, path)
        listed = folder.listed_tokens()
        if not folder.lists_added:
            listed |= backend.get_added_tokens_decoder()
        cls = CLASSES.get(folder.class_name)
        if cls is not None and isinstance(backend.model, cls.model):
            settings = folder.settings(path, cls.tokens, charsmap)
            model = backend.model
            for name, value in cls.options(settings).items():
                setattr(model, name, value)
            backend = _build(cls, model, folder, settings, listed, template=backend.post_processor)
        else:
            settings = folder.settings(path, {}, charsmap)
            folder.add_tokens(backend, listed, settings.tokens, folder.further_tokens() or [])
        try_out(backend)
    return backend, settings


def _charsmap(backend: tokenizers.Tokenizer, path: Path) -> bytes:
    """SentencePiece's compiled rules in a normalizer, which are checked."""
    if backend.normalizer is None:
        return b""
    found, parts = b"", [json.loads(backend.normalizer.__getstate__())]
    while parts:
        part = parts.pop()
        parts += part.get("normalizers", ())
        if part["type"] == "Precompiled":
            found = base64.b64decode(part["precompiled_charsmap"])
            charsmap_normalizers(found, repr(str(path)))
    return found


# The older files


def _read_older_files(folder: Folder) -> tuple[tokenizers.Tokenizer, Settings]:
    name = folder.class_name
    if name not in CLASSES or not _files(folder, CLASSES[name]):
        guess = _guess_class(folder)
        if name not in CLASSES and name not in GENERIC_CLASSES:
            raise ValueError(
                f"The tokenizer in {str(folder.path)!r} is a {name!r}, which has rules of its own "
                "that its older files do not tell. Give a tokenizer.json too, as `save_pretrained` "
                "of Transformers 5 writes."
            )
        name = guess
    if name is None:
        return _read_generic_pieces(folder)
    cls = CLASSES[name]
    files = _files(folder, cls)
    where = " and ".join(repr(str(folder.path / file)) for file in files)
    with refusing(f"{where}: not a usable {cls.model.__name__} vocabulary"):
        listed, more = folder.listed_tokens(), []
        settings = folder.settings(folder.path / files[0], cls.tokens)
        if cls.from_pieces is not None:
            pieces = parse_sentencepiece(folder.path / files[0])
            model, more = cls.from_pieces(pieces, settings), pieces.added_tokens()
            settings = dataclasses.replace(settings, charsmap=pieces.charsmap)
        elif cls.model is models.BPE:
            vocabulary, merges = _read_vocab_and_merges(folder.path)
            model = models.BPE(vocabulary, merges, **cls.options(settings))
        else:
            model = models.WordPiece(_read_vocab_txt(folder.path), **cls.options(settings))
        backend = _build(cls, model, folder, settings, listed, more)
        try_out(backend)
        return backend, settings


def _files(folder: Folder, cls: Published) -> tuple[str, ...]:
    """The files of a class that are there, none if one is missing."""
    choices = [cls.files]
    if cls.from_pieces is not None:
        choices.append(("tokenizer.model",))
    return next((files for files in choices if folder.has(*files)), ())


def _guess_class(folder: Folder) -> str | None:
    """The class of files of which nothing says what they are."""
    if folder.has("vocab.txt"):
        return "BertTokenizer"
    if folder.has("vocab.json", "merges.txt"):
        vocabulary = read_json_object(folder.path / "vocab.json")
        if any(token.endswith("</w>") for token in vocabulary):
            return "OpenAIGPTTokenizer"
        return "RobertaTokenizer" if {"<s>", "</s>"} <= vocabulary.keys() else "GPT2Tokenizer"
    if folder.has("spiece.model"):
        pieces = parse_sentencepiece(folder.path / "spiece.model").pieces
        return "AlbertTokenizer" if "[CLS]" in pieces else "T5Tokenizer"
    if folder.has("sentencepiece.bpe.model"):
        return "XLMRobertaTokenizer"
    if folder.has("tokenizer.model"):
        return None
    path = folder.path
    raise FileNotFoundError(
        f"No tokenizer in {str(path)!r}{'' if path.is_dir() else ' (which is not a folder)'}. "
        "Looked for tokenizer.json, then vocab.txt, then vocab.json with merges.txt, then "
        "spiece.model, sentencepiece.bpe.model and tokenizer.model, and for Marian's source.spm "
        "with target.spm and vocab.json."
    )


def _read_generic_pieces(folder: Folder) -> tuple[tokenizers.Tokenizer, Settings]:
    """A `tokenizer.model` of no class that has rules of its own, such as Mistral's.

    Transformers 5.23 puts no space before the text here, whatever the file says (release 4 read
    it as Llama's). For the same ids, neither do we; a `tokenizer.json` has its own rules.
    """
    path = folder.path / "tokenizer.model"
    pieces = parse_sentencepiece(path)
    names = {name: pieces.pieces[i] for name, i in pieces.special_ids.items() if i >= 0}
    settings = folder.settings(
        path, {f"{name}_token": token for name, token in names.items()}, pieces.charsmap
    )
    listed = folder.listed_tokens()
    with refusing(f"{str(path)!r} is not a usable SentencePiece vocabulary"):
        if pieces.kind == "unigram":
            model = models.Unigram(pieces.scored, pieces.special_ids["unk"], pieces.byte_fallback)
        else:
            model = models.BPE(
                pieces.vocabulary,
                pieces.merges(),
                unk_token=names["unk"],
                fuse_unk=True,
                byte_fallback=pieces.byte_fallback,
            )
        backend = tokenizers.Tokenizer(model)
        backend.normalizer = normalizers.Sequence(
            [
                *charsmap_normalizers(pieces.charsmap, repr(str(path))),
                normalizers.Replace(" ", SPACE),
            ]
        )
        backend.decoder = space_decoder(strip=False)
        more = folder.further_tokens()
        more = pieces.added_tokens() if more is None else more
        folder.add_tokens(backend, listed, settings.tokens, more)
        start_and_end(backend, settings)
    return backend, settings


def _read_vocab_txt(directory: Path) -> dict[str, int]:
    """BERT's format: one token a line, its id is the line number."""
    lines = read_text(directory / "vocab.txt").removesuffix("\n").split("\n")
    return {line.rstrip("\r"): index for index, line in enumerate(lines)}


def _read_vocab_and_merges(directory: Path) -> tuple[dict[str, int], list[tuple[str, ...]]]:
    """The format of GPT and GPT-2."""
    vocabulary = read_json_object(directory / "vocab.json")
    # The first line is a version; a merge may itself start with '#'.
    lines = read_text(directory / "merges.txt").split("\n")
    lines = [line.rstrip("\r") for line in lines if not line.startswith("#version")]
    return vocabulary, [tuple(line.split(" ")) for line in lines if line]


# All of a class


def _build(
    cls: Published,
    model: models.Model,
    folder: Folder,
    settings: Settings,
    listed: dict[int, AddedToken],
    more: list[AddedToken] | None = None,
    template=None,
) -> tokenizers.Tokenizer:
    """A backend of a published class.

    Args:
        cls: the class.
        model: the vocabulary.
        folder: what the files say.
        settings: their values.
        listed: the added tokens by id.
        more: the added tokens of a SentencePiece file.
        template: the post-processor of a `tokenizer.json`, `None` if there is none.
    """
    backend = tokenizers.Tokenizer(model)
    cls.prepare(backend, settings)
    further = folder.further_tokens()
    if further is None:
        further = [*(more or ()), *cls.further(settings)]
    folder.add_tokens(backend, listed, settings.tokens, further)
    settings.needed(backend, *cls.needs)
    if template is not None and not cls.own_template:
        backend.post_processor = template
    else:
        (cls.template or start_and_end)(backend, settings)
    return backend


def _clean_up(backend: tokenizers.Tokenizer) -> None:
    """Takes the spaces before punctuation away in decoding, except for BPE, as Transformers."""
    if backend.decoder is not None and not isinstance(backend.model, models.BPE):
        steps = [decoders.Replace(old, new) for old, new in _CLEAN_UP]
        backend.decoder = decoders.Sequence([backend.decoder, decoders.Fuse(), *steps])


def read_roles(
    backend: tokenizers.Tokenizer, settings: Settings, guess: bool = False
) -> dict[str, str | None]:
    """Which token has which role: what the files and the class say, else well-known names."""
    roles = {}
    for role, keys in _PUBLISHED_KEYS.items():
        tokens = _WELL_KNOWN[role] if guess else [settings.tokens[key] for key in keys]
        # A file may name a token that its vocabulary lacks: then no embedding row has it.
        roles[role] = next((t for t in tokens if t and backend.token_to_id(t) is not None), None)
    return roles
