"""Published tokenizer classes: text preparation, template and model of each.

For these classes, Transformers 5 reads from a `tokenizer.json` only the vocabulary, the merges, the
compiled normalization rules, the added tokens and mostly the template; normalizer, pre-tokenizer
and decoder come from the class. This module does the same. (Release 4 read everything from the
file. The difference matters: with Llama's older files, for example, release 4 always puts a space
before a text, and release 5 only if it is missing.) Every other class is read entirely from its
file.

Source: Transformers 5.23, `models/*/tokenization_*.py`.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, models, processors

from keras_transformer.tokenizers import preparing
from keras_transformer.tokenizers.folder import Folder
from keras_transformer.tokenizers.languages import CODES_25, CODES_50, set_language
from keras_transformer.tokenizers.preparing import Setter
from keras_transformer.tokenizers.sentencepiece_file import SentencePieceModel
from keras_transformer.tokenizers.training import TEMPLATES, set_template


def fairseq_pieces(
    pieces: SentencePieceModel, folder: Folder, codes: Sequence[str] = ()
) -> models.Model:
    """Return a model of Fairseq's four special tokens, the pieces, language codes and the mask."""
    names = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
    specials = [(folder.tokens[name] or f"<{name}>", 0.0) for name in names]
    behind = [*((code, 0.0) for code in codes), specials[4]]
    return models.Unigram([*specials[:4], *pieces.scored[3:], *behind], 3, False)


def xglm_tokens(folder: Folder) -> list[AddedToken]:
    """Return the tokens without a meaning that round up the size of XGLM's vocabulary."""
    return [AddedToken(f"<madeupword{i}>", special=True) for i in range(7)]


def xglm_pieces(pieces: SentencePieceModel, folder: Folder) -> models.Model:
    """Return a model of Fairseq's four special tokens, the pieces, and tokens without a meaning."""
    names = ("<s>", "<pad>", "</s>", "<unk>")
    behind = [(token.content, 0.0) for token in xglm_tokens(folder)]
    return models.Unigram([*((n, 0.0) for n in names), *pieces.scored[3:], *behind], 3, False)


def sentinels(folder: Folder) -> list[AddedToken]:
    """Return the sentinels `<extra_id_0>` and so on, which stand for masked spans."""
    count = folder.size("extra_ids", 100, most=10_000)
    return [AddedToken(f"<extra_id_{i}>", special=True) for i in range(count)]


def t5_pieces(pieces: SentencePieceModel, folder: Folder) -> models.Model:
    """Return a model of the pieces and the sentinels, the last sentinel first."""
    behind = [(token.content, 0.0) for token in reversed(sentinels(folder))]
    return models.Unigram(pieces.scored + behind, 2, False)


def pegasus_tokens(folder: Folder) -> list[AddedToken]:
    """Return the tokens of pre-training: the sentence mask, and tokens without a meaning."""
    count = folder.size("offset", 103, most=10_000)
    names = ["<mask_1>", *(f"<unk_{i}>" for i in range(2, count))]
    return [AddedToken(name, special=True) for name in names]


def pegasus_pieces(pieces: SentencePieceModel, folder: Folder) -> models.Model:
    """Return a model of the padding, the end token, the tokens of pre-training and the pieces."""
    mask, *plain = (token.content for token in pegasus_tokens(folder))
    names = (folder.tokens["pad_token"], folder.tokens["eos_token"])
    named = [*names, mask, folder.tokens["mask_token"]]
    scored = [*((name, 0.0) for name in named), *((name, -100.0) for name in plain)]
    unknown = pieces.special_ids["unk"] + len(scored) - 2
    return models.Unigram([*scored, *pieces.scored[2:]], unknown, False)


# RoBERTa's and BART's templates: `<s> a </s>` and `<s> a </s></s> b </s>`.
PAIRS = ("{start} $A {end}", "{start} $A {end} {end} $B {end}")


