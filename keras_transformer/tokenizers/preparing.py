"""Text preparation in the published tokenizer classes: normalization and splitting into words.

Source: Transformers 5.23, `models/*/tokenization_*.py`.
"""

import re
from collections.abc import Callable, Sequence

import tokenizers
from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from keras_transformer.tokenizers.backend import AT_START, MARKS, SPACES
from keras_transformer.tokenizers.folder import Folder
from keras_transformer.tokenizers.sentencepiece import (
    SPACE,
    charsmap_normalizers,
    space_decoder,
)

# Function that sets parts of a backend according to the options of a folder.
Setter = Callable[[tokenizers.Tokenizer, Folder], None]

_QWEN2_WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CLIP_WORD = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
_MOST_LETTERS = 1_000
_STRIP = decoders.Replace(Regex(rf"\A{SPACES}|{SPACES}\z"), "")


def prepare_bert(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Split at words and punctuation marks, by default in lower case and without accents."""
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=folder.flag("do_lower_case", True),
        handle_chinese_chars=folder.flag("tokenize_chinese_chars", True),
        strip_accents=folder.flag("strip_accents", None),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()


def prepare_tokens(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Split at white space, and around each token of the vocabulary, the longest first (ESM)."""
    tokens = sorted(filter(None, backend.get_vocab()), key=len, reverse=True)
    if len(tokens) > _MOST_LETTERS:
        raise ValueError(
            f"{folder.where} has {len(tokens):,} tokens, but an alphabet of proteins at most "
            f"{_MOST_LETTERS:,}."
        )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPACES), behavior="removed"),
            pre_tokenizers.Split(Regex("|".join(map(re.escape, tokens))), behavior="isolated"),
        ]
    )


def prepare_gpt(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Split as BERT does, in lower case; merges mark the end of a word with `</w>` (GPT, 2018)."""
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")


def prepare_bytes(backend: tokenizers.Tokenizer, folder: Folder, prefix: bool = False) -> None:
    """Split into GPT-2's words, spelled in bytes."""
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=folder.flag("add_prefix_space", prefix)
    )
    backend.decoder = decoders.ByteLevel()


def prepare_neox(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Compose characters (NFC), and split into GPT-2's words, spelled in bytes."""
    prepare_bytes(backend, folder)
    backend.normalizer = normalizers.NFC()


def prepare_clip(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Split as `set_clip_words`."""
    set_clip_words(backend)


def set_clip_words(backend: tokenizers.Tokenizer) -> None:
    """Split into words, numbers and marks in lower case, spelled in bytes, each ended by `</w>`."""
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = pre_tokenizers.Split(Regex(_CLIP_WORD), behavior="removed", invert=True)
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, spelled])
    spaces = decoders.Replace("</w>", " ")
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), spaces, _STRIP])


def prepare_qwen2(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Compose characters (NFC), and split into words and single digits, spelled in bytes."""
    prepare_neox(backend, folder)
    spelled = backend.pre_tokenizer
    spelled.use_regex = False
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_QWEN2_WORD), behavior="isolated"), spelled]
    )


def prepare_words(
    backend: tokenizers.Tokenizer, folder: Folder, prefix: bool | None = None
) -> None:
    """Split into words that start with `▁`, as in SentencePiece, normalized by the file's rules."""
    prefix = folder.flag("add_prefix_space", True) if prefix is None else prefix
    for rules in charsmap_normalizers(folder.charsmap, folder.where):
        backend.normalizer = rules
    set_words(backend, "always" if prefix else "never")


def set_words(
    backend: tokenizers.Tokenizer, scheme: str = "always", at_white_space: bool = True
) -> None:
    """Split into words that start with `▁`: at all white space, or else only at spaces."""
    words = pre_tokenizers.Metaspace(SPACE, scheme)
    split = [pre_tokenizers.WhitespaceSplit(), words]
    backend.pre_tokenizer = pre_tokenizers.Sequence(split) if at_white_space else words
    backend.decoder = decoders.Metaspace(SPACE, scheme)


