"""The table of formats in docs/export.md is what the tests of formats run."""

import importlib.util
import sys

import pytest

from tests.environments import ROOT
from tests.exporting.kinds import KINDS, REFUSED

pytestmark = pytest.mark.backend_independent

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_exports", DOCS / "make_exports.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_current(maker):
    said = "run python docs/make_exports.py"
    assert (DOCS / "export.md").read_text(encoding="utf-8") == maker.page(), said


def test_check_says_whether_it_is_current(maker, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(maker, "PAGE", tmp_path / "export.md")
    maker.PAGE.write_text(f"# A page\n\n{maker.BEGIN}\n{maker.END}\n\nMore.\n")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["make_exports.py", *arguments])
        return maker.main()

    assert run("--check") == 1 and "not current" in capsys.readouterr().out
    assert run() == 0 and run("--check") == 0
    text = maker.PAGE.read_text()
    assert text.startswith("# A page\n") and text.endswith("More.\n")
    cells = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert sum(row.count("no") + row[-1].startswith("no") for row in cells) == len(REFUSED)
    assert {len(row) for row in cells} == {2 + len(KINDS)}
    maker.PAGE.write_text("# A page\n")
    with pytest.raises(ValueError, match="has no lines"):
        run()
