"""Log-probabilities of tokens, their gradients, and the frozen reference of a task."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.training import linear_log_probabilities, token_log_probabilities
from keras_transformer.training.log_probabilities import make_reference
from tests.training.gradients import value_and_gradients

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("chunk_bytes", [1, 10**9], ids=["in parts", "at once"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients_are_those_of_the_whole_logits(chunk_bytes, with_bias):
    states = RANDOM.normal(size=(3, 5, 8)).astype("float32")
    kernel, bias = (RANDOM.normal(size=s).astype("float32") for s in ((20, 8), (20,)))
    targets = RANDOM.integers(0, 20, (3, 5))
    mask = RANDOM.random((3, 5)) < 0.7
    factors = RANDOM.normal(size=(3, 5)).astype("float32")  # of both signs, one zero
    factors[0, 0] = 0
    arrays = [states, kernel, bias][: 2 + with_bias]

    def whole(states, kernel, bias=None):
        logits = ops.matmul(states, ops.transpose(kernel))
        scores = ops.log_softmax(logits if bias is None else logits + bias)
        found = ops.take_along_axis(scores, ops.convert_to_tensor(targets)[..., None], -1)[..., 0]
        return ops.where(ops.convert_to_tensor(mask), found, 0.0)

    def in_parts(states, kernel, bias=None):
        return linear_log_probabilities(states, kernel, targets, mask, bias, chunk_bytes)

    found = ops.convert_to_numpy(in_parts(*arrays))
    expected = ops.convert_to_numpy(whole(*map(ops.convert_to_tensor, arrays)))
    np.testing.assert_allclose(found, expected, atol=1e-5)

    def weighted(function):
        return value_and_gradients(
            lambda *given: ops.sum(ops.multiply(function(*given), factors)), arrays
        )[1]

    for mine, theirs in zip(weighted(in_parts), weighted(whole), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def make_lm(cap=None):
    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=30, hidden_dim=16, num_layers=2, num_heads=2,
        intermediate_dim=24, logit_soft_cap=cap,
    )  # fmt: skip
    lm = kt.CausalLM(kt.models.build_backbone(config))
    random = np.random.default_rng(1)
    for variable in lm.weights:
        if variable.name not in ("gamma", "scale"):
            variable.assign(random.normal(size=variable.shape, scale=0.3))
    return lm


INPUTS = {
    "token_ids": np.array([[3, 4, 5, 6], [7, 8, 0, 0]]),
    "padding_mask": np.array([[1, 1, 1, 1], [1, 1, 0, 0]], "bool"),
}
TARGETS = np.array([[4, 5, 6, 9], [8, 2, 0, 0]])


@pytest.mark.parametrize("cap", [None, 5.0])
def test_of_a_task_they_are_those_of_its_logits(cap):
    lm = make_lm(cap)
    found = token_log_probabilities(lm, INPUTS, TARGETS, INPUTS["padding_mask"])
    logits = ops.convert_to_numpy(lm(INPUTS)).astype("float64")
    scores = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = np.take_along_axis(scores, TARGETS[..., None], -1)[..., 0]
    expected = np.where(INPUTS["padding_mask"], expected, 0)
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected, atol=2e-5)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"


def test_a_reference_keeps_the_values_from_before_the_training():
    for reference in ("adapters", "copy"):
        lm = make_lm()
        before = ops.convert_to_numpy(token_log_probabilities(lm, INPUTS, TARGETS))
        if reference == "adapters":
            lm.enable_lora(2, targets=("query", "value", "output"))
        frozen = make_reference(lm)
        count = len(lm.variables) if reference == "copy" else 0
        assert len(frozen.variables) == count
        for variable in lm.trainable_variables:
            variable.assign_add(0.1 * RANDOM.normal(size=variable.shape))
        found = ops.convert_to_numpy(frozen.log_probabilities(INPUTS, TARGETS))
        np.testing.assert_allclose(found, before, atol=1e-6)
        after = ops.convert_to_numpy(token_log_probabilities(lm, INPUTS, TARGETS))
        assert np.abs(after - before).max() > 1e-2  # the adapters are on again


@pytest.mark.one_backend
def test_what_is_no_reference_is_refused():
    lm = make_lm()
    with pytest.raises(ValueError, match="`reference` must be one of 'auto', 'adapters', 'copy'"):
        make_reference(lm, "frozen")
    with pytest.raises(ValueError, match="no adapters"):
        make_reference(lm, "adapters")
    with pytest.raises(ValueError, match="the trained task itself"):
        make_reference(lm, lm)
    with pytest.raises(ValueError, match="must predict tokens"):
        token_log_probabilities(lm.backbone, INPUTS, TARGETS)
