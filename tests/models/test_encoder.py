"""The encoder backbone: segments, packing, pooling."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import EncoderBlock
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


@pytest.mark.parametrize(
    "values",
    [
        {"position": "rotary", "query_key_norm": True, "num_layer_groups": 1},
        {"position": "relative", "normalize_first": True, "final_normalization": True},
        {"position": "alibi", "window": 2},
        {"position": "learned", "normalize_first": True, "parallel_residual": True},
        {
            "position": "rotary",
            "rotary_interleaved": True,
            "normalize_first": True,
            "parallel_residual": True,
            "share_normalization": True,
        },
        {"score": "location"},
    ],
)
def test_the_first_state_alone(values):
    """The last block computed for one token gives what all of them give for the first."""
    backbone = small_backbone("encoder", **values)
    positions = np.array([[0, 1, 2, 3, 4], [2, 3, 4, 5, 6]])
    packs = np.array([[0, 0, 0, 1, 1], [0, 0, 1, 2, 2]])
    inputs = {"token_ids": IDS, "padding_mask": PADDING}
    for further in ({}, {"position_ids": positions}, {"pack_ids": packs}):
        first = backbone({**inputs, **further}, first_only=True)
        assert first.shape == (2, 1, 8)
        assert_close(first, backbone({**inputs, **further})[:, :1])


def test_the_first_state_alone_rematerialized():
    with keras.RematScope(mode="full"):
        backbone = small_backbone("encoder")
    expected = small_backbone("encoder")({"token_ids": IDS})[:, :1]
    assert_close(backbone({"token_ids": IDS}, first_only=True, training=True), expected)


def test_the_first_state_in_a_functional_model():
    backbone = small_backbone("encoder")
    inputs = {"token_ids": keras.Input((None,), dtype="int32", name="token_ids")}
    states = backbone(inputs, first_only=True)
    assert states.shape == (None, 1, 8)
    assert_close(
        keras.Model(inputs, states)({"token_ids": IDS}), backbone({"token_ids": IDS})[:, :1]
    )


def test_a_block_in_a_functional_model():
    block = EncoderBlock(num_heads=2, intermediate_dim=16)
    states = keras.Input((None, 8))
    first = block(states, first_only=True)
    assert block(states).shape == (None, None, 8) and first.shape == (None, 1, 8)


def test_pooling():
    states = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    assert_close(small_backbone("encoder").pool(states), states[:, 0])
    pooled = small_backbone("encoder", pooler=True)
    kernel, bias = numpy(pooled.pooler.kernel), numpy(pooled.pooler.bias)
    assert_close(pooled.pool(states), np.tanh(states[:, 0] @ kernel + bias))


def test_embedding_normalization_is_over_the_sum():
    backbone = small_backbone("encoder", embedding_normalization=True, position="learned")
    stem, x = backbone.stem, backbone.token_embedding(IDS)
    total = numpy(x) + numpy(stem.position_embedding.embeddings)[:5]
    centred = total - total.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    norm = stem.embedding_norm
    expected = expected * numpy(norm.gamma) + numpy(norm.beta)
    assert_close(stem({"token_ids": IDS}).states, expected)


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
