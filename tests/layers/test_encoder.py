"""The encoder block against PyTorch's, and against its own parts in NumPy."""

import keras
import numpy as np
import pytest

from keras_transformer.config import NORMALIZATIONS
from keras_transformer.layers import AttentionMask, EncoderBlock
from keras_transformer.layers.normalization import make_normalization
from tests.closeness import atol_of
from tests.layers.conftest import assert_close, copy_weights, differs, numpy, random, randomize

X = random(2, 5, 8)
PADDING = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)


def made(**options):
    layer = EncoderBlock(2, 12, **options)
    layer.build(X.shape)
    return randomize(layer)


def copy_attention(torch, layer, theirs):
    """Our attention's values into a `torch.nn.MultiheadAttention`."""
    projections = (layer.query_dense, layer.key_dense, layer.value_dense)
    kernels = np.concatenate([numpy(dense.kernel).T for dense in projections])
    theirs.in_proj_weight.copy_(torch.tensor(kernels))
    biases = np.concatenate([numpy(dense.bias) for dense in projections])
    theirs.in_proj_bias.copy_(torch.tensor(biases))
    copy_dense(torch, layer.output_dense, theirs.out_proj)


def copy_dense(torch, dense, theirs):
    theirs.weight.copy_(torch.tensor(numpy(dense.kernel).T))
    theirs.bias.copy_(torch.tensor(numpy(dense.bias)))


def copy_norm(torch, norm, theirs):
    theirs.weight.copy_(torch.tensor(numpy(norm.gamma)))
    theirs.bias.copy_(torch.tensor(numpy(norm.beta)))


