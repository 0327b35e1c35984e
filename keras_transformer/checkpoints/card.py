"""The card of a preset: `README.md` as the hub shows it, made from the preset's own values."""

from typing import Any

from keras_transformer.checkpoints.publishing import CARD_MARK

_KINDS = {"encoder": "encoder-only", "decoder": "decoder-only", "seq2seq": "encoder-decoder"}
_ROWS = {
    "num_layers": "layers",
    "num_decoder_layers": "decoder layers",
    "hidden_dim": "hidden width",
    "num_heads": "attention heads",
    "num_key_value_heads": "key/value heads",
    "intermediate_dim": "feed-forward width",
    "activation": "activation",
    "position": "positions",
    "max_sequence_length": "longest sequence",
    "vocabulary_size": "vocabulary",
}


def write_card(name: str, values: dict[str, Any], has_tokenizer: bool) -> str:
    """Describes a preset: what it is, its architecture, how to load it.

    Args:
        name: The name of the preset's folder.
        values: The content of the preset's `config.json`.
        has_tokenizer: Whether tokenizer files are saved with it.

    Returns:
        The text of the card, in Markdown with the hub's header.

    Example:
    ```python
    from keras_transformer import TransformerConfig
    from keras_transformer.checkpoints.card import write_card

    config = TransformerConfig(
        kind="encoder", vocabulary_size=50, hidden_dim=8, num_layers=1, num_heads=2,
        intermediate_dim=16,
    )
    values = {"backbone": config.to_dict(), "task": None, "metadata": {"parameters": 1234}}
    assert "| parameters | 1,234 |" in write_card("tiny", values, has_tokenizer=False)
    ```
    """
    backbone, task, metadata = values["backbone"], values["task"], values["metadata"]
    kind = _KINDS[backbone["kind"]]
    license_line = f"license: {metadata['license']}\n" if "license" in metadata else ""
    about = metadata.get("description") or f"An {kind} transformer."
    if "source" in metadata:
        about += f" Made from {metadata['source']}."
    rows = {"kind": kind, "parameters": f"{metadata['parameters']:,}"}
    rows |= {label: backbone[key] for key, label in _ROWS.items() if backbone[key] is not None}
    if task:
        rows |= {"task": task["name"]}
        rows |= {"labels": ", ".join(map(str, task["labels"]))} if task.get("labels") else {}
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
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")