def start_and_end(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Set a template with the start token if `add_bos_token`, the end token if `add_eos_token`."""
    start, end = (
        folder.tokens.get(f"{name}_token") if folder.flag(f"add_{name}_token", False) else None
        for name in ("bos", "eos")
    )
    tokens = {token: backend.token_to_id(token) for token in (start, end) if token is not None}

    def around(text: str, segment: int) -> list[str]:
        return [f"{part}:{segment}" for part in (start, text, end) if part]

    backend.post_processor = processors.TemplateProcessing(
        single=around("$A", 0),
        pair=around("$A", 0) + around("$B", 1),
        special_tokens=[(token, index) for token, index in tokens.items() if index is not None],
    )


def _around(template: tuple[str, str], start: str, end: str) -> Setter:
    """Return a setter for a template, in which the special tokens have these names."""

    def set_around(backend: tokenizers.Tokenizer, folder: Folder) -> None:
        names = dict.fromkeys((start, end))
        found = dict(zip(names, folder.needed(backend, *names), strict=True))
        set_template(backend, template, found[start], found[end])

    return set_around


def _roberta_template(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    start, end = folder.needed(backend, "cls_token", "sep_token")
    backend.post_processor = processors.RobertaProcessing(
        (end, backend.token_to_id(end)),
        (start, backend.token_to_id(start)),
        folder.flag("trim_offsets", True),
        folder.flag("add_prefix_space", False),
    )


def _clip_template(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    start, end = folder.needed(backend, "bos_token", "eos_token")
    ids = ((token, backend.token_to_id(token)) for token in (end, start))
    backend.post_processor = processors.RobertaProcessing(*ids, False, False)


_BERT_TEMPLATE = _around(TEMPLATES["bert"], "cls_token", "sep_token")


def source_language(
    backend: tokenizers.Tokenizer, folder: Folder, default: str, spelling: str = "{}"
) -> str:
    """Return the token of the source language that a folder names, or else of `default`."""
    code = folder.values.get("src_lang") or default
    if not isinstance(code, str) or backend.token_to_id(spelling.format(code)) is None:
        raise ValueError(
            f"'src_lang' is {code!r} in {folder.where}, which is not in the vocabulary."
        )
    return spelling.format(code)


def _language_template(first: bool) -> Setter:
    """Return a setter for a template with the code of the source language, by default English."""

    def set_template(backend: tokenizers.Tokenizer, folder: Folder) -> None:
        (end,) = folder.needed(backend, "eos_token")
        set_language(backend, source_language(backend, folder, "en_XX"), end, first)

    return set_template


def _nllb_template(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    (end,) = folder.needed(backend, "eos_token")
    first = not folder.flag("legacy_behaviour", False)
    set_language(backend, source_language(backend, folder, "eng_Latn"), end, first)


def nllb_pieces(pieces: SentencePieceModel, folder: Folder) -> models.Model:
    """Return a model of Fairseq's four special tokens, the pieces, the languages and the mask."""
    names = [folder.tokens[name] for name in ("bos_token", "pad_token", "eos_token", "unk_token")]
    further = [token.content for token in folder.further_tokens() or ()]
    tokens = dict.fromkeys([*names, *pieces.pieces[3:], *further, folder.tokens["mask_token"]])
    vocabulary = {token: index for index, token in enumerate(filter(None, tokens))}
    return models.BPE(vocabulary, pieces.merges(), unk_token=names[3], fuse_unk=True)


# Classes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """A published tokenizer class."""

    model: type  # class of its model
    files: tuple[str, ...]  # used if there is no `tokenizer.json`
    tokens: dict[str, str]  # special tokens, unless the files name others
    prepare: Setter  # sets normalizer, pre-tokenizer and decoder
    template: Setter = start_and_end  # sets the tokens put around a text
    own_template: bool = False  # whether `template` replaces the one in `tokenizer.json`
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # options of the model
    names_unknown: bool = False  # whether the model needs the unknown token
    # Options of the special tokens, by their names.
    flags: dict[str, dict[str, bool]] = dataclasses.field(default_factory=dict)
    further: Callable[[Folder], list[AddedToken]] = lambda folder: []  # default special tokens
    # Builds the model from a SentencePiece file.
    from_pieces: Callable[[SentencePieceModel, Folder], models.Model] | None = None

    def model_options(self, folder: Folder) -> dict[str, Any]:
        """Return the options of the model."""
        unknown = {"unk_token": folder.tokens["unk_token"]} if self.names_unknown else {}
        return {**self.options, **unknown}


_BERT_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_ROBERTA_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
_BPE_OPTIONS = {
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": "",
    "end_of_word_suffix": "",
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
_END_OF_TEXT = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")

_BERT = Published(
    model=models.WordPiece,
    files=("vocab.txt",),
    tokens=_BERT_TOKENS,
    prepare=preparing.prepare_bert,
    template=_BERT_TEMPLATE,
    own_template=True,
    options={"max_input_chars_per_word": 100, "continuing_subword_prefix": "##"},
    names_unknown=True,
)
_GPT2 = Published(
    model=models.BPE,
    files=("vocab.json", "merges.txt"),
    tokens=_END_OF_TEXT,
    prepare=preparing.prepare_bytes,
    options=_BPE_OPTIONS,
)
_ROBERTA = dataclasses.replace(
    _GPT2, tokens=_ROBERTA_TOKENS, template=_roberta_template, own_template=True
)
_T5 = Published(
    model=models.Unigram,
    files=("spiece.model",),
    tokens={"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    prepare=functools.partial(preparing.prepare_words, prefix=True),
    template=_around(TEMPLATES["end"], "eos_token", "eos_token"),
    own_template=True,
    from_pieces=t5_pieces,
    further=sentinels,
)

_ALBERT = Published(
    model=models.Unigram,
    files=("spiece.model",),
    tokens={
        **_BERT_TOKENS,
        "bos_token": "[CLS]",
        "eos_token": "[SEP]",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    },
    prepare=preparing.prepare_albert,
    template=_BERT_TEMPLATE,
    from_pieces=lambda pieces, folder: models.Unigram(pieces.scored, 1, False),
)


def _mbart(codes: Sequence[str], first: bool, prepare: Setter) -> Published:
    return Published(
        model=models.Unigram,
        files=("sentencepiece.bpe.model",),
        tokens=_ROBERTA_TOKENS,
        prepare=prepare,
        template=_language_template(first),
        own_template=True,
        from_pieces=functools.partial(fairseq_pieces, codes=codes),
        flags={"mask_token": {"lstrip": True}},
        further=lambda folder: [AddedToken(code, special=True) for code in codes],
    )


CLASSES = {
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    "RobertaTokenizer": _ROBERTA,
    "BartTokenizer": _ROBERTA,
    "BlenderbotTokenizer": dataclasses.replace(
        _GPT2,
        tokens=_ROBERTA_TOKENS,
        flags={"mask_token": {"lstrip": True, "normalized": False}},
        prepare=functools.partial(preparing.prepare_bytes, prefix=True),
    ),
    "GPT2Tokenizer": _GPT2,
    "CodeGenTokenizer": _GPT2,
    "GPTNeoXTokenizer": dataclasses.replace(
        _GPT2,
        tokens={**_END_OF_TEXT, "pad_token": "<|padding|>"},
        prepare=preparing.prepare_neox,
        own_template=True,
    ),
    "Qwen2Tokenizer": dataclasses.replace(
        _GPT2,
        tokens=dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
        prepare=preparing.prepare_qwen2,
    ),
    "OpenAIGPTTokenizer": dataclasses.replace(
        _GPT2,
        tokens={"unk_token": "<unk>"},
        prepare=preparing.prepare_gpt,
        options={**_BPE_OPTIONS, "end_of_word_suffix": "</w>"},
        names_unknown=True,
    ),
    "CLIPTokenizer": dataclasses.replace(
        _GPT2,
        tokens={
            "bos_token": "<|startoftext|>",
            **dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
        },
        prepare=preparing.prepare_clip,
        template=_clip_template,
        own_template=True,
        options={**_BPE_OPTIONS, "end_of_word_suffix": "</w>"},
        names_unknown=True,
    ),
    "T5Tokenizer": _T5,
    "SiglipTokenizer": dataclasses.replace(
        _T5,
        tokens={**_T5.tokens, "pad_token": "</s>"},
        flags={key: {"lstrip": True, "rstrip": True, "normalized": False} for key in _T5.tokens},
        prepare=preparing.prepare_siglip,
        from_pieces=lambda pieces, folder: models.Unigram(
            pieces.scored, pieces.special_ids["unk"], False
        ),
        further=lambda folder: [],
    ),
    "AlbertTokenizer": _ALBERT,
    "RemBertTokenizer": dataclasses.replace(
        _ALBERT,
        files=("sentencepiece.model",),
        prepare=preparing.prepare_rembert,
        own_template=True,
        from_pieces=lambda pieces, folder: models.Unigram(pieces.scored, 2, False),
    ),
    "XLMRobertaTokenizer": Published(
        model=models.Unigram,
        files=("sentencepiece.bpe.model",),
        tokens=_ROBERTA_TOKENS,
        prepare=preparing.prepare_words,
        template=_around(PAIRS, "bos_token", "eos_token"),  # whatever the classifier token is
        own_template=True,
        from_pieces=fairseq_pieces,
    ),
    "DebertaV2Tokenizer": Published(
        model=models.Unigram,
        files=("spm.model",),
        tokens={**_BERT_TOKENS, "bos_token": "[CLS]", "eos_token": "[SEP]"},
        prepare=preparing.prepare_deberta,
        template=_BERT_TEMPLATE,
        own_template=True,
        from_pieces=lambda pieces, folder: models.Unigram(
            pieces.scored, pieces.special_ids["unk"], False
        ),
    ),
    "MBartTokenizer": _mbart(CODES_25, False, lambda backend, folder: preparing.set_words(backend)),
    "MBart50Tokenizer": _mbart(CODES_50, True, preparing.prepare_spaces),
    "NllbTokenizer": Published(
        model=models.BPE,
        files=("sentencepiece.bpe.model",),
        tokens=_ROBERTA_TOKENS,
        prepare=preparing.prepare_nllb,
        template=_nllb_template,
        own_template=True,
        options={**_BPE_OPTIONS, "fuse_unk": True},
        names_unknown=True,
        flags={"mask_token": {"lstrip": True, "normalized": True}},
        from_pieces=nllb_pieces,
    ),
    "PegasusTokenizer": Published(
        model=models.Unigram,
        files=("spiece.model",),
        tokens={**_T5.tokens, "mask_token": "<mask_2>"},
        prepare=functools.partial(preparing.prepare_spaces, unruled=[("\n", " ")]),
        template=_around(("$A {end}", "$A $B {end}"), "eos_token", "eos_token"),
        own_template=True,
        from_pieces=pegasus_pieces,
        further=pegasus_tokens,
    ),
    "XGLMTokenizer": Published(
        model=models.Unigram,
        files=("sentencepiece.bpe.model",),
        tokens={name: token for name, token in _ROBERTA_TOKENS.items() if name != "mask_token"},
        prepare=preparing.prepare_xglm,
        template=_around(("{end} $A", "{end} $A {end} {end} $B"), "bos_token", "eos_token"),
        own_template=True,
        from_pieces=xglm_pieces,
        further=xglm_tokens,
    ),
    "EsmTokenizer": Published(
        model=models.WordLevel,
        files=("vocab.txt",),
        tokens={
            "unk_token": "<unk>",
            "cls_token": "<cls>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
            "eos_token": "<eos>",
        },
        prepare=preparing.prepare_tokens,
        template=_around(TEMPLATES["bert"], "cls_token", "eos_token"),
        own_template=True,
        names_unknown=True,
    ),
    "LlamaTokenizer": Published(
        model=models.BPE,
        files=("tokenizer.model",),
        tokens={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        prepare=preparing.prepare_llama,
        options={**_BPE_OPTIONS, "fuse_unk": True, "byte_fallback": True},
        from_pieces=lambda pieces, folder: models.BPE(
            pieces.vocabulary, pieces.merges(), fuse_unk=True, byte_fallback=True
        ),
    ),
}
