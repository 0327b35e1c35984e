"""A run that is killed and started again repeats the unbroken run."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EPOCHS = 3

# Subclassed model with dropout, Adam with a schedule, shuffled buckets; appends each epoch's
# loss to a file. It kills itself in the epoch given, if that is not negative.
SCRIPT = """
import json, os, signal, sys
import keras, numpy as np
from keras_transformer.data import BucketedDataset
from keras_transformer.training import (
    InverseSquareRoot, LastCheckpoints, ResumableEpochs, TokenCrossEntropy, transformer_adam
)

folder, losses, kill_in, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
rows = [rng.integers(1, 20, size=rng.integers(2, 16)).tolist() for _ in range(60)]
data = BucketedDataset(
    {"inputs": [r[:-1] for r in rows], "targets": [r[1:] for r in rows]},
    lambda arrays, masks: (arrays["inputs"], arrays["targets"], masks["targets"]),
    batch_size=8, shuffle=True, max_buckets=2,
)

class Model(keras.Model):
    def __init__(self):
        super().__init__(name="model")
        self.embedding = keras.layers.Embedding(20, 8, name="embedding")
        self.dropout = keras.layers.Dropout(0.3, name="dropout")
        self.head = keras.layers.Dense(20, name="head")
        self.embedding.build((None, None))
        self.head.build((None, None, 8))
        self.built = True

    def call(self, ids, training=None):
        return self.head(self.dropout(self.embedding(ids), training=training))

class Watch(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == kill_in and batch == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_end(self, epoch, logs=None):
        with open(losses, "a") as file:
            file.write(json.dumps([epoch, logs["loss"]]) + "\\n")

model = Model()
model.compile(transformer_adam(InverseSquareRoot(0.05, 10)), TokenCrossEntropy(0.1))
backup = keras.callbacks.BackupAndRestore(folder + "/backup", double_checkpoint=True)
last = LastCheckpoints(folder + "/last", keep=2)
model.fit(
    data, epochs=epochs, shuffle=False, verbose=0,
    callbacks=[backup, ResumableEpochs(data), last, Watch()],
)
with open(losses, "a") as file:
    file.write(json.dumps([path.name for path in last.paths]) + "\\n")
"""


def start(folder, losses, kill_in=-1):
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(losses), str(kill_in), str(EPOCHS)],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_killed_run_repeats_the_unbroken_one(tmp_path):
    def path(name):
        return tmp_path / name, tmp_path / f"{name}.jsonl"

    def finished(process, code=0):
        _, errors = process.communicate()
        assert process.returncode == code, errors

    unbroken = start(*path("unbroken"))
    finished(start(*path("killed"), kill_in=1), -signal.SIGKILL)
    finished(start(*path("killed")))
    finished(unbroken)
    one, two = (
        [json.loads(line) for line in path(name)[1].read_text().splitlines()]
        for name in ("unbroken", "killed")
    )
    assert [epoch for epoch, _ in two[:-1]] == list(range(EPOCHS))
    assert two[:-1] == [[epoch, pytest.approx(loss, rel=1e-5)] for epoch, loss in one[:-1]]
    assert one[-1] == two[-1]  # the checkpoints kept
    assert len(two[-1]) == 2
