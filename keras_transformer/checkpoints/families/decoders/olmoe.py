"""OLMoE: Muennighoff et al. 2024, https://arxiv.org/abs/2409.02060.

A Llama with many small experts, and norms on the queries and the keys of all heads together.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.weights.tables import layers

EXPERTS = layers(
    {
        "feed_forward/router": "mlp.gate",
        "feed_forward/expert_gate": "mlp.experts.*.gate_proj",
        "feed_forward/expert_intermediate": "mlp.experts.*.up_proj",
        "feed_forward/expert_output": "mlp.experts.*.down_proj",
    },
    "decoder/layer_{i}/",
    "layers.{i}.",
)

OLMOE = dataclasses.replace(
    LLAMA,
    model_type="olmoe",
    architecture="OlmoeModel",
    fields={name: field for name, field in LLAMA.fields.items() if name != "mlp_bias"}
    | {
        "vocab_size": ConfigField("vocabulary_size", 50304),
        "hidden_size": ConfigField("hidden_dim", 2048),
        "num_hidden_layers": ConfigField("num_layers", 16),
        "num_attention_heads": ConfigField("num_heads", 16),
        "intermediate_size": ConfigField("intermediate_dim", 2048),
        "max_position_embeddings": ConfigField("max_sequence_length", 4096),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "num_experts": ConfigField("num_experts", 64),
        "num_experts_per_tok": ConfigField("experts_per_token", 8),
        "norm_topk_prob": ConfigField("normalize_expert_weights", False),
        "router_aux_loss_coef": ConfigField("load_balancing_factor", 0.01),
    },
    constants={
        **LLAMA.constants,
        "use_bias": False,
        "query_key_norm": True,
        "query_key_norm_across_heads": True,
    },
    required={"clip_qkv": None},
    weights=(*LLAMA.weights, *EXPERTS),
    heads={"CausalLM": LLAMA.heads["CausalLM"]},  # Transformers has no classifier for it
)
