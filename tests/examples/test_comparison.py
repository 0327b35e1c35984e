"""The transformer beside what it replaced, as a user compares them, on little data."""

import re

import pytest
from PIL import Image

from tests.thorough import THOROUGH

pytestmark = pytest.mark.one_backend


# Those that train longest are left to the thorough run; test_lengths has recurrent networks.
TEXT_MODELS = ["bag of words", "TextCNN", "pretrained encoder"]
if THOROUGH:
    TEXT_MODELS += ["fastText", "encoder from scratch", "BiLSTM", "BiLSTM with attention"]
SMALL = ("--epochs=1", "--tuning_epochs=1", "--goal=0")
ROW = r"^{} +([\d,]+) +(\S+) +([\d.]+)% +([\d.]+)%"
SPEED = r"^{} +([\d,]+) +([\d,]+) +\d+ s"


def row(pattern, name, printed):
    found = re.search(pattern.format(name), printed, re.MULTILINE)
    assert found, printed
    return [float(x.replace(",", "")) for x in found.groups()]


@pytest.mark.thorough  # twenty seconds; the others run the same program
def test_texts(run):
    """Each model is tuned alike and scored once; its size and its speed are told."""
    flags = ["--train_size=40", "--test_size=10", "--vocabulary_size=300", "--batch_size=20"]
    printed = run(
        "comparison", "--what=texts", f"--models={','.join(TEXT_MODELS)}", *SMALL, *flags,
        "--rates=0.003",
    )  # fmt: skip
    assert "38 sentences, 2 held out, 10 to score" in printed
    sizes = {}
    for name in TEXT_MODELS:
        sizes[name], rate, held_out, dev = row(ROW, name, printed)
        assert rate > 0 and held_out % 50 == 0 and dev % 10 == 0
        speed, tokens = row(SPEED, name, printed)
        assert speed > 10 and 0 < tokens < 10_000
    assert sizes["bag of words"] < sizes["TextCNN"] < sizes["pretrained encoder"]


def test_learning_rates(run):
    """The one that is best on what is held out; then as many epochs as were asked for."""
    flags = ["--train_size=1000", "--test_size=100", "--rates=0.000001,0.003", "--epochs=3"]
    flags += ["--models=bag of words", "--tuning_epochs=2", "--seeds=1,2"]
    printed = run("comparison", *flags)
    assert row(ROW, "bag of words", printed)[1] == 0.03
    # Two runs, and the spread of each of their numbers.
    runs = [list(map(float, found[2:])) for found in re.findall(
        ROW.format("bag of words"), printed, re.MULTILINE
    )]  # fmt: skip
    spread = re.search(r"^lowest and highest of 2 .*\nbag of words +(.*)$", printed, re.MULTILINE)
    shown = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+)% - ([\d.]+)%", spread[1])]
    assert shown == [tuple(sorted(pair)) for pair in zip(*runs, strict=True)]


@pytest.mark.thorough
def test_translation(run):
    flags = ["--train_size=150", "--test_size=4", "--rates=0.003", "--vocabulary_size=600"]
    models = "--models=additive attention,Transformer"
    printed = run("comparison", "--what=translation", *SMALL, *flags, models)
    assert "150 pairs, 600 pieces of words" in printed
    for name in ("additive attention", "Transformer"):
        _, _, held_out, bleu = row(ROW, name, printed)
        assert held_out < 5 and bleu < 5
        assert row(SPEED, name, printed)[1] > 1000


@pytest.mark.thorough
def test_recall(run, tmp_path):
    """Models that can carry the previous symbol learn to recall it at once."""
    models = "--models=RNN,attention"
    flags = ["--what=recall", models, "--steps=60", "--distances=1,20", "--batch_size=64"]
    printed = run("comparison", *flags, "--output=recall.png")
    found = re.search(r"^RNN +([\d.]+)% +([\d.]+)%", printed, re.MULTILINE)
    assert float(found[1]) > 60 > float(found[2])
    assert re.search(r"^attention +([\d.]+)% +([\d.]+)%", printed, re.MULTILINE)
    assert Image.open(tmp_path / "recall.png").size > (400, 200)


def test_lengths(run):
    printed = run("comparison", "--what=length", "--lengths=8,32", "--tokens=128")
    for name in ("RNN", "LSTM", "attention to 64", "attention"):
        assert re.search(rf"^{name} +\d+ +\d+$", printed, re.MULTILINE), printed
    assert "lowest" not in printed  # of one run


def test_a_model_that_is_not_known(run):
    assert "'GRU'. Known of texts are: BiLSTM, " in run("comparison", "--models=GRU", code=1)
