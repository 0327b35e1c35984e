"""Ernie4_5: Baidu 2025, https://huggingface.co/baidu/ERNIE-4.5-0.3B-PT.

The dense models of ERNIE 4.5: a Llama with rotary positions of neighbouring features.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField, PublishedHead
from keras_transformer.checkpoints.families.base.shared import rotary
from keras_transformer.checkpoints.families.decoders.llama import LLAMA

_OTHER = ("attention_bias", "mlp_bias", "attention_dropout")

ERNIE4_5 = dataclasses.replace(
    LLAMA,
    model_type="ernie4_5",
    architecture="Ernie4_5Model",
    fields={name: field for name, field in LLAMA.fields.items() if name not in _OTHER}
    | {
        "vocab_size": ConfigField("vocabulary_size", 103424),
        "hidden_size": ConfigField("hidden_dim", 1024),
        "num_hidden_layers": ConfigField("num_layers", 18),
        "num_attention_heads": ConfigField("num_heads", 16),
        "num_key_value_heads": ConfigField("num_key_value_heads", 2),
        "head_dim": ConfigField("head_dim", 128),
        "intermediate_size": ConfigField("intermediate_dim", 3072),
        "max_position_embeddings": ConfigField("max_sequence_length", 131072),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
        "use_bias": ConfigField("use_bias", False),
    },
    constants={**LLAMA.constants, "rotary_interleaved": True},
    conversions=(rotary(default_base=500000.0),),
    heads={"CausalLM": PublishedHead()},
)
