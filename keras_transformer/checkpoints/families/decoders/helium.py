"""Helium: Kyutai 2025, https://kyutai.org/2025/01/13/helium.html.

A Llama with rotary positions of neighbouring features.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.base.shared import rotary
from keras_transformer.checkpoints.families.decoders.llama import LLAMA

HELIUM = dataclasses.replace(
    LLAMA,
    model_type="helium",
    architecture="HeliumModel",
    fields={
        **LLAMA.fields,
        "vocab_size": ConfigField("vocabulary_size", 48000),
        "hidden_size": ConfigField("hidden_dim", 2560),
        "num_hidden_layers": ConfigField("num_layers", 24),
        "num_attention_heads": ConfigField("num_heads", 20),
        "num_key_value_heads": ConfigField("num_key_value_heads", 20),
        "head_dim": ConfigField("head_dim", 128),
        "intermediate_size": ConfigField("intermediate_dim", 7040),
        "max_position_embeddings": ConfigField("max_sequence_length", 4096),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-8),
    },
    constants={
        **LLAMA.constants,
        "rotary_interleaved": True,
        "attention_output_bias": False,
    },
    conversions=(rotary(default_base=100000.0),),
)
