"""Folders with a model of images and texts, of which the text model alone is read."""

import os
from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.weights.safetensors_io import Checkpoint

# The `model_type` of such folders -> that of the text model, if its config names none.
TEXT_MODELS = {"mistral3": "mistral"}
_PREFIX = "language_model."


def text_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the text model as a language model of its own.

    Raises ValueError if `text_config` is not an object, or not of a family that writes text.
    """
    from keras_transformer.checkpoints.families import get_family

    text = values.get("text_config") or {}
    if not isinstance(text, Mapping):
        raise ValueError(f"text_config must be an object, received {text!r}.")
    text = {"model_type": TEXT_MODELS[values["model_type"]], **text}
    # The outer config says whether the embedding is tied; missing values have no say.
    outer = ("tie_word_embeddings", "eos_token_id", "bos_token_id", "pad_token_id")
    text |= {name: values[name] for name in outer if values.get(name) is not None}
    family = get_family(text)
    if "CausalLM" not in family.heads:
        raise ValueError(f"text_config has model_type {family.model_type!r}, not a language model.")
    return text | {"architectures": [family.classes("CausalLM")[0]]}


class TextCheckpoint(Checkpoint):
    """Weights of the text model in a folder, by their names in a model of its own."""

    def __init__(self, folder: str | os.PathLike):
        super().__init__(folder)
        self._tensors = {
            name.removeprefix(_PREFIX): info
            for name, info in self._tensors.items()
            if name.startswith(_PREFIX)
        }
