"""Compare generation with peers: speed, limits, time to the first token, memory.

Workloads:
  w5           GPT-2 of 124 million parameters, greedy, 32 prompt tokens, 64 new: tokens/s
  w6           Transformer base, 32 sentences of 20 tokens to 32 new, beam 1 and 4: sentences/s
  limits       w5's step compared with the memory bandwidth and with its matrix products
  first_token  seconds to the first new token: compiling, with cached programs, and warm
  memory       resident memory while 64, 200 and 1,000 tokens are generated
  gpu_gpt2     with --device gpu: GPT-2 in bfloat16, 64 prompt tokens, 256 new: ms a step
  gpu_llama    with --device gpu: the shape of Llama 3.2 1B, 128 prompt tokens, 128 new: ms a step

Weights are random and the same for all; they are made once, about 1.5 GB. No row ends early: if a
token is missing, the run stops with an error. Each contender runs in its own process, in turns.
Ratios are between contenders of one precision.

    python benchmarks/generation.py --rounds 3
    python benchmarks/generation.py --workload w5 --contenders keras_transformer-jax ctranslate2
    python benchmarks/generation.py --short --rounds 1             # tiny models, to try it
    python benchmarks/generation.py --device gpu --bandwidth 4800  # the two of a GPU
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import generation_limits
import generation_memory
import numpy as np
from generation_contenders import PRECISIONS, Setting, make, precision_of
from generation_models import make_missing, prompts
from harness import (
    BACKENDS,
    backend_of,
    has_bfloat16,
    median_seconds,
    print_columns,
    print_table,
    run_rounds,
    run_worker,
)

OURS = [f"keras_transformer-{backend}" for backend in BACKENDS]
PACKED = ["keras_transformer-packed-torch"]
OURS_REDUCED = [f"keras_transformer-{p}-{backend}" for p in PRECISIONS for backend in BACKENDS]
PACKED_INT8 = ["keras_transformer-packed-int8-torch"]
PEERS = ["ctranslate2", "ctranslate2-int8", "transformers", "transformers-bfloat16"]
KERAS_HUB = [f"keras_hub-{backend}" for backend in BACKENDS]
ON_GPU = [f"keras_transformer-bfloat16-{b}" for b in ("jax", "torch")] + ["transformers-bfloat16"]


@dataclasses.dataclass(frozen=True)
class Workload:
    title: str
    contenders: list[str]
    model: str = "gpt2"
    length: int = 32  # tokens of a prompt
    new: int = 64
    cases: tuple = ()  # (measure, prompts, beams)
    unit: str = "tokens/s"


WORKLOADS = {
    "w5": Workload(
        "W5: GPT-2 124M, greedy, 32 prompt tokens, 64 new",
        OURS + PACKED + PEERS + KERAS_HUB + OURS_REDUCED + PACKED_INT8,
        cases=(("batch 1", 1, 1), ("batch 8", 8, 1)),
    ),
    "w6": Workload(
        "W6: Transformer base, 32 sentences of 20 tokens, 32 new",
        OURS + PACKED + PEERS + OURS_REDUCED + PACKED_INT8,
        model="marian",
        length=20,
        new=32,
        cases=(("beam 1", 32, 1), ("beam 4", 32, 4)),
        unit="sentences/s",
    ),
    "limits": Workload("Limits: a step of W5, by batch", OURS),
    "first_token": Workload(
        "Seconds to the first token of W5 in a fresh process",
        [*OURS, "ctranslate2", "transformers", "keras_hub-jax"],
    ),
    # 16 and 1,000 are within the 1,024 positions of GPT-2.
    "memory": Workload("Memory of generation, GPT-2 124M, batch 1, MB", OURS, length=16),
    "gpu_gpt2": Workload(
        "GPU: GPT-2 124M in bfloat16, greedy, 64 prompt tokens, 256 new",
        ON_GPU,
        length=64,
        new=256,
        cases=(("batch 1", 1, 1), ("batch 64", 64, 1)),
    ),
    "gpu_llama": Workload(
        "GPU: Llama 3.2 1B's shape in bfloat16, greedy, 128 prompt tokens, 128 new",
        ON_GPU,
        model="llama",
        length=128,
        new=128,
        cases=(("batch 1", 1, 1), ("batch 16", 16, 1)),
    ),
}
NOT_DEFAULT = {"w6": OURS_REDUCED[3:]}  # our int8, which W5 shows
ON_CPU = [name for name in WORKLOADS if not name.startswith("gpu")]


def measure_speed(name: str, workload: str, setting: Setting) -> list:
    """Return speeds; write the tokens and some logits to a file, for comparison."""
    work, contender, results, kept = WORKLOADS[workload], make(name, setting), [], {}
    for measure, rows, beams in work.cases:
        given = prompts(work.model, rows, work.length, setting.short)
        run = lambda given=given, beams=beams: contender.generate(given, work.new, beams)  # noqa: E731
        kept[measure] = np.array(run())
        seconds = median_seconds(run, runs=1 if setting.short else 3, warmup=0)
        amount = rows if work.unit == "sentences/s" else rows * work.new
        results.append((measure, amount / seconds))
        if setting.device == "gpu":
            results += step_measures(contender, given, work.new, seconds, measure)
            print(f"ROW {results}", flush=True)
    if contender.logits is not None:
        kept["logits"] = contender.logits(given[:1])
    np.savez(output_file(setting.root, workload, name), **kept)
    if setting.device == "gpu":
        from keras_transformer.checkpoints import load_config

        config = load_config(setting.folder)[0]
        slots = work.length + work.new / 2
        results += [
            (f"MB a step, {m}", generation_limits.step_bytes(config, rows, slots, 2) / 1e6)
            for m, rows, _ in work.cases
        ]
    return results


def step_measures(contender, given: list, new: int, seconds: float, measure: str) -> list:
    """Milliseconds to the first token, of each further step, and of the first call."""
    first = median_seconds(lambda: contender.generate(given, 1))
    step = (seconds - first) / (new - 1)
    return [(f"ms to the first, {measure}", 1e3 * first), (f"ms a step, {measure}", 1e3 * step)]


def measure_limits(name: str, workload: str, setting: Setting) -> list:
    work = WORKLOADS[workload]
    return generation_limits.measure(
        make(name, setting),
        lambda rows: prompts(work.model, rows, work.length, setting.short),
        work.new,
        setting.short,
    )


def measure_first_token(name: str, workload: str, setting: Setting) -> list:
    work, start = WORKLOADS[workload], time.perf_counter()
    contender = make(name, setting)
    loaded = time.perf_counter()
    given = prompts(work.model, 1, work.length, setting.short)
    contender.generate(given, 1)
    first = time.perf_counter() - loaded
    warm = median_seconds(lambda: contender.generate(given, 1), runs=5)
    return [("import, load", loaded - start), ("first", first), ("warm", warm)]


def measure_memory(name: str, workload: str, setting: Setting) -> list:
    given = prompts("gpt2", 1, WORKLOADS[workload].length, setting.short)
    return generation_memory.measure(lambda: make(name, setting), given, setting.short)


MEASURES: dict[str, Callable] = {
    "limits": measure_limits,
    "first_token": measure_first_token,
    "memory": measure_memory,
}


def run_first_token(name: str, options: list[str]) -> list:
    """Measure a cold start; on JAX also in a process that finds cached programs."""
    results = run_worker(name, options)
    if backend_of(name) == "jax":
        with tempfile.TemporaryDirectory() as cache:
            environment = {
                "JAX_COMPILATION_CACHE_DIR": cache,
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            }
            run_worker(name, options, environment)
            again = dict(run_worker(name, options, environment))
        results.insert(2, ("first, cached programs", again["first"]))
    return results


def output_file(root: pathlib.Path, workload: str, name: str) -> pathlib.Path:
    folder = root / "outputs"
    folder.mkdir(exist_ok=True)
    return folder / f"{workload}-{name}.npz"


def print_speed(workload: str, values: dict, root: pathlib.Path) -> None:
    """Print a table for each precision, its effect, and which contenders give equal tokens."""
    work, names = WORKLOADS[workload], list(dict.fromkeys(name for _, name in values))
    for precision in ("float32", *PRECISIONS):
        chosen = {key: v for key, v in values.items() if precision_of(key[1]) == precision}
        if chosen:
            print_table(f"{work.title}, {precision}", chosen, work.unit)
    outputs = {name: np.load(output_file(root, workload, name)) for name in names}
    for name in names:
        full = name.replace(f"-{precision_of(name)}", "")
        if name == full or full not in names:
            continue
        ratios = ", ".join(
            f"{statistics.median(values[m, name]) / statistics.median(values[m, full]):.2f} times "
            f"its speed at {m}"
            for m, _, _ in work.cases
        )
        line = f"  {name} beside float32: {ratios}"
        if "logits" in outputs[name]:
            error = np.abs(outputs[name]["logits"] - outputs[full]["logits"]).max()
            largest = np.abs(outputs[full]["logits"]).max()
            line += f"; logits differ by {error:.2g} at most, the largest is {largest:.2g}"
        print(line)
    peer = next((name for name in names if not name.startswith("keras_transformer")), None)
    peer = "transformers" if "transformers" in names else peer
    for name in names if peer else []:
        if name == peer:
            continue
        equal = ", ".join(
            f"{int((outputs[name][m] == outputs[peer][m]).sum())} of {outputs[peer][m].size} at {m}"
            for m, _, _ in work.cases
        )
        print(f"  tokens of {name} that equal those of {peer}: {equal}")


def print_limits(values: dict) -> None:
    print_columns(WORKLOADS["limits"].title, values)
    generation_limits.print_floors(values, lambda m, name: statistics.median(values[m, name]))


def print_gpu(workload: str, values: dict, gigabytes: float) -> None:
    work = WORKLOADS[workload]
    cases = {measure for measure, _, _ in work.cases}
    print_table(work.title, {k: v for k, v in values.items() if k[0] in cases}, work.unit)
    times = {k: v for k, v in values.items() if k[0].startswith("ms ")}
    print_columns("Milliseconds", times)
    print(f"Share of {gigabytes:.0f} GB/s that the steps read:")
    for (measure, name), found in times.items():
        if measure.startswith("ms a step"):
            case = measure.removeprefix("ms a step, ")
            megabytes = statistics.median(values[f"MB a step, {case}", name])
            print(f"  {name}, {case}: {megabytes / statistics.median(found) / gigabytes:.1%}")


def measure_copy() -> list:
    """Return GB/s of a large copy on the GPU, counting reads and writes."""
    import torch

    source = torch.ones(2**30, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)

    def copy():
        target.copy_(source)
        torch.cuda.synchronize()

    return [("GB/s", 2 * source.nbytes / median_seconds(copy, runs=10, warmup=3) / 1e9)]


def contenders_of(workload: str, arguments) -> list[str]:
    """Return the requested contenders that the workload has, or its default."""
    known = WORKLOADS[workload].contenders
    if arguments.contenders is not None:
        return [name for name in arguments.contenders if name in known]
    names = [name for name in known if name not in NOT_DEFAULT.get(workload, [])]
    # A product would take minutes with `transformers`.
    if arguments.device == "cpu" and not has_bfloat16():
        names = [name for name in names if precision_of(name) != "bfloat16"]
    return names


def work(name: str, workload: str, arguments) -> list:
    """Measure one contender, in its own process."""
    setting = Setting(
        WORKLOADS[workload].model,
        arguments.folder,
        short=arguments.short,
        device=arguments.device,
    )
    if name == "models":
        converted = any("ctranslate2" in name for name in contenders_of(workload, arguments))
        make_missing(setting.root, setting.model, setting.short, converted)
        return []
    if name == "copy":
        return measure_copy()
    return MEASURES.get(workload, measure_speed)(name, workload, setting)


def run_workload(workload: str, arguments) -> None:
    names, gpu = contenders_of(workload, arguments), arguments.device == "gpu"
    if not names:
        print(f"none of these contenders is in {workload}", file=sys.stderr)
        return
    options = ["--folder", str(arguments.folder), "--device", arguments.device]
    options += ["--workload", workload]
    options += ["--short"] if arguments.short else []
    # If there is a GPU, the libraries would use it by default.
    if not gpu:
        os.environ.update(CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu")
    print(f"workload {workload}", file=sys.stderr, flush=True)
    run_worker("models", [*options, "--contenders", *names])
    run = run_first_token if workload == "first_token" else run_worker
    values = run_rounds(names, arguments.rounds, lambda name: run(name, options))
    if gpu:
        gigabytes = arguments.bandwidth or dict(run_worker("copy", options))["GB/s"]
        print_gpu(workload, values, gigabytes)
    elif workload == "limits":
        print_limits(values)
    elif WORKLOADS[workload].cases:
        print_speed(workload, values, arguments.folder)
    else:
        print_columns(WORKLOADS[workload].title, values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = list(dict.fromkeys(name for w in WORKLOADS.values() for name in w.contenders))
    parser.add_argument(
        "--workload",
        nargs="+",
        choices=WORKLOADS,
        metavar="NAME",
        help="default: all above of the device",
    )
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=known,
        metavar="NAME",
        help="default: those of each workload. Of: " + ", ".join(known),
    )
    parser.add_argument("--rounds", type=int, default=3, help="times each contender runs")
    parser.add_argument("--short", action="store_true", help="tiny models, to try the benchmark")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"), help="where to compute")
    parser.add_argument(
        "--bandwidth", type=float, help="GB/s of the GPU's memory (default: that of a large copy)"
    )
    parser.add_argument(
        "--folder",
        type=pathlib.Path,
        default=pathlib.Path(tempfile.gettempdir(), "keras_transformer_benchmark"),
        help="where the models are made and kept, about 1.5 GB (default: %(default)s)",
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    on_device = [n for n in WORKLOADS if (n in ON_CPU) == (arguments.device == "cpu")]
    workloads = arguments.workload or on_device
    if wrong := [name for name in workloads if name not in on_device]:
        parser.error(f"not on --device {arguments.device}: {', '.join(wrong)}")
    if arguments.worker:
        print("RESULT " + json.dumps(work(arguments.worker, workloads[0], arguments)))
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.short:
        print("Tiny models: the figures say nothing of the speed of the named ones.")
    for workload in workloads:
        run_workload(workload, arguments)


if __name__ == "__main__":
    main()
