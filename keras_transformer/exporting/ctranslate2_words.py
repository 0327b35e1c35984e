"""Translation of config values to CTranslate2; values without an equivalent raise ValueError."""

import warnings
from typing import Any

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.config.flat import FIELDS
from keras_transformer.layers.position import RotaryEmbedding
from keras_transformer.support.checking import shorten

# Names in `ctranslate2.specs.common_spec.Activation`.
_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "quick_gelu": "GELUSigmoid",
}
# Config values that are exported, or that only matter for training. All others must have their
# defaults.
_SAID = frozenset(
    (
        "kind", "vocabulary_size", "hidden_dim", "num_layers", "num_heads", "intermediate_dim",
        "num_decoder_layers", "num_key_value_heads", "head_dim", "embedding_dim",
        "token_projection", "share_embeddings", "num_layer_groups", "layers_per_group", "use_bias",
        "attention_bias", "key_bias", "attention_output_bias", "query_key_norm",
        "parallel_residual", "share_normalization", "residual_scale", "trained_residual_scale",
        "normalization", "normalization_epsilon", "normalize_first", "normalize_output",
        "embedding_normalization", "final_normalization", "max_sequence_length",
        "segment_vocabulary_size", "score", "score_scale",
        "tie_embeddings", "scale_embedding", "embedding_scale", "encoder",
        "decoder", "layer_pattern", "position", "position_offset", "position_padding_id",
        "sinusoidal_interleaved", "sinusoidal_inclusive", "rotary_base", "rotary_dim",
        "rotary_interleaved", "rotary_scaling", "rotary_factor", "rotary_min_turns",
        "rotary_max_turns", "rotary_original_length", "rotary_truncate", "rotary_short_factors",
        "rotary_long_factors", "rotary_attention_factor", "alibi_scale", "relative_num_buckets",
        "relative_max_distance", "activation", "gated", "window", "scale_logits", "logit_scale",
        "output_bias", "logit_soft_cap", "pooler", "experts_per_token", "expert_dim",
    )
)  # fmt: skip
_OTHERS = "Use another of the formats in `exporting.FORMATS`, such as 'onnx'."


def check(config: TransformerConfig) -> None:
    """Raise ValueError if a value has no equivalent in CTranslate2."""
    _check_said(config)
    flat = config.sides
    if config.kind == "decoder" and config.position == "relative":
        _refuse("position", "relative", "Its decoders count distances in a prompt wrongly.")
    for side in flat:
        layers = side.layers
        for layer in layers:
            _check_said(layer)
            _check_layer(layer)
        for name in ("num_heads", "activation", "normalize_first", "normalize_output"):
            if len({getattr(layer, name) for layer in layers}) > 1:
                _refuse(
                    name,
                    [getattr(layer, name) for layer in layers],
                    "All layers of a stack share one.",
                )
        if len({layer.window for layer in layers} - {None}) > 1:
            _refuse(
                "window", [layer.window for layer in layers], "All layers of a stack share one."
            )
        if side.query_key_norm and config.kind == "seq2seq":
            _refuse("query_key_norm", True, "Its cross-attention does not support it.")
        if side.segment_vocabulary_size and config.kind != "encoder":
            _refuse("segment_vocabulary_size", side.segment_vocabulary_size)
    reach = [window(side) for side in flat if window(side)]
    if reach and reach[0] < config.max_sequence_length:
        warnings.warn(
            f"CTranslate2 attends to more tokens than window={reach[0]} in a prompt of more than "
            f"{reach[0]} tokens: it reads the prompt in chunks of a window's length, each of which "
            "sees all of the chunk before.",
            stacklevel=2,
        )
    epsilons = {layer.normalization_epsilon for side in flat for layer in side.layers}
    if len(epsilons) > 1:
        _refuse("normalization_epsilon", sorted(epsilons), "All layers of a model share one.")


def _check_said(config: TransformerConfig) -> None:
    """Raise ValueError if a value that is not exported differs from its default."""
    if not config.by_keywords:
        raise ValueError(
            "CTranslate2 has no layers for the parts of this config. Use another of the formats in "
            "`exporting.FORMATS`, such as 'onnx'."
        )
    stated = config.stated()
    for field in FIELDS.values():
        value = stated.get(field.name, field.default)
        known = field.name in _SAID or field.metadata["changeable"]
        if not known and value != field.default:
            _refuse(field.name, value)


