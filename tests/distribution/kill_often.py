"""Kills processes while they write checkpoints: FOLDER KILLS [SEED], on PyTorch.

    KERAS_BACKEND=torch python -m tests.distribution.kill_often /tmp/kills 100

Two or three processes write one checkpoint after the other. At a random moment one of them is
killed, and then the others. The last checkpoint must then be whole: one process reads every tensor,
and the next start, with another number of processes, restores it and goes on from there.
"""

import contextlib
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint  # here, and not in each process
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import keras_transformer as kt

ROWS, WIDTH = 48, 4096  # 48 rows over two or three processes


def expected(number: int) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint."""
    random_numbers = np.random.default_rng(number)
    return {
        "sharded": random_numbers.normal(size=(ROWS, WIDTH)).astype("float32"),
        "copied": random_numbers.normal(size=WIDTH).astype("float32"),
        "scalar": np.array(number, "int64"),
    }


def tensors(number: int, mesh) -> dict[str, torch.Tensor]:
    """The same, laid out over the processes."""
    whole = {name: torch.from_numpy(array) for name, array in expected(number).items()}
    return whole | {"sharded": distribute_tensor(whole["sharded"], mesh, [Shard(0)])}


def write(rank: int, count: int, port: int, folder: Path, begun: Path) -> None:
    """Restore the last checkpoint, check it, and write further ones until the end."""
    address, patience = f"tcp://127.0.0.1:{port}", timedelta(seconds=120)
    distributed.init_process_group("gloo", address, patience, rank=rank, world_size=count)
    mesh = init_device_mesh("cpu", (count,))
    checkpoints = kt.distribution.ShardedCheckpoints(folder)
    number = checkpoints.latest
    if number is not None:
        restored = checkpoints.restore(number, tensors(0, mesh))
        for name, tensor in tensors(number, mesh).items():
            same = restored[name] == tensor
            assert bool((same.to_local() if name == "sharded" else same).all()), (number, name)
    if rank == 0:
        begun.touch()
    while True:
        number = 1 if number is None else number + 1
        checkpoints.save(number, tensors(number, mesh), {"number": number})


def read(folder: Path, report: Path) -> None:
    """Read the last checkpoint in one process, and write its number."""
    checkpoints = kt.distribution.ShardedCheckpoints(folder)
    number = checkpoints.latest
    if number is not None:
        assert checkpoints.values(number) == {"number": number}
        for name, array in expected(number).items():
            assert (checkpoints.read(number, name) == array).all(), (number, name)
    report.write_text(str(number or 0), encoding="utf-8")


def forked(function: Callable, *arguments) -> int:
    """Start a process, a fork of this one. Returns its number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function(*arguments)
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child


def main(folder: str, kills: str, seed: str = "0") -> None:
    moments, root, last = random.Random(int(seed)), Path(folder), 0
    root.mkdir(parents=True)
    begun, report = root / "begun", root / "report"
    for kill in range(1, int(kills) + 1):
        count = moments.choice([2, 3])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        run = (count, port, root / "run", begun)
        processes = [forked(write, rank, *run) for rank in range(count)]
        while not begun.exists():
            assert not os.waitpid(-1, os.WNOHANG)[0], "A process ended before it was killed."
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 2.0))
        moments.shuffle(processes)
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            time.sleep(moments.choice([0.0, 0.0, 0.2]))
        for process in processes:
            os.waitpid(process, 0)
        begun.unlink()
        assert os.waitpid(forked(read, root / "run", report), 0)[1] == 0, "It does not load."
        number = int(report.read_text(encoding="utf-8"))
        assert number >= last, (number, last)
        last = number
        print(f"kill {kill} of {count} processes: checkpoint {last} is whole", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
