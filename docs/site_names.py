"""The table of names of other libraries, and of ours: what the messages of the package say.

Its data are read from the file, without the module, for which the package would need a backend.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

TABLES = Path(__file__).parents[1] / "keras_transformer" / "support" / "foreign_names.json"
BOTH, KERAS_HUB, TRANSFORMERS = "both", "KerasHub", "Transformers"

HEAD = """\
# Names of others

What users of KerasHub and Transformers type, and what it is here. Who types one of these in Python
is told the same: `kt.generation.BeamSampler` and `from_preset(..., num_labels=2)` are errors that
name ours. The guides [from KerasHub](coming_from_kerashub.md) and [from
Transformers](coming_from_transformers.md) have whole programs side by side.

"""


def rows() -> Iterator[tuple[str, ...]]:
    """The rows of the table, the names of the columns first."""
    yield ("theirs", "here", "what", "library")
    known = json.loads(TABLES.read_text(encoding="utf-8"))
    endings, options, attributes = (
        known[name] for name in ("class_endings", "options", "attributes")
    )
    yield from _rows(known["classes"], "name of the package", TRANSFORMERS)
    yield from _rows(endings[TRANSFORMERS], "class that ends in", TRANSFORMERS)
    yield from _rows(options[TRANSFORMERS], "option", TRANSFORMERS)
    for module, names in known["modules"].items():
        yield from _rows(names, f"name of `{module.replace('keras_transformer', 'kt')}`", KERAS_HUB)
    yield from _rows(endings[KERAS_HUB], "class that ends in", KERAS_HUB)
    yield from _rows(options[KERAS_HUB], "option", KERAS_HUB)
    yield from _rows(attributes["tokenizers"], "of a tokenizer", BOTH)
    yield from _rows(attributes["models"], "of a model or task", BOTH)


def _rows(names: Mapping[str, str], what: str, library: str) -> Iterator[tuple[str, ...]]:
    for theirs, ours in names.items():
        yield f"`{theirs}`", ours, what, library
