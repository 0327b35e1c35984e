"""LLaVA: Liu et al. 2023, https://arxiv.org/abs/2310.03744.

An image tower, CLIP's or SigLIP's, whose states of a layer before the last are projected by two
layers and merged into the tokens of a Llama, Mistral or Qwen 2.
"""

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
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.base.towers import (
    of_images,
    read_images,
    tensors_of,
    with_encoder,
    write_images,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA, MISTRAL, QWEN2
from keras_transformer.checkpoints.families.vision import clip, siglip
from keras_transformer.checkpoints.weights.tables import Names, layers, output_matrix
from keras_transformer.config import TransformerConfig

_TOWERS = {"clip_vision_model": clip.IMAGES, "siglip_vision_model": siglip.IMAGES}
_DEFAULTS = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}


def _read(values: Values) -> dict[str, Any]:
    vision = nested(values, "vision_config")
    kind = vision.get("model_type", "clip_vision_model")
    if kind not in _TOWERS:
        known = ", ".join(map(repr, _TOWERS))
        raise ValueError(f"The image tower {kind!r} is not supported, only {known}.")
    images = read_images({"vision_config": vision or _DEFAULTS}, _TOWERS[kind])
    layer = number(values, "vision_feature_layer", -2)
    depth = layer if layer >= 0 else images.num_layers + 1 + layer
    if not 1 <= depth <= images.num_layers:
        raise ValueError(
            f"vision_feature_layer={layer} is not one of the {images.num_layers} image layers."
        )
    strategy = values.get("vision_feature_select_strategy", "default")
    if strategy not in ("default", "full"):
        raise ValueError(
            f"vision_feature_select_strategy={strategy!r} is not supported, only 'default' and "
            "'full'."
        )
    activation = values.get("projector_hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise ValueError(f"projector_hidden_act={activation!r} is not supported.")
    text = read_text(values, LLAMA, MISTRAL, QWEN2)
    return with_encoder(
        images.replace(num_layers=depth, final_normalization=False),
        text,
        placeholder_id=number(values, "image_token_index", values.get("image_token_id", 32000)),
        place_class_token=strategy == "full",
        projector="mlp",
        projector_activation=ACTIVATIONS[activation],
        projector_bias=values.get("multimodal_projector_bias", True),
        tie_embeddings=bool(values.get("tie_word_embeddings")) or text.tie_embeddings,
    )


def _write(config: TransformerConfig) -> dict[str, Any]:
    encoder = config.side("encoder")
    name = "clip_vision_model" if encoder.embedding_normalization else "siglip_vision_model"
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return {
        "vision_config": {"model_type": name, **write_images(encoder, _TOWERS[name])},
        "text_config": write_text(config, LLAMA, MISTRAL, QWEN2),
        "image_token_index": config.placeholder_id,
        "image_seq_length": config.num_placeholders,
        "vision_feature_layer": -1,  # later layers are not read
        "vision_feature_select_strategy": "full" if config.place_class_token else "default",
        "projector_hidden_act": names[config.projector_activation],
        "multimodal_projector_bias": config.projector_bias,
        "tie_word_embeddings": config.tie_embeddings,
    }


_TOWER = ("vision_tower.", "vision_tower.vision_model.")
_BEHIND = [line for line in clip.IMAGE_WEIGHTS if "{i}" in line.ours or "/final_norm/" in line.ours]

LLAVA = Family(
    model_type="llava",
    architecture="LlavaModel",
    fields={},
    constants={"kind": "seq2seq"},
    conversions=(Conversion(_read, _write),),
    weights=(
        *of_images(clip.IMAGE_WEIGHTS, *_TOWER),
        *layers(
            {"projector/mlp/intermediate": "linear_1", "projector/mlp/output": "linear_2"},
            theirs="multi_modal_projector.",
        ),
        *prefixed(LLAMA.weights, "language_model.model."),
        output_matrix("language_model.lm_head.weight"),
    ),
    heads={
        "ImageToText": PublishedHead(
            architectures=("LlavaForConditionalGeneration",),
            values={"template": "USER: <image>\n{prompt} ASSISTANT:"},
            options=(TEXT_END,),
        )
    },
    # Tensors after the image layer that is read.
    names=Names(ignored=tensors_of((*_BEHIND, *siglip.HEAD), *_TOWER)),
)
