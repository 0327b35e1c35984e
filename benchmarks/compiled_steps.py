"""Compare steps of `fit` on PyTorch: plain, as one graph, and compiled by Inductor, in turns.

The model is the bundled GPT of 2.8 million parameters, the batch 8 texts of 252 characters, the
optimizer AdamW. A step is a `fit` of one batch. "first" is the first step of a kind, which traces
the graph or compiles it.

    KERAS_BACKEND=torch python benchmarks/compiled_steps.py --steps 12
"""

import argparse
import statistics
import time

import keras_transformer as kt
from keras_transformer.kernels.torch_tracing import step

# Numbers of plain steps before the graph is traced, and of its steps before it is compiled.
KINDS = {"plain": None, "graph": 10**9, "compiled": 0}
TEXTS = ["to be or not to be, that is the question: " * 6] * 8


def make(kind: str) -> tuple[kt.CausalLM, float]:
    task = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
    optimizer = kt.training.FineTuningAdamW(1e-5)
    task.compile(optimizer, task.loss, jit_compile=KINDS[kind] is not None)
    return task, seconds(task, kind)


def seconds(task: kt.CausalLM, kind: str) -> float:
    step.STEPS_BEFORE = KINDS[kind] or 0
    begin = time.perf_counter()
    task.fit(TEXTS, batch_size=len(TEXTS), verbose=0)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=12, help="steps of each kind (default 12)")
    options = parser.parse_args()
    step.PLAIN_STEPS = dict.fromkeys(step.PLAIN_STEPS, 0)
    tasks = {kind: make(kind) for kind in KINDS}
    times = {kind: [] for kind in KINDS}
    for _ in range(options.steps):
        for kind, (task, _) in tasks.items():
            times[kind].append(seconds(task, kind))
    plain = statistics.median(times["plain"])
    print(f"{'':10} {'first, s':>9} {'step, s':>9} {'speed':>6}")
    for kind, (_, first) in tasks.items():
        median = statistics.median(times[kind])
        print(f"{kind:10} {first:9.1f} {median:9.3f} {plain / median:6.2f}")


if __name__ == "__main__":
    main()
