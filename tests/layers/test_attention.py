"""Multi-head attention against formulas, PyTorch, and properties that must hold."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import MultiHeadAttention, SinusoidalPosition, Visibility
from keras_transformer.layers.slots import Slots
from tests.generation.common import on_one
from tests.layers.conftest import assert_close, copy_weights, differs, numpy, random, randomize

BATCH, LENGTH, DIM, HEADS, HEAD_DIM = 2, 5, 8, 4, 6
X = random(BATCH, LENGTH, DIM)
SOURCE = random(BATCH, 7, DIM, seed=1)
PADDING = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)


def attention(**options):
    layer = MultiHeadAttention(HEADS, HEAD_DIM, **options)
    layer.build((BATCH, LENGTH, DIM))
    return randomize(layer)


def heads(states, dense, number=HEADS):
    """The projection of one of the layer's dense sub-layers in NumPy, split into heads."""
    projected = states @ numpy(dense.kernel)
    if dense.use_bias:
        projected = projected + numpy(dense.bias)
    return projected.reshape(*states.shape[:2], number, -1).transpose(0, 2, 1, 3)


def sdpa(torch, layer, query, value, **options):
    """The layer's result by PyTorch's `scaled_dot_product_attention`."""
    q, k, v = (
        torch.tensor(heads(x, dense))
        for x, dense in (
            (query, layer.query_dense),
            (value, layer.key_dense),
            (value, layer.value_dense),
        )
    )
    options = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    result = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options).numpy()
    merged = result.transpose(0, 2, 1, 3).reshape(*query.shape[:2], -1)
    return merged @ numpy(layer.output_dense.kernel) + numpy(layer.output_dense.bias)


def both_paths(layer, *args, **kwargs):
    """The output, after a check that the fused kernel and the formula agree on it."""
    fused = layer(*args, **kwargs)
    formula, weights = layer(*args, return_attention_scores=True, **kwargs)
    assert_close(fused, formula)
    return fused, weights


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
    output, weights = both_paths(layer, X, visibility=Visibility(explicit=allowed))
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


def test_permuting_keys_and_values_together_changes_nothing_without_positions():
    layer, order = attention(), np.array([4, 0, 6, 2, 5, 1, 3])
    assert_close(layer(X, value=SOURCE), layer(X, value=SOURCE[:, order]))
    table = numpy(SinusoidalPosition()(SOURCE))
    assert differs(layer(X, value=SOURCE + table), layer(X, value=SOURCE[:, order] + table))
    rotary = attention(rotary={"base": 100.0})
    assert differs(rotary(X, value=SOURCE), rotary(X, value=SOURCE[:, order]))


@pytest.mark.parametrize("score", ["scaled_dot", "location", "cosine"])
def test_causal_output_is_unchanged_by_what_comes_after(score):
    layer = attention(causal=True, score=score, max_sequence_length=LENGTH)
    before = numpy(layer(X))
    for t in range(LENGTH - 1):
        changed = X.copy()
        changed[:, t + 1 :] += 10
        after = numpy(layer(changed))
        assert_close(after[:, : t + 1], before[:, : t + 1])
        assert differs(after[:, t + 1 :], before[:, t + 1 :])


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"score": "general"}])
def test_a_masked_position_changes_nothing(options):
    layer, changed = attention(**options), X.copy()
    changed[1, 3:] = 1e4
    before, after = numpy(layer(X, mask=PADDING)), numpy(layer(changed, mask=PADDING))
    np.testing.assert_array_equal(after[PADDING], before[PADDING])
    other = SOURCE.copy()
    other[1, 3:] = -1e4
    mask = np.array([[1] * 7, [1] * 3 + [0] * 4], bool)
    before = numpy(layer(X, value=SOURCE, value_mask=mask))
    np.testing.assert_array_equal(numpy(layer(X, value=other, value_mask=mask)), before)


