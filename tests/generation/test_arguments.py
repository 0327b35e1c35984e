"""Arguments of samplers, rules, settings and `generate`: refused, or understood as meant."""

import math

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.generation import (
    BeamSearch,
    Contrastive,
    Engine,
    Greedy,
    Random,
    Rules,
    Sampler,
    Settings,
    Speculative,
)
from keras_transformer.generation.samplers.samplers import apply_temperature
from keras_transformer.generation.scheduler import Scheduler
from tests.generation.common import decode, engine_inputs, make_backbone, make_prompts

pytestmark = pytest.mark.one_backend

FLOATS = [
    (Random, "temperature"),
    (Random, "top_p"),
    (Random, "min_p"),
    (Random, "typical_p"),
    (Speculative, "temperature"),
    (Contrastive, "penalty_alpha"),
    (BeamSearch, "length_penalty"),
    (BeamSearch, "diversity_penalty"),
    (Rules, "repetition_penalty"),
    (Rules, "presence_penalty"),
    (Rules, "frequency_penalty"),
]
INTEGERS = [
    (Random, "top_k", 3),
    (Speculative, "num_draft_tokens", 3),
    (Speculative, "max_ngram", 2),
    (Contrastive, "top_k", 3),
    (BeamSearch, "num_beams", 3),
    (BeamSearch, "num_groups", 1),
    (Rules, "no_repeat_ngram_size", 2),
    (Rules, "min_new_tokens", 2),
]


@pytest.mark.backend_independent
@pytest.mark.parametrize("kind, name", FLOATS, ids=lambda value: getattr(value, "__name__", value))
def test_numbers_are_finite_and_in_their_range(kind, name):
    for value in (math.nan, math.inf, -math.inf, "0.5", True, None, 10**400, [0.5], -1e9, 1j):
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            kind(**{name: value})


@pytest.mark.backend_independent
@pytest.mark.parametrize("kind, name, good", INTEGERS, ids=str)
def test_integers_are_integers(kind, name, good):
    for value in (-1, 1.5, float(good), "3", True, np.True_, math.nan, 2**31, 2**80, [good]):
        with pytest.raises(ValueError, match=f"`{name}` must be an integer"):
            kind(**{name: value})


@pytest.mark.backend_independent
def test_numbers_of_numpy_are_those_of_python():
    """Equal, with the same hash, and of Python's types: so they share compiled functions."""
    for kind, name, good in INTEGERS:
        for value in (np.int64(good), np.int32(good), np.array(good)):
            assert kind(**{name: value}) == kind(**{name: good})
            assert hash(kind(**{name: value})) == hash(kind(**{name: good}))
            assert type(getattr(kind(**{name: value}), name)) is int
    for kind, name in FLOATS[:-4] + FLOATS[-3:]:
        for value in (np.float32(0.5), np.float64(0.5), np.array(0.5)):
            assert kind(**{name: value}) == kind(**{name: 0.5})
            assert hash(kind(**{name: value})) == hash(kind(**{name: 0.5}))
            assert type(getattr(kind(**{name: value}), name)) is float
    assert type(Random(temperature=2).temperature) is float


@pytest.mark.backend_independent
def test_other_options_of_samplers():
    for value in (2, "always", None, 0.5):
        with pytest.raises(ValueError, match="`early_stopping` must be"):
            BeamSearch(early_stopping=value)
    assert BeamSearch(early_stopping=np.True_) == BeamSearch(early_stopping=True)


@pytest.mark.backend_independent
def test_settings():
    assert Settings(Greedy(), None, [np.int64(2)]) == Settings(Greedy(), None, (2,))
    for values, message in (
        ({"sampler": "greedy"}, "`sampler` must be a Sampler"),
        ({"end_ids": 2}, "`end_ids` must be a sequence"),
        ({"end_ids": "2"}, "`end_ids` must be a sequence"),
        ({"end_ids": [-1]}, r"`end_ids\[0\]` must be an integer of at least 0"),
        ({"pad_id": "0"}, "`pad_id` must be an integer"),
        ({"cache_dtype": "int4"}, "`cache_dtype` must be one of"),
        ({"cache_dtype": ["int8"]}, "`cache_dtype` must be one of"),
        ({"pack_weights": "no"}, "`pack_weights` must be True or False"),
        ({"guidance_scale": "2"}, "`guidance_scale` must be a number from -1000.0"),
        ({"guidance_scale": 2, "sampler": Contrastive()}, "does not go with Contrastive"),
        ({"guidance_scale": 2, "sampler": Speculative()}, r"Speculative.*Use Greedy\(\), Random"),
    ):
        with pytest.raises(ValueError, match=message):
            Settings(**{"sampler": Greedy(), **values})


