"""PatchTST: Nie et al. 2022, https://arxiv.org/abs/2211.14730.

It divides a window by its standard deviation, as `Forecaster` does. Its files store sinusoidal
positions as a table, so they are learned positions here. A missing value is replaced by the mean of
its window here; in Transformers the caller has to replace it.
"""

from collections.abc import Iterable
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, attention, layers
from keras_transformer.config import TransformerConfig

_NORMS = {"layernorm": "layer_norm", "batchnorm": "batch_norm"}
_POOLINGS = ("mean", "max", None)
_REFUSED = ("Pretraining", "Regression", "Classification")


def refuse_classes(values: Values, name: str, ends: Iterable[str]) -> None:
    """Raise ValueError if a checkpoint is of a class `{name}For{end}`, none of which has a task."""
    named = values.get("architectures")
    if isinstance(named, list) and any(f"{name}For{end}" in named for end in ends):
        raise ValueError(
            f"architectures={named!r} is not supported, only '{name}ForPrediction' or "
            f"'{name}Model'. No task of this package has the head of another class."
        )


def read_pieces(values: Values, usual: int) -> tuple[int, int, int]:
    """Return the lengths of a window and of a piece, and the steps from one piece to the next.

    Args:
        values: the published values.
        usual: int, the published default of the last two.

    Raises:
        ValueError: if a length or the kind of the positions is not supported.
    """
    kind = values.get("positional_encoding_type", "sincos")
    if kind not in ("sincos", "random"):
        raise ValueError(
            f"positional_encoding_type={kind!r} is not supported, only 'sincos' or 'random'."
        )
    context = number(values, "context_length", 32)
    patch, stride = (number(values, name, usual) for name in ("patch_length", "patch_stride"))
    if context <= patch:
        raise ValueError(f"context_length={context} must be more than patch_length={patch}.")
    return context, patch, stride


def _read_stem(values: Values) -> dict[str, Any]:
    refuse_classes(values, "PatchTST", _REFUSED)
    norm, scaling = values.get("norm_type", "batchnorm"), values.get("scaling", "std")
    if norm not in _NORMS:
        raise ValueError(f"norm_type={norm!r} is not supported, only 'batchnorm' or 'layernorm'.")
    if scaling != "std":  # in Transformers, null disables scaling
        raise ValueError(f"scaling={scaling!r} is not supported, only 'std'.")
    context, patch, stride = read_pieces(values, 1)
    stem = {
        "kind": "series",
        "context_length": context,
        "patch_length": patch,
        "stride": stride,
        "class_token": flag(values, "use_cls_token", False),
        "num_channels": number(values, "num_input_channels", 1),
    }
    return {"normalization": _NORMS[norm], "stem": stem}


def _write_stem(config: TransformerConfig) -> dict[str, Any]:
    stem = config.stem
    if stem is None or stem.kind != "series":
        raise ValueError("A checkpoint of this family needs a stem for series.")
    norms = {ours: theirs for theirs, ours in _NORMS.items()}
    return {
        "norm_type": norms.get(config.normalization, config.normalization),
        "context_length": stem.context_length,
        "patch_length": stem.patch_length,
        "patch_stride": stem.stride,
        "use_cls_token": stem.class_token,
        "num_input_channels": stem.num_channels,
        "positional_encoding_type": "random",  # a trained table
    }


def _read_head(values: Values) -> dict[str, Any]:
    pooling = values.get("pooling_type", "mean")
    if pooling not in _POOLINGS:
        raise ValueError(f"pooling_type={pooling!r} is not supported, only {_POOLINGS}.")
    if not values.get("share_projection", True):
        raise ValueError("share_projection=False is not supported, only True.")
    if values.get("loss", "mse") != "mse":
        raise ValueError(
            f"loss={values['loss']!r} is not supported, only 'mse': a distribution head "
            "returns parameters, not values."
        )
    pooling = "first" if values.get("use_cls_token", False) else pooling
    return {"horizon": number(values, "prediction_length", 24), "pooling": pooling}


def _write_head(task: Values) -> dict[str, Any]:
    if task.get("quantiles") is not None:
        raise ValueError("A patchtst checkpoint forecasts one value, but this model quantiles.")
    pooling = task.get("pooling")
    pooled = {} if pooling == "first" else {"pooling_type": pooling}
    return {"prediction_length": task["horizon"], "loss": "mse", **pooled}


_LAYER = {
    **attention("self_attn.{}_proj", "q", "k", "v", "out"),
    "feed_forward/intermediate": "ff.0",
    "feed_forward/output": "ff.3",
}
_PLACES = {"self_attention_norm": "norm_sublayer1", "feed_forward_norm": "norm_sublayer3"}
_LAYERS = ("encoder/layer_{i}/", "encoder.layers.{i}.")
_OF_BATCH = ("normalization", "batch_norm")
_BATCH_NORMS = layers({ours: f"{its}.batchnorm" for ours, its in _PLACES.items()}, *_LAYERS)

PATCHTST = Family(
    model_type="patchtst",
    architecture="PatchTSTModel",
    fields={
        "d_model": ConfigField("hidden_dim", 128),
        "num_hidden_layers": ConfigField("num_layers", 3),
        "num_attention_heads": ConfigField("num_heads", 4),
        "ffn_dim": ConfigField("intermediate_dim", 512),
        "activation_function": ConfigField("activation", "gelu"),
        "pre_norm": ConfigField("normalize_first", True),
        "norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "bias": ConfigField("use_bias", True),
        "path_dropout": ConfigField("dropout", 0.0),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "init_std": ConfigField("initializer_range", 0.02),
    },
    constants={
        "kind": "encoder",
        "vocabulary_size": 0,
        "position": "learned",
        "final_normalization": False,
        "attention_bias": True,
    },
    conversions=(Conversion(_read_stem, _write_stem),),
    required={"share_embedding": True, "channel_attention": False, "minimum_scale": 1e-5},
    weights=(
        *layers({"encoder/input_patches": "encoder.embedder.input_embedding"}),
        WeightLine("encoder/input_class_token", "encoder.positional_encoder.cls_token", row=3),
        WeightLine(
            "encoder/position_embedding/embeddings", "encoder.positional_encoder.position_enc"
        ),
        *layers(_LAYER, *_LAYERS),
        *(line for line in layers(_PLACES, *_LAYERS) if line.when != _OF_BATCH),
        *(line for line in _BATCH_NORMS if line.when == _OF_BATCH),
    ),
    heads={
        "Forecaster": PublishedHead(
            weights=layers({"output": "head.projection"}),
            options=(Conversion(_read_head, _write_head),),
            dropout="head_dropout",
        )
    },
    names=Names(prefixes=("model.",)),
)
