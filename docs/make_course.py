"""Writes the notebooks of docs/course/ from its pages: `python docs/make_course.py`.

A page is Markdown; each block that begins with ```python is a cell, and all cells of a page are one
program. `--check` compares only; `--pictures` also runs the pages and keeps the pictures they make.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

COURSE = Path(__file__).with_name("course")
CELL = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
# A notebook shows the figure below the cell that draws it.
PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n", re.MULTILINE)


def pages() -> list[Path]:
    """The pages in their order, without the index."""
    return sorted(COURSE.glob("[0-9]*.md"))


def cells_of(text: str) -> list[tuple[str, str]]:
    """`("markdown", text)` and `("code", program)` of a page, in turn."""
    cells = []
    for number, part in enumerate(CELL.split(text)):
        part = part.strip("\n") if number % 2 else PICTURE.sub("", part).strip("\n")
        if part:
            cells.append(("code" if number % 2 else "markdown", part))
    return cells


def notebook(page: Path) -> str:
    """The notebook of a page, as the text of a file of nbformat 4.4."""
    cells = []
    for kind, text in cells_of(page.read_text(encoding="utf-8")):
        cell = {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
        cells.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def run(page: Path) -> None:
    """Runs the cells of a page one after the other, in the current folder."""
    namespace = {"__name__": "__main__"}
    for number, (kind, code) in enumerate(cells_of(page.read_text(encoding="utf-8"))):
        if kind == "code":
            exec(compile(code, f"{page.name}, cell {number}", "exec"), namespace)


def make_pictures(page: Path) -> None:
    """Runs a page in a folder of its own and copies the pictures beside the page."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        run(page)
        for picture in Path().glob("*.png"):
            shutil.copyfile(picture, COURSE / picture.name)


def main() -> int:
    """Writes or compares; 1 if a notebook is not that of its page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--pictures", nargs="*", help="beginnings of the names of pages to run")
    given = parser.parse_args()
    old = []
    for page in pages():
        if given.pictures is not None and page.name.startswith(tuple(given.pictures or [""])):
            os.environ["MPLBACKEND"] = "Agg"
            make_pictures(page)
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
