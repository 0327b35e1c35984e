"""Alternatives of JSON Schemas, with references and combinations resolved."""

import collections
import contextlib
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

from keras_transformer.generation.constraints.byte_automaton import UnsupportedPattern
from keras_transformer.generation.constraints.json_patterns import is_found
from keras_transformer.generation.constraints.json_reading import Read, Schema
from keras_transformer.generation.constraints.json_validating import canonical, validation
from keras_transformer.support.checking import shorten

_KINDS = {
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
        "minProperties", "maxProperties",
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "patterns", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}  # fmt: skip
_HIGHER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_LOWER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_MOST = 500  # most alternatives of one schema
# Most pairs of schemas that are merged or compared, in total.
_MOST_PAIRS = 100_000


class Merging:
    """Resolves the references and combinations of a schema.

    Args:
        read: `json_reading.Read`, a schema and its definitions.
        depth: int, how often a schema may refer to itself, one reference within the other.
    """

    def __init__(self, read: Read, depth: int):
        self.read, self.depth = read, depth
        self._pairs = 0
        self._open: collections.Counter = collections.Counter()

    @contextlib.contextmanager
    def inside(self, schema: dict) -> Iterator[None]:
        """Count the references that led to an alternative while its parts are read."""
        self._open.update(schema["refs"])
        yield
        self._open.subtract(schema["refs"])

    def alternatives(self, schema: dict | bool) -> list[dict]:
        """Return schemas without references, of which a value must match at least one."""
        if isinstance(schema, bool):
            return [{"refs": ()}] if schema else []
        found = [self._plain(schema)]
        for part in schema.get("allOf", ()):
            found = self._product(found, self.alternatives(part))
        if "$ref" in schema:
            found = self._product(found, self._referred(schema["$ref"]))
        if "anyOf" in schema:
            either = [x for part in schema["anyOf"] for x in self.alternatives(part)]
            found = self._product(found, either)
        if "oneOf" in schema:
            found = self._one_of(found, schema["oneOf"])
        return found

    def kinds(self, schema: dict) -> list[str]:
        """Return the types that a schema allows or, without `type`, mentions; [] means all."""
        kinds = schema.get("type")
        if kinds is None:
            return [kind for kind, names in _KINDS.items() if any(n in schema for n in names)]
        return ["number"] if {"integer", "number"} <= set(kinds) else kinds

    def valid_values(self, schema: dict) -> list[Any]:
        """Return the `enum` values of an alternative that satisfy its other keywords."""
        if schema.keys() <= {"enum", "place", "refs"}:
            return schema["enum"]
        return list(filter(self._validation(schema), schema["enum"]))

    def all_values(self, schema: dict | bool) -> list[Any]:
        """Return the distinct values that a schema allows, or [] if they cannot be listed."""
        values: dict[str, Any] = {}
        literals = {"boolean": [False, True], "null": [None]}
        for each in self.alternatives(schema):
            kinds = each.get("type", ["string"])
            if "enum" not in each and not literals.keys() >= set(kinds):
                return []
            either = [x for kind in sorted(kinds) for x in literals.get(kind, ())]
            for value in filter(self._validation(each), each.get("enum", either)):
                values.setdefault(canonical(value), value)
        return list(values.values())

    def properties(self, schema: dict) -> dict[str, dict | bool]:
        """Return the schemas of the properties that an alternative names."""
        named = dict(schema.get("properties", {}))
        other = schema.get("additionalProperties", True)
        patterns = schema.get("patternProperties", {})
        for name in schema.get("required", ()):
            if name not in named:
                matches = any(is_found(pattern, name) for pattern in patterns)
                named[name] = True if matches else other
        is_name = validation(self.read, schema.get("propertyNames", True))
        for name, value in named.items():
            parts = [value, *(s for p, s in patterns.items() if is_found(p, name))]
            named[name] = {"allOf": parts} if len(parts) > 1 else value
            if not is_name(name):
                named[name] = False
        return named

    def free_properties(self, schema: dict) -> tuple[dict, dict | bool]:
        """Return the schemas of names and values of properties that a schema does not name."""
        other = schema.get("additionalProperties", True)
        patterns = schema.get("patternProperties", {})
        names = {"allOf": [{"type": ["string"]}, schema.get("propertyNames", True)]}
        if not patterns:
            return names, other
        if len(patterns) > 1:
            raise UnsupportedPattern(
                "has several `patternProperties` and no names in `properties`."
            )
        ((pattern, value),) = patterns.items()
        return {"allOf": [names, {"pattern": pattern}]}, value

    def _validation(self, schema: dict) -> Callable[[Any], bool]:
        """Return a function that tells whether a value is valid for an alternative."""
        plain = {name: x for name, x in schema.items() if name not in ("patterns", "place", "refs")}
        patterns = [{"pattern": pattern} for pattern in schema.get("patterns", ())]
        return validation(self.read, {**plain, "allOf": patterns})

    def _plain(self, schema: dict) -> dict:
        """Return a schema without references and combinations."""
        plain: dict[str, Any] = {"refs": (), "place": schema.get("$comment")}
        for name, value in schema.items():
            if name in ("allOf", "anyOf", "oneOf", "$ref", "$comment"):
                continue
            if name == "pattern":
                name, value = "patterns", (value,)
            elif name in _HIGHER + _LOWER and isinstance(value, float) and value.is_integer():
                value = int(value)
            plain[name] = value
        return plain

    def _referred(self, reference: str) -> list[dict]:
        if self._open[reference] >= self.depth:
            return []
        self._open[reference] += 1
        found = self.alternatives(self.read.definitions[reference.rpartition("/")[2]])
        self._open[reference] -= 1
        return [{**each, "refs": (*each["refs"], reference)} for each in found]

    def _product(self, one: list[dict], two: list[dict]) -> list[dict]:
        if len(one) * len(two) > _MOST:
            raise UnsupportedPattern(f"has more than {_MOST} alternatives in one place.")
        self._count(len(one) * len(two))
        pairs = (merged(a, b) for a in one for b in two)
        return [each for each in pairs if each is not None]

    def _count(self, pairs: int) -> None:
        self._pairs += pairs
        if self._pairs > _MOST_PAIRS:
            raise UnsupportedPattern(
                "combines its parts in too many ways: nest `allOf`, `anyOf` and `oneOf` less, or "
                "give them fewer parts."
            )

    def _one_of(self, found: list[dict], parts: list) -> list[dict]:
        """Return the alternatives of `oneOf`, no two of which may match the same value."""
        groups = [self._product(found, self.alternatives(part)) for part in parts]
        for first, second in itertools.combinations(groups, 2):
            for i, j in itertools.product(range(len(first)), range(len(second))):
                first[i], second[j] = self._told_apart(first[i], second[j])
        return [each for group in groups for each in group]

    def _told_apart(self, one: dict, two: dict) -> tuple[dict, dict]:
        """Return two alternatives such that no value matches both.

        They are returned unchanged, or with a property required in both that distinguishes them.
        """
        self._count(1)
        names = [name for name in one.get("properties", ()) if name in two.get("properties", ())]
        telling = [name for name in names if self._values_differ(one, two, name)]
        required = {*one.get("required", ()), *two.get("required", ())}
        if required.intersection(telling) or self._are_apart(one, two, 0):
            return one, two
        telling += [name for name in names if self._are_properties_apart(one, two, name, 0)]
        if not telling or not (_are_objects(one) and _are_objects(two)):
            raise UnsupportedPattern(
                "has a `oneOf` of which several may hold for a value: tell them apart by "
                "their types, or by a `const` in a property, or write `anyOf`."
            )
        must = {"required": [telling[0]]}
        return {**one, **_both(one, must)}, {**two, **_both(two, must)}

    def _values_differ(self, one: dict, two: dict, name: str) -> bool:
        """Return whether both schemas list values of a property and share none of them."""
        values = [self._listed(each["properties"][name]) for each in (one, two)]
        if not all(values):
            return False
        return set(map(canonical, values[0])).isdisjoint(map(canonical, values[1]))

    def _listed(self, schema: Schema) -> list | None:
        """Return the values that a schema, or the schema it refers to, lists."""
        if isinstance(schema, dict) and "$ref" in schema:
            target = self.read.definitions[schema["$ref"].rpartition("/")[2]]
            schema = schema if "enum" in schema else target
        return schema.get("enum") if isinstance(schema, dict) else None

    def _are_apart(self, one: dict, two: dict, depth: int) -> bool:
        """Return True if it is certain that no value is valid for both schemas."""
        self._count(1)
        for first, second in ((one, two), (two, one)):
            if "enum" in first:
                return not any(map(self._validation(second), self.valid_values(first)))
        try:
            both = merged(one, two)
        except UnsupportedPattern:  # schemas that cannot be merged may share a value
            return False
        if both is None:
            return True
        if _are_objects(both) and depth < 3:
            for name in both.get("required", ()):
                if self._are_properties_apart(one, two, name, depth):
                    return True
                if both.get("properties", {}).get(name) is False:
                    return True
        return False

    def _are_properties_apart(self, one: dict, two: dict, name: str, depth: int) -> bool:
        schemas = [each.get("properties", {}).get(name, True) for each in (one, two)]
        first, second = map(self.alternatives, schemas)
        return all(self._are_apart(a, b, depth + 1) for a in first for b in second)


