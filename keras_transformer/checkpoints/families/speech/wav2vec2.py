"""Wav2Vec2: Baevski et al. 2020, https://arxiv.org/abs/2006.11477.

An encoder of audio samples with convolutions, trained with CTC.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ACTIVATIONS,
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import number, unread
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, attention, layers
from keras_transformer.config import TransformerConfig

_MOST = 16  # maximum number of convolutions
# The published name, our name, and the default.
_STEM = {
    "conv_dim": ("filters", [512] * 7),
    "conv_kernel": ("kernel_sizes", [10, 3, 3, 3, 3, 2, 2]),
    "conv_stride": ("strides", [5, 2, 2, 2, 2, 2, 2]),
    "conv_bias": ("use_bias", False),
    "feat_extract_norm": ("norm", "group"),
    "feat_proj_layer_norm": ("projection_norm", True),
    "num_conv_pos_embeddings": ("position_size", 128),
    "num_conv_pos_embedding_groups": ("position_groups", 16),
}
# Used in training only; its mask vector is not part of the model.
UNMASKED = {"apply_spec_augment": False, "mask_time_prob": 0.0, "mask_feature_prob": 0.0}


def _read(values: Values) -> dict[str, Any]:
    stem = {ours: values.get(theirs, usual) for theirs, (ours, usual) in _STEM.items()}
    named = values.get("feat_extract_activation", "gelu")
    if not isinstance(named, str) or named not in ACTIVATIONS:
        raise ValueError(f"feat_extract_activation={named!r} is not supported.")
    first = values.get("do_stable_layer_norm", False)
    return {
        "stem": {"kind": "waveform", "activation": ACTIVATIONS[named], **stem},
        "normalize_first": first,
        "embedding_normalization": not first,
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    stem = config.stem
    if stem is None or stem.kind != "waveform":
        raise ValueError("A checkpoint of this family needs a stem for waveforms.")
    named = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == stem.activation)
    theirs = {theirs: getattr(stem, ours) for theirs, (ours, _) in _STEM.items()}
    first = config.normalize_first
    return {**theirs, "feat_extract_activation": named, "do_stable_layer_norm": first, **UNMASKED}


def _read_ctc(values: Values) -> dict[str, Any]:
    blank = values.get("pad_token_id", 0)
    return {
        "vocabulary_size": number(values, "vocab_size", 32),
        "blank_id": 0 if blank is None else number(values, "pad_token_id", 0),
    }


def _write_ctc(task: Values) -> dict[str, Any]:
    return {"vocab_size": task["vocabulary_size"], "pad_token_id": task["blank_id"]}


def classifier_projection(usual: int) -> Conversion:
    """Convert the width of the layer before the classifier's output, of this usual value."""

    def read(values: Values) -> dict[str, Any]:
        if values.get("use_weighted_layer_sum"):
            raise ValueError(
                "use_weighted_layer_sum=True is not supported: the classifier reads the last "
                "states."
            )
        return {"projection_dim": number(values, "classifier_proj_size", usual)}

    return Conversion(read, _write_projection)


def _write_projection(task: Values) -> dict[str, Any]:
    if task.get("projection_dim") is None:
        raise ValueError("A checkpoint of this family needs a classifier with a `projection_dim`.")
    return {"classifier_proj_size": task["projection_dim"], "use_weighted_layer_sum": False}


_LAYER = {
    **attention("attention.{}_proj", "q", "k", "v", "out"),
    "self_attention_norm": "layer_norm",
    "feed_forward/intermediate": "feed_forward.intermediate_dense",
    "feed_forward/output": "feed_forward.output_dense",
    "feed_forward_norm": "final_layer_norm",
}
_CONVOLUTION, _THEIRS = "encoder/input_convolution_{}", "feature_extractor.conv_layers.{}."
_KERNEL, _POSITIONS = "encoder/input_positions/kernel", "encoder.pos_conv_embed.conv"

WAV2VEC2 = Family(
    model_type="wav2vec2",
    architecture="Wav2Vec2Model",
    fields={
        "hidden_size": ConfigField("hidden_dim", 768),
        "num_hidden_layers": ConfigField("num_layers", 12),
        "num_attention_heads": ConfigField("num_heads", 12),
        "intermediate_size": ConfigField("intermediate_dim", 3072),
        "hidden_act": ConfigField("activation", "gelu"),
        "hidden_dropout": ConfigField("dropout", 0.1),
        "attention_dropout": ConfigField("attention_dropout", 0.1),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-5),
    },
    constants={"kind": "encoder", "vocabulary_size": 0, "position": "none"},
    conversions=(Conversion(_read, _write),),
    required={"add_adapter": False, "adapter_attn_dim": None, "feat_proj_layer_norm": True},
    weights=(
        *(
            line
            for i in range(_MOST)
            for line in (
                *layers({_CONVOLUTION.format(i): _THEIRS.format(i) + "conv"}, convolution=True),
                *layers({_CONVOLUTION.format(i) + "_norm": _THEIRS.format(i) + "layer_norm"}),
            )
        ),
        *layers(
            {"projection_norm": "layer_norm", "projection": "projection"},
            "encoder/input_",
            "feature_projection.",
        ),
        WeightLine(_KERNEL, f"{_POSITIONS}.weight", convolution=True, norm_axes=(0, 1)),
        WeightLine("encoder/input_positions/bias", f"{_POSITIONS}.bias"),
        *layers(
            {"embedding_norm": "layer_norm", "final_norm": "layer_norm"}, "encoder/", "encoder."
        ),
        *layers(_LAYER, "encoder/layer_{i}/", "encoder.layers.{i}."),
    ),
    heads={
        "CTCSpeechToText": PublishedHead(
            weights=layers({"output": "lm_head"}),
            options=(Conversion(_read_ctc, _write_ctc),),
            dropout="final_dropout",
        ),
        "AudioClassifier": PublishedHead(
            architectures=("Wav2Vec2ForSequenceClassification",),
            weights=layers({"projection": "projector", "output": "classifier"}),
            options=(classifier_projection(256),),
        ),
    },
    names=Names(
        prefixes=("wav2vec2.",),
        # Tensors of self-supervised training.
        ignored=(
            "masked_spec_embed",
            "quantizer.codevectors",
            *unread("quantizer.weight_proj", "project_hid", "project_q"),
        ),
    ),
)
