"""Functional models of positions and of whole backbones: shapes, files, copies."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import layers
from tests.layers.conftest import assert_close, numpy, random, randomize

X = random(2, 5, 8)
POSITIONS = np.array([[0, 1, 2, 3, 4], [5, 4, 0, 0, 1]], "int32")
IDS = np.array([[3, 1, 2, 0], [1, 2, 4, 5]], "int32")
MASK = IDS > 0
SIZES = {"vocabulary_size": 20, "hidden_dim": 8, "num_layers": 1, "num_heads": 2}

ADDED = {
    "sinusoidal": lambda: layers.SinusoidalPosition(),
    "learned": lambda: layers.LearnedPosition(9, 8),
}


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", ADDED)
def test_positions_have_the_shape_of_what_they_are_added_to(name, given, batch, tmp_path):
    layer = ADDED[name]()
    x = keras.Input((None, 8), batch_size=batch, name="x")
    positions = keras.Input((None,), batch_size=batch, dtype="int32", name="positions")
    options = {"positions": positions} if given else {}
    vectors = layer(x, **options)
    outputs = [vectors, keras.layers.Add()([x, vectors]), x + vectors, vectors + x]
    assert [y.shape for y in outputs] == 4 * [(batch, None, 8)]
    model = keras.Model({"x": x, "positions": positions}, outputs)
    arrays = {"x": X, "positions": POSITIONS}
    found = model(arrays)
    table = layer(X, **({"positions": POSITIONS} if given else {}))
    assert table.shape == X.shape
    for sum_ in found[1:]:
        assert_close(sum_, X + numpy(table))
    assert_close(found[0], table)
    one = layer(X, positions=POSITIONS[:1])  # the same for all rows
    assert one.shape == X.shape
    assert_close(one, layer(X))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")(arrays)
    for mine, theirs in zip(loaded, found, strict=True):
        assert_close(mine, theirs)


@pytest.mark.parametrize("name", ADDED)
def test_the_mask_of_padding_goes_through_the_sum(name):
    """A sum of Keras has a mask if all of its terms have one."""
    ids = keras.Input((None,), dtype="int32")
    embedding, block = layers.TokenEmbedding(9, 8, mask_zero=True), layers.EncoderBlock(2, 12)
    x = embedding(ids)
    model = keras.Model(ids, block(keras.layers.Add()([x, ADDED[name]()(x)])))
    short, padded = np.array([[3, 1, 2]], "int32"), np.array([[3, 1, 2, 0, 0]], "int32")
    assert_close(model(padded)[:, :3], model(short))


def test_a_bias_of_positions_has_the_batch_of_either():
    row, rows = np.arange(5)[None], POSITIONS
    for bias in (layers.ALiBi(2), layers.RelativePositionBias(2, 8, 16)):
        for queries, keys in ((row, rows), (rows, row), (row, row), (rows, rows)):
            symbolic = [keras.KerasTensor(p.shape, dtype="int32") for p in (queries, keys)]
            assert bias(*symbolic).shape == bias(queries, keys).shape


def encoder(**values):
    config = kt.TransformerConfig(kind="encoder", **SIZES, intermediate_dim=12, **values)
    return randomize(kt.models.Encoder(config))


def seq2seq(**values):
    config = kt.TransformerConfig(kind="seq2seq", **SIZES, intermediate_dim=12, position="learned",
                                  max_sequence_length=9, **values)  # fmt: skip
    return randomize(kt.models.Seq2Seq(config))


def decoder():
    config = kt.TransformerConfig(
        kind="decoder", **SIZES, intermediate_dim=12, tie_embeddings=False, output_bias=True
    )
    return randomize(kt.models.Decoder(config))


def pooled(backbone, inputs):
    return keras.layers.Dense(3)(backbone.pool(backbone(inputs)))


def pooled_first(backbone, inputs):
    return backbone.pool(backbone(inputs, first_only=True))


def all_logits(backbone, inputs):
    states = backbone(inputs)
    return backbone.logits(keras.layers.Dropout(0.1)(states)), states


def encoded(backbone, inputs):
    return backbone.encode(inputs["token_ids"], inputs["padding_mask"])


def encoded_and_decoded(backbone, inputs):
    states = backbone.encode(inputs["token_ids"], padding_mask=inputs["padding_mask"])
    given = {"encoder_states": states, "encoder_padding_mask": inputs["padding_mask"]}
    return backbone.logits(backbone({**given, "decoder_token_ids": inputs["token_ids"]}))


WHOLE = {
    "pool": (lambda: encoder(pooler=True), pooled, (None, 3)),
    "pool without pooler": (encoder, pooled, (None, 3)),
    "first_only": (lambda: encoder(pooler=True), pooled_first, (None, 8)),
    "logits": (decoder, all_logits, [(None, None, 20), (None, None, 8)]),
    "logits of an encoder": (
        lambda: encoder(embedding_dim=8, scale_logits=True),
        all_logits,
        [(None, None, 20), (None, None, 8)],
    ),
    "encode": (seq2seq, encoded, (None, None, 8)),
    "encode and logits": (seq2seq, encoded_and_decoded, (None, None, 20)),
    "encode and project": (
        lambda: seq2seq(projector="linear", encoder={"hidden_dim": 12}),
        encoded,
        (None, None, 8),
    ),
    "transformed logits": (
        lambda: seq2seq(output_transform="gelu"),
        encoded_and_decoded,
        (None, None, 20),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_backbone_in_a_functional_model(name, tmp_path):
    """Its methods are calls of it: in a file and in a copy it is there once, with its weights."""
    make, compute, shape = WHOLE[name]
    backbone = make()
    inputs = {
        "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
        "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
    }
    model = keras.Model(inputs, compute(backbone, inputs))
    shapes = [tuple(s) for s in ([shape] if isinstance(shape, tuple) else shape)]
    assert [tuple(x.shape) for x in model.outputs] == shapes
    arrays = {"token_ids": IDS, "padding_mask": MASK}
    expected = keras.tree.flatten(model(arrays))
    direct = keras.tree.flatten(compute_eagerly(model, backbone, compute, arrays))
    model.save(tmp_path / "model.keras")
    copies = {
        "file": keras.models.load_model(tmp_path / "model.keras"),
        "clone": keras.models.clone_model(model),
        "config": keras.Model.from_config(model.get_config()),
    }
    for copied in (copies["clone"], copies["config"]):
        copied.set_weights(model.get_weights())
    for copied in copies.values():
        assert len(copied.weights) == len(model.weights)
        for mine, theirs in zip(keras.tree.flatten(copied(arrays)), expected, strict=True):
            assert_close(mine, theirs)
    if direct:
        for mine, theirs in zip(direct, expected, strict=True):
            assert_close(mine, theirs)


def compute_eagerly(model, backbone, compute, arrays):
    """The same methods of the backbone on arrays, where no other layer has weights."""
    return [] if len(model.weights) != len(backbone.weights) else compute(backbone, arrays)


def test_methods_of_a_backbone_learn_in_a_functional_model():
    """The pooler and the tied kernel get gradients through them."""
    backbone = encoder(pooler=True)
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    states = backbone({"token_ids": ids})
    outputs = [backbone.pool(states), backbone.logits(states)]
    model = keras.Model({"token_ids": ids}, outputs)
    assert len(model.trainable_weights) == len(backbone.trainable_weights)
    before = {v.path: keras.ops.convert_to_numpy(v) for v in backbone.trainable_weights}
    model.compile(keras.optimizers.SGD(0.1), "mse")
    targets = [np.zeros((2, 8), "float32"), np.zeros((2, 4, 20), "float32")]
    model.train_on_batch({"token_ids": IDS}, targets)
    moved = [
        v.path for v in backbone.trainable_weights
        if np.abs(keras.ops.convert_to_numpy(v) - before[v.path]).max() > 1e-6
    ]  # fmt: skip
    assert any("pooler/kernel" in path for path in moved)
    assert any("token_embedding" in path for path in moved)
