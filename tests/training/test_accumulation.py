"""Accumulated gradients: an update is that of the whole batch, and what counts counts updates."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.kernels.accumulation import weighed
from keras_transformer.training import LastCheckpoints, LinearDecay, ResumableRun, StopAtNaN
from tests.generation.common import on_one

ROWS = 31  # in batches of 2, or of 8, the last one is smaller
_RANDOM = np.random.default_rng(0)
LENGTHS = _RANDOM.permutation(np.arange(ROWS) % 9 + 1)
IDS = _RANDOM.integers(0, 20, (ROWS, 10)).astype("int32")
MASK = np.arange(9) < LENGTHS[:, None]


def make(optimizer):
    keras.utils.set_random_seed(0)
    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=20, hidden_dim=8, num_layers=1, num_heads=2,
        intermediate_dim=8,
    )  # fmt: skip
    task = kt.CausalLM(kt.models.Decoder(config))
    task.compile(optimizer)
    return task


class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        rate, updates = self.model.optimizer.learning_rate, self.model.optimizer.iterations
        self.values.append((float(rate), int(updates)))


def train(task, batch_size, **options):
    x = {"token_ids": IDS[:, :-1], "padding_mask": MASK}
    weights = MASK.astype("float32")
    return task.fit(
        x, IDS[:, 1:], sample_weight=weights, batch_size=batch_size, shuffle=False, verbose=0,
        **options,
    ).history  # fmt: skip


def values(variables):
    return [np.array(ops.convert_to_numpy(variable)) for variable in variables]


# Rounding errors in a gradient must not become visible in the step.
ADAM = {"epsilon": 0.01, "weight_decay": 0.1}
EMA = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}
OPTIMIZERS = {
    "adamw": (keras.optimizers.AdamW, {"global_clipnorm": 0.5, **ADAM, **EMA}),
    "fine-tuning": (kt.training.FineTuningAdamW, {"layer_decay": 0.5, **ADAM, **EMA}),
}


@pytest.mark.parametrize("name", ["adamw", on_one("fine-tuning")])
def test_updates_are_those_of_large_batches(name):
    """Rows have 1 to 9 tokens; the schedule, EMA, decay and clipping count updates."""
    kind, options = OPTIMIZERS[name]
    found = []
    for count in (None, 4):
        task = make(kind(LinearDecay(0.1, 8, 4), gradient_accumulation_steps=count, **options))
        rates = Rates()
        train(task, 8 // (count or 1), epochs=1, callbacks=[rates])
        found.append((values(task.weights), rates.values))
    (large, expected), (small, rates) = found
    for one, two in zip(large, small, strict=True):
        np.testing.assert_allclose(two, one, rtol=0, atol=2e-4)
    assert rates[3::4] == expected and len(rates) == 16
    assert [rate for rate, _ in rates[:4]] == pytest.approx([0, 0, 0, 0.025])


@pytest.mark.one_backend("torch")
@pytest.mark.parametrize("scaled", [False, True])
def test_an_update_is_that_of_pytorch(scaled):
    """By hand: the mean of the gradients by weight, the rate of the update, PyTorch's AdamW."""
    import torch

    random = np.random.default_rng(1)
    gradients, weights = random.normal(size=(6, 3)), np.array([1.0, 5.0, 2.0, 0.0, 0.0, 7.0])
    start = random.normal(size=3)
    theirs = torch.nn.Parameter(torch.tensor(start))
    optimizer = torch.optim.AdamW([theirs], lr=1.0, betas=(0.9, 0.999), eps=1e-12, weight_decay=0.1)
    for update, places in enumerate((slice(0, 3), slice(3, 6))):
        optimizer.param_groups[0]["lr"] = 0.1 * (update + 1) / 4
        theirs.grad = torch.tensor(np.average(gradients[places], axis=0, weights=weights[places]))
        optimizer.step()

    ours = keras.Variable(start, dtype="float32")
    schedule = LinearDecay(0.1, 10, 4)
    mine = kt.training.FineTuningAdamW(
        lambda: schedule(mine.iterations + 1), weight_decay=0.1, epsilon=1e-12,
        gradient_accumulation_steps=3,
    )  # fmt: skip
    outer = keras.optimizers.LossScaleOptimizer(mine, 4.0) if scaled else mine
    factor = 4.0 if scaled else 1.0
    with torch.no_grad():
        if scaled:  # is passed over, with its weight
            with weighed(outer, 100.0):
                outer.apply([ops.convert_to_tensor([np.inf, 0, 0], "float32")], [ours])
            factor = 2.0
        for gradient, weight in zip(gradients, weights, strict=True):
            with weighed(outer, weight):
                outer.apply([ops.convert_to_tensor(gradient * factor, "float32")], [ours])
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-5)


