"""Saving of a model as a preset folder."""

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from keras_transformer.checkpoints.presets import preset, publishing
from keras_transformer.checkpoints.presets.assignment import (
    BACKBONE_PREFIX,
    HEAD_PREFIX,
    plain_variables,
)
from keras_transformer.checkpoints.weights.safetensors_io import WEIGHTS_FILE, save_tensors
from keras_transformer.config.structure import variable_shapes
from keras_transformer.layers.stems import STEMS, TokenStem
from keras_transformer.models.runtime.quantized import refuse_rounded
from keras_transformer.support.checking import (
    check_choice,
    check_path,
    check_text,
    describe,
    printable,
)
from keras_transformer.support.files import write_json, write_text
from keras_transformer.support.notebook import KINDS, as_text, model_rows


def save_preset(
    directory: str | os.PathLike,
    *,
    backbone: keras.Model | None = None,
    tokenizer: Any = None,
    task: Mapping[str, Any] | None = None,
    head_variables: Mapping[str, keras.Variable] | None = None,
    dtype: str | None = None,
    card: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a preset: `config.json`, `model.safetensors`, the tokenizer's files and a card.

    The folder appears complete or not at all. A model replaces a whole existing preset, or is added
    to a tokenizer that was saved alone; a tokenizer replaces the tokenizer. Other files in the
    folder stay, and so does a card that was written by hand.

    Args:
        directory: the folder to write: new, empty, or with a preset.
        backbone: the model, with its `config`.
        tokenizer: the tokenizer.
        task: the values of the task, JSON-ready: `"name"`, and e.g. `"num_classes"`.
        head_variables: the variables of the task's head by path, e.g. `"output/kernel"`.
        dtype: `"float32"` or `"float16"` for the stored weights. Defaults to the weights' dtype.
        card: the text of `README.md`. Defaults to a generated one.
        metadata: known facts: `"family"`, `"source"`, `"revision"`, `"license"`, `"description"`;
            `"languages"`, a list of codes; `"data"`, a str, and `"scores"`, a dict, for the card.
            The number of parameters is added.

    Raises:
        ValueError: if the folder holds other files, or a weight is NaN or infinite.
        OSError: if it cannot be written. An existing preset is then unchanged.

    Example:
    ```python
    import tempfile
    from keras_transformer import TransformerConfig
    from keras_transformer.checkpoints import load_backbone, save_preset
    from keras_transformer.models import build_backbone

    sizes = {"vocabulary_size": 50, "hidden_dim": 8, "num_layers": 1, "num_heads": 2}
    config = TransformerConfig(kind="encoder", intermediate_dim=16, **sizes)
    folder = tempfile.mkdtemp()
    save_preset(folder, backbone=build_backbone(config), metadata={"license": "apache-2.0"})
    assert load_backbone(folder).config == config
    ```
    """
    check_path("directory", directory)
    _check_values(backbone, tokenizer, task or head_variables, dtype, card, metadata)
    place = Path(directory).expanduser()
    before = publishing.current_folder(place)
    with publishing.atomic_directory(place, _replaced(before, backbone, tokenizer, task)) as folder:
        if tokenizer is not None:
            tokenizer.save(folder)
        if backbone is not None:
            values = _write_model(folder, backbone, task, head_variables, dtype, metadata or {})
            if card is None and not publishing.is_written_card(before / publishing.CARD_FILE):
                card = preset_card(place.resolve().name, values, tokenizer is not None)
        if card is not None:
            write_text(folder / publishing.CARD_FILE, card)


def _check_values(backbone, tokenizer, of_task: Any, dtype: Any, card: Any, metadata: Any) -> None:
    check_choice("dtype", dtype, ("float32", "float16"), none=True)
    if card is not None:
        check_text("card", card)
    check_metadata(metadata)
    if backbone is None and tokenizer is None:
        raise ValueError("There is nothing to save: give `backbone`, `tokenizer` or both.")
    if backbone is None and of_task:
        raise ValueError("A task is saved with its backbone. Received: backbone=None.")
    if backbone is not None:
        refuse_rounded(backbone)


def check_metadata(metadata: Any) -> None:
    """Raise ValueError if facts about a model cannot be written into a card."""
    if not isinstance(metadata, Mapping | None):
        raise ValueError(f"`metadata` must be a dict or None, received {describe(metadata)}.")
    for name, kind, shown in (("languages", list | tuple, "list"), ("scores", Mapping, "dict")):
        value = (metadata or {}).get(name)
        if not isinstance(value, kind | None):
            raise ValueError(
                f"`metadata[{name!r}]` must be a {shown} or None, received {describe(value)}."
            )


def _write_model(folder: Path, backbone, task, head_variables, dtype, metadata) -> dict[str, Any]:
    """Write config and weights, and return the values that a card describes."""
    variables = _named_variables(backbone, head_variables)
    save_tensors(folder / WEIGHTS_FILE, variables, dtype)
    parameters = sum(math.prod(variable.shape) for variable in variables.values())
    # Facts about the checkpoint that the weights came from.
    origin = {name: getattr(backbone, name, None) for name in ("family", preset.GENERATION)}
    origin = {name: known for name, known in origin.items() if known}
    values = {
        "format": preset.FORMAT,
        "format_version": preset.FORMAT_VERSION,
        "backbone": backbone.config.to_dict(),
        "task": None if task is None else dict(task),
        "metadata": {**origin, **metadata, "parameters": parameters},
    }
    write_json(folder / preset.CONFIG_FILE, values)
    return {**values, "backbone": backbone.config.flat}


def _replaced(
    before: Path, backbone: keras.Model | None, tokenizer: Any, task: Mapping[str, Any] | None
) -> tuple[str, ...]:
    """Return the patterns of the files of the previous preset that are replaced."""
    if backbone is None:
        return publishing.TOKENIZER_PARTS
    if tokenizer is None and task is None and not (before / preset.CONFIG_FILE).is_file():
        return tuple(part for part in publishing.PARTS if part not in publishing.TOKENIZER_PARTS)
    return publishing.PARTS


def _named_variables(
    backbone: keras.Model, head_variables: Mapping[str, keras.Variable] | None
) -> dict[str, keras.Variable]:
    refuse_own_blocks(backbone)
    found = plain_variables(backbone)
    further = sorted(set(found) - set(variable_shapes(backbone.config)))
    if further:
        raise ValueError(
            "The model has variables that its config does not define, so it could not be "
            f"loaded again: {', '.join(further[:3])} and so on, {len(further)} in all. They come "
            "from `enable_lora`. Call the task's `merge_lora` first, or save the adapters with "
            "`save_adapter`."
        )
    backbone_part = {BACKBONE_PREFIX + k: v for k, v in found.items()}
    return backbone_part | {HEAD_PREFIX + k: v for k, v in (head_variables or {}).items()}


def refuse_own_blocks(backbone: keras.Model) -> None:
    """Raise ValueError if the model's config cannot rebuild it."""
    stems = [type(stem) for stem, _ in backbone.sides.values()]
    own = next((kind for kind in stems if kind not in (TokenStem, *STEMS.values())), None)
    if own is not None or not stems:
        raise ValueError(
            f"A preset is values only, and {(own or type(backbone)).__name__} is a class of your "
            'own. Save the model as Keras does, with `save("model.keras")`.'
        )


# What YAML reads as a truth value, such as the code of Norwegian, or as nothing.
_NO_TEXTS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")


def _yaml(value: Any) -> str:
    """Format a value for the YAML header of a card, on one line: JSON strings are valid YAML."""
    text = str(value)
    plain = re.fullmatch(r"[A-Za-z][\w.+-]*", text) and text.lower() not in _NO_TEXTS
    return text if plain else json.dumps(text)


def preset_card(
    name: str, values: dict[str, Any], has_tokenizer: bool = True, source: str | None = None
) -> str:
    """Return the card of a preset: the hub's header, a description, a table, and its use.

    `values` is the content of `config.json`, but with the flat config of the backbone. `source` is
    the argument of `from_preset`, by default the name.
    """
    backbone, task, metadata = values["backbone"], values["task"], values["metadata"]
    header = {"library_name": "keras_transformer"}
    if "license" in metadata:
        header["license"] = _yaml(metadata["license"])
    if metadata.get("languages"):
        header["language"] = f"[{', '.join(map(_yaml, metadata['languages']))}]"
    lines = "\n".join(f"{key}: {value}" for key, value in header.items())
    about = metadata.get("description") or f"An {KINDS[backbone['kind']]} transformer."
    if "source" in metadata:
        about += f" Made from {metadata['source']}."
    rows = model_rows(backbone, task, metadata)
    if "data" in metadata:
        rows["trained on"] = metadata["data"]
    rows |= metadata.get("scores") or {}
    cells = ((label, as_text(value).replace("|", "\\|")) for label, value in rows.items())
    about = printable(str(about))
    table = "\n".join(f"| {label} | {cell} |" for label, cell in cells)
    loader = task["name"] if task else "Backbone"
    source = source or name
    load = f'model = keras_transformer.{loader}.from_preset("{source}")'
    if has_tokenizer and not task:
        load += f'\ntokenizer = keras_transformer.Tokenizer.from_preset("{source}")'
    return f"""---
{lines}
---
{publishing.CARD_MARK}

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
