"""Token and segment embeddings."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.device import device
from keras_transformer.layers import SegmentEmbedding, TokenEmbedding
from tests.layers.conftest import assert_close, numpy, random

IDS = np.array([[3, 1, 0], [2, 4, 4]])


def test_looks_up_and_scales_by_the_root_of_the_width():
    plain, scaled = TokenEmbedding(5, 16), TokenEmbedding(5, 16, scale=True)
    scaled.build()
    plain.build()
    scaled.embeddings.assign(plain.embeddings)
    table = numpy(plain.embeddings)
    assert_close(plain(IDS), table[IDS])
    assert_close(scaled(IDS), table[IDS] * 4)  # sqrt(16)
    scaled.scale = 2.5
    assert_close(scaled(IDS), table[IDS] * 2.5)


@pytest.mark.parametrize("wrong", [5, -1])
def test_ids_that_are_not_there_are_refused(wrong):
    ids = np.array([[3, wrong]])
    low, high = sorted((3, wrong))
    message = (
        rf"`inputs` holds numbers from {low} to {high}, but the layer '\w+' has the ids 0 to 4"
    )
    for layer in (TokenEmbedding(5, 16), SegmentEmbedding(5, 16)):
        with pytest.raises(ValueError, match=message):
            layer(ids)
        if keras.backend.backend() == "jax" and device().is_cpu:  # it takes the nearest
            with pytest.raises(ValueError, match=message):
                layer(ops.convert_to_tensor(ids))
        if keras.backend.backend() != "torch":  # nothing is known of them in a program
            model = keras.Sequential([keras.Input((None,), dtype="int32"), layer])
            assert model.predict(np.array([[3, 4]]), verbose=0).shape == (1, 2, 16)


@pytest.mark.parametrize("shape", [(2, 3, 16), (1, 1, 16), (1, 16)])
def test_the_logits_use_the_same_matrix_transposed_and_are_not_scaled(shape):
    embedding = TokenEmbedding(5, 16, scale=True)
    states = random(*shape)
    embedding.build()
    assert len(embedding.weights) == 1
    assert_close(embedding(states, reverse=True), states @ numpy(embedding.embeddings).T)


def test_untied_logits_use_a_matrix_of_their_own():
    embedding = TokenEmbedding(5, 16, tie_weights=False)
    embedding.build()
    states = random(2, 3, 16)
    shapes = [tuple(w.shape) for w in embedding.weights]
    assert shapes == [(5, 16), (16, 5)]
    assert_close(embedding(states, reverse=True), states @ numpy(embedding.reverse_embeddings))


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
def test_padding_makes_a_keras_mask(scale, quantized):
    embedding = TokenEmbedding(5, 16, scale=scale, mask_zero=True)
    embedding.build()
    if quantized:
        embedding.quantize("int8")
    # The mean leaves out what is masked: the last token of the first row.
    states = embedding(IDS)
    mean = keras.layers.GlobalAveragePooling1D()(states)
    assert_close(mean[0], numpy(states)[0, :2].mean(axis=0))
    assert_close(mean[1], numpy(states)[1].mean(axis=0))
    assert embedding(states, reverse=True).shape == (2, 3, 5)


def test_int8_keeps_the_scale_and_is_close():
    embedding = TokenEmbedding(5, 16, scale=True)
    before = numpy(embedding(IDS))
    states = random(2, 3, 16)
    logits = numpy(embedding(states, reverse=True))
    embedding.quantize("int8")
    assert embedding.embeddings_scale.shape == (5,)
    # Half a step of 127 to each side.
    assert_close(embedding(IDS), before, atol=np.abs(before).max() / 254 + 1e-6)
    assert_close(embedding(states, reverse=True), logits, atol=0.03 * np.abs(logits).max())


def test_segments_look_up_a_vector_each():
    embedding = SegmentEmbedding(2, 8)
    states = embedding(np.array([[0, 0, 1]]))
    table = numpy(embedding.embeddings)
    assert_close(states, table[[0, 0, 1]][None])
    assert ops.shape(states) == (1, 3, 8)
