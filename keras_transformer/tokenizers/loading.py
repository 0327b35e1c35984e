"""Reading of published tokenizer formats, and writing of `tokenizer.json`."""

import base64
import json
import os
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers

from keras_transformer.support.files import write_text
from keras_transformer.tokenizers.backend import bounded, check_ids, refusing, steps_of, try_out
from keras_transformer.tokenizers.folder import (
    CHAT_FILE,
    CONFIG_FILE,
    ENDS_ONCE,
    GENERIC,
    OUR_MARK,
    PUBLISHED_KEYS,
    TOKENIZER_FILE,
    Folder,
    read_json_object,
    read_text,
)
from keras_transformer.tokenizers.published import CLASSES, Published, start_and_end
from keras_transformer.tokenizers.sentencepiece import (
    SPACE,
    charsmap_normalizers,
    piece_model,
    space_decoder,
)
from keras_transformer.tokenizers.sentencepiece_file import parse_sentencepiece

# Classes without rules of their own: their files say everything.
_GENERIC_CLASSES = (GENERIC, "TokenizersBackend", "PythonBackend", "MarianTokenizer")
# Classes with rules that no file contains, and these rules.
_RULES_OF_PROGRAMS = {"RoFormerTokenizer": "finds words with the dictionary of the program jieba"}
# Replacements of "clean_up_tokenization_spaces" in decoded text, in this order.
_CLEAN_UP = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)


def read_folder(folder: Folder) -> tokenizers.Tokenizer:
    """Return the backend from `tokenizer.json`, or from the older files of a published class."""
    rules = _RULES_OF_PROGRAMS.get(folder.class_name)
    if rules is not None:
        raise ValueError(
            f"The tokenizer in {str(folder.path)!r} is a {folder.class_name!r}, which {rules}. No "
            "file of a tokenizer contains that. Load the model by `Backbone.from_preset`, make the "
            "task from it, and give it token ids."
        )
    read = _read_older_files if folder.tokenizer_json is None else _read_tokenizer_json
    backend = read(folder)
    backend.encode_special_tokens = folder.flag("split_special_tokens", False)
    # With this option, decoding removes spaces before punctuation, except for BPE, as in
    # Transformers.
    cleaned = folder.flag("clean_up_tokenization_spaces", False)
    if cleaned and backend.decoder is not None and not isinstance(backend.model, models.BPE):
        steps = [decoders.Replace(old, new) for old, new in _CLEAN_UP]
        backend.decoder = decoders.Sequence([backend.decoder, decoders.Fuse(), *steps])
    with refusing(f"The tokenizer in {str(folder.path)!r} is not usable"):
        check_ids(backend)
    return backend


