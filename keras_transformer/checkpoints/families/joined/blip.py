"""BLIP: Li et al. 2022, https://arxiv.org/abs/2201.12086. Models for captions and for answers.

A ViT with fused queries, keys and values, and a BERT decoder that attends to it. For answers, an
additional BERT encoder reads the question and attends to the image, and the decoder attends to this
encoder.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.images import IMAGE_ENCODER, patch_weights, patches
from keras_transformer.checkpoints.families.base.joined import EncoderDecoderFamily, side_weights
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.encoders.bert import OLDER_NORMS, STACK
from keras_transformer.checkpoints.families.joined.writers import BERT_WRITER, CROSS
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, fused, layers
from keras_transformer.config import TransformerConfig

_CLASS, _ASKED = "BlipForConditionalGeneration", "BlipForQuestionAnswering"
_SHARED = {
    "num_hidden_layers": ConfigField("num_layers", 12),
    "hidden_size": ConfigField("hidden_dim", 768),
    "intermediate_size": ConfigField("intermediate_dim", 3072),
    "hidden_act": ConfigField("activation", "gelu"),
}
_BLOCK = "encoder/layer_{i}/"
_QKV = [f"{_BLOCK}self_attention/{name}" for name in ("query", "key", "value")]
_LAYER = {
    "self_attention/output": "self_attn.projection",
    "self_attention_norm": "layer_norm1",
    "feed_forward/intermediate": "mlp.fc1",
    "feed_forward/output": "mlp.fc2",
    "feed_forward_norm": "layer_norm2",
}
IMAGES = Family(
    model_type="blip_vision_model",
    architecture="BlipVisionModel",
    fields={
        **_SHARED,
        "num_attention_heads": ConfigField("num_heads", 12),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "initializer_range": ConfigField("initializer_range", 1e-10),
    },
    constants=IMAGE_ENCODER,
    conversions=(patches(384, 16),),
    weights=(
        *patch_weights("embeddings.", "patch_embedding", "position_embedding"),
        WeightLine("encoder/input_class_token", "embeddings.class_embedding", row=2),
        *fused(_QKV, "encoder.layers.{i}.self_attn.qkv"),
        *layers(_LAYER, _BLOCK, "encoder.layers.{i}."),
        *layers({"encoder/final_norm": "post_layernorm"}),
    ),
    names=Names(),
)
_TEXTS = dataclasses.replace(
    BERT_WRITER,
    model_type="blip_text_model",
    architecture="BlipTextLMHeadModel",
    fields={
        **_SHARED,
        "vocab_size": ConfigField("vocabulary_size", 30524),
        "num_attention_heads": ConfigField("num_heads", 8),
        "max_position_embeddings": ConfigField("max_sequence_length", 512),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-12),
        "hidden_dropout_prob": ConfigField("dropout", 0.0),
        "attention_probs_dropout_prob": ConfigField("attention_dropout", 0.0),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    required={"is_decoder": True},
)
_JOINED = EncoderDecoderFamily(
    encoders=(IMAGES,),
    decoders=(_TEXTS,),
    configs=("vision_config", "text_config"),
    prefixes=("vision_model.", "text_decoder."),
    projects=False,
)


# The question encoder, whose config is the decoder's.
_READER = dataclasses.replace(
    _TEXTS, weights=(*STACK, *layers(CROSS, "encoder/layer_{i}/", "encoder.layer.{i}."))
)


def _read(values: Values) -> dict[str, Any]:
    named = values.get("architectures")
    if isinstance(named, list) and named and named not in ([_CLASS], [_ASKED]):
        raise ValueError(
            f"architectures={named!r} is not supported for model_type 'blip', only {_CLASS!r} and "
            f"{_ASKED!r}. The others do not generate text."
        )
    found = _JOINED.conversion.read(values)
    if named != [_ASKED]:
        return found
    images = {**found["encoder"], "num_layers": found["num_layers"]}
    if images.get("hidden_dim", found["hidden_dim"]) != found["hidden_dim"]:
        raise ValueError(
            "The image and text sides of a question answering model must have the same hidden_size."
        )
    return {**found, "source": images, "encoder": None, "num_layers": found["num_decoder_layers"]}


def _write(config: TransformerConfig) -> dict[str, Any]:
    tied = {"tie_word_embeddings": config.tie_embeddings}
    if config.source is None:
        return {**_JOINED.conversion.write(config), **tied}
    images, _, writes = config.sides
    theirs = _JOINED.write_sides(images, writes, config.flat["projector"])
    return {**theirs, "architectures": [_ASKED], **tied}


def _weights(config: TransformerConfig) -> tuple[WeightLine, ...]:
    if config.source is None:
        return _JOINED.weights(config)
    families = (IMAGES, _READER, _TEXTS)
    prefixes = ("vision_model.", "text_encoder.", "text_decoder.")
    each = zip(families, config.sides, prefixes, config.side_names, strict=True)
    return tuple(line for side in each for line in side_weights(*side))


def _read_ids(values: Values) -> dict[str, Any]:
    """Return the start and end token of a text, as our task options."""
    texts = values.get("text_config") or {}
    end = number(texts, "sep_token_id", 102)
    return {"start_id": number(texts, "bos_token_id", 30522), "end_ids": [end]}


def _write_ids(task: Values) -> dict[str, Any]:
    start, ends = task.get("start_id"), list(task.get("end_ids") or ())
    if len(ends) > 1:
        raise ValueError(f"A blip checkpoint has one end token, received {ends}.")
    found = {"bos_token_id": start, "sep_token_id": ends[0] if ends else None}
    found = {name: i for name, i in found.items() if i is not None}
    return {"text_config": found} if found else {}


_TEXT_IDS = Conversion(_read_ids, _write_ids)

BLIP = Family(
    model_type="blip",
    architecture=_CLASS,
    fields={},
    constants={"kind": "seq2seq"},
    conversions=(Conversion(_read, _write),),
    weights=(),
    of_config=_weights,
    heads={"ImageToText": PublishedHead(architectures=(_CLASS, _ASKED), options=(_TEXT_IDS,))},
    names=Names(suffixes=OLDER_NORMS),
)
