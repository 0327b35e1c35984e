"""Texts constrained by a JSON Schema validate, as the package jsonschema sees it."""

import datetime
import json
import random
import re
import sys
import time
from typing import Annotated, Literal

import jsonschema
import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.generation import BeamSearch, Random, Rules
from keras_transformer.generation.constraints import json_patterns
from keras_transformer.generation.constraints.automaton_tables import FAR, steps_to
from keras_transformer.generation.constraints.constraints import TokenAutomaton
from keras_transformer.generation.constraints.json_numbers import integers, numbers
from keras_transformer.generation.constraints.json_patterns import is_found, searches
from keras_transformer.generation.constraints.json_reading import read_schema
from keras_transformer.generation.constraints.json_schema import compile_json_schema
from keras_transformer.generation.constraints.json_validating import validation
from keras_transformer.tokenizers import Tokenizer
from tests.generation.drawn_schemas import DRAFTS, draw_schema, spoil_schema
from tests.generation.json_schemas import SCHEMAS
from tests.thorough import many

TEXTS = ['{"name": "Anna", "kind": "circle", "x": 1.5, "tags": [true, null]}', "é日本 \\n \\u0001"]
pure = pytest.mark.backend_independent


def validator_of(schema):
    found = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    return found(schema)


def accepts(automaton, text):
    state = 0
    for byte in text.encode():
        state = automaton.transitions[state, byte] if state >= 0 else -1
    return bool(state >= 0 and automaton.accepting[state])


def nested(levels):
    schema = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def walk(transitions, accepting, random_of, limit):
    """Columns of a table to an end, drawn one after the other, as few as can be from a limit on."""
    steps = steps_to(transitions, accepting)
    state, columns = 0, []
    while True:
        ways = np.flatnonzero(transitions[state] >= 0).tolist()
        ways = [c for c in ways if steps[transitions[state, c]] < FAR]
        if accepting[state] and (not ways or len(columns) > limit or random_of.random() < 0.2):
            return columns
        if len(columns) > limit:
            ways = [min(ways, key=lambda c: steps[transitions[state, c]])]
        columns.append(random_of.choice(ways))
        state = transitions[state, columns[-1]]


@pure
@pytest.mark.parametrize("place", range(len(SCHEMAS)))
def test_what_an_automaton_accepts_validates(place):
    automaton, random_of = compile_json_schema(SCHEMAS[place]), random.Random(place)
    validator = validator_of(SCHEMAS[place])
    for limit in (0, 5, 20, 60, 200) * 6:
        text = bytes(map(int, walk(automaton.transitions, automaton.accepting, random_of, limit)))
        validator.validate(json.loads(text.decode()))


@pure
def test_numbers_are_those_within_the_bounds():
    random_of = random.Random(0)
    for _ in range(60):
        low, high = sorted(random_of.randint(-1200, 1200) for _ in range(2))
        schema = {
            random_of.choice(["minimum", "exclusiveMinimum"]): low / random_of.choice([1, 2, 8]),
            random_of.choice(["maximum", "exclusiveMaximum"]): high / random_of.choice([1, 2, 8]),
        }
        pattern, validator = integers(schema), validator_of(schema)
        for number in range(-1300, 1300):
            found = pattern is not None and re.fullmatch(pattern, str(number)) is not None
            assert found == validator.is_valid(number)
        pattern = numbers(schema)
        for edge in schema.values():
            for text in (f"{edge + step:.6f}" for step in (0, 1e-6, -1e-6, 0.5, -0.01, 3)):
                found = pattern is not None and re.fullmatch(pattern, text) is not None
                assert found == validator.is_valid(float(text)) or text == "-0.000000"


