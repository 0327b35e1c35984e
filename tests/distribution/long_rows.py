"""Tokens of a long row over devices against one device, on JAX: LENGTH DEVICES.

Run by hand for lengths that take minutes:

    XLA_FLAGS=--xla_force_host_platform_device_count=4 KERAS_BACKEND=jax \\
        python -m tests.distribution.long_rows 65536 4

A small decoder trains for a step on 1,024 tokens and evaluates a row of LENGTH. For one device and
for DEVICES it prints both losses, the largest difference that the step made to a weight, and of the
program of a training step on LENGTH the bytes of the largest tensor and of all temporary values of
a device; then the largest difference between the weights after the step.
"""

import json
import math
import re
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
    ids = np.random.default_rng(0).integers(1, 64, (1, length + 1)).astype("int32")
    short, long = (({"token_ids": ids[:, :n]}, ids[:, 1 : n + 1]) for n in (_TRAINED, length))
    for sequence in (1, devices):
        kt.distribution.setup(**({"data": 1} if sequence == 1 else {"sequence": sequence}))
        keras.utils.set_random_seed(0)
        sizes = {"num_heads": 4, "num_key_value_heads": 4, "max_sequence_length": length}
        task = kt.CausalLM(kt.models.build_backbone(config("decoder", **sizes)))
        task.compile(keras.optimizers.SGD(1.0), kt.training.TokenCrossEntropy())
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
    print(long_rows(*map(int, sys.argv[1:]))["weights differ by"], flush=True)
