"""PatchTSMixer: Ekambaram et al. 2023, https://arxiv.org/abs/2306.09364.

A PatchTST with a feed-forward layer over the pieces in place of attention. Gates multiply what the
feed-forward layers return. Each channel is a row of its own (`common_channel`), or all channels of
a series are one row (`mix_channel`): then a layer is two blocks here, of which the first mixes the
channels of each piece, and has its gate before its feed-forward layer. With `self_attn` there is
attention beside the feed-forward layer over the pieces, and a norm of their sum.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.families.series.patchtst import read_pieces, refuse_classes
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, attention, layers
from keras_transformer.config import (
    MOST_LAYERS,
    Attention,
    Chunks,
    Mixer,
    Parallel,
    SeriesStemConfig,
    TokenMixing,
    TransformerConfig,
)

_NORMS = {"LayerNorm": "layer_norm", "BatchNorm": "batch_norm"}
_REFUSED = ("Pretraining", "Regression", "TimeSeriesClassification")


def _read(values: Values) -> dict[str, Any]:
    refuse_classes(values, "PatchTSMixer", _REFUSED)
    mode, norm = values.get("mode", "common_channel"), values.get("norm_mlp", "LayerNorm")
    if mode not in ("common_channel", "mix_channel"):
        raise ValueError(f"mode={mode!r} is not supported, only 'common_channel' or 'mix_channel'.")
    if not isinstance(norm, str):
        raise ValueError(f"norm_mlp={norm!r} is not supported, only {[*_NORMS]}.")
    scaling = values.get("scaling", "std")
    if scaling is not True and scaling != "std":  # in Transformers, null disables scaling
        raise ValueError(f"scaling={scaling!r} is not supported, only 'std'.")
    context, patch, stride = read_pieces(values, 8)
    stem = SeriesStemConfig(
        context_length=context,
        patch_length=patch,
        stride=stride,
        num_channels=number(values, "num_input_channels", 1),
        joint_channels=mode == "mix_channel",
    )
    width, factor = number(values, "d_model", 8), number(values, "expansion_factor", 2)
    gate = flag(values, "gated_attn", True)
    pieces, channels = stem.num_positions, stem.num_channels
    mixer: Mixer = TokenMixing(
        length=pieces, groups=stem.num_rows, dim=factor * pieces, softmax_gate=gate
    )
    if flag(values, "self_attn"):
        mixer = Parallel(members=(mixer, _attention(values, stem)), norm_output=True)
    count = number(values, "num_layers", 3)
    depth: dict[str, Any] = {"num_layers": count, "mixer": mixer}
    if mode == "mix_channel":
        if not 0 < count <= MOST_LAYERS // 2:
            raise ValueError(f"num_layers={count} is not from 1 to {MOST_LAYERS // 2:,}.")
        across = TokenMixing(
            length=channels, groups=pieces, interleaved=True, dim=factor * channels,
            softmax_gate=gate, softmax_gate_first=gate,
        )  # fmt: skip
        alone = {"mixer": across, "intermediate_dim": 0}
        depth |= {"num_layers": 2 * count, "layer_pattern": (alone, {})}
    return {
        # Their norm is of a batch if its name has these letters.
        "normalization": "batch_norm" if "batch" in norm.lower() else "layer_norm",
        "position": "learned" if flag(values, "use_positional_encoding") else "none",
        "stem": stem,
        **depth,
        "intermediate_dim": factor * width,
        "softmax_gate": gate,
    }


def _attention(values: Values, stem: SeriesStemConfig) -> Attention:
    """Return the attention to pieces of the same channel."""
    channel = Chunks(size=stem.num_positions) if stem.joint_channels else None
    return Attention(
        num_heads=number(values, "self_attn_heads", 1),
        dropout=number(values, "dropout", 0.2, float),
        pattern=channel,
    )


def _own_mixers(mixer: Mixer) -> tuple[TokenMixing, Attention | None]:
    """Return the layer over the pieces, and the attention beside it or None.

    Raises ValueError if a published layer has no such mixer.
    """
    kinds = [member.kind for member in mixer.every_mixer]
    if isinstance(mixer, TokenMixing):
        return mixer, None
    if isinstance(mixer, Parallel) and kinds == [TokenMixing.kind, Attention.kind]:
        return mixer.members
    raise ValueError(
        "A checkpoint of this family needs `TokenMixing` as its mixer, or a `Parallel` of it and "
        f"an `Attention`, received {mixer}."
    )


def _write(config: TransformerConfig) -> dict[str, Any]:
    stem = config.stem
    mixers = [block.mixer for block in config.last_side.blocks]
    if stem is None or stem.kind != "series":
        raise ValueError("A checkpoint of this family needs a stem for series.")
    pieces, beside = _own_mixers(mixers[-1])
    joint = stem.joint_channels
    norms = {ours: theirs for theirs, ours in _NORMS.items()}
    return {
        "mode": "mix_channel" if joint else "common_channel",
        "num_layers": len(mixers) // (1 + joint),
        "norm_mlp": norms.get(config.normalization, config.normalization),
        "context_length": stem.context_length,
        "patch_length": stem.patch_length,
        "patch_stride": stem.stride,
        "num_input_channels": stem.num_channels,
        "use_positional_encoding": config.position == "learned",
        "positional_encoding_type": "random",  # a trained table
        "expansion_factor": pieces.dim // pieces.length,
        "gated_attn": pieces.softmax_gate,
        "self_attn": beside is not None,
        "self_attn_heads": 1 if beside is None else beside.num_heads,
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
# Attention beside the layer over the pieces, which then are two members of a mixer.
_WITH_ATTENTION = {
    **{ours.replace("mixer/", "mixer/token_mixing/"): its for ours, its in _LAYER.items()},
    **attention(
        "patch_mixer.self_attn_layer.{}_proj", "q", "k", "v", "out", ours="mixer/self_attention"
    ),
}
_CHANNELS = {
    "mixer/tokens/intermediate": "channel_feature_mixer.mlp.fc1",
    "mixer/tokens/output": "channel_feature_mixer.mlp.fc2",
    "mixer/tokens/softmax_gate": "channel_feature_mixer.gating_block.attn_layer",
}
_PLACES = {"mixer_norm": "patch_mixer.norm.norm", "feed_forward_norm": "feature_mixer.norm.norm"}
_OF_BATCH = ("normalization", "batch_norm")


def _layer(table: dict[str, str], places: dict[str, str]) -> tuple[WeightLine, ...]:
    """Return the lines of a block, from the names of its dense layers and of its norms."""
    both = ("encoder/layer_{i}/", "encoder.mlp_mixer_encoder.mixers.{i}.")
    of_batch = {ours: f"{its}.batchnorm" for ours, its in places.items()}
    return (
        *layers(table, *both),
        *(line for line in layers(places, *both) if line.when != _OF_BATCH),
        *(line for line in layers(of_batch, *both) if line.when == _OF_BATCH),
    )


_PIECES = _layer(_LAYER, _PLACES)
_ATTENDING = _layer(_WITH_ATTENTION, {**_PLACES, "mixer/output_norm": "patch_mixer.norm_attn.norm"})
_ACROSS = _layer(_CHANNELS, {"mixer_norm": "channel_feature_mixer.norm.norm"})


def _lines(config: TransformerConfig) -> tuple[WeightLine, ...]:
    """Return the lines of all blocks, one or two of which are a published layer."""
    *_, last = config.last_side.blocks
    pieces = _ATTENDING if last.mixer.attends else _PIECES
    kinds = (_ACROSS, pieces) if config.stem.joint_channels else (pieces,)
    return tuple(
        dataclasses.replace(
            line,
            ours=line.ours.replace("{i}", str(i)),
            theirs=line.theirs.replace("{i}", str(i // len(kinds))),
            counter=line.counter and line.counter.replace("{i}", str(i // len(kinds))),
        )
        for i in range(config.num_layers)
        for line in kinds[i % len(kinds)]
    )


PATCHTSMIXER = Family(
    model_type="patchtsmixer",
    architecture="PatchTSMixerModel",
    fields={
        "d_model": ConfigField("hidden_dim", 8),
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
    required={"minimum_scale": 1e-5},
    weights=(
        *layers({"encoder/input_patches": "encoder.patcher"}),
        WeightLine(
            "encoder/position_embedding/embeddings", "encoder.positional_encoder.position_enc"
        ),
    ),
    of_config=_lines,
    heads={
        "Forecaster": PublishedHead(
            weights=layers({"output": "head.base_forecast_block"}),
            options=(Conversion(_read_head, _write_head),),
            dropout="head_dropout",
        )
    },
    names=Names(prefixes=("model.",)),
)
