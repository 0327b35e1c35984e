"""T5Gemma2: Zhang et al. 2025, https://arxiv.org/abs/2512.14856.

With images, which Gemma 3's image tower reads. In the encoder all tokens see the image states.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import nested
from keras_transformer.checkpoints.families.base.shared import number, unread
from keras_transformer.checkpoints.families.base.towers import of_images, tensors_of
from keras_transformer.checkpoints.families.seq2seq.t5gemma2 import (
    T5GEMMA2,
    read_parts,
    write_parts,
)
from keras_transformer.checkpoints.families.vision import siglip
from keras_transformer.checkpoints.families.vision.gemma3 import read_tower, write_tower
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers
from keras_transformer.config import Placeholders, Projector, TransformerConfig


def _read(values: Values, config: TransformerConfig) -> TransformerConfig:
    encoder = nested(values, "encoder")
    vision = nested(encoder, "vision_config")
    if vision.get("num_hidden_layers") == 0:
        raise ValueError("The config has no image tower: it is one of a model of texts.")
    if vision:
        vision = {**vision, "attention_dropout": values.get("attention_dropout", 0.0)}
        encoder = {**encoder, "vision_config": vision}
    images, pool = read_tower(encoder)
    return read_parts(values, config).replace(
        source=images.encoder,
        placeholders=Placeholders(
            token_id=number(values, "image_token_index", values.get("image_token_id", 256001)),
            side="encoder",
        ),
        projector=Projector(type="pooled", bias=False, pool=pool),
    )


def _write(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    if config.source is None or config.placeholders is None:
        raise ValueError("the encoder there has images among its tokens.")
    texts = config.replace(source=None, placeholders=None, projector=None)
    plain, stated = write_parts(texts)
    return plain, {
        **stated,
        "model_type": T5GEMMA2.model_type,
        "encoder": {**stated["encoder"], **write_tower(config)},
        "image_token_index": config.placeholders.token_id,
    }


_TOWER = ("encoder.vision_tower.", "encoder.vision_tower.vision_model.")
_PROJECTOR = "encoder.multi_modal_projector."

T5GEMMA2_IMAGES = dataclasses.replace(
    T5GEMMA2,
    model_type="t5gemma2_images",
    parts=PartsWithoutKeywords(_read, _write),
    weights=(
        *T5GEMMA2.weights,
        *(
            dataclasses.replace(line, ours=line.ours.replace("encoder/", "source/", 1))
            for line in of_images(siglip.STACKS, *_TOWER)
        ),
        WeightLine("projector/output/kernel", f"{_PROJECTOR}mm_input_projection_weight"),
        *layers({"projector/norm": "mm_soft_emb_norm"}, theirs=_PROJECTOR),
    ),
    heads={
        "ImageToText": PublishedHead(
            architectures=("T5Gemma2ForConditionalGeneration",),
            values={
                "start_id": 2,
                "template": "\n\n<start_of_image>{image}<end_of_image>\n\n{prompt}",
            },
        )
    },
    names=Names(
        prefixes=("model.",),
        ignored=(*tensors_of(siglip.HEAD, *_TOWER), *unread("score.out_proj")),
    ),
)
