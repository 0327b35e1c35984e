"""EXAONE4: LG AI Research 2025, https://arxiv.org/abs/2507.11407.

A Llama with norms on the outputs of the sub-layers and on each head's queries and keys. If three of
four layers have a window, only these have rotary positions.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import (
    FULL,
    SLIDING,
    cycle_of_layers,
    layer_kinds,
    number,
    rotary,
    write_windows,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.families.decoders.olmo2 import OLMO2

_OTHER = ("attention_bias", "mlp_bias")


def _read_layers(values: Values) -> dict[str, Any]:
    if values.get("sliding_window", 4096) is None:
        return {"window": None}
    window = number(values, "sliding_window", 4096)

    def slides(i: int) -> bool:  # of configs without `layer_types`; others may have "LLLG" here
        return (i + 1) % max(number(values, "sliding_window_pattern", 4), 1) != 0

    kinds = layer_kinds(values, 32, slides)
    own = {SLIDING: {"window": window, "position": "rotary"}}
    return cycle_of_layers(kinds, own | {FULL: {"window": None, "position": "none"}})


EXAONE4 = dataclasses.replace(
    OLMO2,
    model_type="exaone4",
    architecture="Exaone4Model",
    fields={name: field for name, field in LLAMA.fields.items() if name not in _OTHER}
    | {
        "vocab_size": ConfigField("vocabulary_size", 102400),
        "num_key_value_heads": ConfigField("num_key_value_heads", 32),
        "intermediate_size": ConfigField("intermediate_dim", 16384),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
    },
    constants={**OLMO2.constants, "query_key_norm_across_heads": False},
    conversions=(rotary(), Conversion(_read_layers, write_windows)),
    heads=LLAMA.heads,
)
