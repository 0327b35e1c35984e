"""Inner states and attention weights of a model, requested by an argument."""

import numpy as np
import pytest

import keras_transformer as kt
from tests.layers.conftest import assert_close, numpy
from tests.models.conftest import small_backbone

IDS = np.array([[3, 4, 5, 6, 7], [8, 9, 0, 0, 0]])
MASK = IDS != 0


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_states_and_attention(kind):
    backbone = small_backbone(kind, normalize_first=True)
    inputs = {"token_ids": IDS, "padding_mask": MASK}
    output, found = backbone(inputs, collect=("states", "attention"))
    assert_close(output, backbone(inputs))
    assert_close(found["states"][-1], output)
    depth = backbone.config.num_layers
    assert len(found["states"]) == depth + 1 and len(found["attention"]) == depth
    (stack,) = backbone.stacks
    stem = backbone.stem(inputs).states
    assert_close(found["states"][0], stem)
    block = stack.blocks[0]
    assert_close(block(stem, mask=MASK), found["states"][1])
    for weights in map(numpy, found["attention"]):
        assert weights.shape == (2, backbone.config.num_heads, 5, 5)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
        assert (weights[1, :, :, 2:] == 0).all()  # padding
        assert kind == "encoder" or (np.triu(weights, 1) == 0).all()


def test_both_sides_of_a_seq2seq():
    backbone = small_backbone("seq2seq", num_decoder_layers=1)
    inputs = {
        "encoder_token_ids": IDS,
        "encoder_padding_mask": MASK,
        "decoder_token_ids": IDS[:, :3],
    }
    output, found = backbone(inputs, collect=("states", "attention"))
    assert_close(output, backbone(inputs))
    assert {name: len(each) for name, each in found.items()} == {
        "states": 2, "attention": 1, "cross_attention": 1, "encoder_states": 3,
        "encoder_attention": 2,
    }  # fmt: skip
    encoded = backbone.encode(IDS, MASK)
    assert_close(found["encoder_states"][-1], encoded)
    assert found["cross_attention"][0].shape == (2, backbone.config.num_heads, 3, 5)


def test_windows_and_a_table_of_biases_for_each_layer():
    """Without the attention, the bias is computed for the pairs within the windows only."""
    values = {"position": "relative", "relative_tables": "own", "window": 2}
    backbone = small_backbone("encoder", max_sequence_length=48, vocabulary_size=12, **values)
    inputs = {"token_ids": 3 + np.arange(48).reshape(1, 48) % 9}
    output, _ = backbone(inputs, collect=("attention",))
    assert_close(backbone(inputs), output)


def test_with_a_cache():
    backbone = small_backbone("decoder")
    whole, expected = backbone({"token_ids": IDS}, collect=("states",))
    cache = kt.generation.Cache.create(backbone, rows=2, slots=8)
    _, cache = backbone({"token_ids": IDS[:, :4]}, cache=cache)
    last, _, found = backbone({"token_ids": IDS[:, 4:]}, cache=cache, collect=("states",))
    assert_close(last, whole[:, 4:])
    for state, of_all in zip(found["states"], expected["states"], strict=True):
        assert_close(state, of_all[:, 4:])


def test_a_task_hands_it_on():
    """With it the last block is not computed for the first token alone."""
    backbone = small_backbone("encoder")
    classifier = kt.TextClassifier(backbone, num_classes=2)
    logits, found = classifier({"token_ids": IDS}, collect=("states",))
    assert_close(logits, classifier({"token_ids": IDS}))
    assert_close(found["states"][-1], backbone({"token_ids": IDS}))


def test_what_cannot_be_collected():
    with pytest.raises(
        ValueError,
        match="'queries' and 'keys', received \\['gradients'\\]",
    ):
        small_backbone("encoder")({"token_ids": IDS}, collect=("gradients",))


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_embeddings_in_place_of_ids(kind):
    backbone = small_backbone(kind)
    embedded = backbone.token_embedding(IDS)
    given = {"token_ids": IDS, "token_embeddings": embedded}
    assert_close(backbone(given), backbone({"token_ids": IDS}))
    other = backbone({**given, "token_embeddings": embedded * 2})
    assert np.abs(numpy(other) - numpy(backbone(given))).max() > 1e-2
    with pytest.raises(ValueError, match="`token_embeddings` must have the shape of `token_ids`"):
        backbone({**given, "token_embeddings": numpy(embedded)[:, :3]})
    with pytest.raises(ValueError, match="must hold finite floats, received some that are NaN"):
        backbone({**given, "token_embeddings": numpy(embedded) * np.nan})


@pytest.mark.one_backend
def test_how_it_is_asked_for():
    backbone = small_backbone("encoder")
    with pytest.raises(ValueError, match=r"`collect` must be a tuple.*received 'states'"):
        backbone({"token_ids": IDS}, collect="states")
    with pytest.raises(ValueError, match=r"unlike Transformers\. It is `collect=\(\"states\",\)`"):
        backbone({"token_ids": IDS}, output_hidden_states=True)
