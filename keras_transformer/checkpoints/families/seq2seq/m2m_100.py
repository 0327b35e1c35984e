"""M2M100: Fan et al. 2020, https://arxiv.org/abs/2010.11125; NLLB: Costa-jussà et al. 2022.

mBART's blocks with the sinusoids of Tensor2Tensor, for translation between all pairs of 100 or 200
languages.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.seq2seq.mbart import MBART, PEGASUS
from keras_transformer.config import TransformerConfig


def _read_positions(values: Values) -> dict[str, Any]:
    # Positions are counted from the row after the padding's, which is zero.
    padding, start = number(values, "pad_token_id", 1), values.get("decoder_start_token_id", 2)
    if start == padding:
        raise ValueError(
            f"decoder_start_token_id={start} is the padding token, whose position is not counted: "
            "this is not supported."
        )
    return {"position_offset": padding + 1}


def _write_positions(config: TransformerConfig) -> dict[str, Any]:
    return {"pad_token_id": config.position_offset - 1}


def _read_start(values: Values) -> dict[str, Any]:
    # Transformers' `generate` starts with this token if the config gives null for the other.
    said, other = values.get("decoder_start_token_id", 2), values.get("bos_token_id", 0)
    return {"start_id": other} if said is None and isinstance(other, int) else {}


M2M_100 = dataclasses.replace(
    MBART,
    model_type="m2m_100",
    architecture="M2M100Model",
    fields={
        **MBART.fields,
        "vocab_size": ConfigField("vocabulary_size", 128112),
        "activation_function": ConfigField("activation", "relu"),
        "attention_dropout": ConfigField("attention_dropout", 0.1),
        "scale_embedding": ConfigField("scale_embedding", True),
    },
    constants={**PEGASUS.constants, "sinusoidal_inclusive": True},
    conversions=(*MBART.conversions, Conversion(_read_positions, _write_positions)),
    weights=tuple(line for line in PEGASUS.weights if line.ours != "output_bias/bias"),
    heads={
        "Seq2SeqLM": PublishedHead(
            values={"start_id": 2}, options=(Conversion(_read_start, lambda task: {}),)
        )
    },
    output_bias=None,
)
