"""The course: every cell of every page runs, and the notebooks are those of the pages."""

import importlib.util
import json
import re

import keras
import pytest

from tests.environments import ROOT

COURSE = ROOT / "docs" / "course"


def load_maker():
    spec = importlib.util.spec_from_file_location("make_course", ROOT / "docs" / "make_course.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKER = load_maker()
PAGES = MAKER.pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_all_cells_run(page, tmp_path, monkeypatch):
    """With the pictures and the printed lines that the page shows, and with no others."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    printed = MAKER.run(page)
    cells = [
        cell for cell in MAKER.cells_of(page.read_text(encoding="utf-8")) if cell.kind == "code"
    ]
    if keras.backend.backend() == "torch":  # where the page was run: others draw other numbers
        # Digits are those of a machine; what is printed, and how, is the same.
        for cell, text in zip(cells, printed, strict=True):
            again = "run `python docs/make_course.py --run`"
            assert text.count("\n") == cell.printed.count("\n"), f"{again}: {cell.text}"
    shown = re.findall(r"^!\[.+\]\((.+)\)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(shown) == sorted(path.name for path in tmp_path.glob("*.png"))
    for name in shown:
        assert (COURSE / name).stat().st_size < 100_000, name


@pytest.mark.one_backend
def test_pretraining_without_the_repository(tmp_path, monkeypatch):
    """An installed package has no examples: sentences of Python's manual are the text then.

    What the page says of pretraining holds of them too: its assertions are the same.
    """
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    text = (COURSE / "6_pretraining.md").read_text(encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(text.replace('"reviews_train.tsv"', '"not_there.tsv"'), encoding="utf-8")
    assert page.read_text(encoding="utf-8") != text
    MAKER.run(page)


@pytest.mark.backend_independent
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_notebooks_are_those_of_the_pages(page):
    made = MAKER.notebook(page)
    path = page.with_suffix(".ipynb")
    assert path.read_text(encoding="utf-8") == made, "run `python docs/make_course.py`"
    cells = json.loads(made)["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    assert "import keras_transformer as kt" in code[0]
    assert "assert_allclose" in code[-1]  # the layer that does the same, number by number
    assert not any("![" in "".join(cell["source"]) for cell in cells)


@pytest.mark.backend_independent
def test_the_index_names_every_page_and_notebook():
    index = (COURSE / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\((\d[^)]+)\)", index)
    expected = [name for page in PAGES for name in (page.name, page.with_suffix(".ipynb").name)]
    assert targets == expected


@pytest.mark.backend_independent
def test_links_lead_somewhere():
    for page in [*PAGES, COURSE / "README.md"]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (COURSE / target).exists(), (page.name, target)
