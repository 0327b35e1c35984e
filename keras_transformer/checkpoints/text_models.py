"""Folders with a model of images and texts, of which the text model alone is read."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from keras_transformer.checkpoints.weights.safetensors_io import Checkpoint, Tensors

# The `model_type` of such folders -> that of the text model, if its config names none.
TEXT_MODELS = {
    "mistral3": "mistral",
    "llama4": "llama4_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
# The `model_type` of folders whose texts alone are a family -> the family with images.
WITH_IMAGES = {"t5gemma2": "t5gemma2_images"}
# Where its tensors are; the output matrix may be outside.
_PREFIX, _INNER, _OUTPUT = "language_model.", "model.language_model.", "lm_head."


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
    outer = (
        "tie_word_embeddings", "eos_token_id", "bos_token_id", "pad_token_id",
        "quantization_config",
    )  # fmt: skip
    text |= {name: values[name] for name in outer if values.get(name) is not None}
    family = get_family(text)
    if "CausalLM" not in family.heads:
        raise ValueError(f"text_config has model_type {family.model_type!r}, not a language model.")
    return text | {"architectures": [family.classes("CausalLM")[0]]}


class TextCheckpoint(Checkpoint):
    """Weights of the text model in a folder, by their names in a model of its own."""

    def __init__(
        self, folder: str | os.PathLike, gather: Callable[[Tensors], Tensors] | None = None
    ):
        super().__init__(folder, gather)
        named = ((_own_name(name), info) for name, info in self._tensors.items())
        self._tensors = {name: info for name, info in named if name is not None}


def _own_name(name: str) -> str | None:
    """Return the name of a tensor in a text model of its own; None if it belongs to no text."""
    if name.startswith(_INNER):
        return f"model.{name.removeprefix(_INNER)}"
    if name.startswith(_PREFIX):
        return name.removeprefix(_PREFIX)
    return name if name.startswith(_OUTPUT) else None