@pytest.mark.parametrize("normalize_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_equals_pytorch(torch, normalize_first, activation):
    layer = made(normalize_first=normalize_first, activation=activation)
    theirs = torch.nn.TransformerEncoderLayer(
        8,
        2,
        12,
        activation=activation,
        norm_first=normalize_first,
        batch_first=True,
        layer_norm_eps=1e-6,
    ).eval()
    with torch.no_grad():
        copy_attention(torch, layer.self_attention, theirs.self_attn)
        copy_dense(torch, layer.feed_forward.intermediate_dense, theirs.linear1)
        copy_dense(torch, layer.feed_forward.output_dense, theirs.linear2)
        copy_norm(torch, layer.self_attention_norm, theirs.norm1)
        copy_norm(torch, layer.feed_forward_norm, theirs.norm2)
    # With gradients, PyTorch takes its plain path, which does not zero the padded positions.
    expected = theirs(torch.tensor(X), src_key_padding_mask=torch.tensor(~PADDING))
    assert_close(layer(X, mask=PADDING), expected.detach().numpy(), atol=2e-5)


@pytest.mark.parametrize("normalize_output", [False, True])
@pytest.mark.parametrize("normalize_first", [False, True])
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_the_order_of_the_sublayers(normalize_first, normalize_output, normalization):
    layer = made(
        normalize_first=normalize_first,
        normalize_output=normalize_output,
        normalization=normalization,
        gated=True,
    )

    def norm(x, sublayer):
        if normalization == "rms_norm_no_weight":
            assert not sublayer.weights
            return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        if normalization.startswith("rms_norm"):
            scale = numpy(sublayer.scale) + (normalization == "rms_norm_plus_one")
            return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale
        if normalization == "batch_norm":
            scaled = (x - numpy(sublayer.moving_mean)) / np.sqrt(
                numpy(sublayer.moving_variance) + 1e-6
            )
            return scaled * numpy(sublayer.gamma) + numpy(sublayer.beta)
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        shift = 0 if normalization == "layer_norm_no_bias" else numpy(sublayer.beta)
        return scaled * (numpy(sublayer.gamma) + normalization.endswith("plus_one")) + shift

    x = X
    for function, around, behind in (
        (layer.self_attention, layer.self_attention_norm, layer.self_attention_output_norm),
        (layer.feed_forward, layer.feed_forward_norm, layer.feed_forward_output_norm),
    ):
        output = numpy(function(norm(x, around) if normalize_first else x))
        if normalize_output:
            x = x + norm(output, behind)
        else:
            x = x + output if normalize_first else norm(x + output, around)
    assert_close(layer(X), x, atol=2e-5)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_without_a_norm_of_the_attention(normalize_first):
    layer = made(normalize_first=normalize_first, attention_normalization=False)
    assert layer.self_attention_norm is None
    x = X + numpy(layer.self_attention(X))
    norm = layer.feed_forward_norm
    if normalize_first:
        expected = x + numpy(layer.feed_forward(norm(x)))
    else:
        expected = norm(x + numpy(layer.feed_forward(x)))
    assert_close(layer(X), expected, atol=2e-5)


def test_one_norm_for_two_sublayers_and_a_factor_of_what_they_give():
    options = {"normalize_first": True, "parallel_residual": True, "share_normalization": True}
    block = EncoderBlock(2, 16, residual_scale=0.25, **options)
    x = random(2, 5, 8)
    result = block(x)
    assert block.feed_forward_norm is None
    normed = block.self_attention_norm(x)
    given = block.self_attention(normed) + block.feed_forward(normed)
    assert_close(result, x + 0.25 * numpy(given))
    for lacking in ("parallel_residual", "attention_normalization"):
        with pytest.raises(ValueError, match=f"`share_normalization` needs .*`{lacking}`"):
            EncoderBlock(2, 16, **{**options, lacking: False})


def test_normalization_epsilon_and_kind():
    assert made(normalization_epsilon=1e-3).self_attention_norm.epsilon == 1e-3
    with pytest.raises(ValueError, match="Unknown normalization 'batch'. Known are: 'layer_norm'"):
        make_normalization("batch", 1e-6)


def test_statistics_are_float32_in_half_precision():
    """In float16 the squares of these would be infinite, in bfloat16 their sum imprecise."""
    x = 300 * random(2, 5, 64)
    for kind in NORMALIZATIONS:
        of_batch = {"training": True} if kind == "batch_norm" else {}
        expected = make_normalization(kind, 1e-6)(x, **of_batch)
        for policy in ("mixed_float16", "mixed_bfloat16"):
            result = make_normalization(kind, 1e-6, dtype=policy)(x, **of_batch)
            assert_close(result, expected, atol=0.03)


def test_a_masked_position_changes_nothing():
    layer, changed = made(), X.copy()
    changed[1, 3:] = 100
    before, after = numpy(layer(X, mask=PADDING)), numpy(layer(changed, mask=PADDING))
    np.testing.assert_array_equal(after[PADDING], before[PADDING])
    assert differs(layer(changed)[1, :3], before[1, :3])


def test_packed_documents_equal_the_documents_alone():
    layer = made(rotary={"base": 100.0})
    packs, positions = np.array([[0, 0, 0, 1, 1]] * 2), np.array([[0, 1, 2, 0, 1]] * 2)
    visibility = AttentionMask(query_pack=packs, query_positions=positions)
    packed = numpy(layer(X, visibility=visibility))
    for document in (slice(0, 3), slice(3, 5)):
        assert_close(packed[:, document], layer(X[:, document]))


def test_bias_and_window_reach_the_attention():
    bias = random(1, 2, 5, 5)
    layer = made()
    assert differs(layer(X, bias=bias), layer(X))
    far = np.where(np.abs(np.arange(5)[:, None] - np.arange(5)) < 2, 0, -1e9).astype("float32")
    windowed = made(window=2)
    assert_close(windowed(X), layer(X, bias=far[None, None]))


def test_dropout_is_on_each_sublayer():
    """With outputs of 1 the dropped ones are 0 or 1 / (1 - rate), on average 1."""
    layer = EncoderBlock(2, 12, dropout=0.25, normalize_first=True, seed=3)
    x = np.zeros((20, 40, 8), "float32")
    layer.build(x.shape)
    for sublayer in (layer.self_attention, layer.feed_forward):
        sublayer.output_dense.kernel.assign(np.zeros(sublayer.output_dense.kernel.shape))
    attention, feed_forward = (
        layer.self_attention.output_dense.bias,
        layer.feed_forward.output_dense.bias,
    )
    kept = np.float32(1 / 0.75)
    for on, off in ((attention, feed_forward), (feed_forward, attention)):
        on.assign(np.ones(8))
        off.assign(np.zeros(8))
        result = numpy(layer(x, training=True))
        np.testing.assert_allclose(np.unique(result), [0, kept], rtol=1e-6)
        assert result.mean() == pytest.approx(1, abs=0.03)  # four deviations
        assert_close(layer(x), np.ones_like(x))
    assert differs(layer(x, training=True), result)  # drawn anew each time


def test_without_dropout_training_changes_nothing():
    layer = made()
    assert_close(layer(X, training=True), layer(X))
    assert differs(made(attention_dropout=0.5)(X, training=True), layer(X))


def test_keras_masks_arrive_and_go_on():
    ids = np.array([[3, 4, 1, 2, 5], [1, 2, 4, 0, 0]])
    states = keras.layers.Embedding(6, 8, mask_zero=True)(ids)
    layer, packs = made(), AttentionMask(query_pack=np.zeros((2, 5), "int32"))
    expected = numpy(layer(numpy(states), mask=PADDING))
    twice = numpy(layer(expected, mask=PADDING))
    for options in ({}, {"visibility": packs}, {"bias": np.zeros((1, 1, 5, 5), "float32")}):
        output = layer(states, **options)
        assert_close(output, expected)
        assert_close(layer(output, **options), twice)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(policy):
    half, full = made(dtype=policy), made()
    copy_weights(full, half)
    output = half(X, mask=PADDING)
    assert keras.backend.standardize_dtype(output.dtype) == half.compute_dtype
    assert {keras.backend.standardize_dtype(w.dtype) for w in half.weights} == {"float32"}
    assert_close(output, full(X, mask=PADDING), atol=atol_of(policy))


@pytest.mark.one_backend
def test_ids_in_place_of_states():
    with pytest.raises(ValueError, match=r"EncoderBlock takes states of shape .*received \(2, 8\)"):
        EncoderBlock(2, 8)(np.ones((2, 8), "int32"))


def test_width_that_the_heads_do_not_divide():
    with pytest.raises(
        ValueError, match="divisible by `num_heads`, received hidden_dim=7 and num_heads=2"
    ):
        EncoderBlock(2, 12)(np.zeros((1, 3, 7), "float32"))
    assert EncoderBlock(2, 12, head_dim=5)(np.zeros((1, 3, 7), "float32")).shape == (1, 3, 7)
