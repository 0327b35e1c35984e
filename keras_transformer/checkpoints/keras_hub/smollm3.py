"""SmolLM3 in KerasHub's form.

Its class has no windows, whatever `layer_types` says, rotates whole heads alone, and has no bias
behind the heads. It stores the frequencies of the rotation among the weights. Facts are from
KerasHub 0.32, `models/smollm3/*.py`.
"""

from typing import Any

import numpy as np

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import FULL, number_of_layers
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.families.decoders.smollm3 import LAYERS
from keras_transformer.checkpoints.keras_hub.decoders import DECODER, HEADS, NAMES
from keras_transformer.checkpoints.keras_hub.family import (
    FIELDS,
    HEAD_WIDTH,
    REVERSIBLE,
    layers,
    make_family,
    numbered,
)
from keras_transformer.checkpoints.weights.tables import attention
from keras_transformer.config import TransformerConfig
from keras_transformer.layers.position import RotaryEmbedding

_KINDS, _ROTATED = "layer_types", "rope_layer_enabled_list"
_OURS, _THEIRS = "decoder/layer_{i}/", "layers/smol_lm3_decoder_layer{i}/"
_HEADS = attention("self_attn/{}_proj", "q", "k", "v", "o")
_OUTPUT = {name: its for name, its in _HEADS.items() if name.endswith("output")}
_FLAT = {
    **{name: its for name, its in _HEADS.items() if name not in _OUTPUT},
    **{
        f"feed_forward/{ours}": f"mlp/{its}_proj"
        for ours, its in {"gate": "gate", "intermediate": "up", "output": "down"}.items()
    },
    "self_attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
}


def _read_layers(values: Values) -> dict[str, Any]:
    count = number_of_layers({"num_hidden_layers": values["num_layers"]}, 1)
    kinds, rotated = values[_KINDS], values[_ROTATED]
    if not isinstance(kinds, list) or any(kind not in (FULL, "attention") for kind in kinds):
        raise ValueError(
            f"{_KINDS}={str(kinds)[:200]} is not supported, only a list of {FULL!r}: KerasHub's "
            "layers have no windows."
        )
    if not isinstance(rotated, list) or any(type(each) is not bool for each in rotated):
        raise ValueError(f"{_ROTATED} must be a list of true and false, not {str(rotated)[:200]}.")
    if len(kinds) < count:
        raise ValueError(f"{_KINDS} has {len(kinds)} values for {count} layers.")
    rotated = [*rotated, *[True] * (count - len(rotated))][:count]
    if not any(rotated):
        raise ValueError(f"{_ROTATED} must have a layer with a rotation.")
    return LAYERS.read({"num_hidden_layers": count, "no_rope_layers": rotated})


def _write_layers(config: TransformerConfig) -> dict[str, Any]:
    theirs = LAYERS.write(config)
    return {
        _KINDS: theirs["layer_types"],
        _ROTATED: [bool(each) for each in theirs["no_rope_layers"]],
    }


def _frequencies(config: TransformerConfig) -> dict[str, np.ndarray]:
    turned = RotaryEmbedding(config.rotary_base).frequencies(config.head_dim).astype("float32")
    name = f"{_THEIRS}self_attn/rotary_embedding/vars/0"
    return {name.replace("{i}", numbered(i)): turned for i in range(config.num_layers)}


SMOLLM3 = make_family(
    "smollm3",
    "SmolLM3",
    {
        **{name: FIELDS[name] for name in FIELDS if name not in ("num_heads", "dropout")},
        "num_attention_heads": ConfigField("num_heads", None),
        "num_key_value_heads": ConfigField("num_key_value_heads", None),
        "attention_bias": ConfigField("attention_bias", None),
        "attention_dropout": ConfigField("attention_dropout", None),
        "mlp_bias": ConfigField("use_bias", None),
        "layer_norm_epsilon": ConfigField("normalization_epsilon", None),
        "max_position_embeddings": ConfigField("max_sequence_length", None),
        "rope_theta": ConfigField("rotary_base", None),
    },
    {
        **DECODER,
        **LLAMA.constants,
        "activation": "silu",
        "tie_embeddings": True,
        "attention_output_bias": False,
    },
    (
        *REVERSIBLE[:1],
        *layers(_FLAT, _OURS, _THEIRS, apart=False),
        *layers(_OUTPUT, _OURS, _THEIRS),
        *layers({"decoder/final_norm": "layers/rms_normalization"}),
    ),
    HEADS,
    conversions=(HEAD_WIDTH, Conversion(_read_layers, _write_layers)),
    needed=(_KINDS, _ROTATED),
    more=(),
    required={"partial_rotary_factor": 1.0},
    computed=_frequencies,
    names=NAMES,
)
