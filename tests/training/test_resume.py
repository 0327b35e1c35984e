"""A run that is killed and started again repeats the unbroken run."""

import json
import os
import random
import re
import resource
import signal
import time
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.support.files import SafetensorsFile, write_safetensors
from keras_transformer.training import LastCheckpoints, ResumableRun
from tests.thorough import THOROUGH, seeds

pytestmark = pytest.mark.one_backend

ROOT = Path(__file__).parents[2]

# A translator with dropout, Adam with a schedule, shuffled buckets, saved after every second
# step; appends the loss after each step to a file.
SCRIPT = """
import json, sys, time
import keras, numpy as np
import keras_transformer as kt
from tests.training.test_resume import make_dataset, make_model

folder, losses = sys.argv[1:]
keras.utils.set_random_seed(1)
model, data = make_model(dropout=0.3), make_dataset()

class Watch(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        line = [self.epoch, data.first_batch + batch, float(logs["loss"])]
        with open(losses, "a") as file:
            file.write(json.dumps(line) + "\\n")
        time.sleep(0.02)

last = kt.training.LastCheckpoints(folder + "/last", keep=2)
run = kt.training.ResumableRun(folder, data, every=2)
model.fit(data, epochs=3, verbose=0, callbacks=[Watch(), last, run])
with open(losses, "a") as file:
    file.write(json.dumps([path.name for path in last.paths]) + "\\n")
"""


def make_dataset(**options):
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, 20, size=rng.integers(2, 16)).tolist() for _ in range(60)]

    def make_batch(arrays, masks):
        batch = {"token_ids": arrays["inputs"], "padding_mask": masks["inputs"]}
        return batch, arrays["targets"], masks["targets"].astype("float32")

    return kt.data.BucketedDataset(
        {"inputs": [r[:-1] for r in rows], "targets": [r[1:] for r in rows]},
        make_batch,
        **{"batch_size": 6, "shuffle": True, "max_buckets": 2, **options},
    )


def make_model(peak=0.05, **config):
    values = {"hidden_dim": 8, "num_heads": 2, "num_layers": 1, "intermediate_dim": 16}
    config = kt.TransformerConfig(**{"kind": "decoder", "vocabulary_size": 20, **values, **config})
    model = kt.CausalLM(kt.models.Decoder(config))
    model.compile(
        kt.training.transformer_adam(kt.training.InverseSquareRoot(peak, 10)),
        kt.training.TokenCrossEntropy(0.1),
        weighted_metrics=[kt.training.Perplexity()],
    )
    return model


@pytest.fixture
def start(forks, tmp_path):
    """Starts the script with a folder of the run and a file for its losses."""
    errors = tmp_path / "stderr.txt"
    return lambda *paths: forks.start("-c", SCRIPT, *paths, cwd=ROOT, stderr=errors)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_run_killed_at_random_repeats_the_unbroken_one(start, tmp_path):
    unbroken, killed = tmp_path / "unbroken.jsonl", tmp_path / "killed.jsonl"
    process = start(tmp_path / "unbroken", unbroken)
    assert process.wait() == 0, (tmp_path / "stderr.txt").read_text()
    *expected, files = lines_of(unbroken)
    steps = make_dataset().batches_per_epoch
    assert [(e, b) for e, b, _ in expected] == [(e, b) for e in range(3) for b in range(steps)]

    moments = random.Random(seeds(1)[0])
    for _ in range(3 if THOROUGH else 2):
        before = len(lines_of(killed))
        process = start(tmp_path / "killed", killed)
        while process.poll() is None and len(lines_of(killed)) == before:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.4))
        process.kill()
        process.wait()
    process = start(tmp_path / "killed", killed)
    assert process.wait() == 0, (tmp_path / "stderr.txt").read_text()
    *found, files_found = lines_of(killed)
    assert files_found == files
    # Steps that were done twice, because the kill came before they were saved, count both times.
    assert {(e, b) for e, b, _ in found} == {(e, b) for e, b, _ in expected}
    assert len(found) > len(expected) or process.returncode == 0
    losses = {(e, b): loss for e, b, loss in expected}
    assert [loss for *_, loss in found] == pytest.approx(
        [losses[e, b] for e, b, _ in found], rel=1e-6
    )


@pytest.mark.each_backend
def test_within_an_epoch_only_the_rest_is_trained_on(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 4:
                raise KeyboardInterrupt

    data = make_dataset()
    with pytest.raises(KeyboardInterrupt):
        make_model().fit(data, verbose=0, callbacks=[ResumableRun(tmp_path, data, 2), Stop()])
    seen = []
    model, data = make_model(), make_dataset()
    watch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen.append((epoch, data.first_batch, len(data))),
        on_train_batch_end=lambda batch, logs: seen.append(batch),
    )
    run = ResumableRun(tmp_path, data, 2)
    model.fit(data, epochs=2, verbose=0, callbacks=[run, watch])
    steps = data.batches_per_epoch
    assert seen == [(0, 4, steps - 4), *range(steps - 4), (1, 0, steps), *range(steps)]
    assert int(keras.ops.convert_to_numpy(model.optimizer.iterations)) == 2 * steps


