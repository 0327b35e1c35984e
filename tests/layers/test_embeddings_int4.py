"""Embeddings in int4 take the numbers of a few rows, not of the table."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import TokenEmbedding


@pytest.mark.parametrize("block_size", [8, -1])
@pytest.mark.parametrize("width", [16, 15])
def test_rows_are_those_of_keras(block_size, width):
    embedding = TokenEmbedding(11, width)
    embedding.build()
    embedding.quantize(config=keras.quantizers.Int4QuantizationConfig(block_size=block_size))
    ids = np.array([[3, 0, 10], [7, 7, 1]])
    found = ops.convert_to_numpy(embedding(ids))
    expected = keras.layers.ReversibleEmbedding.quantized_call(embedding, ids)
    assert found.shape == (2, 3, width)
    np.testing.assert_allclose(found, ops.convert_to_numpy(expected), rtol=1e-6, atol=1e-7)
