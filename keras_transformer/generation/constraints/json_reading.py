"""Conversion of JSON Schemas of every draft to one form, from which automata are built.

It is the form of draft 2020-12 with only the keywords that constrain a value: annotations are
dropped, and each `$ref` names one of the `definitions`, which are kept beside the schema.
References are resolved within the schema alone. Nothing is retrieved from the network or files.

Source: JSON Schema, drafts 3 to 2020-12, https://json-schema.org/specification-links.
"""

import functools
import math
from collections.abc import Callable, Iterable
from re import _parser as parser
from re import error as PatternError
from typing import Any, NamedTuple
from urllib.parse import unquote

from keras_transformer.generation.constraints.byte_automaton import UnsupportedPattern
from keras_transformer.support.checking import MOST_DIGITS, shorten

Schema = dict[str, Any] | bool
Place = tuple[str | int, ...]

# Limits on the nesting of a schema and on the number of values in it.
_MOST_LEVELS, _MOST_VALUES = 128, 200_000
_VAST = 10**MOST_DIGITS
# Most parts of a path that a message shows.
_MOST_PARTS = 12
# Keywords whose values are kept unchanged.
_PLAIN = {
    "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "maxItems", "maxLength",
    "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf",
    "required", "uniqueItems",
}  # fmt: skip
_ONE = {"additionalProperties", "items", "propertyNames"}
_LISTS = {"allOf", "anyOf", "oneOf", "prefixItems"}
_MAPS = {"patternProperties", "properties"}
# Keywords that apply a schema to the same value.
_IN_PLACE = {
    "$dynamicRef", "$recursiveRef", "$ref", "allOf", "anyOf", "dependentSchemas", "if", "oneOf",
}  # fmt: skip


class Read(NamedTuple):
    """A schema in the common form.

    Fields:
        schema: dict or bool. Each dict has its path in the given schema, a tuple, as `$comment`.
        definitions: dict from names to schemas; `#/$defs/NAME` refers to one.
        validator: class of jsonschema that validates values, with the types of the draft.
        has_loop: bool, whether a definition refers to itself for the same value.
    """

    schema: Schema
    definitions: dict[str, Schema]
    validator: Any
    has_loop: bool


def read_schema(schema: Schema) -> Read:
    """Convert a JSON Schema. Raises `UnsupportedPattern` if it is invalid or unsupported."""
    try:
        import jsonschema
        from referencing.jsonschema import specification_with
    except ImportError as error:
        raise ImportError(
            "JSON Schemas need the package jsonschema, which is not installed. "
            'Install it with: pip install "keras_transformer[generation]"'
        ) from error
    _check_values(schema)
    return _Reading(jsonschema, specification_with).read(schema)


def _check_values(schema: Any) -> None:
    """Refuse a schema that is too large, or has strings that UTF-8 cannot encode."""
    waiting, count = [((), schema)], 0
    while waiting:
        place, value = waiting.pop()
        if len(place) > _MOST_LEVELS:
            raise UnsupportedPattern(f"nests too deeply: it may have {_MOST_LEVELS} levels.", place)
        inner: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, dict):
            inner = value.items()
            for name in value:
                _check_text(name, place)
        elif isinstance(value, list):
            inner = enumerate(value)
        elif isinstance(value, int):
            if abs(value) >= _VAST:
                raise UnsupportedPattern(
                    f"has an integer of more than {MOST_DIGITS:,} digits.", place
                )
        elif not isinstance(value, float) and value is not None:
            _check_text(value, place)
        elif isinstance(value, float) and not math.isfinite(value):
            raise UnsupportedPattern(f"has the number {value}, which JSON cannot hold.", place)
        count += 1 if not inner else len(value)
        if count > _MOST_VALUES:
            raise UnsupportedPattern(f"has more than {_MOST_VALUES:,} values in it.")
        waiting += (((*place, name), each) for name, each in inner)


def _check_text(text: Any, place: Place) -> None:
    if not isinstance(text, str):
        raise UnsupportedPattern(f"must hold JSON values only, and has {shorten(text)}.", place)
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise UnsupportedPattern(f"has half of a surrogate pair: {shorten(text)!a}.", place)


def where_of(place: Place | None) -> str:
    """Describe a path in a schema for a message, with a trailing space."""
    if not place:
        return ""
    parts = [f"[{shorten(part, 40)}]" for part in place]
    parts = parts if len(parts) <= _MOST_PARTS else [*parts[:4], "[...]", *parts[-4:]]
    return f"at schema{''.join(parts)} "


