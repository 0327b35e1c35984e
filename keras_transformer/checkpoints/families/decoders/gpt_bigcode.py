"""GPT-BigCode: Ben Allal et al. 2023, https://arxiv.org/abs/2301.03988; StarCoder: Li et al. 2023.

A GPT-2 whose heads share one key and one value (multi-query attention).
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import decoder_heads, flag, number
from keras_transformer.checkpoints.families.decoders.gpt import GPT2, inner_width
from keras_transformer.checkpoints.weights.tables import Names, fused, layers, output_matrix
from keras_transformer.config import TransformerConfig

_ONCE = {
    "token_embedding": "wte",
    "decoder/position_embedding": "wpe",
    "decoder/final_norm": "ln_f",
}
_QKV = [f"decoder/layer_{{i}}/self_attention/{name}" for name in ("query", "key", "value")]
_HEADS = ("num_heads", "num_key_value_heads", "num_key_value_heads")
_LAYER = {
    "self_attention/output": "attn.c_proj",
    "self_attention_norm": "ln_1",
    "feed_forward/intermediate": "mlp.c_fc",
    "feed_forward/output": "mlp.c_proj",
    "feed_forward_norm": "ln_2",
}


def _read(values: Values) -> dict[str, Any]:
    shared, scaled = (flag(values, name, True) for name in ("multi_query", "scale_attn_weights"))
    return {
        "num_key_value_heads": 1 if shared else number(values, "n_head", 12),
        "score": "scaled_dot" if scaled else "dot",
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    return {
        "multi_query": config.num_key_value_heads == 1,
        "scale_attn_weights": config.score_scale != 1 or config.head_dim == 1,
    }


GPT_BIGCODE = dataclasses.replace(
    GPT2,
    model_type="gpt_bigcode",
    architecture="GPTBigCodeModel",
    fields={**GPT2.fields, "activation_function": ConfigField("activation", "gelu_pytorch_tanh")},
    conversions=(inner_width(768), Conversion(_read, _write)),
    weights=(
        *layers(_ONCE),
        output_matrix("lm_head.weight"),
        *fused(_QKV, "h.{i}.attn.c_attn", per_head=True, sizes=_HEADS),
        *layers(_LAYER, "decoder/layer_{i}/", "h.{i}."),
    ),
    heads=decoder_heads(tokens="classifier"),
    names=Names(prefixes=("transformer.",)),
)
