"""Arcee: Arcee 2025, https://www.arcee.ai/blog/deep-dive-afm-4-5b-the-first-arcee-foundational-model.

A Llama with an ungated feed-forward layer and squared ReLU.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.decoders.llama import LLAMA

ARCEE = dataclasses.replace(
    LLAMA,
    model_type="arcee",
    architecture="ArceeModel",
    fields={
        **LLAMA.fields,
        "hidden_size": ConfigField("hidden_dim", 2560),
        "intermediate_size": ConfigField("intermediate_dim", 18432),
        "hidden_act": ConfigField("activation", "relu2"),
        "max_position_embeddings": ConfigField("max_sequence_length", 4096),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
    },
    constants={**LLAMA.constants, "gated": False},
)
