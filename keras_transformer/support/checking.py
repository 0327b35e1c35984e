"""Checks of user input: numbers, seeds, choices, paths and texts, and how messages quote them.

Each check names the argument, returns a plain Python value, and raises ValueError. NumPy numbers,
and arrays or tensors without axes, are accepted wherever Python numbers are.
"""

import difflib
import json
import logging
import math
import os
import re
import reprlib
import struct
from collections.abc import Callable, Iterable
from typing import Any

_WIDTH = 80  # characters of a value that a message quotes
# Characters that move a terminal's cursor, end a line of a log or change text direction: C0 and C1
# controls, line separators, direction marks and lone surrogates.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}")
# Most digits of an integer in JSON, Python's own limit; and a word of Python's message about longer
# ones, whose advice only the owner of the interpreter can follow.
MOST_DIGITS, _OF_DIGITS = 4300, "set_int_max_str_digits"
_VAST = 2**15  # a bound of this size or more is mentioned only if it is exceeded

# Limit of token ids and counts: more than any tensor here holds, and a sum of two fits in int32.
MOST_TOKENS = 2**30
# Limit of counts whose traced program grows with them, such as an n-gram's length: a larger count
# would only cost time and memory.
MOST_TRACED = 256
# Larger penalties move scores out of the range of float32, or below the score of banned tokens.
LARGEST_PENALTY = 1e6


