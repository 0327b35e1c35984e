"""Ernie4_5Moe: Baidu 2025, https://huggingface.co/baidu/ERNIE-4.5-21B-A3B-PT.

An ERNIE 4.5 with experts behind the first layers, chosen with a bias, and shared ones.
"""

import dataclasses
import itertools
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    cycle_of_layers,
    number,
    number_of_layers,
    rotary,
)
from keras_transformer.checkpoints.families.decoders.deepseek import SHARED
from keras_transformer.checkpoints.families.decoders.ernie4_5 import ERNIE4_5
from keras_transformer.checkpoints.families.decoders.olmoe import EXPERTS
from keras_transformer.checkpoints.weights.tables import Names, WeightLine
from keras_transformer.config import Experts, Router, TransformerConfig

_LEAST = 1e-12
_PLACES = ("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval")


def _read_experts(values: Values) -> dict[str, Any]:
    count, width = number_of_layers(values, 28), number(values, "moe_intermediate_size", 1536)
    defaults = zip(_PLACES, (1, -1, 1), strict=True)
    first, last, every = (number(values, name, default) for name, default in defaults)
    if every < 1:
        raise ValueError(f"moe_layer_interval must be at least 1, received {every}.")
    last = count - 1 if last == -1 else last
    found, shared = (
        number(values, name, default)
        for name, default in (("moe_num_experts", 64), ("moe_num_shared_experts", 2))
    )
    router = Router(
        correction_bias=True, epsilon=number(values, "moe_norm_min", _LEAST, float) or _LEAST
    )
    sparse = [first <= i <= last and (i + 1) % every == 0 for i in range(count)]
    own = {True: {"num_experts": found}, False: {"num_experts": 0}}
    return {
        "expert_dim": width,
        "shared_expert_dim": width * shared,
        "router": router,
        **cycle_of_layers(sparse, own),
    }


def _write_experts(config: TransformerConfig) -> dict[str, Any]:
    each = [layer.num_experts for layer in config.layers]
    places = [i for i, found in enumerate(each) if found]
    first, last = (places[0], places[-1]) if places else (len(each), len(each))
    gaps = {after - before for before, after in itertools.pairwise(places)}
    theirs = {
        "moe_layer_start_index": first,
        "moe_layer_end_index": last,
        "moe_layer_interval": min(gaps) if gaps else 1,
    }
    if places:
        blocks = (block.feed_forward for block in config.last_side.every_block)
        experts = next(block for block in blocks if isinstance(block, Experts))
        theirs |= {
            "moe_num_experts": experts.number,
            "moe_intermediate_size": experts.dim,
            "moe_num_shared_experts": experts.shared_dim // experts.dim,
            "moe_norm_min": (experts.router or Router()).epsilon,
        }
    return theirs


ERNIE4_5_MOE = dataclasses.replace(
    ERNIE4_5,
    model_type="ernie4_5_moe",
    architecture="Ernie4_5_MoeModel",
    fields={
        **{n: f for n, f in ERNIE4_5.fields.items() if n != "use_bias"},
        "hidden_size": ConfigField("hidden_dim", 2560),
        "num_hidden_layers": ConfigField("num_layers", 28),
        "num_attention_heads": ConfigField("num_heads", 20),
        "num_key_value_heads": ConfigField("num_key_value_heads", 4),
        "head_dim": ConfigField("head_dim", None),
        "intermediate_size": ConfigField("intermediate_dim", 12288),
        "moe_k": ConfigField("experts_per_token", 6),
        "router_aux_loss_coef": ConfigField("load_balancing_factor", 0.001),
    },
    constants={**ERNIE4_5.constants, "use_bias": False, "shared_expert_gate": False},
    conversions=(rotary(default_base=500000.0), Conversion(_read_experts, _write_experts)),
    required={"use_bias": False},
    weights=(
        *ERNIE4_5.weights,
        *EXPERTS,
        *SHARED,
        WeightLine(
            "decoder/layer_{i}/feed_forward/correction_bias",
            "layers.{i}.mlp.moe_statics.e_score_correction_bias",
            row=1,
        ),
    ),
    heads={"CausalLM": PublishedHead()},
    names=Names(prefixes=("model.",), ignored=("mtp_*",)),
)