def write_directory(
    directory: str | os.PathLike,
    backend: tokenizers.Tokenizer,
    roles: dict[str, str | None],
    chat_template: str | None = None,
    ends_once: bool = False,
) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`, which Transformers can read too."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    # A role without a token is written as null, so that reading does not guess one.
    for role, keys in PUBLISHED_KEYS.items():
        config.update(dict.fromkeys(keys, roles[role]))
    if backend.encode_special_tokens:  # which the library's file does not store
        config["split_special_tokens"] = True
    if chat_template is not None:
        config["chat_template"] = chat_template
    config.update(OUR_MARK)
    if ends_once:
        config[ENDS_ONCE] = True
    write_text(directory / TOKENIZER_FILE, backend.to_str(pretty=True))
    write_text(directory / CONFIG_FILE, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    # The template of a tokenizer that was in the folder before would take precedence.
    Path(directory, CHAT_FILE).unlink(missing_ok=True)


def _read_tokenizer_json(folder: Folder) -> tokenizers.Tokenizer:
    path = folder.path / TOKENIZER_FILE
    with refusing(
        f"{str(path)!r} is not a usable tokenizer.json. It may be truncated or written by "
        "another version of the `tokenizers` library; fetch it again"
    ):
        backend = tokenizers.Tokenizer.from_str(bounded(folder.tokenizer_json))
        charsmap = _charsmap(backend, path)
        own = backend.get_added_tokens_decoder()
        cls = CLASSES.get(folder.class_name)
        if cls is not None and isinstance(backend.model, cls.model):
            folder.of_class(path, cls.tokens, charsmap, cls.flags)
            model, template = backend.model, backend.post_processor
            for name, value in cls.model_options(folder).items():
                setattr(model, name, value)
            backend = _build(cls, model, folder, own=own, template=template)
        else:
            folder.of_class(path, {}, charsmap)
            folder.add_tokens(backend, own=own)
        try_out(backend)
    return backend


def _charsmap(backend: tokenizers.Tokenizer, path: Path) -> bytes:
    """Return SentencePiece's compiled rules in a normalizer, after checking them."""
    found = b""
    for step in steps_of(backend.normalizer):
        if step["type"] == "Precompiled":
            found = base64.b64decode(step["precompiled_charsmap"])
            charsmap_normalizers(found, repr(str(path)))
    return found


def _read_older_files(folder: Folder) -> tokenizers.Tokenizer:
    name = folder.class_name
    if name not in CLASSES or not _files(folder, CLASSES[name]):
        guess = _guess_class(folder)
        if name not in CLASSES and name not in _GENERIC_CLASSES:
            raise ValueError(
                f"The tokenizer in {str(folder.path)!r} is a {name!r}, which has rules that its "
                "older files do not contain. Add the tokenizer.json that `save_pretrained` of "
                "Transformers 5 writes."
            )
        name = guess
    if name is None:
        return _read_generic_pieces(folder)
    cls = CLASSES[name]
    files = _files(folder, cls)
    where = " and ".join(repr(str(folder.path / file)) for file in files)
    with refusing(f"{where}: not a usable {cls.model.__name__} vocabulary"):
        folder.of_class(folder.path / files[0], cls.tokens, flags=cls.flags)
        more = []
        if cls.from_pieces is not None:
            pieces = parse_sentencepiece(folder.path / files[0])
            folder.charsmap = pieces.charsmap
            model, more = cls.from_pieces(pieces, folder), pieces.added_tokens()
        elif cls.model is models.BPE:
            vocabulary, merges = _read_vocab_and_merges(folder.path)
            model = models.BPE(vocabulary, merges, **cls.model_options(folder))
        else:
            model = cls.model(_read_vocab_txt(folder.path), **cls.model_options(folder))
        backend = _build(cls, model, folder, more)
        try_out(backend)
        return backend


def _files(folder: Folder, cls: Published) -> tuple[str, ...]:
    """Return the files of a class in the folder, or an empty tuple if one is missing."""
    choices = [cls.files]
    if cls.from_pieces is not None:
        choices.append(("tokenizer.model",))
    return next((files for files in choices if folder.has(*files)), ())


def _guess_class(folder: Folder) -> str | None:
    """Guess the class of files that do not name one; `tokenizer.model` alone gives None."""
    if folder.has("vocab.txt"):
        return "BertTokenizer"
    if folder.has("vocab.json", "merges.txt"):
        vocabulary = read_json_object(folder.path / "vocab.json")
        if any(token.endswith("</w>") for token in vocabulary):
            return "CLIPTokenizer" if "<|startoftext|>" in vocabulary else "OpenAIGPTTokenizer"
        return "RobertaTokenizer" if {"<s>", "</s>"} <= vocabulary.keys() else "GPT2Tokenizer"
    if folder.has("spiece.model"):
        pieces = parse_sentencepiece(folder.path / "spiece.model").pieces
        return "AlbertTokenizer" if "[CLS]" in pieces else "T5Tokenizer"
    if folder.has("sentencepiece.bpe.model"):
        return "XLMRobertaTokenizer"
    if folder.has("spm.model"):
        return "DebertaV2Tokenizer"
    if folder.has("sentencepiece.model"):
        return "RemBertTokenizer"
    if folder.has("tokenizer.model"):
        return None
    path = folder.path
    raise FileNotFoundError(
        f"No tokenizer in {str(path)!r}{'' if path.is_dir() else ' (which is not a folder)'}. "
        "Looked for tokenizer.json, then vocab.txt, then vocab.json with merges.txt, then "
        "spiece.model, sentencepiece.bpe.model, spm.model, sentencepiece.model and "
        "tokenizer.model, for Marian's source.spm with target.spm and vocab.json, and for "
        "rwkv_vocab_v20230424.txt."
    )


def _read_generic_pieces(folder: Folder) -> tokenizers.Tokenizer:
    """Read a `tokenizer.model` of a class without rules of its own, such as Mistral's."""
    # Transformers 5.23 puts no space before the text here, whatever the file says (release 4 read
    # it as Llama's). To get the same ids, we do the same; a `tokenizer.json` has its own rules.
    path = folder.path / "tokenizer.model"
    pieces = parse_sentencepiece(path)
    names = {f"{name}_token": pieces.pieces[i] for name, i in pieces.special_ids.items() if i >= 0}
    folder.of_class(path, names, pieces.charsmap)
    with refusing(f"{str(path)!r} is not a usable SentencePiece vocabulary"):
        backend = tokenizers.Tokenizer(piece_model(pieces, pieces.scores, pieces.byte_fallback))
        rules = charsmap_normalizers(pieces.charsmap, repr(str(path)))
        backend.normalizer = normalizers.Sequence([*rules, normalizers.Replace(" ", SPACE)])
        backend.decoder = space_decoder(strip=False)
        folder.add_tokens(backend, pieces.added_tokens())
        start_and_end(backend, folder)
    return backend


def _read_vocab_txt(directory: Path) -> dict[str, int]:
    """Read BERT's format: one token per line, with the line number as its id."""
    lines = read_text(directory / "vocab.txt").removesuffix("\n").split("\n")
    return {line.rstrip("\r"): index for index, line in enumerate(lines)}


def _read_vocab_and_merges(directory: Path) -> tuple[dict[str, int], list[tuple[str, ...]]]:
    """Read the format of GPT and GPT-2."""
    vocabulary = read_json_object(directory / "vocab.json")
    # The first line is a version; a merge may itself start with '#'.
    lines = read_text(directory / "merges.txt").split("\n")
    lines = [line.rstrip("\r") for line in lines if not line.startswith("#version")]
    return vocabulary, [tuple(line.split(" ")) for line in lines if line]


def _build(
    cls: Published, model: models.Model, folder: Folder, more=(), own=None, template=None
) -> tokenizers.Tokenizer:
    """Build a backend of a published class.

    Args:
        cls: the class.
        model: the model with its vocabulary.
        folder: the folder.
        more: added tokens of a SentencePiece file.
        own: added tokens of a `tokenizer.json`, by id.
        template: the template of a `tokenizer.json`, used unless the class has its own.
    """
    backend = tokenizers.Tokenizer(model)
    cls.prepare(backend, folder)
    folder.add_tokens(backend, [*more, *cls.further(folder)], own)
    if cls.names_unknown:
        folder.needed(backend, "unk_token")
    if template is not None and not cls.own_template:
        backend.post_processor = template
    else:
        cls.template(backend, folder)
    return backend