def _are_objects(schema: dict) -> bool:
    return schema.get("type") == ["object"]


def _both(one: dict, two: dict) -> dict:
    """Return the union of the required properties of both schemas."""
    return {"required": list(dict.fromkeys([*one.get("required", ()), *two["required"]]))}


def merged(one: dict, two: dict) -> dict | None:
    """Return the schema of values that are valid for both, or None if certainly no value is."""
    result = {**one, **two}
    for name, value in two.items():
        if name in one and name in _MERGED:
            result[name] = _MERGED[name](one[name], value)
        elif name == "multipleOf" and isinstance(value, int) and isinstance(one.get(name), int):
            result[name] = math.lcm(value, one[name])
        elif name not in _JOINED and one.get(name, value) != value:
            raise UnsupportedPattern(
                f"says {name!r} in two ways, {shorten(one[name])} and {shorten(value)}, which is "
                "not supported: say it once."
            )
    _merge_properties(result, one, two)
    if "items" in result or "prefixItems" in result:
        firsts = [each.get("prefixItems", []) for each in (one, two)]
        rests = [each.get("items", True) for each in (one, two)]
        pairs = itertools.zip_longest(*firsts)
        result["prefixItems"] = [
            _all([rest if item is None else item for item, rest in zip(pair, rests, strict=True)])
            for pair in pairs
        ]
        result["items"] = _all(rests)
    low = max(result.get("minimum", -math.inf), result.get("exclusiveMinimum", -math.inf))
    high = min(result.get("maximum", math.inf), result.get("exclusiveMaximum", math.inf))
    kinds = result.get("type")
    if kinds == [] or result.get("enum") == []:
        return None
    return None if kinds and set(kinds) <= {"integer", "number"} and low > high else result


