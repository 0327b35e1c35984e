"""Writes the notebooks of docs/course/ from its pages: `python docs/make_course.py`.

A page is Markdown; each block that begins with ```python is a cell, and all cells of a page are one
program. What a cell prints stands behind it, in a block after `<!-- prints -->`, and is the cell's
output in the notebook. `--check` compares only; `--run` runs the pages, and keeps the pictures they
make and what they print.
"""

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

COURSE = Path(__file__).with_name("course")
CELL = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n<!-- prints -->\n```text\n(?P<printed>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)
# A notebook shows the figure below the cell that draws it.
PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n", re.MULTILINE)


class Cell(NamedTuple):
    """A cell of a page: `"code"` and what it prints, or `"markdown"`."""

    kind: str
    text: str
    printed: str = ""


def pages() -> list[Path]:
    """The pages in their order, without the index."""
    return sorted(COURSE.glob("[0-9]*.md"))


def cells_of(text: str) -> list[Cell]:
    """The cells of a page, in their order."""
    cells, end = [], 0
    for found in [*CELL.finditer(text), None]:
        between = PICTURE.sub("", text[end : found.start() if found else None]).strip("\n")
        if between:
            cells.append(Cell("markdown", between))
        if found:
            cells.append(Cell("code", found["code"].strip("\n"), found["printed"] or ""))
            end = found.end()
    return cells


def notebook(page: Path) -> str:
    """The notebook of a page, as the text of a file of nbformat 4.4."""
    cells, count = [], 0
    for cell in cells_of(page.read_text(encoding="utf-8")):
        made = {
            "cell_type": cell.kind,
            "metadata": {},
            "source": cell.text.splitlines(keepends=True),
        }
        if cell.kind == "code":
            count += 1
            text = cell.printed.splitlines(keepends=True)
            stream = {"name": "stdout", "output_type": "stream", "text": text}
            made |= {"execution_count": count, "outputs": [stream] if text else []}
        cells.append(made)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def run(page: Path) -> list[str]:
    """Runs the cells of a page one after the other, in the current folder.

    Returns what each cell of code prints.
    """
    namespace, printed = {"__name__": "__main__"}, []
    for number, cell in enumerate(cells_of(page.read_text(encoding="utf-8"))):
        if cell.kind == "code":
            with contextlib.redirect_stdout(io.StringIO()) as file:
                exec(compile(cell.text, f"{page.name}, cell {number}", "exec"), namespace)
            printed.append(file.getvalue())
    return printed


def with_printed(text: str, printed: list[str]) -> str:
    """The text of a page with what its cells print behind them."""
    left = iter(printed)

    def replaced(found: re.Match) -> str:
        text = next(left)
        shown = f"\n<!-- prints -->\n```text\n{text}```\n" if text else ""
        return f"```python\n{found['code']}```\n{shown}"

    return CELL.sub(replaced, text)


def run_and_keep(page: Path) -> None:
    """Runs a page in a folder of its own, and keeps its pictures and what it prints."""
    import keras

    import keras_transformer  # noqa: F401, before Keras: it takes a backend that is installed

    keras.utils.set_random_seed(0)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        printed = run(page)
        for picture in Path().glob("*.png"):
            shutil.copyfile(picture, COURSE / picture.name)
    page.write_text(with_printed(page.read_text(encoding="utf-8"), printed), encoding="utf-8")


def main() -> int:
    """Writes or compares; 1 if a notebook is not that of its page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--run", nargs="*", help="beginnings of the names of pages to run")
    given = parser.parse_args()
    old = []
    for page in pages():
        if given.run is not None and page.name.startswith(tuple(given.run or [""])):
            os.environ["MPLBACKEND"] = "Agg"
            run_and_keep(page)
        path, made = page.with_suffix(".ipynb"), notebook(page)
        if not path.exists() or path.read_text(encoding="utf-8") != made:
            old.append(path.name)
            if not given.check:
                path.write_text(made, encoding="utf-8")
    if given.check and old:
        print(f"not those of their pages: {', '.join(old)}. Run `python docs/make_course.py`.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
