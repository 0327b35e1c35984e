"""The Rust tokenizer behind a `Tokenizer`: copying it, checking its input, bounding its work."""

import base64
import contextlib
import functools
import json
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
import tokenizers

from keras_transformer.support.checking import check_text, load_json
from keras_transformer.support.columns import is_column, plain
from keras_transformer.tokenizers.sentencepiece_file import Charsmap

# Separator of words in KerasHub's BERT, whose normalized texts contain no control characters.
WORD_BREAK = "\x1f"
# Chinese characters, for a character class of a regular expression.
CHINESE = (
    r"\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{20000}-\x{2a6df}\x{2a700}-\x{2b73f}"
    r"\x{2b740}-\x{2b81f}\x{2b820}-\x{2ceaf}\x{f900}-\x{faff}\x{2f800}-\x{2fa1f}"
)
# Maximum characters in one text: the library needs about 300 bytes for each. "War and Peace" has
# three million.
MAX_TEXT = 2**24


class InvalidTokenizer(Exception):
    """Fault of a tokenizer or of its input, which `refusing` turns into a ValueError."""


@contextlib.contextmanager
def refusing(message: str) -> Iterator[None]:
    """Turn the library's exceptions within the context into a ValueError with this message."""
    try:
        yield
    except BaseException as error:
        # The library raises plain `Exception`s, conversion errors, or panics of its Rust code,
        # which are not `Exception`s.
        of_conversion = (TypeError, OverflowError, UnicodeError)
        known = type(error) is Exception or isinstance(error, (InvalidTokenizer, *of_conversion))
        if not known and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{message}: {error}") from None


