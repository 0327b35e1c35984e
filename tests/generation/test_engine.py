"""The engine: cached and compiled decoding against passes without a cache, one row at a time."""

import dataclasses
import gc
import weakref
from typing import ClassVar

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from keras import ops

from keras_transformer.generation import BeamSearch, Engine, Greedy, Settings
from keras_transformer.generation.cache import CACHE_DTYPES
from keras_transformer.kernels import programs
from keras_transformer.kernels.device import Device
from keras_transformer.kernels.programs import PROGRAMS
from keras_transformer.support.sizes import round_rows, round_size
from tests.generation.common import (
    END,
    PAD,
    Recording,
    decode,
    engine_inputs,
    found_tokens,
    make_backbone,
    make_prompts,
    on_cpu,
    on_one,
    uncached_greedy,
    uncached_logits,
    until,
)
from tests.generation.tables import TableModel
from tests.thorough import many

# The kind, the number of new tokens (above 32 the cache grows), the values of the config. On each
# backend every kind of positions, both kinds of models, and a cache that grows.
VARIANTS = [
    ("decoder", 8, {"position": "sinusoidal", "num_layers": 2, "tie_embeddings": True}),
    on_one(
        "decoder", 8, {"position": "learned", "max_sequence_length": 15, "normalize_first": True}
    ),
    ("decoder", 40, {"position": "rotary", "num_key_value_heads": 1}),
    on_one("decoder", 8, {"position": "relative", "relative_max_distance": 20}),
    ("decoder", 8, {"position": "alibi", "num_key_value_heads": 2, "window": 4}),
    on_one("seq2seq", 8, {"position": "sinusoidal", "scale_embedding": True}),
    ("seq2seq", 8, {"position": "learned", "max_sequence_length": 9, "gated": True}),
    on_one(
        "seq2seq", 8, {"position": "rotary", "num_key_value_heads": 2, "normalization": "rms_norm"}
    ),
    ("seq2seq", 40, {"position": "relative", "num_decoder_layers": 2, "relative_num_buckets": 8}),
    on_one("seq2seq", 8, {"position": "alibi", "use_bias": False, "score": "additive"}),
]


def outputs(engine, prompts, sampler, max_new_tokens=8, end_ids=(END,), **settings):
    inputs = engine_inputs(engine.backbone, prompts)
    settings = Settings(sampler, None, end_ids, PAD, **settings)
    return engine.generate(inputs, settings, max_new_tokens)


def generate(engine, prompts, sampler=None, max_new_tokens=8, end_ids=(END,)):
    """The tokens of the best hypothesis of each prompt, `(rows, max_new_tokens)`."""
    return outputs(engine, prompts, sampler or Greedy(), max_new_tokens, end_ids).tokens[:, 0]


def recorded(engine, prompts, max_new_tokens, end_ids=(), **settings):
    """The logits of every token."""
    found = outputs(engine, prompts, Recording(), max_new_tokens, end_ids, **settings)
    return found.scores[:, :max_new_tokens]


@pytest.mark.parametrize("kind, count, values", VARIANTS, ids=lambda value: str(value)[:60])
def test_every_step_equals_a_pass_without_cache(kind, count, values):
    backbone = make_backbone(kind, **values)
    prompts = make_prompts([3, 7, 1])
    logits = recorded(Engine(backbone), prompts, count)
    new = logits.argmax(axis=-1)
    expected = uncached_logits(backbone, prompts, new)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(expected.argmax(axis=-1), new)
    assert len(np.unique(new)) > 1


@pytest.fixture(scope="module")
def decoder():
    return make_backbone("decoder", position="rotary", num_key_value_heads=2, seed=3)


@pytest.fixture(scope="module")
def table():
    return TableModel(seed=3)


@pytest.fixture(scope="module")
def seq2seq():
    return make_backbone("seq2seq", seed=1)


@pytest.mark.parametrize("kind, sampler", [("decoder", Greedy()), ("seq2seq", BeamSearch(3))])
def test_a_batch_gives_what_each_prompt_gives_alone(kind, sampler, request):
    engine = Engine(request.getfixturevalue(kind))
    prompts = make_prompts([5, 2, 8, 1])
    together = generate(engine, prompts, sampler, 16)
    for prompt, row in zip(prompts, together, strict=True):
        # Padded to the same length: one compilation. The engine's caller pads, too.
        alone = engine_inputs(engine.backbone, [prompt, prompts[2]])
        alone = {name: array[:1] for name, array in alone.items()}
        found = engine.generate(alone, Settings(sampler, None, (END,), PAD), 16)
        np.testing.assert_array_equal(found.tokens[0, 0], row)
    assert len({tuple(row) for row in together}) > 1


