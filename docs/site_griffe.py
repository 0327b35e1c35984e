"""The options of `TransformerConfig` in its docstring, which the class fills in when it is made."""

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
import site_pages


class Options(griffe.Extension):
    """Puts them where the docstring has `{options}`."""

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Looks at each class that is read."""
        if cls.docstring and "{options}" in cls.docstring.value:
            cls.docstring.value = cls.docstring.value.format(options=site_pages.options())
