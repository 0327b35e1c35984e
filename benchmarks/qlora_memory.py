"""Peak memory of training adapters over a model in int8 or int4, predicted and measured.

A process of its own for each backend makes a model of the shape of Llama 3.2 1B with random
weights, one layer of floats at a time, adds adapters and takes steps. All columns are megabytes
beside the libraries, that is minus what the process had after a tiny model took the same steps:

- predicted: `planning.make_plan` of a step.
- measured: the most (`VmHWM`) during the steps after the first, without the programs.
- programs: what the process keeps from the first step on, such as what XLA compiled.
- first step: the most during the first step, which compiles.
- building: the most while the model was made.

Linux only.

    python benchmarks/qlora_memory.py --backends torch jax --dtypes int4 --length 1024
"""

import argparse
import gc
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time

SIZES = {
    "llama_3.2_1b": {
        "vocabulary_size": 128_256, "hidden_dim": 2048, "num_layers": 16, "num_heads": 32,
        "num_key_value_heads": 8, "intermediate_dim": 8192,
    },
    "small": {
        "vocabulary_size": 32_000, "hidden_dim": 512, "num_layers": 8, "num_heads": 8,
        "num_key_value_heads": 4, "intermediate_dim": 2048,
    },
    "middle": {
        "vocabulary_size": 32_000, "hidden_dim": 1024, "num_layers": 8, "num_heads": 8,
        "num_key_value_heads": 4, "intermediate_dim": 4096,
    },
    "tiny": {
        "vocabulary_size": 100, "hidden_dim": 64, "num_layers": 2, "num_heads": 2,
        "num_key_value_heads": 1, "intermediate_dim": 128,
    },
}  # fmt: skip
RANK, TARGETS = 16, ["query", "key", "value", "output", "gate", "intermediate"]


def new_peak() -> None:
    """Forget the peak of this process's memory: from here on it is counted anew."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """Return the most memory that this process had since `new_peak`, in bytes."""
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


def config_of(size: str, length: int):
    import keras_transformer as kt

    return kt.TransformerConfig(
        kind="decoder", position="rotary", gated=True, activation="silu", use_bias=False,
        normalization="rms_norm", normalize_first=True, tie_embeddings=True, dropout=0.0,
        max_sequence_length=length, **SIZES[size],
    )  # fmt: skip


def make(size: str, length: int, dtype: str):
    """Make a language model of random integer weights, one layer of floats at a time."""
    import keras
    import numpy as np

    import keras_transformer as kt
    from keras_transformer.config.integer_dtype import IntegerDtype
    from keras_transformer.kernels.programs import to_tensor, without_copy
    from keras_transformer.layers.arguments import HostZeros
    from keras_transformer.models.runtime.quantized import LayerByLayer

    quantized = IntegerDtype.parse(dtype)
    with keras.RematScope(mode="full"):
        backbone = kt.models.Decoder(
            config_of(size, length), dtype=quantized.floats, initializer=HostZeros()
        )
    in_turn = LayerByLayer(backbone, quantized)
    random = np.random.default_rng(0)
    # The embeddings, which are the largest, come first, while there is nothing else.
    weights = sorted(backbone.weights, key=lambda variable: math.prod(variable.shape))
    while weights:  # a quantized layer has others: nothing may keep the former ones
        variable = weights.pop()
        if len(variable.shape) == 2:
            array = random.random(variable.shape, "float32")
            array -= 0.5
            array *= 0.05
            variable.assign(to_tensor(without_copy(array)))
            del array
        in_turn.assigned(variable)
    del variable
    in_turn.release()
    return kt.CausalLM(backbone)


def resident() -> int:
    """Return the memory that this process has at rest, in bytes."""
    gc.collect()
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])


def steps(size: str, length: int, dtype: str, count: int) -> dict:
    """Train adapters; return bytes, and the seconds of the last step."""
    import numpy as np

    new_peak()
    lm = make(size, length, dtype)
    found = {"building": peak()}
    lm.enable_lora(RANK, 2 * RANK, TARGETS)
    lm.optimizer.build(lm.trainable_variables)
    ids = np.random.default_rng(1).integers(0, SIZES[size]["vocabulary_size"], (1, length + 1))
    before = resident()
    for name in ["first"] + ["later"] * (count - 1):
        new_peak()
        begin = time.perf_counter()
        loss = float(lm.train_on_batch({"token_ids": ids[:, :-1]}, ids[:, 1:])[0])
        found |= {"seconds": time.perf_counter() - begin}
        found[name] = max(found.get(name, 0), peak())
        found.setdefault("programs", resident() - before)
    assert np.isfinite(loss)
    return found


def child(options) -> None:
    steps("tiny", 32, options.dtypes[0], 2)
    baseline = resident()
    found = steps(options.size, options.length, options.dtypes[0], options.steps)
    print(json.dumps({**found, "baseline": baseline}))


def predicted(options, dtype: str) -> int:
    from keras_transformer.planning import make_plan

    plan = make_plan(
        config_of(options.size, options.length), batch_size=1, length=options.length, dtype=dtype,
        optimizer="adam", lora_rank=RANK, lora_targets=TARGETS,
    )  # fmt: skip
    return plan.memory.peak(rematerialize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs="+", default=["torch", "jax"])
    parser.add_argument("--dtypes", nargs="+", default=["int4"])
    parser.add_argument("--size", choices=SIZES, default="llama_3.2_1b")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=2, help="at least 2")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    form = "{:12}{:24}{:>10}{:>10}{:>8}{:>10}{:>12}{:>10}{:>10}{:>9}"
    print(form.format("backend", "dtype", "predicted", "measured", "ratio", "programs",
                      "first step", "building", "baseline", "step"))  # fmt: skip
    for backend in options.backends:
        for dtype in options.dtypes:
            command = [
                sys.executable, __file__, "--child", "--dtypes", dtype, "--size", options.size,
                "--length", str(options.length), "--steps", str(options.steps),
            ]  # fmt: skip
            run = subprocess.run(
                command, env={**os.environ, "KERAS_BACKEND": backend}, text=True,
                stdout=subprocess.PIPE, check=True,
            )  # fmt: skip
            found = json.loads(run.stdout.splitlines()[-1])
            baseline, programs = found["baseline"], found["programs"]
            expected, measured = predicted(options, dtype), found["later"] - baseline - programs
            sizes = (programs, found["first"] - baseline, found["building"] - baseline, baseline)
            print(form.format(
                backend, dtype, f"{expected / 1e6:.0f} MB", f"{measured / 1e6:.0f} MB",
                f"{expected / measured:.2f}", *(f"{size / 1e6:.0f} MB" for size in sizes),
                f"{found['seconds']:.1f} s",
            ))  # fmt: skip


if __name__ == "__main__":
    main()
