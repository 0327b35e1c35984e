"""PARSeq in KerasHub's form: Bautista and Atienza 2022, https://arxiv.org/abs/2207.06966.

A ViT of oblong patches, and a decoder whose queries are the positions of the characters. The start
and the padding are the last tokens, and have no logits. Facts are from KerasHub 0.32,
`models/parseq/*.py` and `models/vit/*.py`.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.images import IMAGE_ENCODER
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.keras_hub.family import (
    PACKAGES,
    TASK_PREFIX,
    Line,
    check_dtype,
    layers,
    make_family,
    registered_class,
    serialized_arguments,
)
from keras_transformer.checkpoints.weights.tables import Names, attention
from keras_transformer.config import TransformerConfig

_DECODER = {
    "vocabulary_size": ConfigField("vocabulary_size", None),
    "decoder_hidden_dim": ConfigField("hidden_dim", None),
    "num_decoder_layers": ConfigField("num_layers", None),
    "num_decoder_heads": ConfigField("num_heads", None),
    "decoder_mlp_dim": ConfigField("intermediate_dim", None),
    "dropout_rate": ConfigField("dropout", 0.1),
    "attention_dropout": ConfigField("attention_dropout", 0.1),
}
_LEFT_OUT = 2  # the start and the padding
# Values of the image encoder with ours; and those with one value that is read.
_ENCODER = {
    "num_layers": "num_layers",
    "num_heads": "num_heads",
    "hidden_dim": "hidden_dim",
    "mlp_dim": "intermediate_dim",
    "dropout_rate": "dropout",
    "attention_dropout": "attention_dropout",
    "layer_norm_epsilon": "normalization_epsilon",
}
_USUAL = {"dropout_rate": 0.0, "attention_dropout": 0.0, "layer_norm_epsilon": 1e-6}
_REQUIRED = {"use_mha_bias": True, "use_mlp_bias": True, "use_class_token": False}
_OTHERS = ("image_shape", "patch_size", "use_patch_bias", "data_format", "dtype", "name")


def _pair(name: str, given: Any) -> tuple[int, int]:
    sides = given if isinstance(given, (list, tuple)) else (given, given)
    if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides):
        raise ValueError(f"{name} of the image encoder must be two sizes, not {str(given)[:200]}.")
    return sides[0], sides[1]


def _read_encoder(values: Values) -> dict[str, Any]:
    given = values["image_encoder"]
    name = registered_class(given) if isinstance(given, dict) else None
    if name != "ViTBackbone":
        raise ValueError(f"image_encoder must be a ViTBackbone, not {str(name)[:200]!r}.")
    own = serialized_arguments(given)
    check_dtype(own.get("dtype"))
    unknown = sorted(own.keys() - {*_ENCODER, *_REQUIRED, *_OTHERS, "trainable"})
    if unknown:
        raise ValueError(f"The image encoder has unknown arguments, {unknown}.")
    for name, supported in {**_REQUIRED, "data_format": "channels_last"}.items():
        if own.get(name, supported) not in (supported, None):
            raise ValueError(f"{name}={own[name]!r} is not supported, only {supported!r}.")
    shape = own.get("image_shape")
    if not isinstance(shape, (list, tuple)) or len(shape) != 3:
        raise ValueError(f"image_shape must be three sizes, not {str(shape)[:200]}.")
    size, (height, width) = _pair("image_shape", shape[:2]), _pair("patch_size", own["patch_size"])
    if size[0] % height or size[1] % width:
        raise ValueError(f"image_shape {size} must be whole patches of {height} x {width}.")
    stem = {
        "kind": "patches",
        "image_size": size,
        "num_channels": number({"channels": shape[2]}, "channels", 3),
        "patch_size": height,
        "patch_width": None if width == height else width,
        "class_token": False,
        "use_bias": own.get("use_patch_bias", True),
    }
    ours = {mine: own.get(theirs, _USUAL.get(theirs)) for theirs, mine in _ENCODER.items()}
    if ours["hidden_dim"] != values["decoder_hidden_dim"]:
        raise ValueError(
            f"hidden_dim={ours['hidden_dim']!r} of the image encoder must be "
            f"decoder_hidden_dim={values['decoder_hidden_dim']!r}."
        )
    if number(values, "vocabulary_size", None) <= _LEFT_OUT:
        raise ValueError(f"vocabulary_size={values['vocabulary_size']} has no characters.")
    usual = {n: v for n, v in IMAGE_ENCODER.items() if n not in ("kind", "tie_embeddings")}
    longest = number(values, "max_label_length", None) + 1
    return {"encoder": {**usual, **ours, "stem": stem}, "max_sequence_length": longest}


def _write_encoder(config: TransformerConfig) -> dict[str, Any]:
    encoder = config.side("encoder")
    stem = encoder.stem
    if stem is None or stem.kind != "patches":
        raise ValueError("its encoder reads patches of images.")
    own = {theirs: getattr(encoder, mine) for theirs, mine in _ENCODER.items()}
    own |= {"image_shape": [*stem.image_size, stem.num_channels], **_REQUIRED}
    own |= {"patch_size": list(stem.patch_sides), "use_patch_bias": stem.use_bias}
    named = {"class_name": "ViTBackbone", "registered_name": f"{PACKAGES[0]}>ViTBackbone"}
    decoder = config.side("decoder")
    return {
        **{name: getattr(decoder, field.ours) for name, field in _DECODER.items()},
        "image_encoder": {**named, "config": own},
        "max_label_length": decoder.max_sequence_length - 1,
    }


def _with_stream(config: TransformerConfig, stream: bool) -> TransformerConfig:
    """Return the config whose decoder has a stream of queries, or one without."""
    block = config.decoder.block.replace(query_stream=stream)
    logits = config.logits.replace(left_out=_LEFT_OUT if stream else 0)
    return config.replace(decoder=config.decoder.replace(block=block), logits=logits)


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    return _with_stream(config, True)


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    if config.decoder is None:
        raise ValueError("its decoder writes characters.")
    return _with_stream(config, False), {}


def _read_ids(values: Values) -> dict[str, Any]:
    size = values.get("vocabulary_size")
    return {} if size is None else {"end_ids": [0], "start_id": size - _LEFT_OUT}


def _blocks(ours: str, theirs: str, attentions: dict[str, str], norms: dict[str, str]):
    """Return the lines of blocks with this attention, by our names, and these norms."""
    table = dict(norms)
    for mine, its in attentions.items():
        table |= attention(f"{its}/{{}}_dense", "query", "key", "value", "output", ours=mine)
    table |= {"feed_forward/intermediate": "mlp/dense_1", "feed_forward/output": "mlp/dense_2"}
    return layers(table, f"{ours}/layer_{{i}}/", theirs)


_IMAGES = "layers/vi_t_backbone/layers/"
_TEXTS = "layers/par_seq_decoder/"
_LINES = (
    *layers(
        {"encoder/input_patches": f"{_IMAGES}vi_t_patching_and_embedding/patch_embedding"},
    ),
    *layers(
        {"encoder/position_embedding": f"{_IMAGES}vi_t_patching_and_embedding/position_embedding"}
    ),
    *_blocks(
        "encoder",
        f"{_IMAGES}vi_t_encoder/encoder_layers/vi_t_encoder_block{{i}}/",
        {"self_attention": "mha"},
        {"self_attention_norm": "layer_norm_1", "feed_forward_norm": "layer_norm_2"},
    ),
    *layers({"encoder/final_norm": f"{_IMAGES}vi_t_encoder/layer_norm"}),
    *layers({"token_embedding": f"{_TEXTS}token_embedding"}),
    Line("decoder/position_embedding/embeddings", f"{_TEXTS}vars/0", row=1),
    *_blocks(
        "decoder",
        f"{_TEXTS}decoder_layers/par_seq_decoder_block{{i}}/",
        {"self_attention": "self_attention", "cross_attention": "cross_attention"},
        {
            "self_attention_norm": "content_layer_norm",
            "query_norm": "query_layer_norm",
            "cross_attention_norm": "layer_norm_1",
            "feed_forward_norm": "layer_norm_2",
        },
    ),
    *layers({"decoder/final_norm": f"{_TEXTS}layer_norm"}),
    *layers({"written_logits": "layers/dense"}),
)

PARSEQ = make_family(
    "parseq",
    "PARSeq",
    _DECODER,
    {
        "kind": "seq2seq",
        "position": "learned",
        "normalization": "layer_norm",
        "normalization_epsilon": 1e-5,
        "normalize_first": True,
        "activation": "gelu",
        "scale_embedding": True,
        "tie_embeddings": False,
        "output_bias": True,
        "initializer_range": 0.02,
    },
    _LINES,
    {
        "ImageToText": PublishedHead(
            architectures=("PARSeqCausalLM",),
            options=(Conversion(_read_ids, lambda options: {}),),
        )
    },
    conversions=(Conversion(_read_encoder, _write_encoder),),
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    more=("image_encoder", "max_label_length"),
    names=Names(ignored=(f"{TASK_PREFIX}*",)),
)
