"""Generated pages of the site, made from the code and the presets, as text.

Nothing is imported but Python's own, so that neither a backend nor MkDocs is needed.
"""

import ast
import fnmatch
import importlib
import json
import re
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import site_names

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PACKAGE = "keras_transformer"
PRESETS_MARK = "<!-- the table of presets -->"

# The pages of the reference: title, and the modules whose public names they have. A name that
# `kt` has is shown as users write it. Tasks have a page each.
TASKS = "tasks"
PARTS = {
    "config": ("The config of a model", ("config",)),
    "models": ("Models", ("models",)),
    "layers": ("Layers", ("layers", "layers.stems")),
    "generation": ("Generation", ("generation",)),
    "training": ("Training", ("training",)),
    "data": ("Data", ("data",)),
    "tokenizers": ("Tokenizers", ("tokenizers",)),
    "processors": ("Processors", ("processors",)),
    "checkpoints": ("Presets and checkpoints", ("checkpoints", "checkpoints.keras_hub")),
    "planning": ("Plans", ("planning",)),
    "explanations": ("Explanations", ("explanations",)),
    "exporting": ("Exports", ("exporting",)),
    "optimizing": ("Quantization and speed", ("optimizing",)),
    "evaluating": ("Evaluation", ("evaluating",)),
    "serving": ("A page", ("serving",)),
    "distribution": ("Many devices", ("distribution",)),
    "process": ("The process and the device", ("process", "kernels.precision")),
}
# The page of one object, which is its heading, with all that it inherits from bases of ours.
ALONE = """\
::: {name}
    options:
      heading_level: 1
      inherited_members: true
      members_order: alphabetical
"""
# The first line of an argument in a docstring.
ARGUMENT = re.compile(r" {4}(?P<names>\*{0,2}\w[\w, .]*): (?P<text>.*)")
# Modules without `__all__`, whose public names are those of the package.
NAMES_OF = {
    "process": ("tune_process",),
    "kernels.precision": ("use_exact_float32",),
}