@pytest.mark.parametrize("bias", [None, random(1, HEADS, LENGTH, LENGTH)])
def test_a_row_without_any_key_stays_finite(bias):
    nothing = np.zeros((BATCH, LENGTH), bool)
    for policy in ("float32", "mixed_bfloat16", "mixed_float16"):
        layer = attention(dtype=policy)
        assert np.isfinite(numpy(layer(X, mask=nothing, bias=bias))).all()


def test_window(torch):
    layer = attention(window=2)
    steps = np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH))
    output, _ = both_paths(layer, X)
    assert_close(output, sdpa(torch, layer, X, X, attn_mask=steps < 2))


def test_packed_documents_equal_the_documents_alone():
    packs, positions = np.array([[0, 0, 0, 1, 1]] * 2), np.array([[0, 1, 2, 0, 1]] * 2)
    for options in ({}, {"causal": True}, {"window": 2, "rotary": {"base": 100.0}}):
        layer = attention(**options)
        given = {"query_positions": positions} if "window" in options else {}
        packed = numpy(layer(X, visibility=Visibility(query_pack=packs, **given)))
        for document in (slice(0, 3), slice(3, 5)):
            assert_close(packed[:, document], layer(X[:, document]))


def test_rotary_self_attention_depends_on_distances_alone():
    layer = attention(rotary={"base": 100.0}, causal=True)
    shifted = np.tile(np.arange(LENGTH) + 11, (BATCH, 1))
    assert_close(layer(X, visibility=Visibility(query_positions=shifted)), layer(X), atol=1e-4)
    stretched = Visibility(query_positions=np.tile(np.arange(LENGTH) * 2, (BATCH, 1)))
    assert differs(layer(X, visibility=stretched), layer(X))


def test_rotary_cross_attention_rotates_the_keys_by_their_own_positions():
    layer = attention(rotary={"base": 100.0})
    queries, keys = np.tile(np.arange(LENGTH), (BATCH, 1)), np.tile(np.arange(7), (BATCH, 1))

    def across(queries=None, keys=None):
        positions = Visibility(query_positions=queries, key_positions=keys)
        return layer(X, value=SOURCE, visibility=positions)

    expected = layer(X, value=SOURCE)
    assert_close(across(queries), expected)
    assert_close(across(queries, keys), expected)
    assert_close(across(queries + 9, keys + 9), expected, atol=1e-4)
    assert differs(across(queries, keys * 3), expected)


@pytest.mark.parametrize(
    "options", [{}, {"num_key_value_heads": 2}, {"rotary": {"base": 100.0}}, {"window": 2}]
)
@pytest.mark.parametrize("known", [True, False], ids=["slots known", "slots unknown"])
def test_cached_self_attention_equals_uncached(options, known):
    """Where an int says which slots are filled, only those are read, and masks are as short."""
    layer = attention(causal=True, **options)
    expected, weights = (numpy(x) for x in layer(X, return_attention_scores=True))
    cache = Slots.make(BATCH, layer.num_key_value_heads, 8, HEAD_DIM, "float32")
    slots = np.tile(np.arange(8), (BATCH, 1))

    def unknown(cache):
        return dataclasses.replace(cache, next=ops.convert_to_tensor(cache.next, "int32"))

    for start, end in ((0, 2), (2, 3), (3, LENGTH)):
        read = slots[:, : end if known else 8]
        step, found, cache = layer(
            X[:, start:end],
            visibility=Visibility(
                query_positions=slots[:, start:end],
                key_positions=read,
                explicit=read[:, None] <= slots[:, start:end, None],
            ),
            cache=cache if known else unknown(cache),
            return_attention_scores=True,
        )
        assert_close(step, expected[:, start:end])
        assert found.shape[-1] == read.shape[1]
        assert_close(found[..., :end], weights[:, :, start:end, :end])
    assert cache.keys.shape == (BATCH, layer.num_key_value_heads, 8, HEAD_DIM)
    assert not numpy(cache.keys)[:, :, LENGTH:].any()


