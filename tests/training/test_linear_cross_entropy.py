"""Value and gradient without the whole logits, against those with them."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.training import linear_cross_entropy
from keras_transformer.training.losses.losses import token_cross_entropy
from tests.training.gradients import value_and_gradients

RANDOM = np.random.default_rng(0)


def batch(shape=(3, 12), dim=8, vocabulary_size=50):
    return {
        "states": RANDOM.normal(size=(*shape, dim)).astype("float32"),
        "kernel": RANDOM.normal(size=(vocabulary_size, dim)).astype("float32"),
        "bias": RANDOM.normal(size=vocabulary_size).astype("float32"),
        "targets": RANDOM.integers(0, vocabulary_size, shape),
        "weights": np.where(RANDOM.random(shape) < 0.3, 0.0, RANDOM.random(shape)).astype(
            "float32"
        ),
    }


def plain(states, kernel, bias, targets, weights, label_smoothing):
    """From the whole logits: the mean loss, and the other sums."""
    logits = ops.matmul(states, ops.transpose(kernel))
    logits = logits if bias is None else ops.add(logits, bias)
    losses = token_cross_entropy(targets, logits, label_smoothing)
    weights = ops.convert_to_tensor(weights)
    return ops.sum(losses * weights) / ops.sum(weights), logits


@pytest.mark.parametrize("chunk_bytes", [1, 50 * 3 * 4 * 4, 10**9], ids=["1", "4", "12"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("with_bias", [False, True])
def test_value_and_gradient(chunk_bytes, label_smoothing, with_bias):
    given = batch()
    targets, weights = given["targets"], given["weights"]
    arrays = [given[name] for name in ("states", "kernel", "bias")[: 2 + with_bias]]

    def whole(*arrays):
        bias = arrays[2] if with_bias else None
        return plain(*arrays[:2], bias, targets, weights, label_smoothing)[0]

    def chunked(*arrays):
        sums = linear_cross_entropy(
            *arrays[:2],
            targets,
            weights,
            arrays[2] if with_bias else None,
            label_smoothing,
            chunk_bytes=chunk_bytes,
        )
        return sums.loss / sums.weight

    value, gradients = value_and_gradients(chunked, arrays)
    expected, expected_gradients = value_and_gradients(whole, arrays)
    assert abs(value - expected) < 1e-5
    for mine, theirs in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)
    assert np.abs(gradients[1]).max() > 1e-2


@pytest.mark.parametrize("gradient", [False, True, "states"])
def test_other_sums(gradient):
    given = batch(shape=(4, 30), vocabulary_size=6)
    sums = linear_cross_entropy(
        given["states"], given["kernel"], given["targets"], given["weights"], given["bias"],
        label_smoothing=0.2, gradient=gradient, chunk_bytes=500,
    )  # fmt: skip
    sums = [float(x) for x in sums]
    weights = given["weights"]
    _, logits = plain(*(given[n] for n in ("states", "kernel", "bias", "targets", "weights")), 0.0)
    smooth = token_cross_entropy(given["targets"], logits, 0.2)
    sharp = token_cross_entropy(given["targets"], logits)
    hits = ops.convert_to_numpy(logits).argmax(axis=-1) == given["targets"]
    expected = [float(ops.sum(ops.multiply(each, weights))) for each in (smooth, sharp)]
    expected += [(hits * weights).sum(), weights.sum()]
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    assert 0 < expected[2] < expected[3]


def test_padding_may_be_infinite():
    given = batch()
    given["states"][0, 5] = np.inf
    given["weights"][0, 5] = 0.0

    def loss(states):
        sums = linear_cross_entropy(
            states, given["kernel"], given["targets"], given["weights"], chunk_bytes=2000
        )
        return sums.loss / sums.weight

    assert np.isfinite(value_and_gradients(loss, [given["states"]])[0])


@pytest.mark.parametrize("nothing", [-100, -1, 10**6])
def test_a_padded_target_may_be_no_word(nothing):
    given = batch()
    given["weights"][0, 5] = 0.0

    def loss(states):
        sums = linear_cross_entropy(states, given["kernel"], given["targets"], given["weights"])
        return sums.loss / sums.weight

    expected = value_and_gradients(loss, [given["states"]])
    given["targets"][0, 5] = nothing
    found = value_and_gradients(loss, [given["states"]])
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1][0], expected[1][0])


def test_half_precision():
    given = batch()
    states, kernel = (
        ops.cast(ops.convert_to_tensor(given[name]), "bfloat16") for name in ("states", "kernel")
    )
    found = linear_cross_entropy(states, kernel, given["targets"], given["weights"])
    exact = linear_cross_entropy(
        ops.cast(states, "float32"),
        ops.cast(kernel, "float32"),
        given["targets"],
        given["weights"],
    )
    assert keras.backend.standardize_dtype(found.loss.dtype) == "float32"
    assert float(found.loss) == pytest.approx(float(exact.loss), rel=1e-2)


def test_sums_beyond_float16():
    """With 4,000 tokens and states of 50 the kernel's gradient is 1.6e5, and its mean 40."""
    states = np.full((2, 2000, 3), 50.0, "float16")
    kernel, targets = np.zeros((5, 3), "float16"), np.ones((2, 2000), "int32")

    def loss(states, kernel):
        sums = linear_cross_entropy(states, kernel, targets)
        return sums.loss / sums.weight

    _, (by_states, by_kernel) = value_and_gradients(loss, [states, kernel])
    assert by_kernel.dtype == by_states.dtype == "float16"
    expected = 50 * (0.2 - (np.arange(5) == 1))
    np.testing.assert_allclose(by_kernel, np.tile(expected[:, None], 3), rtol=1e-2)
    scaled = value_and_gradients(lambda *x: 1e5 * loss(*x), [states, kernel])[1][1]
    assert not np.isfinite(scaled).all()  # which loss scaling sees, and lowers its scale


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="counts what PyTorch makes")
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_no_copy_of_the_vocabulary(label_smoothing, monkeypatch):
    """Its mean, for which bfloat16 becomes float32, is of label smoothing alone."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    made = []

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            result = operation(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and not result._is_view():
                made.append((tuple(result.shape), result.dtype))
            return result

    # Processors without products of bfloat16 compute them in float32.
    monkeypatch.setattr("keras_transformer.kernels.torch_products.takes_bfloat16", lambda: True)
    given = batch(vocabulary_size=500)
    states, kernel = (
        ops.cast(ops.convert_to_tensor(given[name]), "bfloat16") for name in ("states", "kernel")
    )
    with Made():
        linear_cross_entropy(
            states, kernel, given["targets"], given["weights"],
            label_smoothing=label_smoothing, gradient="states", chunk_bytes=1,
        )  # fmt: skip
    assert ((500, 8) in {shape for shape, _ in made}) == bool(label_smoothing)
