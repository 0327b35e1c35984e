"""SmolLM3: Bakouch et al. 2025, https://huggingface.co/blog/smollm3.

A Llama in which some layers have no positions: Yang et al. 2025, https://arxiv.org/abs/2501.18795.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import (
    NO_PADDING,
    SLIDING,
    cycle_of_layers,
    flag,
    layer_kinds,
    number,
    rotary,
    write_windows,
)
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.config import TransformerConfig


def _read_layers(values: Values) -> dict[str, Any]:
    every = number(values, "no_rope_layer_interval", 4)
    rotated = values.get("no_rope_layers")
    if rotated is not None and not isinstance(rotated, list):
        raise ValueError(
            f"no_rope_layers must be a list with a value per layer, received {rotated!r}."
        )

    def is_rotated(i: int) -> bool:
        return bool(rotated[i]) if rotated else (i + 1) % max(every, 1) != 0

    window = values.get("sliding_window")
    window = None if window is None else number(values, "sliding_window", None)
    slides = flag(values, "use_sliding_window")  # for configs without `layer_types`
    count = number(values, "num_hidden_layers", 36)
    if rotated and len(rotated) != count:
        raise ValueError(f"no_rope_layers has {len(rotated)} values for {count} layers.")
    kinds = layer_kinds(values, 36, lambda i: slides and not is_rotated(i))
    kinds = [(is_rotated(i), kind == SLIDING) for i, kind in enumerate(kinds)]
    return cycle_of_layers(
        kinds,
        {
            (turned, slides): {
                "position": "rotary" if turned else "none",
                "window": window if slides else None,
            }
            for turned in (True, False)
            for slides in (False, True)
        },
    )


def _write_layers(config: TransformerConfig) -> dict[str, Any]:
    theirs = write_windows(config)
    return {
        **theirs,
        "use_sliding_window": SLIDING in theirs["layer_types"],
        "no_rope_layers": [int(layer.position == "rotary") for layer in config.layers],
    }


LAYERS = Conversion(_read_layers, _write_layers)
SMOLLM3 = dataclasses.replace(
    LLAMA,
    model_type="smollm3",
    architecture="SmolLM3Model",
    fields={
        **LLAMA.fields,
        "vocab_size": ConfigField("vocabulary_size", 128256),
        "hidden_size": ConfigField("hidden_dim", 2048),
        "num_hidden_layers": ConfigField("num_layers", 36),
        "num_attention_heads": ConfigField("num_heads", 16),
        "num_key_value_heads": ConfigField("num_key_value_heads", 4),
        "max_position_embeddings": ConfigField("max_sequence_length", 32768),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    conversions=(rotary(default_base=2e6), LAYERS, NO_PADDING),
)
