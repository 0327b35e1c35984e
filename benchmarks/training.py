"""Compare training with peers: speed, first and last loss, share of the machine's peak.

Workloads:
  finetuning   W4: one epoch of SST-2 fine-tuning of MiniLM, batch 32, from strings to dev accuracy,
               what is compiled included: texts/s. Transformers pads a batch to its longest row
               ("grouped" also puts rows of similar length together), KerasHub to 64 tokens
  bert         W3: BERT-base training step, 8 x 128, AdamW, dropout 0.1: steps/s
  translation  a Transformer of 4 + 4 layers of width 128 on batches of 4,096 tokens a side, beside
               the same model of torch.nn.Transformer and of KerasHub's layers: tokens/s
  peak         the matrix products of each framework: GFLOP/s
  gpu          BERT-base and GPT-2 in bfloat16 on a CUDA device: steps/s, memory. Not in "all"

Each contender runs in a process of its own, in turns, with the same environment (which is printed).
Ratios are between contenders of one precision, float32 unless the name says another; "bars" are the
ratios that the project wants. "of its peak" compares the floating-point operations of the model's
matrix products, without padding, with a large product of the same framework in the same process;
"of the highest" with the best of these in the run. Where the processor has no products of bfloat16
those contenders run only if they are named. Losses show that all compute the same.

On two cores a round of finetuning takes about half an hour, of bert and of translation about ten
minutes each; the processors must be idle otherwise.

    python benchmarks/training.py --rounds 3
    python benchmarks/training.py --workload finetuning --texts 2000 --rounds 1    # a quick look
    python benchmarks/training.py --workload bert --contenders keras_transformer-jax keras_hub-jax
    python benchmarks/training.py --short --rounds 1               # tiny sizes, to try it
    python benchmarks/training.py --workload gpu --peak 989        # TFLOP/s of the data sheet
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable

from harness import (
    BACKENDS,
    DATA,
    backend_of,
    has_bfloat16,
    has_gpu,
    print_columns,
    print_table,
    run_rounds,
    run_worker,
)
from peak import gflops
from training_finetuning import finetuning, gflop_per_text
from training_models import gflop_per_step, models
from training_passes import MIXED, Setting, precision_of
from training_translation import gflop_per_token, make_batches, translation

OURS = [f"keras_transformer-{backend}" for backend in BACKENDS]
KERAS_HUB = [f"keras_hub-{backend}" for backend in BACKENDS]
TORCH = ["torch_transformer", "torch_transformer-compiled"]
OURS_MIXED = [f"keras_transformer-{MIXED}-{backend}" for backend in BACKENDS]
ON_GPU = [name for name in OURS_MIXED if backend_of(name) != "tensorflow"]
TRANSFORMERS_MIXED = f"transformers-{MIXED}"
COMPILED_MIXED = f"transformers-compiled-{MIXED}"
GPU_FACTORS = {TRANSFORMERS_MIXED: 1.2, COMPILED_MIXED: 1.0}


@dataclasses.dataclass(frozen=True)
class Bar:
    """The best of `ours` is wanted to be `factor` times as fast as the best of `peers`."""

    ours: list[str]
    peers: list[str]
    factor: float


def each_backend(factor: float) -> list[Bar]:
    return [Bar([a], [b], factor) for a, b in zip(OURS, KERAS_HUB, strict=True)]


@dataclasses.dataclass(frozen=True)
class Workload:
    """Workload to measure, and its contenders.

    Fields:
        measure: a setting to a list of `(measure, value)`, in the process of a contender.
        gflop: a setting to the GFLOP of a unit, by measure. These measures are the speeds.
    """

    title: str
    unit: str
    contenders: list[str]
    measure: Callable
    gflop: Callable
    bars: list[Bar] = dataclasses.field(default_factory=list)
    not_default: tuple = ()


def measure_peak(setting: Setting) -> list:
    size = 256 if setting.short else 2048
    return [(dtype, gflops(size, dtype)) for dtype in ("float32", "bfloat16")]


WORKLOADS = {
    "finetuning": Workload(
        "W4: SST-2 fine-tuning of MiniLM from strings",
        "texts/s",
        [
            *OURS,
            "transformers",
            "transformers-grouped",
            *KERAS_HUB,
            *OURS_MIXED,
            TRANSFORMERS_MIXED,
        ],
        finetuning,
        gflop_per_text,
        [Bar(OURS, ["transformers"], 4.0), Bar(OURS, KERAS_HUB, 2.0), *each_backend(1.0)],
        not_default=(*OURS_MIXED, TRANSFORMERS_MIXED),
    ),
    "bert": Workload(
        "W3: training step of BERT-base",
        "steps/s",
        [*OURS, "transformers", *KERAS_HUB, *OURS_MIXED, TRANSFORMERS_MIXED],
        lambda setting: models("bert", setting),
        lambda setting: gflop_per_step("bert", setting),
        [*each_backend(1.25), Bar([OURS_MIXED[2]], [OURS[2]], 1.5)],
        not_default=tuple(OURS_MIXED[:2]),  # Of these PyTorch alone has a bar.
    ),
    "translation": Workload(
        "Training of a translator of 4 + 4 layers",
        "tokens/s",
        [*OURS, *TORCH, *KERAS_HUB],
        translation,
        gflop_per_token,
        [Bar(OURS, TORCH, 1.5), Bar([OURS[2]], TORCH, 1.5), *each_backend(1.5)],
        not_default=() if shutil.which("g++") else (TORCH[1],),  # which torch.compile needs
    ),
    "peak": Workload(
        "GFLOP/s of a matrix product",
        "GFLOP/s",
        [f"product-{backend}" for backend in BACKENDS],
        measure_peak,
        lambda setting: {},
    ),
    "gpu": Workload(
        "GPU: training step",
        "steps/s",
        [*ON_GPU, TRANSFORMERS_MIXED, COMPILED_MIXED],
        lambda setting: models("gpu", setting),
        lambda setting: gflop_per_step("gpu", setting),
        [Bar([n], [p], f) for n in ON_GPU for p, f in GPU_FACTORS.items()],
    ),
}
ALL = [name for name in WORKLOADS if name != "gpu"]


def print_results(work: Workload, values: dict, gflop: dict, peak: float | None) -> None:
    """Speeds by precision, the other measures, the distance to the peak, the bars."""
    for precision in ("float32", MIXED):
        chosen = {
            (measure, name): v
            for (measure, name), v in values.items()
            if measure in gflop and precision_of(name) == precision
        }
        if chosen:
            print_table(f"{work.title}, {precision}", chosen, work.unit)
    medians = {key: statistics.median(v) for key, v in values.items()}
    others = {key: v for key, v in values.items() if key[0] not in (*gflop, "peak")}
    if others:
        print_columns(f"{work.title}: the other measures" if gflop else work.title, others)
    print_distances(work, medians, gflop, peak)
    print_bars(work, medians, list(gflop))


def print_distances(work: Workload, medians: dict, gflop: dict, peak: float | None) -> None:
    """Print the share of the machine's matrix products that each contender reaches."""
    for measure in gflop:
        columns = {}
        for name in (n for m, n in medians if m == measure):
            rivals = [
                value
                for (m, n), value in medians.items()
                if m == "peak"
                and (precision_of(n) == "float32") == (precision_of(name) == "float32")
            ]
            speed = medians[measure, name] * gflop[measure]
            columns["GFLOP/s", name] = [speed]
            columns["peak", name] = [medians["peak", name]]
            columns["of its peak", name] = [speed / medians["peak", name]]
            columns["of the highest", name] = [speed / max(rivals)]
            if peak is not None:
                columns["of --peak", name] = [speed / (1e3 * peak)]
        if columns:
            print_columns(f"{work.title}, {measure}: distance to the peak", columns)


