"""The encoder backbone: segments, packing, pooling."""

import keras
import numpy as np
import pytest

from tests.layers.conftest import assert_close, differs, numpy
from tests.models.conftest import IDS, PADDING, small_backbone


def test_segments_are_zero_unless_given():
    backbone = small_backbone("encoder", segment_vocabulary_size=2)
    zeros, halves = np.zeros_like(IDS), np.array([[0, 0, 1, 1, 1]] * 2)
    before = backbone({"token_ids": IDS})
    assert_close(backbone({"token_ids": IDS, "segment_ids": zeros}), before)
    assert differs(backbone({"token_ids": IDS, "segment_ids": halves}), before)


@pytest.mark.parametrize(
    "values",
    [{"position": p} for p in ("sinusoidal", "learned", "rotary", "relative", "alibi")]
    + [{"position": "none", "window": 2}],
)
def test_packed_documents_equal_the_documents_alone(values):
    backbone = small_backbone("encoder", num_layers=1, **values)
    packs, positions = np.array([[0, 0, 0, 1, 1]] * 2), np.array([[0, 1, 2, 0, 1]] * 2)
    packed = numpy(backbone({"token_ids": IDS, "pack_ids": packs, "position_ids": positions}))
    for document in (slice(0, 3), slice(3, 5)):
        assert_close(packed[:, document], backbone({"token_ids": IDS[:, document]}))


def test_pooling():
    states = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    assert_close(small_backbone("encoder").pool(states), states[:, 0])
    pooled = small_backbone("encoder", pooler=True)
    kernel, bias = numpy(pooled.pooler.kernel), numpy(pooled.pooler.bias)
    assert_close(pooled.pool(states), np.tanh(states[:, 0] @ kernel + bias))


def test_embedding_normalization_is_over_the_sum():
    backbone = small_backbone("encoder", embedding_normalization=True, position="learned")
    stack, x = backbone.encoder, backbone.token_embedding(IDS)
    total = numpy(x) + numpy(stack.position_embedding.embeddings)[:5]
    centred = total - total.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    norm = stack.embedding_norm
    expected = expected * numpy(norm.gamma) + numpy(norm.beta)
    assert_close(stack._embed(x, None, None, False), expected)


def test_both_directions():
    backbone, changed = small_backbone("encoder"), IDS.copy()
    changed[0, 4] = 1
    before, after = (backbone({"token_ids": x, "padding_mask": PADDING}) for x in (IDS, changed))
    assert differs(before[0, :1], after[0, :1])


def test_any_length_in_a_functional_model():
    """Lengths that are not known yet, as they are for every layer of Keras."""
    backbone = small_backbone("encoder", position="learned", position_offset=2)
    inputs = {
        name: keras.Input((None,), dtype=dtype, name=name)
        for name, dtype in (("token_ids", "int32"), ("padding_mask", "bool"))
    }
    model = keras.Model(inputs, keras.layers.Dense(3)(backbone(inputs)[:, 0]))
    ids = np.ones((2, 5), "int32")
    batch = {"token_ids": ids, "padding_mask": ids > 0}
    assert model.predict(batch, verbose=0).shape == (2, 3)
