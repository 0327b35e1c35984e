"""The table of names of other libraries, and of ours: what the messages of the package say.

The two modules that have them are read, not imported: the package would need a backend.
"""

import ast
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1] / "keras_transformer"
BOTH, KERAS_HUB, TRANSFORMERS = "both", "KerasHub", "Transformers"
# The tables of `kerashub_names` by what they name, and of which library that is.
OF_KERAS_HUB = {
    "_MODELS": ("class that ends in", KERAS_HUB),
    "OPTIONS": ("option", KERAS_HUB),
    "_OF_TOKENIZERS": ("of a tokenizer", BOTH),
    "_OF_MODELS": ("of a model or task", BOTH),
}
OF_TRANSFORMERS = {
    "CLASSES": ("name of the package", TRANSFORMERS),
    "ENDS": ("class that ends in", TRANSFORMERS),
    "OPTIONS": ("option", TRANSFORMERS),
}

HEAD = """\
# Names of others

What users of KerasHub and Transformers type, and what it is here. Who types one of these in Python
is told the same: `kt.generation.BeamSampler` and `from_preset(..., num_labels=2)` are errors that
name ours. The guides [from KerasHub](coming_from_kerashub.md) and [from
Transformers](coming_from_transformers.md) have whole programs side by side.

"""


def tables(name: str, **known: Any) -> dict[str, Mapping]:
    """The dicts that a module of the package defines at its top, by their names.

    Args:
        name: of the module.
        known: other modules that it uses in them.
    """
    found: dict[str, Any] = dict(known)
    for node in ast.parse((PACKAGE / f"{name}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            code = compile(ast.Expression(node.value), name, "eval")
            found[ast.unparse(node.targets[0])] = eval(code, found)
    return found


def rows() -> Iterator[tuple[str, ...]]:
    """The rows of the table, the names of the columns first."""
    yield ("theirs", "here", "what", "library")
    theirs = tables("transformers_names")
    for table, (what, library) in OF_TRANSFORMERS.items():
        yield from _rows(theirs[table], what, library)
    hub = tables("kerashub_names", transformers_names=types.SimpleNamespace(**theirs))
    for module, names in hub["_NAMES"].items():
        yield from _rows(names, f"name of `{module.replace('keras_transformer', 'kt')}`", KERAS_HUB)
    for table, (what, library) in OF_KERAS_HUB.items():
        yield from _rows(hub[table], what, library)


def _rows(names: Mapping[str, str], what: str, library: str) -> Iterator[tuple[str, ...]]:
    for theirs, ours in names.items():
        yield f"`{theirs}`", ours, what, library
