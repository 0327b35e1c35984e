"""Shared code of the tests of the command: tiny presets, and the command in this process."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import keras_transformer as kt
from keras_transformer import cli

ROOT = Path(__file__).parents[2]
TEXTS = ["a man rides a bike .", "two dogs are playing in the snow .", "it isn &apos;t cold ."] * 8
LINES = ["a man rides a bike .", "", "two dogs", " ", "it is cold ."]


def tiny_config(kind, tokenizer):
    return kt.TransformerConfig(
        kind=kind,
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=32,
        normalize_first=True,
    )


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with presets that are small and know next to nothing."""
    folder = tmp_path_factory.mktemp("presets")
    tokenizer = kt.Tokenizer.train(TEXTS, kind="wordpiece", vocabulary_size=300, lowercase=True)
    encoder = kt.models.Encoder(tiny_config("encoder", tokenizer))
    classifier = kt.TextClassifier(encoder, tokenizer, labels=["cold", "warm", "hot"])
    classifier.save_to_preset(folder / "classifier", metadata={"family": "transformer"})
    names = ["O", "B-PER", "I-PER"]
    kt.TokenClassifier(encoder, tokenizer, labels=names).save_to_preset(folder / "tagger")
    kt.QuestionAnswerer(encoder, tokenizer).save_to_preset(folder / "answerer")
    kt.MaskedLM(encoder, tokenizer).save_to_preset(folder / "masked")
    kt.TextEmbedder(encoder, tokenizer).save_to_preset(folder / "embedder")
    translator = kt.Seq2SeqLM(kt.models.Seq2Seq(tiny_config("seq2seq", tokenizer)), tokenizer)
    translator.save_to_preset(folder / "words", metadata={"text": "moses"})
    translator.save_to_preset(folder / "plain")
    lm = kt.CausalLM(kt.models.Decoder(tiny_config("decoder", tokenizer)), tokenizer)
    lm.save_to_preset(folder / "lm")
    return folder


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs the command: its exit code, what it printed, and its errors."""

    def run(*arguments, stdin=None):
        content = stdin.encode() if isinstance(stdin, str) else stdin or b""
        stream = io.TextIOWrapper(io.BytesIO(content))
        stream.isatty = lambda: stdin is None
        monkeypatch.setattr(sys, "stdin", stream)
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        out, errors = capsys.readouterr()
        return code, out, errors

    return run


def program(*arguments, **options):
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "keras_transformer", *arguments],
        capture_output=True, text=True, timeout=300, **{"cwd": ROOT, **options},
    )  # fmt: skip


def asked(run, folder, command, preset, *arguments, lines=LINES, forms=("tsv", "json")):
    """Return a command's output for lines, in several formats: rows of columns, JSON values."""
    printed = {}
    for form in forms:
        code, out, errors = run(
            command, "--preset", folder / preset, "--format", form, *arguments,
            stdin="\n".join(lines) + "\n",
        )  # fmt: skip
        assert (code, errors) == (0, "")
        assert out.count("\n") == len(lines)
        found = out.splitlines()
        assert [bool(row) for row in found] == [bool(x.strip() or form == "json") for x in lines]
        if form == "tsv":
            found = [row.split("\t") if row else [] for row in found]
        elif form == "json":
            found = [json.loads(row) for row in found]
            assert [value["text"] for value in found] == lines
        printed[form] = found
    return [printed[form] for form in forms]
