"""Random JSON Schemas of every draft: well-formed ones, and ones with anything in any place."""

import copy

from tests.generation.json_schemas import SCHEMAS

DRAFTS = {
    3: "http://json-schema.org/draft-03/schema#",
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
_NAMES = ["a", "b", "ab", "kind", "x-1", "né", "$ref", "id", "required"]
_VALUES = [
    *(None, True, False, 0, 1, -3, 1.0, 2.5, 0.1, 2**53 + 1, 1e308, "", "a", "ab", "é日", 'q"\\'),
    *([], [1], [1, "a"], {}, {"a": 1}, {"a": {"b": [None]}}),
]
_PATTERNS = [
    *("^a", "b$", "^[a-c]{1,3}$", "x|y", "\\d", "^\\w+$", "^(?!x-)", "^(?=.*a).+$", ".", "^$", "é"),
    *("^(?!a$)(?!b)[ab]*$", "[^a]", "^\\S+$", "(?i)^A$"),
]
_ANNOTATIONS = {"title": "t", "x-of": {"type": 5}, "example": "$", "discriminator": {"a": "b"}}


def draw_schema(rng):
    """A well-formed schema of one of the drafts, with references, often one without values."""
    draft = rng.choice(list(DRAFTS))
    drawing = _Drawing(rng, draft)
    schema = drawing.schema(3)
    if not isinstance(schema, dict):
        return schema
    if draft != 2020 or rng.random() < 0.3:
        schema["$schema"] = DRAFTS[draft]
    key = "$defs" if draft >= 2019 else "definitions"
    identity = "$id" if draft >= 6 else "id"
    inner = {"type": "object", key: {"c": drawing.schema(1)}, "properties": {"p": {}}}
    if rng.random() < 0.3:
        inner[identity] = "inner.json"
        inner["properties"]["p"] = {"$ref": f"#/{key}/c"}
    schema[key] = {"a": drawing.schema(1), "b": inner, "c": drawing.schema(0)}
    if rng.random() < 0.3:
        schema[identity] = "http://localhost:1/root.json"
    return schema


class _Drawing:
    def __init__(self, rng, draft):
        self.rng, self.draft = rng, draft

    def schema(self, depth):
        rng = self.rng
        if self.draft >= 6 and rng.random() < 0.04:
            return rng.random() < 0.8
        words = {}
        if rng.random() < 0.8:
            kinds = ["string", "integer", "number", "boolean", "null", "array", "object"]
            kinds = rng.sample(kinds, rng.choice([1, 1, 1, 2]))
            words["type"] = kinds[0] if len(kinds) == 1 else kinds
        for _ in range(rng.choice([0, 1, 2, 3])):
            words |= getattr(self, rng.choice(self._KEYWORDS))(depth)
        if depth and rng.random() < 0.3:
            words |= self.combined(depth)
        if rng.random() < 0.2:
            name = rng.choice(list(_ANNOTATIONS))
            words[name] = _ANNOTATIONS[name]
        return words

    _KEYWORDS = ("number", "length", "pattern", "enum", "items", "counts", "object", "object")

    def number(self, depth):
        low = self.rng.choice([-100, -2.5, -1, 0, 0.1, 3, 2**53, 1e17, -1e308])
        high = low + self.rng.choice([0, 0.5, 7, 120, 1e6])
        words = {"minimum": low, "maximum": high}
        if self.draft > 4:
            words = {self.rng.choice([x, f"exclusive{x.title()}"]): words[x] for x in words}
        else:
            words["exclusiveMinimum"] = self.rng.random() < 0.5
        if self.rng.random() < 0.3:
            words = {self.rng.choice(list(words)): low}
            words.pop("exclusiveMinimum" if self.draft <= 4 else "", None)
        if self.rng.random() < 0.2:
            name = "divisibleBy" if self.draft == 3 else "multipleOf"
            words = {name: self.rng.choice([1, 2, 7, 0.5, 2.5, 0.1, 0.01, 1e-320, 3.0])}
        return words

    def length(self, depth):
        low = self.rng.randint(0, 3)
        return self.rng.choice([{"minLength": low}, {"maxLength": low + 2},
                                {"minLength": low, "maxLength": low + 4}])  # fmt: skip

    def pattern(self, depth):
        return {"pattern": self.rng.choice(_PATTERNS)}

    def enum(self, depth):
        if self.draft >= 6 and self.rng.random() < 0.4:
            return {"const": self.rng.choice(_VALUES)}
        values = self.rng.sample(range(len(_VALUES)), self.rng.randint(1, 4))
        return {"enum": [_VALUES[place] for place in values]}

    def items(self, depth):
        inner = self.schema(depth - 1) if depth else {}
        if self.rng.random() < 0.3:
            name, rest = ("prefixItems", "items") if self.draft == 2020 else (
                "items", "additionalItems")  # fmt: skip
            return {name: [inner, {"type": "null"}], rest: self.schema(0)}
        return {"items": inner}

    def counts(self, depth):
        what = self.rng.choice(["Items", "Items", "Properties"])
        low = self.rng.randint(0, 2)
        return {f"min{what}": low, f"max{what}": low + self.rng.randint(0, 2)}

    def object(self, depth):
        rng = self.rng
        inner = [self.schema(depth - 1) if depth else {} for _ in range(3)]
        names = rng.sample(_NAMES, rng.randint(1, 3))
        words = {"properties": dict(zip(names, inner, strict=False))}
        if self.draft == 3:
            for name in names:
                if isinstance(words["properties"][name], dict) and rng.random() < 0.5:
                    words["properties"][name]["required"] = True
        elif rng.random() < 0.6:
            words["required"] = rng.sample(names, rng.randint(1, len(names)))
        if rng.random() < 0.3:
            words["additionalProperties"] = rng.choice([False, {"type": "integer"}, inner[0]])
        if rng.random() < 0.3:
            words["patternProperties"] = {rng.choice(_PATTERNS): inner[1]}
        if rng.random() < 0.2 and self.draft >= 6:
            words["propertyNames"] = {"maxLength": 3, "pattern": rng.choice(_PATTERNS)}
        if rng.random() < 0.2:
            word = "dependentRequired" if self.draft >= 2019 else "dependencies"
            words[word] = {names[0]: [rng.choice(_NAMES)]}
        if rng.random() < 0.2:
            words.pop("properties")
        return words

    def combined(self, depth):
        rng = self.rng
        if self.draft == 3:
            return {"extends": self.schema(depth - 1)}
        if rng.random() < 0.25:
            place = "$defs" if self.draft >= 2019 else "definitions"
            return {"$ref": f"#/{place}/{rng.choice('abc')}"}
        parts = [self.schema(depth - 1) for _ in range(rng.randint(1, 3))]
        return {rng.choice(["allOf", "anyOf", "anyOf", "oneOf"]): parts}


_SCHEMAS = [
    *({"type": "null"}, {"$ref": "#"}, {"minimum": 3}, {"a": 1}, {"enum": ["a", 1]}, False, {}),
    *({"required": ["a"]}, {"$ref": "http://localhost:1/"}, {"$ref": "#/$defs/node"}),
]
_STRINGS = [
    *("any", "string", "#", "#/x", "#a", "file:///etc/passwd", "http://[", "#/%", "date", "a"),
    *("(?<=a)b", "(a+)+$", "\\p{L}", *_PATTERNS, *DRAFTS.values()),
]
_MANY = [["a", "b"], ["string", "null"], ["a", "a"], _SCHEMAS, [{}], [1, 1.0], []]
_NUMBERS = [0, 1, 2, -1, 1.5, 0.1, 10**30, 1e308, True, 3.0]
# What may be the values of keywords, of which some are wrong.
_WORDS = {
    **dict.fromkeys(("type", "$ref", "$id", "id", "$schema", "$anchor", "pattern"), _STRINGS),
    **dict.fromkeys(("format", "$dynamicRef", "const", "description"), _STRINGS),
    **dict.fromkeys(("items", "additionalItems", "propertyNames", "contains", "not"), _SCHEMAS),
    **dict.fromkeys(("additionalProperties", "unevaluatedItems"), _SCHEMAS),
    **dict.fromkeys(("unevaluatedProperties", "const", "extends"), _SCHEMAS),
    **dict.fromkeys(("type", "enum", "required", "oneOf", "anyOf", "allOf", "items"), _MANY),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBERS),
    **dict.fromkeys(("multipleOf", "minLength", "maxLength", "minItems", "maxItems"), _NUMBERS),
    **dict.fromkeys(("minProperties", "maxProperties", "uniqueItems", "divisibleBy"), _NUMBERS),
    "dependentRequired": [{"a": ["b"]}, {"b": []}, {"a": {}}],
    "properties": [{"a": True}, {"$ref": {}}, {"kind": {"const": 1}}, {"a": 5}, {}],
    "patternProperties": [{"^a": {"type": "null"}}, {"(": {}}, {".": False}],
}


def spoil_schema(rng):
    """One of the schemas of the tests with parts that may be wrong, or say something else."""
    schema = copy.deepcopy(rng.choice([each for each in SCHEMAS if isinstance(each, dict)]))
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = schema
        while True:
            inner = list(at.values()) if isinstance(at, dict) else at
            inner = [each for each in inner if isinstance(each, (dict, list)) and each]
            if not inner or rng.random() < 0.3:
                break
            at = rng.choice(inner)
        word = rng.choice(list(_WORDS))
        values = _WORDS[word] if rng.random() < 0.9 else [*_VALUES, "\ud800", 10**30]
        value = copy.deepcopy(rng.choice(values))
        if isinstance(at, dict):
            at[word] = value
        else:
            at[rng.randrange(len(at))] = value
    return schema
