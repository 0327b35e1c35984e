"""The command lines of the benchmarks, and the operations that they count."""

import importlib
import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT

SCRIPTS = ("attention", "encoding", "experts", "generation", "images", "loading", "training")

pytestmark = pytest.mark.backend_independent


@pytest.fixture
def benchmark_module(monkeypatch):
    """Imports a module of the benchmarks, which import each other by their bare names."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_names_the_options(script):
    command = [sys.executable, ROOT / "benchmarks" / f"{script}.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--rounds" in done.stdout and "--contenders" in done.stdout
    if script == "training":
        assert "python benchmarks/training.py --workload finetuning --texts 2000" in done.stdout


def test_bucketing_says_what_it_needs(tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "bucketing.py"]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "python benchmarks/bucketing.py --pairs 2000" in done.stdout
    for arguments, words in (
        (["--seeds=1"], "--seeds must be 2 or more"),
        ([f"--data_dir={tmp_path}"], "give the folder that holds multi30k/"),
    ):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode != 0 and words in done.stderr


def test_operations_are_those_of_the_papers(benchmark_module):
    passes = benchmark_module("training_passes")
    # Sun et al. 2020, "MobileBERT", table 1: 22.5 billion for BERT-base on 128 tokens.
    bert = passes.encoder_flops([128], layers=12, width=768, inner=3072)
    assert bert == pytest.approx(22.5e9, rel=0.01)
    # Brown et al. 2020, "GPT-3", table D.1: 3.14e23 for 300 billion tokens, without the attention.
    rows = [2048]
    gpt3 = passes.encoder_flops(rows, layers=96, width=12288, inner=4 * 12288)
    gpt3 += passes.projection_flops(rows, width=12288, vocabulary=50257)
    assert passes.training_flops(gpt3) / 2048 * 300e9 == pytest.approx(3.14e23, rel=0.04)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_operations_of_the_translator_are_those_that_torch_counts(benchmark_module):
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    translation = benchmark_module("training_translation")
    batches = translation.random_batches(short=True)
    model = translation.torch_model(layers=2)
    # The kernels that PyTorch would take for attention are not among those that it counts.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        for batch in batches:
            model(*translation.torch_batch(*batch)[:4])
    counted = counter.get_total_flops()
    assert translation.forward_flops(batches, layers=2) == pytest.approx(counted, rel=1e-6)


def test_soak_says_how_and_draws(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "soak.py")]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert "python benchmarks/soak.py --calls=2000 --log=jax.jsonl" in done.stdout
    pytest.importorskip("matplotlib")
    lines = [{"backend": "jax", "call": i, "megabytes": 900, "programs": i} for i in (1, 2)]
    (tmp_path / "log").write_text("\n".join(map(json.dumps, lines)))
    done = subprocess.run(
        [*command, f"--logs={tmp_path}/log", f"--plot={tmp_path}/soak.svg"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "programs alive" in (tmp_path / "soak.svg").read_text() or done.stderr == ""
