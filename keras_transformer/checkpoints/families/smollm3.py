"""SmolLM3: Bakouch et al. 2025, https://huggingface.co/blog/smollm3.

A Llama with layers without positions by turns: Yang et al. 2025, https://arxiv.org/abs/2501.18795.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.family import Conversion, Field, Values
from keras_transformer.checkpoints.families.llama import LLAMA
from keras_transformer.checkpoints.families.shared import (
    NO_PADDING,
    SLIDING,
    by_turns,
    layer_kinds,
    number,
    rotary,
    write_windows,
)
from keras_transformer.config import TransformerConfig


def _read_layers(values: Values) -> dict[str, Any]:
    every = number(values, "no_rope_layer_interval", 4)
    rotated = values.get("no_rope_layers")
    if rotated is not None and not isinstance(rotated, list):
        raise ValueError(f"no_rope_layers must be a list, one a layer, received {rotated!r}.")

    def is_rotated(i: int) -> bool:
        return bool(rotated[i]) if rotated else (i + 1) % max(every, 1) != 0

    window = values.get("sliding_window")
    window = None if window is None else number(values, "sliding_window", None)
    slides = bool(values.get("use_sliding_window"))  # of configs that do not name the layers
    count = number(values, "num_hidden_layers", 36)
    if rotated and len(rotated) != count:
        raise ValueError(f"no_rope_layers has {len(rotated)} values for {count} layers.")
    kinds = layer_kinds(values, 36, lambda i: slides and not is_rotated(i))
    kinds = [(is_rotated(i), kind == SLIDING) for i, kind in enumerate(kinds)]
    return by_turns(
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


SMOLLM3 = dataclasses.replace(
    LLAMA,
    model_type="smollm3",
    architecture="SmolLM3Model",
    fields={
        **LLAMA.fields,
        "vocab_size": Field("vocabulary_size", 128256),
        "hidden_size": Field("hidden_dim", 2048),
        "num_hidden_layers": Field("num_layers", 36),
        "num_attention_heads": Field("num_heads", 16),
        "num_key_value_heads": Field("num_key_value_heads", 4),
        "max_position_embeddings": Field("max_sequence_length", 32768),
        "tie_word_embeddings": Field("tie_embeddings", True),
    },
    conversions=(rotary(default_base=2e6), Conversion(_read_layers, _write_layers), NO_PADDING),
)