def _check_layer(layer: TransformerConfig) -> None:
    """Raise ValueError if CTranslate2 does not support a layer's values or their combination."""
    if layer.activation not in _ACTIVATIONS:
        _refuse(
            "activation", layer.activation, f"It supports {', '.join(map(repr, _ACTIVATIONS))}."
        )
    if layer.normalization in ("batch_norm", "rms_norm_no_weight"):
        _refuse("normalization", layer.normalization)
    if layer.score != "scaled_dot":
        _refuse("score", layer.score)
    if layer.embedding_dim != layer.hidden_dim and not layer.token_projection:
        _refuse("embedding_dim", layer.embedding_dim, "Its encoders cannot project embeddings.")
    if layer.normalize_output and not layer.normalize_first:
        _refuse("normalize_output", True, "It supports this only with `normalize_first`.")
    of_decoder = layer.kind == "decoder"
    if layer.parallel_residual and not of_decoder:
        _refuse("parallel_residual", True, "Its encoders do not support it.")
    if layer.position == "alibi" and not of_decoder:
        _refuse("position", "alibi", "Its encoders do not support it.")
    if layer.alibi_scale not in (1, score_scale(layer)):
        _refuse("alibi_scale", layer.alibi_scale, f"It supports 1 and {score_scale(layer)}.")
    if layer.window is not None and not of_decoder:
        _refuse("window", layer.window, "Its encoders attend to all tokens.")
    _check_rotary(layer)


def _check_rotary(layer: TransformerConfig) -> None:
    if layer.position != "rotary":
        return
    longest, trained = layer.max_sequence_length, layer.rotary_original_length
    if layer.rotary_scaling in ("dynamic", "longrope") and longest > trained:
        raise ValueError(
            f"CTranslate2 computes the angles of rotary_scaling={layer.rotary_scaling!r} once, "
            f"whatever the length of a text, received max_sequence_length={longest:,} and "
            f"rotary_original_length={trained:,}. Load the model with "
            f"`max_sequence_length={trained}`: up to this length the angles do not change."
        )
    if raised(layer) != 1 and layer.rotary_dim not in (None, layer.head_dim):
        why = f"It supports rotary_scaling={layer.rotary_scaling!r} only for whole heads."
        _refuse("rotary_dim", layer.rotary_dim, why)


def _refuse(name: str, value: Any, why: str = "") -> None:
    why = f"{why} {_OTHERS}" if why else _OTHERS
    raise ValueError(f"CTranslate2 has no equivalent of {name}={shorten(value)}. {why}")


def activation(config: TransformerConfig) -> Any:
    """Return CTranslate2's value for the activation of a stack."""
    from ctranslate2.specs.common_spec import Activation

    return Activation[_ACTIVATIONS[config.activation]]


def key_heads(config: TransformerConfig) -> int | None:
    """Return the number of key and value heads, or None if it equals that of the query heads."""
    number = config.num_key_value_heads
    return None if number == config.num_heads else number


def window(config: TransformerConfig) -> int | None:
    """Return the window of a layer, or the one window in a stack; None without a window."""
    if config.kind != "decoder":
        return None
    windows = {layer.window for layer in config.layers} - {None}
    return max(windows, default=None)


def score_scale(config: TransformerConfig, of_self: bool = False) -> float:
    """Return the scale of attention scores; in self-attention it includes `raised` squared."""
    scale = config.score_scale or config.head_dim**-0.5
    return scale * raised(config) ** 2 if of_self else scale


def rotary(config: TransformerConfig) -> dict[str, Any]:
    """Return the arguments of a layer's specification for rotary positions."""
    if config.position != "rotary":
        return {}
    from ctranslate2.specs.attention_spec import RotaryScalingType

    return {
        "rotary_dim": 2 * len(_frequencies(config)),
        "rotary_interleave": config.rotary_interleaved,
        "rotary_base": config.rotary_base,
        "rotary_scaling_type": RotaryScalingType.Su,
    }


def fill_rotary(spec: Any, config: TransformerConfig) -> None:
    """Fill in a divisor for the angle of each pair of features.

    The divisors of CTranslate2's "Su" scaling can express every kind of scaling.
    """
    if config.position != "rotary":
        return
    ours = _frequencies(config)
    plain = config.rotary_base ** -(np.arange(len(ours)) / len(ours))
    divisors = (plain / ours).astype("float32")
    spec.rotary_scaling_long_factor = divisors
    spec.rotary_scaling_short_factor = divisors


def _frequencies(config: TransformerConfig) -> np.ndarray:
    """Return the angle in radians between consecutive positions for each pair of features.

    The angles are those of texts up to the length in training.
    """
    dim = config.head_dim if config.rotary_dim is None else config.rotary_dim
    found = _rotary_layer(config).frequencies(dim)
    if config.rotary_scaling == "longrope":
        found = found / np.array(config.rotary_short_factors)
    return found


def raised(config: TransformerConfig) -> float:
    """Return the factor that rotary positions apply to queries and keys."""
    return _rotary_layer(config).raised if config.position == "rotary" else 1.0


def _rotary_layer(config: TransformerConfig) -> RotaryEmbedding:
    return RotaryEmbedding.from_part(config.only_side.block.mixer.position)
