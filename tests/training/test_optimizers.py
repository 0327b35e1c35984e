"""How far each layer goes in a step, and what weight decay spares."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.config.structure import VECTORS
from keras_transformer.kernels.device import device
from keras_transformer.training import FineTuningAdamW
from keras_transformer.training.optimizers import _factors

IDS = {"token_ids": np.arange(24).reshape(4, 6) % 20}
LABELS = np.array([0, 1, 1, 0])
PATHS = {  # and by how many powers they learn slower
    "encoder/token_embedding/embeddings": 3,
    "encoder/encoder/layer_0/query/kernel": 2,
    "encoder/encoder/layer_1/query/kernel": 1,
    "encoder/encoder/layer_1/norm/gamma": 1,
    "output/kernel": 0,
    "output/bias": 0,
}

LAST_BIT = float(np.spacing(np.float32(6)))  # of the largest variable: each step rounds to it


def variables():
    made = []
    for number, path in enumerate(PATHS):
        *scopes, name = path.split("/")
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            made.append(keras.Variable(np.full((3,), 1.0 + number, "float32"), name=name))
    assert [v.path for v in made] == list(PATHS)
    return made


def changes(optimizer, steps=1):
    """By path, how the variables changed by gradients of 1, 2 and -4."""
    mine = variables()
    before = values(mine)
    for _ in range(steps):
        gradient = ops.convert_to_tensor([1.0, 2.0, -4.0])
        optimizer.apply([gradient] * len(mine), mine)
    return {path: new - before[path] for path, new in values(mine).items()}


def values(variables):
    return {v.path: np.array(ops.convert_to_numpy(v)) for v in variables}


def classifier():
    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=20, hidden_dim=8, num_layers=2, num_heads=2,
        intermediate_dim=16,
    )  # fmt: skip
    return kt.TextClassifier(kt.models.Encoder(config), num_classes=2)


def test_each_layer_learns_slower_than_the_one_above():
    """The first step of Adam is the learning rate, whatever the gradient."""
    found = changes(FineTuningAdamW(0.01, weight_decay=0.0, layer_decay=0.5))
    for path, power in PATHS.items():
        expected = np.array([-1, -1, 1]) * 0.01 * 0.5**power
        np.testing.assert_allclose(found[path], expected, rtol=2e-4)


def test_it_is_adamw_without_decay_of_biases_and_norms():
    plain = changes(keras.optimizers.Adam(0.01))
    found = changes(FineTuningAdamW(0.01, weight_decay=0.3, layer_decay=0.5))
    for number, (path, power) in enumerate(PATHS.items()):
        decay = 0.0 if path.endswith(("bias", "gamma")) else (1.0 + number) * 0.3 * 0.01
        np.testing.assert_allclose(found[path], (plain[path] - decay) * 0.5**power, rtol=1e-3)
    # As one of Keras with its own list of what is spared.
    theirs = keras.optimizers.AdamW(0.01, weight_decay=0.3)
    theirs.exclude_from_weight_decay(var_names=["bias", "gamma", "beta", "scale"])
    expected, found = changes(theirs, 3), changes(FineTuningAdamW(0.01, weight_decay=0.3), 3)
    for path in PATHS:
        np.testing.assert_allclose(found[path], expected[path], rtol=1e-5, atol=3 * LAST_BIT)


def test_with_accumulation():
    options = {"gradient_accumulation_steps": 2, "layer_decay": 0.5, "weight_decay": 0.1}
    none = changes(FineTuningAdamW(0.01, **options))
    assert not any(change.any() for change in none.values())
    once = changes(FineTuningAdamW(0.01, layer_decay=0.5, weight_decay=0.1))
    for path, change in changes(FineTuningAdamW(0.01, **options), 2).items():
        np.testing.assert_allclose(change, once[path], rtol=1e-3)


def test_fit_with_clipping():
    """A step of a real model: what is clipped to nothing stays, but for the decay of weights."""
    task = classifier()
    before = values(task.weights)
    optimizer = FineTuningAdamW(
        0.01, weight_decay=0.5, layer_decay=0.5, global_clipnorm=1e-9, epsilon=1.0
    )
    task.compile(optimizer, task.loss)
    task.fit(IDS, LABELS, batch_size=4, verbose=0)
    after = values(task.weights)
    for path in before:
        if path.endswith("kernel"):
            factor = 0.25 if "layer_0" in path else 0.5 if "layer_1" in path else 1.0
            expected = before[path] * (1 - 0.5 * 0.01 * factor)
            np.testing.assert_allclose(after[path], expected, rtol=1e-5, atol=1e-8)


def test_the_layers_of_each_stack():
    stacks = {"encoder": 2, "decoder": 1}
    paths = [f"m/{stack}/layer_{i}/x/kernel" for stack, n in stacks.items() for i in range(n)]
    paths += [
        "m/token_embedding/embeddings", "m/token_embedding/reverse_embeddings",
        "m/encoder/position_embedding/embeddings", "m/decoder/relative_bias/embeddings",
        "m/decoder/final_norm/gamma", "m/output_bias/bias", "output/kernel",
    ]  # fmt: skip
    assert _factors(paths, 0.5) == [0.25, 0.5, 0.5, 0.125, 1, 0.125, 0.25, 1, 1, 1]
    assert _factors(["dense/kernel"], 1.0) == [1.0]
    with pytest.raises(ValueError, match="layer_decay=0.9 needs variables in blocks"):
        _factors(["dense/kernel"], 0.9)


def test_its_values_and_state_are_saved():
    schedule = kt.training.LinearDecay(0.01, total_steps=10)
    optimizer = FineTuningAdamW(schedule, weight_decay=0.2, layer_decay=0.7, clipnorm=2.0)
    changes(optimizer, 2)
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(copy) is FineTuningAdamW
    assert (copy.layer_decay, copy.weight_decay, copy.clipnorm) == (0.7, 0.2, 2.0)
    mine = variables()
    copy.build(mine)
    spared = [v.path for v in mine if not copy._use_weight_decay(v)]
    assert spared == ["encoder/encoder/layer_1/norm/gamma", "output/bias"]
    store = {}
    optimizer.save_own_variables(store)
    copy.load_own_variables(store)
    assert int(ops.convert_to_numpy(copy.iterations)) == 2
    for value in (0, 1.5, -1, True):
        with pytest.raises(ValueError, match="`layer_decay` must be a number above 0"):
            FineTuningAdamW(layer_decay=value)


def test_what_is_frozen_stays_bitwise():
    task = classifier()
    task.compile(FineTuningAdamW(0.01), task.loss)
    task.fit(IDS, LABELS, batch_size=4, verbose=0)  # the states are of all variables
    for layers, embeddings in ((1, True), (2, False)):
        task.freeze(layers, embeddings)
        before = values(task.weights)
        task.fit(IDS, LABELS, batch_size=4, verbose=0)
        for path, new in values(task.weights).items():
            frozen = any(f"layer_{i}/" in path for i in range(layers)) or (
                embeddings and "token_embedding" in path
            )
            if "key/bias" not in path:  # whose gradient is 0 but for rounding
                assert frozen == (new == before[path]).all(), path
        assert type(task.optimizer) is FineTuningAdamW
    task.freeze(0, embeddings=False)
    assert len(task.trainable_variables) == len(task.weights)
    for layers in (3, -1, 1.0, True):
        with pytest.raises(ValueError, match="`layers` must be an integer from 0 to 2, received"):
            task.freeze(layers)
    task.enable_lora(1)
    with pytest.raises(ValueError, match="The task has adapters"):
        task.freeze(1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"amsgrad": True},
        {"gradient_accumulation_steps": 2},
        {"weight_decay": 0.5},
        {"weight_decay": 0.5, "amsgrad": True},
    ],
)
def test_a_step_in_one_pass_is_that_of_adam(options):
    """The numbers of Keras's Adam, and on PyTorch and TensorFlow by the one operation."""
    expected = changes(keras.optimizers.Adam(0.01, beta_2=0.98, epsilon=1e-3, **options), 5)
    found = changes(kt.training.transformer_adam(0.01, epsilon=1e-3, **options), 5)
    for path in PATHS:
        assert expected[path].any()
        np.testing.assert_allclose(found[path], expected[path], rtol=2e-6, atol=5 * LAST_BIT)


