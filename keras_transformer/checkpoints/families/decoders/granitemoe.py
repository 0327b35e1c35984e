"""GraniteMoE: Granite Team 2024, https://github.com/ibm-granite/granite-3.0-language-models.

A Granite with a mixture of experts instead of the feed-forward layer; in `granitemoeshared` one
more expert is for all tokens.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField
from keras_transformer.checkpoints.families.decoders.granite import GRANITE
from keras_transformer.checkpoints.weights.tables import fused, layers

_OURS, _THEIRS = "decoder/layer_{i}/feed_forward/", "layers.{i}.block_sparse_moe."
_SHARED = "layers.{i}.shared_mlp."
_EXPERTS = (
    *layers({"router": "router.layer"}, _OURS, _THEIRS),
    *fused((f"{_OURS}expert_gate", f"{_OURS}expert_intermediate"), f"{_THEIRS}input_linear"),
    *layers({"expert_output": "output_linear"}, _OURS, _THEIRS),
)

GRANITEMOE = dataclasses.replace(
    GRANITE,
    model_type="granitemoe",
    architecture="GraniteMoeModel",
    fields={name: field for name, field in GRANITE.fields.items() if name != "mlp_bias"}
    | {
        "num_local_experts": ConfigField("num_experts", 8),
        "num_experts_per_tok": ConfigField("experts_per_token", 2),
        "router_aux_loss_coef": ConfigField("load_balancing_factor", 0.001),
    },
    constants={**GRANITE.constants, "use_bias": False},
    weights=(*GRANITE.weights, *_EXPERTS),
)

SHARED = (
    *fused((f"{_OURS}shared/gate", f"{_OURS}shared/intermediate"), f"{_SHARED}input_linear"),
    *layers({"shared/output": "output_linear"}, _OURS, _SHARED),
)

GRANITEMOESHARED = dataclasses.replace(
    GRANITEMOE,
    model_type="granitemoeshared",
    architecture="GraniteMoeSharedModel",
    fields={
        **GRANITEMOE.fields,
        "shared_intermediate_size": ConfigField("shared_expert_dim", 0),
    },
    constants={**GRANITEMOE.constants, "shared_expert_gate": False},
    weights=(*GRANITEMOE.weights, *SHARED),
)
