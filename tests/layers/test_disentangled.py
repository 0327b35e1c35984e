"""Disentangled attention against its formula and the buckets of the Transformers library."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.layers import EncoderBlock, MultiHeadAttention, RelativeEmbedding
from tests.layers.conftest import assert_close, numpy

ROWS = np.array([[0, 1, 2, 3], [5, 9, 0, 40]])


@pytest.mark.parametrize(("half", "distance"), [(256, 512), (4, 9), (5, 7), (12, 12)])
def test_buckets_equal_transformers(half, distance):
    """Compare all distances; a rounding error would put the last into another bucket."""
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    far = np.arange(-600, 601)
    # Without logarithmic buckets they are cut.
    expected = torch.tensor(far)
    if half < distance:
        expected = theirs.make_log_bucket_position(expected, half, distance).long()
    layer = RelativeEmbedding(2, num_buckets=2 * half, max_distance=distance)
    found = numpy(layer(far[None], np.zeros((1, 1), int)).buckets)[0, :, 0]
    np.testing.assert_array_equal(found, np.clip(expected.numpy() + half, 0, 2 * half - 1))


@pytest.mark.parametrize("kind", ["shared", "own"])
def test_scores_are_those_of_the_paper(kind):
    """He et al. 2020, equation 4, for positions by row and heads that share keys."""
    keras.utils.set_random_seed(1)
    relative = RelativeEmbedding(12, num_buckets=8, max_distance=9)(ROWS, ROWS)
    layer = MultiHeadAttention(4, 3, num_key_value_heads=2, disentangled=kind)
    x = keras.random.normal((2, 4, 12))
    _, weights = layer(x, relative=relative, return_attention_scores=True)
    dense = {
        each.name: each for each in layer._flatten_layers() if isinstance(each, keras.layers.Dense)
    }
    assert ("position_key" in dense) == (kind == "own")
    prefix = "position_" if kind == "own" else ""

    def project(name, states, heads):
        states = numpy(states) @ numpy(dense[name].kernel)
        states = states.reshape(*states.shape[:-1], heads, 3)
        return states.repeat(4 // heads, axis=-2)

    queries, keys = project("query", x, 4), project("key", x, 2)
    of_queries = project(f"{prefix}query", relative.states, 4)[0][numpy(relative.buckets)]
    of_keys = project(f"{prefix}key", relative.states, 2)[0][numpy(relative.buckets)]
    scores = np.einsum("btnh,bsnh->bnts", queries, keys)
    scores += np.einsum("btnh,btsnh->bnts", queries, of_keys)
    scores += np.einsum("btsnh,bsnh->bnts", of_queries, keys)
    expected = np.exp(scores / np.sqrt(3 * 3))
    assert_close(weights, expected / expected.sum(-1, keepdims=True))


def test_the_first_state_alone_and_padding():
    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=20, hidden_dim=12, num_layers=2, num_heads=2,
        intermediate_dim=9, position="none", disentangled="shared", relative_num_buckets=6,
    )  # fmt: skip
    backbone = kt.models.Encoder(config)
    ids, mask = np.array([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0]]), np.arange(5) < [[5], [3]]
    states = numpy(backbone({"token_ids": ids, "padding_mask": mask}))
    first = backbone({"token_ids": ids, "padding_mask": mask}, first_only=True)
    assert_close(first, states[:, :1])
    other = backbone({"token_ids": np.where(mask, ids, 11), "padding_mask": mask})
    np.testing.assert_array_equal(numpy(other)[mask], states[mask])
    positions = np.arange(5)[None] + [[0], [7]]  # Distances are all that counts.
    moved = {"token_ids": ids, "padding_mask": mask, "position_ids": positions}
    assert_close(numpy(backbone(moved))[mask], states[mask])


def test_what_does_not_go_together():
    relative = RelativeEmbedding(12, num_buckets=8)(ROWS, ROWS)
    x = np.zeros((2, 4, 12), "float32")
    with pytest.raises(ValueError, match="received disentangled=None with `relative`"):
        EncoderBlock(2, 8)(x, relative=relative)
    with pytest.raises(ValueError, match="received disentangled='own' without `relative`"):
        EncoderBlock(2, 8, disentangled="own")(x)
    with pytest.raises(ValueError, match="must be one of 'shared', 'own', received 'both'"):
        MultiHeadAttention(2, 6, disentangled="both")
    with pytest.raises(ValueError, match="`disentangled` needs score='scaled_dot'"):
        MultiHeadAttention(2, 6, disentangled="own", score="general")
    for values in ({"num_buckets": 3}, {"num_buckets": 32, "max_distance": 15}):
        with pytest.raises(ValueError, match="`num_buckets` must be at least 4"):
            RelativeEmbedding(12, **values)