def public_names(module: str = "") -> tuple[str, ...]:
    """The names of `__all__` of a package within ours, or of ours: its text is read.

    Raises:
        ValueError: if it has no `__all__` that is a list of names.
    """
    if module in NAMES_OF:
        return NAMES_OF[module]
    path = ROOT.joinpath(PACKAGE, *module.split("."), "__init__.py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(_names(node.value, path.parent))
    raise ValueError(f"{path} has no `__all__`.")


def _names(listed: ast.expr, folder: Path) -> Iterator[str]:
    """The names of a list in `__all__`, with those of `*module.__all__` in place."""
    for each in ast.literal_eval(listed) if not _is_joined(listed) else listed.elts:
        if isinstance(each, str):
            yield each
            continue
        path = folder / f"{ast.unparse(each.value).split('.')[0]}.py"
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                yield from ast.literal_eval(node.value)


def _is_joined(listed: ast.expr) -> bool:
    return any(isinstance(each, ast.Starred) for each in listed.elts)


def packages() -> set[str]:
    """The packages within ours that have an `__all__`."""
    folder = ROOT / PACKAGE
    return {
        ".".join(path.parent.relative_to(folder).parts)
        for path in folder.rglob("__init__.py")
        if path.parent != folder and "\n__all__ = " in path.read_text(encoding="utf-8")
    }


def shown_as(module: str, name: str) -> str:
    """The full name of a public object as users write it."""
    if name in public_names():
        return f"{PACKAGE}.{name}"
    return f"{PACKAGE}.{module}.{name}"


def generated() -> dict[str, str]:
    """The pages that no file has, by their paths in the site."""
    return {"names_of_others.md": site_names.HEAD + table([*site_names.rows()]), **reference()}


def reference() -> dict[str, str]:
    """The pages of the reference, by their paths in the site."""
    pages, rows, done = {}, [], set()
    for name in public_names(TASKS):
        pages[f"reference/{TASKS}/{name}.md"] = ALONE.format(name=shown_as(TASKS, name))
        done.add(name)
    for part, (title, modules) in PARTS.items():
        full = {}
        for module in modules:
            names = [name for name in public_names(module) if name not in done]
            full |= {shown_as(module, name): None for name in names}
            if module != "config":  # whose parts have the names of their layers
                done.update(names)
        pages[f"reference/{part}.md"] = _page(title, full)
        rows.append((title, f"reference/{part}.md", full))
    tasks = [shown_as(TASKS, name) for name in public_names(TASKS)]
    rows.insert(0, ("Tasks", f"reference/{TASKS}/Task.md", tasks))
    return {"reference/index.md": _index(rows), **pages}


def _page(title: str, names: Iterable[str]) -> str:
    """A page with the docstrings of some objects."""
    return "\n".join([f"# {title}", "", *(f"::: {name}\n" for name in names)])


def _index(parts: list[tuple[str, str, Iterable[str]]]) -> str:
    """The first page of the reference: each public name, where it is."""
    lines = [
        "# Reference",
        "",
        "Every public name, with its docstring. `kt` is `keras_transformer`; the examples are run",
        "as tests. Names that `kt` does not have are in the package that is written before them.",
        "",
    ]
    for title, page, names in parts:
        link = page.removeprefix("reference/")
        lines += [f"## [{title}]({link})", ""]
        lines += [f"- [`{_short(name)}`][{name}]" for name in names]
        lines.append("")
    return "\n".join(lines)


def _short(name: str) -> str:
    return f"kt{name.removeprefix(PACKAGE)}"


def options() -> str:
    """The options of `TransformerConfig` as its docstring has them: `config.options.documented`."""
    stub = types.ModuleType(PACKAGE)  # the package itself would import Keras
    stub.__path__ = [str(ROOT / PACKAGE)]
    before = set(sys.modules)
    sys.modules.setdefault(PACKAGE, stub)
    try:
        known = importlib.import_module(f"{PACKAGE}.config.flat").OPTIONS
    finally:
        if sys.modules[PACKAGE] is stub:
            for name in set(sys.modules) - before:
                if name.split(".")[0] == PACKAGE:
                    del sys.modules[name]
    return "\n".join(["Args:", *(f"        {name}: {each['doc']}" for name, each in known.items())])


def with_list(docstring: str) -> str:
    """A docstring whose section of call arguments is a Markdown list: others know only `Args`."""
    lines, within = [], False
    for line in docstring.splitlines():
        if line and not line.startswith(" "):
            within = line == "Call arguments:"
        elif within and (found := ARGUMENT.match(line)):
            line = f"    - **`{found['names']}`** – {found['text']}"
        lines.append(line)
    return "\n".join(lines)


def presets() -> list[tuple[str, ...]]:
    """A row of the table for each bundled preset, and the names of the columns first."""
    rows = [("preset", "what", "task", "kind", "family", "parameters", "layers", "width")]
    rows[0] += ("languages", "weights", "licence")
    for path in sorted((ROOT / "presets").glob("*/config.json")):
        told = json.loads(path.read_text(encoding="utf-8"))
        metadata, config = told["metadata"], told["backbone"]
        sides = [config[side] for side in ("encoder", "decoder") if side in config]
        rows.append(
            (
                f"`{path.parent.name}`",
                metadata["description"],
                f"`{told['task']['name']}`" if told["task"] else "",
                config["kind"],
                f"`{metadata['family']}`",
                f"{metadata['parameters']:,}",
                _of_sides(sides, "num_layers"),
                _of_sides(sides, "hidden_dim"),
                ", ".join(metadata.get("languages", ())),
                _weights(path.parent, told.get("weights")),
                metadata["license"],
            )
        )
    return rows


def _of_sides(sides: list[dict[str, Any]], value: str) -> str:
    """A number of a config, two where it has two sides that differ or that add up."""
    numbers = [str(side[value]) for side in sides]
    alike = value != "num_layers" and len(set(numbers)) == 1
    return numbers[0] if alike else " + ".join(numbers)


def _weights(folder: Path, pointer: dict[str, str] | None) -> str:
    """Where the weights of a preset are."""
    if pointer is None:
        return "bundled" if any(folder.glob("*.safetensors")) else "none"
    return f"extra `{pointer['extra']}`" if "extra" in pointer else "hub"


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows as a Markdown table; the first has the names of the columns."""
    head, *body = rows
    lines = (head, ("---",) * len(head), *body)
    return "\n".join(
        f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in lines
    )


def filled(text: str) -> str:
    """A page with the table of presets in the place of its mark."""
    if PRESETS_MARK not in text:
        return text
    return text.replace(
        PRESETS_MARK, f'<div class="wide" markdown>\n\n{table(presets())}\n\n</div>'
    )


def with_notebook(text: str, notebook: str, repository: str) -> str:
    """A page of the course with links to its notebook below its heading.

    Args:
        text: the page.
        notebook: path of its notebook below docs/.
        repository: `"owner/name"` on GitHub, of which Colab opens the notebook; "" for none.
    """
    links = [f"[Notebook for Jupyter]({Path(notebook).name}){{ download }}"]
    if repository:
        place = f"github/{repository}/blob/HEAD/docs/{notebook}"
        links.append(f"[Open in Colab](https://colab.research.google.com/{place})")
        address = f"git+https://github.com/{repository}"
        install = f'%pip install "{PACKAGE}[jax,plots] @ {address}"'
        links.append(f"whose first cell is then `{install}`")
    heading, rest = text.split("\n", 1)
    return f"{heading}\n\n{', '.join(links)}.\n{rest}"


def expanded(nav: list, pages: Iterable[str]) -> list:
    """The navigation with the pages that its patterns fit; a section of none is left out.

    Args:
        nav: as MkDocs reads it: paths, patterns, and dicts of a title and one of both or a list.
        pages: the paths of all pages.
    """
    named = {path for path in _leaves(nav) if "*" not in path}
    free = sorted(set(pages) - named, key=lambda path: (not path.endswith("index.md"), path))
    taken = {pattern: _fitting(pattern, free, nav) for pattern in _leaves(nav) if "*" in pattern}
    return _put(nav, taken)


def _leaves(nav: list) -> Iterator[str]:
    for entry in nav:
        values = entry.values() if isinstance(entry, dict) else [entry]
        for value in values:
            yield from _leaves(value) if isinstance(value, list) else [value]


def _fitting(pattern: str, free: list[str], nav: list) -> list[str]:
    """The pages of a pattern: those that no longer pattern has. `**` goes into folders."""
    longer = [other for other in _leaves(nav) if "*" in other and len(other) > len(pattern)]

    def fits(path: str, one: str) -> bool:
        deep = "**" in one or path.count("/") == one.count("/")
        return deep and fnmatch.fnmatchcase(path, one)

    return [p for p in free if fits(p, pattern) and not any(fits(p, other) for other in longer)]


def _put(nav: list, taken: dict[str, list[str]]) -> list:
    found: list = []
    for entry in nav:
        if isinstance(entry, str):
            found += taken.get(entry, [entry])
            continue
        for title, value in entry.items():
            if isinstance(value, list):
                value = _put(value, taken)
            elif value in taken:
                value = taken[value]
                value = value[0] if len(value) == 1 else value
            if value:
                found.append({title: value})
    return found
