"""Parakeet: Rekesh et al. 2023, https://arxiv.org/abs/2305.05084.

Fast Conformers that read a log-mel spectrogram, trained with CTC. The encoder alone is the type
`parakeet_encoder`; a model that writes texts, `parakeet_ctc`, has it in a config of its own.
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
from keras_transformer.checkpoints.families.base.placed import nested
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.families.speech.wav2vec2 import WAV2VEC2
from keras_transformer.checkpoints.families.speech.wav2vec2_bert import (
    conformer_of,
    without_conformer,
)
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, attention, layers
from keras_transformer.config import Conformer, RelativeSinusoids, TransformerConfig

_MOST = 16  # maximum number of convolutions


def _read_stem(values: Values) -> dict[str, Any]:
    factor = number(values, "subsampling_factor", 8)
    bands = number(values, "num_mel_bins", 80)
    count = factor.bit_length() - 1
    if count < 1 or factor != 2**count or bands % factor:
        raise ValueError(
            "subsampling_factor must be a power of two that divides num_mel_bins, received "
            f"{factor} and {bands}."
        )
    stem = {
        "kind": "subsampled_frames",
        "num_bins": bands,
        "filters": number(values, "subsampling_conv_channels", 256),
        "kernel_size": number(values, "subsampling_conv_kernel_size", 3),
        "num_layers": count,
        "scaled": flag(values, "scale_input", True),
    }
    return {"stem": stem}


def _write_stem(config: TransformerConfig) -> dict[str, Any]:
    stem = config.stem
    if stem is None or stem.kind != "subsampled_frames":
        raise ValueError("A checkpoint of this family needs a stem of subsampled frames.")
    return {
        "num_mel_bins": stem.num_bins,
        "subsampling_conv_channels": stem.filters,
        "subsampling_conv_kernel_size": stem.kernel_size,
        "subsampling_factor": 2**stem.num_layers,
        "scale_input": stem.scaled,
    }


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    size = number(values, "conv_kernel_size", 9)
    if size % 2 == 0:
        raise ValueError(f"conv_kernel_size must be odd, received {size}.")
    conformer = Conformer(size=size, use_bias=flag(values, "convolution_bias", True), norm="batch")
    side = config.encoder
    bias = RelativeSinusoids(interleaved=True, compares_segments=False)
    mixer = side.block.mixer.replace(score_bias=bias)
    return config.replace(
        encoder=side.replace(block=side.block.replace(mixer=mixer, conformer=conformer))
    )


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    block = conformer_of(config, RelativeSinusoids)
    if block is None:
        raise ValueError(
            "A checkpoint of this family needs blocks with attention of `RelativeSinusoids` and a "
            "`conformer`."
        )
    theirs = {
        "conv_kernel_size": block.conformer.size,
        "convolution_bias": block.conformer.use_bias,
    }
    return without_conformer(config), theirs


_OURS, _THEIRS = "encoder/layer_{i}/", "layers.{i}."
_LAYER = {
    **attention("self_attn.{}_proj", "q", "k", "v", "o"),
    "self_attention/relative/position_key": "self_attn.relative_k_proj",
    "self_attention_norm": "norm_self_att",
    "feed_forward/intermediate": "feed_forward2.linear1",
    "feed_forward/output": "feed_forward2.linear2",
    "feed_forward_norm": "norm_feed_forward2",
    "conformer/first/intermediate": "feed_forward1.linear1",
    "conformer/first/output": "feed_forward1.linear2",
    "conformer/first_norm": "norm_feed_forward1",
    "conformer/convolution_norm": "norm_conv",
    "conformer/final_norm": "norm_out",
}
_STEM, _LAYERS = "encoder/input_", "subsampling.layers."


def _of_stem() -> tuple[WeightLine, ...]:
    """Return the lines of the convolutions. ReLUs count in their published numbers."""
    lines = layers({f"{_STEM}convolution": f"{_LAYERS}0"}, convolution=True)
    for i in range(1, _MOST):
        depthwise, place = f"{_STEM}depthwise_{i}", f"{_LAYERS}{3 * i - 1}"
        mixed, behind = f"{_STEM}pointwise_{i}", f"{_LAYERS}{3 * i}"
        lines += (
            WeightLine(f"{depthwise}/kernel", f"{place}.weight", depthwise=True),
            WeightLine(f"{depthwise}/bias", f"{place}.bias"),
            WeightLine(f"{mixed}/kernel", f"{behind}.weight", transpose=True, column=2),
            WeightLine(f"{mixed}/bias", f"{behind}.bias"),
        )
    return (*lines, *layers({f"{_STEM}projection": "subsampling.linear"}))


def _of_convolution() -> tuple[WeightLine, ...]:
    ours, theirs = f"{_OURS}conformer/", f"{_THEIRS}conv."
    lines: list[WeightLine] = []
    for mine, its in {"expansion": "pointwise_conv1", "output": "pointwise_conv2"}.items():
        lines += (
            WeightLine(f"{ours}{mine}/kernel", f"{theirs}{its}.weight", transpose=True, column=1),
            WeightLine(f"{ours}{mine}/bias", f"{theirs}{its}.bias"),
        )
    depthwise, norm = f"{ours}depthwise_convolution", f"{ours}depthwise_norm"
    counter = f"{theirs}norm.num_batches_tracked"
    return (
        *lines,
        WeightLine(f"{depthwise}/kernel", f"{theirs}depthwise_conv.weight", depthwise=True),
        WeightLine(f"{depthwise}/bias", f"{theirs}depthwise_conv.bias"),
        WeightLine(f"{norm}/gamma", f"{theirs}norm.weight"),
        WeightLine(f"{norm}/beta", f"{theirs}norm.bias"),
        WeightLine(f"{norm}/moving_mean", f"{theirs}norm.running_mean", counter=counter),
        WeightLine(f"{norm}/moving_variance", f"{theirs}norm.running_var"),
    )


_ATTENTION = f"{_OURS}self_attention/relative/"

PARAKEET_ENCODER = Family(
    model_type="parakeet_encoder",
    architecture="ParakeetEncoder",
    fields={
        "hidden_size": ConfigField("hidden_dim", 1024),
        "num_hidden_layers": ConfigField("num_layers", 24),
        "num_attention_heads": ConfigField("num_heads", 8),
        "intermediate_size": ConfigField("intermediate_dim", 4096),
        "hidden_act": ConfigField("activation", "silu"),
        "attention_bias": ConfigField("use_bias", True),
        "dropout": ConfigField("dropout", 0.1),
        "attention_dropout": ConfigField("attention_dropout", 0.1),
        "initializer_range": ConfigField("initializer_range", 0.02),
    },
    constants={
        "kind": "encoder",
        "vocabulary_size": 0,
        "position": "none",
        "normalize_first": True,
        "final_normalization": False,
        "normalization_epsilon": 1e-5,
    },
    conversions=(Conversion(_read_stem, _write_stem),),
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    required={"subsampling_conv_stride": 2},
    weights=(
        *_of_stem(),
        *layers(_LAYER, _OURS, _THEIRS),
        *_of_convolution(),
        WeightLine(f"{_ATTENTION}content_bias", f"{_THEIRS}self_attn.bias_u"),
        WeightLine(f"{_ATTENTION}position_bias", f"{_THEIRS}self_attn.bias_v"),
    ),
    names=Names(prefixes=("encoder.",), ignored=("ctc_head.*",)),
)


def _read_keywords(values: Values) -> dict[str, Any]:
    plain, _ = _write_parts(PARAKEET_ENCODER.config(nested(values, "encoder_config")))
    return dict(plain.stated())


def _read_whole(values: Values, config: TransformerConfig) -> TransformerConfig:
    return _read_parts(nested(values, "encoder_config"), config)


def _write_whole(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    theirs = PARAKEET_ENCODER.published_config(config)
    del theirs["architectures"]
    return _write_parts(config)[0], {"encoder_config": theirs}


PARAKEET = Family(
    model_type="parakeet_ctc",
    architecture="ParakeetForCTC",
    bare=False,
    fields={},
    constants=PARAKEET_ENCODER.constants,
    # The values by keyword are written with the parts, in one nested config.
    conversions=(Conversion(_read_keywords, lambda config: {}),),
    parts=PartsWithoutKeywords(_read_whole, _write_whole),
    weights=PARAKEET_ENCODER.weights,
    heads={
        "CTCSpeechToText": PublishedHead(
            architectures=("ParakeetForCTC",),
            weights=(
                WeightLine("output/kernel", "ctc_head.weight", transpose=True, column=1),
                WeightLine("output/bias", "ctc_head.bias"),
            ),
            options=WAV2VEC2.heads["CTCSpeechToText"].options,
        )
    },
    names=Names(prefixes=("encoder.",)),
)