def test_the_state_of_another_run_is_refused_with_the_difference(tmp_path):
    data = make_dataset()
    make_model().fit(data, verbose=0, callbacks=[ResumableRun(tmp_path, data)])

    def refused(model, data):
        with pytest.raises(ValueError, match="belongs to another run") as error:
            model.fit(data, epochs=2, verbose=0, callbacks=[ResumableRun(tmp_path, data)])
        return str(error.value)

    message = refused(make_model(hidden_dim=16), data)
    assert "config.hidden_dim: 8 then, 16 now" in message and "then, [20, 16] now" in message
    assert "learning_rate.peak: 0.05 then, 0.01 now" in refused(make_model(peak=0.01), data)
    message = refused(make_model(), make_dataset(batch_size=5, seed=3))
    assert "data.seed: 0 then, 3 now" in message and "data.batch_rows: [6, 6] then" in message

    path = tmp_path / "state.safetensors"  # as a stranger may have written it
    file = SafetensorsFile(path)
    tensors, run = dict(file.items()), json.loads(file.metadata["run"])
    run["of"]["config.hidden_dim"] = "\x1b[2J\u202e" + "9" * 10**5
    run["of"]["a\x1b]0;" + "b" * 10**5] = [1] * 10**5
    write_safetensors(path, tensors, {"run": json.dumps(run)})
    message = refused(make_model(), data)
    assert message.replace("\n", "").isprintable() and len(message) < 4000


def test_a_full_disk_loses_nothing(tmp_path):
    data = make_dataset()
    make_model().fit(data, verbose=0, callbacks=[ResumableRun(tmp_path, data)])
    kept = (tmp_path / "state.safetensors").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"0\.\d MiB, could not be written.*one is still"):
            run = ResumableRun(tmp_path, data)
            make_model().fit(data, epochs=2, verbose=0, callbacks=[run])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]
    assert (tmp_path / "state.safetensors").read_bytes() == kept
    history = make_model().fit(data, epochs=2, verbose=0, callbacks=[ResumableRun(tmp_path, data)])
    assert history.epoch == [1]


def test_what_is_kept_is_of_use(tmp_path):
    data = make_dataset()
    model = make_model()
    model.backbone.token_embedding.embeddings.assign(np.full((20, 8), np.nan, "float32"))
    model.fit(data, verbose=0, callbacks=[ResumableRun(tmp_path, data)])
    assert not list(tmp_path.iterdir())

    (tmp_path / "state.safetensors").write_bytes(b"half a file")
    with pytest.raises(ValueError, match="is not the state of a run.*Remove it"):
        model.fit(data, verbose=0, callbacks=[ResumableRun(tmp_path, data)])


@pytest.mark.each_backend
def test_weights_in_bfloat16(tmp_path):
    data = make_dataset()
    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=20, hidden_dim=8, num_heads=2, num_layers=1,
        intermediate_dim=16,
    )  # fmt: skip

    def fit(epochs):
        model = kt.CausalLM(kt.models.Decoder(config, dtype="bfloat16"))
        model.compile(keras.optimizers.SGD(0.1), kt.training.TokenCrossEntropy())
        run = ResumableRun(tmp_path, data)
        return model.fit(data, epochs=epochs, verbose=0, callbacks=[run]).history["loss"]

    keras.utils.set_random_seed(1)
    (first,) = fit(1)
    (second,) = fit(2)
    assert second < first


def test_bad_options():
    with pytest.raises(ValueError, match="`every` must be an integer of at least 1"):
        ResumableRun("x", make_dataset(), every=0)
    with pytest.raises(ValueError, match="`every` needs the `dataset`"):
        ResumableRun("x", every=5)


def test_the_checkpoints_kept_are_those_of_the_unbroken_run(tmp_path):
    data = make_dataset()
    for epochs in (2, 4):
        last = LastCheckpoints(tmp_path / "last", keep=3)
        callbacks = [last, ResumableRun(tmp_path, data)]
        make_model().fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
    steps = data.batches_per_epoch
    names = [f"step-{steps * epoch:08d}.safetensors" for epoch in (2, 3, 4)]
    assert [path.name for path in last.paths] == names


