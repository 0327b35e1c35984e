"""BigBird: Zaheer et al. 2020, https://arxiv.org/abs/2007.14062.

A BERT whose tokens attend to neighbouring blocks, the first and the last block, and random ones.
Short sequences use full attention.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    encoder_heads,
    hidden_activation,
    masked_lm,
    number,
)
from keras_transformer.checkpoints.families.encoders.bert import BERT, FIELDS, STACK
from keras_transformer.checkpoints.weights.tables import layers, output_matrix
from keras_transformer.config import TransformerConfig

_SPARSE, _FULL = "block_sparse", "original_full"


def _read_blocks(values: Values) -> dict[str, Any]:
    kind = values.get("attention_type", _SPARSE)
    if kind not in (_SPARSE, _FULL):
        raise ValueError(f"attention_type={kind!r} is not supported, only {_SPARSE!r}, {_FULL!r}.")
    if kind == _FULL:
        return {}
    return {
        "block_size": number(values, "block_size", 64),
        "random_blocks": number(values, "num_random_blocks", 3),
    }


def _write_blocks(config: TransformerConfig) -> dict[str, Any]:
    if config.block_size is None:
        return {"attention_type": _FULL}
    return {
        "attention_type": _SPARSE,
        "block_size": config.block_size,
        "num_random_blocks": config.random_blocks,
    }


def _read_answers(values: Values) -> dict[str, Any]:
    # The dropout of the blocks also applies to the head.
    return {
        "separator_id": number(values, "sep_token_id", 66),
        "dropout": number(values, "hidden_dropout_prob", 0.1, float),
    }


def _write_answers(task: Values) -> dict[str, Any]:
    return {"sep_token_id": task["separator_id"]}


_HEADS = encoder_heads(
    masked_lm("cls.predictions.", "transform.dense", "transform.LayerNorm", "decoder.bias", "bias"),
    masked_classes=("BigBirdForMaskedLM", "BigBirdForPreTraining"),
    classifier={"output": "classifier.out_proj", "hidden": "classifier.dense"},
    hidden=hidden_activation("hidden_act", "gelu_new"),
)

_IN_ANSWERS = {
    "feed_forward/intermediate": "intermediate.dense",
    "feed_forward/output": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
    "output": "qa_outputs",
}
_ANSWERS = PublishedHead(
    weights=layers(_IN_ANSWERS, theirs="qa_classifier."),
    values={"feed_forward": True, "mask_question": True},
    options=(Conversion(_read_answers, _write_answers),),
)

BIG_BIRD = dataclasses.replace(
    BERT,
    model_type="big_bird",
    architecture="BigBirdModel",
    fields={
        **FIELDS,
        "vocab_size": ConfigField("vocabulary_size", 50358),
        "hidden_act": ConfigField("activation", "gelu_new"),
        "max_position_embeddings": ConfigField("max_sequence_length", 4096),
        "use_bias": ConfigField("attention_bias", True),
        "rescale_embeddings": ConfigField("scale_embedding", False),
    },
    constants={**BERT.constants, "attention_output_bias": True},
    conversions=(Conversion(_read_blocks, _write_blocks),),
    required={"is_decoder": False, "add_cross_attention": False},
    weights=(
        *STACK,
        output_matrix("cls.predictions.decoder.weight"),
        *layers({"pooler": "pooler"}),
    ),
    heads=_HEADS | {"QuestionAnswerer": _ANSWERS},
    names=BERT.names,
    pooler="pooler.weight",
)
