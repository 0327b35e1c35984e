"""The convolution beside the sub-layers of an encoder's block."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import AttentionMask, DecoderBlock, EncoderBlock
from tests.layers.conftest import assert_close, numpy, random, randomize

X = random(2, 7, 8)
OPTIONS = {"num_heads": 2, "intermediate_dim": 12, "convolution_activation": "tanh"}


def block_of(size, **options):
    block = EncoderBlock(**OPTIONS, convolution_size=size, **options)
    block.build(X.shape)
    randomize(block)
    return block


@pytest.mark.parametrize("size", [1, 3, 9])
def test_it_is_a_convolution(size):
    """Equal to Keras's own, of what the block is given, added behind the sub-layers."""
    block = block_of(size, normalize_first=True)
    layer = keras.layers.Conv1D(8, size, padding="same", activation="tanh")
    layer.build(X.shape)
    kernel = numpy(block.convolution.kernel).reshape(size, 8, 8)
    layer.set_weights([kernel, numpy(block.convolution.bias)])
    plain = EncoderBlock(**OPTIONS, normalize_first=True)
    plain.build(X.shape)
    values = {v.path.split("/", 1)[1]: v for v in block.variables}
    for variable in plain.variables:
        variable.assign(values[variable.path.split("/", 1)[1]])
    expected = numpy(plain(X)) + numpy(layer(block.convolution_norm(X)))
    assert_close(block(X), expected, atol=1e-5)
    assert_close(block(X, first_only=True), expected[:, :1], atol=1e-5)


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_dropout_is_in_front_of_the_activation(activation, first_only):
    """Dropped values become the activation of 0, kept ones that of a larger one (DeBERTa v2)."""
    rate, x = 0.25, random(40, 7, 8)
    block = block_of(3, normalize_first=True, dropout=rate, seed=1)
    block.convolution_activation = keras.activations.get(activation)
    for layer in (block.self_attention.output_dense, block.feed_forward.output_dense):
        layer.set_weights([np.zeros_like(weight) for weight in layer.get_weights()])
    states = numpy(block.convolution_norm(x))
    around = np.pad(states, [[0, 0], [1, 1], [0, 0]])
    around = np.concatenate([around[:, i : i + 7] for i in range(3)], axis=-1)
    before = around @ numpy(block.convolution.kernel) + numpy(block.convolution.bias)
    kept = numpy(getattr(keras.ops, activation)(before / (1 - rate)))
    dropped = 0.5 if activation == "sigmoid" else 0.0
    length = 1 if first_only else 7
    found = numpy(block(x, training=True, first_only=first_only)) - x[:, :length]
    is_dropped, is_kept = (np.abs(found - y[:, :length]) < 1e-5 for y in (0 * kept + dropped, kept))
    assert (is_dropped | is_kept).all()
    assert abs(is_dropped.mean() - rate) < 0.1


def test_neither_padding_nor_other_documents_are_neighbours():
    block = block_of(5)
    together = numpy(
        block(X, visibility=AttentionMask(query_pack=np.array([[0] * 4 + [1] * 3] * 2)))
    )
    for part in (slice(0, 4), slice(4, 7)):
        assert_close(together[:, part], numpy(block(X[:, part])), atol=1e-5)
    mask = np.array([[True] * 4 + [False] * 3] * 2)
    assert_close(numpy(block(X, mask=mask))[:, :4], together[:, :4], atol=1e-5)


@pytest.mark.parametrize(("kind", "size"), [(EncoderBlock, 2), (DecoderBlock, 3)])
def test_what_has_no_middle_or_sees_ahead_is_refused(kind, size):
    with pytest.raises(ValueError, match=f"(must be odd|an encoder's block).* received {size}"):
        kind(**OPTIONS, convolution_size=size)