@pytest.fixture(scope="module")
def engine():
    return Engine(make_backbone("decoder"))


def test_the_scheduler_and_the_engine(engine):
    settings = Settings(Random())
    for values, message in (
        ({"batch_size": 0}, "`batch_size` must be an integer of at least 1"),
        ({"batch_size": "8"}, "`batch_size` must be an integer"),
        ({"copies": 1.5}, "`copies` must be an integer"),
        ({"seed": -1}, "`seed` must be an integer from 0 to"),
        ({"seed": 2**64}, r"`seed` must be an integer from 0 to 2\*\*64 - 1"),
        ({"seed": "x"}, "`seed` must be an integer"),
        ({"share_prefix": "no"}, "`share_prefix` must be True or False"),
        ({"longest": 0}, "`longest` must be an integer of at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            Scheduler(engine, settings, None, **values)
    scheduler = Scheduler(engine, settings, None)
    for prompts, limits, message in (
        ([], [], "`prompts` must be at least one list of ids"),
        ([[3], []], [1, 1], "`prompts` must be at least one list of ids"),
        ([[3]], [1, 1], "`max_new_tokens` must have a limit for each of 1 prompts"),
        ([[3]], [0], r"`max_new_tokens\[0\]` must be an integer of at least 1"),
        ([[3]], [2**40], r"`max_new_tokens\[0\]` must be an integer from 1 to"),
    ):
        with pytest.raises(ValueError, match=message):
            scheduler.run(prompts, limits)
    inputs = engine_inputs(engine.backbone, make_prompts([2, 2]))
    with pytest.raises(ValueError, match=r"`uniforms` must have the shape \(2, 3\)"):
        engine.generate(inputs, settings, 3)
    with pytest.raises(ValueError, match="`max_new_tokens` must be an integer"):
        engine.generate(inputs, Settings(Greedy()), "3")
    guided = Settings(Greedy(), guidance_scale=2)
    with pytest.raises(ValueError, match="if and only if `inputs` hold negative prompts"):
        engine.generate(inputs, guided, 3)
    for negative in (None, [[3], []]):
        with pytest.raises(
            ValueError, match="`negative_prompts` must have a non-empty list of ids"
        ):
            Scheduler(engine, guided, None).run([[3], [4]], [1, 1], None, negative)


def test_a_function_that_gives_no_numbers(engine):
    """At the second token, in the loop; not in rows that are done."""
    inputs = engine_inputs(engine.backbone, make_prompts([2, 2]))

    def spoiled(value):
        def function(logits, tokens, counts):
            bad = ops.logical_and(counts == 1, counts < 2)[:, None, None]
            first = ops.arange(logits.shape[-1])[None, None] == 5
            return ops.where(ops.logical_and(bad, first), value, logits)

        return function

    for value, sampler in ((math.nan, Greedy()), (math.inf, BeamSearch(2))):
        settings = Settings(sampler, Rules(function=spoiled(value)))
        with pytest.raises(FloatingPointError, match="`function` of the rules .* token 2"):
            engine.generate(inputs, settings, 4)

    def spoils_the_first_row(logits, tokens, counts):
        bad = ops.logical_and(counts == 1, ops.arange(counts.shape[0]) == 0)[:, None, None]
        return ops.where(bad, math.nan, logits)

    settings = Settings(Greedy(), Rules(function=spoils_the_first_row))
    found, _ = decode(engine, inputs, settings, [1, 4])
    assert found.counts.tolist() == [[1], [4]]
    banned = Settings(Greedy(), Rules(function=spoiled(-math.inf), min_new_tokens=1))
    assert engine.generate(inputs, banned, 2).tokens[0, 0, 1] != 5
    for result in (None, 3.0, "x"):
        rules = Rules(function=lambda logits, tokens, counts, result=result: result)
        with pytest.raises(ValueError, match="`function` must return logits of the shape"):
            engine.generate(inputs, Settings(Greedy(), rules), 2)


@pytest.mark.each_backend
@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-6, 1e25, 1e300])
def test_extreme_temperatures(temperature):
    """Cold draws the likeliest and its equals, hot any token but those that are banned."""
    logits = np.array([[1.0, 2.0, -1e30, 2.0, 1.99], [-1e30, -3e4, -1e30, -1e30, -1e30]], "float32")
    scaled = ops.convert_to_numpy(apply_temperature(ops.convert_to_tensor(logits), temperature))
    chances = ops.convert_to_numpy(ops.softmax(ops.convert_to_tensor(scaled), axis=-1))
    expected = [0, 0.5, 0, 0.5, 0] if temperature < 1 else [0.25, 0.25, 0, 0.25, 0.25]
    np.testing.assert_allclose(chances, [expected, [0, 1, 0, 0, 0]], atol=1e-6)


