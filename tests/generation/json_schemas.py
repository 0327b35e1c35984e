"""Schemas of JSON that texts are generated for."""

_NAME = {"type": "string", "pattern": "^[A-Z][a-z]{1,8}$"}
_POINT = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
_TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer", "minimum": 0, "maximum": 9},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["value"],
        }
    },
}
SCHEMAS = [
    {"type": "null"},
    {"type": "boolean"},
    {"type": "integer"},
    {"type": "integer", "minimum": 3, "maximum": 7},
    {"type": "integer", "minimum": -17, "exclusiveMaximum": 1234},
    {"type": "integer", "exclusiveMinimum": 999},
    {"type": "integer", "maximum": -10},
    {"type": "integer", "multipleOf": 7, "minimum": -100, "maximum": 1000},
    {"type": "number"},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": 2.25},
    {"type": "number", "minimum": 99.95},
    {"type": "number", "maximum": -1e-3},
    {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5},
    {"type": "string"},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "maxLength": 100_000},
    {"type": "string", "pattern": "^[a-z]+$"},
    {"type": "string", "pattern": "a.b"},
    {"type": "string", "pattern": '^\\d{2}"\\\\x|[\\n\\t]end$'},
    {"type": "string", "pattern": "^\\w+$", "minLength": 3, "maxLength": 5},
    {"type": "string", "pattern": "^(https?)://[^\\s/]+/\\S*$"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "email", "maxLength": 20},
    {"type": "string", "format": "uuid"},
    {"type": ["string", "null", "integer"], "maxLength": 3, "minimum": 5},
    {"enum": ["red", 'say "hi"', 3, None, True, [1, {"a": "\n"}], {"k": []}, 1.5, "é日本"]},
    {"enum": ["a", "bb", 3, 40], "type": "string", "minLength": 2},
    {"const": {"a": [1, 2], "b": "c"}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 2},
    {"type": "array", "prefixItems": [{"type": "boolean"}, _NAME], "items": {"type": "null"}},
    {"type": "array", "prefixItems": [{"type": "integer"}], "items": False, "minItems": 1},
    {"type": "array", "items": {"type": "array", "items": _POINT, "maxItems": 2}, "minItems": 2},
    {"type": "array", "maxItems": 0},
    {"type": "array", "minItems": 2},
    {"type": "object"},
    {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3},
    {"type": "object", "additionalProperties": False},
    {"type": "object", "propertyNames": {"pattern": "^[a-c]{1,3}$"}, "minProperties": 1},
    {
        "type": "object",
        "patternProperties": {"^n_": {"type": "number", "minimum": 0}},
        "additionalProperties": False,
    },
    {"properties": {"a": _NAME, "b": {"enum": [1, 2]}, "c": _POINT}, "required": ["c", "d"]},
    {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in "abcd"},
        "minProperties": 2,
        "maxProperties": 3,
        "required": ["c"],
    },
    {
        "type": "object",
        "properties": {
            "name": _NAME,
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
            "home": {
                "type": "object",
                "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "at": _POINT},
                "required": ["zip"],
            },
        },
        "required": ["name", "home"],
        "additionalProperties": False,
    },
    {"anyOf": [{"type": "integer", "maximum": 3}, {"type": "string", "maxLength": 2}, _POINT]},
    {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "circle"}, "r": {"type": "number", "minimum": 0}},
                "required": ["kind", "r"],
            },
            {
                "type": "object",
                "properties": {
                    "kind": {"const": "box"},
                    "sides": {"type": "array", "items": _POINT},
                },
                "required": ["kind", "sides"],
            },
        ]
    },
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "additionalProperties": False,
    },
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
            {"properties": {"a": {"type": "integer", "minimum": 1}, "b": _NAME}},
            {"required": ["b"]},
        ]
    },
    _TREE,
    {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
    },
    {},
    True,
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"pair": {"type": "array", "items": [_NAME, {"type": "integer"}]}},
        "type": "object",
        "properties": {'quoted "key"\n': {"$ref": "#/definitions/pair"}, "é": {"const": None}},
        "required": ['quoted "key"\n'],
    },
    {
        "title": "invoice",
        "type": "object",
        "properties": {
            "id": {"type": "string", "format": "uuid"},
            "status": {"enum": ["open", "paid", "void"], "default": "open"},
            "lines": {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "items": {
                    "type": "object",
                    "properties": {
                        "what": {"type": "string", "minLength": 1, "maxLength": 10},
                        "count": {"type": "integer", "exclusiveMinimum": 0, "maximum": 99},
                        "price": {"type": "number", "minimum": 0, "exclusiveMaximum": 1000},
                        "paid": {"type": ["boolean", "null"]},
                    },
                    "required": ["what", "count", "price"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["id", "status", "lines"],
    },
]
