"""Encoders of images in KerasHub's form: ViT and DeiT.

Facts are from KerasHub 0.32, `models/vit/*.py` and `models/deit/*.py`.
"""

from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.images import IMAGE_ENCODER
from keras_transformer.checkpoints.families.base.shared import flag, number
from keras_transformer.checkpoints.keras_hub.family import (
    HEAD_WIDTH,
    TASK_PREFIX,
    KerasHubFamily,
    Line,
    layers,
    make_family,
)
from keras_transformer.checkpoints.weights.tables import Names, attention
from keras_transformer.config import TransformerConfig

# The stem


def _pair(name: str, given: Any) -> tuple[int, int]:
    sides = given if isinstance(given, (list, tuple)) else (given, given)
    if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides):
        raise ValueError(f"{name} of the image encoder must be two sizes, not {str(given)[:200]}.")
    return sides[0], sides[1]


def read_stem(values: Values, **constants: Any) -> dict[str, Any]:
    """Return the values of our stem for the shape of an image and of a patch."""
    shape = values.get("image_shape")
    if not isinstance(shape, (list, tuple)) or len(shape) != 3:
        raise ValueError(f"image_shape must be three sizes, not {str(shape)[:200]}.")
    size = _pair("image_shape", shape[:2])
    height, width = _pair("patch_size", values.get("patch_size"))
    if size[0] % height or size[1] % width:
        raise ValueError(f"image_shape {size} must be whole patches of {height} x {width}.")
    return {
        "kind": "patches",
        "image_size": size,
        "num_channels": number({"channels": shape[2]}, "channels", 3),
        "patch_size": height,
        "patch_width": None if width == height else width,
        **constants,
    }


def write_stem(config: TransformerConfig) -> dict[str, Any]:
    """Return the shape of an image and of a patch for our stem, the reverse of `read_stem`."""
    stem = config.stem
    if stem is None or stem.kind != "patches":
        raise ValueError("its encoder reads patches of images.")
    return {
        "image_shape": [*stem.image_size, stem.num_channels],
        "patch_size": list(stem.patch_sides),
    }


# ViT

ENCODER_FIELDS = {
    "num_layers": ConfigField("num_layers", None),
    "num_heads": ConfigField("num_heads", None),
    "hidden_dim": ConfigField("hidden_dim", None),
    "dropout_rate": ConfigField("dropout", 0.0),
    "attention_dropout": ConfigField("attention_dropout", 0.0),
    "layer_norm_epsilon": ConfigField("normalization_epsilon", 1e-6),
}
VIT_FIELDS = {**ENCODER_FIELDS, "mlp_dim": ConfigField("intermediate_dim", None)}
_CONSTANTS = {**IMAGE_ENCODER, "activation": "gelu", "initializer_range": 0.02}


def encoder_blocks(
    theirs: str,
    first: str = "mlp/dense_1",
    second: str = "mlp/dense_2",
    attending: str = "mha",
    norms: str = "layer_norm_",
    ours: str = "encoder/layer_{i}/",
    **options: Any,
) -> tuple[Line, ...]:
    """Return the lines of blocks. The names of their layers default to those of ViT."""
    table = attention(f"{attending}/{{}}_dense", "query", "key", "value", "output")
    table |= {"self_attention_norm": f"{norms}1", "feed_forward_norm": f"{norms}2"}
    table |= {"feed_forward/intermediate": first, "feed_forward/output": second}
    return layers(table, ours, theirs, **options)


def vit_lines(prefix: str = "layers/") -> tuple[Line, ...]:
    """Return the lines of ViT without its class token; a model that contains it has a prefix."""
    stem, encoder = f"{prefix}vi_t_patching_and_embedding/", f"{prefix}vi_t_encoder/"
    table = {"input_patches": "patch_embedding", "position_embedding": "position_embedding"}
    return (
        *layers(table, "encoder/", stem),
        *encoder_blocks(f"{encoder}encoder_layers/vi_t_encoder_block{{i}}/"),
        *layers({"encoder/final_norm": f"{encoder}layer_norm"}),
    )


