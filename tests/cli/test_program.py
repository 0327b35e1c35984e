"""The command as a program: its help, its errors, interruptions, and what it imports."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig

import keras
import pytest

import keras_transformer as kt
from keras_transformer.cli.parser import COMMANDS
from tests.cli.conftest import ROOT, program

pytestmark = pytest.mark.one_backend


@pytest.mark.backend_independent
@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_help_of_each_command_shows_an_example(run, command):
    code, out, errors = run(command, "--help")
    assert (code, errors) == (0, "")
    examples = out[out.index("example") :]
    assert f"keras-transformer {command}" in examples
    assert max(map(len, out.splitlines())) <= 100 or command == "plan"


@pytest.mark.backend_independent
def test_every_command_is_on_its_page():
    page = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        section = re.search(rf"^## {command.name}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
        assert section, f"docs/command_line.md has no section on {command.name}"
        told = section[1] + page[: page.index("## presets")]
        for name, _ in command.options:
            assert not name.startswith("--") or f"`{name}" in told, f"{command.name} {name}"


@pytest.mark.backend_independent
def test_help_as_a_program():
    installed = shutil.which("keras-transformer", path=sysconfig.get_path("scripts"))
    done = [program("--help")]
    if installed:
        done.append(subprocess.run([installed, "--help"], capture_output=True, text=True, cwd=ROOT))
    for each in done:
        assert each.returncode == 0
        assert all(f"  {command.name} " in each.stdout for command in COMMANDS)
        assert "Traceback" not in each.stderr


@pytest.mark.backend_independent
def test_version(run):
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith(f"keras_transformer {kt.__version__}, Keras {keras.__version__} on ")


@pytest.mark.backend_independent
def test_errors_of_the_program_are_one_line_and_the_code_2():
    done = program("info", "minilm_l6")
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("keras-transformer: error: There is no preset 'minilm_l6'.")
    assert "Did you mean 'minilm_l6_en'" in last
    assert "Traceback" not in done.stderr


@pytest.mark.backend_independent
@pytest.mark.parametrize("backend", ["jaxx", "openvino"])
def test_a_wrong_backend_is_one_line(backend):
    done = program("--help", env={**os.environ, "KERAS_BACKEND": backend})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"keras-transformer: error: KERAS_BACKEND is '{backend}', but must be one of "
        "'tensorflow', 'jax', 'torch'.\n"
    )
    script = "import keras_transformer"
    env = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=env
    )
    assert "Traceback" in done.stderr and "ValueError: KERAS_BACKEND is" in done.stderr


@pytest.mark.backend_independent
def test_a_reader_that_has_seen_enough_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "keras_transformer", "--help"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.backend_independent
def test_ctrl_c_is_one_line():
    arguments = (
        "--preset",
        "gpt_tiny_shakespeare",
        "ROMEO:",
        "--stream",
        "--max-new-tokens",
        "9999",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_transformer", "generate", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout.read(6) == "ROMEO:"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "keras-transformer: interrupted"
    assert "Traceback" not in errors


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, "usage: keras-transformer"),
        (["translate", "--help"], 0, "examples:"),
        (["translate", "--preset", "x", "--sing", "a"], 2, "unrecognized arguments: --sing"),
        (["--version"], 1, "Keras is imported"),
    ],
)
def test_help_and_wrong_options_need_no_keras(arguments, code, said, tmp_path):
    (tmp_path / "keras.py").write_text("raise SystemExit('Keras is imported')\n")
    paths = f"{tmp_path}{os.pathsep}{ROOT}"
    done = program(*arguments, env={**os.environ, "PYTHONPATH": paths}, cwd=tmp_path)
    assert done.returncode == code
    assert said in done.stdout + done.stderr


@pytest.mark.backend_independent
def test_ctrl_c_while_the_package_is_imported_is_one_line(tmp_path):
    """A package of Keras's name waits for the signal."""
    (tmp_path / "keras.py").write_text("print('in', flush=True)\nimport time\ntime.sleep(99)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_transformer", "presets"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert process.stdout.readline() == "in\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "keras-transformer: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["sing"], "invalid choice: 'sing'"),
        (["info"], "required: PRESET"),
        (["info", "--preset", "x"], "--preset. Give PRESET without --preset. (see keras-tr"),
        (["translate", "--preset", "x", "--batch_size=4", "a"], "mean '--batch-size'? (see"),
        (["translate", "--preset", "x", "--sing", "a"], "(see keras-transformer translate --help)"),
        (["info", "nothing_like_it"], "There is no preset 'nothing_like_it'"),
        (["info", "/no/such/folder"], "There is no preset '/no/such/folder'"),
        (["info", str(ROOT / "docs")], "is not a preset"),
        (["classify", "--preset", "minilm_l6_en", "a"], "is a TextEmbedder, not a TextClassifier"),
        (["classify", "--preset", "{folder}/classifier"], "There is no input text"),
        (["translate", "--preset", "minilm_l6_en", "a"], "Seq2SeqLM needs 'seq2seq'"),
        (["translate", "--preset", "x", "--beams", "0", "a"], "at least 1, received '0'"),
        (["translate", "--preset", "x", "--beams", "many", "a"], "received 'many'"),
        (
            ["generate", "--preset", "x", "--temperature", "0", "a"],
            "--temperature: must be a number above 0, received '0'. To take the most likely",
        ),
        (["generate", "--preset", "x", "--top-p", "none", "a"], "--top-p: must be a number above"),
        (["generate", "--preset", "{folder}/plain", "a"], "CausalLM needs 'decoder'"),
        (["generate", "--preset", "{folder}/lm", ""], "is empty"),
        (["generate", "--preset", "x", "--top-p", "2", "a"], "above 0 and at most 1, received '2'"),
    ],
)
def test_a_mistake_is_one_line_and_the_code_2(run, folder, arguments, message):
    code, out, errors = run(*(argument.format(folder=folder) for argument in arguments))
    assert (code, out) == (2, "")
    assert errors.startswith("keras-transformer: error: ")
    assert errors.count("\n") == 1
    assert message in errors