def shorten(value: Any, width: int = _WIDTH) -> str:
    """Return `repr(value)` on one line, with the middle of a long value left out.

    Object addresses are removed, since they reveal where the process's memory is.
    """
    value = _python_value(value)
    quoting = reprlib.Repr()
    quoting.maxstring = quoting.maxother = quoting.maxlong = width
    quoting.maxlist = quoting.maxtuple = quoting.maxset = quoting.maxdict = 20
    try:
        text = quoting.repr(value)
    except Exception:  # the value's own `repr`, or an integer with too many digits
        text = f"<{type(value).__name__}>"
    text = " ".join(text.split()) if "\n" in text else text
    text = text if isinstance(value, (str, bytes)) else _ADDRESS.sub("", text)
    if len(text) <= width:
        return text
    half = (width - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def printable(text: str, one_line: bool = False) -> str:
    """Escape the control characters of a text as `repr` does, for a terminal, a log or a card.

    Line ends and tabs stay; with `one_line` they become spaces.
    """
    text = re.sub(r"[\t\n\r]+", " ", text) if one_line else text
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


def escaped_json(text: str) -> str:
    """Escape the control characters in the strings of a JSON text as JSON escapes."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def load_json(text: str | bytes, **hooks: Any) -> Any:
    """Parse an untrusted JSON text as `json.loads` does.

    Raises `json.JSONDecodeError`, a ValueError that tells the position, if the text is not JSON or
    has an integer of more than 4,300 digits.
    """
    try:
        return json.loads(text, **hooks)
    except ValueError as error:
        if _OF_DIGITS not in str(error):
            raise
    text = text.decode(json.detect_encoding(text)) if isinstance(text, bytes) else text
    found = re.search(rf"[0-9]{{{MOST_DIGITS + 1},}}", text)
    message = f"An integer has {len(found[0]):,} digits, more than {MOST_DIGITS:,}"
    raise json.JSONDecodeError(message, text, found.start())


class Printable(logging.Filter):
    """Logging filter that escapes control characters, since messages quote untrusted files."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = printable(record.getMessage()), ()
        return True


def describe(value: Any) -> str:
    """Format a value and its type, for messages about a wrong type."""
    return f"{shorten(value)} of type {type(value).__name__}"


def nearest(word: Any, known: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"`, or an empty string if no known word is similar."""
    near = difflib.get_close_matches(str(word)[:200], list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def with_article(noun: str, capital: bool = False) -> str:
    """Return a noun behind "a" or "an"; `capital` for the beginning of a sentence."""
    article = "an" if noun[0].lower() in "aeiou" else "a"
    return f"{article.capitalize() if capital else article} {noun}"


def is_number(value: Any) -> bool:
    """Return True if the value is a real number of Python or NumPy. A bool is not a number."""
    return isinstance(_python_value(value), (int, float)) and not _is_bool(value)


def is_int(value: Any) -> bool:
    """Return True if the value is an integer of Python or NumPy. A bool is not an integer."""
    return isinstance(_python_value(value), int) and not _is_bool(value)


def check_int(
    name: str,
    value: Any,
    at_least: int | None = None,
    at_most: int | None = None,
    none: bool = False,
    hint: str = "",
) -> int | None:
    """Return an integer from `at_least` to `at_most` as a Python int. Rejects 5.0, "5" and True.

    With `none`, None is accepted too. `hint` is a sentence that says what to do; it ends the error
    message.
    """
    if none and value is None:
        return None
    number = _python_value(value)
    if not is_int(value) or not _is_within(number, number, at_least, at_most):
        if at_most is not None and at_most >= _VAST and not (is_int(value) and number > at_most):
            at_most = None
        raise _wrong(name, value, _expected("an integer", at_least, at_most), none, hint)
    return number


def check_number(
    name: str,
    value: Any,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    none: bool = False,
    hint: str = "",
    exact: bool = False,
) -> float | int | None:
    """Return a finite number in a range as a Python number. Rejects NaN, infinity, "5" and True.

    The exclusive bounds `above` and `below` are checked after rounding to float32, where 1e-300 is
    not above 0; with `exact` there is no rounding. For `none` and `hint` see `check_int`.
    """
    if none and value is None:
        return None
    number = _python_value(value)
    counted = (_as_float if exact else _in_float32)(number) if is_number(value) else math.nan
    bounds = (at_least, at_most, above, below)
    if not math.isfinite(counted) or not _is_within(number, counted, *bounds):
        raise _wrong(name, value, _expected("a number", *bounds), none, hint)
    return number


def check_float(name: str, value: Any, **bounds: Any) -> float:
    """Check a number with `check_number(exact=True)` and return it as a float."""
    return float(check_number(name, value, **bounds, exact=True))


def check_seed(name: str, value: Any, none: bool = False, bits: int = 63) -> int | None:
    """Return a seed as a Python int. It must be an integer from 0 to `2 ** bits - 1`."""
    if none and value is None:
        return None
    if not is_int(value) or not 0 <= _python_value(value) < 2**bits:
        raise _wrong(name, value, f"an integer from 0 to 2**{bits} - 1", none)
    return _python_value(value)


def check_bool(name: str, value: Any, none: bool = False) -> bool | None:
    """Return a bool of Python or NumPy as a Python bool. Rejects 0, 1 and strings."""
    if none and value is None:
        return None
    if not _is_bool(value):
        raise _wrong(name, value, "True or False", none)
    return bool(value)


def check_flag(name: str, value: Any) -> bool:
    """Return a bool, or the integers 0 and 1, as a Python bool."""
    return bool(value) if is_int(value) and value in (0, 1) else check_bool(name, value)


def check_ids(name: str, values: Any) -> tuple[int, ...]:
    """Return a sequence of token ids as a tuple."""
    return tuple(
        check_int(f"{name}[{i}]", value, 0, MOST_TOKENS)
        for i, value in enumerate(_sequence(name, values, "a sequence of token ids"))
    )


def check_words(name: str, values: Any) -> tuple[tuple[int, ...], ...]:
    """Return non-empty sequences of token ids as tuples."""
    found = _sequence(name, values, "sequences of token ids")
    words = tuple(check_ids(f"{name}[{i}]", word) for i, word in enumerate(found))
    if () in words:
        raise ValueError(
            f"`{name}[{words.index(())}]` is empty. Each must have at least one token id."
        )
    return words


def check_fields(frozen: Any, check: Callable, *names: str, **bounds: Any) -> None:
    """Check fields of a frozen dataclass in its `__post_init__`, and store what `check` returns."""
    for name in names:
        object.__setattr__(frozen, name, check(name, getattr(frozen, name), **bounds))


def check_choice(name: str, value: Any, choices: Iterable, none: bool = False) -> Any:
    """Return `value` if it is one of `choices`: equal to a choice, and of its type."""
    known = list(choices)
    if none and value is None:
        return None
    if not any(type(value) is type(choice) and value == choice for choice in known):
        expected = f"one of {', '.join(map(repr, known))}"
        near = nearest(value, [c for c in known if isinstance(c, str)])
        raise _wrong(name, value, expected, none, near.strip())
    return value


def check_path(name: str, value: Any) -> str:
    """Return a path, given as a str or an `os.PathLike`, as a str that the system accepts."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise _wrong(name, value, "a path (a str or an `os.PathLike`)", False)
    if not path.strip():
        raise ValueError(f"`{name}` is empty: it must be a path.")
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise ValueError(f"`{name}` has characters that a path cannot have: {shorten(value)}.")
    if len(encoded) > 4096 or max(map(len, encoded.split(os.fsencode(os.sep)))) > 255:
        raise ValueError(f"`{name}` is too long for a path: {shorten(value)}.")
    if path.startswith("~") and os.path.expanduser(path) == path:
        raise ValueError(
            f"`{name}` is {shorten(value)}, but there is no such user. If a folder has that name, "
            "write './~...'."
        )
    return path


def check_text(name: str, text: Any) -> str:
    """Return a string that UTF-8 can encode: one without lone surrogates."""
    if not isinstance(text, str):
        raise ValueError(
            f"`{name}` must be a string, received {describe(text)}."
            + (" Did you forget to decode it?" if isinstance(text, bytes) else "")
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"`{name}` has half of a surrogate pair, {text[error.start]!r}, at character "
                f"{error.start}, which UTF-8 cannot encode. Read the text with "
                '`errors="replace"`, or remove the character.'
            ) from None
    return text


def _python_value(value: Any) -> Any:
    """Return the Python value of a NumPy number, or of an array or a tensor without axes."""
    if isinstance(value, (int, float)):
        return value.item() if hasattr(value, "item") else value
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        try:
            return value.item()
        except Exception:  # a symbolic tensor has no value yet
            return value
    return value


def _is_bool(value: Any) -> bool:
    return isinstance(_python_value(value), bool)


def _sequence(name: str, values: Any, expected: str) -> list:
    if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__iter__"):
        hint = "`tokenizer.encode(text, special_tokens=False)` returns the ids of a text."
        raise _wrong(name, values, expected, False, hint if isinstance(values, str) else "")
    return list(values)


def _as_float(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _in_float32(number: int | float) -> float:
    """Round a number to float32; infinity if it is too large."""
    try:
        return struct.unpack("f", struct.pack("f", float(number)))[0]
    except OverflowError:
        return math.inf


def _is_within(number, counted, at_least, at_most, above=None, below=None) -> bool:
    """Return whether `number` keeps the inclusive bounds, and `counted` the exclusive ones."""
    return (
        (at_least is None or number >= at_least)
        and (at_most is None or number <= at_most)
        and (above is None or counted > above)
        and (below is None or counted < below)
    )


def _expected(kind, at_least, at_most, above=None, below=None) -> str:
    if at_least is not None and at_most is not None:
        return f"{kind} from {at_least} to {at_most}"
    if above is not None and below is not None:
        return f"{kind} between {above} and {below}"
    bounds = (("of at least", at_least), ("above", above), ("at most", at_most), ("below", below))
    return f"{kind} {' and '.join(f'{w} {b}' for w, b in bounds if b is not None)}".strip()


def _wrong(name: str, value: Any, expected: str, none: bool, hint: str = "") -> ValueError:
    or_none = " or None" if none else ""
    simple = value is None or isinstance(value, (bool, int, float, str))
    given = shorten(value) if simple else describe(value)
    return ValueError(f"`{name}` must be {expected}{or_none}, received {given}. {hint}".strip())
