"""Whether a value that a JSON Schema gives is valid for another part of it."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from keras_transformer.generation.byte_automaton import Refused
from keras_transformer.generation.json_patterns import is_found
from keras_transformer.generation.json_reading import Read, Schema

# Of a value: jsonschema calls itself some times for each.
_MOST_LEVELS = 24


def validation(read: Read, schema: Schema) -> Callable[[Any], bool]:
    """Return a function that says whether a value is valid for a part of what was read.

    The package jsonschema decides, with patterns as automata, and resolves references in the
    definitions alone.
    """
    import jsonschema
    from referencing import Registry

    if isinstance(schema, bool):
        return lambda value: schema
    if read.has_loop:
        raise Refused("refers to itself for one and the same value: no value would be validated.")
    # The values of each `enum` by its identity, with the list itself, which holds on to that.
    known: dict[int, tuple[list, set[str]]] = {}

    def enum(validator: Any, values: list, instance: Any, schema: dict) -> Iterator[Any]:
        # jsonschema compares with each of them.
        if id(values) not in known:
            known[id(values)] = (values, set(map(canonical, values)))
        if canonical(instance) not in known[id(values)][1]:
            yield _error()

    keywords = {
        "enum": enum,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    kind = jsonschema.validators.extend(read.validator, keywords)
    validator = kind({**schema, "$defs": read.definitions}, registry=Registry())

    def is_valid(value: Any) -> bool:
        if _levels(value) > _MOST_LEVELS:
            raise Refused(f"has a value of more than {_MOST_LEVELS} levels beside other keywords.")
        return validator.is_valid(value)

    return is_valid


def canonical(value: Any) -> str:
    """The same text for values that JSON does not tell apart: 1.0 is 1, but true is not."""
    if isinstance(value, dict):
        return json.dumps({name: canonical(each) for name, each in sorted(value.items())})
    if isinstance(value, list):
        return json.dumps([canonical(each) for each in value])
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value)


def _levels(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list)):
        return 0
    return 1 + max(map(_levels, inner), default=0)


def _pattern(validator: Any, pattern: str, instance: Any, schema: dict) -> Iterator[Any]:
    if isinstance(instance, str) and not is_found(pattern, instance):
        yield _error()


def _pattern_properties(validator: Any, patterns: dict, instance: Any, schema: dict) -> Iterator:
    if isinstance(instance, dict):
        for pattern, inner in patterns.items():
            for name, value in instance.items():
                if is_found(pattern, name):
                    yield from validator.descend(value, inner)


def _additional_properties(validator: Any, inner: Any, instance: Any, schema: dict) -> Iterator:
    if isinstance(instance, dict):
        patterns = schema.get("patternProperties", ())
        for name in instance.keys() - schema.get("properties", {}).keys():
            if not any(is_found(pattern, name) for pattern in patterns):
                yield from validator.descend(instance[name], inner)


def _error() -> Exception:
    from jsonschema import ValidationError

    return ValidationError("")
