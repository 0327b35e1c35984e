"""The transformer beside what it replaced, as a user compares them, on little data."""

import re

import pytest
from PIL import Image

pytestmark = pytest.mark.one_backend


def test_texts(run):
    """Each model is tuned alike and scored once; its size and its speed are told."""
    small = ["--train_size=200", "--epochs=1", "--rates=0.003,0.001", "--reach=0.1"]
    printed = run("comparison", "--what=texts", *small, "--vocabulary_size=500")
    assert "190 sentences, 10 held out" in printed
    row = r"^{} +([\d,]+) +(\S+) +([\d.]+)% +([\d,]+) +\d+ s"
    sizes = {}
    for name in (
        "bag of words", "fastText", "TextCNN", "BiLSTM", "BiLSTM with attention",
        "encoder from scratch", "pretrained encoder",
    ):  # fmt: skip
        found = re.search(row.format(name), printed, re.MULTILINE)
        assert found, printed
        sizes[name] = int(found[1].replace(",", ""))
        assert 20 < float(found[3]) < 90
    assert sizes["bag of words"] < sizes["TextCNN"] < sizes["pretrained encoder"]


def test_recall(run, tmp_path):
    """What stood one place before is learned at once by those that can carry it."""
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


def test_a_model_that_is_not_known(run):
    assert "'GRU'. Known are: BiLSTM, " in run("comparison", "--models=GRU", code=1)
