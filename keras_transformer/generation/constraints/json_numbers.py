"""JSON numbers within bounds, as regular expressions and automata."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np

from keras_transformer.generation.constraints.byte_automaton import (
    ByteAutomaton,
    UnsupportedPattern,
)

# Number of digits that every JSON reader keeps exactly, and of digits after the point.
_DIGITS, _FRACTION = 15, 6
# Most fractional bits of a `multipleOf`, and its smallest value.
_FRACTION_BITS, _LEAST_MULTIPLE = 10, 1e-9
# Largest `multipleOf`: its automaton has about this many states.
_LARGEST_MULTIPLE = 2_000


# From here on not every integer is a 64-bit float, and JSON readers differ.
_INEXACT = 2**53
_FARTHEST = 10**19
_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def shown(number: float) -> str:
    """Format a number of a schema for a message, in at most 20 characters."""
    return f"{number:,}" if abs(number) < 10**15 else f"{Decimal(number):.3g}"


def integers(schema: dict) -> str | None:
    """Return a regex for the integers within the bounds of a schema, or None if empty."""
    return _within(schema, 0)


def numbers(schema: dict) -> str | None:
    """Return a regex for short decimals within a schema's bounds, or None if empty."""
    known = [abs(schema[name]) for name in (*_LOW, *_HIGH) if name in schema]
    if not known:
        return f"-?(?:0|[1-9][0-9]{{0,{_DIGITS - 1}}})(?:[.][0-9]{{1,{_FRACTION}}})?"
    most = max((value for value in known if value <= _FARTHEST), default=0)
    return _within(schema, max(0, min(_FRACTION, _DIGITS - len(str(int(most))))))


def multiple_of(schema: dict) -> int:
    """Return the integer of which the integers of a schema must be multiples."""
    value = schema["multipleOf"]
    exact = Fraction(value)
    # JSON readers agree on fractions with few bits, which divide exactly, and on fractions that
    # divide 1, of which every integer is a multiple.
    if exact.denominator <= 2**_FRACTION_BITS:
        number = exact.numerator
    elif value >= _LEAST_MULTIPLE and round(1 / value) == 1 / value:
        number = 1
    else:
        raise UnsupportedPattern(
            f"has `multipleOf` {shown(value)}, which must be an integer, divide 1, or be a "
            "sum of halves, quarters and so on."
        )
    if number > _LARGEST_MULTIPLE:
        raise UnsupportedPattern(
            f"has `multipleOf` {shown(value)}, which may be at most {_LARGEST_MULTIPLE:,}."
        )
    return number


def multiples(number: int) -> ByteAutomaton:
    """Return the automaton of integers that are multiples of a number."""
    # States: the start, the state after the sign, and one for each remainder.
    table = np.full((number + 2, 256), -1, "int32")
    table[0, ord("-")] = 1
    digits = np.arange(10)
    zero = ord("0")
    table[:2, zero : zero + 10] = digits % number + 2
    remainders = np.arange(number)[:, None] * 10 + digits
    table[2:, zero : zero + 10] = remainders % number + 2
    return ByteAutomaton(table, np.arange(number + 2) == 2)


def _within(schema: dict, digits: int) -> str | None:
    """Return a regex for numbers within bounds with at most `digits` digits after the point."""
    unit = 10**digits
    lows = [_edge(name, schema[name], unit) for name in _LOW if name in schema]
    highs = [_edge(name, schema[name], unit) for name in _HIGH if name in schema]
    low = max((edge for edge in lows if edge is not None), default=None)
    high = min((edge for edge in highs if edge is not None), default=None)
    if low is None:
        low = min(0, 0 if high is None else high) - 10**_DIGITS + 1
    if high is None:
        high = max(0, low) + 10**_DIGITS - 1
    parts = []
    if low < 0 and -low >= max(1, -high):
        parts.append(f"-(?:{_decimal(max(1, -high), -low, digits)})")
    if high >= max(low, 0):
        parts.append(_decimal(max(low, 0), high, digits))
    return f"(?:{'|'.join(parts)})" if parts else None


def _edge(name: str, value: float, unit: int) -> int | None:
    """Return the first or last number that a bound allows, in units, or None without effect.

    The number satisfies the bound both as the decimal number that is written and as the nearest
    64-bit float.
    """
    is_low = name in _LOW
    if abs(value) > _FARTHEST:
        if (value > 0) is is_low:
            raise UnsupportedPattern(
                f"has `{name}` {shown(value)}, beyond which JSON readers have no exact "
                f"numbers: it must be within {_FARTHEST:,}."
            )
        return None
    sign = 1 if is_low else -1
    is_strict = name.startswith("exclusive")
    edge = math.ceil(sign * Fraction(str(value)) * unit)
    if is_strict and edge == sign * Fraction(str(value)) * unit:
        edge += 1
    if abs(value) >= _INEXACT:
        nearest = math.nextafter(value, sign * math.inf) if is_strict else float(value)
        edge = max(edge, sign * int(nearest) * unit)
    return sign * edge


def _natural(low: int, high: int) -> str:
    """Return a regex for the integers from `low` to `high`, both at least 0."""
    return "|".join(
        _between(str(max(low, 10 ** (n - 1) if n > 1 else 0)), str(min(high, 10**n - 1)))
        for n in range(len(str(low)), len(str(high)) + 1)
    )


def _decimal(low: int, high: int, digits: int) -> str:
    """Return a regex for numbers from `low` to `high` in units of the last decimal digit."""
    if not digits:
        return _natural(low, high)
    unit = 10**digits
    (first, above), (last, below) = divmod(low, unit), divmod(high, unit)
    if first == last:
        return _with_fraction(first, above, below, digits)
    parts = [_with_fraction(first, above, unit - 1, digits), _with_fraction(last, 0, below, digits)]
    if last - first > 1:
        parts.append(f"(?:{_natural(first + 1, last - 1)})(?:[.][0-9]{{1,{digits}}})?")
    return "|".join(parts)


def _with_fraction(whole: int, low: int, high: int, digits: int) -> str:
    """Return a regex for numbers whose fraction, with all its digits, is from `low` to `high`."""
    fraction = _between(f"{low:0{digits}}", f"{high:0{digits}}")
    return f"{whole}(?:[.]{fraction}){'' if low else '?'}"


def _between(low: str, high: str) -> str:
    """Return a regex for the digit strings from `low` to `high`, which have the same length."""
    if not low:
        return ""
    rest = len(low) - 1
    if not int(low) and int(high) == 10 ** len(high) - 1:
        return f"[0-9]{{{len(low)}}}"
    if low[0] == high[0]:
        return low[0] + _between(low[1:], high[1:])
    first, last, parts = int(low[0]), int(high[0]), []
    if int(low[1:] or 0):
        parts.append(low[0] + _between(low[1:], "9" * rest))
        first += 1
    if rest and int(high[1:]) != 10**rest - 1:
        parts.append(high[0] + _between("0" * rest, high[1:]))
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    return f"(?:{'|'.join(parts)})"
