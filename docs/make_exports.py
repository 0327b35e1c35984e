"""Writes the table of formats in docs/export.md: `python docs/make_exports.py`, `--check` compares.

It has what tests/exporting/test_kinds.py runs, each cell of it.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from written import write_or_check

from keras_transformer.exporting import FORMATS
from tests.exporting.kinds import IN_TABLE, KINDS, REFUSED

PAGE = Path(__file__).with_name("export.md")
BEGIN = "<!-- Written by docs/make_exports.py from tests/exporting/kinds.py. -->"
END = "<!-- End of what docs/make_exports.py writes. -->"
_BACKENDS = {"jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}


def table() -> str:
    """The rows: each format, from which backend it is converted, and the kinds that it takes."""
    rows = [("format", "converted on", *KINDS), ("---",) * (2 + len(KINDS))]
    for name in IN_TABLE:
        cells = ("no" if (name, kind) in REFUSED else "yes" for kind in KINDS)
        rows.append((f"`{name}`", _BACKENDS.get(FORMATS[name].backend, "any backend"), *cells))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page() -> str:
    """The page with the table as it is to be. ValueError if it has no place for it."""
    text = PAGE.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"{PAGE} has no lines {BEGIN!r} and {END!r} to write between.")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> int:
    """Writes the page, or with `--check` says whether it is current."""
    return write_or_check(__doc__, PAGE, page(), "make_exports.py")


if __name__ == "__main__":
    sys.exit(main())
