"""Automata for JSON Schemas: every text that such an automaton accepts is valid.

Not every valid text is accepted. One space may follow a comma or a colon, without any other
whitespace between the parts; properties come in the order of the schema, and if it names any,
others are not allowed; numbers have no exponent; strings have no unnecessary escapes.

Source: JSON Schema 2020-12, https://json-schema.org/draft/2020-12; RFC 8259 (JSON).
"""

import collections
import functools
import json
import math
from collections.abc import Callable
from typing import Any

from keras_transformer.generation.constraints import json_numbers
from keras_transformer.generation.constraints.byte_automaton import (
    MAX_STATES,
    Builder,
    ByteAutomaton,
    UnsupportedPattern,
    automaton_of,
    intersection,
)
from keras_transformer.generation.constraints.characters import JSON_STRING
from keras_transformer.generation.constraints.json_merging import Merging
from keras_transformer.generation.constraints.json_patterns import search, searches
from keras_transformer.generation.constraints.json_reading import read_schema, where_of

# How often a schema may refer to itself, each time within the previous reference.
_MAX_DEPTH = 3
# A longer `maxLength` is cut to this: each character takes some states.
_LONGEST = 400
_SCALAR = {"type": ["string", "number", "boolean", "null"]}
_ANYTHING = {
    "anyOf": [
        _SCALAR,
        {"type": ["array"], "items": _SCALAR},
        {"type": ["object"], "additionalProperties": _SCALAR},
    ]
}
_DATE = (
    r"[1-9]\d{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    r"|(?:0[13578]|1[02])-31)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_BYTE = r"(?:\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])"
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,20}[a-z0-9])?"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"(?:{_DATE})T{_TIME}",
    "email": rf"[a-z0-9]+(?:[._+-][a-z0-9]+)*@{_LABEL}(?:\.{_LABEL})+",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": r"(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}",
    "uri": rf"https?://{_LABEL}(?:\.{_LABEL})*(?:/[A-Za-z0-9._~-]+)*/?",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}


def compile_json_schema(schema: dict | bool, optional_space: bool = False) -> ByteAutomaton:
    """Compile a JSON Schema to an automaton of the JSON texts that are valid."""
    try:
        read = read_schema(schema)
        merging = Merging(read, _MAX_DEPTH)

        def write(builder: Builder, start: int) -> int:
            begin = builder.regex(" ?", start) if optional_space else start
            return _Values(builder, merging).value(read.schema, begin)

        with searches():
            return automaton_of(write)
    except (RecursionError, OverflowError):
        where, reason = "", "nests too deeply, or repeats too often."
    except UnsupportedPattern as error:
        where, reason = where_of(error.place), str(error)
    raise ValueError(f"The JSON Schema {where}{reason}")


Writer = Callable[[int], int]  # adds a part after a node, and returns the part's last node


