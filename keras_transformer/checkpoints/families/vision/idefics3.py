"""Idefics3: Laurençon et al. 2024, https://arxiv.org/abs/2408.12637.

SmolVLM: Marafioti et al. 2025, https://arxiv.org/abs/2504.05299.

SigLIP's image tower reads tiles; squares of its states are joined, projected by one layer, and put
among the tokens of a Llama, such as SmolLM 2.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.images import patches
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
    with_encoder,
    write_images,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.families.vision import siglip
from keras_transformer.checkpoints.weights.tables import Names, layers, output_matrix
from keras_transformer.config import TransformerConfig

# SigLIP's tower, whose published configs leave out other values.
_DEFAULTS = {"hidden_size": 1152, "num_attention_heads": 16}
# The sizes that a config without sides means here: a grid of squares, and room for the image token.
_VISION = {
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "image_size": 364,
    "patch_size": 14,
}
_TEXT = {"vocab_size": 128259, "rms_norm_eps": 1e-5}
_IMAGES = (
    {
        theirs: dataclasses.replace(field, default=_DEFAULTS.get(theirs, field.default))
        for theirs, field in siglip.IMAGES[0].items()
    },
    {},
    (patches(224, 32, class_token=False),),
)


def _read(values: Values) -> dict[str, Any]:
    vision = nested(values, "vision_config") or _VISION
    text = {"text_config": nested(values, "text_config") or _TEXT}
    return with_encoder(
        read_images({"vision_config": vision}, _IMAGES),
        read_text(text, LLAMA),
        placeholder_id=number(values, "image_token_id", 128257),
        projector="shuffled",
        projector_pool=number(values, "scale_factor", 2),
        projector_bias=False,
        tie_embeddings=flag(values, "tie_word_embeddings"),
    )


def _write(model_type: str, config: TransformerConfig) -> dict[str, Any]:
    vision = write_images(config.side("encoder"), _IMAGES)
    return {
        "vision_config": {**vision, "model_type": f"{model_type}_vision"},
        "text_config": write_text(config, LLAMA),
        "image_token_id": config.placeholder_id,
        "scale_factor": config.projector_pool,
        "tie_word_embeddings": config.tie_embeddings,
    }


def _family(model_type: str, name: str, start: str) -> Family:
    return Family(
        model_type=model_type,
        architecture=f"{name}Model",
        fields={},
        constants={"kind": "seq2seq"},
        conversions=(Conversion(_read, lambda config: _write(model_type, config)),),
        weights=(
            *of_images(siglip.STACKS, "vision_model."),
            *layers({"projector/output": "connector.modality_projection.proj"}),
            *prefixed(LLAMA.weights, "text_model."),
            output_matrix("lm_head.weight"),
        ),
        heads={
            "ImageToText": PublishedHead(
                architectures=(f"{name}ForConditionalGeneration",),
                values={"template": f"{start}User:<image>{{prompt}}<end_of_utterance>\nAssistant:"},
                options=(TEXT_END,),
            )
        },
        names=Names(prefixes=("model.",)),
    )


IDEFICS3 = _family("idefics3", "Idefics3", "")
SMOLVLM = _family("smolvlm", "SmolVLM", "<|im_start|>")
