"""A run of several processes is killed, and goes on with other numbers of them."""

import json
import os
import socket
import time
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.distribution.hosts import two_hosts
from tests.distribution.run_worker import EPOCHS, train
from tests.thorough import THOROUGH
from tests.training.test_resume import make_dataset, make_model

pytestmark = pytest.mark.each_backend
ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("run_worker.py")
SECONDS = 300  # until a test gives up


def lines_of(path: Path) -> list:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("]")]


def start(forks, machines: list, folder: Path, losses: Path) -> list:
    """Start a process of a run on each host, with its errors in a file."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"{machines[0][1]}:{free.getsockname()[1]}"
    errors, run = folder.with_name("errors"), (address, folder, losses)
    return [
        forks.start(
            WORKER, rank, len(machines), *run, *host, cwd=ROOT, stderr=Path(f"{errors}.{rank}")
        )
        for rank, host in enumerate(machines)
    ]


@pytest.mark.skipif(
    keras.backend.backend() == "tensorflow" or (keras.backend.backend() == "jax" and not THOROUGH),
    reason="Orbax or PyTorch; Orbax in `make test-thorough`",
)
def test_killed_processes_repeat_the_unbroken_run(forks, tmp_path):
    train(tmp_path / "one", tmp_path / "one.jsonl", parallel=False)
    expected = {(epoch, batch): loss for epoch, batch, loss in lines_of(tmp_path / "one.jsonl")}
    assert len(expected) == EPOCHS * make_dataset().batches_per_epoch

    folder, losses = tmp_path / "run", tmp_path / "run.jsonl"
    shards = folder / "shards"
    with two_hosts() as machines:
        processes = start(forks, machines, folder, losses)
        deadline = time.monotonic() + SECONDS
        while not any(p.name.isdecimal() for p in (shards.iterdir() if shards.is_dir() else ())):
            errors = Path(f"{tmp_path / 'errors'}.0").read_text()[-3000:]
            assert processes[0].poll() is None and time.monotonic() < deadline, errors
            time.sleep(0.01)
        for process in reversed(processes):
            process.kill()
            process.wait()
    (number,) = [int(path.name) for path in shards.iterdir() if path.name.isdecimal()]
    assert number % 2 == 0

    loaded = make_model(dropout=0.0)
    kt.training.load_run(loaded, folder)
    assert all(np.isfinite(weight).all() for weight in loaded.get_weights())
    with pytest.raises(ValueError, match=r"does not fit this model: 'model/0/.*\(20, 16\) here"):
        kt.training.load_run(make_model(hidden_dim=16), folder)

    # One process reads what two wrote, within the epoch.
    before = len(lines_of(losses))
    trained = train(folder, losses, parallel=False)
    kt.training.load_run(loaded, folder)  # now from the file of one process, which is further
    for one, other in zip(loaded.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    found = lines_of(losses)
    steps = make_dataset().batches_per_epoch
    assert found[before][:2] == list(divmod(number, steps))
    assert {(epoch, batch) for epoch, batch, _ in found} == set(expected)
    assert [loss for *_, loss in found] == pytest.approx(
        [expected[epoch, batch] for epoch, batch, _ in found], rel=1e-5
    )


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="has an engine")
def test_no_engine_on_tensorflow(tmp_path):
    with pytest.raises(ValueError, match="need JAX .Orbax. or PyTorch"):
        kt.distribution.ShardedCheckpoints(tmp_path)
    assert not os.listdir(tmp_path)


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="Orbax or PyTorch")
def test_what_is_not_a_checkpoint_of_this_program(tmp_path):
    checkpoints = kt.distribution.ShardedCheckpoints(tmp_path, keep=2)
    ones = keras.ops.ones((2, 3))
    for number in (3, 5, 8):
        checkpoints.save(number, {"a/b": ones, "empty": ones[:0]}, {"at": number})
    checkpoints.wait()
    assert checkpoints.latest == 8 and not (tmp_path / "3").exists()
    assert checkpoints.values(5) == {"at": 5}
    assert checkpoints.shapes(8) == {"a/b": (2, 3), "empty": (0, 3)}
    with pytest.raises(ValueError, match="must be above 8, the last one, received 8"):
        checkpoints.save(8, {"a/b": ones}, {})
    with pytest.raises(ValueError, match=r"'a/b' has the shape \(2, 3\) there and \(3, 3\) here"):
        checkpoints.restore(8, {"a/b": keras.ops.ones((3, 3))})
    with pytest.raises(ValueError, match="has no 'c'"):
        checkpoints.read(8, "c")
    other = {"jax": "run.json", "torch": "_CHECKPOINT_METADATA"}[keras.backend.backend()]
    (tmp_path / "8" / other).write_text("{}")
    with pytest.raises(ValueError, match=f"and the backend is {keras.backend.backend()}"):
        checkpoints.values(8)
    checkpoints.close()
