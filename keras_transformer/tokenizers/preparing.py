"""How the published tokenizer classes prepare text: what is normalized, what a word is.

Facts are from Transformers 5.23, `models/*/tokenization_*.py`.
"""

from collections.abc import Callable, Sequence

import tokenizers
from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from keras_transformer.tokenizers.bounds import AT_START, MARKS, SPACES
from keras_transformer.tokenizers.folder import Folder
from keras_transformer.tokenizers.sentencepiece import SPACE, charsmap_normalizers, space_decoder

# What sets something of a backend by what a folder says.
Setter = Callable[[tokenizers.Tokenizer, Folder], None]

_QWEN2_WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CLIP_WORD = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
_STRIP = decoders.Replace(Regex(rf"\A{SPACES}|{SPACES}\z"), "")


def prepare_bert(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Words and punctuation marks, by default in lower case and without accents."""
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=folder.flag("do_lower_case", True),
        handle_chinese_chars=folder.flag("tokenize_chinese_chars", True),
        strip_accents=folder.flag("strip_accents", None),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()


def prepare_gpt(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """As BERT, for merges that know where a word ends (GPT, 2018)."""
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")


def prepare_bytes(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """GPT-2's words, spelled in bytes."""
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=folder.flag("add_prefix_space", False)
    )
    backend.decoder = decoders.ByteLevel()


def prepare_neox(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """GPT-2's words of composed characters."""
    prepare_bytes(backend, folder)
    backend.normalizer = normalizers.NFC()


def prepare_clip(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Words, numbers and marks in lower case, spelled in bytes, each ended by `</w>`."""
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = pre_tokenizers.Split(Regex(_CLIP_WORD), behavior="removed", invert=True)
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, spelled])
    spaces = decoders.Replace("</w>", " ")
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), spaces, _STRIP])


def prepare_qwen2(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Words and single digits of composed characters, spelled in bytes."""
    prepare_neox(backend, folder)
    spelled = backend.pre_tokenizer
    spelled.use_regex = False
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_QWEN2_WORD), behavior="isolated"), spelled]
    )


def prepare_words(
    backend: tokenizers.Tokenizer, folder: Folder, prefix: bool | None = None
) -> None:
    """Words that start with `▁`, as SentencePiece has them, normalized by the file's rules."""
    prefix = folder.flag("add_prefix_space", True) if prefix is None else prefix
    for rules in charsmap_normalizers(folder.charsmap, folder.where):
        backend.normalizer = rules
    set_words(backend, "always" if prefix else "never")


def set_words(
    backend: tokenizers.Tokenizer, scheme: str = "always", at_white_space: bool = True
) -> None:
    """Words behind `▁`, as they are, split at white space before or not."""
    words = pre_tokenizers.Metaspace(SPACE, scheme)
    split = [pre_tokenizers.WhitespaceSplit(), words]
    backend.pre_tokenizer = pre_tokenizers.Sequence(split) if at_white_space else words
    backend.decoder = decoders.Metaspace(SPACE, scheme)


def prepare_albert(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """Words behind `▁`, by default in lower case and without accents."""
    steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not folder.flag("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if folder.flag("do_lower_case", True):
        steps += [normalizers.Lowercase()]
    steps += charsmap_normalizers(folder.charsmap, folder.where)
    prepare_words(backend, folder)
    backend.normalizer = normalizers.Sequence(steps)


def prepare_deberta(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """The whole text, composed, with `▁` for spaces; not by the file's rules."""
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
    """The whole text without punctuation, by default in lower case, with `▁` before each word."""
    steps = [normalizers.Replace(SPACE, " ")]
    steps += [normalizers.Lowercase()] * folder.flag("do_lower_case", True)
    # What goes at the start leaves a space: where all goes, the library puts none before a word.
    # So does what goes behind a special token that stands in a text, other than in Transformers: a
    # normalizer does not know which part of a text it is given.
    steps += [normalizers.Replace(Regex(AT_START), " ")]
    steps += [normalizers.Replace(Regex(MARKS), ""), normalizers.Replace(Regex(SPACES), " ")]
    steps += charsmap_normalizers(folder.charsmap, folder.where)
    steps += [normalizers.Replace(Regex(r" +\z|(?<= ) +"), "")]
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    # Not before a word behind a special token.
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence([space_decoder(strip=False), _STRIP])


def prepare_llama(backend: tokenizers.Tokenizer, folder: Folder) -> None:
    """The whole text, with `▁` for spaces and one before it."""
    prefix = folder.flag("add_prefix_space", True)
    # What is "legacy" about it: a space also behind a special token that is written in a text.
    scheme = "always" if folder.flag("legacy", False) else "first"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=SPACE, prepend_scheme=scheme if prefix else "never", split=False
    )
    backend.decoder = space_decoder(strip=prefix)


def prepare_spaces(
    backend: tokenizers.Tokenizer, folder: Folder, unruled: Sequence[tuple[str, str]] = ()
) -> None:
    """Words behind `▁`, normalized by the file's rules or else as `unruled` says."""
    steps = charsmap_normalizers(folder.charsmap, folder.where)
    steps = steps or [normalizers.Replace(old, new) for old, new in unruled]
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(Regex(" {2,}"), " ")])
    set_words(backend, at_white_space=False)
