"""Importing changes nothing; memory that steps need is kept, and not asked for anew each time."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import keras_transformer as kt
from keras_transformer.kernels.step_functions import SlowSteps
from keras_transformer.support.backend import WAITING

ROOT = Path(__file__).parents[1]
# On JAX the first array decides how programs run, so what is asked for comes first.
STEPS = """
import logging, resource
logging.basicConfig(level=logging.INFO, format="LOG %(name)s %(message)s")
import keras_transformer as kt
import keras, numpy as np

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def dispatch():
    if keras.backend.backend() != "jax":
        return None
    import jax
    return jax.config.read("jax_cpu_enable_async_dispatch")

def make():
    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=8, hidden_dim=4, num_layers=1, num_heads=1,
        intermediate_dim=4,
    )
    return kt.models.Decoder(config)

imported = dispatch()
{before}
print("RESULT", imported, dispatch())
inputs = keras.Input((128,), dtype="int32")
# Products of a narrow side: a step takes much memory and little time.
hidden = keras.layers.Dense(1024, activation="relu")(keras.layers.Embedding(50, 8)(inputs))
model = keras.Model(inputs, keras.layers.Dense(8)(hidden))
model.compile("sgd", "mse")
x, y = np.ones((64, 128), "int32"), np.ones((64, 1, 1), "float32")
for _ in range({first}):  # until the memory that is kept has found its pieces
    model.train_on_batch(x, y)
taken = []
for _ in range({more}):  # the least: threads may ask for new memory later where cores are busy
    before = faults()
    for _ in range(3):
        model.train_on_batch(x, y)
    taken.append((faults() - before) / 3)
print("RESULT", min(taken))

import ctypes, pathlib
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def resident():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmRSS"))

block = libc.malloc(100_000_000)
ctypes.memset(block, 1, 100_000_000)
full = resident()
libc.free(block)
print("RESULT", full - resident())
"""
kept = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="What is kept is glibc's.")


def run(before, forks=None, first=2, more=1, **environment):
    """Run steps, and return JAX's dispatch, faults, returned memory and lines of the log.

    JAX's dispatch is that after the import and that after `before`. A step needs over 100 MB:
    25,000 page faults if they are new pages each time. The returned memory is how many of 100
    megabytes go back to the system when they are freed. What reads no variable as a process
    starts is a fork.
    """
    code = STEPS.replace("{first}", str(first)).replace("{more}", str(more))
    code = code.replace("{before}", before)
    if forks:
        done = forks.run("-c", code, XLA_FLAGS=None)
    else:
        keep = ("PATH", "HOME", "KERAS_BACKEND", "JAX_COMPILATION_CACHE_DIR")
        found = {name: os.environ[name] for name in keep if name in os.environ}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**found, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT")]
    logged = [line for line in done.stderr.splitlines() if "LOG keras_transformer" in line]
    return *lines[0], float(lines[1][0]), float(lines[2][0]), logged


@kept
@pytest.mark.cpu
def test_the_first_model_tunes_the_process_and_says_so_once(forks):
    imported, dispatch, faults, returned, logged = run(
        "make(); make(); assert kt.tune_process()\n"
        "try:\n    kt.tune_process(False)\n"
        "except ValueError as error:\n    assert 'already tuned' in str(error)\n"
        "else:\n    raise SystemExit('taken back')",
        forks,
        first=10,
        more=4,
    )
    jax = keras.backend.backend() == "jax"
    assert (imported, dispatch) == (("True", "False") if jax else ("None", "None"))
    # Threads of XLA and TensorFlow may have memory of their own since the imports.
    assert faults < (2_500 if keras.backend.backend() == "torch" else 10_000)
    assert returned < 10
    assert len(logged) == 1 and "tune_process(False)" in logged[0]


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("before", "environment"),
    [
        ("", {}),
        ("kt.tune_process(False); make()", {}),
        ("make()", {"MALLOC_TRIM_THRESHOLD_": "131072"}),
    ],
    ids=["import", "told", "environment"],
)
def test_nothing_is_changed(before, environment, forks):
    found = run(before, None if environment else forks, **environment)
    imported, dispatch, faults, returned, logged = found
    assert imported == dispatch in ("True", "None") and not logged
    assert returned > 90
    if keras.backend.backend() != "tensorflow":  # which keeps memory itself with oneDNN
        assert faults > 10_000


@kept
@pytest.mark.cpu
def test_adapters_over_integers_return_what_is_free(forks):
    *_, faults, returned, _ = run(
        "lm = kt.CausalLM(make()); assert kt.tune_process()\n"
        "lm.quantize('int8'); lm.enable_lora(2); assert not kt.tune_process()",
        forks,
    )
    assert returned > 90
    if keras.backend.backend() != "tensorflow":
        assert faults > 10_000


FREED = """
import pathlib
from keras_transformer.kernels.process import release_memory, tune_process

def resident():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmRSS"))

print("RESULT", {tuned}, tune_process({tuned}))
pieces = [str(i).encode().ljust(100_000) for i in range(2_000)]
full = resident()
del pieces[:-1]  # The last one is at the end of what the process has.
kept = resident()
release_memory()
print("RESULT", full - kept, full - resident())
"""


@kept
@pytest.mark.cpu
@pytest.mark.parametrize("tuned", [True, False])
def test_what_is_free_goes_back_when_it_is_asked_for(tuned, forks):
    done = forks.run("-c", FREED.replace("{tuned}", str(tuned)))
    assert done.returncode == 0, done.stderr
    (_, asked, is_tuned), (_, before, after) = (
        line.split() for line in done.stdout.splitlines() if line.startswith("RESULT")
    )
    assert asked == is_tuned == str(tuned)
    # Of 200 MB. What is not tuned gives back by itself what is not before the last piece.
    assert float(after) > 150 and (float(before) < 20 or not tuned)


def test_bad_arguments():
    with pytest.raises(ValueError, match="`enabled` must be"):
        kt.tune_process("no")


@pytest.mark.backend_independent
@pytest.mark.parametrize("policy", [None, "PASSIVE"])
def test_slow_steps_are_said_once(caplog, monkeypatch, policy):
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    if policy is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    steps = SlowSteps()
    with caplog.at_level("WARNING", "keras_transformer"):
        for size, seconds in [("a", 3.0), ("b", 0.4), ("a", 0.1), ("b", 0.5)] * 3:
            steps.note(size, seconds)  # twice three seconds after a tenth of one
        assert not caplog.records
        for _ in range(3):
            steps.note("a", 0.9)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (policy is None)
    if said:
        assert "from 0.1 to 0.9 seconds" in said[0] and "OMP_WAIT_POLICY=PASSIVE" in said[0]
