"""GIT: Wang et al. 2022, https://arxiv.org/abs/2205.14100.

CLIP's image tower, whose states are projected, normalized and put before the tokens of a causal
BERT. They have no positions there and see each other.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import nested
from keras_transformer.checkpoints.families.base.shared import ENCODER, number
from keras_transformer.checkpoints.families.base.towers import (
    of_images,
    read_images,
    with_encoder,
    write_images,
)
from keras_transformer.checkpoints.families.encoders.bert import BERT, FIELDS, LAYER
from keras_transformer.checkpoints.families.vision import clip
from keras_transformer.checkpoints.heads import START_ID
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers, output_matrix
from keras_transformer.config import TransformerConfig

# The decoder alone; its values are at the top level, beside the image config.
_TEXT = dataclasses.replace(
    BERT,
    model_type="git",
    fields={name: field for name, field in FIELDS.items() if name != "type_vocab_size"}
    | {
        "num_hidden_layers": ConfigField("num_layers", 6),
        "max_position_embeddings": ConfigField("max_sequence_length", 1024),
        "tie_word_embeddings": ConfigField("tie_embeddings", False),
    },
    constants={**ENCODER, "kind": "decoder", "output_bias": True},
    required={},
    pooler=None,
)
_PATCHES = {"patch_size": 16}  # otherwise as in CLIP


def _read(values: Values) -> dict[str, Any]:
    vision = _PATCHES | nested(values, "vision_config")
    return with_encoder(
        read_images({"vision_config": vision}, clip.IMAGES),
        _TEXT.config(values),
        placeholder_id=number(values, "pad_token_id", 0),
        placeholder_visibility="states",
        projector="normalized",
    )


def _write(config: TransformerConfig) -> dict[str, Any]:
    vision = write_images(config.side("encoder"), clip.IMAGES)
    theirs = _TEXT.published_config(config.side("decoder"))
    return {
        **{name: theirs[name] for name in _TEXT.fields if name in theirs},
        "vision_config": {"model_type": "git_vision_model", **vision},
        "pad_token_id": config.placeholder_id,
    }


def _read_start(values: Values) -> dict[str, Any]:
    start = values.get("bos_token_id", 101)
    return START_ID.read({"decoder_start_token_id": start} | dict(values))


def _write_start(task: Values) -> dict[str, Any]:
    start = task.get("start_id")
    return {} if start is None else {"bos_token_id": start}


_PROJECTION = "visual_projection.visual_projection."

GIT = Family(
    model_type="git",
    architecture="GitModel",
    fields={},
    constants={"kind": "seq2seq"},
    conversions=(Conversion(_read, _write),),
    required={"num_image_with_embedding": None},
    weights=(
        *of_images(clip.IMAGE_WEIGHTS, "image_encoder.vision_model."),
        *layers({"projector/output": f"{_PROJECTION}0", "projector/norm": f"{_PROJECTION}1"}),
        *layers(
            {
                "token_embedding": "word_embeddings",
                "decoder/position_embedding": "position_embeddings",
                "decoder/embedding_norm": "LayerNorm",
            },
            theirs="embeddings.",
        ),
        *layers(LAYER, "decoder/layer_{i}/", "encoder.layer.{i}."),
        output_matrix("output.weight"),
        WeightLine("output_bias/bias", "output.bias", outside=True),
    ),
    heads={
        "ImageToText": PublishedHead(
            architectures=("GitForCausalLM",),
            values={"end_ids": [102]},
            options=(Conversion(_read_start, _write_start),),
        )
    },
    names=Names(prefixes=("git.",)),
)