@pure
@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        ({"type": "string", "pattern": '^["\\\\\n]+$'}, ['"\\"\\\\\\n"'], ['"""', '"\n"', '""']),
        ({"type": "string", "pattern": "^.$"}, ['"日"', '"\\\\"', '"\\u0001"'], ['"\\n"', '"ab"']),
        ({"type": "string", "pattern": "\\d"}, ['"a1b"', '"7"'], ['"٣"', '"a"']),
        ({"type": "string", "maxLength": 1}, ['"🙂"', '"\\t"', '""'], ['"ab"', '"\x7f\x7f"']),
        ({"type": "integer", "multipleOf": 4}, ["0", "-12", "100"], ["2", "04", "1.0", ""]),
        ({"enum": ["é", 1.5, None]}, ['"é"', "1.5", "null"], ["1", '"e"', "1.50"]),
        ({"type": "array", "items": {"const": 1}}, ["[]", "[1, 1,1]"], ["[1,]", "[ 1]", "[1"]),
        (
            {"properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["b"]},
            ['{"b": 2}', '{"a":1, "b":2}'],
            ['{"a": 1}', "{}", '{"b": 2, "a": 1}', '{"b": 2,}', '{"b": 2, "c": 3}'],
        ),
    ],
)
def test_which_texts_are_accepted(schema, accepted, refused):
    automaton = compile_json_schema(schema)
    for text in [*accepted, *refused]:
        assert accepts(automaton, text) is (text in accepted)


@pure
@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "strin"}, r"invalid at schema\['type'\]: 'strin'"),
        ({"type": "string", "pattern": "(a"}, "invalid"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
        ({"not": {"type": "null"}}, "keyword 'not'"),
        ({"type": "array", "uniqueItems": True, "minItems": 2}, "`uniqueItems`"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "`oneOf`"),
        ({"$ref": "#/$defs/none"}, "which is missing"),
        ({"$ref": "https://example.org/s"}, "'https://example.org/s', which is missing in the"),
        ({"type": "number", "multipleOf": 0.3}, "`multipleOf` 0.3"),
        ({"type": "array", "items": {"type": "object"}, "minItems": 10**9}, "parts|states"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "no text matches"),
        ({"$schema": 5}, r"at schema\['\$schema'\] must name its draft by a URI, and names 5"),
        (
            {"$schema": DRAFTS[3], "type": "object", "properties": {"a": {"type": "strange"}}},
            r"at schema\['properties'\]\['a'\]\['type'\] is not a type of JSON: 'strange'",
        ),
        ({"minimum": 0, "exclusiveMinimum": True}, r"at schema\['exclusiveMinimum'\]: True"),
        ({"items": {"multipleOf": 1e-320}}, r"at schema\['items'\] has `multipleOf` 1e-320"),
        ({"items": {"minimum": 1e308}}, r"at schema\['items'\] has `minimum` 1.00e\+308"),
        ({"minLength": 1e308}, r"repeats something 1.00e\+308 times"),
        ({"minItems": 10**300}, r"repeats something 1.00e\+300 times"),
        ({"multipleOf": 10**300}, r"`multipleOf` 1.00e\+300, which may be"),
        ({"items": {"minimum": -(10**5000)}}, r"\['items'\]\['minimum'\] has an integer of more"),
        ({"const": ["\ud800"]}, r"at schema\['const'\]\[0\] has half of a surrogate pair"),
        ({"properties": {"\ud800": {}}}, r"at schema\['properties'\] has half of a surrogate"),
        (nested(300), r"at schema\['items'\].*nests too deeply: it may have 128 levels"),
        ({"enum": [float("inf")]}, r"at schema\['enum'\]\[0\] has the number inf"),
        ({"$id": 1e308}, r"at schema\['\$id'\]: 1e\+308 is not of type 'string'"),
        ({"items": {"$ref": 5}}, r"at schema\['items'\]\['\$ref'\]: 5 is not of type 'string'"),
        ({"$ref": "#/x", "x": {"a": 5, "type": 7}}, r"at schema\['x'\]\['type'\]: 7"),
        ({"$ref": "#/x", "x": [1]}, "'#/x', which is not a schema"),
        ({"$ref": "http://[", "enum": [{}]}, r"at schema\['\$ref'\] refers to 'http://\["),
        ({"items": {"pattern": "a{99999999999}"}}, r"at schema\['items'\]\['pattern'\].*too often"),
        ({"items": {"pattern": "(?<=a)b"}}, r"at schema\['items'\] uses look-ahead or look-behind"),
        (
            {"enum": [1], "items": {"$ref": "#/x"}, "x": {"allOf": [{"$ref": "#/x"}]}},
            "itself for one",
        ),
        ({"oneOf": [{"oneOf": [{"maxLength": n} for n in range(40)]}] * 40}, "of which several"),
        ({"allOf": [{"anyOf": [{"minLength": n} for n in range(400)]}] * 9}, "500 alternatives"),
        ({"$ref": "#"}, "no text matches"),
        (False, "no text matches"),
    ],
)
def test_schemas_that_are_refused(schema, message):
    with pytest.raises(ValueError, match=message):
        TokenAutomaton.from_json_schema(schema, [bytes([byte]) for byte in range(256)])


