"""Mistral3: Mistral AI 2025, https://mistral.ai/news/mistral-small-3-1.

Pixtral's image tower, whose states of squares of patches are merged to one of the same width,
projected by two layers, and put among the tokens of a Mistral or a Ministral 3.
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
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.families.base.towers import read_depth, with_encoder
from keras_transformer.checkpoints.families.decoders.llama import MISTRAL
from keras_transformer.checkpoints.families.decoders.ministral3 import MINISTRAL3
from keras_transformer.checkpoints.families.vision import pixtral
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers, output_matrix
from keras_transformer.config import TransformerConfig

# What a config without one of its two parts means.
_IMAGES = {"patch_size": 14}
_TEXT = {
    "head_dim": 128,
    "hidden_size": 5120,
    "intermediate_size": 32768,
    "max_position_embeddings": 131072,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e9,
    "sliding_window": None,
    "vocab_size": 131072,
}
_TEXTS = (MISTRAL, MINISTRAL3)


def _read(values: Values) -> dict[str, Any]:
    vision = nested(values, "vision_config") or _IMAGES
    kind = vision.get("model_type", pixtral.MODEL_TYPE)
    if kind != pixtral.MODEL_TYPE:
        raise ValueError(f"The image tower {kind!r} is not supported, only Pixtral's.")
    encoder = pixtral.read_tower(vision)
    activation = values.get("projector_hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(f"projector_hidden_act={activation!r} is not supported.")
    text = {"text_config": nested(values, "text_config") or _TEXT}
    return with_encoder(
        encoder.replace(num_layers=read_depth(values, -1, encoder.num_layers)),
        read_text(text, *_TEXTS),
        placeholder_id=number(values, "image_token_index", values.get("image_token_id", 10)),
        projector="merged_mlp",
        projector_activation=ACTIVATIONS[activation],
        projector_bias=values.get("multimodal_projector_bias", False),
        projector_pool=number(values, "spatial_merge_size", 2),
        tie_embeddings=flag(values, "tie_word_embeddings", True),
    )


def _write(config: TransformerConfig) -> dict[str, Any]:
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return {
        "vision_config": pixtral.write_tower(config),
        "text_config": write_text(config, *_TEXTS),
        "image_token_index": config.placeholder_id,
        "spatial_merge_size": config.projector_pool,
        "vision_feature_layer": -1,  # later layers are not read
        "projector_hidden_act": names[config.projector_activation],
        "multimodal_projector_bias": config.projector_bias,
        "tie_word_embeddings": config.tie_embeddings,
    }


MISTRAL3 = Family(
    model_type="mistral3",
    architecture="Mistral3Model",
    fields={},
    constants={"kind": "seq2seq"},
    conversions=(Conversion(_read, _write),),
    weights=(
        *pixtral.LINES,
        *layers(
            {
                "projector/merge": "patch_merger.merging_layer",
                "projector/mlp/intermediate": "linear_1",
                "projector/mlp/output": "linear_2",
            },
            theirs="multi_modal_projector.",
        ),
        # The norm is of the tower's kind, whatever the decoder's.
        WeightLine("projector/norm/scale", "multi_modal_projector.norm.weight"),
        *prefixed(MISTRAL.weights, "language_model.model."),
        output_matrix("language_model.lm_head.weight"),
    ),
    heads={
        "ImageToText": PublishedHead(
            architectures=("Mistral3ForConditionalGeneration",),
            values={"template": pixtral.TEMPLATE},
            options=(TEXT_END,),
        )
    },
    names=Names(ignored=pixtral.BEHIND),
)
