"""The pages for those who come from elsewhere: what they say of the other libraries, and links.

The examples of this library are run by test_alone.py. Examples of other libraries, in blocks
that begin with `py`, need their packages and a network: here their names are looked up.
"""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.families import FAMILIES
from tests.fences import FENCE

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
COMING = [name for name in PAGES if name.startswith("coming_from_")]
THEIRS = re.compile(r"^```py\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
pytestmark = pytest.mark.backend_independent


def exported(package, *parts):
    """The names that a module of an installed package has, by its text: nothing is imported."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"needs {package}")
    folder = Path(spec.submodule_search_locations[0], *parts)
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    names = {child.name.removesuffix(".py") for child in path.parent.iterdir()}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def their_code(page):
    return [match["code"] for match in THEIRS.finditer(PAGES[page])]


@pytest.mark.parametrize("page", COMING)
def test_every_section_shows_both(page):
    """Theirs, then ours: only the first and the last sections have none."""
    sections = PAGES[page].split("\n## ")[1:]
    shown = [section for section in sections if "```" in section]
    assert len(shown) >= 9
    for section in shown:
        theirs, ours = section.find("```py\n"), section.find("```python\n")
        assert 0 <= theirs < ours, section.splitlines()[0]
    assert "different, and why" in sections[-1]


@pytest.mark.parametrize("page", COMING)
def test_their_examples_are_python(page):
    assert len(their_code(page)) >= 9
    for code in their_code(page):
        ast.parse(code)


def test_names_of_transformers():
    transformers = pytest.importorskip("transformers")
    known = set(dir(transformers))  # without loading each of them
    used = set(re.findall(r"`(Auto\w+)`", PAGES["coming_from_transformers.md"])) | {"Trainer"}
    for code in their_code("coming_from_transformers.md"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module == "transformers":
                used |= {alias.name for alias in node.names}
    assert len(used) > 9 and used <= known
    # What the page says of release 5.
    assert not any(name.startswith(("TF", "Flax")) and name.endswith("Model") for name in known)
    spec = importlib.util.find_spec("transformers")
    pipelines = Path(spec.submodule_search_locations[0], "pipelines", "__init__.py").read_text()
    assert '"token-classification": {' in pipelines and '"fill-mask": {' in pipelines
    assert '"question-answering": {' not in pipelines


def test_names_of_kerashub():
    page = PAGES["coming_from_kerashub.md"]
    used = {tuple(name.split(".")) for name in re.findall(r"keras_hub\.([\w.]+)", page)}
    used |= {("models", "BertBackbone"), ("layers", "AlibiBias"), ("metrics", "Bleu")}
    used |= {("samplers", f"{kind}Sampler") for kind in ("Beam", "TopP", "Random", "Contrastive")}
    assert len(used) > 20
    for name in used:
        name = name[: next((i for i, part in enumerate(name) if part[0].isupper()), len(name)) + 1]
        for depth, part in enumerate(name):
            assert part in exported("keras_hub", *name[:depth]), ".".join(name)
    models = exported("keras_hub", "models")
    assert not {"TokenClassifier", "QuestionAnswerer"} & models  # "none" in the page's table


def test_our_names_exist():
    for page, text in PAGES.items():
        for name in set(re.findall(r"\bkt\.([A-Za-z_][\w.]*\w)", text)):
            found = kt
            for part in name.split("."):
                assert hasattr(found, part), (page, name)
                found = getattr(found, part)


def test_config_values_correspond():
    """The table of values, held against the families' own."""
    page = PAGES["coming_from_transformers.md"]
    table = page.split("Values of the config:")[1].split("\n## ")[0]
    rows = [re.findall(r"`(\w+)`", line) for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) > 9
    read = {
        (theirs, field.ours)
        for name in ("bert", "llama", "mistral")
        for theirs, field in FAMILIES[name].fields.items()
    }
    for *theirs, ours in rows:
        for name in theirs:
            assert (name, ours) in read


def test_links_lead_somewhere():
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if target.startswith("https://"):
                continue
            path, _, anchor = target.partition("#")
            assert not path or (DOCS / path).exists(), (page, target)
            if anchor:
                text_there = (DOCS / (path or page)).read_text(encoding="utf-8")
                headings = re.findall(r"^#+ (.*)$", text_there, re.MULTILINE)
                anchors = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
                assert anchor in anchors, (page, target)


@pytest.mark.parametrize("page", COMING)
def test_all_our_examples_are_run(page):
    assert not any(match["skip"] for match in FENCE.finditer(PAGES[page]))
