"""Towers of images and texts in KerasHub's form: CLIP, MetaCLIP 2 and SigLIP.

Each tower is a model within the model, whose arguments are read as a published config. KerasHub's
CLIP has an epsilon of 1e-6, not 1e-5, in the norm behind its texts, which changes the last digits.
Its SigLIP has the usual epsilon behind its images, so that others are refused. A CLIP without
loaded weights takes all patches for the first one there, and is refused too. Facts are from
KerasHub 0.32, `models/clip/*.py`, `models/metaclip_2/*.py` and `models/siglip/*.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_transformer.checkpoints.families.base.family import Conversion, Family, Values
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.vision import clip, metaclip_2, siglip
from keras_transformer.checkpoints.keras_hub.family import (
    TASK_PREFIX,
    KerasHubFamily,
    Line,
    inner_arguments,
    inner_model,
    layers,
    make_family,
)
from keras_transformer.checkpoints.keras_hub.vision import encoder_blocks, read_stem, write_stem
from keras_transformer.checkpoints.weights.tables import Names, attention
from keras_transformer.config import TransformerConfig

_IMAGES = {
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
}
_TEXTS = {
    **_IMAGES,
    "embedding_dim": "hidden_size",
    "vocabulary_size": "vocab_size",
    "max_sequence_length": "max_position_embeddings",
}
_EPSILON = {"layer_norm_epsilon": "layer_norm_eps"}  # of SigLIP
_USUAL_EPSILON = 1e-6
_ACTIVATION = "intermediate_activation"
_ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu_approximate": "gelu_pytorch_tanh", "gelu": "gelu"}
_STEM = ("image_shape", "patch_size")
_FURTHER_OUTPUT = "intermediate_output_index"
_WIDTH = "projection_dim"
# CLIP takes the highest id for the end of a text, which published configs call 2, and MetaCLIP 2
# takes the id 2.
_END = {"eos_token_id": 2}
_ENCODERS = {"vision_encoder": "VisionEncoder", "text_encoder": "TextEncoder"}
_CONFIGS = {"vision_encoder": "vision_config", "text_encoder": "text_config"}


def _read_tower(own: Values, name: str, table: Mapping[str, str]) -> dict[str, Any]:
    """Return the published config for the arguments of the tower `name`."""
    theirs = {its: own[argument] for argument, its in table.items()} | _END
    activation = own[_ACTIVATION]
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise ValueError(
            f"{_ACTIVATION}={str(activation)[:200]!r} of {name} is not supported, only "
            f"{', '.join(map(repr, _ACTIVATIONS))}."
        )
    theirs["hidden_act"] = _ACTIVATIONS[activation]
    if own.get(_FURTHER_OUTPUT) is not None:
        raise ValueError(f"{_FURTHER_OUTPUT} of {name} is not supported, only None.")
    if name == "text_encoder":
        if own["embedding_dim"] != own["hidden_dim"]:
            raise ValueError(
                f"embedding_dim={str(own['embedding_dim'])[:200]} of {name} must be hidden_dim="
                f"{str(own['hidden_dim'])[:200]}."
            )
        return theirs
    stem = read_stem(own)
    height, width = stem["image_size"]
    if height != width or stem["patch_width"] is not None:
        raise ValueError(f"The image and the patches of {name} must be squares.")
    if theirs.get("layer_norm_eps", _USUAL_EPSILON) != _USUAL_EPSILON:
        raise ValueError(
            f"layer_norm_epsilon={str(theirs['layer_norm_eps'])[:200]} of {name} is not supported, "
            f"only {_USUAL_EPSILON}, which the norm behind its blocks always has."
        )
    return theirs | {each: stem[each] for each in ("image_size", "num_channels", "patch_size")}


def _write_tower(theirs: Values, name: str, table: Mapping[str, str], side: TransformerConfig):
    """Return the arguments of the tower `name` for its published config and our side."""
    own = {argument: theirs[its] for argument, its in table.items()}
    names = {its: activation for activation, its in _ACTIVATIONS.items()}
    if theirs["hidden_act"] not in names:
        raise ValueError(f"activation={side.activation!r} is unknown there.")
    own[_ACTIVATION] = names[theirs["hidden_act"]]
    if name == "text_encoder":
        return own
    stem = write_stem(side)
    return {**own, **stem, "patch_size": stem["patch_size"][0]}


def _towers(hub: str, published: Family, further: Mapping[str, str], width: bool) -> Conversion:
    """Return the conversion of both towers.

    Args:
        hub: the beginning of KerasHub's class names.
        published: the family of the published configs.
        further: arguments of both towers, with their names in published configs.
        width: whether the width of the vectors is an argument of the model, not of the texts.
    """
    (of_both,) = published.conversions
    tables = {
        "vision_encoder": {**_IMAGES, **further},
        "text_encoder": {**_TEXTS, **further, **({} if width else {_WIDTH: "projection_size"})},
    }
    optional = {_FURTHER_OUTPUT} if width else set()

    def read(values: Values) -> dict[str, Any]:
        theirs: dict[str, Any] = {_WIDTH: number(values, _WIDTH, None)} if width else {}
        for name, table in tables.items():
            needed = {*table, _ACTIVATION, *(_STEM if name == "vision_encoder" else ())}
            own = inner_arguments(values, name, hub + _ENCODERS[name], needed, optional)
            theirs[_CONFIGS[name]] = _read_tower(own, name, table)
        return of_both.read(theirs)

    def write(config: TransformerConfig) -> dict[str, Any]:
        theirs = of_both.write(config)
        own = {_WIDTH: theirs[_WIDTH]} if width else {}
        for (name, table), side in zip(tables.items(), config.sides, strict=True):
            tower = _write_tower(theirs[_CONFIGS[name]], name, table, side)
            own[name] = inner_model(hub + _ENCODERS[name], tower)
        return own

    return Conversion(read, write)


# Weights


def _clip_lines(name: str, normed: str) -> tuple[Line, ...]:
    """Return the lines of CLIP, whose norm behind the images is called `normed`."""
    images, texts = (f"layers/{name}_{tower}_encoder/layers/" for tower in ("vision", "text"))
    stem = f"{images}{name}_vision_embedding/"
    blocks = {"first": "dense_1", "second": "dense_2", "attending": "attention"}
    return (
        Line("encoder/input_class_token", f"{stem}vars/0"),
        *layers(
            {
                "encoder/input_patches": f"{stem}patch_embedding",
                "encoder/position_embedding": f"{stem}position_embedding",
                "encoder/embedding_norm": f"{images}layer_normalization",
                "encoder/final_norm": normed,
                "encoder/vector_projection": "layers/dense",
                "token_embedding": f"{texts}token_and_position_embedding/token_embedding",
                "decoder/position_embedding": (
                    f"{texts}token_and_position_embedding/position_embedding"
                ),
                "decoder/final_norm": f"{texts}layer_normalization",
                "decoder/vector_projection": "layers/dense_1",
            }
        ),
        *encoder_blocks(f"{images}{name}_encoder_layer{{i}}/", **blocks),
        *encoder_blocks(f"{texts}{name}_encoder_layer{{i}}/", **blocks, ours="decoder/layer_{i}/"),
        Line("similarity_scale", f"layers/{name}_head/vars/0"),
    )


_SIGLIP_IMAGES, _SIGLIP_TEXTS = (
    f"layers/sig_lip_{tower}_encoder/layers/" for tower in ("vision", "text")
)
_SIGLIP_STEM, _SIGLIP_EMBEDDING = (
    f"{_SIGLIP_IMAGES}sig_lip_vision_embedding/",
    f"{_SIGLIP_TEXTS}sig_lip_text_embedding/",
)
_SIGLIP_BLOCKS = {
    "first": "mlp/fc1",
    "second": "mlp/fc2",
    "attending": "self_attn",
    "norms": "layer_norm",
}
_POOLING = f"{_SIGLIP_IMAGES}sig_lip_multi_head_attention_pooling/"
_SIGLIP_LINES = (
    *layers(
        {
            "encoder/input_patches": f"{_SIGLIP_STEM}patch_embedding",
            "encoder/position_embedding": f"{_SIGLIP_STEM}position_embedding",
            "encoder/final_norm": f"{_SIGLIP_IMAGES}layer_normalization",
            "token_embedding": f"{_SIGLIP_EMBEDDING}token_embedding",
            "decoder/position_embedding": f"{_SIGLIP_EMBEDDING}position_embedding",
            "decoder/final_norm": f"{_SIGLIP_TEXTS}layer_normalization",
            "decoder/vector_projection": f"{_SIGLIP_TEXTS}dense",
        }
    ),
    *encoder_blocks(f"{_SIGLIP_IMAGES}sig_lip_encoder_layer{{i}}/", **_SIGLIP_BLOCKS),
    *encoder_blocks(
        f"{_SIGLIP_TEXTS}sig_lip_encoder_layer{{i}}/", **_SIGLIP_BLOCKS, ours="decoder/layer_{i}/"
    ),
    Line("encoder/vector/probe", f"{_POOLING}vars/0", row=2),
    *layers(
        {
            **attention("attention/{}_dense", "query", "key", "value", "output", ours="attention"),
            "norm": "layer_norm",
            "feed_forward/intermediate": "mlp/fc1",
            "feed_forward/output": "mlp/fc2",
        },
        "encoder/vector/",
        _POOLING,
    ),
    Line("similarity_scale", "layers/sig_lip_head/vars/0"),
    Line("similarity_bias", "layers/sig_lip_head/vars/1"),
)


def _counted(*names: str) -> Callable[[TransformerConfig], dict[str, np.ndarray]]:
    """Return a function that counts the positions of the images, and of the texts if named."""

    def computed(config: TransformerConfig) -> dict[str, np.ndarray]:
        images, texts = config.sides
        lengths = (images.stem.num_states, texts.max_sequence_length)
        both = zip(names, lengths, strict=False)
        return {name: np.arange(length, dtype="int32")[None] for name, length in both}

    return computed


def _make(hub: str, published: Family, lines: tuple[Line, ...], further=None, **values):
    width = further is None
    return make_family(
        published.model_type,
        hub,
        {},
        published.constants,
        lines,
        {},
        conversions=(_towers(hub, published, further or {}, width),),
        more=(*_ENCODERS, *([_WIDTH] if width else [])),
        names=Names(ignored=(f"{TASK_PREFIX}*",)),
        **values,
    )


TOWERS: tuple[KerasHubFamily, ...] = (
    _make(
        "CLIP",
        clip.CLIP,
        _clip_lines("clip", "layers/clip_vision_encoder/layers/layer_normalization_1"),
        computed=_counted("layers/clip_vision_encoder/layers/clip_vision_embedding/vars/1"),
    ),
    _make(
        "MetaCLIP2",
        metaclip_2.METACLIP_2,
        _clip_lines("meta_clip2", "layers/layer_normalization"),
    ),
    _make(
        "SigLIP",
        siglip.SIGLIP,
        _SIGLIP_LINES,
        _EPSILON,
        computed=_counted(f"{_SIGLIP_STEM}vars/0", f"{_SIGLIP_EMBEDDING}vars/0"),
    ),
)
