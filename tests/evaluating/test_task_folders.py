"""Folders with tasks: what is found in them, and what may not run."""

import pytest

from keras_transformer.evaluating.task_folders import (
    check_folder,
    sandboxed_templates,
    task_manager,
)
from tests.evaluating.conftest import TASKS

pytestmark = pytest.mark.backend_independent

TASK = """\
task: mine
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: ["a", "b"]
doc_to_target: answer
"""


def written(folder, text, name="mine.yaml"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder


def test_tasks_of_values(tmp_path):
    check_folder(TASKS)
    check_folder(written(tmp_path, TASK + "metric_list: [{metric: acc}]\n"))
    written(tmp_path, "include: mine.yaml\ntask: theirs\ndataset_path: allenai/ai2_arc\n", "b.yaml")
    check_folder(written(tmp_path, "group: both\ntask: [mine, theirs, arc_easy]\n", "c.yaml"))


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("process_docs: !function utils.run", "!function"),
        ("metric_list: [{metric: !function utils.run}]", "!function"),
        ("x: !!python/object/apply:os.system ['true']", "python/object"),
        ("class: utils.Task", "'class'"),
        ("custom_dataset: utils.run", "'custom_dataset'"),
        ("unsafe_code: true", "'unsafe_code'"),
        ("use_prompt: local:name", "'use_prompt'"),
        ("metric_list: [{metric: ./script.py}]", "script.py"),
        ("metric_list: [{metric: acc, hf_evaluate: true}]", "loaded as code"),
        ("dataset_path: pandas", "'pandas'"),
        ("dataset_path: ./script", "script"),
        ("dataset_kwargs: {data_files: ../rows.jsonl}", "outside"),
        ("dataset_kwargs: {data_files: {test: [/etc/passwd]}}", "outside"),
        ("dataset_kwargs: {data_files: 'file:///etc/passwd'}", "outside"),
        ("dataset_kwargs: {data_files: 'zip::rows.zip'}", "outside"),
        ("dataset_kwargs: {cache_dir: /tmp}", "cache_dir"),
        ("include: ../other.yaml", "outside"),
        ("include: part", "!function"),
    ],
)
def test_tasks_that_can_run_code(tmp_path, field, told):
    folder = written(tmp_path / "tasks", "process_docs: !function utils.run\n", "part")
    name = field.partition(":")[0]
    lines = [line for line in TASK.splitlines() if not line.startswith(name)]
    written(tmp_path, TASK, "other.yaml")
    with pytest.raises(ValueError, match="trust_tasks=True") as error:
        check_folder(written(folder, "\n".join([*lines, field])))
    assert told in str(error.value) and str(folder) in str(error.value)


def test_a_member_of_a_group_is_checked(tmp_path):
    with pytest.raises(ValueError, match="unsafe_code"):
        check_folder(written(tmp_path, "group: g\ntask: [{task: arc_easy, unsafe_code: true}]\n"))


@pytest.mark.parametrize(
    ("base", "fields", "told"),
    [
        ("dataset_path: json\n", "", "names no data files"),
        ("dataset_path: json\n", "dataset_kwargs: {data_files: {test: []}}", "names no data files"),
        ("dataset_kwargs: {data_files: ../rows.jsonl}\n", "dataset_path: json", "outside"),
        ("task: [{task: b, dataset_kwargs: {data_files: ../rows.jsonl}}]\n", "group: g", "outside"),
        ("", "group: g\ntask: [{task: theirs, dataset_kwargs: {}}]", "names no data files"),
    ],
)
def test_files_are_read_from_the_folder_only(tmp_path, base, fields, told):
    """Each file may be read by itself, but not what is made of them."""
    written(tmp_path / "part", f"x: 1\n{base}", "base.yaml")
    (tmp_path / "part" / "base.yaml").rename(tmp_path / "part" / "base")
    named = "" if fields.startswith("group") else "task: mine\n"
    folder = written(tmp_path, f"include: part/base\n{named}{fields}\n").resolve()
    check_folder(folder)
    with pytest.raises(ValueError, match=f"{told}.*trust_tasks=True"):
        task_manager([folder], [], trusted=False)


def test_a_data_file_is_beside_its_task(tmp_path, monkeypatch):
    folder = written(tmp_path / "tasks", TASK).resolve()
    members = "group: g\ntask: [{task: b, dataset_kwargs: {data_files: rows.jsonl}}]\n"
    written(folder, members, "group.yaml")
    (tmp_path / "rows.jsonl").write_text("{}")
    monkeypatch.chdir(tmp_path)
    index = task_manager([folder], ["mine"], trusted=False).task_index
    beside = str(folder / "rows.jsonl")
    assert index["mine"].cfg["dataset_kwargs"] == {"data_files": {"test": beside}}
    assert index["g"].cfg["task"][0]["dataset_kwargs"] == {"data_files": beside}
    # A trusted task may read from the current folder.
    index = task_manager([folder], ["mine"], trusted=True).task_index
    assert index["mine"].cfg["dataset_kwargs"] == {"data_files": {"test": "rows.jsonl"}}


def test_a_file_that_is_no_task(tmp_path):
    with pytest.raises(ValueError, match="is not valid YAML"):
        check_folder(written(tmp_path, "task: ["))
    with pytest.raises(ValueError, match="write the value out, not an alias"):
        check_folder(written(tmp_path, "x: &x [1]\ndataset_kwargs: {data_files: [*x, *x]}\n"))
    with pytest.raises(ValueError, match="nests too deeply"):
        check_folder(written(tmp_path, "task: " + "[" * 10_000))
    with pytest.raises(ValueError, match="dataset_kwargs must be names with values"):
        check_folder(written(tmp_path, "dataset_kwargs: [data_files]"))
    with pytest.raises(ValueError, match="must be a task"):
        check_folder(written(tmp_path, "- task"))


def test_templates_cannot_reach_python():
    from jinja2.exceptions import SecurityError
    from lm_eval.utils import apply_template

    template = "{{ cycler.__init__.__globals__.os.getcwd() }}"
    assert apply_template(template, {}).startswith("/")  # the harness itself lets them
    with sandboxed_templates():
        with pytest.raises(SecurityError):
            apply_template(template, {})
        assert apply_template("{{ x|regex_replace('a', 'b') }}\n", {"x": "a"}) == "b\n"
    assert apply_template(template, {}).startswith("/")
