"""JSON Schemas without references and combinations: what a value needs one of."""

import collections
import contextlib
import itertools
import json
import math
import operator
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from keras_transformer.generation.byte_automaton import Refused

_KINDS = {
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
        "minProperties", "maxProperties",
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "patterns", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}  # fmt: skip
# What says nothing of a value.
_SILENT = {
    "$anchor", "$comment", "$defs", "$id", "$schema", "contentEncoding", "contentMediaType",
    "default", "definitions", "deprecated", "description", "examples", "readOnly", "title",
    "writeOnly",
}  # fmt: skip
_KNOWN = {"type", "enum", "refs", *(name for names in _KINDS.values() for name in names)}
_HIGHER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_LOWER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_MOST = 500  # alternatives of one schema


class Merging:
    """Takes the schemas within a schema apart."""

    def __init__(self, root: dict | bool, depth: int):
        try:
            import jsonschema
        except ImportError as error:
            raise ImportError(
                "JSON Schemas need the package jsonschema, which is not installed. "
                'Install it with: pip install "keras_transformer[generation]"'
            ) from error
        self.root, self.depth = root, depth
        validator = jsonschema.validators.validator_for(root, jsonschema.Draft202012Validator)
        try:
            validator.check_schema(root)
        except jsonschema.SchemaError as error:
            place = "".join(f"[{part!r}]" for part in error.absolute_path)
            where = f" at schema{place}" if place else ""
            raise ValueError(f"The JSON Schema is invalid{where}: {error.message}") from None
        self._validator = validator(root)
        self._open: collections.Counter = collections.Counter()

    @contextlib.contextmanager
    def inside(self, schema: dict) -> Iterator[None]:
        """Counts the references that led to one of the alternatives, while its parts are read."""
        self._open.update(schema["refs"])
        yield
        self._open.subtract(schema["refs"])

    def alternatives(self, schema: dict | bool) -> list[dict]:
        """Schemas of which a value needs one, each with the references that led there."""
        if isinstance(schema, bool):
            return [{"refs": ()}] if schema else []
        found = [self._plain(schema)]
        for part in schema.get("allOf", ()):
            found = _product(found, self.alternatives(part))
        if "$ref" in schema:
            found = _product(found, self._referred(schema["$ref"]))
        if "anyOf" in schema:
            either = [x for part in schema["anyOf"] for x in self.alternatives(part)]
            found = _product(found, either)
        if "oneOf" in schema:
            found = self._one_of(found, schema["oneOf"])
        return found

    def kinds(self, schema: dict) -> list[str]:
        """The types that a schema allows or, without any, those it speaks of; none for all."""
        kinds = schema.get("type")
        if kinds is None:
            return [kind for kind, names in _KINDS.items() if any(n in schema for n in names)]
        return ["number"] if {"integer", "number"} <= set(kinds) else kinds

    def valid_values(self, schema: dict) -> list[Any]:
        """The values of the `enum` of one of the alternatives that are valid for the rest of it."""
        return [value for value in schema["enum"] if self._is_valid(value, schema)]

    def all_values(self, schema: dict | bool) -> list[Any]:
        """The different values that a schema allows, empty where `enum` does not give them."""
        values: dict[str, Any] = {}
        literals = {"boolean": [False, True], "null": [None]}
        for each in self.alternatives(schema):
            kinds = each.get("type", ["string"])
            if "enum" not in each and not literals.keys() >= set(kinds):
                return []
            either = [x for kind in sorted(kinds) for x in literals.get(kind, ())]
            for value in each.get("enum", either):
                if self._is_valid(value, each):
                    values.setdefault(_canonical(value), value)
        return list(values.values())

    def properties(self, schema: dict) -> dict[str, dict | bool]:
        """The schemas of the properties that one of the alternatives names."""
        named = dict(schema.get("properties", {}))
        other = schema.get("additionalProperties", True)
        patterns = schema.get("patternProperties", {})
        for name in schema.get("required", ()):
            if name not in named:
                matches = any(re.search(pattern, name) for pattern in patterns)
                named[name] = True if matches else other
        for name, value in named.items():
            parts = [value, *(s for p, s in patterns.items() if re.search(p, name))]
            named[name] = {"allOf": parts} if len(parts) > 1 else value
            if not self._is_valid(name, {"allOf": [schema.get("propertyNames", True)]}):
                named[name] = False
        return named

    def free_properties(self, schema: dict) -> tuple[dict, dict | bool]:
        """The schemas of names and of values where a schema names no property."""
        other = schema.get("additionalProperties", True)
        patterns = schema.get("patternProperties", {})
        names = {"allOf": [{"type": "string"}, schema.get("propertyNames", True)]}
        if not patterns:
            return names, other
        if len(patterns) > 1:
            raise Refused("has several `patternProperties` and no names in `properties`.")
        ((pattern, value),) = patterns.items()
        return {"allOf": [names, {"pattern": pattern}]}, value

    def _is_valid(self, value: Any, schema: dict) -> bool:
        plain = {name: x for name, x in schema.items() if name not in ("refs", "patterns")}
        patterns = [{"pattern": pattern} for pattern in schema.get("patterns", ())]
        plain["allOf"] = [*plain.get("allOf", ()), *patterns]
        return self._validator.evolve(schema=plain).is_valid(value)

    def _plain(self, schema: dict) -> dict:
        """A schema without what is combined."""
        combined = {"allOf", "anyOf", "oneOf", "$ref"}
        plain: dict[str, Any] = {"refs": ()}
        for name, value in schema.items():
            if name in combined or name in _SILENT:
                continue
            if name == "type":
                value = [value] if isinstance(value, str) else list(value)
            elif name == "const":
                name, value = "enum", [value]
            elif name == "pattern":
                name, value = "patterns", (value,)
            elif name == "items" and isinstance(value, list):  # of older drafts
                plain["items"] = schema.get("additionalItems", True)
                name = "prefixItems"
            elif name == "additionalItems" and isinstance(schema.get("items"), list):
                continue
            elif name in _HIGHER + _LOWER and isinstance(value, float) and value.is_integer():
                value = int(value)
            if name not in _KNOWN:
                raise Refused(f"has the keyword {name!r}, which is not supported.")
            if name == "enum" and "enum" in plain:  # beside a `const`
                value = _in_both(value, plain["enum"])
            plain[name] = value
        return plain

    def _referred(self, reference: str) -> list[dict]:
        if self._open[reference] >= self.depth:
            return []
        target: Any = self.root
        if not reference.startswith("#"):
            raise Refused(f"refers to {reference!r}: only what begins with '#' is supported.")
        for part in filter(None, unquote(reference[1:]).split("/")):
            part = part.replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(part)] if isinstance(target, list) else target[part]
            except (KeyError, IndexError, ValueError, TypeError):
                raise Refused(f"refers to {reference!r}, which there is not.") from None
        self._open[reference] += 1
        found = self.alternatives(target)
        self._open[reference] -= 1
        return [{**each, "refs": (*each["refs"], reference)} for each in found]

    def _one_of(self, found: list[dict], parts: list) -> list[dict]:
        """The alternatives of `oneOf`, of which no two may hold for one value."""
        groups = [_product(found, self.alternatives(part)) for part in parts]
        for first, second in itertools.combinations(groups, 2):
            if not all(self._are_apart(one, two, 0) for one in first for two in second):
                raise Refused(
                    "has a `oneOf` of which more than one may hold for a value: tell them apart by "
                    "their types, or by a `const` in a required property, or write `anyOf`."
                )
        return [each for group in groups for each in group]

    def _are_apart(self, one: dict, two: dict, depth: int) -> bool:
        """Whether it is certain that no value is valid for both."""
        for first, second in ((one, two), (two, one)):
            if "enum" in first:
                return not any(self._is_valid(v, second) for v in self.valid_values(first))
        both = merged(one, two)
        if both is None:
            return True
        if both.get("type") == ["object"] and depth < 3:
            for name in both.get("required", ()):
                schemas = [each.get("properties", {}).get(name, True) for each in (one, two)]
                first, second = map(self.alternatives, schemas)
                if all(self._are_apart(a, b, depth + 1) for a in first for b in second):
                    return True
                if both.get("properties", {}).get(name) is False:
                    return True
        return False


