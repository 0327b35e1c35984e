"""Numbers of JSON within bounds, as regular expressions and automata."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np

from keras_transformer.generation.byte_automaton import ByteAutomaton, Refused

# Digits that every reader of JSON has exactly, and those behind the point.
_DIGITS, _FRACTION = 15, 6
# Bits behind the point, and the least share of one, of what is a multiple.
_FRACTION_BITS, _LEAST_MULTIPLE = 10, 1e-9
# Each multiple has this many states at most.
_LARGEST_MULTIPLE = 2_000


# From here on a number of 64 bits is not every integer, and readers of JSON disagree.
_INEXACT = 2**53
_FARTHEST = 10**19
_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def shown(number: float) -> str:
    """Return how a message shows a number of a schema: in at most 20 characters."""
    return f"{number:,}" if abs(number) < 10**15 else f"{Decimal(number):.3g}"


def integers(schema: dict) -> str | None:
    """The integers that the bounds of a schema allow, `None` if there is none."""
    return _within(schema, 0)


def numbers(schema: dict) -> str | None:
    """The numbers that the bounds of a schema allow, with few digits, `None` if there is none."""
    known = [abs(schema[name]) for name in (*_LOW, *_HIGH) if name in schema]
    if not known:
        return f"-?(?:0|[1-9][0-9]{{0,{_DIGITS - 1}}})(?:[.][0-9]{{1,{_FRACTION}}})?"
    most = max((value for value in known if value <= _FARTHEST), default=0)
    return _within(schema, max(0, min(_FRACTION, _DIGITS - len(str(int(most))))))


def multiple_of(schema: dict) -> int:
    """Return what an integer must be a multiple of."""
    value = schema["multipleOf"]
    exact = Fraction(value)
    # A fraction in few bits divides exactly, and what divides one divides every integer: of these
    # readers agree.
    if exact.denominator <= 2**_FRACTION_BITS:
        number = exact.numerator
    elif value >= _LEAST_MULTIPLE and round(1 / value) == 1 / value:
        number = 1
    else:
        raise Refused(
            f"has `multipleOf` {shown(value)}, which must be an integer, divide 1, or be a "
            "sum of halves, quarters and so on."
        )
    if number > _LARGEST_MULTIPLE:
        raise Refused(
            f"has `multipleOf` {shown(value)}, which may be at most {_LARGEST_MULTIPLE:,}."
        )
    return number


def multiples(number: int) -> ByteAutomaton:
    """The automaton of integers that are multiples of a number."""
    # The start, behind the sign, and one state for each remainder.
    table = np.full((number + 2, 256), -1, "int32")
    table[0, ord("-")] = 1
    digits = np.arange(10)
    zero = ord("0")
    table[:2, zero : zero + 10] = digits % number + 2
    remainders = np.arange(number)[:, None] * 10 + digits
    table[2:, zero : zero + 10] = remainders % number + 2
    return ByteAutomaton(table, np.arange(number + 2) == 2)


def _within(schema: dict, digits: int) -> str | None:
    """Return the numbers within bounds that have at most so many digits behind the point."""
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
    """Return the first or last number that a bound allows, in parts of a unit, None for any.

    It allows it whether a reader takes the bound for the decimal number that it is written as or
    for the nearest number of 64 bits.
    """
    is_low = name in _LOW
    if abs(value) > _FARTHEST:
        if (value > 0) is is_low:
            raise Refused(
                f"has `{name}` {shown(value)}, beyond which readers of JSON have no exact "
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
    """The numbers from `low` to `high`, not below 0, in as few alternatives as lengths."""
    return "|".join(
        _between(str(max(low, 10 ** (n - 1) if n > 1 else 0)), str(min(high, 10**n - 1)))
        for n in range(len(str(low)), len(str(high)) + 1)
    )


def _decimal(low: int, high: int, digits: int) -> str:
    """As `_natural`, of numbers in units of the last of some digits behind the point."""
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
    """A number with a fraction between two, written with all of its digits."""
    fraction = _between(f"{low:0{digits}}", f"{high:0{digits}}")
    return f"{whole}(?:[.]{fraction}){'' if low else '?'}"


def _between(low: str, high: str) -> str:
    """The rows of digits between two rows of one length."""
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
