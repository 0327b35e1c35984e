"""docs/add_a_part.md, done to a copy of the package, from what the page says alone."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add_a_part.md").read_text(encoding="utf-8")
CHANGES = re.findall(r"^```diff\n(\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
FILES = re.findall(r"^```py\n# (keras_transformer/\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
IMPORTS = re.findall(r"^```py\n(from keras_transformer.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
CHECK = re.findall(r"^```py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[-1]


def lines_of(hunk, signs):
    return "".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] in signs)


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """A copy of the package with the changes of the page."""
    folder = tmp_path_factory.mktemp("changed")
    # With what is compiled: the times of the files stay, and what is changed is compiled anew.
    shutil.copytree(ROOT / "keras_transformer", folder / "keras_transformer")
    for path, hunks in CHANGES:
        text = (folder / path).read_text(encoding="utf-8")
        for hunk in hunks.split("@@\n"):
            old, new = lines_of(hunk, " -"), lines_of(hunk, " +")
            assert text.count(old) == 1, f"{path} has not once: {old}"
            text = text.replace(old, new)
        (folder / path).write_text(text, encoding="utf-8")
    for path, text in FILES:
        (folder / path).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.backend_independent
def test_one_part_and_one_layer():
    assert [path for path, _ in CHANGES] == ["keras_transformer/config/mixers.py"]
    assert len(FILES) == 1


@pytest.mark.one_backend
def test_the_page_checks_itself(changed, backend, tmp_path):
    path = os.pathsep.join([str(changed), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "KERAS_BACKEND": backend}
    code = f"{CHECK}\nprint(kt.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(str(changed))


@pytest.mark.one_backend
def test_in_a_module_of_ones_own(forks, tmp_path):
    """The part and the layer of the page in one file beside the program, and the page's check."""
    ((_, hunks),), ((_, layer),) = CHANGES, FILES
    _, part = hunks.split("@@\n")
    part = lines_of(part, "+").replace("keras_transformer.layers.token_shift:", "my_mixers:")
    layer = layer.replace("from keras_transformer.config.mixers import TokenShift\n", "")
    (tmp_path / "my_mixers.py").write_text("\n".join([*IMPORTS, layer, part]), encoding="utf-8")
    code = "import my_mixers\n" + CHECK.replace("parts.TokenShift", "my_mixers.TokenShift")
    done = forks.run("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    code = "import keras_transformer as kt\nkt.CausalLM.from_preset('shifted')"
    forgotten = forks.run("-c", code, cwd=tmp_path)
    assert "received 'token_shift'. Import the module of a part of your own" in forgotten.stderr