def merged(one: dict, two: dict) -> dict | None:
    """The schema of what is valid for both, `None` if it is certain that nothing is."""
    result = {**one, **two}
    for name, value in two.items():
        if name in one and name in _MERGED:
            result[name] = _MERGED[name](one[name], value)
        elif name == "multipleOf" and isinstance(value, int) and isinstance(one.get(name), int):
            result[name] = math.lcm(value, one[name])
        elif name not in _OF_PROPERTIES and one.get(name, value) != value:
            raise Refused(f"says {name!r} in two ways: {one[name]!r} and {value!r}.")
    _merge_properties(result, one, two)
    if "prefixItems" in result and ("prefixItems" in one) != ("prefixItems" in two):
        short, long = (one, two) if "prefixItems" in two else (two, one)
        if "items" in short:
            result["prefixItems"] = [{"allOf": [x, short["items"]]} for x in long["prefixItems"]]
            result["items"] = {"allOf": [short["items"], long.get("items", True)]}
    low = max(result.get("minimum", -math.inf), result.get("exclusiveMinimum", -math.inf))
    high = min(result.get("maximum", math.inf), result.get("exclusiveMaximum", math.inf))
    kinds = result.get("type")
    if kinds == [] or result.get("enum") == []:
        return None
    return None if kinds and set(kinds) <= {"integer", "number"} and low > high else result


