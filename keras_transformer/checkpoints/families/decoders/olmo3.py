"""OLMo3: Team OLMo 2025, https://huggingface.co/allenai/Olmo-3-1025-7B.

An OLMo 2 in which three of four layers have a window. Only the layers without one have rotary
positions that are scaled for longer texts.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import Conversion, Values
from keras_transformer.checkpoints.families.base.shared import (
    FULL,
    SLIDING,
    cycle_of_layers,
    layer_kinds,
    number,
    rotary_of_kinds,
    write_kinds,
)
from keras_transformer.checkpoints.families.decoders.olmo2 import OLMO2

_BASE = {"rope_theta": 500000.0}


def _read_layers(values: Values) -> dict[str, Any]:
    kinds = layer_kinds(values, 32, lambda i: (i + 1) % 4 != 0)
    # Older configs state the values of the layers without a window.
    own = rotary_of_kinds(values, {FULL: _BASE | {**values}, SLIDING: _BASE})
    window = values.get("sliding_window", 4096)
    own[FULL]["window"] = None
    own[SLIDING]["window"] = None if window is None else number(values, "sliding_window", 4096)
    return cycle_of_layers(kinds, own)


OLMO3 = dataclasses.replace(
    OLMO2,
    model_type="olmo3",
    architecture="Olmo3Model",
    conversions=(Conversion(_read_layers, write_kinds),),
)
