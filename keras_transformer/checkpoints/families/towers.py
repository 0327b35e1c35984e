"""What families of images and texts share: two configs, and the names of two stacks of blocks.

Each of the two towers is a family of its own too, as Transformers keeps it.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from keras_transformer.checkpoints.families.family import (
    ACTIVATIONS,
    Conversion,
    Family,
    Field,
    Head,
    Values,
)
from keras_transformer.checkpoints.families.placed import nested
from keras_transformer.checkpoints.weights import Names, Weight, attention, layers
from keras_transformer.config import OPTIONS, TransformerConfig

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


def read_images(values: Values, tower: Tower) -> TransformerConfig:
    """The config of a tower of images alone, of their `vision_config`."""
    return TransformerConfig(
        kind="encoder", vocabulary_size=0, **_CONSTANTS | _read(values, "vision", tower)
    )


def write_images(side: TransformerConfig, tower: Tower) -> dict[str, Any]:
    """Their `vision_config`. ValueError for an encoder that no such tower computes."""
    theirs = _written(side, tower)
    back = read_images({"vision_config": theirs}, tower)
    for name, known in OPTIONS.items():
        own, value = getattr(side, name), getattr(back, name)
        counts = known["of"] in ("side", "layer") and name not in _FREE
        if counts and own != value:
            raise ValueError(f"Its tower of images cannot express {name}={own!r}, only {value!r}.")
    return theirs


# Whether there is a norm behind the blocks, a family says. The others change no output.
_FREE = ("final_normalization", "initializer_range", "max_sequence_length")


def alone(model_type: str, architecture: str, tower: Tower, **values: Any) -> Family:
    """A tower as a family of its own, whose values are those of a config by themselves."""
    fields, constants, conversions = tower
    usual = fields["hidden_act"].default  # of several names for one
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


def of_side(lines: Iterable[Weight], side: str) -> tuple[Weight, ...]:
    """The lines of one of the two towers, those of tokens with that of texts.

    Since release 5 Transformers leaves out its name where there is nothing beside it.
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
    """The conversions of `both` towers, and of the class `name`, which has that of images alone."""

    def read(values: Values) -> dict[str, Any]:
        named = values.get("architectures")
        if isinstance(named, list) and named[:1] == [name]:
            return images.config(nested(values, "vision_config")).to_dict()
        return {ours: value for each in both for ours, value in each.read(values).items()}

    def write(config: TransformerConfig) -> dict[str, Any]:
        if config.kind == "dual":
            return {theirs: value for each in both for theirs, value in each.write(config).items()}
        vision = images.published_config(config)
        vision = {theirs: value for theirs, value in vision.items() if theirs != "architectures"}
        return {"architectures": [name], "vision_config": vision}

    return Conversion(read, write)


def classifier(name: str) -> dict[str, Head]:
    """The head of the class `name`, a layer on the mean of the states of patches."""
    lines = layers({"output": "classifier"})
    return {
        "ImageClassifier": Head(architectures=(name,), weights=lines, values={"pooling": "mean"})
    }


def with_encoder(
    encoder: TransformerConfig, decoder: TransformerConfig, **values: Any
) -> dict[str, Any]:
    """The values of a `"seq2seq"` of two flat configs, which are those of the decoder."""
    flat, own = decoder.stated(), {}
    stated = encoder.stated()
    for name, known in OPTIONS.items():
        value = getattr(encoder, name)
        if known["of"] not in ("side", "layer") and name != "layer_pattern":
            continue
        if (name in flat and flat[name] != value) or (name not in flat and name in stated):
            own[name] = stated.get(name, value)
    return {**flat, "kind": "seq2seq", "encoder": own, **values}


def of_images(lines: Iterable[Weight], name: str, *also: str) -> tuple[Weight, ...]:
    """The lines of a tower of images where it is `name` and not `"vision_model."`, or `also`."""
    return tuple(
        dataclasses.replace(
            line,
            theirs=line.theirs.replace("vision_model.", name),
            also=tuple(line.theirs.replace("vision_model.", each) for each in also),
        )
        for line in lines
        if line.ours.startswith("encoder/")
    )


def tensors_of(lines: Iterable[Weight], name: str, *also: str) -> tuple[str, ...]:
    """Names of the tensors of such lines, a pattern for the layers of all numbers."""
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
            # Of several names for one the usual, whose rounding the model was trained with.
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
