"""VideoPrism: Zhao et al. 2024, https://arxiv.org/abs/2402.13217.

A ViT over the frames of a video, each alone, and behind it blocks that compare the frames at each
place: ViViT's factorised encoder (Arnab et al. 2021, section 3.3, model 2). With texts, as in CoCa
(Yu et al. 2022, https://arxiv.org/abs/2205.01917), further blocks see the whole video, and a
trained query pools it.
"""

from typing import Any

import numpy as np

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.images import IMAGE_ENCODER
from keras_transformer.checkpoints.families.base.placed import nested
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.families.base.towers import towers
from keras_transformer.checkpoints.families.vision.vivit import (
    check_tubes,
    frame_size,
    published_size,
)
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, attention, layers
from keras_transformer.config import (
    MOST_LAYERS,
    Attention,
    Similarity,
    TimePositions,
    TransformerConfig,
    Vector,
    VideoAxis,
)

_FIELDS = {
    "hidden_size": ConfigField("hidden_dim", 768),
    "num_attention_heads": ConfigField("num_heads", 12),
    "intermediate_size": ConfigField("intermediate_dim", 3072),
    "hidden_act": ConfigField("activation", "gelu_python"),
    "hidden_dropout_prob": ConfigField("dropout", 0.0),
    "attention_probs_dropout_prob": ConfigField("attention_dropout", 0.0),
    "initializer_range": ConfigField("initializer_range", 0.02),
    "layer_norm_eps": ConfigField("normalization_epsilon", 1e-6),
    "qkv_bias": ConfigField("attention_bias", True),
    "attn_logit_softcapping": ConfigField("attention_soft_cap", 50.0),
}
_TEXTS = {
    **_FIELDS,
    "vocab_size": ConfigField("vocabulary_size", 32000),
    "hidden_act": ConfigField("activation", "relu"),
    "num_hidden_layers": ConfigField("num_layers", 12),
    "max_position_embeddings": ConfigField("max_sequence_length", 64),
}
_CONSTANTS = {"normalization": "layer_norm_plus_one", "attention_output_bias": True}
_TEXT = {
    **_CONSTANTS,
    "position": "sinusoidal",
    "sinusoidal_interleaved": False,
    "vector_pooling": "last",
}
# The factor of the cosines: one over the temperature, 0.01, in videoprism_video_text_demo.ipynb of
# https://github.com/google-deepmind/videoprism. Checkpoints have none: Transformers divides by the
# `temperature` of a call, by default by nothing, and KerasHub's model returns vectors alone.
_SCALE = 100.0
# The class of a model with a head for classes, which has a pooling of its own.
_CLASSIFIER = "VideoPrismForVideoClassification"


def _depths(values: Values, joined: bool) -> tuple[int, int, int]:
    """Return the numbers of layers that see a frame, a place, and, beside texts, all."""
    names = {"num_spatial_layers": 12, "num_temporal_layers": 4, "num_auxiliary_layers": 2}
    spatial, temporal, last = (number(values, *each) for each in names.items())
    last = last if joined else 0
    if min(spatial, temporal, last + 1) < 1 or spatial + temporal + last > MOST_LAYERS:
        raise ValueError(
            "num_spatial_layers and num_temporal_layers must be at least 1, num_auxiliary_layers "
            f"at least 0, and their sum at most {MOST_LAYERS:,}, received {spatial}, {temporal} "
            f"and {last}."
        )
    return spatial, temporal, last


def _read(values: Values, joined: bool = False) -> dict[str, Any]:
    tube = values.get("tubelet_size", (1, 18, 18))
    fits = isinstance(tube, (list, tuple)) and len(tube) == 3
    if not fits or tube[0] != 1 or tube[1] != tube[2]:
        raise ValueError(
            "tubelet_size must be three numbers, 1 frame, height and width, of which the last two "
            f"are the same, received {tube!r}."
        )
    if joined and not flag(values, "apply_l2norm", True):
        raise ValueError("apply_l2norm=False is not supported: vectors are compared by cosines.")
    stem = {
        "kind": "tubes",
        "num_frames": number(values, "num_frames", 16),
        "frame_size": frame_size({"image_size": 288, **values}),
        "tube_frames": 1,
        "patch_size": number({"tubelet_size": tube[1]}, "tubelet_size", None),
        "num_channels": number(values, "num_channels", 3),
        "positions": "frame",
    }
    return {"stem": stem, "num_layers": sum(_depths(values, joined))}


