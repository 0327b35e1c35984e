"""Multi-head attention against formulas and PyTorch; its options and its numbers."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import AttentionMask, MultiHeadAttention
from tests.closeness import atol_of
from tests.generation.common import on_one
from tests.layers.attending import (
    BATCH,
    DIM,
    HEAD_DIM,
    HEADS,
    LENGTH,
    PADDING,
    SOURCE,
    X,
    attention,
    both_paths,
    heads,
    sdpa,
)
from tests.layers.conftest import assert_close, copy_weights, numpy, random, randomize


def test_worked_example():
    """A query that scores its two keys 112 and 96, with keys of size 64: 14, 12; 0.88, 0.12."""
    layer = MultiHeadAttention(1, 64, use_bias=False)
    query = np.ones((1, 1, 64), "float32")
    keys = np.stack([np.full(64, 112 / 64), np.full(64, 96 / 64)])[None].astype("float32")
    layer.build(query.shape)
    for dense in (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense):
        dense.kernel.assign(np.eye(64))
    scores = layer.score_function(query[:, None], keys[:, None])
    np.testing.assert_allclose(numpy(scores).ravel(), [14, 12], rtol=1e-6)
    output, weights = both_paths(layer, query, value=keys)
    weights = numpy(weights).ravel()
    np.testing.assert_array_equal(weights.round(2), np.float32([0.88, 0.12]))
    np.testing.assert_allclose(weights, [1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))], rtol=1e-5)
    np.testing.assert_allclose(numpy(output).ravel(), weights @ keys[0], rtol=1e-5)


def test_self_attention_equals_pytorch(torch):
    layer = attention()
    assert_close(both_paths(layer, X)[0], sdpa(torch, layer, X, X))
    mask = PADDING[:, None, None]
    output, _ = both_paths(layer, X, mask=PADDING)
    assert_close(output, sdpa(torch, layer, X, X, attn_mask=mask))


def test_causal_attention_equals_pytorch(torch):
    layer = attention(causal=True)
    assert_close(both_paths(layer, X)[0], sdpa(torch, layer, X, X, is_causal=True))


def test_cross_attention_equals_pytorch(torch):
    layer = attention()
    mask = np.array([[1] * 7, [1] * 4 + [0] * 3], bool)
    assert_close(both_paths(layer, X, value=SOURCE)[0], sdpa(torch, layer, X, SOURCE))
    output, _ = both_paths(layer, X, value=SOURCE, value_mask=mask)
    assert_close(output, sdpa(torch, layer, X, SOURCE, attn_mask=mask[:, None, None]))


def test_keys_of_their_own(torch):
    layer, other = attention(), random(BATCH, 7, DIM, seed=2)
    output, weights = both_paths(layer, X, value=SOURCE, key=other)
    _, expected = layer(X, value=other, return_attention_scores=True)
    assert_close(weights, expected)
    values = heads(SOURCE, layer.value_dense)
    merged = (numpy(weights) @ values).transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, -1)
    dense = layer.output_dense
    assert_close(output, merged @ numpy(dense.kernel) + numpy(dense.bias))


def test_weights_equal_those_of_pytorch_multi_head_attention(torch):
    layer = MultiHeadAttention(2, DIM // 2)
    layer.build(X.shape)
    randomize(layer)
    theirs = torch.nn.MultiheadAttention(DIM, 2, batch_first=True)
    projections = (layer.query_dense, layer.key_dense, layer.value_dense)
    with torch.no_grad():
        kernels = np.concatenate([numpy(dense.kernel).T for dense in projections])
        theirs.in_proj_weight.copy_(torch.tensor(kernels))
        biases = np.concatenate([numpy(dense.bias) for dense in projections])
        theirs.in_proj_bias.copy_(torch.tensor(biases))
        theirs.out_proj.weight.copy_(torch.tensor(numpy(layer.output_dense.kernel).T))
        theirs.out_proj.bias.copy_(torch.tensor(numpy(layer.output_dense.bias)))
        x = torch.tensor(X)
        ignored = torch.tensor(~PADDING)
        expected, expected_weights = theirs(
            x, x, x, key_padding_mask=ignored, average_attn_weights=False
        )
    output, weights = both_paths(layer, X, mask=PADDING)
    assert_close(output, expected.numpy())
    assert_close(weights, expected_weights.numpy())


def test_bias_is_added_to_the_scores(torch):
    layer, bias = attention(), random(1, HEADS, LENGTH, LENGTH)
    assert_close(both_paths(layer, X, bias=bias)[0], sdpa(torch, layer, X, X, attn_mask=bias))
    output, _ = both_paths(layer, X, bias=bias, mask=PADDING)
    hidden = np.where(PADDING[:, None, None], bias, -np.inf).astype("float32")
    assert_close(output, sdpa(torch, layer, X, X, attn_mask=hidden))
    causal = attention(causal=True)
    hidden = np.where(np.tril(np.ones((LENGTH, LENGTH))), bias, -np.inf).astype("float32")
    output, _ = both_paths(causal, X, bias=bias)
    assert_close(output, sdpa(torch, causal, X, X, attn_mask=hidden))


def test_attention_mask(torch):
    layer = attention()
    allowed = np.random.default_rng(0).random((BATCH, LENGTH, LENGTH)) > 0.4
    allowed |= np.eye(LENGTH, dtype=bool)
    output, weights = both_paths(layer, X, visibility=AttentionMask(explicit=allowed))
    assert_close(output, sdpa(torch, layer, X, X, attn_mask=allowed[:, None]))
    assert not numpy(weights)[np.broadcast_to(~allowed[:, None], weights.shape)].any()


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_attention_scores(score):
    layer = attention(score=score)
    _, weights = layer(X, value=SOURCE, return_attention_scores=True)
    assert weights.shape == (BATCH, HEADS, LENGTH, 7)
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    np.testing.assert_allclose(numpy(weights).sum(axis=-1), 1, rtol=1e-6)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"score": "additive"}])
def test_grouped_heads_equal_repeated_heads(groups, options):
    grouped, full = attention(num_key_value_heads=groups, **options), attention(**options)
    copy_weights(grouped.query_dense, full.query_dense)
    copy_weights(grouped.output_dense, full.output_dense)
    copy_weights(grouped.score_function, full.score_function)
    for mine, theirs in (
        (full.key_dense, grouped.key_dense),
        (full.value_dense, grouped.value_dense),
    ):
        assert theirs.units == groups * HEAD_DIM
        for variable, shared in zip(mine.weights, theirs.weights, strict=True):
            split = numpy(shared).reshape(*shared.shape[:-1], groups, HEAD_DIM)
            repeated = np.repeat(split, HEADS // groups, axis=-2)
            variable.assign(repeated.reshape(variable.shape))
    bias = random(1, HEADS, LENGTH, LENGTH)
    for inputs in ({}, {"mask": PADDING}, {"bias": bias, "mask": PADDING}):
        output, weights = both_paths(grouped, X, **inputs)
        expected, expected_weights = both_paths(full, X, **inputs)
        assert_close(output, expected)
        assert_close(weights, expected_weights)


def test_dropout_is_on_the_weights():
    """With one key its weight is 1, and dropped out it is 0 or 2: so are the outputs."""
    layer = MultiHeadAttention(1, 4, use_bias=False, dropout=0.5, seed=1)
    ones = np.ones((400, 1, 4), "float32")
    layer.build(ones.shape)
    for dense in (layer.value_dense, layer.output_dense):
        dense.kernel.assign(np.eye(4))
    result = numpy(layer(ones, training=True))[:, 0, 0]
    assert set(result) == {0.0, 2.0}
    assert result.mean() == pytest.approx(1, abs=0.2)  # four deviations
    assert_close(layer(ones), ones)
    assert_close(layer(ones, training=False), ones)


def test_output_width_and_no_bias():
    layer = MultiHeadAttention(HEADS, HEAD_DIM, output_dim=3, use_bias=False)
    assert layer(X).shape == (BATCH, LENGTH, 3)
    assert sorted(tuple(w.shape) for w in layer.weights) == [(8, 24), (8, 24), (8, 24), (24, 3)]


def test_the_factor_of_the_scores(torch):
    layer = attention(score_scale=0.7)
    assert_close(both_paths(layer, X)[0], sdpa(torch, layer, X, X, scale=0.7))


def test_norms_across_heads():
    """One mean of squares for all heads of a token, and a factor for each feature of each head."""
    options = {"query_key_norm": "rms_norm", "num_key_value_heads": 2}
    layer = attention(**options, query_key_norm_across_heads=True)
    assert [norm.scale.shape[0] for norm in (layer.query_norm, layer.key_norm)] == [24, 12]
    for norm, dense in ((layer.query_norm, layer.query_dense), (layer.key_norm, layer.key_dense)):
        projected = X @ numpy(dense.kernel) + numpy(dense.bias)
        expected = projected / np.sqrt((projected**2).mean(-1, keepdims=True) + 1e-6)
        expected = (expected * numpy(norm.scale)).reshape(BATCH, LENGTH, -1, HEAD_DIM)
        states = layer._normalized_and_rotated(dense(X), dense.units // HEAD_DIM, norm, None)
        assert_close(states, expected)


def test_a_norm_after_the_rotation():
    options = {"query_key_norm": "rms_norm", "num_key_value_heads": 2, "rotary": {"base": 50.0}}
    layer = attention(**options, query_key_norm_after_rotation=True)
    _, projections = layer(X, return_projections=True)
    for name, norm, dense in (
        ("queries", layer.query_norm, layer.query_dense),
        ("keys", layer.key_norm, layer.key_dense),
    ):
        heads = numpy(dense(X)).reshape(BATCH, LENGTH, -1, HEAD_DIM)
        rotated = numpy(layer.rotary_embedding(heads))
        expected = rotated / np.sqrt((rotated**2).mean(-1, keepdims=True) + 1e-6)
        expected = (expected * numpy(norm.scale)).transpose(0, 2, 1, 3)
        assert_close(projections[name], expected)


def test_a_norm_for_each_head():
    options = {"query_key_norm": "layer_norm", "num_key_value_heads": 2}
    layer = attention(**options, query_key_norm_per_head=True)
    for norm, dense, count in (
        (layer.query_norm, layer.query_dense, HEADS),
        (layer.key_norm, layer.key_dense, 2),
    ):
        assert norm.gamma.shape == (count, HEAD_DIM)
        projected = (X @ numpy(dense.kernel) + numpy(dense.bias)).reshape(BATCH, LENGTH, count, -1)
        variance = projected.var(-1, keepdims=True)
        expected = (projected - projected.mean(-1, keepdims=True)) / np.sqrt(variance + 1e-6)
        states = layer._normalized_and_rotated(dense(X), count, norm, None)
        assert_close(states, expected * numpy(norm.gamma))
    with pytest.raises(ValueError, match="needs `query_key_norm` and a LayerNorm"):
        attention(query_key_norm="rms_norm", query_key_norm_per_head=True)


@pytest.mark.parametrize(
    "policy, score",
    [
        ("mixed_bfloat16", "scaled_dot"),
        ("mixed_float16", "scaled_dot"),
        ("mixed_bfloat16", "general"),
        ("mixed_float16", "additive"),
        ("mixed_bfloat16", "cosine"),
        on_one("mixed_float16", "general"),
        on_one("mixed_bfloat16", "additive"),
        on_one("mixed_float16", "cosine"),
    ],
)
def test_mixed_precision(policy, score):
    half, full = attention(dtype=policy, score=score), attention(score=score)
    copy_weights(full, half)
    output, weights = half(X, mask=PADDING, return_attention_scores=True)
    assert keras.backend.standardize_dtype(output.dtype) == half.compute_dtype
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    assert {keras.backend.standardize_dtype(w.dtype) for w in half.weights} == {"float32"}
    # The sum of bfloat16 numbers would be off by 1e-3: the softmax is in float32.
    np.testing.assert_allclose(numpy(weights).sum(axis=-1), 1, atol=1e-6)
    tolerance = {"atol": atol_of(policy), "rtol": 0}
    expected = full(X, mask=PADDING)
    assert_close(output, expected, **tolerance)
    assert_close(half(X, mask=PADDING), expected, **tolerance)


def test_the_fused_kernel_computes_the_softmax_in_float32():
    """256 equal keys: weights of 1/256 each. Summed up in half precision they would be lost."""
    layer = MultiHeadAttention(1, 4, dtype="mixed_bfloat16", use_bias=False)
    x = np.ones((1, 512, 4), "float32")
    layer.build(x.shape)
    for dense in (layer.value_dense, layer.output_dense):
        dense.kernel.assign(np.eye(4))
    assert_close(layer(x), x, atol=0.005)


def test_bad_options():
    with pytest.raises(ValueError, match="a multiple of `num_key_value_heads`, received 4 and 3"):
        MultiHeadAttention(4, 6, num_key_value_heads=3)
    with pytest.raises(ValueError, match="`num_heads` must be at least 1, received 0"):
        MultiHeadAttention(0, 6)
    with pytest.raises(ValueError, match="`score_scale` needs score='scaled_dot', received.*'dot'"):
        MultiHeadAttention(4, 6, score="dot", score_scale=2.0)
    with pytest.raises(
        ValueError, match="`score` must be one of 'scaled_dot'.*received 'bilinear'"
    ):
        MultiHeadAttention(4, 6, score="bilinear")