class _Values:
    """Adds the texts of values to a builder; each method returns the node after these texts."""

    def __init__(self, builder: Builder, merging: Merging):
        self.builder = builder
        self.merging = merging

    def value(self, schema: dict | bool, start: int) -> int:
        end = self.builder.node()
        try:
            for each in self.merging.alternatives(schema):
                with self.merging.inside(each):
                    for last in self._ends(each, start):
                        self.builder.free[last].append(end)
        except UnsupportedPattern as error:
            if error.place is None and isinstance(schema, dict):
                error.place = schema.get("$comment")
            raise
        return end

    def _ends(self, schema: dict, start: int):
        if "enum" in schema:
            yield self.builder.literals(map(_text, self.merging.valid_values(schema)), start)
            return
        kinds = self.merging.kinds(schema)
        if not kinds:
            yield self.value(_ANYTHING, start)
            return
        for kind in kinds:
            yield getattr(self, f"_{kind}")(schema, start)

    def _null(self, schema: dict, start: int) -> int:
        return self.builder.literal("null", start)

    def _boolean(self, schema: dict, start: int) -> int:
        return self.builder.regex("true|false", start)

    def _integer(self, schema: dict, start: int) -> int:
        return self._number({"multipleOf": 1, **schema}, start)

    def _number(self, schema: dict, start: int) -> int:
        multiple = json_numbers.multiple_of(schema) if "multipleOf" in schema else None
        within = json_numbers.integers if multiple else json_numbers.numbers
        pattern = within(schema)
        if pattern is None:
            return self.builder.node()  # unreachable
        if multiple in (None, 1):
            return self.builder.regex(pattern, start)
        part = automaton_of(lambda builder, node: builder.regex(pattern, node))
        return self.builder.embed(intersection(part, json_numbers.multiples(multiple)), start)

    def _string(self, schema: dict, start: int) -> int:
        builder = self.builder
        node = builder.literal('"', start)
        low = schema.get("minLength", 0)
        high = schema.get("maxLength", math.inf)
        writers = [functools.partial(search, pattern) for pattern in schema.get("patterns", ())]
        if schema.get("format") in _FORMATS:
            writers.append(functools.partial(search, f"^(?:{_FORMATS[schema['format']]})$"))
        limit = "" if math.isinf(high) else max(low, min(high, _LONGEST))
        length = f"(?s:.){{{low},{limit}}}"
        if low > high:
            return builder.node()
        _check_repeats(low)
        if low or not math.isinf(high) or not writers:
            writers.append(lambda builder, node: builder.regex(length, node, JSON_STRING))
        if len(writers) == 1:
            node = writers[0](builder, node)
        else:
            node = builder.embed(functools.reduce(intersection, map(automaton_of, writers)), node)
        return builder.literal('"', node)

    def _array(self, schema: dict, start: int) -> int:
        builder = self.builder
        low, high = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        if rest is False:
            high = min(high, len(first))
        node = builder.literal("[", start)
        if schema.get("uniqueItems") and high > 1:
            members = self._distinct(first, rest)
            return builder.literal("]", self._members(members, node, low, high))
        members = [functools.partial(self.value, each) for each in first]
        rest = functools.partial(self.value, rest)
        return builder.literal("]", self._repeated(members, rest, node, low, high))

    def _distinct(self, first: list, rest: dict | bool) -> list:
        """Return the members of an array of distinct values: a choice of the values, in order."""
        values = [] if first else self.merging.all_values(rest)
        if not values:
            raise UnsupportedPattern(
                "asks for `uniqueItems` of values that are not given by `enum` or `const`, which "
                "is not supported: leave it out and check the result, or give `items` an `enum`."
            )
        return [(False, functools.partial(self.builder.literal, _text(each))) for each in values]

    def _object(self, schema: dict, start: int) -> int:
        builder = self.builder
        low, high = schema.get("minProperties", 0), schema.get("maxProperties", math.inf)
        required = set(schema.get("required", ()))
        properties = self.merging.properties(schema)
        node = builder.literal("{", start)
        if properties or high == 0:
            members = [
                (name in required, functools.partial(self._property, name, value))
                for name, value in properties.items()
            ]
            return builder.literal("}", self._members(members, node, low, high))
        if low > 1:
            raise UnsupportedPattern(
                "asks for `minProperties` above 1 without names in `properties`, which is not "
                "supported: two properties could have one name."
            )
        keys, values = self.merging.free_properties(schema)
        pair = functools.partial(self._pair, keys, values)
        high = 0 if values is False else high
        return builder.literal("}", self._repeated([], pair, node, low, high))

    def _property(self, name: str, value: dict | bool, start: int) -> int:
        return self.value(
            value, self.builder.regex(": ?", self.builder.literal(_text(name), start))
        )

    def _pair(self, keys: dict, values: dict | bool, start: int) -> int:
        return self.value(values, self.builder.regex(": ?", self.value(keys, start)))

    def _repeated(self, first: list, rest: Writer, start: int, low: int, high: float) -> int:
        """Add `low` to `high` comma-separated members: `first`, then repetitions of `rest`."""
        builder, node = self.builder, start
        end = builder.node()
        most = max(low, len(first), 1) if math.isinf(high) else high
        _check_repeats(most)
        for place in range(most):
            if place >= low:
                builder.free[node].append(end)
            node = builder.regex(", ?", node) if place else node
            node = first[place](node) if place < len(first) else rest(node)
        if low <= high:
            builder.free[node].append(end)
        if math.isinf(high):
            loop = builder.node()
            builder.free[node].append(loop)
            builder.free[rest(builder.regex(", ?", loop))] += [loop, end]
        return end

    def _members(self, members: list, start: int, low: int, high: float) -> int:
        """Add `low` to `high` of the members, in their order and separated by commas."""
        builder = self.builder
        # Counts of members are distinguished up to this number.
        cap = 1
        if low > sum(must for must, _ in members) or high < len(members):
            cap = high if high < len(members) else max(low, 1)
        places = {0: start}  # a node for each count of members so far
        for must, write in members:
            begins: dict[int, int] = collections.defaultdict(builder.node)
            nexts: dict[int, int] = collections.defaultdict(builder.node)
            for count, node in places.items():
                if not must:
                    builder.free[node].append(nexts[count])
                if count < high:
                    begin = builder.regex(", ?", node) if count else node
                    builder.free[begin].append(begins[min(count + 1, cap)])
            for count, begin in begins.items():
                builder.free[write(begin)].append(nexts[count])
            places = dict(nexts)
        end = builder.node()
        for count, node in places.items():
            if min(low, cap) <= count and low <= high:
                builder.free[node].append(end)
        return end


def _check_repeats(count: int) -> None:
    """Refuse a repetition that needs too many states: one per character or member."""
    if count > MAX_STATES:
        raise UnsupportedPattern(
            f"repeats something {json_numbers.shown(count)} times, for which more than "
            f"{MAX_STATES:,} states are needed: ask for fewer characters, items or properties."
        )


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