RETRIEVING = [
    {"enum": [{"a": 1}], "properties": {"a": {"$ref": "http://127.0.0.1:1/inside"}}},
    {"const": {"a": 1}, "additionalProperties": {"$ref": "file:///etc/hostname"}},
    {"enum": ["a"], "propertyNames": {"$ref": "https://example.org/x"}, "type": "string"},
    {"properties": {"a": {}}, "propertyNames": {"$ref": "file:///etc/hostname"}},
    {"oneOf": [{"const": 1}, {"$ref": "http://127.0.0.1:1/"}]},
    {"oneOf": [{"enum": [{"a": 1}]}, {"properties": {"a": {"$ref": "ftp://127.0.0.1/a"}}}]},
    {"$id": "http://127.0.0.1:1/a", "enum": [[1]], "items": {"$ref": "b"}},
    {"$schema": "http://127.0.0.1:1/a", "const": 1, "allOf": [{"$ref": "http://127.0.0.1:1/a#"}]},
    {"$schema": "file:///etc/hostname", "properties": {"a": {"$dynamicRef": "file:///etc/x#a"}}},
    {"$schema": DRAFTS[2019], "enum": [1], "items": {"$recursiveRef": "http://127.0.0.1:1/"}},
    {"$schema": DRAFTS[4], "id": "file:///etc/", "enum": [[1]], "items": {"$ref": "hostname"}},
    {"$schema": DRAFTS[3], "extends": {"$ref": "file:///etc/hostname"}, "type": "object"},
    {"enum": [1], "contains": {"$ref": "file:///a"}, "not": {"$ref": "file:///a"}},
    {"type": "array", "uniqueItems": True, "items": {"enum": [{}], "required": ["/etc/hostname"]}},
    *SCHEMAS[-8:],
]


@pure
def test_no_schema_opens_a_connection_or_a_file(monkeypatch):
    for schema in RETRIEVING[-8:]:
        compile_json_schema(schema)  # whatever is imported late is imported
    opened = []

    def watch(event, arguments):
        if event in ("open", "socket.connect", "socket.getaddrinfo", "urllib.Request"):
            opened.append((event, arguments))

    watching = [True]
    sys.addaudithook(lambda event, arguments: watching and watch(event, arguments))
    refused = 0
    for place, schema in enumerate([*RETRIEVING, *map(_spoiled, range(100))]):
        try:
            compile_json_schema(schema)
        except ValueError:
            refused += 1
        assert not opened, (place, schema, opened)
    watching.clear()  # a hook cannot be taken away
    assert refused > len(RETRIEVING) - 10


def _spoiled(seed):
    return spoil_schema(random.Random(seed))


@pure
@pytest.mark.parametrize("draw", [draw_schema, spoil_schema])
def test_what_is_accepted_of_any_schema_validates(draw):
    """A schema is refused by a ValueError, or each text of its automaton validates."""
    accepted = 0
    for seed in range(many(2000, short=150)):
        random_of = random.Random(seed)
        schema = draw(random_of)
        try:
            automaton = compile_json_schema(schema)
        except ValueError:
            continue
        if steps_to(automaton.transitions, automaton.accepting)[0] == FAR:
            continue  # no text: a vocabulary refuses it
        accepted += 1
        for limit in (0, 5, 20, 60) * 2:
            text = walk(automaton.transitions, automaton.accepting, random_of, limit)
            found = json.loads(bytes(map(int, text)).decode())
            errors = list(validator_of(schema).iter_errors(found))
            assert not errors, (seed, schema, found, errors[0].message)
    assert accepted > seed / 5


