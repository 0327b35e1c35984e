"""How the published tokenizer classes prepare text, what they put around it, and their models.

Facts are from Transformers 5.23, `models/*/tokenization_*.py`.
"""

import dataclasses
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from keras_transformer.tokenizers.sentencepiece import (
    SPACE,
    charsmap_normalizers,
    space_decoder,
)
from keras_transformer.tokenizers.sentencepiece_file import SentencePieceModel
from keras_transformer.tokenizers.training import TEMPLATES, set_template

_QWEN2_WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the files of a folder say, with the defaults of its class.

    Args:
        values: the values of `tokenizer_config.json` and `special_tokens_map.json`.
        where: the folder or file they are from, for messages.
        tokens: the special tokens by their published names, such as `"cls_token"`.
        charsmap: SentencePiece's compiled normalization rules, empty for none.
    """

    values: dict[str, Any]
    where: str
    tokens: dict[str, str | None]
    charsmap: bytes = b""

    def flag(self, name: str, default: bool | None) -> bool | None:
        """A value that is true, false or not said."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{name!r} must be true or false in {self.where}, but is {value!r}.")
        return default if value is None else value

    def size(self, name: str, default: int, most: int) -> int:
        """A number of things."""
        value = self.values.get(name, default)
        if not isinstance(value, int) or not 0 <= value <= most:
            raise ValueError(f"{name!r} must be 0 to {most} in {self.where}, but is {value!r}.")
        return value

    def needed(self, backend: tokenizers.Tokenizer, *names: str) -> list[str]:
        """The special tokens of these names.

        Raises:
            ValueError: if there is none of such a name, or the vocabulary lacks it.
        """
        found = [self.tokens.get(name) for name in names]
        for name, token in zip(names, found, strict=True):
            if token is None or backend.token_to_id(token) is None:
                raise ValueError(
                    f"{self.where} is not a {type(backend.model).__name__} vocabulary of its "
                    f"class: it has no token {token!r}, which is the {name!r} "
                    f"({backend.get_vocab_size()} tokens read)."
                )
        return found


# What is put around a text