@pytest.mark.parametrize(
    "metadata, tensors, message",
    [
        (None, {}, "is not the state of a run"),
        ({"run": "[]"}, {}, "is not the state of a run"),
        ({"run": "{"}, {}, "is not the state of a run"),
        ({"run": '{"of": {}, "epoch": 0}'}, {}, "is not the state of a run: 'batch'"),
        (
            {"run": '{"of": {}, "epoch": "x", "batch": 0}'},
            {},
            "it does not say where in a run it was saved",
        ),
        ("ours", {}, "'model/0/.*' has the shape None there and "),
        ("ours", {"model": np.zeros(3)}, "has the shape None there"),
    ],
)
def test_a_foreign_state_file(tmp_path, metadata, tensors, message):
    data, path = make_dataset(), tmp_path / "state.safetensors"
    if metadata == "ours":
        make_model().fit(data, verbose=0, callbacks=[ResumableRun(tmp_path, data)])
        metadata = SafetensorsFile(path).metadata
    write_safetensors(path, {"x": np.zeros(1), **tensors}, metadata)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*{message}"):
        make_model().fit(data, verbose=0, callbacks=[ResumableRun(tmp_path, data)])
    path.unlink()
    path.mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        make_model().fit(data, verbose=0, callbacks=[ResumableRun(tmp_path, data)])


_HOLD = """
import sys, time
from keras_transformer.support.scratch import PathLock
assert PathLock(sys.argv[1]).acquire()
print("there", flush=True)
time.sleep(600)
"""


def test_one_run_in_a_directory(forks, tmp_path, tmp_path_factory):
    data, state = make_dataset(), tmp_path / "state.safetensors"
    errors = tmp_path_factory.mktemp("errors") / "stderr.txt"
    other = forks.start("-c", _HOLD, state, cwd=ROOT, stderr=errors)
    assert other.stdout.readline() == "there\n"
    with pytest.raises(OSError, match="Another process has a run in"):
        make_model().fit(data, verbose=0, callbacks=[ResumableRun(tmp_path, data)])
    other.kill()
    other.wait()
    first = ResumableRun(tmp_path, data)
    make_model().fit(data, verbose=0, callbacks=[first])
    assert os.listdir(tmp_path) == ["state.safetensors"]

    class Begin(keras.callbacks.Callback):
        """As a second run that is begun in the same process while the first one goes on."""

        def on_epoch_end(self, epoch, logs=None):
            second.set_model(self.model)
            second._take_lock()

    second = ResumableRun(tmp_path, data)
    with pytest.raises(OSError, match="Another run of this process has begun"):
        make_model().fit(data, epochs=2, verbose=0, callbacks=[Begin(), first])


ROWS = np.random.default_rng(0).normal(size=(8, 5, 4)).astype("float32")


def cell(folder, epochs):
    """A cell of a notebook, whose layers have other numbers whenever it is run."""
    keras.utils.set_random_seed(1)
    blocks = [kt.layers.EncoderBlock(2, 4, dropout=0.1), kt.layers.EncoderBlock(2, 4)]
    model = keras.Sequential([keras.Input((5, 4)), *blocks, keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    last = LastCheckpoints(folder / "last", keep=2)
    callbacks = [last, ResumableRun(folder)]
    options = {"batch_size": 4, "shuffle": False, "verbose": 0, "callbacks": callbacks}
    return model, last, model.fit(ROWS, ROWS[..., :1], epochs=epochs, **options)


def test_a_cell_that_is_run_again_goes_on(tmp_path):
    whole, whole_last, _ = cell(tmp_path / "whole", 2)
    first, _, _ = cell(tmp_path / "parts", 1)
    state = tmp_path / "parts" / "state.safetensors"
    tensors = dict(SafetensorsFile(state))
    # As states were written before: with the numbers of the process that wrote them.
    metadata = SafetensorsFile(state).metadata
    older = {name.replace("encoder_block", "encoder_block_7"): t for name, t in tensors.items()}
    assert older.keys() != tensors.keys()
    run = metadata["run"].replace("encoder_block_1/", "encoder_block_8/")
    run = run.replace("encoder_block/", "encoder_block_7/")
    assert run != metadata["run"]
    for stored, said in ((tensors, metadata["run"]), (older, run)):
        write_safetensors(state, stored, {**metadata, "run": said})
        again, last, history = cell(tmp_path / "parts", 2)
        assert history.epoch == [1] and again.layers[0].name != first.layers[0].name
        for mine, theirs in zip(again.get_weights(), whole.get_weights(), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-6)
    last.average_into(again)
    whole_last.average_into(whole)
    for mine, theirs in zip(again.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    # Another model is still refused.
    model = keras.Sequential([keras.Input((5, 4)), kt.layers.EncoderBlock(2, 6)])
    model.compile("adam", "mse")
    with pytest.raises(ValueError, match=r"(?s)belongs to another run.*feed_forward/intermediate"):
        model.fit(ROWS, ROWS, verbose=0, callbacks=[ResumableRun(tmp_path / "parts")])