class _Scope(NamedTuple):
    """The context of a schema: its draft, and the base of its references."""

    validator: Any
    specification: Any
    resolver: Any

    @property
    def is_old(self) -> bool:
        """Whether keywords beside a `$ref` are ignored, as up to draft 7."""
        return not {"$dynamicRef", "$recursiveRef"} & self.validator.VALIDATORS.keys()


class _Reading:
    """Reads one schema and the definitions that its references lead to."""

    def __init__(self, jsonschema: Any, specification_with: Callable):
        self.jsonschema, self.specification_with = jsonschema, specification_with
        self.definitions: dict[str, Schema] = {}
        self._names: dict[int, str] = {}  # names of definitions, by the id of their schema
        self._waiting: list[tuple[Any, _Scope, Place, str]] = []

    def read(self, schema: Schema) -> Read:
        draft = self._draft(schema, self.jsonschema.Draft202012Validator, ())
        self._check(draft, schema, ())
        specification = self._specification(draft)
        # A registry of the drafts alone, which retrieves nothing.
        registry = self.jsonschema.validators.SPECIFICATIONS
        resolver = registry.resolver_with_root(specification.create_resource(schema))
        read = self._schema(schema, _Scope(draft, specification, resolver), ())
        while self._waiting:
            target, scope, place, name = self._waiting.pop()
            self.definitions[name] = self._schema(target, scope, place)
        validator = self.jsonschema.validators.extend(
            self.jsonschema.Draft202012Validator, type_checker=draft.TYPE_CHECKER
        )
        return Read(read, self.definitions, validator, _has_loop(self.definitions))

    def _draft(self, schema: Schema, default: Any, place: Place) -> Any:
        """Return the validator class of the draft that a schema names, or `default`."""
        if not isinstance(schema, dict) or "$schema" not in schema:
            return default
        if not isinstance(schema["$schema"], str):
            raise UnsupportedPattern(
                f"must name its draft by a URI, and names {shorten(schema['$schema'])}.",
                (*place, "$schema"),
            )
        known = self.jsonschema.validators.validator_for({"$schema": schema["$schema"]}, None)
        return known or default

    def _specification(self, draft: Any) -> Any:
        return self.specification_with(draft.ID_OF(draft.META_SCHEMA))

    def _check(self, draft: Any, schema: Any, place: Place) -> None:
        """Refuse keywords that the draft forbids; nested schemas are checked on their own."""
        for error in _own_keywords(draft).iter_errors(schema):
            reason = error.message if len(error.message) < 300 else f"{error.message[:300]} ..."
            where = f"is invalid {where_of((*place, *error.absolute_path))}".rstrip()
            raise UnsupportedPattern(f"{where}: {reason}", ())

    def _schema(self, schema: Schema, scope: _Scope, place: Place) -> Schema:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise UnsupportedPattern(f"must be a schema, and is {shorten(schema)}.", place)
        draft = self._draft(schema, scope.validator, place)
        self._check(draft, schema, place)
        if draft is not scope.validator:
            scope = scope._replace(validator=draft, specification=self._specification(draft))
        try:
            resource = scope.specification.create_resource(schema)
            scope = scope._replace(resolver=scope.resolver.in_subresource(resource))
        except (ValueError, TypeError, AttributeError):
            raise UnsupportedPattern("has an `$id` or `id` that is not a URI.", place) from None
        words = {word: schema[word] for word in schema if word in draft.VALIDATORS}
        if scope.is_old and words.get("$ref") is not None:
            words = {"$ref": words["$ref"]}
        read: dict[str, Any] = {"$comment": place}
        for word, value in words.items():
            self._word(read, word, value, schema, scope, (*place, word))
        if {"anyOf", "oneOf"} & read.keys():
            # OpenAPI's readers choose an alternative by this property, even if it is not required.
            telling = schema.get("discriminator")
            name = telling.get("propertyName") if isinstance(telling, dict) else None
            if isinstance(name, str):
                read["required"] = [*read.get("required", ()), name]
        return read

    def _word(
        self, read: dict[str, Any], word: str, value: Any, schema: dict, scope: _Scope, place: Place
    ) -> None:
        """Add a keyword, converted, to the schema that has been read so far."""
        special = getattr(self, f"_word_{word.lstrip('$')}", None)
        if special is not None:
            for name, found in special(value, schema, scope, place).items():
                read[name] = read[name] + found if name in _ADDED and name in read else found
        elif word in _PLAIN:
            read[word] = value
        elif word in _ONE:
            read[word] = self._schema(value, scope, place)
        elif word in _LISTS:
            found = [self._schema(each, scope, (*place, i)) for i, each in enumerate(value)]
            read[word] = read.get(word, []) + found
        elif word in _MAPS:
            read[word] = self._map(value, scope, place)
        else:
            raise _unsupported(word, place)

    def _map(self, value: dict, scope: _Scope, place: Place) -> dict[str, Schema]:
        return {name: self._schema(each, scope, (*place, name)) for name, each in value.items()}

    def _word_ref(self, value: Any, schema: dict, scope: _Scope, place: Place) -> dict:
        if not isinstance(value, str):
            raise UnsupportedPattern(f"must be a string, and is {shorten(value)}.", place)
        try:
            found = scope.resolver.lookup(value)
        except Exception as error:  # the target may be anything, since nothing has checked it yet
            raise UnsupportedPattern(
                f"refers to {shorten(value)}, which is missing in the schema. Nothing is "
                "retrieved: put it into `$defs`, and refer to it by `#/$defs/NAME`.",
                place,
            ) from error
        target = found.contents
        if not isinstance(target, (dict, bool)):
            raise UnsupportedPattern(f"refers to {shorten(value)}, which is not a schema.", place)
        key = int(target) if isinstance(target, bool) else id(target)
        if key not in self._names:
            self._names[key] = str(len(self._names))
            inner = scope._replace(resolver=found.resolver)
            self._waiting.append((target, inner, _place_of(value), self._names[key]))
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _word_type(self, value: Any, schema: dict, scope: _Scope, place: Place) -> dict:
        kinds = [value] if isinstance(value, str) else list(value)
        if "any" in kinds:  # of draft 3
            return {}
        schemas = [each for each in kinds if isinstance(each, dict)]
        kinds = [each for each in kinds if isinstance(each, str)]
        for kind in kinds:
            if kind not in _KINDS:
                raise UnsupportedPattern(f"is not a type of JSON: {shorten(kind)}.", place)
        if not schemas:
            return {"type": kinds}
        either = [self._schema(each, scope, place) for each in schemas]
        return {"allOf": [{"anyOf": [{"type": kinds}, *either]}]}

    def _word_const(self, value: Any, schema: dict, scope: _Scope, place: Place) -> dict:
        if "enum" in schema:
            return {"allOf": [{"enum": [value]}]}
        return {"enum": [value]}

    def _word_pattern(self, value: str, schema: dict, scope: _Scope, place: Place) -> dict:
        _check_pattern(value, place)
        return {"pattern": value}

    def _word_patternProperties(self, value: dict, schema, scope: _Scope, place: Place) -> dict:
        for pattern in value:
            _check_pattern(pattern, place)
        return {"patternProperties": self._map(value, scope, place)}

    def _word_properties(self, value: dict, schema: dict, scope: _Scope, place: Place) -> dict:
        found: dict[str, Any] = {"properties": self._map(value, scope, place)}
        if "required" not in scope.validator.VALIDATORS:  # draft 3 has it in each property
            must = [x for x in value if isinstance(value[x], dict) and value[x].get("required")]
            found |= {"required": must} if must else {}
        return found

    def _word_items(self, value: Any, schema: dict, scope: _Scope, place: Place) -> dict:
        if not isinstance(value, list):
            return {"items": self._schema(value, scope, place)}
        found = {"prefixItems": [self._schema(x, scope, (*place, i)) for i, x in enumerate(value)]}
        if "additionalItems" in schema:
            other = (*place[:-1], "additionalItems")
            return {**found, "items": self._schema(schema["additionalItems"], scope, other)}
        return found

    def _word_additionalItems(self, value: Any, schema: dict, scope: _Scope, place: Place) -> dict:
        return {}  # read together with `items`, without which it has no effect

    def _word_minimum(self, value: Any, schema: dict, scope: _Scope, place: Place) -> dict:
        return {_exclusive("minimum", schema): value}

    def _word_maximum(self, value: Any, schema: dict, scope: _Scope, place: Place) -> dict:
        return {_exclusive("maximum", schema): value}

    def _word_divisibleBy(self, value: Any, schema: dict, scope: _Scope, place: Place) -> dict:
        return {"multipleOf": value}

    def _word_extends(self, value: Any, schema: dict, scope: _Scope, place: Place) -> dict:
        parts = value if isinstance(value, list) else [value]
        return {"allOf": [self._schema(each, scope, place) for each in parts]}

    def _word_dependencies(self, value: dict, schema: dict, scope: _Scope, place: Place) -> dict:
        """Convert dependencies: either a property is absent, or its dependencies hold."""
        found = []
        for name, needed in value.items():
            needed = [needed] if isinstance(needed, str) else needed
            if isinstance(needed, list):
                then: Schema = {"required": needed}
            else:
                then = self._schema(needed, scope, (*place, name))
            found.append({"anyOf": [then, {"properties": {name: False}}]})
        return {"allOf": found}

    _word_dependentRequired = _word_dependentSchemas = _word_dependencies

    def _word_unevaluatedProperties(self, value: Any, schema, scope: _Scope, place: Place) -> dict:
        if _IN_PLACE & schema.keys() and value not in (True, {}):
            raise _unsupported("unevaluatedProperties", place)
        read = self._schema(value, scope, place)
        if "additionalProperties" in schema or _IN_PLACE & schema.keys():
            return {}
        return {"additionalProperties": read}

    def _word_unevaluatedItems(self, value: Any, schema: dict, scope: _Scope, place: Place) -> dict:
        if _IN_PLACE & schema.keys() and value not in (True, {}):
            raise _unsupported("unevaluatedItems", place)
        read = self._schema(value, scope, place)
        all_items = "additionalItems" if isinstance(schema.get("items"), list) else "items"
        if all_items in schema or _IN_PLACE & schema.keys():
            return {}
        return {"items": read}


