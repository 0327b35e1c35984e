"""What CTranslate2 has a word for: the values of a config, in its terms or refused by name."""

import dataclasses
import warnings
from typing import Any

import numpy as np

from keras_transformer.checking import shorten
from keras_transformer.config import TransformerConfig
from keras_transformer.layers.position import RotaryEmbedding
from keras_transformer.models.stack import block_options

# By the names of `ctranslate2.specs.common_spec.Activation`.
_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "quick_gelu": "GELUSigmoid",
}
# The values of a config that are written, or change no number outside of training. Any other must
# be as it is by default.
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
        "rotary_long_factors", "alibi_scale", "relative_num_buckets", "relative_max_distance",
        "activation", "gated", "window", "scale_logits", "logit_scale", "output_bias",
        "logit_soft_cap", "pooler", "experts_per_token", "expert_dim",
    )
)  # fmt: skip
_OTHERS = "The other formats of `exporting.FORMATS` take it, such as 'onnx'."


def check(config: TransformerConfig) -> None:
    """ValueError for a value that CTranslate2 has no word for."""
    _check_said(config)
    flat = config.sides
    if config.kind == "decoder" and config.position == "relative":
        _refuse("position", "relative", "It counts distances in a prompt wrongly.")
    for side in flat:
        layers = side.layers
        for layer in layers:
            _check_said(layer)
            _check_layer(layer)
        for name in ("num_heads", "activation", "normalize_first", "normalize_output"):
            if len({getattr(layer, name) for layer in layers}) > 1:
                _refuse(name, [getattr(layer, name) for layer in layers], "It is one for a stack.")
        if len({layer.window for layer in layers} - {None}) > 1:
            _refuse("window", [layer.window for layer in layers], "There is one for a stack.")
        if side.query_key_norm and config.kind == "seq2seq":
            _refuse("query_key_norm", True, "Its attention to an encoder has none.")
        if side.segment_vocabulary_size and config.kind != "encoder":
            _refuse("segment_vocabulary_size", side.segment_vocabulary_size)
    reach = [window(side) for side in flat if window(side)]
    if reach and reach[0] < config.max_sequence_length:
        warnings.warn(
            f"CTranslate2 attends to more than window={reach[0]} in a prompt of more than "
            f"{reach[0]} tokens: it reads one a window at a time, each with the one before.",
            stacklevel=2,
        )
    epsilons = {layer.normalization_epsilon for side in flat for layer in side.layers}
    if len(epsilons) > 1:
        _refuse("normalization_epsilon", sorted(epsilons), "It is one for a model.")


def _check_said(config: TransformerConfig) -> None:
    """ValueError for a value other than by default that is not written."""
    stated = config.stated()
    for field in dataclasses.fields(config):
        value = stated.get(field.name, field.default)
        known = field.name in _SAID or field.metadata["changeable"]
        if not known and value != field.default:
            _refuse(field.name, value)


def _check_layer(layer: TransformerConfig) -> None:
    """ValueError for a value of one layer, or for values that do not go together there."""
    if layer.activation not in _ACTIVATIONS:
        _refuse("activation", layer.activation, f"It has {', '.join(map(repr, _ACTIVATIONS))}.")
    if layer.normalization == "batch_norm":
        _refuse("normalization", layer.normalization)
    if layer.score not in ("scaled_dot", "dot"):
        _refuse("score", layer.score)
    if layer.embedding_dim != layer.hidden_dim and not layer.token_projection:
        _refuse("embedding_dim", layer.embedding_dim, "Its encoders have no projection.")
    if layer.normalize_output and not layer.normalize_first:
        _refuse("normalize_output", True, "It has it with `normalize_first` alone.")
    of_decoder = layer.kind == "decoder"
    if layer.parallel_residual and not of_decoder:
        _refuse("parallel_residual", True, "Its encoders have none.")
    if layer.position == "alibi" and not of_decoder:
        _refuse("position", "alibi", "Its encoders have none.")
    if layer.alibi_scale not in (1, score_scale(layer)):
        _refuse("alibi_scale", layer.alibi_scale, f"It has 1 and {score_scale(layer)}.")
    if layer.window is not None and not of_decoder:
        _refuse("window", layer.window, "Its encoders see all tokens.")
    _check_rotary(layer)


def _check_rotary(layer: TransformerConfig) -> None:
    if layer.position != "rotary":
        return
    longest, trained = layer.max_sequence_length, layer.rotary_original_length
    if layer.rotary_scaling in ("dynamic", "longrope") and longest > trained:
        raise ValueError(
            f"CTranslate2 computes the angles of rotary_scaling={layer.rotary_scaling!r} once, and "
            f"not by the length of a row, received max_sequence_length={longest:,} and "
            f"rotary_original_length={trained:,}. Load the model with "
            f"`max_sequence_length={trained}`, up to which they are the same."
        )
    if raised(layer) != 1 and layer.rotary_dim not in (None, layer.head_dim):
        why = f"It has rotary_scaling={layer.rotary_scaling!r} for whole heads alone."
        _refuse("rotary_dim", layer.rotary_dim, why)


def _refuse(name: str, value: Any, why: str = "") -> None:
    why = f"{why} {_OTHERS}" if why else _OTHERS
    raise ValueError(f"CTranslate2 has no word for {name}={shorten(value)}. {why}")


def activation(config: TransformerConfig) -> Any:
    """The activation of a stack."""
    from ctranslate2.specs.common_spec import Activation

    return Activation[_ACTIVATIONS[config.activation]]


def key_heads(config: TransformerConfig) -> int | None:
    """The heads of keys and values, where they are fewer."""
    number = config.num_key_value_heads
    return None if number == config.num_heads else number


def window(config: TransformerConfig) -> int | None:
    """The tokens that a layer keeps, or the layers of a stack."""
    if config.kind != "decoder":
        return None
    windows = {layer.window for layer in config.layers} - {None}
    return max(windows, default=None)


def score_scale(config: TransformerConfig, of_self: bool = False) -> float:
    """What the products of queries and keys are multiplied by, angles of rotary ones included."""
    scale = 1.0 if config.score == "dot" else config.score_scale or config.head_dim**-0.5
    return scale * raised(config) ** 2 if of_self else scale


def rotary(config: TransformerConfig) -> dict[str, Any]:
    """The arguments of a layer that has rotary positions."""
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
    """The divisors of the angles, one for each pair: so all kinds of scaling are one there."""
    if config.position != "rotary":
        return
    ours = _frequencies(config)
    plain = config.rotary_base ** -(np.arange(len(ours)) / len(ours))
    divisors = (plain / ours).astype("float32")
    spec.rotary_scaling_long_factor = divisors
    spec.rotary_scaling_short_factor = divisors


def _frequencies(config: TransformerConfig) -> np.ndarray:
    """The angle of each pair of features from one position to the next, in rows as in training."""
    dim = config.head_dim if config.rotary_dim is None else config.rotary_dim
    found = _rotary_layer(config).frequencies(dim)
    if config.rotary_scaling == "longrope":
        found = found / np.array(config.rotary_short_factors)
    return found


def raised(config: TransformerConfig) -> float:
    """What rotary positions multiply queries and keys by."""
    return _rotary_layer(config).raised if config.position == "rotary" else 1.0


def _rotary_layer(config: TransformerConfig) -> RotaryEmbedding:
    return RotaryEmbedding(**block_options(config)["rotary"])
