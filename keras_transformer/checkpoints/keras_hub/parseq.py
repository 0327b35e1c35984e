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
    TASK_PREFIX,
    Line,
    inner_arguments,
    inner_model,
    layers,
    make_family,
)
from keras_transformer.checkpoints.keras_hub.vision import (
    VIT_FIELDS,
    read_stem,
    vit_lines,
    write_stem,
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
# Values of the image encoder with one value that is read.
_REQUIRED = {"use_mha_bias": True, "use_mlp_bias": True, "use_class_token": False}
_OF_STEM = ("image_shape", "patch_size", "use_patch_bias")


def _read_encoder(values: Values) -> dict[str, Any]:
    optional = {*VIT_FIELDS, *_REQUIRED, *_OF_STEM}
    own = inner_arguments(values, "image_encoder", "ViTBackbone", (), optional)
    for name, supported in _REQUIRED.items():
        if own.get(name, supported) not in (supported, None):
            raise ValueError(f"{name}={own[name]!r} is not supported, only {supported!r}.")
    stem = read_stem(own, class_token=False, use_bias=own.get("use_patch_bias", True))
    ours = {field.ours: own.get(theirs, field.default) for theirs, field in VIT_FIELDS.items()}
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
    own = {theirs: getattr(encoder, field.ours) for theirs, field in VIT_FIELDS.items()}
    own |= {**write_stem(encoder), **_REQUIRED, "use_patch_bias": encoder.stem.use_bias}
    decoder = config.side("decoder")
    return {
        **{name: getattr(decoder, field.ours) for name, field in _DECODER.items()},
        "image_encoder": inner_model("ViTBackbone", own),
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


_TEXTS = "layers/par_seq_decoder/"
_PARTS = ("query", "key", "value", "output")
_DECODER_TABLE = {
    **attention("self_attention/{}_dense", *_PARTS),
    **attention("cross_attention/{}_dense", *_PARTS, ours="cross_attention"),
    "self_attention_norm": "content_layer_norm",
    "query_norm": "query_layer_norm",
    "cross_attention_norm": "layer_norm_1",
    "feed_forward_norm": "layer_norm_2",
    "feed_forward/intermediate": "mlp/dense_1",
    "feed_forward/output": "mlp/dense_2",
}
_LINES = (
    *vit_lines("layers/vi_t_backbone/layers/"),
    *layers({"token_embedding": f"{_TEXTS}token_embedding"}),
    Line("decoder/position_embedding/embeddings", f"{_TEXTS}vars/0", row=1),
    *layers(
        _DECODER_TABLE, "decoder/layer_{i}/", f"{_TEXTS}decoder_layers/par_seq_decoder_block{{i}}/"
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
