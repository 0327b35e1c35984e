"""Transformations of the docstrings of classes before the site shows them."""

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
import site_pages


class Docstrings(griffe.Extension):
    """Call arguments as a list; options where `TransformerConfig` has `{options}`, as it does."""

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Looks at each class that is read."""
        if cls.docstring is None:
            return
        if "{options}" in cls.docstring.value:
            cls.docstring.value = cls.docstring.value.format(options=site_pages.options())
        cls.docstring.value = site_pages.with_list(cls.docstring.value)
