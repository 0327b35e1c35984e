"""Memory that steps need is kept, and not asked for anew each time."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).parents[1]

STEPS = """
import resource
import keras_transformer
import keras, numpy as np

inputs = keras.Input((128,), dtype="int32")
hidden = keras.layers.Dense(1024, activation="relu")(keras.layers.Embedding(50, 256)(inputs))
model = keras.Model(inputs, keras.layers.Dense(256)(hidden))
model.compile("sgd", "mse")
x, y = np.ones((64, 128), "int32"), np.ones((64, 1, 1), "float32")
for _ in range(10):  # until the memory that is kept has found its pieces
    model.train_on_batch(x, y)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    model.train_on_batch(x, y)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 3)
"""


def faults_of_a_step(**environment) -> float:
    """Page faults of a step that needs over 100 MB: 25,000 if they are new pages each time."""
    keep = ("PATH", "HOME", "KERAS_BACKEND", "JAX_COMPILATION_CACHE_DIR")
    kept = {name: os.environ[name] for name in keep if name in os.environ}
    environment = {**kept, "PYTHONPATH": str(ROOT), **environment}
    run = subprocess.run(
        [sys.executable, "-c", STEPS], env=environment, capture_output=True, text=True, check=True
    )
    return float(run.stdout.split()[-1])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="What is kept is glibc's.")
@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="It keeps memory by itself.")
def test_a_step_takes_no_new_pages_unless_the_user_said_how():
    assert faults_of_a_step() < 2_500
    assert faults_of_a_step(MALLOC_TRIM_THRESHOLD_="131072") > 10_000
