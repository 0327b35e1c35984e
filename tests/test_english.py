"""The words that `.ci/english.py` finds, and those that it leaves."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.backend_independent

SCRIPT = Path(__file__).parents[1] / ".ci" / "english.py"
PYTHON = '''"""Of a module, which none knows.

Lengths: those of the rows. None
for no limit.
"""


def row():
    """What a row is."""
    # Its length,
    # likewise so many
    value = """of a text that is no docstring: none is none"""
    raise ValueError(f"{value} is for so many.")  # ValueError for a text, see `is None`


def right():
    """Return the row that is no longer used, of those of a batch.

    What is left is so much that None is returned.
    """
'''
PAGE = """# Title

Of what is none, a `None` for
no one.

```python
x = "likewise"
```
"""


@pytest.fixture(scope="module")
def english():
    spec = importlib.util.spec_from_file_location("english", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(english, path, text):
    path.write_text(text, encoding="utf-8")
    return sorted((number, rule) for number, rule, _ in english.faults(path))


def test_it_reads_docstrings_comments_and_messages(english, tmp_path):
    assert found(english, tmp_path / "code.py", PYTHON) == [
        (1, "begins without a noun"),
        (3, "None for"),
        (3, "a pronoun for a subject"),
        (9, "begins without a noun"),
        (11, "likewise"),
        (11, "so many, for this many"),
        (13, "ValueError for"),
        (13, "so many, for this many"),
    ]


def test_it_reads_the_prose_of_a_page(english, tmp_path):
    assert found(english, tmp_path / "page.md", PAGE) == [
        (3, "None for"),
        (3, "is none"),
        (3, "of what"),
    ]


def test_the_exit_status_says_whether_anything_is_found(english, tmp_path, capsys):
    (tmp_path / "code.py").write_text('"""Of a module."""\n', encoding="utf-8")
    assert english.main([str(tmp_path)]) == 1 and english.main([str(SCRIPT)]) == 0
    assert "code.py:1: begins without a noun" in capsys.readouterr().out
    assert len(english.ALLOWED) <= 20


def test_a_wrong_path_is_an_error(english):
    with pytest.raises(SystemExit, match="does not exist"):
        english.main(["no_such_folder"])