def print_bars(work: Workload, medians: dict, measures: list[str]) -> None:
    for bar in work.bars:
        for measure in measures:
            ours, peers = (
                {n: medians[measure, n] for n in side if (measure, n) in medians}
                for side in (bar.ours, bar.peers)
            )
            if ours and peers:
                us, them = max(ours, key=ours.get), max(peers, key=peers.get)
                ratio = ours[us] / peers[them]
                verdict = "kept" if ratio >= bar.factor else "missed"
                print(f"  {ratio:5.2f}, bar {bar.factor:g} {verdict}: {us} / {them}, {measure}")
    print()


def work_of(name: str, workload: str, arguments) -> list:
    """Measure one contender, in its own process."""
    setting = setting_of(name, workload, arguments)
    if name == "batches":
        make_batches(setting)
        return []
    return WORKLOADS[workload].measure(setting)


def setting_of(name: str, workload: str, arguments) -> Setting:
    return Setting(name, arguments.short, workload == "gpu", arguments.texts, arguments.folder)


def contenders_of(workload: str, arguments) -> list[str]:
    """Return the requested contenders that the workload has, or its default."""
    work = WORKLOADS[workload]
    if arguments.contenders is not None:
        return [name for name in work.contenders if name in arguments.contenders]
    names = [name for name in work.contenders if name not in work.not_default]
    if workload != "gpu" and not has_bfloat16():  # A step of `transformers` would take minutes.
        names = [name for name in names if precision_of(name) == "float32"]
    return names


