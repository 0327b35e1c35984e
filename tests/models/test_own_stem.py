"""A stem of one's own, as docs/add_an_input.md makes one: what is said of its arrays."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.layers.stems import Embedded, Input, Stem

pytestmark = pytest.mark.one_backend
BYTES = np.arange(24).reshape(2, 12)


class Patches(Stem):
    """Four bytes a state, masked by state or by byte, and a vector that all states are given."""

    inputs = (
        Input("bytes", "int32", (None,), required=True, below=256),
        Input("padding_mask", "bool", (None,), of_tokens=False),
        Input("observed", "bool", (None,)),
        Input("place", "float32", (2,), of_tokens=False),
        Input("hour", "int32", (None,)),
    )

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embedding = keras.layers.Embedding(256, 8)
        self.patches = keras.layers.Conv1D(8, 4, strides=4, padding="same")

    def build(self, input_shape=None):
        self.embedding.build((None, None))
        self.patches.build((None, None, 8))

    def call(self, inputs, training=False):
        return Embedded(self.patches(self.embedding(inputs["bytes"])), inputs.get("padding_mask"))


@pytest.fixture(scope="module")
def backbone():
    sizes = {"vocabulary_size": 0, "hidden_dim": 8, "num_layers": 1, "num_heads": 2}
    config = kt.TransformerConfig(kind="encoder", intermediate_dim=8, position="none", **sizes)
    return kt.models.Encoder(config, stem=Patches())


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("bytes", BYTES + 250, "`bytes` holds .* to 273, but the model takes .* 0 to 255"),
        ("bytes", BYTES - 1, "`bytes` holds numbers from -1 "),
        ("bytes", BYTES / 2, "`bytes` must hold integers"),
        ("observed", BYTES, "`observed` must be True or False; received int64"),
        ("padding_mask", BYTES[:, :3], "for a token and False, or 0, for padding; received int64"),
        ("place", np.full((2, 2), np.nan), "`place` must hold finite floats"),
        ("hour", BYTES + 2**31, "`hour` holds .* int32 has the numbers"),
    ],
)
def test_what_an_array_may_hold(backbone, name, array, message):
    with pytest.raises(ValueError, match=message):
        backbone({"bytes": BYTES, name: array})


def test_arrays_of_any_kind_are_taken(backbone):
    further = {
        "padding_mask": np.array([[True, True, True], [True, True, False]]),
        "observed": BYTES > 3,
        "place": np.ones((2, 2)),
        "hour": BYTES - 5,
    }
    assert backbone({"bytes": BYTES, **further}).shape == (2, 3, 8)


def test_a_mask_of_states(backbone):
    """Tasks pool by it: where states are fewer than columns the mask is of states."""
    task = kt.TextClassifier(backbone, num_classes=2, pooling="mean", dropout=0.0)
    mask = np.array([[True, True, True], [True, True, False]])
    other = BYTES.copy()
    other[1, 8:] = 0
    outputs = [task({"bytes": x, "padding_mask": mask}) for x in (BYTES, other)]
    assert np.allclose(*map(keras.ops.convert_to_numpy, outputs), atol=1e-6)
    task.fit({"bytes": BYTES, "padding_mask": mask}, np.array([0, 1]), verbose=0)
    inputs = {n: keras.Input((None,), dtype="int32", name=n) for n in ("bytes",)}
    assert keras.Model(inputs, backbone(inputs)).predict({"bytes": BYTES}).shape == (2, 3, 8)


def test_a_preset_cannot_hold_it(backbone, tmp_path):
    task = kt.TextClassifier(backbone, num_classes=2)
    for save in (task.save_to_preset, backbone.save_to_preset):
        with pytest.raises(ValueError, match="Patches is a class of your own. Save the model as K"):
            save(tmp_path / "p")
    with pytest.raises(ValueError, match="Patches is a class of your own"):
        kt.export_to_huggingface(task, tmp_path / "h")