def _write(config: TransformerConfig) -> dict[str, Any]:
    check_tubes(config)
    side = config.stem.patch_size
    return {**published_size(config), "tubelet_size": [1, side, side]}


def _with_stages(
    values: Values, config: TransformerConfig, joined: bool, pooled: bool
) -> TransformerConfig:
    """Return the config with its stages, and if `pooled` with the vector of a video."""
    side, depths = config.encoder, _depths(values, joined)
    steps = side.input.tube_grid(side.input.video_size)[0]
    width, plain = side.hidden_dim, side.block
    blocks = []
    for over, count in zip(("space", "time", None), depths, strict=True):
        pattern = None if over is None else VideoAxis(over=over, steps=steps)
        block = plain.replace(mixer=plain.mixer.replace(pattern=pattern))
        added = TimePositions(hidden_dim=width, steps=steps if over == "time" else 0)
        first = block.replace(merging=added) if blocks else block
        blocks += [first, *[block] * (count - 1)] if count else []
    vector, heads = side.vector, plain.mixer.num_heads
    if pooled:
        inner = plain.feed_forward.dense_dim
        if inner % heads:
            raise ValueError(
                f"intermediate_size={inner} must be a multiple of num_attention_heads={heads}."
            )
        own = Attention(
            num_heads=heads,
            head_dim=inner // heads,
            query_scale=True,
            bias=plain.mixer.bias,
            output_bias=True,
            dropout=plain.mixer.dropout,
        )
        vector = Vector(pooling="attention", attention=own, feed_forward=False, normalize=True)
    final = not depths[2]  # else the norm is the beginning of the last stage
    own = {"block": blocks[-1].replace(merging=None), "layers": tuple(blocks)}
    return config.replace(encoder=side.replace(**own, vector=vector, final_norm=final))


def _without_stages(
    config: TransformerConfig, vector: Vector | None
) -> tuple[TransformerConfig, dict[str, Any]]:
    """Return the config by keywords, with this vector, and the published values of its stages."""
    side = config.encoder
    axes = [getattr(block.mixer.pattern, "over", None) for block in side.layers]
    names = ("num_spatial_layers", "num_temporal_layers", "num_auxiliary_layers")
    stated = dict(zip(names, map(axes.count, ("space", "time", None)), strict=True))
    block = side.block.replace(mixer=side.block.mixer.replace(pattern=None), merging=None)
    plain = side.replace(block=block, layers=(), final_norm=None, vector=vector)
    return config.replace(encoder=plain), stated


def _is_one(config: TransformerConfig) -> bool:
    side = getattr(config, "encoder", None)
    return side is not None and side.of_videos


def _read_alone(values: Values, config: TransformerConfig) -> TransformerConfig:
    named = values.get("architectures")
    pooled = isinstance(named, list) and named[:1] == [_CLASSIFIER]
    return _with_stages(values, config, False, pooled)


