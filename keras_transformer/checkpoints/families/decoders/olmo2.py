"""OLMo2: OLMo et al. 2024, https://arxiv.org/abs/2501.00656.

A Llama with norms on the outputs of the sub-layers, and on the queries and the keys of all heads
together.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.base.shared import decoder_heads
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.weights.tables import layers

_NORMS = {
    "self_attention_output_norm": "post_attention_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}

OLMO2 = dataclasses.replace(
    LLAMA,
    model_type="olmo2",
    architecture="Olmo2Model",
    fields={name: field for name, field in LLAMA.fields.items() if name != "mlp_bias"}
    | {
        "vocab_size": ConfigField("vocabulary_size", 50304),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
    },
    constants={
        **LLAMA.constants,
        "use_bias": False,
        "normalize_first": False,
        "normalize_output": True,
        "final_normalization": True,
        "query_key_norm": True,
        "query_key_norm_across_heads": True,
    },
    weights=(*LLAMA.weights, *layers(_NORMS, "decoder/layer_{i}/", "layers.{i}.")),
    heads=decoder_heads(),
)
