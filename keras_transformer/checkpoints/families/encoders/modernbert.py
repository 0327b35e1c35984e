"""ModernBERT: Warner et al. 2024, https://arxiv.org/abs/2412.13663.

A gated encoder with rotary positions, pre-norm without biases, and a window in two of three layers,
which have a rotary base of their own. The first attention has no norm before it.
"""

from collections.abc import Callable
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    FULL,
    NO_PADDING,
    SLIDING,
    cycle_of_layers,
    flag,
    layer_kinds,
    number,
    rotary_of_kinds,
    write_kinds,
)
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    fused,
    layers,
    output_matrix,
)
from keras_transformer.config import TransformerConfig

_ONCE = {
    "token_embedding": "embeddings.tok_embeddings",
    "encoder/embedding_norm": "embeddings.norm",
    "encoder/final_norm": "final_norm",
}
_OURS, _THEIRS = "encoder/layer_{i}/", "layers.{i}."
_QKV = [f"{_OURS}self_attention/{name}" for name in ("query", "key", "value")]
_BRANCHES = [f"{_OURS}feed_forward/{name}" for name in ("gate", "intermediate")]
_LAYER = {
    "self_attention_norm": "attn_norm",
    "self_attention/output": "attn.Wo",
    "feed_forward_norm": "mlp_norm",
    "feed_forward/output": "mlp.Wo",
}


def layers_of_kinds(window: Callable[[int], int], width: Callable[[int], int]) -> Conversion:
    """Return a conversion of the layers; `window` makes ours of a published width, `width` back."""

    def read(values: Values) -> dict[str, Any]:
        return _read_layers(values, window)

    def write(config: TransformerConfig) -> dict[str, Any]:
        theirs = write_kinds(config)
        own = theirs.pop("sliding_window")
        return {**theirs, "local_attention": 128 if own is None else width(own)}

    return Conversion(read, write)


def _read_layers(values: Values, window: Callable[[int], int]) -> dict[str, Any]:
    every = number(values, "global_attn_every_n_layers", 3)
    kinds = layer_kinds(values, 22, lambda i: i % max(every, 1) != 0)
    bases = {FULL: ("global_rope_theta", 160000.0), SLIDING: ("local_rope_theta", 10000.0)}
    own = rotary_of_kinds(
        values, {kind: {**values, "rope_theta": values.get(*base)} for kind, base in bases.items()}
    )
    own[FULL]["window"] = None
    own[SLIDING]["window"] = window(number(values, "local_attention", 128))
    first = [(i > 0, kind) for i, kind in enumerate(kinds)]
    variants = [(normed, kind) for normed in (True, False) for kind in (FULL, SLIDING)]
    return cycle_of_layers(
        first, {v: {**own[v[1]], "attention_normalization": v[0]} for v in variants}
    )


def read_head(values: Values) -> dict[str, Any]:
    """Return our values of the head's hidden layer, of published ones."""
    name = "classifier_activation"
    return {
        "hidden_activation": MODERNBERT.activation(name, values.get(name, "gelu")),
        "hidden_bias": flag(values, "classifier_bias", False),
    }


def write_head(task: Values) -> dict[str, Any]:
    """Return the published values of a head's hidden layer."""
    names = {ours: theirs for theirs, ours in reversed(MODERNBERT.activations.items())}
    name = names[task["hidden_activation"] or "gelu"]
    return {"classifier_activation": name, "classifier_bias": task["hidden_bias"]}


def _read_pooling(values: Values) -> dict[str, Any]:
    name = values.get("classifier_pooling", "cls")
    if name not in ("cls", "mean"):
        raise ValueError(f"classifier_pooling={name!r} is not supported, only 'cls' and 'mean'.")
    return {"pooling": "first" if name == "cls" else name}


def _read_bias(values: Values) -> dict[str, Any]:
    if values.get("decoder_bias") is False:
        raise ValueError("decoder_bias=False is not supported for a MaskedLM, only True.")
    return {}


def _head(
    output: tuple[WeightLine, ...], name: str = "hidden", *further: Conversion
) -> PublishedHead:
    """Return a head with ModernBERT's hidden layer before the output."""
    return PublishedHead(
        weights=(*layers({name: "head.dense", f"{name}_norm": "head.norm"}), *output),
        values={"block_norm": True},
        options=(Conversion(read_head, write_head), *further),
        dropout="classifier_dropout" if name == "hidden" else None,
    )


_OUTPUT = layers({"output": "classifier"})
_POOLING = Conversion(
    _read_pooling,
    lambda task: {"classifier_pooling": "cls" if task["pooling"] == "first" else "mean"},
)

NORM_BIAS = Conversion(
    lambda values: {
        "normalization": "layer_norm" if flag(values, "norm_bias") else "layer_norm_no_bias"
    },
    lambda config: {
        "norm_bias": config.normalization == "layer_norm",
        "embedding_dropout": config.dropout,
    },
)

MODERNBERT = Family(
    model_type="modernbert",
    architecture="ModernBertModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 50368),
        "hidden_size": ConfigField("hidden_dim", 768),
        "num_hidden_layers": ConfigField("num_layers", 22),
        "num_attention_heads": ConfigField("num_heads", 12),
        "intermediate_size": ConfigField("intermediate_dim", 1152),
        "hidden_activation": ConfigField("activation", "gelu"),
        "mlp_dropout": ConfigField("dropout", 0.0),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "attention_bias": ConfigField("attention_bias", False),
        "mlp_bias": ConfigField("use_bias", False),
        "max_position_embeddings": ConfigField("max_sequence_length", 8192),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    constants={
        "kind": "encoder",
        "position": "rotary",
        "normalize_first": True,
        "embedding_normalization": True,
        "gated": True,
    },
    conversions=(
        # The published width counts the neighbours on both sides.
        layers_of_kinds(lambda width: width // 2 + 1, lambda window: 2 * (window - 1)),
        NORM_BIAS,
        NO_PADDING,
    ),
    weights=(
        *layers(_ONCE),
        *fused(_QKV, f"{_THEIRS}attn.Wqkv"),
        *fused(_BRANCHES, f"{_THEIRS}mlp.Wi"),
        *layers(_LAYER, _OURS, _THEIRS),
        output_matrix("decoder.weight"),
    ),
    heads={
        "MaskedLM": _head(
            (WeightLine("output_bias/bias", "decoder.bias"),),
            "transform",
            Conversion(_read_bias, lambda task: {}),
        ),
        "TextClassifier": _head(_OUTPUT, "hidden", _POOLING),
        **dict.fromkeys(("TokenClassifier", "QuestionAnswerer"), _head(_OUTPUT)),
    },
    names=Names(prefixes=("model.",)),
)
