"""From the same weights and data the three backends give the same losses."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.tasks.common import ENGLISH, config, tokenizer

STEPS, BATCH_SIZE = 20, 8

SCRIPT = """
import json, sys
import keras
import keras_transformer as kt
from keras_transformer.training import InverseSquareRoot, TokenCrossEntropy, transformer_adam

class Means(keras.callbacks.Callback):
    # What Keras reports is the mean over the steps so far.
    def on_train_batch_end(self, batch, logs):
        means.append(float(logs["loss"]))

folder, batch_size = sys.argv[1], int(sys.argv[2])
results = {}
for name in ("classifier", "translator"):
    x, y = json.load(open(f"{folder}/{name}.json"))
    task = kt.Task.from_preset(f"{folder}/{name}", dropout=0.0)
    if name == "classifier":
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        task.compile(keras.optimizers.AdamW(1e-3), loss)
    else:
        schedule = InverseSquareRoot(2e-3, warmup_steps=10)
        task.compile(transformer_adam(schedule), TokenCrossEntropy(label_smoothing=0.1))
    means = []
    task.fit(x, y, batch_size=batch_size, seed=3, verbose=0, callbacks=[Means()])
    results[name] = means
print(json.dumps(results))
"""


def losses(backend, folder, forks):
    """The loss of every step, by task, in a process of its own."""
    arguments = ["-c", SCRIPT, str(folder), str(BATCH_SIZE)]
    if backend == keras.backend.backend():
        done = forks.run(*arguments)
    else:
        paths = {"PYTHONPATH": str(Path(__file__).parents[2])}
        environment = {**os.environ, "KERAS_BACKEND": backend, **paths}
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    means = json.loads(done.stdout.splitlines()[-1])
    steps = np.arange(1, STEPS + 1)
    return {name: np.diff(steps * values, prepend=0.0) for name, values in means.items()}


@pytest.mark.backend_independent
def test_the_first_20_losses(forks, tmp_path):
    backends = [b for b in ("jax", "tensorflow", "torch") if importlib.util.find_spec(b)]
    if len(backends) < 2:
        pytest.skip("needs two backends")
    random = np.random.default_rng(0)
    words = " ".join(ENGLISH).split()
    texts = [" ".join(random.choice(words, random.integers(2, 5))) for _ in range(2 * 160)]
    data = {
        "classifier": (texts[:160], [len(text.split()) - 2 for text in texts[:160]]),
        "translator": (texts[:160], texts[160:]),
    }
    for name, value in data.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    keras.utils.set_random_seed(0)
    wordpiece, bpe = tokenizer(lowercase=True), tokenizer("bpe", add_prefix_space=True)
    sizes = {"hidden_dim": 32, "num_layers": 2, "num_heads": 4, "intermediate_dim": 64}
    encoder = kt.models.Encoder(config("encoder", wordpiece, dropout=0.1, pooler=True, **sizes))
    kt.TextClassifier(encoder, wordpiece, num_classes=3).save_to_preset(tmp_path / "classifier")
    seq2seq = kt.models.Seq2Seq(config("seq2seq", bpe, dropout=0.1, scale_embedding=True, **sizes))
    kt.Seq2SeqLM(seq2seq, bpe).save_to_preset(tmp_path / "translator")

    found = {backend: losses(backend, tmp_path, forks) for backend in backends}
    for name, expected in found[backends[0]].items():
        assert expected.shape == (STEPS,) and expected[-5:].mean() < expected[:5].mean()
        for backend in backends[1:]:
            np.testing.assert_allclose(found[backend][name], expected, rtol=1e-3, err_msg=backend)