def _has_loop(definitions: dict[str, Schema]) -> bool:
    leads = {name: set(_referred(schema)) for name, schema in definitions.items()}
    while leaves := [name for name in leads if not leads[name] & leads.keys()]:
        for name in leaves:
            del leads[name]
    return bool(leads)


def _referred(schema: Schema) -> Iterable[str]:
    """Yield the definitions against which a value of this schema is validated too."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for word in ("allOf", "anyOf", "oneOf"):
            for part in schema.get(word, ()):
                yield from _referred(part)


@functools.cache
def _own_keywords(draft: Any) -> Any:
    """Return a validator of a schema's own keywords, without its nested schemas.

    It is the draft's meta-schema, relaxed to accept any nested schema of the right type: nested
    schemas are checked on their own, not again at each level.
    """
    from jsonschema.validators import SPECIFICATIONS
    from referencing import Registry

    types = draft.META_SCHEMA["type"]
    meta = SPECIFICATIONS[draft.ID_OF(draft.META_SCHEMA)]
    resolver = SPECIFICATIONS.resolver_with_root(meta)

    def flat(value: Any, resolver: Any) -> Any:
        if isinstance(value, list):
            return [flat(each, resolver) for each in value]
        if not isinstance(value, dict):
            return value
        if {"$dynamicRef", "$recursiveRef"} & value.keys() or value.get("$ref") == "#":
            return {"type": types}
        if isinstance(value.get("$ref"), str):
            found = resolver.lookup(value["$ref"])
            return flat(found.contents, found.resolver)
        return {name: flat(each, resolver) for name, each in value.items() if name != "default"}

    parts = [(meta.contents, resolver)]
    for part in meta.contents.get("allOf", ()):
        found = resolver.lookup(part["$ref"])
        parts.append((found.contents, found.resolver))
    properties = {
        name: flat(value, within)
        for contents, within in parts
        for name, value in contents["properties"].items()
    }
    return draft({"properties": properties}, registry=Registry())


# Keywords whose values are concatenated if several keywords of a schema yield them.
_ADDED = {"allOf"}
_KINDS = {"array", "boolean", "integer", "null", "number", "object", "string"}


def _exclusive(word: str, schema: dict) -> str:
    """Return the name of a bound; in draft 4 a flag beside it makes it exclusive."""
    name = f"exclusive{word.capitalize()}"
    return name if schema.get(name) is True else word


def _place_of(reference: str) -> Place:
    if not reference.startswith("#/"):
        return (reference,)
    parts = unquote(reference[2:]).split("/")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


def _check_pattern(pattern: str, place: Place) -> None:
    try:
        parser.parse(pattern)
    except PatternError as error:
        raise UnsupportedPattern(
            f"has the pattern {shorten(pattern)}, which is invalid: {error.msg}.", place
        ) from None
    except (RecursionError, OverflowError):
        raise UnsupportedPattern(
            f"has the pattern {shorten(pattern)}, which nests too deeply, or repeats too often.",
            place,
        ) from None


def _unsupported(word: str, place: Place) -> UnsupportedPattern:
    return UnsupportedPattern(
        f"has the keyword {word!r}, which is not supported: leave it out, and check the result.",
        place,
    )
