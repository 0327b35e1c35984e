"""The examples of pages and docstrings: blocks that begin with `python`."""

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("recipes/*.md"))]
FENCE = re.compile(
    r"^(?P<skip><!-- not run -->\s*\n)?(?P<indent>[ ]*)```python\n(?P<code>.*?)^[ ]*```",
    re.DOTALL | re.MULTILINE,
)


def codes(text: str) -> list[str]:
    """The examples of a text that are run, in a docstring or in Markdown."""
    return [textwrap.dedent(match["code"]) for match in FENCE.finditer(text) if not match["skip"]]


def blocks_of_pages():
    """(name, code) of every example of a page that is run."""
    for page in PAGES:
        for number, code in enumerate(codes(page.read_text(encoding="utf-8")), 1):
            yield f"{page.relative_to(DOCS) if DOCS in page.parents else page.name}-{number}", code