def _write_alone(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    if not _is_one(config):
        return config, {}
    plain, stated = _without_stages(config, None)
    if config.encoder.vector is not None:
        stated["architectures"] = [_CLASSIFIER]
    return plain, stated


def _read_joined(values: Values, config: TransformerConfig) -> TransformerConfig:
    config = _with_stages(nested(values, "vision_config"), config, True, True)
    texts = config.decoder
    tokens = texts.input.replace(class_token=True)
    own = {"decoder": texts.replace(input=tokens), "similarity": Similarity(fixed_scale=_SCALE)}
    return config.replace(**own)


def _write_joined(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    if config.kind != "dual" or not _is_one(config):
        return config, {}
    plain, stated = _without_stages(config, Vector(pooling="attention"))
    texts = config.decoder
    own = {
        "decoder": texts.replace(input=texts.input.replace(class_token=False)),
        "similarity": Similarity(),
    }
    return plain.replace(**own), {"vision_config": stated}


_LAYER = {
    **attention("attention.{}_proj", "q", "k", "v", "o"),
    "self_attention_norm": "layernorm_before",
    "feed_forward/intermediate": "mlp.fc1",
    "feed_forward/output": "mlp.fc2",
    "feed_forward_norm": "layernorm_after",
}


def _stage_lines(config: TransformerConfig, video: str, beside: str) -> tuple[WeightLine, ...]:
    """Return the lines of the blocks of a video, which are numbered within their stage there.

    Args:
        config: the config of a model.
        video: the beginning of the names of the encoder.
        beside: the beginning of the names of the last stage, beside texts.
    """
    side = config.encoder
    names = {"space": f"{video}spatial_layers", "time": f"{video}temporal_layers"}
    lines: tuple[WeightLine, ...] = ()
    for first, end in zip((0, *side.stage_ends), side.stage_ends, strict=False):
        over = getattr(side.layer(first).mixer.pattern, "over", None)
        if first:
            norm = "layernorm1" if over == "time" else "layernorm2"
            lines += layers({"merging/input_norm": norm}, f"encoder/layer_{first}/", video)
        if over == "time":
            ours = f"encoder/layer_{first}/merging/positions"
            lines += (WeightLine(ours, f"{video}temporal_embeddings.position_embeddings", row=1),)
        theirs = names.get(over, f"{beside}auxiliary_layers")
        for i in range(first, end):
            lines += layers(_LAYER, f"encoder/layer_{i}/", f"{theirs}.{i - first}.")
    if side.final_norm:
        lines += layers({"encoder/final_norm": f"{video}layernorm2"})
    return lines


def _stem_lines(video: str) -> tuple[WeightLine, ...]:
    patches = f"{video}spatial_embeddings.patch_embeddings.projection"
    places = f"{video}spatial_embeddings.position_embeddings"
    return (
        *layers({"encoder/input_patches": patches}, convolution=True),
        WeightLine("encoder/position_embedding/embeddings", places, row=1),
    )


def _pooling_lines(theirs: str, **options: Any) -> tuple[WeightLine, ...]:
    ours = "encoder/vector/"
    table = attention("{}_proj", "q", "k", "v", "o", ours="attention")
    scale = WeightLine(f"{ours}attention/query_scale", f"{theirs}head.per_dim_scale", **options)
    probe = f"{theirs}head.pooling_attention_query"
    return (
        *layers(table, ours, f"{theirs}head.", **options),
        scale,
        WeightLine(f"{ours}probe", probe, row=2, **options),
        *layers({"encoder/vector_norm": f"{theirs}head_layernorm"}, **options),
    )


_PREFIX = "vision_model."
VIDEOPRISM_VISION = Family(
    model_type="videoprism_vision_model",
    architecture="VideoPrismVisionModel",
    fields=_FIELDS,
    constants={**IMAGE_ENCODER, **_CONSTANTS},
    conversions=(Conversion(_read, _write),),
    parts=PartsWithoutKeywords(_read_alone, _write_alone),
    weights=(*_stem_lines(""), *_pooling_lines("", outside=True)),
    of_config=lambda config: _stage_lines(config, "", ""),
    heads={
        "VideoClassifier": PublishedHead(
            architectures=(_CLASSIFIER,),
            weights=layers({"output": "classifier"}, outside=True),
            values={"pooling": "pooler"},
        )
    },
    names=Names(prefixes=(_PREFIX,), ignored=("classifier.*",)),
)


def _joined_lines(config: TransformerConfig) -> tuple[WeightLine, ...]:
    return _stage_lines(config, f"video_model.{_PREFIX}", "video_model.")


def _computed(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Return the tables that Transformers keeps among the weights."""
    texts, name = config.decoder, "text_model.embeddings.position_"
    places, width = np.arange(texts.max_sequence_length), texts.hidden_dim
    angles = places[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return {f"{name}embedding": table.astype("float32"), f"{name}ids": places[None]}


VIDEOPRISM = Family(
    model_type="videoprism",
    architecture="VideoPrismClipModel",
    fields={},
    constants={"kind": "dual", "scale_embedding": True},
    conversions=(
        towers(
            (
                _FIELDS,
                {**_CONSTANTS, "vector_pooling": "attention"},
                (Conversion(lambda values: _read(values, joined=True), _write),),
            ),
            (_TEXTS, _TEXT, ()),
        ),
    ),
    parts=PartsWithoutKeywords(_read_joined, _write_joined),
    weights=(
        *_stem_lines(f"video_model.{_PREFIX}"),
        *_pooling_lines("video_model."),
        *layers(_LAYER, "decoder/layer_{i}/", "text_model.layers.{i}."),
        *layers({
            "token_embedding": "text_model.embeddings.token_embedding",
            "decoder/final_norm": "text_model.layernorm",
        }),
        WeightLine("decoder/input_class_token", "text_model.embeddings.cls_emb", row=2),
    ),
    of_config=_joined_lines,
    computed=_computed,
    names=Names(ignored=("text_model.embeddings.position_*",)),
)  # fmt: skip