@pure
@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        # A schema with its own `$id` is what the references in it are relative to.
        (
            {
                "$defs": {
                    "a": {"$id": "a", "$ref": "#/$defs/x", "$defs": {"x": {"const": 1}}},
                    "x": {"const": 2},
                },
                "$ref": "#/$defs/a",
            },
            [1],
            [2],
        ),
        ({"$ref": "#here", "$defs": {"x": {"$anchor": "here", "const": 1}}}, [1], [2]),
        (
            {"$schema": DRAFTS[3], "properties": {"a": {"type": "any", "required": True}}},
            [{"a": 1}, {"a": None}],
            [{}],
        ),
        (
            {"$schema": DRAFTS[3], "type": ["null", {"enum": [7]}], "extends": {"divisibleBy": 7}},
            [None, 7],
            [8, 14, "a"],
        ),
        (
            {"$schema": DRAFTS[4], "type": "integer", "minimum": 3, "exclusiveMinimum": True,
             "maximum": 5, "exclusiveMaximum": False},
            [4, 5],
            [3, 6],
        ),
        # What stands beside a `$ref` counts since draft 2019-09.
        (
            {"$schema": DRAFTS[7], "$ref": "#/definitions/x", "const": 1,
             "definitions": {"x": {"enum": [1, 2]}}},
            [1, 2],
            [3],
        ),
        ({"$ref": "#/$defs/x", "const": 1, "$defs": {"x": {"enum": [1, 2]}}}, [1], [2]),
        ({"type": "integer", "minimum": -1e308, "maximum": 1e308}, [0, -5, 10**14], []),
        ({"type": "integer", "minimum": 9007199254740993}, [9007199254740993], [9007199254740992]),
        ({"type": "integer", "multipleOf": 2.5}, [0, 5, -10], [2, 3]),
        # Words of nobody are annotations.
        (
            {"type": "null", "id": 5, "x-of": {"type": 7}, "example": [], "javaType": "a.B",
             "discriminator": {"propertyName": "k"}, "then": {"not": {}}},
            [None],
            [1],
        ),
        ({"$schema": DRAFTS[3], "const": 1, "contains": 5, "type": "null"}, [None], [1]),
        (
            {"properties": {"a": {"const": 1}, "b": {"const": 2}},
             "dependentRequired": {"a": ["b"]}},
            [{}, {"b": 2}, {"a": 1, "b": 2}],
            [{"a": 1}],
        ),
        (
            {"oneOf": [{"type": "object", "properties": {"k": {"const": k, "type": "string"}}}
                       for k in "ab"], "discriminator": {"propertyName": "k"}},
            [{"k": "a"}, {"k": "b"}],
            [{}, {"k": "c"}],
        ),
        ({"type": "string", "pattern": "^(?!a$)(?=.*b)[ab]{1,2}$"}, ["b", "ab", "bb"], ["a", "aa"]),
        (
            {"prefixItems": [{"minimum": 1}], "allOf": [{"prefixItems": [{"enum": [0, 1]}] * 2}],
             "minItems": 2, "type": "array", "items": {"maximum": 0}, "maxItems": 2},
            [[1, 0]],
            [[0, 0], [1, 1]],
        ),
        ({"enum": list(range(20_000))}, [0, 19_999], [20_000]),
    ],
)  # fmt: skip
def test_what_a_schema_means(schema, right, wrong):
    automaton = compile_json_schema(schema)
    for value in [*right, *wrong]:
        assert accepts(automaton, json.dumps(value)) is (value in right), value
        if value in right:
            validator_of(schema).validate(value)


@pure
def test_patterns_take_no_exponential_time():
    """Python's `re` takes years for one of these."""
    long, pattern = "a" * 60 + "!", "^(a+)+$"
    for schema, text in (
        ({"enum": [long, "aa"], "pattern": pattern}, '"aa"'),
        ({"const": {long: 1}, "patternProperties": {pattern: False}}, json.dumps({long: 1})),
        ({"required": [long], "patternProperties": {pattern: False}}, json.dumps({long: None})),
        ({"enum": [{long: 1}, {}], "additionalProperties": False,
          "patternProperties": {pattern: {}}}, "{}"),
        ({"properties": {long: False, "a": {"const": 1}}, "propertyNames": {"pattern": pattern}},
         '{"a": 1}'),
    ):  # fmt: skip
        assert accepts(compile_json_schema(schema), text)
        assert not accepts(compile_json_schema(schema), json.dumps(long))


@pure
def test_schemas_of_pydantic():
    pydantic = pytest.importorskip("pydantic")

    class Cat(pydantic.BaseModel):
        kind: Literal["cat"] = "cat"
        lives: int = pydantic.Field(9, ge=0, le=9)

    class Dog(pydantic.BaseModel):
        kind: Literal["dog"]
        weight: float | None = None

    class Home(pydantic.BaseModel):
        pets: list[Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]]
        owner: dict[str, int] = pydantic.Field(default_factory=dict)
        since: datetime.date = pydantic.Field(examples=["2020-01-01"])

    schema = Home.model_json_schema()
    automaton, random_of = compile_json_schema(schema), random.Random(0)
    kinds = set()
    for _ in range(60):
        text = walk(automaton.transitions, automaton.accepting, random_of, 100)
        text = bytes(map(int, text)).decode()
        validator_of(schema).validate(json.loads(text))
        kinds |= {pet.kind for pet in Home.model_validate_json(text).pets}
    assert kinds == {"cat", "dog"}


