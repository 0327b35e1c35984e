"""Recurrent mixers: chunks against the recurrence, padding, packed documents, checks."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.config import (
    GatedDelta,
    GeneralizedDelta,
    LinearRecurrence,
    ShiftedFeedForward,
    StateSpace,
)
from keras_transformer.layers import AttentionMask
from keras_transformer.layers.mixers import (
    gated_delta,
    generalized_delta,
    linear_recurrence,
    shifted_feed_forward,
    state_space,
)
from keras_transformer.layers.mixers.causal_convolution import recent_states
from keras_transformer.layers.mixers.gated_delta import GatedDeltaRule
from keras_transformer.layers.mixers.generalized_delta import GeneralizedDeltaRule
from keras_transformer.layers.mixers.linear_recurrence import GatedLinearRecurrence, bounded_sqrt
from keras_transformer.layers.mixers.state_space import SelectiveStateSpace
from tests.layers.conftest import assert_close, from_config, numpy, random, randomize

STATES = StateSpace(num_heads=6, head_dim=3, state_dim=4, num_groups=3, chunk_size=4)
DELTA = GatedDelta(num_key_heads=2, num_value_heads=6, key_dim=5, value_dim=3, chunk_size=4)
FEATURES = DELTA.replace(decay="feature", rank=4, gate_activation="sigmoid")
LINEAR = LinearRecurrence(state_dim=12, num_heads=3, chunk_size=4)
GENERALIZED = GeneralizedDelta(head_dim=4, decay_rank=3, rate_rank=5, gate_rank=6, chunk_size=4)
MIXERS = {
    "states": (SelectiveStateSpace, STATES),
    "delta": (GatedDeltaRule, DELTA),
    "features": (GatedDeltaRule, FEATURES),
    "linear": (GatedLinearRecurrence, LINEAR),
    "generalized": (GeneralizedDeltaRule, GENERALIZED),
}
SHIFTED = (shifted_feed_forward.ShiftedFeedForward, ShiftedFeedForward(dim=12))
each = pytest.mark.parametrize("name", MIXERS)
every = pytest.mark.parametrize("name", [*MIXERS, "shifted"])


def made(name, dim=8, **values):
    layer_type, part = SHIFTED if name == "shifted" else MIXERS[name]
    layer = layer_type(part.replace(**values))
    layer.build((None, None, dim))
    return randomize(layer)


def of_states(length, seed=0):
    """Inputs of `state_space.one_step` for several tokens, and states before the first."""
    x, into, out_of = (
        random(2, length, *shape, seed=seed + i) for i, shape in enumerate(((6, 3), (3, 4), (3, 4)))
    )
    fading = -np.abs(random(2, length, 6, seed=seed + 3)) * 3
    return (x, fading, into, out_of), random(2, 6, 3, 4, seed=seed + 4)


def of_delta(length, seed=0, factors=1):
    """Inputs of `gated_delta.one_step` for several tokens, and a memory before the first."""
    query, key, value = (random(2, length, 6, n, seed=seed + i) for i, n in enumerate((5, 5, 3)))
    key = key / np.linalg.norm(key, axis=-1, keepdims=True)
    fading = -np.abs(random(2, length, 6, factors, seed=seed + 3)) * 3
    strength = np.random.default_rng(seed).uniform(0, 2, (2, length, 6)).astype("float32")
    return (query, key, value, fading, strength), random(2, 6, 5, 3, seed=seed + 4)


def of_linear(length, seed=0):
    """Inputs of `linear_recurrence.one_step` for several tokens, and states before the first."""
    factors = np.random.default_rng(seed).uniform(0, 1, (2, length, 6)).astype("float32")
    factors[0, length // 2] = 0
    return (factors, random(2, length, 6, seed=seed + 1)), random(2, 6, seed=seed + 2)


def of_generalized(length, seed=0):
    """Inputs of `generalized_delta.one_step` for several tokens, and a memory before the first."""
    query, key, value, removal = (random(2, length, 6, 4, seed=seed + i) for i in range(4))
    removal = removal / np.linalg.norm(removal, axis=-1, keepdims=True)
    fading = -np.abs(random(2, length, 6, 4, seed=seed + 4)) * 3
    rate = np.random.default_rng(seed).uniform(0, 1, query.shape).astype("float32")
    return (query, key, value, fading, removal, rate), random(2, 6, 4, 4, seed=seed + 5)


MODULES = {
    "generalized": (generalized_delta, of_generalized),
    "states": (state_space, of_states),
    "delta": (gated_delta, of_delta),
    "features": (gated_delta, functools.partial(of_delta, factors=5)),
    "linear": (linear_recurrence, of_linear),
}


def by_hand(name, given, states):
    """The recurrences as the papers write them, in float64."""
    found, states = [], states.astype("float64")
    for t in range(given[0].shape[1]):
        if name == "states":
            x, fading, into, out_of = (array[:, t].astype("float64") for array in given)
            into, out_of = (np.repeat(array, 2, axis=1) for array in (into, out_of))
            states = states * np.exp(fading)[..., None, None]
            states = states + np.einsum("bhp,bhn->bhpn", x, into)
            found.append(np.einsum("bhpn,bhn->bhp", states, out_of))
        elif name == "generalized":
            given_now = (array[:, t].astype("float64") for array in given)
            query, key, value, fading, removal, rate = given_now
            known = np.einsum("bhkv,bhk->bhv", states, removal)
            states = states * np.exp(fading)[..., None]
            states = states - np.einsum("bhk,bhv->bhkv", removal * rate, known)
            states = states + np.einsum("bhk,bhv->bhkv", key, value)
            found.append(np.einsum("bhkv,bhk->bhv", states, query))
        elif name == "linear":
            factors, added = (array[:, t].astype("float64") for array in given)
            states = factors * states + added
            found.append(states)
        else:
            query, key, value, fading, strength = (a[:, t].astype("float64") for a in given)
            states = states * np.exp(fading)[..., None]
            known = np.einsum("bhkv,bhk->bhv", states, key)
            change = strength[..., None] * (value - known)
            states = states + np.einsum("bhk,bhv->bhkv", key, change)
            found.append(np.einsum("bhkv,bhk->bhv", states, query))
    return np.stack(found, axis=1), states


@each
@pytest.mark.parametrize("length, size", [(1, 4), (4, 4), (11, 4), (23, 8), (5, 64)])
def test_chunks_and_steps_equal_the_recurrence(name, length, size):
    module, make = MODULES[name]
    given, states = make(length)
    expected, last = by_hand(name, given, states)
    tensors = [ops.convert_to_tensor(array) for array in given]
    before = ops.convert_to_tensor(states)
    found, after = module.in_chunks(*tensors, size, before)
    assert_close(found, expected.astype("float32"), atol=2e-5)
    assert_close(after, last.astype("float32"), atol=2e-5)
    steps = []
    for t in range(length):
        y, before = module.one_step(*(x[:, t : t + 1] for x in tensors), before)
        steps.append(numpy(y))
    assert_close(np.concatenate(steps, axis=1), numpy(found), atol=2e-5)
    assert_close(before, numpy(after), atol=2e-5)


@every
def test_documents_do_not_see_each_other(name):
    """Whether they end within a chunk, with one, or fill several."""
    layer, x = made(name), random(1, 23, 8)
    ends = (3, 4, 12, 13, 22, 23)
    packs = np.repeat(np.arange(6), np.diff((0, *ends)))[None]
    found = numpy(layer(x, visibility=AttentionMask(query_pack=packs)))
    for start, end in zip((0, *ends), ends, strict=False):
        # As long as the whole, so that nothing is compiled anew: a token sees its past alone.
        alone = np.pad(x[:, start:end], ((0, 0), (0, 23 - end + start), (0, 0)))
        alone = numpy(layer(alone))[:, : end - start]
        assert_close(found[:, start:end], alone, atol=1e-5)


@every
def test_padding_on_either_side(name):
    layer, x = made(name), random(2, 13, 8)
    whole = numpy(layer(x[:, 3:10]))
    mask = np.zeros((2, 13), "bool")
    mask[:, 3:10] = True
    assert_close(numpy(layer(x, mask=mask))[:, 3:10], whole, atol=1e-5)


@pytest.mark.one_backend
@each
def test_chunk_sizes_change_nothing(name):
    whole = made(name, chunk_size=64)
    x = random(2, 13, 8)
    for size in (1, 3, 13):
        other = made(name, chunk_size=size)
        other.set_weights(whole.get_weights())
        assert_close(other(x), whole(x), atol=2e-5)


@each
def test_half_precision_keeps_the_recurrence_exact(name):
    layer_type, part = MIXERS[name]
    half = layer_type(part, dtype="mixed_bfloat16")
    half.build((None, None, 8))
    whole = made(name)
    half.set_weights(whole.get_weights())
    assert half.decay.dtype == "float32"
    x = random(2, 13, 8)
    assert keras.backend.standardize_dtype(half(x).dtype) == "bfloat16"
    assert np.abs(numpy(half(x)) - numpy(whole(x))).max() < 0.1 * np.abs(numpy(whole(x))).max()


@pytest.mark.one_backend
@every
def test_the_weights_are_those_of_the_part(name):
    layer = made(name)
    part = layer.part
    sizes = {**part.sizes(8), "hidden_dim": 8}
    listed = {each.path: each.with_shape(sizes).shape for each in part.weights("m", "rms_norm")}
    found = {f"m/{'/'.join(v.path.split('/')[1:])}": tuple(v.shape) for v in layer.weights}
    assert found == listed
    again = from_config(layer)
    again.set_weights(layer.get_weights())
    x = random(1, 5, 8)
    assert_close(again(x), layer(x))


@pytest.mark.one_backend
def test_recent_states_across_calls():
    x = random(2, 9, 3)
    whole, _ = recent_states(x, 4)
    before = np.zeros((2, 3, 3), "float32")
    first, before = recent_states(x[:, :2], 4, before=before)
    padded = np.concatenate([x[:, 2:6], np.ones((2, 2, 3), "float32")], axis=1)
    mask = np.array([[True] * 4 + [False] * 2] * 2)
    second, before = recent_states(padded, 4, mask, before=before)
    third, before = recent_states(x[:, 6:], 4, before=before)
    for i in range(4):
        parts = (numpy(first[i]), numpy(second[i])[:, :4], numpy(third[i]))
        assert_close(np.concatenate(parts, axis=1), numpy(whole[i]))
    assert_close(before, x[:, -3:])


@pytest.mark.one_backend
def test_initial_gates_of_heads():
    start = keras.initializers.GlorotUniform(seed=0)
    part = LinearRecurrence(state_dim=60, num_heads=3)
    layer = GatedLinearRecurrence(part, kernel_initializer=start)
    layer.build((None, None, 8))
    kernel = numpy(layer.input_gate.kernel)
    assert kernel.shape == (3, 20, 20)
    assert np.abs(kernel[0] - kernel[1]).max() > 0.1  # also from a seed
    most = (6 / (20 + 20)) ** 0.5
    assert 0.95 * most < np.abs(kernel).max() <= most


@pytest.mark.parametrize(("length", "decay"), [(16, 3.0), (150, 3.0), (150, 0.01)])
def test_the_delta_rule_rounds_no_more_than_that_of_transformers(length, decay):
    """In float32, over one chunk and several, with memories that fade fast and hardly."""
    torch = pytest.importorskip("torch")
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule as theirs

    distances = {"ours": [], "theirs": []}
    for seed in range(8):
        (query, key, value, fading, strength), _ = of_delta(length, seed)
        query = query / np.linalg.norm(query, axis=-1, keepdims=True)
        given = (query, key, value, fading * decay / 3, strength / 2)
        expected, _ = by_hand("delta", given, np.zeros((2, 6, 5, 3)))
        found = numpy(gated_delta.in_chunks(*map(ops.convert_to_tensor, given), 64)[0])
        tensors = [torch.tensor(x) for x in given]
        tensors[0], tensors[3] = tensors[0] * 5**0.5, tensors[3][..., 0]  # it scales the queries
        distances["ours"].append(np.abs(found - expected).max())
        distances["theirs"].append(np.abs(theirs(*tensors)[0].numpy() - expected).max())
    ours, others = (np.median(x) for x in distances.values())
    assert others < 1e-5 and ours <= 1.5 * others, (ours, others)


@pytest.mark.one_backend
def test_the_linear_recurrence_equals_that_of_transformers():
    """And gradients, whose square root is bounded where a state does not fade at all."""
    torch = pytest.importorskip("torch")
    from transformers.models.recurrent_gemma import modeling_recurrent_gemma as theirs

    config = theirs.RecurrentGemmaConfig(
        hidden_size=8, lru_width=12, num_attention_heads=3, num_hidden_layers=1
    )
    block = theirs.RecurrentGemmaRecurrentBlock(config, 0)
    layer = made("linear")
    parameters = dict(block.named_parameters())
    with torch.no_grad():
        for name, dense in (
            ("linear_x", layer.input_dense),
            ("linear_y", layer.gate_dense),
            ("linear_out", layer.output_dense),
        ):
            parameters[f"{name}.weight"].copy_(torch.tensor(numpy(dense.kernel).T))
            parameters[f"{name}.bias"].copy_(torch.tensor(numpy(dense.bias)))
        for name, gate in (("input", layer.input_gate), ("recurrent", layer.recurrence_gate)):
            parameters[f"rg_lru.{name}_gate_weight"].copy_(torch.tensor(numpy(gate.kernel)))
            parameters[f"rg_lru.{name}_gate_bias"].copy_(torch.tensor(numpy(gate.bias)))
        parameters["conv_1d.weight"].copy_(torch.tensor(numpy(layer.convolution.kernel).T[:, None]))
        parameters["conv_1d.bias"].copy_(torch.tensor(numpy(layer.convolution.bias)))
        parameters["rg_lru.recurrent_param"].copy_(torch.tensor(numpy(layer.decay)))
        x = random(2, 11, 8)
        places = torch.arange(11)[None]
        expected = block(torch.tensor(x), places, None, use_cache=False)[0].numpy()
    assert_close(layer(x), expected, atol=2e-5)


@pytest.mark.parametrize("x", [0.0, 1e-8, 2e-7, 3e-7, 0.25, 1.0])
def test_the_derivative_of_the_square_root_is_bounded(x):
    expected = min(1000.0, 0.5 / max(x, 1e-12) ** 0.5)
    value, slope = gradient_of(bounded_sqrt, x)
    assert value == pytest.approx(x**0.5, rel=1e-5)
    assert slope == pytest.approx(expected, rel=1e-4)


def gradient_of(function, x):
    """The value and the derivative of a function of one number."""
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        given = torch.tensor(x, requires_grad=True)
        value = function(given)
        value.backward()
        return float(value.detach()), float(given.grad)
    if backend == "tensorflow":
        import tensorflow as tf

        given = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(given)
            value = function(given)
        return float(value), float(tape.gradient(value, given))
    import jax

    value, slope = jax.value_and_grad(function)(x)
    return float(value), float(slope)


@pytest.mark.one_backend
def test_parts_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="must be a multiple of `num_heads`, received 12 and 5"):
        LINEAR.replace(num_heads=5)
    with pytest.raises(ValueError, match="must be a multiple of `num_groups`, received 4 and 3"):
        StateSpace(num_heads=4, head_dim=2, num_groups=3)
    with pytest.raises(ValueError, match="must be a multiple of `num_key_heads`, received 4 and 3"):
        DELTA.replace(num_value_heads=4, num_key_heads=3)
    with pytest.raises(ValueError, match="`strength` must be at most 2"):
        DELTA.replace(strength=2.5)
    for layer_type, part in MIXERS.values():
        with pytest.raises(ValueError, match="sees only earlier tokens, so it is for decoders"):
            layer_type(part, causal=False)