@pytest.mark.each_backend
def test_a_negative_length_penalty_keeps_the_hypotheses(engine):
    inputs = engine_inputs(engine.backbone, make_prompts([2, 3]))
    for penalty in (-12.0, 100.0):
        found = engine.generate(inputs, Settings(BeamSearch(2, penalty), None, (4,)), 8)
        assert (found.counts > 0).all() and np.isfinite(found.scores).all()


@pytest.fixture(scope="module")
def lm():
    keras.utils.set_random_seed(0)
    tokenizer = kt.Tokenizer.train(["one two three"] * 2, vocabulary_size=300, template="start_end")
    config = kt.TransformerConfig(
        kind="decoder",
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=32,
    )
    return kt.CausalLM(kt.models.Decoder(config), tokenizer)


def test_arguments_of_generate(lm):
    for values, message in (
        ({"max_new_tokens": "4"}, "`max_new_tokens` must be an integer of at least 1"),
        ({"max_new_tokens": 2**40}, "`max_new_tokens` must be an integer from 1 to"),
        ({"max_new_tokens": np.True_}, "`max_new_tokens` must be an integer"),
        ({"batch_size": 1.5}, "`batch_size` must be an integer of at least 1"),
        ({"num_samples": "2"}, "`num_samples` must be an integer of at least 1"),
        ({"max_length": -1}, "`max_length` must be an integer of at least 1"),
        ({"seed": 2**64}, r"`seed` must be .* from 0 to 2\*\*64 - 1"),
        ({"seed": "x"}, "`seed` must be an integer from 0"),
        ({"seed": True}, "`seed` must be an integer"),
        ({"stream": "no"}, "`stream` must be True or False"),
        ({"return_details": "no"}, "`return_details` must be True or False"),
        ({"return_prompt": "no"}, "`return_prompt` must be True or False"),
        ({"verbose": "no"}, "`verbose` must be True or False"),
        ({"rules": {"min_new_tokens": 2}}, "`rules` must be"),
        ({"sampler": Greedy}, r"`sampler` is the class Greedy: give an instance, Greedy\(\)"),
        ({"sampler": Sampler()}, "Sampler does not say how tokens are chosen"),
        ({"sampler": "nucleus"}, "Unknown sampler 'nucleus'. It is 'top_p' here"),
        ({"sampler": "topk"}, "Did you mean 'top_k'"),
        ({"stop": 1.5}, "`stop` must be"),
        ({"stop": ["a", "\ud800"]}, "`stop` has half of a surrogate pair"),
        ({"negative_prompts": "two"}, "need a `guidance_scale`, the strength"),
        (
            {"guidance_scale": 2, "negative_prompts": ["a", "b"]},
            "1 prompts and 2 `negative_prompts`",
        ),
        ({"guidance_scale": 2, "negative_prompts": [[]]}, r"`negative_prompts\[0\]` is empty"),
        ({"guidance_scale": 2, "negative_prompts": [[999]]}, r"`negative_prompts\[0\]` holds ids"),
        ({"guidance_scale": 2, "sampler": "contrastive"}, "does not go with Contrastive"),
        ({"negative_prompt_ids": [3]}, "It is `negative_prompts` here"),
    ):
        with pytest.raises(ValueError, match=message):
            lm.generate("one", **{"max_new_tokens": 2, **values})
    with pytest.raises(ValueError, match="`pack_weights` must be True or False"):
        lm.compile(pack_weights="no")