@pure
def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(ImportError, match=r"keras_transformer\[generation\]"):
        compile_json_schema({"type": "null"})


@pytest.fixture(scope="module")
def lm():
    tokenizer = Tokenizer.train(TEXTS * 4, vocabulary_size=320)
    keras.utils.set_random_seed(0)
    config = kt.TransformerConfig(
        kind="decoder",
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=32,
    )
    return kt.CausalLM(kt.models.Decoder(config), tokenizer)


@pytest.mark.one_backend
def test_generated_texts_validate(lm):
    assert len(SCHEMAS) >= 50
    for place, schema in enumerate(SCHEMAS):
        # The model has learned nothing: a text goes on until its limit makes it end.
        limit = max(30, lm.constraint(json_schema=schema).shortest + 2)
        for text in lm.generate(["a", "b"], limit, Random(), constraint=schema, seed=place):
            validator_of(schema).validate(json.loads(text))


@pytest.mark.one_backend
def test_a_text_is_complete_at_its_limit(lm):
    schema = {"type": "array", "items": {"type": "string"}, "minItems": 2}
    shortest = lm.constraint(json_schema=schema).shortest
    for sampler in ("greedy", BeamSearch(2)):
        for limit in (shortest, shortest + 1, shortest + 7):
            text = lm.generate("a", limit, sampler, constraint=schema)
            validator_of(schema).validate(json.loads(text))
    with pytest.raises(ValueError, match=f"has {shortest} tokens, and the limit is {shortest - 1}"):
        lm.generate("a", shortest - 1, constraint=schema)
    longer = lm.constraint(regex="(ab)+c")
    assert re.fullmatch("(ab)+c", lm.generate("a", 20, constraint=longer))


def test_constraints_that_are_no_constraints(lm):
    one = lm.constraint(json_schema={"enum": [1, 2]})
    assert lm.constraint(json_schema={"enum": [1, 2]}) is one
    assert lm.generate("a", constraint=one) in ("1", "2")
    with pytest.raises(ValueError, match="not both"):
        lm.generate("a", constraint=one, rules=Rules(automaton=one))
    with pytest.raises(ValueError, match="must be a JSON Schema"):
        lm.generate("a", constraint="[0-9]")
    with pytest.raises(ValueError, match="must hold JSON values"):
        lm.generate("a", constraint={"enum": [{1}]})


@pure
def test_many_values_and_patterns_take_no_square_of_their_number(monkeypatch):
    """jsonschema compares a value with each of an `enum`: 4,000 of them took minutes."""
    read = read_schema({"enum": [{"a": i, "b": [i]} for i in range(4000)], "minProperties": 2})
    is_valid, began = validation(read, read.schema), time.process_time()
    assert all(is_valid({"a": i, "b": [float(i)]}) for i in range(4000))
    assert not is_valid({"a": 1, "b": [2]}) and not is_valid({"a": True, "b": [1]})
    assert time.process_time() - began < 20

    patterns = [f"^{i:03}$" for i in range(300)]
    with searches():
        found = [[is_found(pattern, f"{i:03}") for pattern in patterns] for i in range(2)]
        assert np.array_equal(found, np.eye(300, dtype=bool)[:2])
        assert (
            len(json_patterns._OF_THIS_SCHEMA.get().automata) == 300
        )  # none of them was made twice
    monkeypatch.setattr(json_patterns, "_MOST_PATTERNS", 3)
    monkeypatch.setattr(json_patterns, "_MOST_SEARCHES", 8)
    for schema, message in (
        ({"patternProperties": dict.fromkeys("abcd", True)}, "more than 3 patterns: give it fewer"),
        ({"patternProperties": {"a": True}, "required": list("abcdefghi")}, "more than 8 times"),
    ):
        with pytest.raises(ValueError, match=message):
            compile_json_schema({"type": "object", "properties": {"x": True}, **schema})