def prepare_albert(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Split into words that start with `▁`, by default in lower case and without accents."""
    steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not folder.flag("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if folder.flag("do_lower_case", True):
        steps += [normalizers.Lowercase()]
    steps += charsmap_normalizers(folder.charsmap, folder.where)
    prepare_words(backend, folder)
    backend.normalizer = normalizers.Sequence(steps)


def prepare_rembert(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Write `▁` for single spaces and before a text, by default with its accents and upper case."""
    steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [normalizers.Replace(Regex(" {2,}"), " ")]
    if not folder.flag("keep_accents", True):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if folder.flag("do_lower_case", False):
        steps += [normalizers.Lowercase()]
    steps += charsmap_normalizers(folder.charsmap, folder.where)
    backend.normalizer = normalizers.Sequence(steps)
    prefix = "always" if folder.flag("add_prefix_space", True) else "never"
    words = {"replacement": SPACE, "prepend_scheme": prefix}
    backend.pre_tokenizer = pre_tokenizers.Metaspace(**words)
    backend.decoder = decoders.Metaspace(**words)


def prepare_deberta(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Compose characters (NFC), and write `▁` for spaces; the file's rules are not used."""
    prefix = "always" if folder.flag("add_prefix_space", True) else "first"
    backend.normalizer = normalizers.Sequence(
        [normalizers.Lowercase()] * folder.flag("do_lower_case", False)
        + [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC()]
        + [normalizers.Strip(left=False, right=True)]
    )
    words = {"replacement": SPACE, "prepend_scheme": prefix}
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation(behavior="isolated")] * folder.flag("split_by_punct", False)
        + [pre_tokenizers.Metaspace(**words)]
    )
    backend.decoder = decoders.Metaspace(**words)


def prepare_siglip(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Remove punctuation, write `▁` before words, and do not split; by default in lower case."""
    steps = [normalizers.Replace(SPACE, " ")]
    steps += [normalizers.Lowercase()] * folder.flag("do_lower_case", True)
    # Punctuation at the start becomes a space: if it were removed without trace, the library would
    # put no space before the first word. Unlike in Transformers, this also happens after a special
    # token in a text, since a normalizer does not know which part of a text it is given.
    steps += [normalizers.Replace(Regex(AT_START), " ")]
    steps += [normalizers.Replace(Regex(MARKS), ""), normalizers.Replace(Regex(SPACES), " ")]
    steps += charsmap_normalizers(folder.charsmap, folder.where)
    steps += [normalizers.Replace(Regex(r" +\z|(?<= ) +"), "")]
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    # "first": no space is put before a word that follows a special token.
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence([space_decoder(strip=False), _STRIP])


def prepare_llama(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Write `▁` for spaces and before the text, and do not split."""
    prefix = folder.flag("add_prefix_space", True)
    # "legacy" also puts a space after a special token that is written out in a text.
    scheme = "always" if folder.flag("legacy", False) else "first"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=SPACE, prepend_scheme=scheme if prefix else "never", split=False
    )
    backend.decoder = space_decoder(strip=prefix)


def prepare_spaces(
    backend: tokenizers.Tokenizer, folder: Folder, unruled: Sequence[tuple[str, str]] = ()
) -> None:
    """Split at spaces into words that start with `▁`, normalized by the file's rules.

    If the file has no rules, the replacements `unruled` are made instead.
    """
    steps = charsmap_normalizers(folder.charsmap, folder.where)
    steps = steps or [normalizers.Replace(old, new) for old, new in unruled]
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(Regex(" {2,}"), " ")])
    set_words(backend, at_white_space=False)


def prepare_xglm(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Split at spaces, by default with `▁` before the first word too."""
    prepare_spaces(backend, folder)
    if not folder.flag("add_prefix_space", True):
        set_words(backend, "never", at_white_space=False)


def prepare_nllb(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Prepare as `prepare_spaces`, but change nothing in texts if the file has no rules."""
    if folder.charsmap:
        prepare_spaces(backend, folder)
    else:
        set_words(backend, at_white_space=False)
