"""The engine: cached and compiled decoding against passes without a cache, one row at a time."""

import dataclasses
from typing import ClassVar

import keras
import numpy as np
import pytest

from keras_transformer.generation import BeamSearch, Engine, Greedy
from keras_transformer.generation.engine import round_up
from tests.generation.common import (
    END,
    PAD,
    Recording,
    engine_inputs,
    make_backbone,
    make_prompts,
    uncached_logits,
)

# The kind, the number of new tokens (above 32 the cache grows), the values of the config.
VARIANTS = [
    ("decoder", 8, {"position": "sinusoidal", "num_layers": 2, "tie_embeddings": True}),
    ("decoder", 8, {"position": "learned", "max_sequence_length": 15, "normalize_first": True}),
    ("decoder", 40, {"position": "rotary", "num_key_value_heads": 1}),
    ("decoder", 8, {"position": "relative", "relative_max_distance": 20}),
    ("decoder", 8, {"position": "alibi", "num_key_value_heads": 2, "window": 4}),
    ("seq2seq", 8, {"position": "sinusoidal", "scale_embedding": True}),
    ("seq2seq", 8, {"position": "learned", "max_sequence_length": 9, "gated": True}),
    ("seq2seq", 8, {"position": "rotary", "num_key_value_heads": 2, "normalization": "rms_norm"}),
    ("seq2seq", 40, {"position": "relative", "num_decoder_layers": 2, "relative_num_buckets": 8}),
    ("seq2seq", 8, {"position": "alibi", "use_bias": False, "score": "additive"}),
]


def generate(engine, prompts, sampler=None, max_new_tokens=8, end_ids=(END,)):
    inputs = engine_inputs(engine.backbone, prompts)
    return engine.generate(inputs, sampler or Greedy(), max_new_tokens, end_ids, PAD)


@pytest.mark.parametrize("kind, count, values", VARIANTS, ids=lambda value: str(value)[:60])
def test_every_step_equals_a_pass_without_cache(kind, count, values):
    backbone = make_backbone(kind, **values)
    prompts = make_prompts([3, 7, 1])
    logits = generate(Engine(backbone), prompts, Recording(), count, end_ids=())
    new = logits.argmax(axis=-1)
    expected = uncached_logits(backbone, prompts, new)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(expected.argmax(axis=-1), new)
    assert len(np.unique(new)) > 1


@pytest.fixture(scope="module")
def decoder():
    return make_backbone("decoder", position="rotary", num_key_value_heads=2, seed=3)


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
        np.testing.assert_array_equal(engine.generate(alone, sampler, 16, (END,), PAD)[0], row)
    assert len({tuple(row) for row in together}) > 1


def test_rows_end_and_the_engine_stops(decoder):
    engine, prompts = Engine(decoder), make_prompts([3, 7, 1, 5])
    free = generate(engine, prompts, Recording(), 16, end_ids=()).argmax(axis=-1)
    # An end for every row, none of them the last token.
    ends = tuple({int(row[place]) for row, place in zip(free, (2, 5, 9, 4), strict=True)})
    lengths = [min(row.tolist().index(end) for end in ends if end in row) + 1 for row in free]
    assert max(lengths) < 16 and len(set(lengths)) > 1
    tokens = generate(engine, prompts, Greedy(), 16, ends)
    for row, length, expected in zip(tokens, lengths, free, strict=True):
        assert row[:length].tolist() == expected[:length].tolist()
        assert (row[length:] == PAD).all()
    steps = generate(engine, prompts, Recording(), 16, ends).any(axis=(0, 2))
    assert steps.tolist() == [step < max(lengths) for step in range(16)]


def test_fewer_tokens_are_a_beginning_of_more(decoder):
    engine, prompts = Engine(decoder), make_prompts([3, 7])
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


def test_similar_prompts_share_the_compiled_functions(decoder):
    if keras.backend.backend() == "torch":
        pytest.skip("runs step by step, and compiles nothing")
    engine = Engine(decoder)
    generate(engine, make_prompts([5, 2]), Counting(), 16)
    traces = len(Counting.calls)
    assert traces
    # Other prompts, ends that come sooner or later, other numbers of the same step of sizes.
    generate(engine, make_prompts([5, 3], seed=1), Counting(), 16)
    generate(engine, make_prompts([4, 5], seed=2), Counting(), 13)
    assert len(Counting.calls) == traces
    assert [round_up(size) for size in (1, 3, 8, 9, 17, 33, 65, 1025)] == [
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
    logits = generate(Engine(backbone), prompts, Recording(), 4, end_ids=())
    expected = uncached_logits(backbone, prompts, logits.argmax(axis=-1))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=0.05 * np.abs(expected).max())
