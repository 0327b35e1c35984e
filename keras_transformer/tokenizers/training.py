"""Training of a vocabulary on texts: byte-level BPE, WordPiece and unigram."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from keras_transformer.support.checking import (
    check_bool,
    check_choice,
    check_int,
    check_text,
    shorten,
)
from keras_transformer.tokenizers.backend import MAX_TOKEN, MAX_VOCABULARY, refusing

KINDS = ("bpe", "wordpiece", "unigram")

# Templates of the special tokens around one text ($A) and around a pair. The number after a colon
# is the segment id.
TEMPLATES = {
    "end": ("$A {end}", "$A {end} $B {end}"),
    "start_end": ("{start} $A {end}", "{start} $A {end} $B {end}"),
    "bert": ("{start} $A {end}", "{start} $A {end} $B:1 {end}:1"),
    "none": None,
}

# Roles of the special tokens, in the order of their ids.
BERT_ROLES = {
    "pad": "[PAD]",
    "unknown": "[UNK]",
    "start": "[CLS]",
    "end": "[SEP]",
    "mask": "[MASK]",
}
SEQUENCE_ROLES = {"pad": "<pad>", "start": "<s>", "end": "</s>", "unknown": "<unk>"}


def train(
    texts: Iterable[str],
    kind: str,
    vocabulary_size: int,
    lowercase: bool,
    template: str | None,
    special_tokens: Sequence[str],
    add_prefix_space: bool,
) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """Train a backend; see `Tokenizer.train` for the arguments."""
    check_choice("kind", kind, KINDS)
    vocabulary_size = check_int("vocabulary_size", vocabulary_size)
    lowercase = check_bool("lowercase", lowercase)
    add_prefix_space = check_bool("add_prefix_space", add_prefix_space)
    if template is None:
        template = "bert" if kind == "wordpiece" else "end"
    check_choice("template", template, TEMPLATES)
    if not isinstance(special_tokens, (list, tuple)) or not all(
        isinstance(token, str) and token for token in special_tokens
    ):
        raise ValueError(
            f"`special_tokens` must be a sequence of strings. Received: {shorten(special_tokens)}"
        )
    for place, token in enumerate(special_tokens):
        check_text(f"special_tokens[{place}]", token)
    roles = dict(BERT_ROLES if kind == "wordpiece" else SEQUENCE_ROLES)
    specials = list(dict.fromkeys([*roles.values(), *special_tokens]))
    if "<mask>" in special_tokens:
        roles.setdefault("mask", "<mask>")
    alphabet = [] if kind == "wordpiece" else sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(specials) + max(len(alphabet), 1)
    if vocabulary_size < smallest:
        raise ValueError(
            f"`vocabulary_size` must be an integer of at least {smallest} for kind={kind!r} "
            f"({len(specials)} special tokens and the alphabet). "
            f"Received: vocabulary_size={vocabulary_size!r}"
        )
    if vocabulary_size > MAX_VOCABULARY:  # the library allocates the memory for it at once
        raise ValueError(
            f"`vocabulary_size` may be at most {MAX_VOCABULARY:,}, several times that of the "
            f"largest models. Received: vocabulary_size={vocabulary_size!r}"
        )

    backend, trainer = _untrained(kind, vocabulary_size, specials, alphabet)
    if kind == "wordpiece":
        backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        # Without clean-up the decoded text encodes to the same ids again.
        backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    else:
        _set_byte_level(backend, lowercase, add_prefix_space)
    with refusing("No vocabulary can be learned from the texts"):
        backend.train_from_iterator(_checked(texts), trainer)
    set_template(backend, TEMPLATES[template], roles["start"], roles["end"])
    return backend, roles


def set_template(
    backend: tokenizers.Tokenizer, template: tuple[str, str] | None, start: str, end: str
) -> None:
    """Make the backend add `start` and `end` around one text and around a pair."""
    if template is None:
        return
    # The template is split before tokens are put in, since a token may contain a space.
    single, pair = (
        [part.format(start=start, end=end) for part in form.split()] for form in template
    )
    used = [token for token in dict.fromkeys([start, end]) if token in single]
    backend.post_processor = processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[(token, backend.token_to_id(token)) for token in used],
    )


def _set_byte_level(backend: tokenizers.Tokenizer, lowercase: bool, add_prefix_space: bool) -> None:
    """Split into words as GPT-2 does and spell them in bytes, so that no text is lost."""
    steps = [normalizers.Lowercase()] if lowercase else []
    decoder = decoders.ByteLevel()
    if add_prefix_space:
        # `ByteLevel` has an option of the same name, which adds no space to a text that starts with
        # one, so " a" and "a" would get the same ids. Here a space is always added, and always
        # removed again.
        steps.append(normalizers.Prepend(" "))
        decoder = decoders.Sequence([decoder, decoders.Strip(" ", 1, 0)])
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoder


def _untrained(kind: str, size: int, specials: list[str], alphabet: list[str]):
    common = {"vocab_size": size, "special_tokens": specials, "show_progress": False}
    if kind == "unigram":
        unknown = SEQUENCE_ROLES["unknown"]
        trainer = trainers.UnigramTrainer(unk_token=unknown, initial_alphabet=alphabet, **common)
        return tokenizers.Tokenizer(models.Unigram()), trainer
    common["min_frequency"] = 2  # a model learns nothing from a token seen once
    if kind == "wordpiece":
        # Every character counts twice: at the start of a word and, with ##, inside.
        limit = min(1000, (size - len(specials)) // 2)
        trainer = trainers.WordPieceTrainer(limit_alphabet=limit, **common)
        return tokenizers.Tokenizer(models.WordPiece(unk_token=BERT_ROLES["unknown"])), trainer
    trainer = trainers.BpeTrainer(
        initial_alphabet=alphabet,
        max_token_length=MAX_TOKEN,  # so that a saved tokenizer can be loaded
        **common,
    )
    return tokenizers.Tokenizer(models.BPE()), trainer


def _checked(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts. Raises ValueError with the position of a value that is not a text."""
    if isinstance(texts, (str, bytes, Mapping)) or not isinstance(texts, Iterable):
        raise ValueError(
            "`texts` must be an iterable of strings, such as a list or an open text file. "
            f"Received: {type(texts).__name__}"
        )
    number, said = 0, False
    for number, text in enumerate(texts, start=1):
        check_text(f"texts[{number - 1}]", text)
        said = said or not (text == "" or text.isspace())
        yield text
    if not said:
        what = f"has {number} texts, all empty or white space" if number else "is empty"
        raise ValueError(f"`texts` {what}: a vocabulary needs at least one text to learn from.")
