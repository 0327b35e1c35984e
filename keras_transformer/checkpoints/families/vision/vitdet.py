"""ViTDet: Li et al. 2022, https://arxiv.org/abs/2203.16527.

A ViT for large images: attention within windows of the grid of patches in the layers that the
config names, convolutions behind some, distances in rows and columns in the scores, and the learned
positions of smaller images.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PartsWithoutKeywords,
    Values,
)
from keras_transformer.checkpoints.families.base.images import IMAGE_ENCODER, patches
from keras_transformer.checkpoints.families.base.shared import flag, listed_layers, number
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, fused, layers
from keras_transformer.config import (
    Bottleneck,
    DecomposedBias,
    GridWindows,
    TransformerConfig,
)

_WINDOWS, _RESIDUALS = "window_block_indices", "residual_block_indices"


def _size(values: Values, name: str) -> tuple[int, ...]:
    """Return a height and a width, which may be given as one number."""
    given = values.get(name, 224)
    return tuple(given) if isinstance(given, (list, tuple)) else (given, given)


def _read(values: Values) -> dict[str, Any]:
    ratio = number(values, "mlp_ratio", 4, float)
    return {"intermediate_dim": int(ratio * number(values, "hidden_size", 768))}


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    side, stem = config.encoder, config.encoder.input
    rows, columns = stem.grid(stem.image_size)
    plain, size = side.block, number(values, "window_size", 0)
    windowed, behind = (listed_layers(values, name) or () for name in (_WINDOWS, _RESIDUALS))
    bias, pattern = None, None
    if flag(values, "use_relative_position_embeddings"):
        bias = DecomposedBias(rows=rows, columns=columns)
    if size:
        pattern = GridWindows(size=size, rows=rows, columns=columns)
    residual = Bottleneck(dim=side.hidden_dim // 2, activation=plain.feed_forward.activation)
    blocks = []
    for i in range(side.num_layers):
        own = plain.mixer.replace(score_bias=bias, pattern=pattern if i in windowed else None)
        blocks.append(plain.replace(mixer=own, bottleneck=residual if i in behind else None))
    usual = _size(values, "pretrain_image_size")
    stem = stem if usual == tuple(stem.image_size) else stem.replace(position_size=usual)
    own = {"block": blocks[0], "layers": () if len(set(blocks)) == 1 else tuple(blocks)}
    return config.replace(encoder=side.replace(input=stem, **own))


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    side = config.encoder if config.kind == "encoder" else None
    if side is None or not hasattr(side.input, "position_size"):
        return config, {}
    blocks = list(side.blocks)
    patterns = [getattr(block.mixer, "pattern", None) for block in blocks]
    windows = [each for each in patterns if isinstance(each, GridWindows)]
    stated: dict[str, Any] = {
        "use_relative_position_embeddings": isinstance(side.score_bias, DecomposedBias),
        "window_size": windows[0].size if windows else 0,
        _WINDOWS: [i for i, each in enumerate(patterns) if each is not None],
        _RESIDUALS: [i for i, each in enumerate(blocks) if each.bottleneck is not None],
        "mlp_ratio": blocks[0].feed_forward.dense_dim // side.hidden_dim,  # a whole number there
    }
    height, width = side.input.position_size or side.input.image_size
    stated["pretrain_image_size"] = height if height == width else [height, width]
    mixer = side.block.mixer.replace(score_bias=None, pattern=None)
    plain = side.replace(
        input=side.input.replace(position_size=None),
        block=side.block.replace(mixer=mixer, bottleneck=None),
        layers=(),
    )
    return config.replace(encoder=plain), stated


_OURS, _THEIRS = "encoder/layer_{i}/", "encoder.layer.{i}."
_BOTTLENECK, _RESIDUAL = f"{_OURS}bottleneck/", f"{_THEIRS}residual."

VITDET = Family(
    model_type="vitdet",
    architecture="VitDetModel",
    fields={
        "hidden_size": ConfigField("hidden_dim", 768),
        "num_hidden_layers": ConfigField("num_layers", 12),
        "num_attention_heads": ConfigField("num_heads", 12),
        "hidden_act": ConfigField("activation", "gelu"),
        "dropout_prob": ConfigField("dropout", 0.0),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-6),
        "qkv_bias": ConfigField("attention_bias", True),
    },
    constants={
        **IMAGE_ENCODER,
        "position_offset": 1,  # the row of a class token, which is not used
        "final_normalization": False,
    },
    # Transformers cannot make a model without them.
    required={"use_absolute_position_embeddings": True},
    conversions=(patches(224, 16, class_token=False), Conversion(_read, lambda config: {})),
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    weights=(
        *layers({"encoder/input_patches": "embeddings.projection"}, convolution=True),
        WeightLine(
            "encoder/position_embedding/embeddings", "embeddings.position_embeddings", row=1
        ),
        *fused(
            [f"{_OURS}self_attention/{part}" for part in ("query", "key", "value")],
            f"{_THEIRS}attention.qkv",
        ),
        WeightLine(f"{_OURS}self_attention/relative/rows", f"{_THEIRS}attention.rel_pos_h"),
        WeightLine(f"{_OURS}self_attention/relative/columns", f"{_THEIRS}attention.rel_pos_w"),
        *layers(
            {
                "self_attention/output": "attention.proj",
                "self_attention_norm": "norm1",
                "feed_forward/intermediate": "mlp.fc1",
                "feed_forward/output": "mlp.fc2",
                "feed_forward_norm": "norm2",
            },
            _OURS,
            _THEIRS,
        ),
        *(
            WeightLine(
                f"{_BOTTLENECK}{ours}/kernel",
                f"{_RESIDUAL}{theirs}.weight",
                transpose=True,
                column=2,
            )
            for ours, theirs in (("input", "conv1"), ("output", "conv3"))
        ),
        *layers({"convolution": "conv2"}, _BOTTLENECK, _RESIDUAL, convolution=True),
        *layers(
            {"input_norm": "norm1", "convolution_norm": "norm2", "output_norm": "norm3"},
            _BOTTLENECK,
            _RESIDUAL,
        ),
    ),
    names=Names(prefixes=("model.", "vitdet.")),
)
