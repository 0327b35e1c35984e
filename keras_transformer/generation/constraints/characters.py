"""Character classes of regular expressions, and their UTF-8 bytes."""

import functools
import itertools
import re
from re import _constants as codes
from typing import Any

import numpy as np

_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_WORD: r"\W",
}
_SURROGATES = (0xD800, 0xDFFF)
# The flags that change which characters are in a class.
_CHARACTER_FLAGS = re.IGNORECASE | re.ASCII | re.DOTALL
# Flag of this package: the characters are inside a JSON string, where some are escaped.
JSON_STRING = 1 << 20
# Another flag, for JSON strings: a class has all characters that it has in Python or in ECMAScript,
# not only the characters that it has in both.
EITHER = 1 << 21
_ESCAPES = {8: b"b", 9: b"t", 10: b"n", 12: b"f", 13: b"r", 34: b'"', 92: b"\\"}
_ESCAPES |= {code: b"u%04x" % code for code in range(32) if code not in _ESCAPES}


def spelling(code: Any, value: Any, flags: int) -> tuple:
    """Return the bytes of the characters that an item of a pattern matches, as a `_byte_tree`."""
    source, kept = _class_source(code, value, flags)
    ranges = _code_points(source, kept)
    if not flags & JSON_STRING:
        return _byte_tree(ranges)
    ascii_ranges = _code_points(source, kept | re.ASCII)
    if flags & EITHER:
        return _json_tree((*ranges, *ascii_ranges))
    both = [(max(a, c), min(b, d)) for a, b in ranges for c, d in ascii_ranges]
    return _json_tree(tuple((low, high) for low, high in both if low <= high))


@functools.lru_cache(maxsize=1024)
def _json_tree(ranges: tuple[tuple[int, int], ...]) -> tuple:
    """Return a `_byte_tree` for characters inside a JSON string."""
    gaps = [-1, *sorted(_ESCAPES), 0x110000]
    plain = [
        (max(low, before + 1), min(high, after - 1))
        for low, high in ranges
        for before, after in itertools.pairwise(gaps)
    ]
    escaped: dict = {}
    for code, spelled in _ESCAPES.items():
        if any(low <= code <= high for low, high in ranges):
            branch = escaped
            for byte in spelled:
                branch = branch.setdefault(byte, {})
    tree = _byte_tree(tuple((low, high) for low, high in plain if low <= high))
    return (*tree, (0x5C, 0x5C, _as_tree(escaped))) if escaped else tree


def _as_tree(branches: dict) -> tuple:
    return tuple((byte, byte, _as_tree(rest)) for byte, rest in sorted(branches.items()))


def _class_source(code, value, flags: int) -> tuple[str, int]:
    """Return a class of characters as a pattern, and the flags that matter for it."""
    flags &= _CHARACTER_FLAGS
    if code is codes.ANY:
        return ".", flags
    if code in (codes.LITERAL, codes.NOT_LITERAL):
        return f"[{'^' * (code is codes.NOT_LITERAL)}{_escaped(value)}]", flags
    parts = []
    for kind, item in value:
        if kind is codes.NEGATE:
            parts.append("^")
        elif kind is codes.LITERAL:
            parts.append(_escaped(item))
        elif kind is codes.RANGE:
            parts.append("-".join(map(_escaped, item)))
        else:
            parts.append(_CATEGORIES[item])
    return f"[{''.join(parts)}]", flags


@functools.lru_cache(maxsize=1024)
def _code_points(source: str, flags: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges of characters in a class, found by running `re` over all characters."""
    single = re.fullmatch(r"\[\\U([0-9a-f]{8})\]", source)
    if single and not flags & re.IGNORECASE:
        code = int(single[1], 16)
        spans = [(code, code + 1)]
    else:
        spans = [match.span() for match in re.finditer(f"{source}+", _all_characters(), flags)]
    ranges = []
    for low, after in spans:
        # Surrogates cannot be encoded in UTF-8.
        below, above = (low, min(after - 1, _SURROGATES[0] - 1)), (max(low, 0xE000), after - 1)
        ranges += [(a, b) for a, b in (below, above) if a <= b]
    return tuple(ranges)


@functools.cache
def _all_characters() -> str:
    codes = np.arange(0x110000, dtype="<u4")
    return codes.tobytes().decode("utf-32-le", "surrogatepass")


@functools.lru_cache(maxsize=1024)
def _byte_tree(ranges: tuple[tuple[int, int], ...]) -> tuple:
    """Return the bytes of character ranges as a tree of `(first byte, last byte, subtree)`."""
    tree: tuple = ()
    limits = (0, 0x80, 0x800, 0x10000, 0x110000)
    for length, base in enumerate((0, 0xC0, 0xE0, 0xF0)):
        low, after = limits[length : length + 2]
        part = [(max(a, low), min(b, after - 1)) for a, b in ranges if a < after and b >= low]
        tree += _spelled(tuple(part), 6 * length, base)
    return tree


@functools.lru_cache(maxsize=4096)
def _spelled(ranges: tuple[tuple[int, int], ...], shift: int, base: int) -> tuple:
    """Return a `_byte_tree` of ranges of numbers, whose `shift` low bits follow six to a byte."""
    parts: dict[int, list[tuple[int, int]]] = {}
    for low, high in ranges:
        for top in range(low >> shift, (high >> shift) + 1):
            bottom = top << shift
            inside = max(low, bottom) - bottom, min(high, bottom + (1 << shift) - 1) - bottom
            parts.setdefault(top, []).append(inside)
    tree: list[tuple[int, int, tuple]] = []
    for top, part in sorted(parts.items()):
        rest = _spelled(tuple(part), shift - 6, 0x80) if shift else ()
        if tree and tree[-1][1] == base + top - 1 and tree[-1][2] == rest:
            tree[-1] = (tree[-1][0], base + top, rest)
        else:
            tree.append((base + top, base + top, rest))
    return tuple(tree)


def _escaped(code: int) -> str:
    return f"\\U{code:08x}"
