"""Mixtral: Jiang et al. 2024, https://arxiv.org/abs/2401.04088.

A Mistral with a mixture of experts instead of the feed-forward layer.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.base.shared import rotary
from keras_transformer.checkpoints.families.decoders.llama import MISTRAL
from keras_transformer.checkpoints.weights.tables import layers

_EXPERTS = {
    "feed_forward/router": "block_sparse_moe.gate",
    "feed_forward/expert_gate": "block_sparse_moe.experts.*.w1",
    "feed_forward/expert_output": "block_sparse_moe.experts.*.w2",
    "feed_forward/expert_intermediate": "block_sparse_moe.experts.*.w3",
}

MIXTRAL = dataclasses.replace(
    MISTRAL,
    model_type="mixtral",
    architecture="MixtralModel",
    fields={
        **MISTRAL.fields,
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "sliding_window": ConfigField("window", None),
        "num_local_experts": ConfigField("num_experts", 8),
        "num_experts_per_tok": ConfigField("experts_per_token", 2),
        "router_aux_loss_coef": ConfigField("load_balancing_factor", 0.001),
    },
    conversions=(rotary(default_base=1e6),),
    required={"router_jitter_noise": 0.0},
    weights=(*MISTRAL.weights, *layers(_EXPERTS, "decoder/layer_{i}/", "layers.{i}.")),
)
