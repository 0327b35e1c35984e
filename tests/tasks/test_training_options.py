"""Keras's training options together with the projection in the loss: each takes effect."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt

IDS = np.random.default_rng(0).integers(0, 30, (4, 8))
X = {"token_ids": IDS, "padding_mask": np.ones_like(IDS, bool)}
Y, WEIGHTS = (IDS + 1) % 30, np.ones(IDS.shape, "float32")


def make(optimizer, dtype=None, **values):
    keras.utils.set_random_seed(0)
    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=30, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=16, **values,
    )  # fmt: skip
    task = kt.CausalLM(kt.models.Decoder(config, dtype=dtype))
    task.compile(optimizer, kt.training.TokenCrossEntropy())
    assert task.training_loss() is not None
    return task


def train(task, batch_size=4, epochs=1):
    return task.fit(
        X, Y, sample_weight=WEIGHTS, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0
    ).history["loss"]


def values(task):
    return [np.array(ops.convert_to_numpy(variable)) for variable in task.weights]


def test_two_small_batches_are_a_large_one():
    large, small = (
        make(keras.optimizers.SGD(0.5)),
        make(keras.optimizers.SGD(0.5, gradient_accumulation_steps=2)),
    )
    before = values(large)
    train(large, batch_size=4)
    train(small, batch_size=2)
    for one, two in zip(values(large), values(small), strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-5)
    assert np.abs(values(large)[0] - before[0]).max() > 1e-3


def test_clipping_bounds_the_step():
    task = make(keras.optimizers.SGD(1.0, global_clipnorm=0.01))
    before = values(task)
    train(task)
    changes = [new - old for new, old in zip(values(task), before, strict=True)]
    norm = np.sqrt(sum((change.astype("float64") ** 2).sum() for change in changes))
    assert norm == pytest.approx(0.01, rel=1e-3)


def test_recomputing_changes_no_loss():
    losses = []
    for mode in (None, "full"):
        with keras.RematScope(mode=mode):
            losses.append(train(make(keras.optimizers.Adam(0.01)), epochs=3))
    assert losses[0][2] < losses[0][0]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_bfloat16_learns_as_float32_does():
    exact = train(make(keras.optimizers.Adam(0.01)), epochs=6)
    task = make(keras.optimizers.Adam(0.01), dtype="mixed_bfloat16")
    assert {v.dtype for v in task.weights} == {"float32"}
    np.testing.assert_allclose(train(task, epochs=6), exact, rtol=2e-2)
    assert exact[-1] < 0.9 * exact[0]


def test_float16_skips_what_overflows_and_goes_on():
    task = make(keras.optimizers.Adam(0.01), dtype="mixed_float16")
    assert isinstance(task.optimizer, keras.optimizers.LossScaleOptimizer)
    task = make(
        keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), 2.0**30), "mixed_float16"
    )
    before = values(task)
    losses = train(task)
    scale = float(ops.convert_to_numpy(task.optimizer.dynamic_scale))
    assert scale == 2.0**29 and int(task.optimizer.iterations) == 0
    for old, new in zip(before, values(task), strict=True):
        np.testing.assert_array_equal(old, new)
    losses += train(task, epochs=30)
    scale = float(ops.convert_to_numpy(task.optimizer.dynamic_scale))
    assert 2.0**8 < scale < 2.0**26
    assert np.isfinite(losses).all() and losses[-1] < 0.9 * losses[0]
    assert all(np.isfinite(value).all() for value in values(task))
