"""The encoder of SegFormer, which KerasHub calls MiT, and SegFormer in KerasHub's form.

A `SegFormerBackbone` contains the encoder and most of the head: here the first is the backbone, and
the second belongs to the `ImageSegmenter`. KerasHub reads images of one size, which must be a
square of whole patches. It computes gelu by tanh, so that published models, whose gelu is exact,
have no counterpart there. The norms before its layers have an epsilon of 1e-6, not 1e-5, which
changes the last digits. Facts are from KerasHub 0.32, `models/mit/*.py` and
`models/segformer/*.py`.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    Conversion,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.vision.segformer import (
    MOST_STAGES,
    SEGFORMER,
    keywords_of,
    read_parts,
    write_parts,
)
from keras_transformer.checkpoints.keras_hub.family import (
    TASK_PREFIX,
    Line,
    inner_arguments,
    inner_model,
    layers,
    make_family,
    numbered,
)
from keras_transformer.checkpoints.weights.tables import Names, attention
from keras_transformer.config import TransformerConfig

_LISTS = {
    "layerwise_depths": "depths",
    "hidden_dims": "hidden_sizes",
    "layerwise_num_heads": "num_attention_heads",
    "layerwise_sr_ratios": "sr_ratios",
    "layerwise_patch_sizes": "patch_sizes",
    "layerwise_strides": "strides",
}
_NEEDED = (*_LISTS, "num_layers", "image_shape")
_DROP = "max_drop_path_rate"  # of training
_RATIO = 4  # feed-forward layers are this many times as wide as the states
_STAGES = 4  # of a SegFormer, by whose number its layers are numbered
_INNER = "image_encoder"


def _published(values: Values) -> dict[str, Any]:
    """Return the published config of the arguments of an encoder."""
    shape, count = values["image_shape"], number(values, "num_layers", None)
    if not isinstance(shape, (list, tuple)) or len(shape) != 3:
        raise ValueError(f"image_shape must be three sizes, not {str(shape)[:200]}.")
    if not 1 <= count <= MOST_STAGES:
        raise ValueError(f"num_layers must be from 1 to {MOST_STAGES}, not {count}.")
    return {
        **{its: values[own] for own, its in _LISTS.items()},
        "num_encoder_blocks": count,
        "mlp_ratios": [_RATIO] * count,
        "num_channels": shape[2],
    }


def _read(values: Values) -> dict[str, Any]:
    theirs = _published(values)
    ours = keywords_of(theirs)
    height, width = (
        number({"image_shape": size}, "image_shape", None) for size in values["image_shape"][:2]
    )
    size = height
    for stride, kernel in zip(theirs["strides"], theirs["patch_sizes"], strict=True):
        if height != width or size % stride or not kernel % 2 or not size:
            raise ValueError(
                f"image_shape={str(values['image_shape'])[:200]} is not supported, only a square "
                f"that strides of {theirs['strides']} divide, with patches of odd sizes."
            )
        size //= stride
    return {**ours, "stem": {**ours["stem"], "image_size": (height, width)}}


def _write(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    plain, stated = write_parts(config)
    if not stated:
        raise ValueError("its encoder has stages of patches.")
    stem = config.encoder.input
    return plain, {
        **{own: stated[its] for own, its in _LISTS.items()},
        "num_layers": stated["num_encoder_blocks"],
        "image_shape": [*stem.image_size, stem.num_channels],
        _DROP: 0.0,
    }


def _encoder(values: Values) -> dict[str, Any]:
    """Return the arguments of the encoder within a SegFormer."""
    own = inner_arguments(values, _INNER, "MiTBackbone", _NEEDED, (_DROP,))
    if own["num_layers"] != _STAGES:
        raise ValueError(f"num_layers={str(own['num_layers'])[:200]} must be {_STAGES}.")
    widths = own["hidden_dims"]
    if not isinstance(widths, list | tuple) or len({*map(str, widths)}) != _STAGES:
        # They name layers there.
        raise ValueError(f"hidden_dims={str(widths)[:200]} must be {_STAGES} different widths.")
    return own


def _write_encoder(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    plain, own = _write(config)
    return plain, {_INNER: inner_model("MiTBackbone", own)}


_LAYER = {
    **attention("attn/{}", "q", "k", "v", "proj"),
    "self_attention/reduction/convolution": "attn/sr",
    "self_attention/reduction/norm": "attn/norm",
    "self_attention_norm": "norm1",
    "feed_forward/intermediate": "mlp/fc1",
    "feed_forward/output": "mlp/fc2",
    "feed_forward_norm": "norm2",
}
_CONVOLUTION = "feed_forward/convolution"


def _lines(config: TransformerConfig, prefix: str = "layers/") -> tuple[Line, ...]:
    """Return the lines of an encoder, whose layers are numbered from the first stage on."""
    ends = config.encoder.stage_ends
    lines: tuple[Line, ...] = ()
    for stage, (first, end) in enumerate(zip((0, *ends), ends, strict=False)):
        patches = f"{prefix}overlapping_patching_and_embedding{numbered(stage)}/"
        before = f"encoder/layer_{first}/merging/"
        # The next merging begins with the norm behind a stage; the last one is the final norm.
        behind = f"encoder/layer_{end}/merging/input_norm" if end != ends[-1] else None
        lines += layers(
            {
                f"{before}convolution" if stage else "encoder/input_patches": f"{patches}proj",
                f"{before}norm" if stage else "encoder/embedding_norm": f"{patches}norm",
                behind or "encoder/final_norm": f"{prefix}layer_normalization{numbered(stage)}",
            }
        )
    for i in range(config.encoder.num_layers):
        mine = f"encoder/layer_{i}/"
        its = f"{prefix}hierarchical_transformer_encoder{numbered(i)}/"
        lines += (
            *layers(_LAYER, mine, its, apart=False),
            Line(f"{mine}{_CONVOLUTION}/kernel", f"{its}mlp/dwconv/vars/0", column=1),
            Line(f"{mine}{_CONVOLUTION}/bias", f"{its}mlp/dwconv/vars/1"),
        )
    return lines


def _read_pooling(values: Values) -> dict[str, Any]:
    pooling = (values.get("task") or {}).get("config", {}).get("pooling", "avg")
    if pooling != "avg":
        raise ValueError(
            f"pooling={str(pooling)[:200]!r} of the classifier is not supported, only 'avg'."
        )
    return {"pooling": "mean"}


_FUSED = "layers/sequential/layers/"
_SEGMENTER = (
    *layers(
        {f"decoder/project_{i}": f"layers/dense{numbered(_STAGES - 1 - i)}" for i in range(_STAGES)}
    ),
    *layers({"hidden": f"{_FUSED}conv2d", "output": f"{TASK_PREFIX}layers/conv2d"}),
    *(
        Line(f"hidden_norm/{name}", f"{_FUSED}batch_normalization/vars/{place}")
        for place, name in enumerate(("gamma", "beta", "moving_mean", "moving_variance"))
    ),
)
_WIDTH = "projection_filters"


def _make(name: str, read: Any, write: Any, heads: dict[str, PublishedHead], **values: Any):
    """Return a family. `read` returns the encoder's arguments, `write` those of the class."""
    return make_family(
        "segformer",
        name,
        {},
        {**SEGFORMER.constants, "activation": "gelu_tanh", "initializer_range": 0.02},
        (),
        heads,
        conversions=(Conversion(lambda values: _read(read(values)), lambda config: {}),),
        parts=PartsWithoutKeywords(
            lambda values, config: read_parts(_published(read(values)), config), write
        ),
        **values,
    )


MIT = (
    _make(
        "MiT",
        lambda values: values,
        _write,
        {
            "ImageClassifier": PublishedHead(
                weights=layers({"output": "dense"}, theirs=f"{TASK_PREFIX}layers/"),
                options=(Conversion(_read_pooling, lambda task: {}),),
            )
        },
        of_config=_lines,
        needed=_NEEDED,
        more=(_DROP,),
        names=Names(ignored=(f"{TASK_PREFIX}*",)),
    ),
    _make(
        "SegFormer",
        _encoder,
        _write_encoder,
        {
            "ImageSegmenter": PublishedHead(
                weights=_SEGMENTER,
                values={"dropout": 0.1},
                options=(
                    Conversion(
                        lambda values: {"decoder": {"features": number(values, _WIDTH, None)}},
                        lambda task: {_WIDTH: task["decoder"]["features"]},
                    ),
                ),
            )
        },
        of_config=lambda config: _lines(config, "layers/functional/layers/"),
        needed=(_INNER, _WIDTH),
        names=Names(ignored=(f"{TASK_PREFIX}*", "layers/dense*", "layers/sequential/*")),
    ),
)