def test_branches_in_one_row_see_what_the_mask_says():
    """Two tokens after the same two, neither of which sees the other, in neighbouring slots."""
    layer = attention(causal=True, rotary={"base": 100.0})
    cache = Slots.make(BATCH, HEADS, 4, HEAD_DIM, "float32")
    _, cache = layer(X[:, :2], cache=cache)
    side_by_side = Visibility(
        query_positions=np.full((BATCH, 2), 2),
        key_positions=np.tile([0, 1, 2, 2], (BATCH, 1)),
        explicit=np.tile(np.array([[1, 1, 1, 0], [1, 1, 0, 1]], bool), (BATCH, 1, 1)),
    )
    both, _ = layer(X[:, 2:4], visibility=side_by_side, cache=cache)
    for branch in range(2):
        alone = np.concatenate([X[:, :2], X[:, 2 + branch : 3 + branch]], axis=1)
        assert_close(both[:, branch], numpy(layer(alone))[:, 2])


def test_cached_cross_attention_equals_uncached():
    layer = attention()
    expected = numpy(layer(X, value=SOURCE))
    cache = Slots.make(BATCH, HEADS, 7, HEAD_DIM, "float32")
    first, cache = layer(X[:, :2], value=SOURCE, cache=cache)
    rest, weights, again = layer(X[:, 2:], cache=cache, return_attention_scores=True)
    assert_close(first, expected[:, :2])
    assert_close(rest, expected[:, 2:])
    assert weights.shape == (BATCH, HEADS, 3, 7)
    assert_close(again.keys, cache.keys)


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


def test_a_norm_for_each_head():
    options = {"query_key_norm": "layer_norm", "num_key_value_heads": 2}
    layer = attention(**options, query_key_norm_per_head=True)
    for norm, dense, heads in (
        (layer.query_norm, layer.query_dense, HEADS),
        (layer.key_norm, layer.key_dense, 2),
    ):
        assert norm.gamma.shape == (heads, HEAD_DIM)
        projected = (X @ numpy(dense.kernel) + numpy(dense.bias)).reshape(BATCH, LENGTH, heads, -1)
        variance = projected.var(-1, keepdims=True)
        expected = (projected - projected.mean(-1, keepdims=True)) / np.sqrt(variance + 1e-6)
        states = layer._normalized_and_rotated(dense(X), heads, norm, None)
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
    tolerance = {"atol": 0.1 if policy == "mixed_bfloat16" else 0.015, "rtol": 0}
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


def test_keras_masks_arrive():
    """Also beside other tensors, where Keras looks for another argument's name."""
    ids = np.array([[3, 4, 1, 2, 5], [1, 2, 4, 0, 0]])
    embedding = keras.layers.Embedding(6, DIM, mask_zero=True)
    layer, other = attention(), {"bias": np.zeros((1, 1, LENGTH, LENGTH), "float32")}
    states = embedding(ids)
    expected = numpy(layer(numpy(states), mask=PADDING))
    assert_close(layer(states), expected)
    assert_close(layer(states, **other), expected)
    assert_close(layer(X, value=states), layer(X, value=numpy(states), value_mask=PADDING))
    # The mask of the query goes on to the next layer.
    for output in (layer(states), layer(states, **other), layer(states, value=SOURCE)):
        mean = keras.layers.GlobalAveragePooling1D()(output)
        assert_close(mean[1], numpy(output)[1, :3].mean(axis=0))


def test_bad_options():
    with pytest.raises(ValueError, match="a multiple of `num_key_value_heads`, received 4, 6, 3"):
        MultiHeadAttention(4, 6, num_key_value_heads=3)
    with pytest.raises(ValueError, match="must be positive.*received 0, 6, None"):
        MultiHeadAttention(0, 6)
    with pytest.raises(ValueError, match="`score_scale` is of score='scaled_dot', received.*'dot'"):
        MultiHeadAttention(4, 6, score="dot", score_scale=2.0)
    with pytest.raises(ValueError, match="Unknown score 'bilinear'. Known are: 'scaled_dot'"):
        MultiHeadAttention(4, 6, score="bilinear")
