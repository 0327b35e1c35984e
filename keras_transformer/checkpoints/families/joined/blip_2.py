"""BLIP-2: Li et al. 2023, https://arxiv.org/abs/2301.12597.

BLIP's image tower, a query transformer, and a language model: an OPT, or a T5 whose encoder reads
the image and the prompt. The query transformer has trained states, which attend to the image in
some of its layers. Projected, they replace placeholders of the prompt.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.images import patches
from keras_transformer.checkpoints.families.base.joined import as_model, side_weights
from keras_transformer.checkpoints.families.base.placed import (
    TEXT_END,
    TEXT_START,
    nested,
    prefixed,
    read_text,
    write_text,
)
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.base.towers import with_encoder
from keras_transformer.checkpoints.families.decoders.opt import OPT
from keras_transformer.checkpoints.families.encoders.bert import FIELDS
from keras_transformer.checkpoints.families.joined.blip import IMAGES
from keras_transformer.checkpoints.families.seq2seq.t5 import T5
from keras_transformer.checkpoints.heads import END_IDS
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    attention,
    layers,
    output_matrix,
)
from keras_transformer.config import Placeholders, Projector, Side, TransformerConfig

_CLASS = "Blip2ForConditionalGeneration"
_IMAGES = dataclasses.replace(
    IMAGES,
    model_type="blip_2_vision_model",
    architecture="Blip2VisionModel",
    fields={
        "hidden_size": ConfigField("hidden_dim", 1408),
        "intermediate_size": ConfigField("intermediate_dim", 6144),
        "num_hidden_layers": ConfigField("num_layers", 39),
        "num_attention_heads": ConfigField("num_heads", 16),
        "hidden_act": ConfigField("activation", "gelu"),
        "layer_norm_eps": ConfigField("normalization_epsilon", 1e-6),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "initializer_range": ConfigField("initializer_range", 1e-10),
        "qkv_bias": ConfigField("attention_bias", True),
    },
    conversions=(patches(224, 14),),
)


def _read_queries(values: Values) -> dict[str, Any]:
    count = number(values, "num_query_tokens", 32)
    return {"stem": {"kind": "queries", "num_queries": count, "trained": "state"}}


def _write_queries(config: TransformerConfig) -> dict[str, Any]:
    return {"num_query_tokens": config.stem.num_queries}


_OF_TOKENS = (
    "vocab_size", "max_position_embeddings", "type_vocab_size", "tie_word_embeddings",
)  # fmt: skip
# The query transformer, all of whose layers attend to the image.
_QUERIES = Family(
    model_type="blip_2_qformer",
    architecture="Blip2QFormerModel",
    fields={name: field for name, field in FIELDS.items() if name not in _OF_TOKENS},
    constants={
        "kind": "decoder",
        "vocabulary_size": 0,
        "position": "none",
        "embedding_normalization": True,
        "normalize_first": False,
    },
    required={"use_qformer_text_input": False},
    conversions=(Conversion(_read_queries, _write_queries),),
    weights=(),
    names=Names(),
)
_EVERY = "cross_attention_frequency"


def _read_transformer(values: Values) -> Side:
    """Return the query transformer, which attends to the image in every n-th layer."""
    given = nested(values, "qformer_config")
    count = {name: values[name] for name in ("num_query_tokens",) if name in values}
    side = _QUERIES.config({**given, **count}).decoder
    every = number(given, _EVERY, 2)
    if every < 1:
        raise ValueError(f"{_EVERY} must be at least 1, received {every}.")
    length = min(every, side.num_layers)
    if length == 1:
        return side
    without = side.block.replace(attends_to_source=False)
    return side.replace(layers=(side.block, *[without] * (length - 1)))


def _write_transformer(config: TransformerConfig) -> dict[str, Any]:
    side = config.queries
    attending = [i for i, block in enumerate(side.blocks) if block.attends_to_source]
    every = side.num_layers if len(attending) == 1 else attending[1] if attending else 0
    if not every or attending != [*range(0, side.num_layers, every)]:
        raise ValueError(
            f"its queries attend to the image in every n-th layer, not in {attending}."
        )
    plain = TransformerConfig(decoder=side.replace(layers=()))
    theirs = _QUERIES.published_config(plain)
    count = theirs.pop("num_query_tokens")
    del theirs["architectures"]
    theirs |= {_EVERY: every, "encoder_hidden_size": config.sides[0].hidden_dim}
    return {"qformer_config": theirs, "num_query_tokens": count}


def _read_texts(values: Values) -> tuple[TransformerConfig, int]:
    """Return the language model and the id of the placeholder, by default the next id."""
    text = read_text(values, OPT, T5)
    if text.kind == "encoder":
        raise ValueError("An encoder alone writes no text: text_config must be of a whole T5.")
    names = [n for n in ("image_token_index", "image_token_id") if values.get(n) is not None]
    return text, number(values, names[0], None) if names else text.vocabulary_size


def _read(values: Values) -> dict[str, Any]:
    text, placeholder = _read_texts(values)
    if text.kind == "seq2seq":
        return text.stated()
    return with_encoder(
        _IMAGES.config(nested(values, "vision_config")),
        text,
        placeholder_id=placeholder,
        placeholders_counted=True,
        projector="linear",
    )


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    queries = _read_transformer(values)
    text, placeholder = _read_texts(values)
    if text.kind == "decoder":
        return config.replace(queries=queries)
    return config.replace(
        source=_IMAGES.config(nested(values, "vision_config")).encoder,
        queries=queries,
        placeholders=Placeholders(token_id=placeholder, side="encoder", counted=True),
        projector=Projector(type="linear"),
    )


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    if config.queries is None:
        raise ValueError("a model there has `queries` between the image and the text.")
    images, of_t5 = config.sides[0], config.source is not None
    vision = _IMAGES.published_config(as_model(images))
    del vision["architectures"]
    plain = config.replace(queries=None)
    if of_t5:
        plain = plain.replace(source=None, placeholders=None, projector=None)
        text = T5.published_config(plain)
        del text["architectures"]
    else:
        text = write_text(config, OPT)
    size, placeholder = config.vocabulary_size, config.placeholders.token_id
    return plain, {
        "vision_config": vision,
        **_write_transformer(config),
        "text_config": text,
        "image_token_index": None if placeholder == size else placeholder,
        "is_encoder_decoder": of_t5,
        "tie_word_embeddings": config.tie_embeddings,
    }


_LANGUAGE = "language_model."
_BLOCK = "queries/layer_{i}/"
_LAYER = {
    **attention("attention.{}", *(f"attention.{n}" for n in ("query", "key", "value")),
                "output.dense"),
    "self_attention_norm": "attention.output.LayerNorm",
    **attention("crossattention.{}", *(f"attention.{n}" for n in ("query", "key", "value")),
                "output.dense", ours="cross_attention"),
    "cross_attention_norm": "crossattention.output.LayerNorm",
    "feed_forward/intermediate": "intermediate_query.dense",
    "feed_forward/output": "output_query.dense",
    "feed_forward_norm": "output_query.LayerNorm",
}  # fmt: skip
_LINES = (
    WeightLine("queries/input_queries", "query_tokens", row=1),
    *layers({"queries/embedding_norm": "qformer.layernorm"}),
    *layers(_LAYER, _BLOCK, "qformer.encoder.layer.{i}."),
    *layers({"projector/output": "language_projection"}),
)


def _of_texts(lines: Iterable[WeightLine], folder: str) -> tuple[WeightLine, ...]:
    """Return the lines of a language model and of its output, which is in its folder."""
    return (*prefixed(lines, folder), output_matrix(f"{_LANGUAGE}lm_head.weight"))


def _weights(config: TransformerConfig) -> tuple[WeightLine, ...]:
    name, images = config.side_names[0], config.sides[0]
    texts = _of_texts(OPT.weights, f"{_LANGUAGE}model.")
    if name == "source":
        texts = _of_texts(T5.weights, _LANGUAGE)
    return (*side_weights(_IMAGES, images, "vision_model.", name), *texts)


def _write_ids(task: Values) -> dict[str, Any]:
    """Return the start and the ends of a text, which the language model reads in its own config."""
    found, start = END_IDS.write(task), task.get("start_id")
    if start is not None:
        found |= {"bos_token_id": start, "decoder_start_token_id": start}
    return {"text_config": found} if found else {}


def _read_start(values: Values) -> dict[str, Any]:
    of_t5 = nested(values, "text_config").get("model_type") == T5.model_type
    usual = {"decoder_start_token_id": 0} if of_t5 else {"bos_token_id": 2}
    text = {**usual, **nested(values, "text_config")}
    if of_t5:
        text["bos_token_id"] = text["decoder_start_token_id"]
    return TEXT_START.read({**values, "text_config": text})


BLIP_2 = Family(
    model_type="blip-2",
    architecture=_CLASS,
    fields={},
    constants={"kind": "seq2seq"},
    conversions=(Conversion(_read, lambda config: {}),),
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    weights=_LINES,
    of_config=_weights,
    heads={
        "ImageToText": PublishedHead(
            architectures=(_CLASS,),
            options=(
                TEXT_END,
                Conversion(_read_start, lambda task: {}),
                Conversion(lambda values: {}, _write_ids),
            ),
        )
    },
    names=Names(),
)
