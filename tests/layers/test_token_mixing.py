"""A feed-forward layer over the tokens against its formula, padded, saved and counted."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import config as parts
from keras_transformer.config.structure import variable_shapes
from keras_transformer.layers import AttentionMask, FeedForward
from keras_transformer.layers.mixers.parallel import ParallelMixers
from keras_transformer.layers.mixers.token_mixing import TokenMixer
from tests.layers.conftest import assert_close, numpy, random, randomize

PART = parts.TokenMixing(length=5, dim=7, activation="relu", softmax_gate=True)


def by_formula(x, weights):
    """Both projections and the gate, for states `(..., features)`."""
    first, first_bias, last, last_bias, gate, gate_bias = weights
    outputs = np.maximum(x @ first + first_bias, 0) @ last + last_bias
    scores = np.exp(outputs @ gate + gate_bias)
    return outputs * scores / scores.sum(-1, keepdims=True)


def test_a_gated_layer_over_tokens_and_over_features():
    for layer, x in (
        (TokenMixer(PART), random(2, 5, 3)),
        (FeedForward(7, activation="relu", softmax_gate=True), random(2, 5, 3)),
    ):
        layer.build(x.shape)
        randomize(layer)
        mixes = isinstance(layer, TokenMixer)
        weights = [numpy(weight) for weight in layer.weights]
        expected = by_formula(np.swapaxes(x, 1, 2) if mixes else x, weights)
        assert_close(layer(x), np.swapaxes(expected, 1, 2) if mixes else expected, atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_groups_are_mixed_separately(interleaved):
    part = PART.replace(groups=2, interleaved=interleaved, softmax_gate_first=True)
    layer, x = TokenMixer(part), random(2, 10, 3)
    layer.build(x.shape)
    randomize(layer)
    first, first_bias, last, last_bias, gate, gate_bias = map(numpy, layer.weights)
    places = [range(0, 10, 2), range(1, 10, 2)] if interleaved else [range(5), range(5, 10)]
    expected = np.zeros_like(x)
    for group in map(list, places):
        each = np.swapaxes(x[:, group], 1, 2)
        scores = np.exp(each @ gate + gate_bias)
        each = each * scores / scores.sum(-1, keepdims=True)
        mixed = np.maximum(each @ first + first_bias, 0) @ last + last_bias
        expected[:, group] = np.swapaxes(mixed, 1, 2)
    assert_close(layer(x), expected, atol=1e-5)
    with pytest.raises(ValueError, match="for inputs of 10 tokens, received 5"):
        layer(x[:, :5])


def test_attention_beside_it_and_a_norm_of_their_sum():
    norm = parts.Norm(type="batch_norm", epsilon=1e-5)
    attention = parts.Attention(num_heads=2, head_dim=3, pattern=parts.Chunks(size=5))
    both = parts.Parallel(members=(PART.replace(groups=2), attention), norm_output=True)
    layer, x = ParallelMixers(both, norm=norm, causal=False), random(2, 10, 6)
    layer.build(x.shape)
    randomize(layer)
    mixing, attending = layer.members
    own = [numpy(attending(x[:, places])) for places in (slice(5), slice(5, 10))]
    output = numpy(mixing(x)) + np.concatenate(own, axis=1)
    gamma, beta = numpy(layer.output_norm.gamma), numpy(layer.output_norm.beta)
    mean, variance = output.mean((0, 1)), output.var((0, 1))
    expected = (output - mean) / np.sqrt(variance + 1e-5) * gamma + beta
    assert_close(layer(x, training=True), expected, atol=1e-5)


def test_padding_counts_as_zeros():
    layer, x = TokenMixer(PART), random(2, 5, 3)
    mask = np.array([[True] * 5, [True] * 3 + [False] * 2])
    layer.build(x.shape)
    randomize(layer)
    assert_close(layer(x, mask=mask), layer(x * mask[..., None]))


@pytest.mark.one_backend
def test_what_it_cannot_do():
    with pytest.raises(ValueError, match="it is for encoders: received causal=True"):
        TokenMixer(PART, causal=True)
    with pytest.raises(ValueError, match="for inputs of 5 tokens, received 4"):
        TokenMixer(PART)(random(2, 4, 3))
    packs = AttentionMask(query_pack=np.zeros((1, 5), "int32"))
    with pytest.raises(ValueError, match="would mix packed documents"):
        TokenMixer(PART)(random(1, 5, 3), visibility=packs)


@pytest.mark.backend_independent
def test_a_gate_that_is_first_needs_a_gate():
    with pytest.raises(ValueError, match="`softmax_gate_first` needs `softmax_gate`"):
        parts.TokenMixing(length=5, dim=7, softmax_gate_first=True)
    with pytest.raises(ValueError, match="`softmax_gate_first` needs `softmax_gate`"):
        FeedForward(7, softmax_gate_first=True)


@pytest.mark.one_backend
def test_a_model_of_it():
    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=6, num_layers=2, intermediate_dim=8,
        position="none", normalize_first=True, softmax_gate=True, mixer=PART,
        stem={"kind": "series", "context_length": 20, "patch_length": 4},
    )  # fmt: skip
    shapes = variable_shapes(config)
    assert shapes["encoder/layer_1/mixer/tokens/softmax_gate/kernel"] == (5, 5)
    assert shapes["encoder/layer_1/feed_forward/softmax_gate/bias"] == (6,)
    backbone = kt.models.Encoder(config)
    assert backbone.count_params() == sum(map(np.prod, shapes.values()))
    assert kt.TransformerConfig.from_dict(config.to_dict()) == config
    plan = kt.planning.make_plan(config, batch_size=2, length=5)
    assert plan.parameters == backbone.count_params()