def test_one_pass_takes_a_gradient_in_any_order():
    """PyTorch's operation goes through memory, whatever the strides say."""
    variable = keras.Variable(np.zeros((2, 3), "float32"))
    gradient = ops.transpose(ops.convert_to_tensor([[1.0, -2.0], [0.0, 3.0], [-5.0, 0.0]]))
    kt.training.transformer_adam(0.1).apply([gradient], [variable])
    expected = -0.1 * np.sign([[1.0, 0.0, -5.0], [-2.0, 3.0, 0.0]])
    np.testing.assert_allclose(ops.convert_to_numpy(variable), expected, rtol=1e-4)


def test_the_one_operation_is_called(backend):
    optimizer = kt.training.transformer_adam(0.1, weight_decay=0.1)
    variable = keras.Variable(np.ones((2, 3), "float32"))
    gradient = ops.ones((2, 3))
    optimizer.build([variable])
    if backend == "torch":
        import torch

        with torch.profiler.profile() as profile:
            optimizer.apply([gradient], [variable])
        names = {event.key for event in profile.key_averages()}
        assert "aten::_fused_adamw_" in names
        if device().is_cpu:
            assert not {"aten::sqrt", "aten::_foreach_mul_"} & names  # the decay is within
    elif backend == "tensorflow":
        import tensorflow as tf

        step = tf.function(lambda g: optimizer.apply([g], [variable]))
        nodes = step.get_concrete_function(gradient).graph.as_graph_def()
        names = {n.op for f in nodes.library.function for n in f.node_def}
        assert "ResourceApplyAdam" in names | {n.op for n in nodes.node}


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch's operation")
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_a_step_that_reads_nothing_is_that_of_adamw(monkeypatch, weight_decay):
    """As on a GPU, where the rate and the count of steps stay tensors; the numbers are Keras's."""
    from keras_transformer.kernels import adam

    theirs = keras.optimizers.AdamW(0.01, weight_decay=weight_decay, epsilon=1e-3)
    theirs.exclude_from_weight_decay(var_names=list(VECTORS))
    expected = changes(theirs, 5)
    monkeypatch.setattr(adam, "_on_host", lambda tensor: False)
    found = changes(FineTuningAdamW(0.01, weight_decay=weight_decay, epsilon=1e-3), 5)
    for path, change in expected.items():
        np.testing.assert_allclose(found[path], change, rtol=1e-3, atol=1e-6)
