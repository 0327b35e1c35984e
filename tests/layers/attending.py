"""Shared code of attention tests: a layer with random weights, and its reference formulas."""

import numpy as np

from keras_transformer.layers import MultiHeadAttention
from tests.layers.conftest import assert_close, numpy, random, randomize

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
