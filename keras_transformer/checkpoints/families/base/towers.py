"""Parts that dual encoders share: two configs, and the names of two stacks of blocks.

Each of the two towers is also a family of its own, as in Transformers.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ACTIVATIONS,
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import nested
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, attention, layers
from keras_transformer.config import OPTIONS, TransformerConfig

# The fields of a tower, its constant values, and its conversions.
Tower = tuple[Mapping[str, ConfigField], Mapping[str, Any], tuple[Conversion, ...]]

_CONSTANTS = {
    "position": "learned",
    "normalization": "layer_norm",
    "normalize_first": True,
    "tie_embeddings": True,
}


def towers(images: Tower, texts: Tower, name: str = "vision") -> Conversion:
    """Return the conversion of two nested configs; the text tower's fields are our flat values.

    The config of the other tower, of images or of sound, is published as `name` with `_config`.
    """
    both = {"encoder": (name, images), "decoder": ("text", texts)}

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


def read_images(values: Values, tower: Tower) -> TransformerConfig:
    """Return the config of the image tower alone, from a published `vision_config`."""
    return TransformerConfig(
        kind="encoder", vocabulary_size=0, **_CONSTANTS | _read(values, "vision", tower)
    )


def write_images(side: TransformerConfig, tower: Tower) -> dict[str, Any]:
    """Return the published `vision_config`. Raises ValueError if the tower cannot express it."""
    theirs = _written(side, tower)
    back = read_images({"vision_config": theirs}, tower)
    for name, known in OPTIONS.items():
        own, value = getattr(side, name), getattr(back, name)
        counts = known["of"] in ("side", "layer") and name not in _FREE
        if counts and own != value:
            raise ValueError(f"Its image tower cannot express {name}={own!r}, only {value!r}.")
    return theirs


# Values that need not match: the family determines the final norm, the others change no output.
_FREE = ("final_normalization", "initializer_range", "max_sequence_length")


def tower_family(model_type: str, architecture: str, tower: Tower, **values: Any) -> Family:
    """Return a tower as a family of its own, whose values are a top-level config."""
    fields, constants, conversions = tower
    usual = fields["hidden_act"].default  # one of several names of an activation
    return Family(
        model_type=model_type,
        architecture=architecture,
        fields=fields,
        constants={**_CONSTANTS, **constants},
        conversions=conversions,
        activations={usual: ACTIVATIONS[usual], **ACTIVATIONS},
        names=Names(),
        **values,
    )


def tower_weights(lines: Iterable[WeightLine], side: str) -> tuple[WeightLine, ...]:
    """Return the lines of one of the two towers; token lines belong to the text tower.

    Since release 5 Transformers leaves out the name if there is only one tower.
    """
    name, own = "vision_model.", ("encoder/",)
    if side == "decoder":
        name, own = "text_model.", ("decoder/", "token_embedding/")
    return tuple(
        dataclasses.replace(line, also=(line.theirs.removeprefix(name),))
        for line in lines
        if line.ours.startswith(own)
    )


def or_classifier(images: Family, name: str, *both: Conversion) -> Conversion:
    """Return conversions of `both` towers, also for the class `name` with only the image tower."""

    def read(values: Values) -> dict[str, Any]:
        named = values.get("architectures")
        if isinstance(named, list) and named[:1] == [name]:
            return images.config(nested(values, "vision_config")).flat
        return {ours: value for each in both for ours, value in each.read(values).items()}

    def write(config: TransformerConfig) -> dict[str, Any]:
        if config.kind == "dual":
            return {theirs: value for each in both for theirs, value in each.write(config).items()}
        vision = images.published_config(config)
        vision = {theirs: value for theirs, value in vision.items() if theirs != "architectures"}
        return {"architectures": [name], "vision_config": vision}

    return Conversion(read, write)


def classifier(name: str) -> dict[str, PublishedHead]:
    """Return the head of the class `name`, a layer on the mean of the patch states."""
    lines = layers({"output": "classifier"})
    return {
        "ImageClassifier": PublishedHead(
            architectures=(name,), weights=lines, values={"pooling": "mean"}
        )
    }


def read_depth(values: Values, default: int, num_layers: int) -> int:
    """Return the number of image layers up to that of `vision_feature_layer`.

    Args:
        values: a published config.
        default: int, the layer if the config does not say it.
        num_layers: int, number of layers of the image tower.

    Raises:
        ValueError: if the tower has no such layer, or several are named.
    """
    layer = number(values, "vision_feature_layer", default)
    depth = layer if layer >= 0 else num_layers + 1 + layer
    if not 1 <= depth <= num_layers:
        raise ValueError(
            f"vision_feature_layer={layer} is not one of the {num_layers} image layers."
        )
    return depth


def with_encoder(
    encoder: TransformerConfig, decoder: TransformerConfig, **values: Any
) -> dict[str, Any]:
    """Combine the config values of two sides into the values of a `"seq2seq"` model."""
    flat, own = decoder.stated(), {}
    stated = encoder.stated()
    for name, known in OPTIONS.items():
        value = getattr(encoder, name)
        if known["of"] not in ("side", "layer") and name != "layer_pattern":
            continue
        if (name in flat and flat[name] != value) or (name not in flat and name in stated):
            own[name] = stated.get(name, value)
    return {**flat, "kind": "seq2seq", "encoder": own, **values}


def of_images(lines: Iterable[WeightLine], name: str, *also: str) -> tuple[WeightLine, ...]:
    """Return the lines of an image tower called `name`, or `also`, instead of `"vision_model."`."""
    return tuple(
        dataclasses.replace(
            line,
            theirs=line.theirs.replace("vision_model.", name),
            also=tuple(line.theirs.replace("vision_model.", each) for each in also),
        )
        for line in lines
        if line.ours.startswith("encoder/")
    )


def tensors_of(lines: Iterable[WeightLine], name: str, *also: str) -> tuple[str, ...]:
    """Return the tensor names of the lines of `of_images`, with `*` for layer numbers."""
    found = (each for line in of_images(lines, name, *also) for each in line.names)
    return tuple(each.replace("{i}", "*") for each in found)


def _read(values: Values, name: str, tower: Tower) -> dict[str, Any]:
    given = nested(values, f"{name}_config")
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
            # An activation may have several names, which round differently: write the one that the
            # model was trained with.
            usual = ACTIVATIONS[field.default] == value
            value = field.default if usual else names.get(value, value)
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
# Lines that CLIP and SigLIP share, for both towers.
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
