"""Hunyuan: Tencent 2025, https://github.com/Tencent-Hunyuan/Hunyuan-7B; the dense models.

A Llama with norms of the rotated queries and keys.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import (
    NO_PADDING,
    decoder_heads,
    head_dim,
    number,
    rotary,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.weights.tables import layers

_NORMS = layers(
    {
        "self_attention/query_norm": "self_attn.query_layernorm",
        "self_attention/key_norm": "self_attn.key_layernorm",
    },
    "decoder/layer_{i}/",
    "layers.{i}.",
)
_PLACES = {line.ours for line in _NORMS}
_ROTARY = rotary()


def _read_rotary(values: Values) -> Values:
    """Return the options of rotary positions. With an `alpha`, the base is stretched once."""
    ours = _ROTARY.read(values)
    options = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if ours.get("rotary_scaling") != "dynamic" or not options.get("alpha"):
        return ours
    width = head_dim(values, 128)
    stretch = number(options, "alpha", None, float) ** (width / max(width - 2, 1))
    return {"rotary_base": ours["rotary_base"] * stretch}


HUNYUAN_V1_DENSE = dataclasses.replace(
    LLAMA,
    model_type="hunyuan_v1_dense",
    architecture="HunYuanDenseV1Model",
    fields={name: field for name, field in LLAMA.fields.items() if name != "mlp_bias"}
    | {
        "vocab_size": ConfigField("vocabulary_size", 290943),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
    },
    constants={
        **LLAMA.constants,
        "use_bias": False,
        "query_key_norm": True,
        "query_key_norm_after_rotation": True,
    },
    conversions=(Conversion(_read_rotary, _ROTARY.write), NO_PADDING),
    weights=(*(line for line in LLAMA.weights if line.ours not in _PLACES), *_NORMS),
    heads=decoder_heads(),
)
