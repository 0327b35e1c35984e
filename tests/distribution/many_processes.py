"""Losses over many processes of PyTorch that share the weights, against one process: COUNTS.

Run by hand, since each process takes seconds to start on a machine with few cores:

    KERAS_BACKEND=torch OMP_NUM_THREADS=1 python -m tests.distribution.many_processes 4 8

A decoder and one with experts train for 20 steps. It prints the largest relative difference of a
loss, and the bytes of weights and optimizer in one process and in each of many.
"""

import multiprocessing
import sys
import tempfile

import keras

import keras_transformer as kt
from tests.distribution.models import Batches, losses, make
from tests.distribution.workers import local_bytes

_KINDS = ("decoder", "experts")


def train(rank: int, count: int, store: str) -> dict[str, tuple[list[float], int]]:
    """Return the losses of each kind, and the bytes of this process."""
    from torch import distributed

    if count > 1:
        distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=count)
        kt.distribution.setup(fsdp=count)
    found = {}
    with keras.device("cpu"):
        for kind in _KINDS:
            task, batches = make(kind), Batches(kind)
            values = losses(task, kt.distribution.shard_of(batches) if count > 1 else batches)
            variables = (*task.weights, *task.optimizer.variables)
            found[kind] = values, sum(map(local_bytes, variables))
    return found


def main(*counts: str) -> None:
    """Print what each number of processes gives."""
    forks = multiprocessing.get_context("fork")  # the imports are nearly all of the time
    for count in map(int, counts):
        with tempfile.TemporaryDirectory() as folder, forks.Pool(count + 1, None, (), 1) as pool:
            calls = [(0, 1, ""), *((rank, count, f"{folder}/store") for rank in range(count))]
            one, *many = pool.starmap(train, calls, 1)
        for kind in _KINDS:
            pairs = [zip(one[kind][0], each[kind][0], strict=True) for each in many]
            worst = max(abs(a - b) / a for pair in pairs for a, b in pair)
            held = [each[kind][1] for each in many]
            print(f"{count} {kind}: {worst:.1e}, bytes {one[kind][1]}, {held}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
