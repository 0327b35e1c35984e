"""Validation of the values in a schema's `enum` against the rest of the schema."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from keras_transformer.generation.constraints.byte_automaton import UnsupportedPattern
from keras_transformer.generation.constraints.json_patterns import is_found
from keras_transformer.generation.constraints.json_reading import Read, Schema

# Limit on the nesting of a value: jsonschema recurses several times for each level.
_MOST_LEVELS = 24


def validation(read: Read, schema: Schema) -> Callable[[Any], bool]:
    """Return a function that tells whether a value is valid for a part of a schema.

    It uses jsonschema, but matches patterns with automata and resolves references only among the
    definitions.
    """
    import jsonschema
    from referencing import Registry

    if isinstance(schema, bool):
        return lambda value: schema
    if read.has_loop:
        raise UnsupportedPattern(
            "refers to itself for one and the same value: no value would be validated."
        )
    # The values of each `enum`, by the id of its list. Keeping the list keeps its id unique.
    known: dict[int, tuple[list, set[str]]] = {}

    def enum(validator: Any, values: list, instance: Any, schema: dict) -> Iterator[Any]:
        # jsonschema itself would compare with each value in turn.
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
            raise UnsupportedPattern(
                f"has a value of more than {_MOST_LEVELS} levels beside other keywords."
            )
        return validator.is_valid(value)

    return is_valid


def canonical(value: Any) -> str:
    """Return the same text for equal JSON values: 1.0 equals 1, but true does not."""
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
