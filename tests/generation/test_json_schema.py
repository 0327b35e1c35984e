"""Texts constrained by a JSON Schema validate, as the package jsonschema sees it."""

import json
import random
import re
import sys

import jsonschema
import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.generation import BeamSearch, Random, Rules
from keras_transformer.generation.automaton_tables import FAR, steps_to
from keras_transformer.generation.constraints import TokenAutomaton
from keras_transformer.generation.json_numbers import integers, numbers
from keras_transformer.generation.json_schema import compile_json_schema
from keras_transformer.tokenizers import Tokenizer
from tests.generation.json_schemas import SCHEMAS

TEXTS = ['{"name": "Anna", "kind": "circle", "x": 1.5, "tags": [true, null]}', "é日本 \\n \\u0001"]
pure = pytest.mark.backend_independent


def validator_of(schema):
    found = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    return found(schema)


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
        state = 0
        for byte in text.encode():
            state = automaton.transitions[state, byte] if state >= 0 else -1
        assert bool(state >= 0 and automaton.accepting[state]) is (text in accepted)


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
        ({"$ref": "#/$defs/none"}, "which there is not"),
        ({"$ref": "https://example.org/s"}, "only what begins with '#'"),
        ({"type": "number", "multipleOf": 0.3}, "`multipleOf` 0.3"),
        ({"type": "array", "items": {"type": "object"}, "minItems": 10**9}, "parts|states"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "no text matches"),
        ({"$ref": "#"}, "no text matches"),
        (False, "no text matches"),
    ],
)
def test_schemas_that_are_refused(schema, message):
    with pytest.raises(ValueError, match=message):
        TokenAutomaton.from_json_schema(schema, [bytes([byte]) for byte in range(256)])


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