def _merge_properties(result: dict, one: dict, two: dict) -> None:
    """Puts together what two schemas say of properties: each speaks of those it does not name."""
    for this, other in ((one, two), (two, one)):
        patterns = set(this.get("patternProperties", ())) - set(other.get("patternProperties", ()))
        if patterns and other.get("additionalProperties", True) is not True:
            raise Refused(
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
            elif not any(re.search(p, name) for p in each.get("patternProperties", ())):
                parts.append(each.get("additionalProperties", True))
        names[name] = _all(parts)
    if names:
        result["properties"] = names


def _all(schemas: list) -> dict | bool:
    """The schema of what is valid for all."""
    schemas = [schema for schema in schemas if schema is not True]
    if False in schemas:
        return False
    return {"allOf": schemas} if len(schemas) > 1 else schemas[0] if schemas else True


def _product(one: list[dict], two: list[dict]) -> list[dict]:
    if len(one) * len(two) > _MOST:
        raise Refused(f"has more than {_MOST} alternatives in one place.")
    pairs = (merged(a, b) for a in one for b in two)
    return [each for each in pairs if each is not None]


def _common(one: list[str], two: list[str]) -> list[str]:
    """The types of what has one of each list: an integer is a number."""
    numeric = {"integer", "number"}
    pairs = [(a, b) for a in one for b in two if a == b or {a, b} == numeric]
    return list(dict.fromkeys(a if a == b else "integer" for a, b in pairs))


def _in_both(one: list, two: list) -> list:
    known = set(map(_canonical, two))
    return [value for value in one if _canonical(value) in known]


def _canonical(value: Any) -> str:
    """The same text for values that JSON does not tell apart: 1.0 is 1, but true is not."""
    if isinstance(value, dict):
        return json.dumps({name: _canonical(each) for name, each in sorted(value.items())})
    if isinstance(value, list):
        return json.dumps([_canonical(each) for each in value])
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value)


_OF_PROPERTIES = ("properties", "additionalProperties", "patternProperties")
# What holds where each of two schemas says something.
_MERGED = {
    **dict.fromkeys(_HIGHER, max),
    **dict.fromkeys(_LOWER, min),
    "type": _common,
    "enum": _in_both,
    "refs": operator.add,
    "patterns": operator.add,
    "required": lambda one, two: list(dict.fromkeys([*one, *two])),
    "uniqueItems": operator.or_,
    "items": lambda one, two: {"allOf": [one, two]},
    "propertyNames": lambda one, two: {"allOf": [one, two]},
}