def run_workload(workload: str, arguments) -> None:
    names = contenders_of(workload, arguments)
    if not names:
        print(f"none of these contenders is in {workload}", file=sys.stderr)
        return
    print(f"workload {workload}", file=sys.stderr, flush=True)
    options = ["--workload", workload, "--folder", str(arguments.folder)]
    options += ["--short"] if arguments.short else []
    options += [] if arguments.texts is None else ["--texts", str(arguments.texts)]

    def run(name: str) -> list:
        # PyTorch's peak is measured with the operations of Keras.
        environment = {} if backend_of(name) else {"KERAS_BACKEND": "torch"}
        environment["KT_BENCHMARK_DATA"] = arguments.data_dir
        if workload != "gpu":  # Where there is one, the libraries would take it by themselves.
            environment.update(CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu")
        return run_worker(name, options, environment)

    if workload == "translation":
        run("batches")
    values = run_rounds(names, arguments.rounds, run)
    gflop = WORKLOADS[workload].gflop(setting_of("", workload, arguments))
    print_results(WORKLOADS[workload], values, gflop, arguments.peak)


def print_environment() -> None:
    """Print settings that may change the speed of all contenders."""
    names = ("GLIBC_TUNABLES", "LD_PRELOAD", "OMP_NUM_THREADS", "XLA_FLAGS", "ONEDNN_MAX_CPU_ISA")
    found = ", ".join(f"{name}={os.environ[name]}" for name in names if os.environ.get(name))
    print(f"All contenders: {os.cpu_count()} processors; {found or 'no variables of speed set'}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = list(dict.fromkeys(name for w in WORKLOADS.values() for name in w.contenders))
    parser.add_argument(
        "--workload",
        nargs="+",
        default=["all"],
        choices=[*WORKLOADS, "all"],
        metavar="NAME",
        help="default: all",
    )
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=known,
        metavar="NAME",
        help="default: those of each workload. Of: " + ", ".join(known),
    )
    parser.add_argument("--rounds", type=int, default=3, help="times each contender runs")
    parser.add_argument("--texts", type=int, help="of finetuning, for a quick look (default: all)")
    parser.add_argument("--short", action="store_true", help="tiny sizes, to try the benchmark")
    parser.add_argument("--peak", type=float, help="TFLOP/s of the GPU, beside what is measured")
    parser.add_argument(
        "--data_dir", default=str(DATA), help="folder with sst2/ and multi30k/ (%(default)s)"
    )
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        results = work_of(arguments.worker, arguments.workload[0], arguments)
        print("RESULT " + json.dumps(results))
        return
    chosen = [n for name in arguments.workload for n in (ALL if name == "all" else [name])]
    if "gpu" in chosen and not arguments.short and not has_gpu("torch"):
        sys.exit("The workload gpu needs a CUDA device, and PyTorch finds none here.")
    os.environ["KT_BENCHMARK_DATA"] = arguments.data_dir
    if arguments.short:
        print("Tiny sizes: the figures say nothing of the speed of the named ones.")
    print_environment()
    for workload in dict.fromkeys(chosen):
        with tempfile.TemporaryDirectory() as folder:
            arguments.folder = pathlib.Path(folder)
            run_workload(workload, arguments)


if __name__ == "__main__":
    main()
