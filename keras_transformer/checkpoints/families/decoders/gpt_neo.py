"""GPT-Neo: Black et al. 2021, https://doi.org/10.5281/zenodo.5297715.

A GPT-2 without biases of queries, keys and values, whose scores are not scaled, and whose layers
see all tokens and a window of them by turns.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    cycle_of_layers,
    decoder_heads,
    number,
    unread,
)
from keras_transformer.checkpoints.weights.tables import Names, attention, layers, output_matrix
from keras_transformer.config import MOST_LAYERS, TransformerConfig

_ONCE = {
    "token_embedding": "wte",
    "decoder/position_embedding": "wpe",
    "decoder/final_norm": "ln_f",
}
_LAYER = {
    **attention("attn.attention.{}_proj", "q", "k", "v", "out"),
    "self_attention_norm": "ln_1",
    "feed_forward/intermediate": "mlp.c_fc",
    "feed_forward/output": "mlp.c_proj",
    "feed_forward_norm": "ln_2",
}
_GLOBAL, _LOCAL = "global", "local"
_TYPES = [[[_GLOBAL, _LOCAL], 12]]


def _kinds(values: Values) -> list[str]:
    """Return the kind of each layer from the published list of repeated patterns."""
    count, types = number(values, "num_layers", 24), values.get("attention_types") or _TYPES
    kinds: list[str] = []
    for each in types if isinstance(types, list | tuple) else [types]:
        pattern, times = each if isinstance(each, list | tuple) and len(each) == 2 else (None, 0)
        known = isinstance(pattern, list | tuple) and all(k in (_GLOBAL, _LOCAL) for k in pattern)
        if not known or type(times) is not int:
            raise ValueError(
                f"attention_types has {each!r}, which is not supported, only pairs of a list of "
                f"{_GLOBAL!r} and {_LOCAL!r} and a number of repetitions."
            )
        kinds += [*pattern] * min(times, MOST_LAYERS)
    if len(kinds) != count or not 0 < count <= MOST_LAYERS:
        raise ValueError(f"attention_types describes {len(kinds)} layers, num_layers is {count}.")
    return kinds


def _read(values: Values) -> dict[str, Any]:
    width, inner = number(values, "hidden_size", 2048), values.get("intermediate_size")
    windows = {_GLOBAL: {"window": None}, _LOCAL: {"window": number(values, "window_size", 256)}}
    return {
        "intermediate_dim": 4 * width if inner is None else inner,
        **cycle_of_layers(_kinds(values), windows),
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    found = [layer.window for layer in config.layers]
    theirs = {
        "intermediate_size": config.intermediate_dim,
        "embed_dropout": config.dropout,
        "attention_types": [[[_GLOBAL if window is None else _LOCAL for window in found], 1]],
    }
    window = next((window for window in found if window is not None), None)
    return theirs if window is None else {**theirs, "window_size": window}


GPT_NEO = Family(
    model_type="gpt_neo",
    architecture="GPTNeoModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 50257),
        "max_position_embeddings": ConfigField("max_sequence_length", 2048),
        "hidden_size": ConfigField("hidden_dim", 2048),
        "num_layers": ConfigField("num_layers", 24),
        "num_heads": ConfigField("num_heads", 16),
        "activation_function": ConfigField("activation", "gelu_new"),
        "resid_dropout": ConfigField("dropout", 0.0),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "layer_norm_epsilon": ConfigField("normalization_epsilon", 1e-5),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    constants={
        "kind": "decoder",
        "position": "learned",
        "normalize_first": True,
        "attention_bias": False,
        "attention_output_bias": True,
        "score": "dot",
    },
    conversions=(Conversion(_read, _write),),
    weights=(
        *layers(_ONCE),
        output_matrix("lm_head.weight"),
        *layers(_LAYER, "decoder/layer_{i}/", "h.{i}."),
    ),
    heads=decoder_heads(tokens="classifier"),
    names=Names(prefixes=("transformer.",), ignored=unread("qa_outputs")),
)
