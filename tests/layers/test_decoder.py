"""The decoder block: causal, with and without encoder states, cached and not."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import AttentionMask, DecoderBlock, EncoderBlock
from keras_transformer.layers.attention.key_value_cache import KeyValueCache
from tests.layers.conftest import assert_close, copy_weights, differs, numpy, random, randomize
from tests.layers.test_encoder import copy_attention, copy_dense, copy_norm

X, SOURCE = random(2, 5, 8), random(2, 7, 8, seed=1)
PADDING = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
SOURCE_PADDING = np.array([[1] * 7, [1] * 4 + [0] * 3], bool)


def made(**options):
    layer = DecoderBlock(2, 12, **options)
    shapes = (X.shape, SOURCE.shape) if options.get("cross_attention") else (X.shape,)
    layer.build(*shapes)
    return randomize(layer)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_equals_pytorch(torch, normalize_first):
    layer = made(cross_attention=True, normalize_first=normalize_first)
    theirs = torch.nn.TransformerDecoderLayer(
        8, 2, 12, norm_first=normalize_first, batch_first=True, layer_norm_eps=1e-6
    ).eval()
    with torch.no_grad():
        copy_attention(torch, layer.self_attention, theirs.self_attn)
        copy_attention(torch, layer.cross_attention, theirs.multihead_attn)
        copy_dense(torch, layer.feed_forward.intermediate_dense, theirs.linear1)
        copy_dense(torch, layer.feed_forward.output_dense, theirs.linear2)
        copy_norm(torch, layer.self_attention_norm, theirs.norm1)
        copy_norm(torch, layer.cross_attention_norm, theirs.norm2)
        copy_norm(torch, layer.feed_forward_norm, theirs.norm3)
        expected = theirs(
            torch.tensor(X),
            torch.tensor(SOURCE),
            tgt_mask=torch.ones(5, 5).triu(1).bool(),
            tgt_key_padding_mask=torch.tensor(~PADDING),
            memory_key_padding_mask=torch.tensor(~SOURCE_PADDING),
        )
    result = layer(X, encoder_states=SOURCE, mask=PADDING, encoder_states_mask=SOURCE_PADDING)
    assert_close(result, expected.numpy(), atol=2e-5)


def test_without_cross_attention_it_is_a_causal_encoder_block():
    decoder, encoder = made(), EncoderBlock(2, 12)
    encoder.build(X.shape)
    copy_weights(decoder, encoder)
    upper = np.where(np.tril(np.ones((5, 5))), 0, -1e9).astype("float32")
    assert_close(decoder(X), encoder(X, bias=upper[None, None]))


@pytest.mark.parametrize("cross_attention", [False, True])
def test_output_is_unchanged_by_what_comes_after(cross_attention):
    layer = made(cross_attention=cross_attention)
    options = {"encoder_states": SOURCE} if cross_attention else {}
    before = numpy(layer(X, **options))
    for t in range(4):
        changed = X.copy()
        changed[:, t + 1 :] = 9
        after = numpy(layer(changed, **options))
        assert_close(after[:, : t + 1], before[:, : t + 1])
        assert differs(after[:, t + 1 :], before[:, t + 1 :])


def test_masked_positions_change_nothing():
    layer = made(cross_attention=True)
    options = {"mask": PADDING, "encoder_states_mask": SOURCE_PADDING}
    before = numpy(layer(X, encoder_states=SOURCE, **options))
    x, source = X.copy(), SOURCE.copy()
    x[~PADDING], source[~SOURCE_PADDING] = 50, 50
    after = numpy(layer(x, encoder_states=source, **options))
    np.testing.assert_array_equal(after[PADDING], before[PADDING])


@pytest.mark.parametrize("options", [{}, {"rotary": {"base": 100.0}, "num_key_value_heads": 1}])
@pytest.mark.parametrize("cross_attention", [False, True])
def test_cached_equals_uncached(options, cross_attention):
    layer = made(cross_attention=cross_attention, **options)
    inputs = {"encoder_states": SOURCE, "encoder_states_mask": SOURCE_PADDING}
    inputs = inputs if cross_attention else {}
    expected = numpy(layer(X, **inputs))
    heads = layer.self_attention.num_key_value_heads
    cache = {"self": KeyValueCache.make(2, heads, 6, 4, "float32"), "cross": None}
    slots = np.tile(np.arange(6), (2, 1))
    for start, end in ((0, 3), (3, 4), (4, 5)):
        step, updated = layer(
            X[:, start:end],
            visibility=AttentionMask(
                query_positions=slots[:, start:end],
                key_positions=slots[:, :end],
                explicit=slots[:, None, :end] <= slots[:, start:end, None],
            ),
            cache=cache,
            **inputs,
        )
        assert_close(step, expected[:, start:end])
        cache = updated
        assert (cache["cross"] is not None) == cross_attention
        inputs.pop("encoder_states", None)  # its keys and values are in the cache now


def test_dropout_is_on_the_cross_attention_too():
    layer = DecoderBlock(2, 12, cross_attention=True, dropout=0.5, normalize_first=True, seed=1)
    zeros = np.zeros((20, 40, 8), "float32")
    layer.build(zeros.shape, zeros.shape)
    layer.cross_attention.output_dense.bias.assign(np.ones(8))
    for sublayer in (layer.self_attention, layer.feed_forward):
        sublayer.output_dense.kernel.assign(np.zeros(sublayer.output_dense.kernel.shape))
    result = numpy(layer(zeros, encoder_states=zeros, training=True))
    assert 0.0 in result and 2.0 in result
    assert_close(layer(zeros, encoder_states=zeros)[:, :1], np.ones((20, 1, 8), "float32"), atol=2)


def test_keras_masks_arrive_and_go_on():
    ids = np.array([[3, 4, 1, 2, 5], [1, 2, 4, 0, 0]])
    source_ids = np.array([[3, 4, 1, 2, 5, 1, 1], [1, 2, 4, 5, 0, 0, 0]])
    embedding = keras.layers.Embedding(6, 8, mask_zero=True)
    states, source = embedding(ids), embedding(source_ids)
    plain = made()
    assert_close(plain(states), plain(numpy(states), mask=PADDING))
    cross = made(cross_attention=True)
    output = cross(states, encoder_states=source)
    masks = {"mask": PADDING, "encoder_states_mask": SOURCE_PADDING}
    assert_close(output, cross(numpy(states), encoder_states=numpy(source), **masks))
    for result in (output, plain(states), cross(states, encoder_states=numpy(source))):
        mean = keras.layers.GlobalAveragePooling1D()(result)
        assert_close(mean[1], numpy(result)[1, :3].mean(axis=0))


def test_encoder_states_of_another_width():
    layer = DecoderBlock(2, 12, cross_attention=True)
    wide = random(2, 7, 20)
    assert layer(X, encoder_states=wide).shape == (2, 5, 8)
    assert layer.cross_attention.key_dense.kernel.shape == (20, 8)


def test_missing_encoder_states():
    with pytest.raises(ValueError, match="cross-attention: give `encoder_states`, or a `cache`"):
        made(cross_attention=True)(X)
