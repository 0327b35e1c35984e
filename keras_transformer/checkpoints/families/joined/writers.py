"""GPT-2, BERT and RoBERTa as decoders with cross-attention.

They are sides of `vision-encoder-decoder` and `encoder-decoder`, not families by themselves.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ACTIVATIONS,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import ENCODER, number
from keras_transformer.checkpoints.families.decoders.gpt import GPT2
from keras_transformer.checkpoints.families.encoders.bert import BERT
from keras_transformer.checkpoints.families.encoders.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from keras_transformer.checkpoints.weights.tables import WeightLine, attention, fused, layers
from keras_transformer.config import TransformerConfig

_BLOCK = "decoder/layer_{i}/"
_KEYS = [f"{_BLOCK}cross_attention/{name}" for name in ("key", "value")]
_GPT2 = {
    "cross_attention/query": "crossattention.q_attn",
    "cross_attention/output": "crossattention.c_proj",
    "cross_attention_norm": "ln_cross_attn",
}
_CROSS = {"is_decoder": True, "add_cross_attention": True}

GPT2_WRITER = dataclasses.replace(
    GPT2,
    required=_CROSS,
    weights=(
        *GPT2.weights,
        *fused(_KEYS, "h.{i}.crossattention.c_attn", transpose=False),
        *layers(_GPT2, _BLOCK, "h.{i}.", transpose=False),
    ),
    heads={},
)

# The cross-attention of a BERT.
CROSS = {
    **attention(
        "crossattention.{}", "self.query", "self.key", "self.value", "output.dense",
        ours="cross_attention",
    ),
    "cross_attention_norm": "crossattention.output.LayerNorm",
}  # fmt: skip


def _of_decoder(family: Family) -> tuple[WeightLine, ...]:
    """Return the lines of an encoder family for use as a decoder, without its pooler."""
    lines = [line for line in family.weights if not line.ours.startswith("pooler/")]
    ours = [line.ours.replace("encoder/", "decoder/", 1) for line in lines]
    both = zip(lines, ours, strict=True)
    return tuple(dataclasses.replace(line, ours=name) for line, name in both)


def _transform(prefix: str, dense: str, norm: str) -> tuple[WeightLine, ...]:
    """Return the lines of BERT's layers between states and logits; names begin with `prefix`."""
    names = {"output_transform": prefix + dense, "output_transform_norm": prefix + norm}
    return (
        *layers(names, outside=True),
        WeightLine(
            "output_bias/bias", f"{prefix}decoder.bias", copies=(f"{prefix}bias",), outside=True
        ),
    )


def _read_activation(values: Values) -> dict[str, Any]:
    # An unknown name is refused, as in the blocks.
    return {"output_transform": ACTIVATIONS.get(values.get("hidden_act", "gelu"))}


def _read_positions(values: Values) -> dict[str, Any]:
    padding = number(values, "pad_token_id", 1)
    rows = number(values, "max_position_embeddings", 512)
    return {"position_offset": padding + 1, "max_sequence_length": rows - padding - 1}


def _write_positions(config: TransformerConfig) -> dict[str, Any]:
    return {
        "pad_token_id": config.position_offset - 1,
        "max_position_embeddings": config.max_sequence_length + config.position_offset,
    }


_DECODER = {**ENCODER, "kind": "decoder", "output_bias": True}
_ACTIVATION = Conversion(_read_activation, lambda config: {})

BERT_WRITER = dataclasses.replace(
    BERT,
    constants=_DECODER,
    conversions=(_ACTIVATION,),
    required={**BERT.required, **_CROSS},
    weights=(
        *_of_decoder(BERT),
        *layers(CROSS, _BLOCK, "encoder.layer.{i}."),
        *_transform("cls.predictions.", "transform.dense", "transform.LayerNorm"),
    ),
    heads={},
    pooler=None,
)
# Generated texts have no padding: positions are counted over all tokens.
ROBERTA_WRITER = dataclasses.replace(
    ROBERTA,
    constants={**_DECODER, "output_transform": "gelu"},
    conversions=(Conversion(_read_positions, _write_positions),),
    required={**ROBERTA.required, **_CROSS},
    weights=(
        *_of_decoder(ROBERTA),
        *layers(CROSS, _BLOCK, "encoder.layer.{i}."),
        *_transform("lm_head.", "dense", "layer_norm"),
    ),
    heads={},
    pooler=None,
)
XLM_ROBERTA_WRITER, CAMEMBERT_WRITER = (
    dataclasses.replace(ROBERTA_WRITER, model_type=family.model_type, fields=family.fields)
    for family in (XLM_ROBERTA, CAMEMBERT)
)