@on_cpu
def test_rows_end_and_the_engine_stops(table):
    engine, prompts = Engine(table), make_prompts([3, 7, 1, 5])
    free = recorded(engine, prompts, 16).argmax(axis=-1)
    # An end for every row, none of them the last token.
    ends = tuple({int(row[place]) for row, place in zip(free, (2, 5, 9, 4), strict=True)})
    lengths = [min(row.tolist().index(end) for end in ends if end in row) + 1 for row in free]
    assert max(lengths) < 16 and len(set(lengths)) > 1
    tokens = generate(engine, prompts, Greedy(), 16, ends)
    for row, length, expected in zip(tokens, lengths, free, strict=True):
        assert row[:length].tolist() == expected[:length].tolist()
        assert (row[length:] == PAD).all()
    # The logits of a row's tokens, and none after its end; no step after the last end.
    made = recorded(engine, prompts, 16, ends).any(axis=-1)
    assert made.tolist() == [[step < length for step in range(16)] for length in lengths]
    inputs, settings = engine_inputs(table, prompts), Settings(Greedy(), None, ends, PAD)
    found, batch = decode(engine, inputs, settings, [16] * 4, steps=16)
    steps = int(batch.state.cache.groups[0].end) - inputs["token_ids"].shape[1]
    assert steps == max(lengths) - 1  # the first token comes of the prompt
    assert found.counts[:, 0].tolist() == lengths


@on_cpu
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="counts programs of JAX")
def test_a_cache_that_is_small_for_a_gpu_is_made_at_once(decoder, monkeypatch):
    """There is one program for prompts and one for all steps, in place of one for each size."""
    prompts, made = make_prompts([3, 7]), []
    for kind, memory in (("cpu", None), ("cuda", 80 * 2**30)):
        place = Device("jax", kind, memory)
        monkeypatch.setattr("keras_transformer.generation.engine.device", lambda place=place: place)
        before = PROGRAMS.made
        tokens = generate(Engine(decoder), prompts, Greedy(), 200, ())
        made.append((PROGRAMS.made - before, tokens.tolist()))
    assert [count for count, _ in made] == [8, 2]
    assert made[0][1] == made[1][1]


def test_fewer_tokens_are_a_beginning_of_more(table):
    engine, prompts = Engine(table), make_prompts([3, 7])
    more = generate(engine, prompts, max_new_tokens=16, end_ids=())
    assert more.shape == (2, 16)
    for count in (1, 9, 15):
        fewer = generate(engine, prompts, max_new_tokens=count, end_ids=())
        np.testing.assert_array_equal(fewer, more[:, :count])


@dataclasses.dataclass(frozen=True)
class Counting(Greedy):
    """Greedy, and counts how often Python runs it: in compiled code only while tracing."""

    calls: ClassVar[list] = []

    def advance(self, *args):
        self.calls.append(1)
        return super().advance(*args)


def test_similar_prompts_share_the_compiled_functions(table, monkeypatch):
    # On TensorFlow nothing seldom is compiled when there are many programs, as of other tests.
    monkeypatch.setattr(programs, "LEAST_PROGRAMS", 1000)
    engine, settings = Engine(table), Settings(Counting(), None, (END,), PAD)
    eager = keras.backend.backend() == "torch"  # there the first token is not of compiled code

    def calls(lengths, seed, limits):
        before = len(Counting.calls)
        inputs = engine_inputs(table, make_prompts(lengths, seed=seed))
        decode(engine, inputs, settings, limits)
        return len(Counting.calls) - before

    assert calls([5, 2], 0, [16, 16]) > eager
    # Other prompts, ends that come sooner or later, other limits.
    assert calls([5, 3], 1, [16, 16]) == eager
    assert calls([4, 5], 2, [13, 4]) == eager
    assert [round_rows(size) for size in (1, 3, 8, 9, 17, 33, 65, 1025)] == [
        1, 4, 8, 16, 24, 48, 96, 1536,
    ]  # fmt: skip


def test_new_weights_count_at_once():
    backbone = make_backbone("decoder")
    engine, prompts = Engine(backbone), make_prompts([4])
    before = generate(engine, prompts, end_ids=())
    for variable, other in zip(
        backbone.weights, make_backbone("decoder", seed=5).weights, strict=True
    ):
        variable.assign(other)
    after = generate(engine, prompts, end_ids=())
    assert (before != after).any()
    expected = uncached_logits(backbone, prompts, after).argmax(axis=-1)
    np.testing.assert_array_equal(after, expected)


