"""Measure time and peak memory of loading a 500 MB checkpoint, compared with Transformers.

Makes a random BERT of 125 million parameters in Hugging Face format once, stored in float32 and in
float16, and loads it as float32 in fresh processes, in turns. Before the clock starts a process
has imported its library and loaded a tiny model in the same way, and the file is in the disk cache
of the system. The clock stops when every value has been summed once, since Transformers only maps
the file, and reads it when the values are used. Peak memory is the highest resident set until then
(VmHWM of Linux) less the resident set before; the model's own values are part of it.

The bar: at most 1.3 times the model's size plus 300 MB. If it is missed, the exit status is 1.

    python benchmarks/loading.py                                    # all backends, 3 rounds
    python benchmarks/loading.py --contenders keras_transformer-jax transformers --rounds 5
    python benchmarks/loading.py --stored float16 --folder /tmp/kt  # where the checkpoints are kept
"""

import argparse
import gc
import json
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
from harness import BACKENDS, memory, run_worker, start_peak

SIZES = {
    "large": {
        "hidden_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "vocab_size": 24_000,
    },
    "tiny": {
        "hidden_size": 16,
        "num_hidden_layers": 8,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 100,
    },
}
STORED = ("float32", "float16")


def ours(folder: pathlib.Path) -> object:
    import keras_transformer as kt

    return kt.models.Backbone.from_preset(folder)


def transformers(folder: pathlib.Path) -> object:
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder, dtype="float32")


def keras_hub(folder: pathlib.Path) -> object:
    import keras_hub

    return keras_hub.models.Backbone.from_preset(str(folder))


CONTENDERS = {
    **{f"keras_transformer-{backend}": ours for backend in BACKENDS},
    "transformers": transformers,
    **{f"keras_hub-{backend}": keras_hub for backend in BACKENDS},
}
DEFAULT = [
    *(f"keras_transformer-{backend}" for backend in BACKENDS),
    "transformers",
    "keras_hub-jax",
]


def make_checkpoints(root: pathlib.Path) -> None:
    """Write the missing folders `<size>-<stored type>`."""
    missing = [(s, t) for s in SIZES for t in STORED if not (root / f"{s}-{t}").is_dir()]
    if not missing:
        return
    import torch
    from transformers import BertConfig, BertModel

    for size, stored in missing:
        print(f"making the {size} checkpoint in {stored} in {root}", file=sys.stderr)
        torch.manual_seed(0)
        model = BertModel(BertConfig(**SIZES[size])).to(getattr(torch, stored))
        scratch = root / f"{size}-{stored}.part"
        model.save_pretrained(scratch)
        scratch.rename(root / f"{size}-{stored}")


def measure(load: Callable, root: pathlib.Path, stored: str) -> dict[str, float]:
    """Return the seconds and megabytes of one load in this process."""
    load(root / f"tiny-{stored}")
    folder = root / f"large-{stored}"
    for path in folder.iterdir():
        with open(path, "rb") as file:
            while file.read(2**24):
                pass
    gc.collect()
    start_peak()
    before, start = memory("VmRSS"), time.perf_counter()
    model = load(folder)
    loaded = time.perf_counter() - start
    values = model.weights if hasattr(model, "weights") else model.parameters()
    total = sum(float(as_numpy(value).sum()) for value in values)
    seconds = time.perf_counter() - start
    peak, held = memory("VmHWM") - before, memory("VmRSS") - before
    return {"seconds": seconds, "loaded": loaded, "peak": peak, "held": held, "total": total}


def as_numpy(value) -> np.ndarray:
    """The values of a Keras variable or a PyTorch parameter, not copied where that is possible."""
    value = getattr(value, "value", value)
    return value.detach().numpy() if hasattr(value, "detach") else np.asarray(value)


def print_table(values: dict[str, list[dict[str, float]]], stored: str, size: float) -> bool:
    """Print the medians, and return whether all contenders of this project meet the bar."""
    bar, kept = 1.3 * size + 300, True
    totals = {round(run["total"], 1) for runs in values.values() for run in runs}
    assert max(totals) - min(totals) < 1, f"the contenders loaded different values: {totals}"
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in values.items()
    }
    peer = medians.get("transformers")
    print(f"\nstored in {stored}, loaded as float32: {size:.0f} MB; the bar is {bar:.0f} MB")
    print(f"{'':<30}{'seconds':>9}{'min':>7}{'max':>7}   theirs / this{'peak MB':>10}"
          f"{'peak / size':>13}{'held MB':>9}{'until returned':>16}")  # fmt: skip
    for name, median in medians.items():
        seconds = [run["seconds"] for run in values[name]]
        ratio = f"{peer['seconds'] / median['seconds']:.2f}" if peer else ""
        missed = name.startswith("keras_transformer") and median["peak"] > bar
        kept = kept and not missed
        print(f"  {name:<28}{median['seconds']:>9.2f}{min(seconds):>7.2f}{max(seconds):>7.2f}"
              f"{ratio:>16}{median['peak']:>10.0f}{median['peak'] / size:>13.2f}"
              f"{median['held']:>9.0f}{median['loaded']:>14.2f} s"
              f"{'   over the bar' if missed else ''}")  # fmt: skip
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--contenders", nargs="+", default=DEFAULT, choices=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=3, help="times each contender loads")
    parser.add_argument("--stored", nargs="+", default=list(STORED), choices=STORED)
    parser.add_argument(
        "--folder",
        type=pathlib.Path,
        default=pathlib.Path(tempfile.gettempdir(), "keras_transformer_benchmark"),
        help="where the checkpoints are made and kept, 760 MB (default: %(default)s)",
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not pathlib.Path("/proc/self/clear_refs").exists():
        sys.exit("This benchmark reads the use of memory from /proc, which Linux has.")
    if arguments.worker:
        load = CONTENDERS[arguments.worker]
        print("RESULT " + json.dumps(measure(load, arguments.folder, arguments.stored[0])))
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    make_checkpoints(arguments.folder)
    size = (arguments.folder / "large-float32" / "model.safetensors").stat().st_size / 1e6
    kept, options = True, ["--folder", str(arguments.folder), "--stored"]
    for stored in arguments.stored:
        values: dict[str, list] = {name: [] for name in arguments.contenders}
        for number in range(arguments.rounds):
            for name in arguments.contenders:
                print(f"round {number + 1} of {arguments.rounds}: {name}", file=sys.stderr)
                values[name].append(run_worker(name, [*options, stored]))
        kept = print_table(values, stored, size) and kept
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
