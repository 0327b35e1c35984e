"""WavLM: Chen et al. 2021, https://arxiv.org/abs/2110.13900.

wav2vec 2.0 with relative biases of the scores, which each head multiplies by a gate of the query.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import Conversion, Values
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.speech.wav2vec2 import WAV2VEC2
from keras_transformer.checkpoints.weights.tables import WeightLine, layers
from keras_transformer.config import Attention, GatedRelativeBias, TransformerConfig


def _read(values: Values) -> dict[str, Any]:
    bias = GatedRelativeBias(
        num_buckets=number(values, "num_buckets", 320),
        max_distance=number(values, "max_bucket_distance", 800),
    )
    return {
        "mixer": Attention(
            num_heads=number(values, "num_attention_heads", 12),
            dropout=number(values, "attention_dropout", 0.1, float),
            score_bias=bias,
        )
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    mixer = config.only_side.block.mixer
    if not isinstance(mixer, Attention) or not isinstance(mixer.score_bias, GatedRelativeBias):
        raise ValueError("each layer there has attention with a gated relative bias.")
    return {
        "num_attention_heads": mixer.num_heads,
        "attention_dropout": mixer.dropout,
        "num_buckets": mixer.score_bias.num_buckets,
        "max_bucket_distance": mixer.score_bias.max_distance,
    }


_ATTENTION = "encoder/layer_{i}/self_attention/", "encoder.layers.{i}.attention."

WAVLM = dataclasses.replace(
    WAV2VEC2,
    model_type="wavlm",
    architecture="WavLMModel",
    fields={name: field for name, field in WAV2VEC2.fields.items() if "attention" not in name},
    conversions=(*WAV2VEC2.conversions, Conversion(_read, _write)),
    required={"add_adapter": False},
    weights=(
        *WAV2VEC2.weights,
        *layers({"bias_gate": "gru_rel_pos_linear"}, *_ATTENTION),
        WeightLine(
            f"{_ATTENTION[0]}bias_gate_scale",
            f"{_ATTENTION[1]}gru_rel_pos_const",
            row=1,
            column=2,
        ),
        WeightLine(
            "encoder/relative_bias/embeddings", "encoder.layers.0.attention.rel_attn_embed.weight"
        ),
    ),
    heads={
        **WAV2VEC2.heads,
        "AudioClassifier": dataclasses.replace(
            WAV2VEC2.heads["AudioClassifier"], architectures=("WavLMForSequenceClassification",)
        ),
    },
    names=dataclasses.replace(WAV2VEC2.names, prefixes=("wavlm.",)),
)
