"""Qwen2Moe: Yang et al. 2024, https://arxiv.org/abs/2407.10671, and successors.

Qwen3Moe: Yang et al. 2025, https://arxiv.org/abs/2505.09388.

A Qwen 2 or 3 with experts in some or all layers; Qwen 2 also has a shared expert.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import (
    FULL,
    SLIDING,
    cycle_of_layers,
    flag,
    layer_kinds,
    listed_layers,
    number,
    rotary,
    write_windows,
)
from keras_transformer.checkpoints.families.decoders.llama import QWEN2, QWEN3
from keras_transformer.checkpoints.families.decoders.olmoe import EXPERTS
from keras_transformer.checkpoints.weights.tables import layers
from keras_transformer.config import TransformerConfig

_SHARED = {
    "feed_forward/shared/gate": "mlp.shared_expert.gate_proj",
    "feed_forward/shared/intermediate": "mlp.shared_expert.up_proj",
    "feed_forward/shared/output": "mlp.shared_expert.down_proj",
    "feed_forward/shared_score": "mlp.shared_expert_gate",
}
_FIELDS = {
    "hidden_size": ConfigField("hidden_dim", 2048),
    "num_hidden_layers": ConfigField("num_layers", 24),
    "norm_topk_prob": ConfigField("normalize_expert_weights", False),
    "router_aux_loss_coef": ConfigField("load_balancing_factor", 0.001),
}


def layers_with_experts(experts: int, kinds_of: Any) -> Conversion:
    """Return which layers have experts and windows.

    Args:
        experts: int, their number if the config does not give it.
        kinds_of: function from published values to the kinds of the layers and the window of each
            kind, such as `layers_alike`.
    """

    def read(values: Values) -> dict[str, Any]:
        kinds, windows = kinds_of(values)
        # Release 5 of Transformers writes another name for Qwen 3.
        named = "num_local_experts" if "num_local_experts" in values else "num_experts"
        found = number(values, named, experts)
        step = number(values, "decoder_sparse_step", 1)
        if step < 1:
            raise ValueError(f"decoder_sparse_step must be at least 1, received {step}.")
        dense = listed_layers(values, "mlp_only_layers") or frozenset()
        sparse = [i not in dense and (i + 1) % step == 0 for i in range(len(kinds))]
        own = {
            (has, kind): {"num_experts": found if has else 0, "window": window}
            for has in (True, False)
            for kind, window in windows.items()
        }
        return cycle_of_layers(list(zip(sparse, kinds, strict=True)), own)

    def write(config: TransformerConfig) -> dict[str, Any]:
        theirs, each = write_windows(config), [layer.num_experts for layer in config.layers]
        return {
            **theirs,
            "use_sliding_window": SLIDING in theirs["layer_types"],
            "num_experts": max(each),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [i for i, found in enumerate(each) if not found],
        }

    return Conversion(read, write)


def _by_layer(values: Values) -> tuple[list, dict]:
    most = number(values, "max_window_layers", 28)
    used = flag(values, "use_sliding_window")
    kinds = layer_kinds(values, 24, lambda i: used and i % 2 == 0 and i < most)
    window = number(values, "sliding_window", 4096) if SLIDING in kinds else None
    return kinds, {FULL: None, SLIDING: window}


def layers_alike(values: Values) -> tuple[list, dict]:
    """Return the kind of each layer, all of them full attention, and their window, if any."""
    used = values.get("use_sliding_window") and values.get("sliding_window", 4096) is not None
    window = number(values, "sliding_window", 4096) if used else None
    kinds = layer_kinds({**values, "layer_types": None}, 24, lambda i: False)
    return kinds, {FULL: window}


QWEN2_MOE = dataclasses.replace(
    QWEN2,
    model_type="qwen2_moe",
    architecture="Qwen2MoeModel",
    fields={
        **QWEN2.fields,
        **_FIELDS,
        "num_attention_heads": ConfigField("num_heads", 16),
        "num_key_value_heads": ConfigField("num_key_value_heads", 16),
        "intermediate_size": ConfigField("intermediate_dim", 5632),
        "num_experts_per_tok": ConfigField("experts_per_token", 4),
        "moe_intermediate_size": ConfigField("expert_dim", 1408),
        "shared_expert_intermediate_size": ConfigField("shared_expert_dim", 5632),
        "qkv_bias": ConfigField("attention_bias", True),
    },
    constants={k: v for k, v in QWEN2.constants.items() if k != "attention_bias"},
    conversions=(rotary(), layers_with_experts(60, _by_layer)),
    weights=(*QWEN2.weights, *EXPERTS, *layers(_SHARED, "decoder/layer_{i}/", "layers.{i}.")),
)

QWEN3_MOE = dataclasses.replace(
    QWEN3,
    model_type="qwen3_moe",
    architecture="Qwen3MoeModel",
    fields={
        **QWEN3.fields,
        **_FIELDS,
        "head_dim": ConfigField("head_dim", None),
        "num_key_value_heads": ConfigField("num_key_value_heads", 4),
        "intermediate_size": ConfigField("intermediate_dim", 6144),
        "num_experts_per_tok": ConfigField("experts_per_token", 8),
        "moe_intermediate_size": ConfigField("expert_dim", 768),
    },
    conversions=(rotary(), layers_with_experts(128, layers_alike)),
    weights=(*QWEN3.weights, *EXPERTS),
)
