"""W9: a decoder with 8 experts, 2 per token, compared with dense decoders.

"dense" has a feed-forward layer as wide as the two experts that are active, "wide" one as wide as
all eight. 4 blocks of width 512, 8 heads, experts of width 1,024, gated, float32. A training step
is a step of `fit` with AdamW on 2 rows of 1,024 tokens; decoding is greedy, one row, after a prompt
of 32 tokens. Each contender runs in its own process, in turns. "step / dense" is the time of a
training step divided by that of the dense model on the same backend, "token / dense" the same for a
token.

    python benchmarks/experts.py --rounds 3
    python benchmarks/experts.py --contenders dense-jax experts-jax
    python benchmarks/experts.py --short --rounds 1                 # a tiny model, to try it
"""

import argparse
import json
import statistics
import sys

import numpy as np
from harness import (
    BACKENDS,
    median_seconds,
    memory,
    print_columns,
    run_rounds,
    run_worker,
    use_threads_of_torch,
)

EXPERTS, ACTIVE = 8, 2
KINDS = ("dense", "experts", "wide")
CONTENDERS = [f"{kind}-{backend}" for backend in BACKENDS for kind in KINDS]


def made(kind: str, short: bool):
    """Build the language model of a contender."""
    import keras

    import keras_transformer as kt

    if keras.backend.backend() == "torch":
        use_threads_of_torch()
    width, expert = (32, 16) if short else (512, 1024)
    values = {"intermediate_dim": expert * (EXPERTS if kind == "wide" else ACTIVE)}
    if kind == "experts":
        values |= {"num_experts": EXPERTS, "experts_per_token": ACTIVE, "expert_dim": expert}
        values["load_balancing_factor"] = 0.01
    config = kt.TransformerConfig(
        kind="decoder",
        vocabulary_size=8192,
        hidden_dim=width,
        num_layers=1 if short else 4,
        num_heads=8,
        activation="silu",
        gated=True,
        use_bias=False,
        normalization="rms_norm",
        normalize_first=True,
        position="rotary",
        max_sequence_length=2048,
        **values,
    )
    keras.utils.set_random_seed(0)
    lm = kt.CausalLM(kt.models.build_backbone(config))
    lm.compile(kt.training.FineTuningAdamW(1e-4), kt.training.TokenCrossEntropy())
    return lm


def measure(name: str, short: bool) -> list:
    """Return tokens per second in training and decoding, and the memory of training."""
    lm = made(name.split("-")[0], short)
    random = np.random.default_rng(0)
    ids = random.integers(1, 8192, (2, 64 if short else 1024)).astype("int32")
    before = memory("VmRSS")
    step = median_seconds(lambda: lm.train_on_batch({"token_ids": ids}, ids), runs=5, warmup=2)
    peak = memory("VmHWM") - before
    prompt, count = ids[0, :32].tolist(), 64
    decode = median_seconds(lambda: lm.generate(prompt, max_new_tokens=count))
    return [
        ("training tokens/s", ids.size / step),
        ("decoding tokens/s", count / decode),
        ("peak MB", peak),
    ]


def with_ratios(values: dict) -> dict:
    """Add the ratios of times to the dense model on the same backend."""
    found = dict(values)
    for measure, ratio in (
        ("training tokens/s", "step / dense"),
        ("decoding tokens/s", "token / dense"),
    ):
        for (known, name), figures in values.items():
            dense = values.get((measure, f"dense-{name.split('-')[1]}"))
            if known == measure and dense:
                found[ratio, name] = [statistics.median(dense) / statistics.median(figures)]
    return found


def main() -> None:
    summary, _, details = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, metavar="NAME",
                        default=CONTENDERS, help=f"of {', '.join(CONTENDERS)}")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3, help="times each contender runs")
    parser.add_argument("--short", action="store_true", help="a tiny model, to try the benchmark")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print("RESULT " + json.dumps(measure(arguments.worker, arguments.short)))
        return
    options = ["--short"] if arguments.short else []
    values = run_rounds(
        arguments.contenders, arguments.rounds, lambda name: run_worker(name, options)
    )
    print_columns(summary, with_ratios(values))


if __name__ == "__main__":
    sys.exit(main())
