"""Gemma3: Kamath et al. 2025, https://arxiv.org/abs/2503.19786.

With images: SigLIP's image tower, whose states are averaged over squares of patches, normalized,
projected by one layer, and put among the tokens of a Gemma 3. States of an image see each other.
"""

import math
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
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
    read_images,
    tensors_of,
    with_encoder,
    write_images,
)
from keras_transformer.checkpoints.families.decoders.gemma import GEMMA3, GEMMA3_LINES
from keras_transformer.checkpoints.families.vision import siglip
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    layers,
    output_matrix,
)
from keras_transformer.config import TransformerConfig

# The tower of the published models: a config without one means another, with too few patches.
_IMAGES = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 896,
    "patch_size": 14,
}


def read_tower(values: Values) -> tuple[TransformerConfig, int]:
    """Return the image tower of a published config, and the side of the squares of its patches."""
    vision = nested(values, "vision_config") or _IMAGES
    kind = vision.get("model_type", "siglip_vision_model")
    if kind != "siglip_vision_model":
        raise ValueError(f"The image tower {kind!r} is not supported, only SigLIP's.")
    encoder = read_images({"vision_config": vision}, siglip.IMAGES)
    tokens, patches = number(values, "mm_tokens_per_image", 256), encoder.stem.num_states
    pool = math.isqrt(patches // max(tokens, 1))
    if pool < 1 or pool**2 * tokens != patches:
        raise ValueError(
            f"mm_tokens_per_image={tokens} must be the number of squares that the {patches} "
            "patches of an image form."
        )
    return encoder, pool


def _read(values: Values) -> dict[str, Any]:
    encoder, pool = read_tower(values)
    return with_encoder(
        encoder,
        read_text(values, GEMMA3),
        placeholder_id=number(values, "image_token_index", values.get("image_token_id", 262144)),
        placeholder_visibility="states",
        projector="pooled",
        projector_pool=pool,
        projector_bias=False,
        tie_embeddings=flag(values, "tie_word_embeddings", True),
    )


def write_tower(config: TransformerConfig) -> dict[str, Any]:
    """Return the published values of the image tower."""
    vision = write_images(config.side(config.placed_side), siglip.IMAGES)
    return {
        "vision_config": {**vision, "model_type": "siglip_vision_model", "vision_use_head": False},
        "mm_tokens_per_image": config.num_placeholders,
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    return {
        **write_tower(config),
        "text_config": write_text(config, GEMMA3),
        "image_token_index": config.placeholder_id,
        "tie_word_embeddings": config.tie_embeddings,
    }


_TOWER = ("vision_tower.", "vision_tower.vision_model.")
_PROJECTOR = "multi_modal_projector."

GEMMA3_VISION = Family(
    model_type="gemma3",
    architecture="Gemma3Model",
    fields={},
    constants={"kind": "seq2seq"},
    conversions=(Conversion(_read, _write),),
    weights=(
        *of_images(siglip.STACKS, *_TOWER),
        WeightLine("projector/output/kernel", f"{_PROJECTOR}mm_input_projection_weight"),
        *layers({"projector/norm": "mm_soft_emb_norm"}, theirs=_PROJECTOR),
        *prefixed(GEMMA3_LINES, "language_model.model."),
        output_matrix("language_model.lm_head.weight"),
    ),
    heads={
        "ImageToText": PublishedHead(
            architectures=("Gemma3ForConditionalGeneration",),
            values={
                "template": "<start_of_turn>user\n\n\n<start_of_image><image_soft_token>"
                "<end_of_image>\n\n{prompt}<end_of_turn>\n<start_of_turn>model\n",
                "image_token": "<start_of_image>",
                "image_text": "\n\n<start_of_image>{image}<end_of_image>\n\n",
            },
            options=(TEXT_END,),
        )
    },
    names=Names(ignored=tensors_of(siglip.HEAD, *_TOWER)),
)
