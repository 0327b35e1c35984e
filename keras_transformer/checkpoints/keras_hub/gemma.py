"""Gemma, Gemma 2 and the texts of Gemma 3 in KerasHub's form.

One class is Gemma and Gemma 2. Its `intermediate_dim` counts the gate and what it multiplies
together. Facts are from KerasHub 0.32, `models/gemma/*.py` and `models/gemma3/*.py`.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion, Values
from keras_transformer.checkpoints.families.base.shared import (
    FULL,
    SLIDING,
    cycle_of_layers,
    flag,
    number,
    number_of_layers,
)
from keras_transformer.checkpoints.families.decoders.gemma import GEMMA as PUBLISHED
from keras_transformer.checkpoints.keras_hub.decoders import DECODER, HEADS, NAMES
from keras_transformer.checkpoints.keras_hub.family import (
    DROPOUT,
    FIELDS,
    REVERSIBLE,
    layers,
    make_family,
)
from keras_transformer.checkpoints.weights.tables import attention
from keras_transformer.config import TransformerConfig

_FIELDS = {
    **{name: field for name, field in FIELDS.items() if name != "num_heads"},
    "dropout": ConfigField("dropout", 0.0),
    "num_query_heads": ConfigField("num_heads", None),
    "num_key_value_heads": ConfigField("num_key_value_heads", None),
    "head_dim": ConfigField("head_dim", None),
    "attention_logit_soft_cap": ConfigField("attention_soft_cap", None),
    "final_logit_soft_cap": ConfigField("logit_soft_cap", None),
}
_CONSTANTS = {
    **DECODER,
    **PUBLISHED.constants,
    "activation": "gelu_tanh",
    "tie_embeddings": True,
    "normalization_epsilon": 1e-6,  # its argument sets the last norm alone
}
_REQUIRED = {
    "layer_norm_epsilon": 1e-6,
    # KerasHub's blocks divide by the root of the width of a head, whatever this says.
    "query_head_dim_normalize": True,
}
_NORMS = ("use_post_attention_norm", "use_post_ffw_norm")
_WINDOW = ("use_sliding_window_attention", "sliding_window_size")
_LOCAL_BASE, _GLOBAL_BASE = 1e4, 1e6  # of Gemma 3: KerasHub has no argument for them
_SCALES = ("local_rope_scaling_factor", "global_rope_scaling_factor")
_TABLE = {
    **attention("attention/{}_dense", "query", "key", "value", "output"),
    "self_attention/query_norm": "attention/query_norm",
    "self_attention/key_norm": "attention/key_norm",
    "self_attention_norm": "pre_attention_norm",
    "self_attention_output_norm": "post_attention_norm",
    "feed_forward/gate": "gating_ffw",
    "feed_forward/intermediate": "gating_ffw_2",
    "feed_forward/output": "ffw_linear",
    "feed_forward_norm": "pre_ffw_norm",
    "feed_forward_output_norm": "post_ffw_norm",
}


def _read_norms(values: Values) -> dict[str, Any]:
    used = {flag(values, name) for name in _NORMS}
    if len(used) > 1:
        raise ValueError(f"{' and '.join(_NORMS)} must be equal: both norms exist, or neither.")
    return {"normalize_output": used.pop()}


def _window(values: Values, usual: int) -> int | None:
    used, size = _WINDOW
    return number(values, size, usual) if flag(values, used) else None


def _kinds(values: Values, each: int) -> list[str]:
    """Return the kinds of the layers: the last of `each` has no window."""
    count = number_of_layers({"num_hidden_layers": values["num_layers"]}, 1)
    return [FULL if i % each == each - 1 else SLIDING for i in range(count)]


def _read_windows(values: Values) -> dict[str, Any]:
    window = _window(values, 4096)
    if window is None:
        return {"window": None}
    return cycle_of_layers(_kinds(values, 2), {FULL: {"window": None}, SLIDING: {"window": window}})


def _read_layers(values: Values) -> dict[str, Any]:
    window = _window(values, 1024)
    turned = {}
    bases = (_LOCAL_BASE, _GLOBAL_BASE)
    for kind, name, base in zip((SLIDING, FULL), _SCALES, bases, strict=True):
        factor = number(values, name, 1.0, float)
        scaling = None if factor == 1 else "linear"
        turned[kind] = {
            "rotary_base": base,
            "rotary_scaling": scaling,
            "rotary_factor": factor,
            "window": window if kind == SLIDING else None,
        }
    return turned[FULL] if window is None else cycle_of_layers(_kinds(values, 6), turned)


def _write_window(config: TransformerConfig) -> dict[str, Any]:
    found = [layer.window for layer in config.layers if layer.window is not None]
    used, size = _WINDOW
    return {used: bool(found), **({size: found[0]} if found else {})}


def _write_layers(config: TransformerConfig) -> dict[str, Any]:
    theirs = _write_window(config)
    for layer in config.layers:
        name = _SCALES[layer.window is None]
        theirs[name] = layer.rotary_factor if layer.rotary_scaling == "linear" else 1.0
    return theirs


_USUAL = (
    DROPOUT,
    Conversion(_read_norms, lambda config: dict.fromkeys(_NORMS, config.normalize_output)),
)
_INTERMEDIATE = Conversion(
    lambda values: {"intermediate_dim": number(values, "intermediate_dim", None) // 2},
    lambda config: {"intermediate_dim": 2 * config.intermediate_dim},
)


def _lines(layer: str):
    return (
        *REVERSIBLE[:1],
        *layers(_TABLE, "decoder/layer_{i}/", f"layers/{layer}{{i}}/", heads_first=True),
        *layers({"decoder/final_norm": "layers/rms_normalization"}),
    )


GEMMA = (
    make_family(
        "gemma2",
        "Gemma",
        {name: field for name, field in _FIELDS.items() if name != "intermediate_dim"},
        _CONSTANTS,
        _lines("gemma_decoder_block"),
        HEADS,
        conversions=(
            *_USUAL,
            _INTERMEDIATE,
            Conversion(_read_windows, _write_window),
        ),
        more=("intermediate_dim", *_NORMS, *_WINDOW),
        required=_REQUIRED,
        names=NAMES,
        older=("gemma", _NORMS[0]),
    ),
    make_family(
        "gemma3_text",
        "Gemma3",
        {**_FIELDS, "use_query_key_norm": ConfigField("query_key_norm", True)},
        _CONSTANTS,
        _lines("gemma3_decoder_block"),
        HEADS,
        conversions=(
            *_USUAL,
            Conversion(_read_layers, _write_layers),
            Conversion(lambda values: {}, lambda config: {"image_size": None}),
        ),
        more=(
            *_NORMS,
            *_WINDOW,
            *_SCALES,
            "image_size",  # of images: no output for text depends on it
            "pooling_intermediate_dim",
            "embedding_dim",
        ),
        required={
            **_REQUIRED,
            "use_bidirectional_attention": False,
            "is_embedding_model": False,
            "vision_encoder": None,
        },
        names=NAMES,
    ),
)
