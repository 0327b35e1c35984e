"""`keras-transformer plan`."""

import argparse
import re

import pytest

from keras_transformer import TransformerConfig, cli
from keras_transformer.cli.plan import quantity
from keras_transformer.planning import make_plan
from keras_transformer.planning.table import human, seconds, size

pytestmark = pytest.mark.backend_independent

GPT3 = ["plan", "gpt3_175b_en", "--devices", "1024", "--batch", "64", "--length", "2048"]


def values(printed):
    """The first number and its unit of each line, by its label."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) > 1}


def test_gpt3_on_1024_devices(capsys):
    arguments = "--dtype mixed_bfloat16 --memory 141G --flops 400T --bandwidth 300GB/s"
    assert cli.main([*GPT3, *arguments.split()]) == 0
    printed = capsys.readouterr().out
    found = values(printed)
    assert found["parameters"] == "174.6 G"
    assert (found["data axis"], found["model axis"]) == ("32", "32")
    assert "3 of 96 heads" in printed and "fits in 141.00 GB" in printed
    assert found["weights"] == "21.95 GB" and found["optimizer"] == "43.90 GB"
    assert re.search(r"together +[\d.]+ m?s .*tokens/s", printed)
    assert max(map(len, printed.splitlines())) <= 110


def test_a_json_file(capsys, tmp_path):
    config = TransformerConfig(
        kind="seq2seq", vocabulary_size=100, hidden_dim=16, num_layers=2, num_heads=4,
        intermediate_dim=32,
    )  # fmt: skip
    path = tmp_path / "mine.json"
    path.write_text(config.to_json(), encoding="utf-8")
    assert cli.main(["plan", str(path), "--batch", "4", "--length", "9"]) == 0
    plan = make_plan(config, batch_size=4, length=9)
    printed = capsys.readouterr().out
    assert printed == f"{path}: {plan}\n"
    assert values(printed)["together"] == size(plan.peak_memory)


def test_generation_prints_the_cache(capsys):
    line = "plan llama3_8b_en --generate --batch 16 --length 8192 --dtype bfloat16"
    assert cli.main(line.split()) == 0
    found = values(capsys.readouterr().out)
    assert found["cache"] == "17.18 GB" and "optimizer" not in found


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("gpt3_175b_en --batch 60 --devices 1024", "batch of 60 rows cannot be spread"),
        ("gpt3_175b_en --batch 1 --length 4096", "learned positions for 2048 only"),
        ("gpt3_175b_en --batch 1 --memory lots", "such as 80G, 1.5T or 3.35e12, received 'lots'"),
        ("gpt3_175b_en", "--batch"),
        ("no_file.json --batch 1", "no file 'no_file.json'"),
        ("{broken} --batch 1", "is not a JSON file"),
        ("{other} --batch 1", "is not the config of a model: The config lacks the values"),
        ("gpt3_175 --batch 1", "gpt3_175b_en"),
    ],
)
def test_a_mistake_is_one_line(capsys, tmp_path, arguments, words):
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    (tmp_path / "other.json").write_text('{"kind": "decoder"}', encoding="utf-8")
    files = {name: tmp_path / f"{name}.json" for name in ("broken", "other")}
    try:
        code = cli.main(["plan", *arguments.format(**files).split()])
    except SystemExit as end:
        code = end.code
    printed = capsys.readouterr()
    assert code == 2 and printed.out == ""
    assert words in printed.err and len(printed.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80G", 80e9), ("80 GB", 80e9), ("312 TFLOP/s", 312e12), ("300GB/s", 300e9),
        ("3.35e12", 3.35e12), ("1024", 1024.0), ("2kB", 2000.0),
    ],
)  # fmt: skip
def test_quantities(text, value):
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "G", "-5G", "nan", "inf", "80X", "0"])
def test_no_quantities(text):
    with pytest.raises(argparse.ArgumentTypeError, match="above 0"):
        quantity(text)


def test_units():
    assert [human(n) for n in (5, 1500, 174.6e9, 3.2e18)] == ["5 ", "1.5 k", "174.6 G", "3.2 E"]
    assert [size(n) for n in (5, 1500, 80e9, 2.8e12)] == ["5 B", "1.50 kB", "80.00 GB", "2.80 TB"]
    assert [seconds(t) for t in (2.5, 0.0025, 2.5e-6)] == ["2.50 s", "2.50 ms", "2.50 us"]
