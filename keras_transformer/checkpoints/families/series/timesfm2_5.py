"""TimesFM: Das et al. 2024, https://arxiv.org/abs/2310.10688.

Version 2.5, of 2025. Causal blocks read patches, each scaled by the values up to its end, and the
state of the last patch becomes the quantiles of what follows. The scale of the forecast is that of
the last patch, so of the whole window, as everywhere in `Forecaster`. In Transformers no forecast
of a batch is below 0 if no value of any row is; here that holds for each row by itself, as in the
package timesfm.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import flag, number, rotary
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, attention, layers
from keras_transformer.config import Attention, TransformerConfig

_LEVELS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def _read_stem(values: Values) -> dict[str, Any]:
    width, inner = number(values, "hidden_size", 1280), number(values, "intermediate_size", 1280)
    if width != inner:
        raise ValueError(
            f"intermediate_size={inner} is not supported with hidden_size={width}, only the same: "
            "all feed-forward layers have one width."
        )
    stem = {
        "kind": "series",
        "context_length": number(values, "context_length", 16384),
        "patch_length": number(values, "patch_length", 32),
        "reads_observed": True,
        "residual": True,
        "running_scale": True,
    }
    return {"stem": stem, "intermediate_dim": inner}


def _write_stem(config: TransformerConfig) -> dict[str, Any]:
    stem = config.stem
    if stem is None or stem.kind != "series" or not stem.running_scale:
        raise ValueError(
            "A checkpoint of this family needs a stem for series with a `running_scale`."
        )
    return {
        "context_length": stem.context_length,
        "patch_length": stem.patch_length,
        "intermediate_size": config.intermediate_dim,
    }


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    """Add the trained factors of the queries."""
    return _with_query_scale(config, True)


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    mixer = config.encoder.block.mixer if config.kind == "encoder" else None
    if not isinstance(mixer, Attention) or not mixer.query_scale:
        raise ValueError("A checkpoint of this family needs attention with a `query_scale`.")
    return _with_query_scale(config, False), {}


def _with_query_scale(config: TransformerConfig, has: bool) -> TransformerConfig:
    side = config.encoder
    block = side.block.replace(mixer=side.block.mixer.replace(query_scale=has))
    return config.replace(encoder=side.replace(block=block))


def _read_head(values: Values) -> dict[str, Any]:
    levels = values.get("quantiles", _LEVELS)
    if not isinstance(levels, (list, tuple)) or len(levels) % 2 == 0:
        raise ValueError(f"quantiles must be a list with a middle one, received {levels!r}.")
    middle = number(values, "decode_index", 5)
    if middle != len(levels) // 2 + 1:
        raise ValueError(
            f"decode_index={middle} is not supported with {len(levels)} quantiles, only "
            f"{len(levels) // 2 + 1}, which is the middle one."
        )
    return {
        "horizon": number(values, "horizon_length", 128),
        "quantiles": [*levels],
        "spread_horizon": number(values, "output_quantile_len", 1024),
        "pooling": "last",
        "residual": True,
        "residual_bias": False,
        "scale_epsilon": 0.0,
        "symmetric": flag(values, "force_flip_invariance", True),
        "nonnegative": flag(values, "infer_is_positive", True),
    }


def _write_head(task: Values) -> dict[str, Any]:
    if task.get("quantiles") is None or task.get("spread_horizon") is None:
        raise ValueError(
            "A timesfm2_5 checkpoint forecasts quantiles with a `spread_horizon`, this model not."
        )
    return {
        "horizon_length": task["horizon"],
        "quantiles": [*task["quantiles"]],
        "decode_index": len(task["quantiles"]) // 2 + 1,
        "output_quantile_len": task["spread_horizon"],
        "force_flip_invariance": task["symmetric"],
        "infer_is_positive": task["nonnegative"],
    }


_OURS, _THEIRS = "encoder/layer_{i}/", "layers.{i}."
_LAYER = {
    **attention("self_attn.{}_proj", "q", "k", "v", "o"),
    "self_attention/query_norm": "self_attn.q_norm",
    "self_attention/key_norm": "self_attn.k_norm",
    "self_attention_norm": "input_layernorm",
    "self_attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
    "feed_forward/intermediate": "mlp.ff0",
    "feed_forward/output": "mlp.ff1",
}
_RESIDUAL = {"intermediate": "input_layer", "output": "output_layer", "residual": "residual_layer"}

TIMESFM2_5 = Family(
    model_type="timesfm2_5",
    architecture="TimesFm2_5Model",
    fields={
        "hidden_size": ConfigField("hidden_dim", 1280),
        "num_hidden_layers": ConfigField("num_layers", 20),
        "num_attention_heads": ConfigField("num_heads", 16),
        "num_key_value_heads": ConfigField("num_key_value_heads", 16),
        "head_dim": ConfigField("head_dim", 80),
        "activation": ConfigField("activation", "swish"),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-6),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "use_bias": ConfigField("use_bias", False),
        "attention_bias": ConfigField("attention_bias", False),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "max_position_embeddings": ConfigField("max_sequence_length", 16384),
    },
    constants={
        "kind": "encoder",
        "vocabulary_size": 0,
        "causal": True,
        "position": "rotary",
        "normalization": "rms_norm",
        "normalize_first": True,
        "normalize_output": True,
        "final_normalization": False,
        "query_key_norm": True,
        "query_key_norm_after_rotation": True,
    },
    conversions=(Conversion(_read_stem, _write_stem), rotary()),
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    required={"use_continuous_quantile_head": True},
    weights=(
        *layers(_RESIDUAL, "encoder/input_patches/", "input_ff_layer."),
        *layers(_LAYER, _OURS, _THEIRS),
        WeightLine(f"{_OURS}self_attention/query_scale", f"{_THEIRS}self_attn.scaling"),
    ),
    heads={
        "Forecaster": PublishedHead(
            architectures=("TimesFm2_5ModelForPrediction",),
            weights=(
                *layers(_RESIDUAL, "output/", "output_projection_point."),
                *layers(_RESIDUAL, "spread/", "output_projection_quantiles."),
            ),
            options=(Conversion(_read_head, _write_head),),
        )
    },
    names=Names(prefixes=("model.",)),
)
