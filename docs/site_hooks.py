"""Hooks that MkDocs calls to build the site: the pages of `site_pages`, and the navigation."""

import os
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

sys.path.insert(0, str(Path(__file__).parent))
import site_pages

# How much a match counts in a search: questions are answered by the guides, the rest has names.
BOOSTS = {"decisions/": 0.001, "reference/": 0.01, "design.md": 0.01, "names_of_others.md": 0.01}
# The owner/name that workflows of GitHub have. Colab opens the notebooks of the course from there.
REPOSITORY = os.environ.get("GITHUB_REPOSITORY", "")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The anchors of headings are those of the pages as they are read in a repository."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that no file has, and puts pages in the places of the patterns of `nav`."""
    for path, text in site_pages.generated().items():
        files.append(File.generated(config, path, content=text))
    pages = [file.src_uri for file in files.documentation_pages()]
    config.nav = site_pages.expanded(config.nav, pages)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fills in the table of presets and the links to a notebook, and orders what a search finds."""
    for place, boost in BOOSTS.items():
        if page.file.src_uri.startswith(place):
            page.meta["search"] = {"boost": boost}
    text = site_pages.filled(markdown)
    if text != markdown:  # beside the table there is room for nothing else
        page.meta["hide"] = ["navigation", "toc"]
    elif page.parent is None:  # beside which the navigation has nothing more than the tabs have
        page.meta["hide"] = ["navigation"]
    notebook = str(Path(page.file.src_uri).with_suffix(".ipynb"))
    if files.get_file_from_path(notebook):
        text = site_pages.with_notebook(text, notebook, REPOSITORY)
    return text


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove the dash after the name of a return value, which has no name here."""
    return re.sub(r'(<li class="doc-section-item field-body">)\s*–\s', r"\1", html)
