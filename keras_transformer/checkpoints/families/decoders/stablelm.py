"""StableLM: Bellagente et al. 2024, https://arxiv.org/abs/2402.17834.

A Llama with LayerNorm, and rotary positions on a part of each head.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion
from keras_transformer.checkpoints.families.base.shared import head_norms, rotary
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.weights.tables import WeightLine

_OTHER = ("head_dim", "attention_bias", "mlp_bias", "rms_norm_eps")
_PARALLEL = Conversion(
    lambda values: dict.fromkeys(
        ("parallel_residual", "share_normalization"), values.get("use_parallel_residual", False)
    ),
    lambda config: {"use_parallel_residual": config.parallel_residual},
)

# A separate tensor for each head.
_HEAD_NORMS = tuple(
    WeightLine(
        f"decoder/layer_{{i}}/self_attention/{mine}_norm/gamma",
        f"layers.{{i}}.self_attn.{its}_layernorm.norms.*.weight",
    )
    for mine, its in (("query", "q"), ("key", "k"))
)
_PLACES = {line.ours for line in _HEAD_NORMS}

STABLELM = dataclasses.replace(
    LLAMA,
    model_type="stablelm",
    architecture="StableLmModel",
    fields={name: field for name, field in LLAMA.fields.items() if name not in _OTHER}
    | {
        "vocab_size": ConfigField("vocabulary_size", 50304),
        "hidden_size": ConfigField("hidden_dim", 2560),
        "num_key_value_heads": ConfigField("num_key_value_heads", 32),
        "intermediate_size": ConfigField("intermediate_dim", 6912),
        "hidden_dropout": ConfigField("dropout", 0.0),
        "max_position_embeddings": ConfigField("max_sequence_length", 4096),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "use_qkv_bias": ConfigField("attention_bias", False),
    },
    constants={
        **LLAMA.constants,
        "normalization": "layer_norm",
        "use_bias": False,
        "attention_output_bias": False,
    },
    conversions=(
        rotary(default_share=0.25, default_head_dim=80),
        _PARALLEL,
        head_norms("qk_layernorm"),
    ),
    weights=(*(line for line in LLAMA.weights if line.ours not in _PLACES), *_HEAD_NORMS),
)