def start_and_end(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """The start and the end token if `add_bos_token` and `add_eos_token` say so."""
    wanted = {"bos_token": "add_bos_token", "eos_token": "add_eos_token"}
    start, end = (
        settings.tokens.get(name) if settings.flag(flag, False) else None
        for name, flag in wanted.items()
    )
    tokens = {token: backend.token_to_id(token) for token in (start, end) if token is not None}

    def around(text: str, segment: int) -> list[str]:
        parts = [start and f"{start}:{segment}", f"{text}:{segment}", end and f"{end}:{segment}"]
        return [part for part in parts if part]

    backend.post_processor = processors.TemplateProcessing(
        single=around("$A", 0),
        pair=around("$A", 0) + around("$B", 1),
        special_tokens=[(token, index) for token, index in tokens.items() if index is not None],
    )


def bert_template(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """`[CLS] a [SEP]`, `[CLS] a [SEP] b [SEP]`, the second text being segment 1."""
    set_template(backend, TEMPLATES["bert"], *settings.needed(backend, "cls_token", "sep_token"))


def roberta_template(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """`<s> a </s>`, `<s> a </s></s> b </s>`."""
    start, end = settings.needed(backend, "cls_token", "sep_token")
    backend.post_processor = processors.RobertaProcessing(
        (end, backend.token_to_id(end)),
        (start, backend.token_to_id(start)),
        settings.flag("trim_offsets", True),
        settings.flag("add_prefix_space", False),
    )


def xlm_roberta_template(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """`<s> a </s>`, `<s> a </s></s> b </s>`, whatever the classifier token is."""
    names = settings.needed(backend, "bos_token", "eos_token")
    set_template(backend, ("{start} $A {end}", "{start} $A {end} {end} $B {end}"), *names)


def t5_template(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """`a </s>`, `a </s> b </s>`."""
    (end,) = settings.needed(backend, "eos_token")
    set_template(backend, TEMPLATES["end"], end, end)


# How text is prepared


def prepare_bert(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """Words and punctuation marks, by default in lower case and without accents."""
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=settings.flag("do_lower_case", True),
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", True),
        strip_accents=settings.flag("strip_accents", None),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()


def prepare_gpt(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """As BERT, for merges that know where a word ends (GPT, 2018)."""
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")


def prepare_bytes(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """GPT-2's words, spelled in bytes."""
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=settings.flag("add_prefix_space", False)
    )
    backend.decoder = decoders.ByteLevel()


def prepare_neox(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """GPT-2's words of composed characters."""
    prepare_bytes(backend, settings)
    backend.normalizer = normalizers.NFC()


def prepare_qwen2(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """Words and single digits of composed characters, spelled in bytes."""
    prepare_neox(backend, settings)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_WORD), behavior="isolated"),
            pre_tokenizers.ByteLevel(
                add_prefix_space=settings.flag("add_prefix_space", False), use_regex=False
            ),
        ]
    )


def _set_words(backend: tokenizers.Tokenizer, prefix: bool) -> None:
    """Words that start with `▁`, as SentencePiece has them."""
    scheme = "always" if prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme),
        ]
    )
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)


def prepare_albert(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """Words behind `▁`, by default in lower case and without accents."""
    steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.flag("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.flag("do_lower_case", True):
        steps += [normalizers.Lowercase()]
    steps += charsmap_normalizers(settings.charsmap, settings.where)
    backend.normalizer = normalizers.Sequence(steps)
    _set_words(backend, settings.flag("add_prefix_space", True))


def prepare_xlm_roberta(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """Words behind `▁`, normalized by the file's rules."""
    for rules in charsmap_normalizers(settings.charsmap, settings.where):
        backend.normalizer = rules
    _set_words(backend, settings.flag("add_prefix_space", True))


def prepare_t5(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """As XLM-RoBERTa, always with `▁` before the first word."""
    for rules in charsmap_normalizers(settings.charsmap, settings.where):
        backend.normalizer = rules
    _set_words(backend, True)


def prepare_llama(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """The whole text, with `▁` for spaces and one before it."""
    prefix = settings.flag("add_prefix_space", True)
    # What is "legacy" about it: a space also behind a special token that is written in a text.
    scheme = "always" if settings.flag("legacy", False) else "first"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=SPACE, prepend_scheme=scheme if prefix else "never", split=False
    )
    backend.decoder = space_decoder(strip=prefix)


# Models from SentencePiece's files. The id of the unknown piece is that of the class.


def albert_pieces(pieces: SentencePieceModel, settings: Settings) -> models.Model:
    """The pieces as they are."""
    return models.Unigram(pieces.scored, 1, False)


def xlm_roberta_pieces(pieces: SentencePieceModel, settings: Settings) -> models.Model:
    """The pieces behind Fairseq's four special tokens, then the mask."""
    names = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
    specials = [(settings.tokens[name] or f"<{name}>", 0.0) for name in names]
    ordinary = pieces.scored[3:]
    return models.Unigram([*specials[:4], *ordinary, specials[4]], 3, False)


def t5_sentinels(settings: Settings) -> list[AddedToken]:
    """`<extra_id_0>` and so on, which stand for what is to be filled in."""
    count = settings.size("extra_ids", 100, most=10_000)
    return [AddedToken(f"<extra_id_{i}>", special=True) for i in range(count)]


def t5_pieces(pieces: SentencePieceModel, settings: Settings) -> models.Model:
    """The pieces, then the sentinels, the last one first."""
    sentinels = [(token.content, 0.0) for token in reversed(t5_sentinels(settings))]
    return models.Unigram(pieces.scored + sentinels, 2, False)


def llama_pieces(pieces: SentencePieceModel, settings: Settings) -> models.Model:
    """The pieces, with bytes for what they cannot spell."""
    return models.BPE(pieces.vocabulary, pieces.merges(), fuse_unk=True, byte_fallback=True)


def bpe_options(suffix: str = "", unknown: bool = False, fused_bytes: bool = False):
    """The options of a BPE model."""

    def options(settings: Settings) -> dict[str, Any]:
        return {
            "dropout": None,
            "unk_token": settings.tokens["unk_token"] if unknown else None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": suffix,
            "fuse_unk": fused_bytes,
            "byte_fallback": fused_bytes,
            "ignore_merges": False,
        }

    return options