def _read_biases(values: Values) -> dict[str, Any]:
    biased = flag(values, "use_mha_bias", True)
    return {
        "use_bias": flag(values, "use_mlp_bias", True),
        "attention_bias": biased,
        "attention_output_bias": biased,
    }


_BIASES = Conversion(
    _read_biases,
    lambda config: {"use_mha_bias": config.attention_bias, "use_mlp_bias": config.use_bias},
)
_VIT_STEM = Conversion(
    lambda values: {
        "stem": read_stem(
            values,
            class_token=flag(values, "use_class_token", True),
            use_bias=flag(values, "use_patch_bias", True),
        )
    },
    lambda config: {
        **write_stem(config),
        "use_class_token": config.stem.class_token,
        "use_patch_bias": config.stem.use_bias,
    },
)

# DeiT

_DEIT_STEM = Conversion(
    lambda values: {"stem": read_stem(values, distillation_token=True)}, write_stem
)
_DEIT = "layers/dei_t_embeddings/"
_DEIT_LINES = (
    *layers({"encoder/input_patches": f"{_DEIT}patch_embedding"}),
    *(
        Line(f"encoder/{ours}", f"{_DEIT}vars/{place}", row=row)
        for place, (ours, row) in enumerate(
            (
                ("input_class_token", 2),
                ("input_distillation_token", 2),
                ("position_embedding/embeddings", 1),
            )
        )
    ),
    *encoder_blocks(
        "layers/dei_t_encoder/encoder_layers/dei_t_encoder_block{i}/",
        "mlp/dense",
        "output_layer/dense",
    ),
    *layers({"encoder/final_norm": "layers/dei_t_encoder/layer_norm"}),
)

# Classifiers


def _read_classifier(values: Values) -> dict[str, Any]:
    own = (values.get("task") or {}).get("config", {})
    pooling, width = own.get("pooling", "token"), own.get("intermediate_dim")
    tokens = flag(values, "use_class_token", True)
    # KerasHub's mean is over all states, the class token included.
    known = {"token": "first"} if tokens else {"token": "first", "gap": "mean"}
    if not isinstance(pooling, str) or pooling not in known:
        raise ValueError(
            f"pooling={str(pooling)[:200]!r} of the classifier is not supported, only "
            f"{', '.join(map(repr, known))}."
        )
    if width is not None:
        raise ValueError(
            f"intermediate_dim={str(width)[:200]} of the classifier is not supported, only None: "
            "it has no hidden layer here."
        )
    return {"pooling": known[pooling]}


def _write_classifier(task: Values) -> dict[str, Any]:
    return {"pooling": "gap" if task.get("pooling") == "mean" else "token"}


_CLASSIFIER: Mapping[str, PublishedHead] = {
    "ImageClassifier": PublishedHead(
        weights=layers({"output": "dense"}, theirs=f"{TASK_PREFIX}layers/"),
        options=(Conversion(_read_classifier, _write_classifier),),
    )
}


def _make(model_type: str, name: str, fields, lines, stem: Conversion, **values) -> KerasHubFamily:
    return make_family(
        model_type,
        name,
        fields,
        _CONSTANTS,
        lines,
        _CLASSIFIER,
        conversions=(HEAD_WIDTH, _BIASES, stem),
        names=Names(ignored=(f"{TASK_PREFIX}*",)),
        **values,
    )


_OF_STEM = ("image_shape", "patch_size")
VISION = (
    _make(
        "vit",
        "ViT",
        VIT_FIELDS,
        (
            Line("encoder/input_class_token", "layers/vi_t_patching_and_embedding/vars/0", row=2),
            *vit_lines(),
        ),
        _VIT_STEM,
        more=(*_OF_STEM, "use_class_token", "use_patch_bias", "use_mha_bias", "use_mlp_bias"),
    ),
    _make(
        "deit",
        "DeiT",
        {**ENCODER_FIELDS, "intermediate_dim": ConfigField("intermediate_dim", None)},
        _DEIT_LINES,
        _DEIT_STEM,
        more=(*_OF_STEM, "use_mha_bias"),
    ),
)