def test_weights_added_later_count_too():
    backbone = make_backbone("decoder")
    engine, prompts = Engine(backbone), make_prompts([4])
    before = generate(engine, prompts, end_ids=())
    dense = backbone.decoder.blocks[0].feed_forward.output_dense
    dense.enable_lora(2)
    dense.lora_kernel_b.assign(np.random.default_rng(0).normal(size=dense.lora_kernel_b.shape))
    after = generate(engine, prompts, end_ids=())
    assert (before != after).any()
    expected = uncached_logits(backbone, prompts, after).argmax(axis=-1)
    np.testing.assert_array_equal(after, expected)


def test_half_precision():
    values = make_backbone("seq2seq")
    backbone = type(values)(values.config, dtype="mixed_bfloat16")
    for variable, value in zip(backbone.weights, values.weights, strict=True):
        variable.assign(keras.ops.cast(value, variable.dtype))
    prompts = make_prompts([4, 2])
    logits = recorded(Engine(backbone), prompts, 4)
    expected = uncached_logits(backbone, prompts, logits.argmax(axis=-1))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=0.05 * np.abs(expected).max())


# The compaction of a sliding window, of padding and of dead beams.


def end(batch):
    """The next free slot."""
    (group,) = batch.state.cache.groups.values()
    return int(group.end)


def test_a_window_shorter_than_the_output_keeps_the_cache_small():
    backbone = make_backbone("decoder", position="rotary", window=8, num_layers=2)
    engine, prompts = Engine(backbone), make_prompts([40, 3, 17])
    inputs, settings = engine_inputs(backbone, prompts), Settings(Recording(), None, (), PAD)
    found, batch = decode(engine, inputs, settings, [100] * 3, steps=16)
    new = found.tokens[:, 0]
    np.testing.assert_array_equal(found.counts[:, 0], 100)
    np.testing.assert_allclose(
        found.scores[:, :100], uncached_logits(backbone, prompts, new), rtol=0, atol=1e-4
    )
    # Room for the prompt and the first steps was enough for all 100.
    assert batch.state.cache.slots == round_size(40 + 17) == 64
    assert end(batch) <= 8 + 3 * 16
    engine.make_room(batch, 48)
    assert batch.state.cache.slots == 64 and end(batch) == 7


@on_cpu
def test_a_cache_grows_layer_by_layer_and_frees_each():
    backbone = make_backbone("decoder", num_layers=3)
    engine, inputs = Engine(backbone), engine_inputs(backbone, make_prompts([9, 5]))
    batch = engine.prefill(inputs, Settings(Greedy(), None, (), PAD), np.full((2,), 200, "int32"))
    (group,) = batch.state.cache.groups.values()
    old = [weakref.ref(x) for layer in group.layers.values() for x in layer]
    first = [np.array(ops.convert_to_numpy(keys[:, :, :9])) for keys, _ in group.layers.values()]
    slots, there = group.slots, []
    del group
    gc.collect()  # What Keras flattens is in a circle of functions.
    grow_layer = batch.compiled.grow_layer

    def noted(layer, **extra):
        there.append(sum(ref() is not None for ref in old))
        return grow_layer(layer, **extra)

    batch.compiled.grow_layer = noted
    engine.make_room(batch, 100)
    assert there == [6, 4, 2] and all(ref() is None for ref in old)
    (group,) = batch.state.cache.groups.values()
    assert group.slots > slots and list(group.layers) == [0, 1, 2]
    for (keys, values), expected in zip(group.layers.values(), first, strict=True):
        assert keys.shape == values.shape and keys.shape[2] == group.slots
        np.testing.assert_array_equal(ops.convert_to_numpy(keys[:, :, :9]), expected)


def test_padding_is_given_back_before_the_cache_grows():
    """A short prompt takes the place of a long one, and padding makes room for tokens."""
    backbone = make_backbone("decoder", position="alibi")
    engine, prompts = Engine(backbone), make_prompts([30, 2, 3])
    inputs, settings = engine_inputs(backbone, prompts[:2]), Settings(Recording(), None, (), PAD)
    limits = np.array([1, 40], "int32")
    batch = engine.prefill(inputs, settings, limits, steps=8)
    assert batch.state.cache.slots == round_size(30 + 8) == 48
    inputs = engine_inputs(backbone, prompts[2:])
    new = engine.prefill(inputs, settings, limits[1:], steps=8)
    engine.place_rows(batch, new, [0])
    assert batch.limits.tolist() == [40, 40]
    while not engine.finished(batch).all():
        engine.extend(batch, 8)
    assert batch.state.cache.slots == 48 and end(batch) < 48
    found = engine.outputs(batch)
    expected = uncached_logits(backbone, [prompts[2], prompts[1]], found.tokens[:, 0, :40])
    np.testing.assert_allclose(found.scores[:, :40], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["table", on_one("seq2seq")])
