"""PatchTSMixer: Ekambaram et al. 2023, https://arxiv.org/abs/2306.09364.

A PatchTST with a feed-forward layer over the pieces in place of attention. Gates multiply what the
feed-forward layers return. Each channel is a row of its own (`common_channel`).
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers
from keras_transformer.config import SeriesStemConfig, TokenMixing, TransformerConfig

_NORMS = {"LayerNorm": "layer_norm", "BatchNorm": "batch_norm"}
_REFUSED = tuple(
    f"PatchTSMixerFor{end}" for end in ("Pretraining", "Regression", "TimeSeriesClassification")
)


def _read(values: Values) -> dict[str, Any]:
    named = values.get("architectures")
    other = [name for name in _REFUSED if isinstance(named, list) and name in named]
    if other:
        raise ValueError(
            f"architectures={named!r} is not supported, only 'PatchTSMixerForPrediction' or "
            "'PatchTSMixerModel'. No task of this package has the head of another class."
        )
    mode, norm = values.get("mode", "common_channel"), values.get("norm_mlp", "LayerNorm")
    if mode != "common_channel":
        raise ValueError(
            f"mode={mode!r} is not supported, only 'common_channel': a row is one channel, which "
            "sees no other."
        )
    if not isinstance(norm, str):
        raise ValueError(f"norm_mlp={norm!r} is not supported, only {[*_NORMS]}.")
    scaling = values.get("scaling", "std")
    if scaling is not True and scaling != "std":  # in Transformers, null disables scaling
        raise ValueError(f"scaling={scaling!r} is not supported, only 'std'.")
    kind = values.get("positional_encoding_type", "sincos")
    if kind not in ("sincos", "random"):
        raise ValueError(
            f"positional_encoding_type={kind!r} is not supported, only 'sincos' or 'random'."
        )
    sizes = {"context_length": 32, "patch_length": 8, "patch_stride": 8}
    context, patch, stride = (number(values, name, usual) for name, usual in sizes.items())
    if context <= patch:
        raise ValueError(f"context_length={context} must be more than patch_length={patch}.")
    stem = SeriesStemConfig(
        context_length=context,
        patch_length=patch,
        stride=stride,
        num_channels=number(values, "num_input_channels", 1),
    )
    width, factor = number(values, "d_model", 8), number(values, "expansion_factor", 2)
    gate = flag(values, "gated_attn", True)
    mixer = TokenMixing(length=stem.num_states, dim=factor * stem.num_states, softmax_gate=gate)
    return {
        # Their norm is of a batch if its name has these letters.
        "normalization": "batch_norm" if "batch" in norm.lower() else "layer_norm",
        "position": "learned" if flag(values, "use_positional_encoding") else "none",
        "stem": stem,
        "mixer": mixer,
        "intermediate_dim": factor * width,
        "softmax_gate": gate,
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    stem, mixer = config.stem, config.last_side.block.mixer
    if stem is None or stem.kind != "series" or not isinstance(mixer, TokenMixing):
        raise ValueError(
            "A checkpoint of this family needs a stem for series, and `TokenMixing` as its mixer."
        )
    norms = {ours: theirs for theirs, ours in _NORMS.items()}
    return {
        "mode": "common_channel",
        "norm_mlp": norms.get(config.normalization, config.normalization),
        "context_length": stem.context_length,
        "patch_length": stem.patch_length,
        "patch_stride": stem.stride,
        "num_input_channels": stem.num_channels,
        "use_positional_encoding": config.position == "learned",
        "positional_encoding_type": "random",  # a trained table
        "expansion_factor": config.intermediate_dim // config.hidden_dim,
        "gated_attn": config.softmax_gate,
        "scaling": "std",
    }


def _read_head(values: Values) -> dict[str, Any]:
    if values.get("loss", "mse") != "mse":
        raise ValueError(
            f"loss={values['loss']!r} is not supported, only 'mse': a distribution head "
            "returns parameters, not values."
        )
    if values.get("prediction_channel_indices") is not None:
        raise ValueError(
            f"prediction_channel_indices={values['prediction_channel_indices']!r} is not "
            "supported: all channels are forecast."
        )
    return {"horizon": number(values, "prediction_length", 16), "pooling": None}


def _write_head(task: Values) -> dict[str, Any]:
    if task.get("quantiles") is not None:
        raise ValueError("A patchtsmixer checkpoint forecasts one value, but this model quantiles.")
    return {"prediction_length": task["horizon"], "loss": "mse"}


_LAYER = {
    "mixer/tokens/intermediate": "patch_mixer.mlp.fc1",
    "mixer/tokens/output": "patch_mixer.mlp.fc2",
    "mixer/tokens/softmax_gate": "patch_mixer.gating_block.attn_layer",
    "feed_forward/intermediate": "feature_mixer.mlp.fc1",
    "feed_forward/output": "feature_mixer.mlp.fc2",
    "feed_forward/softmax_gate": "feature_mixer.gating_block.attn_layer",
}
_PLACES = {"mixer_norm": "patch_mixer.norm.norm", "feed_forward_norm": "feature_mixer.norm.norm"}
_LAYERS = ("encoder/layer_{i}/", "encoder.mlp_mixer_encoder.mixers.{i}.")
_OF_BATCH = ("normalization", "batch_norm")
_BATCH_NORMS = layers({ours: f"{its}.batchnorm" for ours, its in _PLACES.items()}, *_LAYERS)

PATCHTSMIXER = Family(
    model_type="patchtsmixer",
    architecture="PatchTSMixerModel",
    fields={
        "d_model": ConfigField("hidden_dim", 8),
        "num_layers": ConfigField("num_layers", 3),
        "norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "dropout": ConfigField("dropout", 0.2),
        "init_std": ConfigField("initializer_range", 0.02),
    },
    constants={
        "kind": "encoder",
        "vocabulary_size": 0,
        "activation": "gelu",
        "normalize_first": True,
        "final_normalization": False,
    },
    conversions=(Conversion(_read, _write),),
    required={"self_attn": False, "minimum_scale": 1e-5},
    weights=(
        *layers({"encoder/input_patches": "encoder.patcher"}),
        WeightLine(
            "encoder/position_embedding/embeddings", "encoder.positional_encoder.position_enc"
        ),
        *layers(_LAYER, *_LAYERS),
        *(line for line in layers(_PLACES, *_LAYERS) if line.when != _OF_BATCH),
        *(line for line in _BATCH_NORMS if line.when == _OF_BATCH),
    ),
    heads={
        "Forecaster": PublishedHead(
            weights=layers({"output": "head.base_forecast_block"}),
            options=(Conversion(_read_head, _write_head),),
            dropout="head_dropout",
        )
    },
    names=Names(prefixes=("model.",)),
)
