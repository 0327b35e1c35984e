"""Seed-OSS: ByteDance 2025, https://github.com/ByteDance-Seed/seed-oss.

A Llama with biases of queries, keys and values.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.decoders.llama import LLAMA

SEED_OSS = dataclasses.replace(
    LLAMA,
    model_type="seed_oss",
    architecture="SeedOssModel",
    fields={
        **LLAMA.fields,
        "vocab_size": ConfigField("vocabulary_size", 155136),
        "num_hidden_layers": ConfigField("num_layers", 64),
        "num_attention_heads": ConfigField("num_heads", 80),
        "num_key_value_heads": ConfigField("num_key_value_heads", 8),
        "head_dim": ConfigField("head_dim", 128),
        "intermediate_size": ConfigField("intermediate_dim", 27648),
        "residual_dropout": ConfigField("dropout", 0.1),
        "attention_dropout": ConfigField("attention_dropout", 0.1),
        "attention_bias": ConfigField("attention_bias", True),
        "attention_out_bias": ConfigField("attention_output_bias", False),
        "max_position_embeddings": ConfigField("max_sequence_length", 524288),
    },
)