def test_what_is_forced_fits_into_the_limit(lm):
    ids = lm.tokenizer.encode("one two three", special_tokens=False)
    size, end = len(ids), lm.end_ids[0]
    assert lm.generate([3], size, rules=Rules(forced_prefix=ids)) == ids
    assert lm.generate([3], size + 1, rules=Rules(forced_prefix=ids, forced_end=7)) == [*ids, 7]
    digits = lm.constraint(regex="[0-9]{3,8}")
    one, letter = (lm.tokenizer.encode(x, special_tokens=False)[-1:] for x in ("1", "a"))
    options = {"constraint": digits, "rules": Rules(forced_prefix=one)}
    assert lm.generate("one", 3, **options).strip().isdigit()
    for limit, options, message in (
        (size - 1, {"rules": Rules(forced_prefix=ids)}, f"force {size} .* is {size - 1}"),
        (size, {"rules": Rules(forced_prefix=ids, forced_end=7)}, f"force {size + 1} tokens"),
        (64, {"rules": Rules(forced_prefix=ids), "max_length": size + 1}, "raise `max_new_tokens`"),
        (4, {"rules": Rules(min_new_tokens=5)}, "`min_new_tokens` of the rules is 5, .* limit"),
        (4, {"rules": Rules(forced_prefix=[3, end])}, f"has {end}, which ends the text"),
        (size, {"rules": Rules(forced_prefix=ids), "stop": ["x", "two"]}, "has 'two', which ends"),
        (4, {"rules": Rules(forced_prefix=[3]), "stop": [3]}, "has 3, which ends the text"),
        (2, {"constraint": digits}, "shortest text of `constraint` has 3 tokens, and the limit is"),
        (9, {"constraint": digits, "rules": Rules(forced_prefix=letter)}, "No text of `const"),
        (9, {"rules": Rules(forced_prefix=letter, automaton=digits)}, "No text of `const"),
        (4, {"constraint": digits, "rules": Rules(forced_prefix=one * 5)}, "force 5 tokens"),
    ):  # fmt: skip
        for stream in False, True:
            with pytest.raises(ValueError, match=message):
                lm.generate("one", limit, stream=stream, **options)
    inputs = {"token_ids": np.array([[3]]), "padding_mask": np.ones((1, 1), bool)}
    settings = Settings(Greedy(), Rules(forced_prefix=ids))
    with pytest.raises(ValueError, match="force"):  # so for those who use the parts
        lm.engine.generate(inputs, settings, 2)
    with pytest.raises(ValueError, match="force"):
        Scheduler(lm.engine, settings, None).run([[3], [4]], [size, 2])


def test_numbers_of_numpy_in_generate(lm):
    plain = lm.generate(["one", "two"], 4, Random(top_k=5), 2, max_length=9, num_samples=2, seed=7)
    compiled = len(lm.engine._compiled)
    numbers = map(np.int64, (4, 5, 2, 9, 2, 7))
    limit, k, batch_size, max_length, num_samples, seed = numbers
    found = lm.generate(
        ["one", "two"],
        limit,
        Random(np.float32(1), k),
        batch_size,
        max_length=max_length,
        num_samples=num_samples,
        seed=seed,
    )
    assert found == plain and len(lm.engine._compiled) == compiled
    assert lm.generate("one", 2, "top_p", seed=2**64 - 1) == lm.generate(
        "one", 2, "top_p", seed=np.uint64(2**64 - 1)
    )


def test_half_a_character_is_named_as_the_user_calls_it(lm):
    texts = ["one", "two", "three", "\ud800"]
    for call, name in (
        (lambda: lm.generate(texts, 2), r"prompts\[3\]"),
        (lambda: lm.generate(np.array(texts, object), 2), r"prompts\[3\]"),
        (lambda: lm.generate("\udfff", 2), "prompts"),
        (lambda: lm.score(texts), r"texts\[3\]"),
    ):
        with pytest.raises(ValueError, match=f"^`{name}` has half of a surrogate pair"):
            call()


def test_constraints(lm):
    for choices in ("abc", b"abc", 5, {"one": 1}, [], ["one", ""], ["one", 2]):
        with pytest.raises(ValueError, match="`choices`"):
            lm.constraint(choices=choices)
    one = lm.constraint(choices=["one", "two"])
    assert lm.constraint(choices=np.array(["one", "two"])) is one
    assert lm.constraint(choices={"one", "two"}) is lm.constraint(choices=frozenset(["two", "one"]))
    for regex in (5, b"a", ["a"]):
        with pytest.raises(ValueError, match="`regex` must be a string"):
            lm.constraint(regex=regex)


def test_an_expression_of_a_translator_stands_alone():
    """A space that is allowed before it neither completes an expression nor displaces its flags."""
    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de", load_weights=False)
    with pytest.raises(ValueError, match=r"'a\)\|\(b' is invalid at position 1"):
        translator.constraint(regex="a)|(b")
    with pytest.raises(ValueError, match="`choices` must be a list"):
        translator.constraint(choices="abc")
    assert translator.constraint(regex="(?i)ja|nein").accepting.any()
