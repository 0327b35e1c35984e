"""W2v-BERT: Barrault et al. 2023, https://arxiv.org/abs/2312.05187.

Version 2.0: Conformer blocks that read stacked frames of a filter bank, and whose scores depend on
distances.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PartsWithoutKeywords,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.speech.wav2vec2 import (
    UNMASKED,
    WAV2VEC2,
    classifier_projection,
)
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, attention, layers
from keras_transformer.config import (
    Attention,
    Block,
    Conformer,
    RelativeKeys,
    ScoreBias,
    TransformerConfig,
)

_USUAL = 500  # frames assumed in plans: ten seconds


def _read_stem(values: Values) -> dict[str, Any]:
    width = number(values, "feature_projection_input_dim", 160)
    stem = {
        "kind": "frames",
        "num_bins": width,
        "num_frames": _USUAL,
        "strides": [],
        "masked": True,
    }
    return {"stem": stem, "embedding_dim": width}


def _write_stem(config: TransformerConfig) -> dict[str, Any]:
    stem = config.stem
    if stem is None or stem.kind != "frames" or stem.strides or not stem.masked:
        raise ValueError(
            "A checkpoint of this family needs a stem of frames with no strides and `masked`."
        )
    return {"feature_projection_input_dim": stem.num_bins, **UNMASKED}


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    bias = RelativeKeys(
        before=number(values, "left_max_position_embeddings", 64),
        behind=number(values, "right_max_position_embeddings", 8),
    )
    size = number(values, "conv_depthwise_kernel_size", 31)
    if size % 2 == 0:
        raise ValueError(f"conv_depthwise_kernel_size must be odd, received {size}.")
    side = config.encoder
    block = side.block.replace(
        mixer=side.block.mixer.replace(score_bias=bias), conformer=Conformer(size=size, causal=True)
    )
    return config.replace(encoder=side.replace(block=block))


def conformer_of(config: TransformerConfig, bias: type[ScoreBias]) -> Block | None:
    """Return the Conformer block of an encoder with this score bias, or None if it has none."""
    block = config.encoder.block if config.kind == "encoder" else None
    if block is None or block.conformer is None or not isinstance(block.mixer, Attention):
        return None
    return block if isinstance(block.mixer.score_bias, bias) else None


def without_conformer(config: TransformerConfig) -> TransformerConfig:
    """Return a config of Conformer blocks without the parts that no keyword describes."""
    side, block = config.encoder, config.encoder.block
    plain = block.replace(mixer=block.mixer.replace(score_bias=None), conformer=None)
    return config.replace(encoder=side.replace(block=plain))


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    block = conformer_of(config, RelativeKeys)
    if block is None or not (block.conformer.causal and block.conformer.size % 2):
        raise ValueError(
            "A checkpoint of this family needs blocks with attention of `RelativeKeys` and a "
            "causal `conformer` of an odd size."
        )
    bias = block.mixer.score_bias
    theirs = {
        "left_max_position_embeddings": bias.before,
        "right_max_position_embeddings": bias.behind,
        "conv_depthwise_kernel_size": block.conformer.size,
    }
    return without_conformer(config), theirs


_OURS, _THEIRS = "encoder/layer_{i}/", "encoder.layers.{i}."
_LAYER = {
    **attention("self_attn.linear_{}", "q", "k", "v", "out"),
    "self_attention_norm": "self_attn_layer_norm",
    "feed_forward/intermediate": "ffn2.intermediate_dense",
    "feed_forward/output": "ffn2.output_dense",
    "feed_forward_norm": "ffn2_layer_norm",
    "conformer/first/intermediate": "ffn1.intermediate_dense",
    "conformer/first/output": "ffn1.output_dense",
    "conformer/first_norm": "ffn1_layer_norm",
    "conformer/convolution_norm": "conv_module.layer_norm",
    "conformer/depthwise_norm": "conv_module.depthwise_layer_norm",
    "conformer/final_norm": "final_layer_norm",
}
_CONVOLUTION = f"{_OURS}conformer/", f"{_THEIRS}conv_module."
_PROJECTION = {"embedding_norm": "layer_norm", "embedding_projection": "projection"}

WAV2VEC2_BERT = Family(
    model_type="wav2vec2-bert",
    architecture="Wav2Vec2BertModel",
    fields={
        "hidden_size": ConfigField("hidden_dim", 1024),
        "num_hidden_layers": ConfigField("num_layers", 24),
        "num_attention_heads": ConfigField("num_heads", 16),
        "intermediate_size": ConfigField("intermediate_dim", 4096),
        "hidden_act": ConfigField("activation", "swish"),
        "hidden_dropout": ConfigField("dropout", 0.0),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-5),
    },
    constants={
        "kind": "encoder",
        "vocabulary_size": 0,
        "position": "none",
        "normalize_first": True,
        "final_normalization": False,
        "embedding_normalization": True,
        "embedding_projection": True,
    },
    conversions=(Conversion(_read_stem, _write_stem),),
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    required={
        "add_adapter": False,
        "position_embeddings_type": "relative_key",
    },
    weights=(
        *layers(_PROJECTION, "encoder/", "feature_projection."),
        *layers(_LAYER, _OURS, _THEIRS),
        *(
            WeightLine(
                f"{_CONVOLUTION[0]}{ours}/kernel",
                f"{_CONVOLUTION[1]}{theirs}.weight",
                transpose=True,
                column=1,
            )
            for ours, theirs in {
                "expansion": "pointwise_conv1",
                "output": "pointwise_conv2",
            }.items()
        ),
        WeightLine(
            f"{_CONVOLUTION[0]}depthwise_convolution/kernel",
            f"{_CONVOLUTION[1]}depthwise_conv.weight",
            depthwise=True,
        ),
        WeightLine(
            f"{_OURS}self_attention/relative/distances",
            f"{_THEIRS}self_attn.distance_embedding.weight",
        ),
    ),
    heads={
        "CTCSpeechToText": WAV2VEC2.heads["CTCSpeechToText"],
        "AudioClassifier": dataclasses.replace(
            WAV2VEC2.heads["AudioClassifier"],
            architectures=("Wav2Vec2BertForSequenceClassification",),
            options=(classifier_projection(768),),
        ),
    },
    # The vector of masked frames, of self-supervised training.
    names=Names(prefixes=("wav2vec2_bert.",), ignored=("masked_spec_embed",)),
)