def _merge_properties(result: dict, one: dict, two: dict) -> None:
    """Merge the properties of two schemas, each of which constrains properties of the other too."""
    for this, other in ((one, two), (two, one)):
        patterns = set(this.get("patternProperties", ())) - set(other.get("patternProperties", ()))
        if patterns and other.get("additionalProperties", True) is not True:
            raise UnsupportedPattern(
                "has `patternProperties` beside `additionalProperties` of another schema."
            )
    if "patternProperties" in one and "patternProperties" in two:
        both = [each["patternProperties"] for each in (one, two)]
        result["patternProperties"] = {
            name: _all([each[name] for each in both if name in each])
            for name in {**both[0], **both[1]}
        }
    others = [x["additionalProperties"] for x in (one, two) if "additionalProperties" in x]
    if others:
        result["additionalProperties"] = _all(others)
    names = dict.fromkeys([*one.get("properties", ()), *two.get("properties", ())])
    for name in names:
        parts = []
        for each in (one, two):
            if name in each.get("properties", ()):
                parts.append(each["properties"][name])
            elif not any(is_found(p, name) for p in each.get("patternProperties", ())):
                parts.append(each.get("additionalProperties", True))
        names[name] = _all(parts)
    if names:
        result["properties"] = names


def _all(schemas: list) -> dict | bool:
    """Return the schema of values that are valid for all schemas."""
    schemas = [schema for schema in schemas if schema is not True]
    if False in schemas:
        return False
    return {"allOf": schemas} if len(schemas) > 1 else schemas[0] if schemas else True


def _common(one: list[str], two: list[str]) -> list[str]:
    """Return the types common to both lists (an integer counts as a number)."""
    numeric = {"integer", "number"}
    pairs = [(a, b) for a in one for b in two if a == b or {a, b} == numeric]
    return list(dict.fromkeys(a if a == b else "integer" for a, b in pairs))


def _in_both(one: list, two: list) -> list:
    known = set(map(canonical, two))
    return [value for value in one if canonical(value) in known]


# Keywords that are merged together with neighbouring keywords.
_JOINED = (
    "additionalProperties", "items", "patternProperties", "prefixItems", "properties",
)  # fmt: skip
# How the values of a keyword that both schemas have are merged.
_MERGED = {
    **dict.fromkeys(_HIGHER, max),
    **dict.fromkeys(_LOWER, min),
    "type": _common,
    "enum": _in_both,
    "refs": operator.add,
    "place": lambda one, two: one or two,
    "patterns": operator.add,
    "required": lambda one, two: list(dict.fromkeys([*one, *two])),
    "uniqueItems": operator.or_,
    "propertyNames": lambda one, two: _all([one, two]),
}
