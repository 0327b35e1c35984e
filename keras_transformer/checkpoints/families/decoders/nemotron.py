"""Nemotron: Parmar et al. 2024, https://arxiv.org/abs/2402.16819.

A Llama with a LayerNorm by 1 + weight, an ungated feed-forward layer with squared ReLU, and rotary
positions on a part of each head.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.base.shared import rotary
from keras_transformer.checkpoints.families.decoders.llama import LLAMA

NEMOTRON = dataclasses.replace(
    LLAMA,
    model_type="nemotron",
    architecture="NemotronModel",
    fields={name: field for name, field in LLAMA.fields.items() if name != "rms_norm_eps"}
    | {
        "vocab_size": ConfigField("vocabulary_size", 256000),
        "hidden_size": ConfigField("hidden_dim", 6144),
        "num_attention_heads": ConfigField("num_heads", 48),
        "intermediate_size": ConfigField("intermediate_dim", 24576),
        "hidden_act": ConfigField("activation", "relu2"),
        "max_position_embeddings": ConfigField("max_sequence_length", 4096),
        "initializer_range": ConfigField("initializer_range", 0.0134),
        "norm_eps": ConfigField("normalization_epsilon", 1e-5),
    },
    constants={**LLAMA.constants, "normalization": "layer_norm_plus_one", "gated": False},
    conversions=(rotary(default_share=0.5, default_head_dim=128),),
)
