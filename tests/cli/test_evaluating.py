"""`keras-transformer evaluate`."""

import json
import os

import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import presets_folder

pytestmark = pytest.mark.one_backend

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
TASKS = presets_folder().parent / "examples" / "evaluation_tasks"
WHERE = ("--include-path", str(TASKS))


def test_scores_as_evaluate_returns_them(run, folder):
    lm = kt.CausalLM.from_preset(folder / "lm")
    options = {"limit": 3, "gen_kwargs": {"max_gen_toks": 3}}
    expected = kt.evaluate(lm, ["sonnets", "play_words"], include_path=TASKS, verbose=False,
                           **options)  # fmt: skip
    asked = ("evaluate", folder / "lm", "--tasks", "sonnets", "play_words", *WHERE, "--limit", "3",
             "--gen-kwargs", "max_gen_toks=3")  # fmt: skip
    code, out, _ = run(*asked, "--format", "json")
    found = json.loads(out)
    assert code == 0 and found["scores"] == expected.numbers
    assert found["versions"] == {"sonnets": "1.0", "play_words": "1.0"}
    assert found["harness"] == expected.harness
    code, out, _ = run(*asked)
    assert code == 0
    assert expected.table().splitlines()[1:] == out.splitlines()[-len(expected.rows) - 1 :]
    code, out, _ = run(*asked, "--format", "markdown")
    assert code == 0 and expected.markdown().splitlines()[2:] == out.splitlines()[2:]


def test_texts(run, folder, tmp_path):
    pairs = [("a man rides a bike .", "ein mann ."), ("two dogs run .", "Zwei hunde rennen.")]
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    lm = kt.CausalLM.from_preset(folder / "lm")
    sources, references = map(list, zip(*pairs, strict=True))
    expected = kt.evaluating.evaluate_texts(
        lm, sources, references, metrics=["rouge1", "wer"], ignore=["case"], max_new_tokens=3,
        verbose=False,
    )  # fmt: skip
    asked = ("evaluate", folder / "lm", "--texts", tmp_path / "pairs.tsv", "--columns", "0", "1",
             "--metrics", "rouge1", "wer", "--ignore", "case", "--gen-kwargs", "max_new_tokens=3",
             )  # fmt: skip
    code, out, _ = run(*asked, "--format", "json")
    found = json.loads(out)
    assert code == 0 and found["scores"]["pairs.tsv"] == expected.numbers["texts"]
    assert found["harness"] == expected.harness and found["settings"]["max_new_tokens"] == 3
    code, out, _ = run(*asked)
    assert code == 0 and "wer (lower is better)" in out


def test_perplexity(run, folder, tmp_path):
    (tmp_path / "text.txt").write_text("a man rides a bike . " * 40)
    lm = kt.CausalLM.from_preset(folder / "lm")
    expected = lm.perplexity(tmp_path / "text.txt", 8, 16)
    asked = ("evaluate", folder / "lm", "--perplexity", tmp_path / "text.txt", "--stride", "8",
             "--max-length", "16")  # fmt: skip
    assert run(*asked)[:2] == (0, f"{expected:.4f}\n")
    code, out, _ = run(*asked, "--format", "json")
    assert code == 0 and json.loads(out) == {"perplexity": pytest.approx(expected)}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Give one of --tasks"),
        (("--tasks", "sonnets", "--perplexity", "x"), "Give one of --tasks"),
        (("--texts", "x.csv"), "--texts needs --metrics"),
        (("--texts", "x.csv", "--metrics", "wer"), "x.csv"),
        (("--texts", "x.csv", "--metrics", "wer", "--limit", "3"), "--limit only applies"),
        (("--perplexity", "nothing.txt"), "no such file"),
        (("--perplexity", "nothing.txt", "--seed", "1"), "--seed only applies to --tasks"),
        (("--tasks", "sonnets", "--stride", "2"), "--stride only applies"),
        (("--tasks", "sonnets", "--metrics", "wer"), "--metrics only applies to --texts"),
        (("--tasks", "sonnets", *WHERE, "--gen-kwargs", "a"), "NAME=VALUE"),
        (("--tasks", "sonnets", *WHERE, "--limit", "a"), "must be a number"),
    ],
)
def test_errors(run, folder, arguments, told):
    code, out, errors = run("evaluate", folder / "lm", *arguments)
    assert (code, out) == (2, "") and told in errors