def copy_backend(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a backend with the same parts and vocabulary, but no padding or truncation."""
    copy = tokenizers.Tokenizer(backend.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if getattr(backend, part) is not None:
            setattr(copy, part, getattr(backend, part))
    added = [token for _, token in sorted(backend.get_added_tokens_decoder().items())]
    for special, tokens in groupby(added, key=lambda token: token.special):
        (copy.add_special_tokens if special else copy.add_tokens)(list(tokens))
    copy.encode_special_tokens = backend.encode_special_tokens
    return copy


def byte_alphabet() -> list[str]:
    """Return GPT-2's character for each byte, in order: a visible byte stands for itself."""
    alphabet = set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    hidden = (char for char in sorted(alphabet) if ord(char) > 255)
    return [chr(byte) if chr(byte) in alphabet else next(hidden) for byte in range(256)]


def check_texts(texts, name: str) -> list[str]:
    """Return the texts as a list. Raises ValueError, with the position, if one is not a text."""
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()
    elif not isinstance(texts, (list, tuple)) and is_column(texts):
        texts = plain(texts, f"`{name}`")
    if not isinstance(texts, (list, tuple)):
        raise ValueError(
            f"`{name}` must be a list, tuple or 1-D NumPy array of strings. "
            f"Received: {type(texts).__name__}. A column of a data frame is accepted too."
        )
    for index, text in enumerate(texts):
        if isinstance(text, str) and len(text) > MAX_TEXT:
            raise ValueError(
                f"`{name}[{index}]` has {len(text):,} characters; a text may have at most "
                f"{MAX_TEXT:,}, which take about 5 GB to tokenize. Split it, for example into "
                "paragraphs."
            )
        if not (isinstance(text, str) and text.isascii()):
            check_text(f"{name}[{index}]", text)
    return list(texts)


# Maximum bytes of a file, and maximum lists and objects in it. The largest published file has 33 MB
# and a million lists (the merges of Gemma 3).
MAX_FILE = 100 * 2**20
_MAX_PARTS = 5_000_000
# Larger ids cannot be valid embedding rows; the largest published vocabulary has a million.
MAX_VOCABULARY = 4_000_000
# Maximum characters in one token, and in its decoded text. The longest published tokens are runs of
# about a hundred spaces or dashes.
MAX_TOKEN, _MAX_DECODED = 2_000, 20_000
# Maximum number of characters that one character may become. XLM-RoBERTa and similar tokenizers
# reach 72.
_MAX_GROWTH = 256
# Maximum number of steps in a part, of regular expressions, of tables of normalization rules, and
# of characters in the texts of all steps.
_MAX_STEPS, _MAX_PATTERNS, _MAX_RULES, _MAX_WRITTEN = 1_000, 32, 4, 5_000
# Maximum number of tokens that a template puts around a text, and how often the text may occur.
_MAX_AROUND, _MAX_COPIES = 256, 4
_MAX_WORD = 1_000  # characters of a word: WordPiece takes cubic time in them
# Sample text that a tokenizer is tried on, and the CPU seconds allowed for it. Ordinary tokenizers
# take a thousandth of that.
_SAMPLE = (
    "The quick brown fox, said to be 3.5 years old, jumps over 27 lazy dogs!  Does it?\n\n"
    "def f(x_1):\n        return {'key': [x_1 ** 2, \"a-b\"]}  # https://example.org/a?b=c&d\n"
    "Grüße aus München, привет, 日本語のテキスト, 한국어, العربية, 🙂🙂 "
    "e\u0301\u0327 \ufb01 \u00bd\t$1,000.00\n"
    + "aaaa" * 32 + " " * 128 + "0123456789" * 12 + "=-" * 64 + "\n" * 64
)  # fmt: skip
_MAX_SECONDS = 0.5
# White space as defined by Python's regular expressions, and the punctuation marks they name.
SPACES, MARKS = r"[\s\x1c-\x1f\x85]+", r"[!-/:-@\[-`{-~]"
AT_START = rf"\A(?:{MARKS}|{SPACES})+"
# Regular expressions known to match at least one character, so replacing their matches inserts
# nothing between characters. Any other expression may match the empty string.
_CONSUMING = (SPACES, MARKS, AT_START)
_INSIDE = ("normalizers", "pretokenizers", "decoders", "processors")


def bounded(text: str) -> str:
    """Check a `tokenizer.json`, and return it without padding, truncation and dropout.

    Raises InvalidTokenizer if it exceeds a limit, all of which leave room for published files.
    """
    if text.count("[") + text.count("{") > _MAX_PARTS:
        raise InvalidTokenizer(f"it has more than {_MAX_PARTS:,} lists and objects")
    try:
        values = load_json(text)
    except (ValueError, RecursionError) as error:
        raise InvalidTokenizer(f"it is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidTokenizer("it is not a JSON object")
    values["padding"] = values["truncation"] = None
    longest = _check_vocabulary(values)
    before = [*_steps(values, "normalizer"), *_steps(values, "pre_tokenizer")]
    for part, steps in (("normalizer", before), ("decoder", list(_steps(values, "decoder")))):
        growth = _growth(steps)
        if growth > _MAX_GROWTH:
            raise InvalidTokenizer(
                f"its {part} can turn one character into {growth:,.0f}, more than {_MAX_GROWTH}"
            )
    if growth * longest > _MAX_DECODED:
        raise InvalidTokenizer(
            f"its decoder can make {growth * longest:,.0f} characters from a token of {longest:,}, "
            f"more than {_MAX_DECODED:,}"
        )
    _check_around(list(_steps(values, "post_processor")))
    # Escaped as ASCII, which can always be passed to the library.
    return json.dumps(values)


def check_ids(backend: tokenizers.Tokenizer) -> None:
    """Raise InvalidTokenizer if an id cannot be a row of an embedding."""
    size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if size > MAX_VOCABULARY:
        raise InvalidTokenizer(
            f"a token has the id {size - 1:,}; ids may go up to {MAX_VOCABULARY:,}"
        )
    for step in steps_of(backend.post_processor):
        for token, index in _around(step):
            if index >= size:
                raise InvalidTokenizer(
                    f"its post_processor puts {token!r} with the id {index} around a text, but "
                    f"the vocabulary has the ids 0 to {size - 1}"
                )


def segment_count(backend: tokenizers.Tokenizer) -> int:
    """Return the number of segments that the backend distinguishes: at least 2."""
    ids = [
        value.get("type_id", 0)
        for step in steps_of(backend.post_processor)
        for piece in [*step.get("single", ()), *step.get("pair", ())]
        for value in piece.values()
    ]
    return max([1, *ids]) + 1


def try_out(backend: tokenizers.Tokenizer) -> None:
    """Encode and decode samples, to detect faults of a backend that only show in use."""
    # Examples are a template or an unknown token without an id, and a regular expression whose
    # backtracking would take minutes for a page. Samples grow, so slowness is noticed quickly.
    backend.encode("a", "\U00012000")  # cuneiform, which is in hardly any vocabulary
    length = 1
    while length < 2 * len(_SAMPLE):
        start = time.thread_time()  # of this thread alone: other processes do not count
        backend.decode(backend.encode(_SAMPLE[:length]).ids)
        if time.thread_time() - start > _MAX_SECONDS:
            raise InvalidTokenizer(
                f"encoding {length} characters takes more than {_MAX_SECONDS} seconds"
            )
        length *= 2


# The vocabulary


def _check_vocabulary(values: dict[str, Any]) -> int:
    """Check the tokens, remove dropout, and return the length of the longest token."""
    model, added = values.get("model"), values.get("added_tokens")
    model = model if isinstance(model, dict) else {}
    model.pop("dropout", None)
    vocabulary = model.get("vocab")
    tokens = [entry[0] for entry in vocabulary or () if isinstance(entry, list) and entry]
    tokens += vocabulary if isinstance(vocabulary, dict) else ()
    tokens += [token.get("content") for token in added or () if isinstance(token, dict)]
    tokens += [model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix")]
    longest = max((len(token) for token in tokens if isinstance(token, str)), default=0)
    if longest > MAX_TOKEN:
        raise InvalidTokenizer(f"it has a token of {longest:,} characters, more than {MAX_TOKEN:,}")
    word = model.get("max_input_chars_per_word")
    if isinstance(word, int) and word > _MAX_WORD:
        raise InvalidTokenizer(f"'max_input_chars_per_word' is {word}, more than {_MAX_WORD}")
    return longest


# Steps


def steps_of(part: Any) -> list[dict[str, Any]]:
    """Return the steps of a backend's part, each described as in `tokenizer.json`."""
    return [] if part is None else list(_steps({"": json.loads(part.__getstate__())}, ""))


def _steps(values: dict[str, Any], part: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part in order, with nested sequences flattened."""
    waiting, count = [values.get(part)], 0
    while waiting:
        step = waiting.pop()
        if step is None and not count:
            return
        if not isinstance(step, dict) or not isinstance(step.get("type"), str):
            raise InvalidTokenizer(f"its {part} has a step without a type")
        count += 1
        if count > _MAX_STEPS:
            raise InvalidTokenizer(f"its {part} has more than {_MAX_STEPS:,} steps")
        if step["type"] != "Sequence":
            yield step
            continue
        for name in _INSIDE:
            inside = step.get(name)
            waiting += reversed(inside) if isinstance(inside, list) else ()


class _Sizes(dict):
    """Number of characters that each character becomes; unlisted characters become `others`."""

    others = 1.0

    def __missing__(self, character: str) -> float:
        return self.others

    def length_of(self, text: str) -> float:
        """Return how many characters a text becomes."""
        return sum(map(self.__getitem__, text))

    def most(self) -> float:
        """Return the maximum number of characters that one character becomes."""
        return max(self.others, *self.values()) if self else self.others

    def change(self, function: Callable[[float], float]) -> None:
        """Change the size of every character."""
        self.others = function(self.others)
        for character in self:
            self[character] = function(self[character])


def _growth(steps: list[dict[str, Any]]) -> float:
    """Return the maximum number of characters that the steps make from one character."""
    # Steps are visited from the last to the first: `sizes` holds how many characters a character
    # becomes in the visited steps. The end of a text counts as one character too. For characters
    # that the file does not mention, Unicode's own rules, by which one may become 18, are not
    # counted.
    patterns = [step.get("pattern") for step in steps]
    patterns = sum(isinstance(pattern, dict) and "Regex" in pattern for pattern in patterns)
    if patterns > _MAX_PATTERNS:
        raise InvalidTokenizer(f"it has {patterns} regular expressions, more than {_MAX_PATTERNS}")
    written = "".join(text for step in steps for text in _texts(step))
    if len(written) > _MAX_WRITTEN:
        raise InvalidTokenizer(
            f"the texts in its steps have {len(written):,} characters, more than {_MAX_WRITTEN:,}"
        )
    kinds = [step["type"] for step in steps]
    if kinds.count("Precompiled") > _MAX_RULES:
        raise InvalidTokenizer(f"it has more than {_MAX_RULES} tables of normalization rules")
    if "ByteLevel" in kinds:
        written += "".join(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    sizes = _Sizes(dict.fromkeys(written, 1.0))
    rules = [_rules(step) if step["type"] == "Precompiled" else None for step in steps]
    for place in reversed(range(len(steps))):
        made = "".join(rule.replacements for rule in rules[:place] if rule is not None)
        _grow(sizes, steps[place], rules[place], made)
    return sizes.most()


def _rules(step: dict[str, Any]) -> Charsmap:
    try:
        return Charsmap(base64.b64decode(str(step.get("precompiled_charsmap"))))
    except ValueError as error:
        raise InvalidTokenizer(f"its normalization rules are invalid: {error}") from None


def _texts(step: dict[str, Any]) -> list[str]:
    pattern = step.get("pattern")
    values = [step, pattern if isinstance(pattern, dict) else {}]
    skipped = ("type", "precompiled_charsmap")
    return [
        value
        for holder in values
        for name, value in holder.items()
        if isinstance(value, str) and name not in skipped
    ]


def _grow(sizes: _Sizes, step: dict[str, Any], rules: Charsmap | None, made: str) -> None:
    """Update the sizes of the later steps to include this one.

    `rules` are its compiled rules, and `made` the characters that rules of earlier steps produce.
    """
    kind = step["type"]
    if kind == "Replace":
        pattern, content = step.get("pattern"), sizes.length_of(str(step.get("content")))
        literal = pattern.get("String") if isinstance(pattern, dict) else None
        if isinstance(literal, str) and literal:
            for character in literal:
                sizes[character] = max(
                    sizes[character] * (len(literal) > 1), content / len(literal)
                )
        elif isinstance(pattern, dict) and pattern.get("Regex") in _CONSUMING:
            sizes.change(lambda size: max(size, content))
        else:  # the pattern may match the empty string at every position
            sizes.change(lambda size: size + content)
    elif kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "BertNormalizer"):
        sizes.others *= _expansion(kind, made)
        sizes.update({c: max(sizes[c], sizes.length_of(_by_unicode(kind, c))) for c in sizes})
        if kind == "BertNormalizer":  # spaces around Chinese characters
            spaces = 2 * sizes[" "]
            sizes.change(lambda size: size + spaces)
    elif kind == "Precompiled":
        most = sizes.most() * rules.longest
        sizes.change(lambda _: most)
    elif kind == "ByteLevel":
        most = sizes.most() * (4 + bool(step.get("add_prefix_space")))
        sizes.change(lambda _: most)
    elif kind in ("Prepend", "Metaspace", "BPEDecoder", "CTC", "WordPiece"):
        most = max(sizes.length_of(text) for text in ("▁", " ", *_texts(step)))
        sizes.change(lambda size: size + most)


def _by_unicode(kind: str, text: str) -> str:
    """Return a text after a step of Unicode's rules, which do not depend on the file."""
    if kind.startswith("NF"):
        return unicodedata.normalize(kind, text)
    text = text.lower()
    return unicodedata.normalize("NFD", text) if kind == "BertNormalizer" else text


@functools.lru_cache(32)
def _expansion(kind: str, made: str) -> int:
    """Return the maximum number of characters that a Unicode step makes from one of `made`."""
    return max((len(_by_unicode(kind, character)) for character in set(made)), default=1)


# Tokens put around a text


def _around(step: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the special tokens that a step puts around a text, with their ids."""
    for name in ("sep", "cls"):
        value = step.get(name)
        if isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[1], int):
            yield value
    special = step.get("special_tokens")
    for name, token in (special if isinstance(special, dict) else {}).items():
        ids = token.get("ids") if isinstance(token, dict) else None
        for index in ids if isinstance(ids, list) else ():
            if isinstance(index, int):
                yield name, index


def _check_around(steps: list[dict[str, Any]]) -> None:
    tokens, copies = 0, 1
    for step in steps:
        lengths, most = Counter(name for name, _ in _around(step)), 1
        for form in ("single", "pair"):
            pieces = step.get(form)
            pieces = [p for p in pieces if isinstance(p, dict)] if isinstance(pieces, list) else []
            named, texts = (
                [str(p[kind].get("id")) for p in pieces if isinstance(p.get(kind), dict)]
                for kind in ("SpecialToken", "Sequence")
            )
            tokens += sum(lengths[name] for name in named)
            most = max([most, *Counter(texts).values()])
        copies *= most
    if tokens > _MAX_AROUND or copies > _MAX_COPIES:
        raise InvalidTokenizer(
            f"its post_processor repeats a text {copies:,} times and puts {tokens:,} tokens around "
            f"it; at most {_MAX_COPIES} times and {_MAX_AROUND} tokens are allowed"
        )
