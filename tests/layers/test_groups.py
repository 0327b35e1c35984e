"""Attention of some rows at a time, in a program of JAX: as of all rows at once."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.device import Device, device
from keras_transformer.layers import AttentionMask, MultiHeadAttention
from tests.layers.conftest import random, randomize
from tests.layers.test_blocks import largest
from tests.thorough import a_part
from tests.training.gradients import value_and_gradients

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="of programs of JAX")

BATCH, LENGTH, DIM = 5, 20, 8
OPTIONS = [
    {},
    {"causal": True},
    {"rotary": {"base": 100.0}, "num_key_value_heads": 2, "causal": True},
    {"attention_soft_cap": 2.0, "num_key_value_heads": 1},
    {"attention_sinks": True},
    {"score": "additive"},
    {"score": "general", "query_key_norm": "rms_norm"},
]


def made(**options):
    layer = MultiHeadAttention(4, 6, **options)
    layer.build((BATCH, LENGTH, DIM))
    return randomize(layer)


@pytest.fixture
def two_rows(monkeypatch):
    """Two rows at a time, so that the last group has one, and one of zeros."""
    monkeypatch.setattr(Device, "scores_bytes", 2 * 4 * LENGTH * 4 * LENGTH)


def losses(layer):
    """Losses with padding, packs, biases per row or for all, other keys, and masks of pairs."""
    rng = np.random.default_rng(0)
    real = np.arange(LENGTH) < rng.integers(3, LENGTH, (BATCH, 1))
    packs = np.arange(LENGTH)[None] >= rng.integers(0, LENGTH, (BATCH, 1))
    explicit = rng.random((BATCH, LENGTH, LENGTH)) < 0.7
    of_rows, of_all = random(BATCH, 4, LENGTH, LENGTH), random(1, 4, LENGTH, LENGTH)
    given = [
        {"mask": real},
        {"mask": real, "visibility": AttentionMask(query_pack=packs.astype("int32"))},
        {"visibility": AttentionMask(explicit=explicit | np.eye(LENGTH, dtype=bool))},
        {"bias": of_rows, "mask": real},
        {"bias": of_all},
        {"value": random(BATCH, 7, DIM, seed=4)},
    ]
    for options in given:
        seen = real[..., None] if "mask" in options else np.ones((BATCH, LENGTH, 1), bool)

        def loss(x, options=options, seen=seen):
            found = layer(x, training=True, **options)
            return ops.sum(ops.square(ops.where(seen, found, 0)))

        yield loss


@pytest.mark.parametrize("options", a_part(OPTIONS, 2), ids=str)
def test_equals_all_rows_at_once(request, options):
    """The sum, and the gradients of the states."""
    layer, x = made(**options), [random(BATCH, LENGTH, DIM)]
    expected = [value_and_gradients(loss, x) for loss in losses(layer)]
    request.getfixturevalue("two_rows")
    for loss, (value, (gradient,)) in zip(losses(layer), expected, strict=True):
        found, (by_rows,) = value_and_gradients(loss, x)
        assert found == pytest.approx(value, rel=1e-5)
        np.testing.assert_allclose(by_rows, gradient, atol=1e-5 * np.abs(gradient).max())


def test_a_step_of_training_moves_all_weights_alike(request):
    """The sinks are a weight that each group reads."""

    def step():
        layer = made(attention_sinks=True, causal=True)
        inputs = keras.Input((LENGTH, DIM))
        model = keras.Model(inputs, layer(inputs))
        model.compile(keras.optimizers.SGD(1.0), "mse")
        x = random(BATCH, LENGTH, DIM)
        return [float(model.train_on_batch(x, np.zeros_like(x))), *map(np.asarray, layer.weights)]

    whole = step()
    request.getfixturevalue("two_rows")
    for mine, expected in zip(step(), whole, strict=True):
        np.testing.assert_allclose(mine, expected, atol=2e-5)


@pytest.mark.usefixtures("two_rows")
@pytest.mark.parametrize("seed", [None, 3])
def test_groups_drop_the_same_when_they_compute_again(seed):
    """The output is linear in the values: it is their product with its gradient."""
    layer = made(dropout=0.5, use_bias=False, output_bias=False, seed=seed)
    query, factors = random(BATCH, LENGTH, DIM), random(BATCH, LENGTH, DIM, seed=2)
    given = random(BATCH, LENGTH, DIM, seed=1)

    def of_values(value):
        return ops.sum(layer(query, value, key=query, training=True) * factors)

    value, (found,) = value_and_gradients(of_values, [given])
    assert (found * given).sum() == pytest.approx(value, rel=1e-4)


@pytest.mark.usefixtures("two_rows")
def test_each_group_drops_by_a_draw_of_its_own():
    import jax

    keras.utils.set_random_seed(0)
    layer = MultiHeadAttention(1, LENGTH, use_bias=False, dropout=0.5)
    rows = 16
    layer.build((rows, LENGTH, LENGTH))
    eye = np.eye(LENGTH, dtype="float32")
    for dense in (layer.query_dense, layer.key_dense):
        dense.kernel.assign(np.zeros_like(eye))
    for dense in (layer.value_dense, layer.output_dense):
        dense.kernel.assign(eye)
    seeds = [variable.value for variable in layer.non_trainable_variables]
    of_layer = jax.jit(
        lambda x: layer.stateless_call(
            [v.value for v in layer.trainable_variables], seeds, x, training=True
        )[0]
    )
    dropped = np.asarray(of_layer(np.broadcast_to(eye, (rows, LENGTH, LENGTH)))) == 0
    assert abs(dropped.mean() - 0.5) < 5 * 0.5 / np.sqrt(dropped.size)
    for i in range(rows):
        for other in range(i):
            assert abs((dropped[i] == dropped[other]).mean() - 0.5) < 5 * 0.5 / LENGTH


def test_the_scores_of_all_rows_are_at_no_time_in_memory(monkeypatch):
    monkeypatch.setattr(Device, "scores_bytes", 3 * 2**20)
    layer = MultiHeadAttention(4, 8)
    layer.build((64, 128, DIM))
    found = largest(lambda x: layer(x, training=True), random(64, 128, DIM))
    assert found <= device().scores_bytes // 4 < 64 * 4 * 128 * 128


@pytest.mark.usefixtures("two_rows")
def test_keys_of_a_length_that_is_not_known_and_no_tokens_at_all():
    """As exported for any source, and of an empty sequence: there is nothing to count rows by."""
    import jax
    from jax import export

    layer = made()
    values = [variable.value for variable in layer.variables]
    x, source = random(BATCH, LENGTH, DIM), random(BATCH, 7, DIM, seed=4)

    def call(x, value):
        return layer.stateless_call(values, [], x, value)[0]

    (length,) = export.symbolic_shape("length")
    shapes = [
        jax.ShapeDtypeStruct(x.shape, "float32"),
        jax.ShapeDtypeStruct((BATCH, length, DIM), "float32"),
    ]
    found = export.export(jax.jit(call))(*shapes).call(x, source)
    np.testing.assert_allclose(found, layer(x, source), atol=1e-5)
    empty = np.zeros((BATCH, 0, DIM), "float32")
    assert jax.jit(call)(empty, source).shape == empty.shape
