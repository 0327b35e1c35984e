"""What presets and models are, made from their own values: as `README.md`, and in a notebook."""

import math
from typing import Any

from keras_transformer.checkpoints.loading import load_config
from keras_transformer.checkpoints.presets import PresetSource, resolve_preset
from keras_transformer.checkpoints.publishing import CARD_MARK
from keras_transformer.config import TransformerConfig
from keras_transformer.notebook import as_text, html_grid, html_table

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
    license_line = f"license: {metadata['license']}\n" if "license" in metadata else ""
    about = metadata.get("description") or f"An {_KINDS[backbone['kind']]} transformer."
    if "source" in metadata:
        about += f" Made from {metadata['source']}."
    rows = card_rows(backbone, task, metadata)
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


def card_rows(
    backbone: dict[str, Any], task: dict[str, Any] | None, metadata: dict[str, Any]
) -> dict[str, Any]:
    """What the parts of a preset's `config.json` say of the model, by label."""
    rows = {"kind": _KINDS[backbone["kind"]], "parameters": metadata.get("parameters")}
    rows |= {label: backbone[key] for key, label in _ROWS.items() if backbone[key] is not None}
    if task:
        rows |= {"task": task["name"]}
        rows |= {"labels": task["labels"]} if task.get("labels") else {}
    return rows


def model_table(
    model, config: TransformerConfig, task: dict[str, Any] | None = None, tokenizer: Any = None
) -> str:
    """What a notebook shows of a model in memory, as HTML.

    Args:
        model: The `keras.Model`.
        config: That of its backbone.
        task: `"name"` and the values of the task, for a backbone alone `None`.
        tokenizer: That of the task, if it has one.
    """
    rows = card_rows(config.to_dict(), task, {"parameters": model.count_params()})
    trainable = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    rows["trainable"] = None if trainable == model.count_params() else trainable
    rows["dtype"] = model.dtype_policy.name
    rows["tokenizer"] = None if tokenizer is None else repr(tokenizer)
    return html_table(f"{type(model).__name__} {model.name!r}", rows)


def preset_table(source: PresetSource) -> str:
    """What a notebook shows of a preset, as HTML."""
    config, task, metadata = load_config(source, load_weights=False)
    rows = {"what": metadata.get("description"), **card_rows(config.to_dict(), task, metadata)}
    rows |= {"licence": metadata.get("license"), "weights": _whereabouts(source)}
    return html_table(f"preset {source.name!r}", rows)


def presets_table(names: list[str]) -> str:
    """What a notebook shows of several presets, as HTML."""
    rows = [("name", "what", "task", "parameters", "weights")]
    for name in names:
        source = resolve_preset(name)
        config, task, metadata = load_config(source, load_weights=False)
        what = metadata.get("description") or f"{_KINDS[config.kind]} transformer"
        loader = task["name"] if task else "none: a backbone"
        rows.append((name, what, loader, metadata["parameters"], _whereabouts(source)))
    return html_grid(f"{len(names)} presets", rows)


def _whereabouts(source: PresetSource) -> str:
    if source.local_weights:
        return "on this machine"
    bare = source.bundled and "weights" not in source.config
    return "none: a config alone" if bare else "on the hub"


def _cell(value: object) -> str:
    return as_text(value).replace("|", "\\|")
