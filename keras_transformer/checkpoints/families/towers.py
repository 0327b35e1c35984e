"""What families of images and texts share: two configs, and the names of two stacks of blocks."""

from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.families.family import ACTIVATIONS, Conversion, Field, Values
from keras_transformer.checkpoints.weights import attention, layers
from keras_transformer.config import TransformerConfig

# The fields of a tower, the values that it always has, and what is neither of the two.
Tower = tuple[Mapping[str, Field], Mapping[str, Any], tuple[Conversion, ...]]

_CONSTANTS = {
    "position": "learned",
    "normalization": "layer_norm",
    "normalize_first": True,
    "tie_embeddings": True,
}


def towers(images: Tower, texts: Tower) -> Conversion:
    """The two configs within theirs, as sides of ours: the fields of texts are the flat values."""
    both = {"encoder": ("vision", images), "decoder": ("text", texts)}

    def read(values: Values) -> dict[str, Any]:
        encoder, decoder = (_read(values, *tower) for tower in both.values())
        flat = {field.ours: decoder.pop(field.ours) for field in texts[0].values()}
        own = {"encoder": {"vocabulary_size": 0, **encoder}, "decoder": decoder}
        return {**_CONSTANTS, **flat, **own}

    def write(config: TransformerConfig) -> dict[str, Any]:
        return {
            f"{name}_config": _written(config.side(side), tower)
            for side, (name, tower) in both.items()
        }

    return Conversion(read, write)


def _read(values: Values, name: str, tower: Tower) -> dict[str, Any]:
    given = values.get(f"{name}_config") or {}
    if not isinstance(given, dict):
        raise ValueError(f"{name}_config must be an object, received {given!r}.")
    fields, constants, conversions = tower
    found = dict(constants)
    for theirs, field in fields.items():
        value = given.get(theirs, field.default)
        if field.ours == "activation":
            if not isinstance(value, str) or value not in ACTIVATIONS:
                known = ", ".join(map(repr, ACTIVATIONS))
                raise ValueError(f"{theirs}={value!r} is not supported, only {known}.")
            value = ACTIVATIONS[value]
        found[field.ours] = value
    for conversion in conversions:
        found |= conversion.read(given)
    return found


def _written(side: TransformerConfig, tower: Tower) -> dict[str, Any]:
    theirs: dict[str, Any] = {}
    names = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    for name, field in tower[0].items():
        value = getattr(side, field.ours)
        if field.ours == "activation":
            value = names.get(value, value)
        if value is not None:
            theirs[name] = value
    for conversion in tower[2]:
        theirs |= conversion.write(side)
    return theirs


_LAYER = {
    **attention("self_attn.{}_proj", "q", "k", "v", "out"),
    "self_attention_norm": "layer_norm1",
    "feed_forward/intermediate": "mlp.fc1",
    "feed_forward/output": "mlp.fc2",
    "feed_forward_norm": "layer_norm2",
}
# The lines of both stacks: what CLIP and SigLIP have under the same names.
STACKS = (
    *layers(_LAYER, "encoder/layer_{i}/", "vision_model.encoder.layers.{i}."),
    *layers(_LAYER, "decoder/layer_{i}/", "text_model.encoder.layers.{i}."),
    *layers({"encoder/input_patches": "vision_model.embeddings.patch_embedding"}, convolution=True),
    *layers(
        {
            "encoder/position_embedding": "vision_model.embeddings.position_embedding",
            "encoder/final_norm": "vision_model.post_layernorm",
            "token_embedding": "text_model.embeddings.token_embedding",
            "decoder/position_embedding": "text_model.embeddings.position_embedding",
            "decoder/final_norm": "text_model.final_layer_norm",
        }
    ),
)