@pytest.mark.one_backend("torch")
def test_a_batch_without_a_gradient_counts():
    """As a branch of a model that no row of a batch takes, which PyTorch has no gradient of."""
    import torch

    one, two = (keras.Variable(np.zeros(1), dtype="float32") for _ in range(2))
    optimizer = kt.training.transformer_adam(0.1, gradient_accumulation_steps=2)
    optimizer.build([one, two])
    with torch.no_grad():
        optimizer.apply([torch.ones(1), torch.ones(1)], [one, two])
        with pytest.warns(UserWarning, match="Gradients do not exist"):
            optimizer.apply([torch.ones(1), None], [one, two])
    assert one.numpy() == pytest.approx(-0.1) and two.numpy() == pytest.approx(-0.1)


def dataset(**options):
    rows = [row[: length + 1].tolist() for row, length in zip(IDS, LENGTHS, strict=True)]

    def make_batch(arrays, masks):
        inputs = {"token_ids": arrays["inputs"], "padding_mask": masks["inputs"]}
        return inputs, arrays["targets"], masks["targets"].astype("float32")

    return kt.data.BucketedDataset(
        {"inputs": [r[:-1] for r in rows], "targets": [r[1:] for r in rows]},
        make_batch,
        **{"batch_size": 3, "shuffle": True, "max_buckets": 1, **options},
    )


class Kill(keras.callbacks.Callback):
    def __init__(self, epoch, batch):
        super().__init__()
        self.at = [epoch, batch]

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if [self.epoch, batch] == self.at:
            raise KeyboardInterrupt


@pytest.mark.one_backend("jax")  # whose programs are compiled ahead
def test_a_run_resumes_in_the_middle_of_an_update(tmp_path):
    """Eleven batches an epoch, four an update: the last state has 15, of which three wait."""

    def run(folder, epochs, *others):
        optimizer = keras.optimizers.AdamW(LinearDecay(0.1, 8, 2), gradient_accumulation_steps=4)
        data, task = dataset(), make(optimizer)
        run = ResumableRun(folder, data, every=1)
        logs = task.fit(data, epochs=epochs, verbose=0, callbacks=[*others, run])
        return values([*task.weights, *task.optimizer.variables]), logs.history["loss"]

    whole, losses = run(tmp_path / "whole", 2)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", 2, Kill(1, 6))
    again, last = run(tmp_path / "killed", 2)
    for one, two in zip(whole, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert last[-1] == pytest.approx(losses[-1], rel=1e-6)


@pytest.mark.one_backend
def test_callbacks_count_updates(tmp_path, monkeypatch):
    data = dataset()
    task = make(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))
    last = LastCheckpoints(tmp_path, keep=9, every=2)
    looked, saved = [], []
    stop, run = StopAtNaN(every=2), ResumableRun(tmp_path, data, every=2)
    monkeypatch.setattr(stop, "_look", lambda step, logs: looked.append(step))
    monkeypatch.setattr(run, "_save", lambda epoch, batch, logs: saved.append((epoch, batch)))
    task.fit(data, epochs=3, verbose=0, callbacks=[last, stop, run])
    # 33 batches are 8 updates.
    names = [path.name for path in last.paths]
    assert names == [f"step-0000000{step}.safetensors" for step in (2, 4, 6, 8)]
    assert looked == [2, None] * 3
    assert saved == [(0, 8), (1, 0), (1, 8), (2, 0), (2, 8), (3, 0)]
    assert int(task.optimizer.iterations) == 8


@pytest.mark.one_backend
def test_files_of_before_and_of_now(tmp_path):
    """The optimizer is written as Keras's; one from before the weight was kept is read too."""
    optimizer = keras.optimizers.Adam(LinearDecay(0.1, 8), gradient_accumulation_steps=4)
    before = keras.optimizers.serialize(optimizer)
    task = make(optimizer)
    train(task, 12)
    assert keras.optimizers.serialize(task.optimizer) == before
    task.save(tmp_path / "task.keras")
    again = keras.models.load_model(tmp_path / "task.keras")
    for one, two in zip(task.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(*values([one, two]))
    store: dict = {}
    task.optimizer.save_own_variables(store)
    assert store.popitem()[1] == MASK.sum()  # of the three batches, none of them applied
    found = keras.optimizers.deserialize(before)
    kt.kernels.accumulation.count_updates(found)
    found.build(again.trainable_variables)
    found.load_own_variables(store)
    for one, two in zip(found.variables[:-1], task.optimizer.variables[:-1], strict=True):
        np.testing.assert_array_equal(*values([one, two]))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a strategy of TensorFlow")
def test_replicas_of_tensorflow_cannot():
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope(), pytest.raises(ValueError, match="within a strategy of tf.distribute"):
        make(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
