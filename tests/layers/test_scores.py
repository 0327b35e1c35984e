"""Each score function against its formula in NumPy."""

import numpy as np
import pytest

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers.attention import scores
from tests.layers.conftest import assert_close, numpy, random, randomize

HEADS, HEAD_DIM = 3, 4
Q, K = random(2, HEADS, 5, HEAD_DIM), random(2, HEADS, 7, HEAD_DIM, seed=1)


def scored(layer, queries, keys):
    """The scores of projected queries and keys, as attention computes them."""
    if layer.prepares:
        found = layer.prepared(*(np.swapaxes(x, 1, 2) for x in (queries, keys)))
        queries, keys = (np.swapaxes(numpy(x), 1, 2) for x in found)
    return layer(queries, keys)


def score_of(name, formula):
    """The formula for each batch row, head, query and key, as the layer and as NumPy have it."""
    layer = scores.get(name, HEADS, HEAD_DIM, max_sequence_length=9)
    layer.build(None)
    randomize(layer)
    expected = np.zeros((2, HEADS, 5, 7))
    for b, h, t, s in np.ndindex(*expected.shape):
        expected[b, h, t, s] = formula(layer, Q[b, h, t], K[b, h, s], h, s)
    return scored(layer, Q, K), expected.astype("float32")


FORMULAS = {
    "scaled_dot": lambda layer, q, k, h, s: q @ k / np.sqrt(HEAD_DIM),
    "dot": lambda layer, q, k, h, s: q @ k,
    "general": lambda layer, q, k, h, s: q @ numpy(layer.kernel)[h] @ k,
    "additive": lambda layer, q, k, h, s: numpy(layer.kernel)[h] @ np.tanh(q + k),
    "cosine": lambda layer, q, k, h, s: (
        numpy(layer.strength)[h] * (q @ k) / np.linalg.norm(q) / np.linalg.norm(k)
    ),
    "scaled_cosine": lambda layer, q, k, h, s: (
        np.exp(numpy(layer.log_strength)[h]) * (q @ k) / np.linalg.norm(q) / np.linalg.norm(k)
    ),
    "location": lambda layer, q, k, h, s: q @ numpy(layer.kernel)[h, :, s],
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name):
    assert_close(*score_of(name, FORMULAS[name]))


@pytest.mark.parametrize("name", FORMULAS)
def test_key_heads_that_query_heads_share(name):
    """Four query heads on two key heads: the first two on the first, the others on the second."""
    queries, keys = random(2, 4, 5, HEAD_DIM), random(2, 2, 7, HEAD_DIM, seed=1)
    layer = scores.get(name, 4, HEAD_DIM, max_sequence_length=9)
    layer.build(None)
    randomize(layer)
    assert_close(scored(layer, queries, keys), scored(layer, queries, keys[:, [0, 0, 1, 1]]))


@pytest.mark.parametrize("name", FORMULAS)
def test_attention_with_this_score(name):
    """The attention is the softmax of the scores, and only of those."""
    x = random(2, 5, 8)
    layer = MultiHeadAttention(HEADS, HEAD_DIM, score=name, max_sequence_length=9)
    layer.build(x.shape)
    randomize(layer)
    queries, keys, values = (
        numpy(dense(x)).reshape(2, 5, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)
        for dense in (layer.query_dense, layer.key_dense, layer.value_dense)
    )
    logits = np.exp(numpy(scored(layer.score_function, queries, keys)).astype("float64"))
    expected = logits / logits.sum(axis=-1, keepdims=True)
    output, weights = layer(x, return_attention_scores=True)
    assert_close(weights, expected.astype("float32"))
    merged = np.einsum("bhts,bhsd->bthd", expected, values).reshape(2, 5, -1)
    dense = layer.output_dense
    expected = merged @ numpy(dense.kernel) + numpy(dense.bias)
    assert_close(output, expected.astype("float32"))
    assert_close(layer(x), output)


def test_location_needs_its_slots():
    with pytest.raises(ValueError, match="one weight for each slot: give `max_sequence_length`"):
        MultiHeadAttention(2, 4, score="location")
    layer = MultiHeadAttention(2, 4, score="location", max_sequence_length=3)
    with pytest.raises(ValueError, match="has 3 slots, received 5 keys. Truncate"):
        layer(random(1, 5, 8))


@pytest.mark.parametrize("name", ["cosine", "scaled_cosine"])
def test_a_zero_vector_has_a_finite_cosine(name):
    layer = scores.get(name, HEADS, HEAD_DIM)
    layer.build(None)
    assert np.isfinite(numpy(scored(layer, Q * 0, K))).all()


def test_the_strength_of_a_scaled_cosine_is_at_most_100():
    layer = scores.get("scaled_cosine", HEADS, HEAD_DIM)
    layer.build(None)
    assert_close(numpy(scored(layer, K, K))[0, :, 0, 0], np.full(HEADS, 10, "float32"))
    layer.log_strength.assign([4.0, 5.0, 50.0])
    expected = np.array([np.exp(4), 100, 100], "float32")
    assert np.abs(numpy(scored(layer, K, K))[0, :, 0, 0] - expected).max() <= 1e-4
