"""Numbers of JSON within bounds, as regular expressions and automata."""

import math
from decimal import Decimal

import numpy as np

from keras_transformer.generation.byte_automaton import ByteAutomaton, Refused

# Digits that every reader of JSON has exactly, and those behind the point.
_DIGITS, _FRACTION = 15, 6
# Each multiple has this many states at most.
_LARGEST_MULTIPLE = 2_000


def integers(schema: dict) -> str | None:
    """The integers that the bounds of a schema allow, `None` if there is none."""
    low, high = _bounds(schema)
    low = -math.inf if low is None else math.floor(low[0]) + 1 if low[1] else math.ceil(low[0])
    high = math.inf if high is None else math.ceil(high[0]) - 1 if high[1] else math.floor(high[0])
    if math.isinf(low):
        low = min(0, high) - 10**_DIGITS + 1
    if math.isinf(high):
        high = max(0, low) + 10**_DIGITS - 1
    return _signed(int(low), int(high), _natural)


def numbers(schema: dict) -> str | None:
    """The numbers that the bounds of a schema allow, with few digits, `None` if there is none."""
    low, high = _bounds(schema)
    if low is None and high is None:
        return rf"-?(?:0|[1-9]\d{{0,{_DIGITS - 1}}})(?:\.\d{{1,{_FRACTION}}})?".replace(
            r"\d", "[0-9]"
        )
    known = [abs(bound[0]) for bound in (low, high) if bound is not None]
    digits = max(0, min(_FRACTION, _DIGITS - len(str(int(max(known))))))
    # In units of the last digit, which bounds may be between two of.
    unit = 10**digits
    room = Decimal(10) ** (_DIGITS - digits)
    low = (high[0] - room, False) if low is None else low
    high = (low[0] + room, False) if high is None else high
    least = math.ceil(low[0] * unit)
    least += low[1] and least == low[0] * unit
    most = math.floor(high[0] * unit)
    most -= high[1] and most == high[0] * unit
    return _signed(least, most, lambda a, b: _decimal(a, b, digits))


def multiple_of(schema: dict) -> int:
    """What an integer must be a multiple of."""
    value = schema.get("multipleOf", 1)
    if isinstance(value, float) and not value.is_integer():
        # Integers are multiples of what divides one, and readers agree on that.
        if round(1 / value) == 1 / value:
            return 1
        raise Refused(f"has `multipleOf` {value}, which must be an integer or divide 1.")
    if value > _LARGEST_MULTIPLE:
        raise Refused(f"has `multipleOf` {value}, which may be at most {_LARGEST_MULTIPLE:,}.")
    return int(value)


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


def _bounds(schema: dict) -> tuple:
    """The lower and the upper bound, each a decimal and whether it is excluded, or `None`."""

    def bound(plain: str, exclusive: str, tightest):
        found = [
            (Decimal(str(schema[name])), name == exclusive)
            for name in (plain, exclusive)
            if name in schema
        ]
        return tightest(found, default=None)

    low = bound("minimum", "exclusiveMinimum", max)
    # At one place the bound that excludes it is the tighter one.
    high = bound("maximum", "exclusiveMaximum", lambda found, default: min(
        found, key=lambda each: (each[0], not each[1]), default=default
    ))  # fmt: skip
    return low, high


def _signed(low: int, high: int, write) -> str | None:
    """The numbers from `low` to `high`, those from 0 on written by a function."""
    parts = []
    if low < 0:
        below = write(max(1, -high), -low) if -low >= max(1, -high) else None
        parts += [f"-(?:{below})"] if below else []
    if high >= max(low, 0):
        parts.append(write(max(low, 0), high))
    return f"(?:{'|'.join(parts)})" if parts else None


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
