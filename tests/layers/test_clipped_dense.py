"""Dense layers whose inputs and outputs are clipped."""

import keras
import numpy as np
import pytest

from keras_transformer.config import Attention, Dense
from keras_transformer.layers import FeedForward, MultiHeadAttention
from keras_transformer.layers.dense import ClippedDense
from tests.layers.conftest import assert_close, numpy, random

X = random(2, 5, 8)
RANGES = {"input_min": -0.5, "input_max": 0.75, "output_min": -0.25, "output_max": 1.0}


def built(**options):
    layer = ClippedDense(6, **options)
    layer.build(X.shape)
    return layer


def with_ranges(layer):
    for name, value in RANGES.items():
        getattr(layer, name).assign(value)
    return layer


def test_is_its_formula():
    layer = built()
    assert_close(layer(X), X @ numpy(layer.kernel) + numpy(layer.bias))  # a new one clips nothing
    with_ranges(layer)
    expected = np.clip(X, -0.5, 0.75) @ numpy(layer.kernel) + numpy(layer.bias)
    assert np.abs(expected).max() > 1
    assert_close(layer(X), np.clip(expected, -0.25, 1.0))
    assert len(layer.trainable_variables) == 2 and len(layer.weights) == 6


def test_adapters_and_integers_are_clipped_too():
    layer = with_ranges(built(use_bias=False))
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(random(2, 6, seed=3))
    expected = np.clip(np.clip(X, -0.5, 0.75) @ numpy(layer.kernel), -0.25, 1.0)
    assert_close(layer(X), expected)
    plain = with_ranges(built(use_bias=False))
    plain.quantize("int8")
    found = numpy(plain(X))
    assert found.min() == -0.25 and found.max() <= 1.0


def test_keras_files_hold_the_ranges(tmp_path):
    layer = FeedForward(12, gated=True, clipped=True)
    layer.build(X.shape)
    for dense in (layer.intermediate_dense, layer.gate_dense, layer.output_dense):
        with_ranges(dense)
    model = keras.Sequential([keras.Input(X.shape[1:]), layer])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(again(X), model(X))
    assert np.abs(numpy(model(X))).max() <= 1.0


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Attention(num_heads=1, clipped=True, output_gate=True), "plain attention"),
        (lambda: Dense(dim=3, clipped=True, softmax_gate=True), "cannot be combined"),
        (lambda: FeedForward(3, clipped=True, softmax_gate=True), "cannot be combined"),
        (lambda: FeedForward(3, clipped=2), "`clipped` must be"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_attention_clips_each_projection():
    layer = MultiHeadAttention(Attention(num_heads=2, head_dim=4, clipped=True))
    layer.build(X.shape)
    before = numpy(layer(X))
    for dense in (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense):
        dense.output_max.assign(0.01)
        assert np.abs(numpy(layer(X)) - before).max() > 1e-4
        before = numpy(layer(X))
    assert before.max() <= 0.0101