def test_beams_are_the_same_past_compactions(kind, table):
    """In a cache for a few steps, and in one for all of them."""
    values = {"position": "rotary", "num_key_value_heads": 2, "seed": 3}
    backbone = table if kind == "table" else make_backbone(kind, **values)
    engine, inputs = Engine(backbone), engine_inputs(backbone, make_prompts([5, 2, 8]))
    settings = Settings(BeamSearch(4, length_penalty=0.8), None, (END,), PAD)
    few, short = decode(engine, inputs, settings, [40, 33, 40], steps=4)
    many, whole = decode(engine, inputs, settings, [40, 33, 40], steps=64)
    assert found_tokens(few) == found_tokens(many)
    np.testing.assert_allclose(few.scores, many.scores, rtol=0, atol=1e-4)
    assert end(short) < end(whole)  # which is never compacted


# In fewer bytes: the largest difference of a logit, by the largest logit.
ERRORS = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 3e-2, "int8": 0.1}


@pytest.mark.parametrize(
    "kind, dtype",
    [
        *(("decoder", dtype) for dtype in CACHE_DTYPES if dtype != "float32"),
        on_one("decoder", "float32"),
        ("seq2seq", "int8"),
        *(on_one("seq2seq", dtype) for dtype in CACHE_DTYPES if dtype != "int8"),
    ],
)
def test_a_cache_of_fewer_bytes(kind, dtype):
    backbone = make_backbone(kind, position="rotary", num_key_value_heads=2, num_layers=2)
    prompts = make_prompts([3, 7, 1])
    found = outputs(Engine(backbone), prompts, Recording(), 40, (), cache_dtype=dtype)
    expected = uncached_logits(backbone, prompts, found.tokens[:, 0])
    error = np.abs(found.scores[:, :40] - expected).max() / np.abs(expected).max()
    assert error <= ERRORS[dtype]
    assert dtype == "float32" or error > 1e-5  # else it was not kept so


# Any prompts with any limits and ends, against greedy passes without a cache.

POOL = make_prompts([1, 2, 3, 3, 4, 5, 6, 7, 8, 8])


@pytest.fixture(scope="module", params=["table", "seq2seq"])
def pool(request):
    backbone = request.getfixturevalue(request.param)
    return Engine(backbone), uncached_greedy(backbone, POOL, 16)


@hypothesis_settings(max_examples=many(12), deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, len(POOL) - 1), st.integers(1, 16)), min_size=4, max_size=4
    ),
    end_ids=st.sampled_from([(), (5, 9, 14)]),
    steps=st.integers(1, 16),
)
def test_any_prompts_limits_and_ends(pool, rows, end_ids, steps):
    engine, greedy = pool
    inputs = engine_inputs(engine.backbone, [POOL[i] for i, _ in rows] + [POOL[-1]])
    inputs = {name: array[:4] for name, array in inputs.items()}  # all of one length
    settings = Settings(Greedy(), None, end_ids, PAD)
    limits = [limit for _, limit in rows]
    found, _ = decode(engine, inputs, settings, limits, steps=steps)
    expected = [until(greedy[i], limit, end_ids) for i, limit in rows]
    assert [row[0] for row in found_tokens(found)] == expected
    for tokens, count in zip(found.tokens[:, 0], found.counts[:, 0], strict=True):
        assert (tokens[count:] == PAD).all()


@pytest.mark.parametrize("rows", [1, on_one(2), 3, on_one(7)])
def test_any_number_of_rows(pool, rows):
    engine, greedy = pool
    inputs = engine_inputs(engine.backbone, POOL[-rows:])
    found = engine.generate(inputs, Settings(Greedy(), None, (), PAD), 16)
    assert found.tokens[:, 0].tolist() == greedy[-rows:]


def test_logits_that_are_not_numbers():
    backbone = make_backbone("decoder")
    backbone.token_embedding.embeddings.assign(
        np.where(np.arange(24)[:, None] == 7, np.nan, backbone.token_embedding.embeddings)
    )
    engine = Engine(backbone)
    with pytest.raises(FloatingPointError, match="logits of new token 1 are NaN"):
        generate(engine, [[3, 4], [5, 7]], end_ids=())
    assert generate(engine, [[3, 4]], max_new_tokens=1, end_ids=()).shape == (1, 1)


def test_logits_of_minus_infinity_are_no_numbers():
    """A float16 model that overflows gives minus infinity, as well as infinity."""
    backbone = make_backbone("decoder")
    engine = Engine(backbone)
    logits = backbone.logits

    def overflowing(states):
        found = logits(states)
        return ops.where(ops.arange(found.shape[-1]) == 3, -float("inf"), found)

    backbone.logits = overflowing
    with pytest.raises(FloatingPointError, match="logits of new token 1 are NaN or infinite"):
        generate(engine, [[3, 4]], end_ids=())
