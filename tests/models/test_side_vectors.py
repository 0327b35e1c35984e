"""Backbones of one side whose config says how their states become a vector."""

import keras
import numpy as np
import pytest

import keras_transformer as kt

_SIZES = {"hidden_dim": 12, "num_layers": 1, "num_heads": 3, "intermediate_dim": 20}
_SIZES |= {"position": "learned", "max_sequence_length": 9, "normalize_first": True}
_STEM = {"kind": "patches", "image_size": [8, 8], "patch_size": 4}


def assert_close(found, expected, bound):
    assert np.abs(keras.ops.convert_to_numpy(found) - expected).max() <= bound


def tower(**values):
    config = {**_SIZES, "kind": "encoder", "vocabulary_size": 0, "stem": _STEM}
    return kt.TransformerConfig(**config | {"vector_pooling": "first"} | values)


def texts(kind="decoder", **values):
    config = {**_SIZES, "kind": kind, "vocabulary_size": 30, "vector_pooling": "end"}
    return kt.TransformerConfig(**config | {"vector_end_id": 29} | values)


def test_the_state_of_the_first_place_normalized_and_projected():
    config = tower(vector_normalization=True, final_normalization=False, vector_dim=5)
    backbone = kt.models.Encoder(config)
    images = {"images": np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")}
    states = backbone(images)
    gamma = np.linspace(0.5, 2, 12).astype("float32")
    backbone.vector.norm.gamma.assign(gamma)
    first = keras.ops.convert_to_numpy(states)[:, 0]
    spread = np.sqrt(first.var(1, keepdims=True) + config.normalization_epsilon)
    normal = (first - first.mean(1, keepdims=True)) / spread
    kernel = keras.ops.convert_to_numpy(backbone.vector.projection.kernel)
    assert_close(backbone.pool(states), (normal * gamma) @ kernel, 1e-5)
    assert backbone(images, first_only=True).shape == (2, 1, 12)


def test_the_state_of_the_end():
    backbone = kt.models.Decoder(texts())
    ids = np.array([[4, 29, 6, 0], [7, 8, 9, 29]], "int32")
    states = backbone({"token_ids": ids})
    found = backbone.pool(states, keras.ops.convert_to_tensor(ids))
    expected = keras.ops.convert_to_numpy(states)[[0, 1], [1, 3]]
    assert_close(found, expected, 1e-6)


@pytest.mark.parametrize("config", [tower(vector_dim=5), texts(), texts("encoder")])
def test_a_functional_model_of_the_vectors(tmp_path, config):
    """The backbone is one layer of it, its weights once in its file."""
    backbone = kt.models.build_backbone(config)
    random = np.random.default_rng(1)
    if config.stem is None:
        inputs = {"token_ids": keras.Input((4,), dtype="int32", name="token_ids")}
        arrays = {"token_ids": random.integers(3, 29, (3, 4)).astype("int32")}
        arrays["token_ids"][:, 2] = 29
        pooled = backbone.pool(backbone(inputs), inputs["token_ids"])
    else:
        inputs = {"images": keras.Input((8, 8, 3), name="images")}
        arrays = {"images": random.normal(size=(3, 8, 8, 3)).astype("float32")}
        pooled = backbone.pool(backbone(inputs))
    assert pooled.shape == (None, config.vector_width)
    model = keras.Model(inputs, keras.layers.Dense(2)(pooled))
    expected = model.predict(arrays, verbose=0)
    assert len(model.weights) == len(backbone.weights) + 2
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert np.abs(again.predict(arrays, verbose=0) - expected).max() <= 1e-6


@pytest.mark.one_backend
def test_what_has_no_vector_is_told():
    plain = kt.models.Decoder(texts(vector_pooling=None, vector_end_id=None))
    with pytest.raises(ValueError, match="its config has no `vector_pooling`"):
        plain.pool(np.zeros((1, 2, 12), "float32"))
    with pytest.raises(ValueError, match="`vector_dim`=5 needs a `vector_pooling`"):
        tower(vector_pooling=None, vector_dim=5)
    with pytest.raises(ValueError, match="is for texts, not for the image encoder"):
        tower(vector_pooling="last")
    with pytest.raises(ValueError, match="`bidirectional` needs kind='dual'"):
        kt.models.Decoder(texts(bidirectional=True))
    block = kt.layers.DecoderBlock(3, 20, causal=False)
    states = np.zeros((1, 2, 12), "float32")
    block.build(states.shape)
    with pytest.raises(ValueError, match="causal=False sees later tokens"):
        block(states, cache={"self": None, "cross": None})
