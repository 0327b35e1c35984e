"""`evaluate`: arguments, tasks that are trusted, and the result."""

import json

import pytest

import keras_transformer as kt
from tests.evaluating.conftest import TASKS

pytestmark = pytest.mark.one_backend

SCORING = """\
task: lines
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl, train: rows.jsonl}}
test_split: test
fewshot_split: train
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: ["yes", "no"]
doc_to_target: answer
metadata: {version: 2.5}
"""


@pytest.fixture
def folder(tmp_path):
    rows = [{"question": f"is {i} even?", "answer": i % 2} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "lines.yaml").write_text(SCORING)
    return tmp_path


@pytest.fixture
def task(writers):
    return writers["plain"][0]


def test_the_result(task, folder, capsys):
    scores = kt.evaluate(task, "lines", include_path=folder, limit=4, num_fewshot=2, seed=5,
                         log_samples=True)  # fmt: skip
    assert str(scores) in capsys.readouterr().out
    row = scores.rows[0]
    assert (row.task, row.metric, row.version, row.shots) == ("lines", "acc", "2.5", 2)
    assert row.higher_is_better and 0 <= row.value <= 1 and row.error is not None
    assert scores.numbers["lines"]["acc"] == row.value
    assert scores.harness.startswith("lm-eval 0.4")
    assert scores.settings["seed"] == 5 and scores.settings["limit"] == 4
    samples = scores.results["samples"]["lines"]
    assert len(samples) == 4 and samples[0]["arguments"][0][0].count("even?") == 3
    title, _, head, rule, first, *_ = scores.markdown().splitlines()
    assert "CausalLM on " in title and "limit=4" in title and "num_fewshot=2" in title
    assert head.count("|") == rule.count("|") == first.count("|") == 7
    again = kt.evaluate(task, ["lines"], include_path=[folder], limit=4, num_fewshot=2, seed=5,
                        verbose=False)  # fmt: skip
    assert again.numbers == scores.numbers


def test_a_task_that_runs_code_is_trusted_or_not_run(task, folder):
    (folder / "utils.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
        "def first(rows): return rows.select(range(2))\n"
    )
    text = SCORING.replace("task: lines", "task: coded") + "process_docs: !function utils.first\n"
    (folder / "coded.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"coded\.yaml .*!function.* trust_tasks=True"):
        kt.evaluate(task, "lines", include_path=folder, verbose=False)
    assert not (folder / "ran").exists()
    scores = kt.evaluate(task, "coded", include_path=folder, trust_tasks=True, verbose=False)
    assert (folder / "ran").exists()
    assert scores.results["n-samples"]["coded"]["effective"] == 2


def test_templates_of_a_folder_are_sandboxed(task, folder):
    reach = 'doc_to_text: "{{ cycler.__init__.__globals__.os.getcwd() }}"'
    (folder / "lines.yaml").write_text(SCORING.replace('doc_to_text: "{{question}}"', reach))
    with pytest.raises(Exception, match="unsafe"):
        kt.evaluate(task, "lines", include_path=folder, verbose=False)


def test_a_chat(task, folder):
    scores = kt.evaluate(task, "lines", include_path=folder, apply_chat_template=True,
                         system_instruction="Answer.", limit=1, log_samples=True,
                         verbose=False)  # fmt: skip
    prompt = scores.results["samples"]["lines"][0]["arguments"][0][0]
    assert prompt == "<s>system: Answer.\n<s>user: is 0 even?\nassistant:"


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"tasks": []}, ValueError, "`tasks`"),
        ({"tasks": ["lines", 3]}, ValueError, "`tasks`"),
        ({"tasks": ["sonnet_line"]}, ValueError, "no task 'sonnet_line'. Did you mean"),
        ({"limit": 0}, ValueError, "`limit`"),
        ({"num_fewshot": -1}, ValueError, "`num_fewshot`"),
        ({"max_length": 10**6}, ValueError, "`max_length`"),
        ({"gen_kwargs": "a=b"}, ValueError, "`gen_kwargs`"),
        ({"include_path": "nowhere"}, FileNotFoundError, "nowhere"),
        ({"model": "no_such_preset"}, ValueError, "no_such_preset"),
    ],
)
def test_errors(task, arguments, error, told):
    given = {"model": task, "tasks": "sonnets", "include_path": TASKS, "verbose": False}
    with pytest.raises(error, match=told):
        kt.evaluate(**{**given, **arguments})


def test_a_model_without_a_chat_template(task, monkeypatch):
    monkeypatch.setattr(task.tokenizer, "chat_template", None)
    with pytest.raises(ValueError, match="chat template"):
        kt.evaluate(task, "sonnets", include_path=TASKS, apply_chat_template=True)
