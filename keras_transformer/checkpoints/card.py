"""The card of a preset, its `README.md`, made from its own values."""

from typing import Any

from keras_transformer.checkpoints.publishing import CARD_MARK
from keras_transformer.notebook import KINDS, as_text, model_rows


def write_card(name: str, values: dict[str, Any], has_tokenizer: bool) -> str:
    """The card: what a preset is, its architecture, how to load it, with the header of the hub."""
    backbone, task, metadata = values["backbone"], values["task"], values["metadata"]
    license_line = f"license: {metadata['license']}\n" if "license" in metadata else ""
    about = metadata.get("description") or f"An {KINDS[backbone['kind']]} transformer."
    if "source" in metadata:
        about += f" Made from {metadata['source']}."
    rows = model_rows(backbone, task, metadata)
    table = "\n".join(f"| {label} | {_cell(value)} |" for label, value in rows.items())
    loader = task["name"] if task else "Backbone"
    load = f'model = keras_transformer.{loader}.from_preset("{name}")'
    if has_tokenizer and not task:
        load += f'\ntokenizer = keras_transformer.Tokenizer.from_preset("{name}")'
    return f"""---
library_name: keras_transformer
{license_line}---
{CARD_MARK}

# {name}

{about}

| | |
|---|---|
{table}

```python
import keras_transformer

{load}
```
"""


def _cell(value: object) -> str:
    return as_text(value).replace("|", "\\|")
