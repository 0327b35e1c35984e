"""The site: every public name and preset is in it, every page is in its place, no link is dead.

What MkDocs says of it is seen where it is installed: `make docs` does that. The rest needs nothing.
"""

import ast
import importlib
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import keras_transformer as kt
from keras_transformer.checkpoints import load_config
from keras_transformer.config import OPTIONS
from keras_transformer.support.foreign_names import tables

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^([ ]*)```.*?^\1```", re.DOTALL | re.MULTILINE)
pytestmark = pytest.mark.backend_independent


@pytest.fixture(scope="module")
def site():
    """docs/site_pages.py."""
    spec = importlib.util.spec_from_file_location("site_pages", DOCS / "site_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def settings():
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def objects(text):
    """The names whose docstrings a page of the reference has."""
    return re.findall(r"^::: (\S+)", text, re.MULTILINE)


def test_every_public_name_is_in_the_reference_once(site):
    shown = [name for text in site.reference().values() for name in objects(text)]
    assert len(shown) == len(set(shown)) > 150
    found = {}
    for name in shown:
        module, _, attribute = name.rpartition(".")
        found[name] = getattr(importlib.import_module(module), attribute)
    there = {id(value) for value in found.values()}
    for package in ("", *site.packages()):
        module = importlib.import_module(f"keras_transformer.{package}".rstrip("."))
        assert site.public_names(package) == tuple(module.__all__)
        for name in module.__all__:
            value = getattr(module, name)
            assert id(value) in there or inspect.ismodule(value), (
                f"{module.__name__}.{name} is in no page: add it to `PARTS` of docs/site_pages.py"
            )


def test_the_index_of_the_reference_leads_to_all(site):
    pages = site.reference()
    index = pages.pop("reference/index.md")
    linked = set(re.findall(r"\]\[(\S+)\]", index))
    assert linked == {name for text in pages.values() for name in objects(text)}
    for target in LINK.findall(index):
        assert f"reference/{target}" in pages


def test_the_options_of_the_config(site):
    lines = site.options().splitlines()
    expected = [f"        {name}: {known['doc']}" for name, known in OPTIONS.items()]
    assert lines == ["Args:", *expected]


def test_call_arguments_are_a_list(site):
    given = (
        "One layer.\n\nArgs:\n    rate: a float: one.\n\nCall arguments:\n"
        "    inputs, mask: float `(batch, length)`.\n        True for real tokens: all.\n"
        "    **further: dict.\n\nReturns:\n    float: one."
    )
    expected = given.replace("    inputs, mask: float", "    - **`inputs, mask`** – float")
    expected = expected.replace("    **further: dict", "    - **`**further`** – dict")
    assert site.with_list(given) == expected


def test_the_table_of_presets(site):
    head, *rows = site.presets()
    assert [row[0].strip("`") for row in rows] == kt.list_presets()
    by_name = {row[0].strip("`"): dict(zip(head, row, strict=True)) for row in rows}
    for name in ("transformer_tiny_en_de", "clip_vit_base_patch32", "bert_base_en_uncased"):
        config, task, metadata = load_config(name, load_weights=False)
        row = by_name[name]
        assert row["kind"] == config.kind and row["family"] == f"`{metadata['family']}`"
        assert row["parameters"] == f"{metadata['parameters']:,}"
        assert row["task"] == f"`{task['name']}`"
    assert by_name["transformer_tiny_en_de"]["layers"] == "4 + 4"
    assert by_name["clip_vit_base_patch32"]["width"] == "768 + 512"
    assert by_name["bert_base_en_uncased"]["layers"] == "12"
    assert {row["weights"] for row in by_name.values()} == {
        "bundled", "hub", "none", "extra `minilm`",
    }  # fmt: skip
    text = site.filled(PAGES["presets.md"].read_text(encoding="utf-8"))
    assert site.PRESETS_MARK not in text
    table = text[text.index('<div class="wide"') : text.index("</div>")]
    assert table.count("\n| `") == len(rows)


def test_the_names_of_others(site):
    text = site.generated()["names_of_others.md"]
    known = tables()
    options = known["options"]
    for names in (options["KerasHub"], options["Transformers"], known["classes"]):
        for theirs, ours in names.items():
            assert f"| `{theirs}` | {ours} |" in text
    assert "| `BeamSampler` | `BeamSearch` | name of `kt.generation` | KerasHub |" in text
    assert text.count("\n| `") > 150


def test_a_notebook_opens_by_a_link(site):
    given = "# Words\n\nA network takes numbers.\n"
    text = site.with_notebook(given, "course/1_words.ipynb", "org/fork")
    colab = "https://colab.research.google.com/github/org/fork/blob/HEAD/docs/course/1_words.ipynb"
    assert LINK.findall(text) == ["1_words.ipynb", colab]
    assert "[jax,plots] @ git+https://github.com/org/fork" in text
    alone = site.with_notebook(given, "course/1_words.ipynb", "")
    assert LINK.findall(alone) == ["1_words.ipynb"] and alone.endswith(given.partition("\n")[2])


def test_every_page_is_in_the_navigation(site, settings):
    pages = [*PAGES, *site.generated()]
    named = list(site._leaves(site.expanded(settings["nav"], pages)))
    assert sorted(named) == sorted(pages)


def test_pages_that_patterns_fit(site):
    nav = [
        "index.md",
        {"Guides": ["train.md", {"Look inside": "explanation*.md"}, "*.md"]},
        {"Course": "course/**.md"},
    ]
    pages = ["index.md", "train.md"]
    assert site.expanded(nav, pages) == ["index.md", {"Guides": ["train.md"]}]
    pages += ["serve.md", "explanations.md", "course/2.md", "course/index.md", "course/a/1.md"]
    assert site.expanded(nav, pages) == [
        "index.md",
        {"Guides": ["train.md", {"Look inside": "explanations.md"}, "serve.md"]},
        {"Course": ["course/index.md", "course/2.md", "course/a/1.md"]},
    ]
    # A page that is named and not there stays, so that the strict build says so.
    assert site.expanded(["gone.md"], pages)[0] == "gone.md"


def anchors(text):
    """The anchors of the headings of a page, as repositories and the site make them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]


@pytest.mark.parametrize("page", [*PAGES, "../README.md"])
def test_links_of_all_pages(page):
    path = DOCS / page
    for target in LINK.findall(FENCED.sub("", path.read_text(encoding="utf-8"))):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        to = (path.parent / name) if name else path
        assert to.exists(), f"{page} has a link to {target}, which is not there"
        if anchor:
            assert anchor in anchors(to.read_text(encoding="utf-8")), (page, target)


MAP = PAGES["design.md"].read_text(encoding="utf-8")
PLACES = re.findall(r"^\| [^|*]+ \| `([^`]+)` \| `([^`]+)` \|$", MAP, re.MULTILINE)


def definitions(text):
    """The names that a module defines at any depth: classes, functions, values."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_the_map_leads_to_what_it_names():
    """Each file of the design page exists, and defines the name that the page looks for in it."""
    package, floors = ROOT / "keras_transformer", MAP.split("\n## Floors")[1].split("\n## ")[0]
    assert len(PLACES) > 70 and len(MAP.splitlines()) <= 400
    for name, wanted in PLACES:
        assert wanted in definitions((package / name).read_text(encoding="utf-8")), (name, wanted)
    for name in set(re.findall(r"[\w/]+\.py\b", MAP)):
        assert (package / name).exists() or (package / "layers/stems" / name).exists(), name
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert {name for name in folders if f"`{name}/`" not in floors} == set()


def test_nothing_is_fetched_when_a_page_is_read(settings):
    assert settings["theme"]["font"] is False and "offline" in settings["plugins"]
    for path in (*DOCS.glob("assets/*.js"), *DOCS.glob("assets/*.css")):
        assert not re.search(r"https?://|fetch\(|XMLHttp|@import", path.read_text()), path.name


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the site, built strictly; `BUILT_SITE` names one that was just built."""
    if os.environ.get("BUILT_SITE"):
        return Path(os.environ["BUILT_SITE"])
    for package in ("mkdocs", "material", "mkdocstrings_handlers"):
        if importlib.util.find_spec(package) is None:
            pytest.skip("needs the extra [docs]; `make docs` installs it")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def test_the_site_as_it_is_built(built, site):
    for page in (*PAGES, *site.generated()):
        at = (built / page).with_suffix(".html")
        at = at.with_name("index.html") if at.name == "README.html" else at
        text = at.read_text(encoding="utf-8")
        assert not re.search(r'<(script|img|iframe)[^>]* src="https?:', text), page
        assert not re.search(r'<link[^>]* rel="?stylesheet[^>]* href="?https?:', text), page
    config = (built / "reference" / "config.html").read_text(encoding="utf-8")
    assert 'id="keras_transformer.TransformerConfig"' in config and "{options}" not in config
    layers = (built / "reference" / "layers.html").read_text(encoding="utf-8")
    assert "<li><strong><code>encoder_states</code></strong>" in re.sub(r"</?p>\s*", "", layers)
    task = (built / "reference" / "tasks" / "CausalLM.html").read_text(encoding="utf-8")
    for method in ("generate", "from_preset", "fit"):  # its own, and what it inherits
        assert f'id="keras_transformer.CausalLM.{method}"' in task


def opened(path, query, home):
    """Return the text of a page of the site on the disk in a browser, after its scripts ran."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium: `apt-get install chromium`")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}"]
    options += ["--virtual-time-budget=15000", "--dump-dom"]
    done = subprocess.run(
        [chromium, *options, f"{path.as_uri()}?{query}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout


def test_the_filters_in_a_browser(built, tmp_path):
    def shown(query):
        """The presets in the rows that are shown."""
        text = opened(built / "presets.html", query, tmp_path)
        _, table = text.split('class="table-filter"', 1)  # others of the page have none
        rows = re.findall(r"<tr([^>]*)>\s*<td[^>]*><code>(\w+)</code>", table.split("</table>")[0])
        return [name for attributes, name in rows if "hidden" not in attributes]

    whispers = [name for name in kt.list_presets() if "whisper" in name]
    assert len(whispers) > 5 and shown("find=whisper") == whispers
    assert shown("find=tiny+whisper") == [name for name in whispers if "tiny" in name]
    assert shown("") == kt.list_presets()


def test_the_search_in_a_browser(built, tmp_path):
    """Search files on a disk, without a server."""
    text = opened(built / "index.html", "q=BeamSearch", tmp_path)
    found = re.findall(r'href="([^"]*)" class="md-search-result__link', text)
    assert any("reference/generation.html" in link for link in found)


# What people search for, and the page that answers; among the first four that are found.
SEARCHED = {
    "fine-tune": "training", "RAG": "recipes/search", "OCR": "images", "chatbot": "chat_models",
    "out of memory": "scaling", "multi gpu": "gpu", "early stopping": "recipes/training",
    "class imbalance": "recipes/training", "QLoRA": "training", "quantize": "quantization",
    "docker": "recipes/deployment", "REST API": "serving_api", "JSON output": "generation",
    "function calling": "serving_api", "semantic segmentation": "dense_images", "slow": "scaling",
    "time series": "series", "custom loss": "own_models", "CUDA": "gpu", "offline": "presets",
    "BeamSearch": "reference/generation", "llama.cpp": "export",
    "cross validation": "recipes/training", "pruning": "quantization",
}  # fmt: skip


def test_what_people_search_for_is_found(built):
    """The script of the site answers as in a browser, guides before decisions."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    asked = ["node", str(Path(__file__).with_name("search.mjs")), str(built), *SEARCHED]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for words, page in SEARCHED.items():
        places = [place.partition(".html")[0] for place in found[words][:4]]
        assert page in places, (words, places)


def test_readme_lists_each_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| extra | for |")[2]
    rows = table.partition("\n\n")[0].splitlines()[2:]
    listed = [name for row in rows for name in re.findall(r"`([\w-]+)`", row.split("|")[1])]
    assert sorted(listed) == sorted(project["optional-dependencies"])
