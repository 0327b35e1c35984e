"""LLaVA: Liu et al. 2023, https://arxiv.org/abs/2310.03744.

LLaVA-NeXT: Liu et al. 2024, https://llava-vl.github.io/blog/2024-01-30-llava-next/.

LLaVA-OneVision: Li et al. 2024, https://arxiv.org/abs/2408.03326.

An image tower, CLIP's or SigLIP's, whose states of a layer before the last are projected by two
layers and merged into the tokens of a Llama, Mistral or Qwen 2. LLaVA-NeXT and LLaVA-OneVision read
tiles of images, and place a trained state behind each row of patches.

Pixtral 12B is a LLaVA whose tower is Pixtral's, for images of any size.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ACTIVATIONS,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import (
    TEXT_END,
    nested,
    prefixed,
    read_text,
    write_text,
)
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.families.base.towers import (
    of_images,
    read_depth,
    read_images,
    tensors_of,
    with_encoder,
    write_images,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA, MISTRAL, QWEN2
from keras_transformer.checkpoints.families.vision import clip, pixtral, siglip
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers, output_matrix
from keras_transformer.config import TransformerConfig
from keras_transformer.config.stems import PatchSequenceStemConfig

_TOWERS = {"clip_vision_model": clip.IMAGES, "siglip_vision_model": siglip.IMAGES}
_DEFAULTS = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
_SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 26,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
}


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Values that differ between the families.

    Args:
        model_type, name: as in published configs and classes.
        image_id: int, the default of `image_token_index`.
        layer, strategy: the defaults of `vision_feature_layer` and of
            `vision_feature_select_strategy`.
        tower, sizes: the default image tower and its values.
        texts: the families of its text models, the default first.
        template: str, the task's.
        tiles: dict of the values of its published config that concern tiles, or None without tiles.
    """

    model_type: str
    name: str
    image_id: int
    layer: int
    strategy: str
    tower: str
    sizes: dict[str, Any]
    texts: tuple[Family, ...]
    template: str
    tiles: dict[str, Any] | None = None


