"""PaliGemma: Beyer et al. 2024, https://arxiv.org/abs/2407.07726.

SigLIP's image tower, whose states are projected by one layer and put before the tokens of a Gemma.
Image and prompt see each other; generated tokens see earlier tokens. PaliGemma 2, Steiner et al.
2024, https://arxiv.org/abs/2412.03555, has a Gemma 2.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import (
    TEXT_END,
    TEXT_START,
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
from keras_transformer.checkpoints.families.decoders.gemma import GEMMA, GEMMA2
from keras_transformer.checkpoints.families.vision import siglip
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers, output_matrix
from keras_transformer.config import TransformerConfig

_IMAGES = {
    "hidden_size": 1152,
    "intermediate_size": 4096,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 14,
}
_TEXT = {
    "hidden_size": 2048,
    "num_hidden_layers": 18,
    "intermediate_size": 16384,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "vocab_size": 257152,
}
# The family, not its text config, determines which tokens see each other.
_DIRECTION = "use_bidirectional_attention"


def _read(values: Values) -> dict[str, Any]:
    vision, text = (nested(values, f"{name}_config") for name in ("vision", "text"))
    kind = vision.get("model_type", "siglip_vision_model")
    if kind != "siglip_vision_model":
        raise ValueError(f"The image tower {kind!r} is not supported, only SigLIP's.")
    text = {name: value for name, value in (text or _TEXT).items() if name != _DIRECTION}
    decoder = read_text({"text_config": text}, GEMMA, GEMMA2)
    width = number(values, "projection_dim", 2048)
    if width != decoder.hidden_dim:
        raise ValueError(
            f"projection_dim={width} must be the width of the text model, {decoder.hidden_dim}."
        )
    return with_encoder(
        read_images({"vision_config": vision or _IMAGES}, siglip.IMAGES),
        decoder,
        placeholder_id=number(values, "image_token_index", values.get("image_token_id", 256000)),
        placeholder_visibility="prompt",
        projector="linear",
        tie_embeddings=flag(values, "tie_word_embeddings", True),
    )


def _write(config: TransformerConfig) -> dict[str, Any]:
    width = config.side("decoder").hidden_dim
    text = write_text(config, GEMMA, GEMMA2)
    vision = write_images(config.side("encoder"), siglip.IMAGES)
    return {
        "vision_config": {
            **vision,
            "model_type": "siglip_vision_model",
            "projection_dim": width,
            "vision_use_head": False,
        },
        "text_config": {name: value for name, value in text.items() if name != _DIRECTION},
        "image_token_index": config.placeholder_id,
        "projection_dim": width,
        "hidden_size": width,
        "vocab_size": text["vocab_size"],
        "tie_word_embeddings": config.tie_embeddings,
    }


def _norms(family: Family, normalize_output: bool) -> tuple[WeightLine, ...]:
    """Return the lines of the norms that differ between the two text models."""
    names = ("feed_forward_norm/scale", "output_norm/scale")
    return tuple(
        dataclasses.replace(line, when=("normalize_output", normalize_output))
        for line in family.weights
        if line.ours.endswith(names) and line.when == ("normalization", "rms_norm_plus_one")
    )


_TEXT_WEIGHTS = (
    *(line for line in GEMMA.weights if "feed_forward_norm" not in line.ours),
    *_norms(GEMMA, False),
    *_norms(GEMMA2, True),
)

_TOWER = ("vision_tower.", "vision_tower.vision_model.")

PALIGEMMA = Family(
    model_type="paligemma",
    architecture="PaliGemmaModel",
    fields={},
    constants={"kind": "seq2seq"},
    conversions=(Conversion(_read, _write),),
    weights=(
        *of_images(siglip.STACKS, *_TOWER),
        *layers({"projector/output": "multi_modal_projector.linear"}),
        *prefixed(_TEXT_WEIGHTS, "language_model.model."),
        output_matrix("language_model.lm_head.weight"),
    ),
    heads={
        "ImageToText": PublishedHead(
            architectures=("PaliGemmaForConditionalGeneration",),
            values={"template": "{prompt}\n", "start_id": 2, "end_ids": [1]},
            options=(TEXT_END, TEXT_START),
        )
    },
    names=Names(ignored=tensors_of(siglip.HEAD, *_TOWER)),
)
