"""VideoPrism in KerasHub's form, of videos alone or with texts.

The weights of its norms are one more than the published ones. With texts it has wavelengths of
Tensor2Tensor, and two norms behind the blocks, so that published models with texts, which have
others and one, have no counterpart there. Facts are from KerasHub 0.32, `models/video_prism/*.py`.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PartsWithoutKeywords,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.vision.videoprism import VIDEOPRISM, VIDEOPRISM_VISION
from keras_transformer.checkpoints.keras_hub.family import (
    TASK_PREFIX,
    Line,
    layers,
    make_family,
    numbered,
)
from keras_transformer.checkpoints.keras_hub.vision import encoder_blocks, read_stem
from keras_transformer.checkpoints.weights.tables import Names, attention
from keras_transformer.config import TransformerConfig

# Arguments of both sides, with their published names and defaults.
_OF_BOTH = {
    "hidden_dim": ("hidden_size", None),
    "intermediate_dim": ("intermediate_size", None),
    "num_heads": ("num_attention_heads", None),
    "dropout_rate": ("hidden_dropout_prob", 0.0),
    "attention_dropout_rate": ("attention_probs_dropout_prob", 0.0),
    "attention_logit_soft_cap": ("attn_logit_softcapping", None),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-6),
}
_FIELDS = {
    own: ConfigField(VIDEOPRISM_VISION.fields[its].ours, usual)
    for own, (its, usual) in _OF_BOTH.items()
    if own != "attention_logit_soft_cap"
}
_DEPTHS = ("num_spatial_layers", "num_temporal_layers", "num_auxiliary_layers")
_TEXTS = ("vocabulary_size", "num_text_layers")
_SHAPE = ("num_frames", "patch_size", "image_shape")
(_VIDEO,), (_BOTH,) = VIDEOPRISM_VISION.conversions, VIDEOPRISM.conversions


def _shared(values: Values) -> dict[str, Any]:
    return {its: values.get(own, usual) for own, (its, usual) in _OF_BOTH.items()}


def _published(values: Values) -> dict[str, Any]:
    """Return the published config of the encoder of videos."""
    stem = read_stem({"image_shape": (288, 288, 3), **values})
    if stem["patch_width"] is not None:
        raise ValueError(f"patch_size={str(values['patch_size'])[:200]} must be one number.")
    return {
        **_shared(values),
        **{name: number(values, name, None) for name in (*_DEPTHS, "num_frames")},
        "image_size": stem["image_size"],
        "num_channels": stem["num_channels"],
        "tubelet_size": [1, stem["patch_size"], stem["patch_size"]],
    }


def _read(values: Values) -> dict[str, Any]:
    cap = values.get("attention_logit_soft_cap")
    return {**_VIDEO.read(_published(values)), "attention_soft_cap": cap}


def _write(config: TransformerConfig) -> dict[str, Any]:
    side = config.side("encoder")
    theirs = _VIDEO.write(side)
    return {
        "image_shape": [*side.stem.frame_size, theirs["num_channels"]],
        "num_frames": theirs["num_frames"],
        "patch_size": side.stem.patch_size,
        "attention_logit_soft_cap": side.attention_soft_cap,
    }


def _read_both(values: Values) -> dict[str, Any]:
    width, inner = (number(values, f"{name}_dim", None) for name in ("hidden", "intermediate"))
    if inner != 4 * width:
        raise ValueError(
            f"intermediate_dim={inner} must be four times hidden_dim={width}, the width of the "
            "attention that pools a video."
        )
    texts = {
        **_shared(values),
        "vocab_size": number(values, "vocabulary_size", 0),
        "num_hidden_layers": number(values, "num_text_layers", None),
        "hidden_act": "relu",
    }
    ours = _BOTH.read({"vision_config": _published(values), "text_config": texts})
    own = {"sinusoidal_inclusive": True, "vector_normalization": True}
    return {**ours, "decoder": {**ours["decoder"], **own}}


def _write_both(config: TransformerConfig) -> dict[str, Any]:
    texts = config.side("decoder")
    sizes = (texts.vocabulary_size, texts.num_layers)
    return {**_write(config), **dict(zip(_TEXTS, sizes, strict=True))}


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    return VIDEOPRISM_VISION.parts.read(_published(values), config)


def _read_parts_of_both(values: Values, config: TransformerConfig) -> TransformerConfig:
    return VIDEOPRISM.parts.read({"vision_config": _published(values)}, config)


def _write_parts_of_both(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    plain, stated = VIDEOPRISM.parts.write(config)
    return plain, stated.get("vision_config", {})


# Weights

_ENCODER = "layers/video_prism_encoder"
_BLOCK = "encoder_layers/video_prism_encoder_block"
_PATCHES = "layers/video_prism_patching_and_embedding/"
_POOLING = "layers/video_prism_atten_token_pooling_layer/"
_PARTS = ("query", "key", "value", "output")
# The numbers of the encoders over frames, over places and over all; texts have the one between.
_NUMBERS = {"space": 0, "time": 1, None: 3}
_MORE = {"more": 1}


def _lines(config: TransformerConfig) -> tuple[Line, ...]:
    """Return the lines of the blocks of a video, which are numbered within their stage there."""
    side = config.encoder
    lines: tuple[Line, ...] = ()
    before = ""
    for first, end in zip((0, *side.stage_ends), side.stage_ends, strict=False):
        ours = f"encoder/layer_{first}/merging/"
        over = getattr(side.layer(first).mixer.pattern, "over", None)
        if first:
            lines += layers({f"{ours}input_norm": f"{before}layer_norm"}, **_MORE)
        if over == "time":
            embedded = "layers/video_prism_temporal_embedding/embedding/vars/0"
            lines += (Line(f"{ours}positions", embedded),)
        before = f"{_ENCODER}{numbered(_NUMBERS[over])}/"
        for i in range(first, end):
            theirs = f"{before}{_BLOCK}{numbered(i - first)}/"
            lines += encoder_blocks(theirs, ours=f"encoder/layer_{i}/", **_MORE)
    if side.final_norm:
        lines += layers({"encoder/final_norm": f"{before}layer_norm"}, **_MORE)
    return lines


_STEM = (
    *layers(
        {"encoder/input_patches": f"{_PATCHES}patch_embedding"}, of_patches=True, transpose=True
    )[:1],
    Line("encoder/input_patches/bias", f"{_PATCHES}patch_embedding/vars/1"),
    *layers({"encoder/position_embedding": f"{_PATCHES}position_embedding"}),
)
_BESIDE_TEXTS = (
    *encoder_blocks(f"{_ENCODER}_2/{_BLOCK}{{i}}/", ours="decoder/layer_{i}/", **_MORE),
    *layers(
        {
            "decoder/final_norm": f"{_ENCODER}_2/layer_norm",
            "decoder/vector_norm": "layers/layer_normalization",
            "encoder/vector_norm": f"{_POOLING}layer_norm",
        },
        **_MORE,
    ),
    *layers({"token_embedding": "layers/video_prism_embedding/token_embedding"}),
    Line("decoder/input_class_token", "layers/video_prism_embedding/class_token/vars/0", row=2),
    Line("encoder/vector/probe", f"{_POOLING}vars/0", row=1),
    Line(
        "encoder/vector/attention/query_scale",
        f"{_POOLING}pooling_attention/per_dim_scale_layer/vars/0",
    ),
    *layers(
        attention("pooling_attention/{}_dense", *_PARTS, ours="attention"),
        "encoder/vector/",
        _POOLING,
    ),
)
_NAMES = Names(ignored=(f"{TASK_PREFIX}*",))

_ALONE = make_family(
    VIDEOPRISM_VISION.model_type,
    "VideoPrism",
    _FIELDS,
    {
        **VIDEOPRISM_VISION.constants,
        "activation": "gelu",
        "attention_bias": True,
        "initializer_range": 0.02,
    },
    _STEM,
    {},
    conversions=(Conversion(_read, _write),),
    parts=PartsWithoutKeywords(_read_parts, VIDEOPRISM_VISION.parts.write),
    of_config=_lines,
    needed=(*_SHAPE[:2], *_DEPTHS),
    more=("image_shape", "attention_logit_soft_cap", *_TEXTS),
    names=_NAMES,
)
VIDEO_PRISM = make_family(
    VIDEOPRISM.model_type,
    "VideoPrism",
    _FIELDS,
    VIDEOPRISM.constants,
    (*_STEM, *_BESIDE_TEXTS),
    {},
    conversions=(Conversion(_read_both, _write_both),),
    parts=PartsWithoutKeywords(_read_parts_of_both, _write_parts_of_both),
    of_config=_lines,
    needed=_ALONE.needed,
    more=_ALONE.more,
    names=_NAMES,
    other=(_ALONE, "num_text_layers"),
)