def _read(kind: _Kind, values: Values) -> dict[str, Any]:
    vision = nested(values, "vision_config")
    tower, known = vision.get("model_type", kind.tower), [*_TOWERS]
    known += [pixtral.MODEL_TYPE] * (kind.tiles is None)
    if tower not in known:
        known = ", ".join(map(repr, known))
        raise ValueError(f"The image tower {tower!r} is not supported, only {known}.")
    for name, value in (kind.tiles or {}).items():
        if values.get(name, value) != value:
            raise ValueError(f"{name}={values[name]!r} is not supported, only {value!r}.")
    if tower == pixtral.MODEL_TYPE:
        images = pixtral.read_tower(vision)
    else:
        images = read_images({"vision_config": vision or kind.sizes}, _TOWERS[tower])
    depth = read_depth(values, kind.layer, images.num_layers)
    strategy = values.get("vision_feature_select_strategy", kind.strategy)
    strategies = ("full",) if tower == pixtral.MODEL_TYPE else ("default", "full")
    if strategy not in strategies:
        raise ValueError(
            f"vision_feature_select_strategy={strategy!r} is not supported, only "
            f"{' and '.join(map(repr, strategies))}."
        )
    activation = values.get("projector_hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(f"projector_hidden_act={activation!r} is not supported.")
    text = read_text(values, *kind.texts)
    return with_encoder(
        images.replace(num_layers=depth, final_normalization=False),
        text,
        placeholder_id=number(
            values, "image_token_index", values.get("image_token_id", kind.image_id)
        ),
        place_class_token=strategy == "full",
        projector="mlp",
        projector_activation=ACTIVATIONS[activation],
        projector_bias=values.get("multimodal_projector_bias", True),
        projector_separator=kind.tiles is not None,
        tie_embeddings=flag(values, "tie_word_embeddings") or text.tie_embeddings,
    )


def _write_images(kind: _Kind, config: TransformerConfig) -> dict[str, Any]:
    """Return the published values of the image tower."""
    encoder = config.side("encoder")
    if kind.tiles is None and isinstance(encoder.stem, PatchSequenceStemConfig):
        return {"vision_config": pixtral.write_tower(config)}
    name = "clip_vision_model" if encoder.embedding_normalization else "siglip_vision_model"
    head = {} if encoder.embedding_normalization else {"vision_use_head": False}
    return {
        "vision_config": {"model_type": name, **head, **write_images(encoder, _TOWERS[name])},
        "image_seq_length": config.num_placeholders,
    }


def _write(kind: _Kind, config: TransformerConfig) -> dict[str, Any]:
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return {
        **_write_images(kind, config),
        "text_config": write_text(config, *kind.texts),
        "image_token_index": config.placeholder_id,
        "vision_feature_layer": -1,  # later layers are not read
        "vision_feature_select_strategy": "full" if config.place_class_token else "default",
        "projector_hidden_act": names[config.projector_activation],
        "multimodal_projector_bias": config.projector_bias,
        "tie_word_embeddings": config.tie_embeddings,
        **(kind.tiles or {}),
    }


_TOWER = ("vision_tower.", "vision_tower.vision_model.")
_BEHIND = [line for line in clip.IMAGE_WEIGHTS if "{i}" in line.ours or "/final_norm/" in line.ours]


def _of_norm(lines: Iterable[WeightLine], kind: str) -> tuple[WeightLine, ...]:
    """Return the lines of a tower that has this kind of norm."""
    when = ("normalization", kind)
    return tuple(
        dataclasses.replace(line, when=when) for line in lines if line.when in (None, when)
    )


def _tower_lines(kind: _Kind) -> tuple[WeightLine, ...]:
    """Return the lines of the image tower, which the kind of its norms tells apart."""
    lines = of_images(clip.IMAGE_WEIGHTS, *_TOWER)
    if kind.tiles is not None:
        return lines
    return (*_of_norm(lines, "layer_norm"), *_of_norm(pixtral.LINES, "rms_norm"))


def _behind(kind: _Kind) -> tuple[str, ...]:
    return pixtral.BEHIND if kind.tiles is None else ()


def _read_template(values: Values) -> dict[str, Any]:
    of_pixtral = nested(values, "vision_config").get("model_type") == pixtral.MODEL_TYPE
    return {"template": pixtral.TEMPLATE} if of_pixtral else {}


_TEMPLATE = Conversion(_read_template, lambda task: {})


def _family(kind: _Kind) -> Family:
    separator = [WeightLine("projector/separator", "image_newline")] if kind.tiles else []
    return Family(
        model_type=kind.model_type,
        architecture=f"{kind.name}Model",
        fields={},
        constants={"kind": "seq2seq"},
        conversions=(
            Conversion(lambda values: _read(kind, values), lambda config: _write(kind, config)),
        ),
        weights=(
            *_tower_lines(kind),
            *layers(
                {"projector/mlp/intermediate": "linear_1", "projector/mlp/output": "linear_2"},
                theirs="multi_modal_projector.",
            ),
            *separator,
            *prefixed(LLAMA.weights, "language_model.model."),
            output_matrix("language_model.lm_head.weight"),
        ),
        heads={
            "ImageToText": PublishedHead(
                architectures=(f"{kind.name}ForConditionalGeneration",),
                values={"template": kind.template},
                options=(TEXT_END, _TEMPLATE),
            )
        },
        # Tensors after the image layer that is read.
        names=Names(ignored=tensors_of((*_BEHIND, *siglip.HEAD), *_TOWER) + _behind(kind)),
    )


LLAVA = _family(
    _Kind(
        model_type="llava",
        name="Llava",
        image_id=32000,
        layer=-2,
        strategy="default",
        tower="clip_vision_model",
        sizes=_DEFAULTS,
        texts=(LLAMA, MISTRAL, QWEN2),
        template="USER: <image>\n{prompt} ASSISTANT:",
    )
)
LLAVA_NEXT = _family(
    _Kind(
        model_type="llava_next",
        name="LlavaNext",
        image_id=32000,
        layer=-2,
        strategy="default",
        tower="clip_vision_model",
        sizes=_DEFAULTS,
        texts=(LLAMA, MISTRAL, QWEN2),
        template="[INST] <image>\n{prompt} [/INST]",
        tiles={"use_image_newline_parameter": True},
    )
)
LLAVA_ONEVISION = _family(
    _Kind(
        model_type="llava_onevision",
        name="LlavaOnevision",
        image_id=151646,
        layer=-1,
        strategy="full",
        tower="siglip_vision_model",
        sizes=_SIGLIP,
        texts=(QWEN2, LLAMA, MISTRAL),
        template="<|im_start|>user <image>\n{prompt}<|im_end|><|im_start|>assistant\n",
        tiles={"vision_aspect_ratio": "anyres_max_9"},
    )
)
