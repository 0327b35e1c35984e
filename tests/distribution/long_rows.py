"""Tokens of a long row over devices against one device: LENGTH DEVICES.

Run by hand for lengths that take minutes; on PyTorch once with one process, once with several:

    XLA_FLAGS=--xla_force_host_platform_device_count=4 KERAS_BACKEND=jax \\
        python -m tests.distribution.long_rows 65536 4
    KERAS_BACKEND=torch python -m tests.distribution.long_rows 65536 1
    KERAS_BACKEND=torch torchrun --nproc_per_node 4 -m tests.distribution.long_rows 65536 4

On JAX a small decoder trains for a step on 1,024 tokens and evaluates a row of LENGTH. For one
device and for DEVICES it prints both losses, the largest difference that the step made to a weight,
and of the program of a training step on LENGTH the bytes of the largest tensor and of all temporary
values of a device; then the largest difference between the weights after the step. On PyTorch it
trains on both, and each process prints the losses, how far the first step moved a weight, and the
memory that the process took at its peak beyond what it had before the second step.
"""

import json
import math
import re
import resource
import sys

import keras
import numpy as np

import keras_transformer as kt
from tests.distribution.models import config

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8}
_TRAINED = 1024


def long_rows(length: int, devices: int) -> dict:
    """Train and evaluate on one device, and on some that share the tokens of a row."""
    found: dict = {}
    weights = []
    short, long = _batches(length)
    for sequence in (1, devices):
        kt.distribution.setup(**({"data": 1} if sequence == 1 else {"sequence": sequence}))
        task = _task(length)
        before = task.get_weights()
        trained = float(task.train_on_batch(*short)[0])
        weights.append(task.get_weights())
        program = _program(task, long)
        shapes = re.findall(r"(\w+)\[([\d,]+)\]", program.as_text())
        found[sequence] = {
            "largest tensor": max(map(_bytes, shapes)),
            "temporary": program.memory_analysis().temp_size_in_bytes,
            "loss of the step": trained,
            "moved by": _farthest(before, weights[-1]),
            "loss": float(task.test_on_batch(*long)[0]),
        }
        print(sequence, json.dumps(found[sequence]), flush=True)
    keras.distribution.set_distribution(None)
    return {**found, "weights differ by": _farthest(*weights)}


def processes_on_torch(length: int, processes: int) -> dict:
    """Train in this process on its tokens of a row."""
    if processes > 1:
        kt.distribution.setup(sequence=processes)
    task, (short, long) = _task(length), _batches(length)
    before = task.get_weights()
    trained = float(task.train_on_batch(*short)[0])
    moved = _farthest(before, task.get_weights())
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loss = float(task.train_on_batch(*long)[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start
    return {"loss of the step": trained, "moved by": moved, "loss": loss, "peak MB": peak / 1e3}


def _task(length: int) -> kt.CausalLM:
    keras.utils.set_random_seed(0)
    sizes = {"num_heads": 4, "num_key_value_heads": 4, "max_sequence_length": length}
    task = kt.CausalLM(kt.models.build_backbone(config("decoder", **sizes)))
    task.compile(keras.optimizers.SGD(1.0), kt.training.TokenCrossEntropy())
    return task


def _batches(length: int) -> tuple:
    ids = np.random.default_rng(0).integers(1, 64, (1, length + 1)).astype("int32")
    return tuple(({"token_ids": ids[:, :n]}, ids[:, 1 : n + 1]) for n in (_TRAINED, length))


def _farthest(some: list, others: list) -> float:
    return max(float(abs(one - two).max()) for one, two in zip(some, others, strict=True))


def _program(task, batch):
    groups = task._get_jax_state(
        trainable_variables=True,
        non_trainable_variables=True,
        optimizer_variables=True,
        metrics_variables=True,
    )
    values = [group.values() for group in groups]
    return task.train_function.programs._jitted().lower(*values, batch).compile()


def _bytes(shape: tuple[str, str]) -> int:
    dtype, sizes = shape
    return _BYTES.get(dtype, 0) * math.prod(map(int, sizes.split(",")))


if __name__ == "__main__":
    numbers = [int(number) for number in sys.argv[1:]]
    if keras.backend.backend() == "torch":
        print(json.dumps(processes_on_torch(*numbers)), flush=True)
    else:
        print(long_rows(*numbers)["weights differ by"], flush=True)
