"""LongT5: Guo et al. 2022, https://arxiv.org/abs/2112.07916.

A T5 whose encoder attends within a window, in some models also to the sums of blocks of tokens.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import Conversion, PublishedHead, Values
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.seq2seq.t5 import DECODER, T5, encoder_alone, stack
from keras_transformer.checkpoints.weights.tables import layers
from keras_transformer.config import TransformerConfig

_LOCAL, _GLOBAL = "local", "transient-global"


def _read_encoder(values: Values) -> dict[str, Any]:
    kind = values.get("encoder_attention_type", _LOCAL)
    if kind not in (_LOCAL, _GLOBAL):
        raise ValueError(
            f"encoder_attention_type={kind!r} is not supported, only {_LOCAL!r} and {_GLOBAL!r}."
        )
    own = {"window": number(values, "local_radius", 127) + 1}
    if kind == _GLOBAL:
        own["global_block_size"] = number(values, "global_block_size", 16)
    return {**own, "decoder": dict.fromkeys(own)}


def _write_encoder(config: TransformerConfig) -> dict[str, Any]:
    encoder = config.side("encoder")
    size = encoder.global_block_size
    groups = {} if size is None else {"global_block_size": size}
    kind = _LOCAL if size is None else _GLOBAL
    return {"local_radius": (encoder.window or 0) - 1, "encoder_attention_type": kind, **groups}


_NO_GROUPS = ("global_block_size", None)
_INNER = "layer.0.TransientGlobalSelfAttention.global"
_NORM = f"encoder.block.{{i}}.{_INNER}_input_layer_norm"
_GROUPS = {
    "encoder/layer_{i}/self_attention/group_norm": _NORM,
    "encoder/group_relative_bias": f"encoder.block.0.{_INNER}_relative_attention_bias",
}

LONGT5 = dataclasses.replace(
    T5,
    model_type="longt5",
    architecture="LongT5Model",
    conversions=(
        *T5.conversions[:-1],
        Conversion(_read_encoder, _write_encoder),
        encoder_alone("LongT5EncoderModel"),
    ),
    weights=(
        *T5.weights[:2],
        *stack("encoder", 1, "TransientGlobalSelf"),
        # Later lines replace earlier ones for the same variable, if their condition holds.
        *(
            dataclasses.replace(line, when=_NO_GROUPS)
            for line in stack("encoder", 1, "LocalSelf")
            if "LocalSelf" in line.theirs
        ),
        *layers(_GROUPS),
        *DECODER,
    ),
    heads={"Seq2SeqLM": PublishedHead(values={"start_id": 0}, prefix="")},
)
