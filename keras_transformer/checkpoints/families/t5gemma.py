"""T5Gemma: Zhang et al. 2025, https://arxiv.org/abs/2504.06225.

An encoder and a decoder of Gemma 2's blocks, each with a config and an embedding of its own.
"""

from typing import Any

from keras_transformer.checkpoints.families.family import Conversion, Family, Field, Head, Values
from keras_transformer.checkpoints.families.gemma import GEMMA2
from keras_transformer.checkpoints.families.shared import unread
from keras_transformer.checkpoints.weights import Names, Weight, attention, layers, output_matrix
from keras_transformer.config import OPTIONS, SIDES, TransformerConfig

_MODEL_TYPE = "t5_gemma_module"
# What each side may have of its own.
_OWN = [name for name, known in OPTIONS.items() if known["of"] in ("side", "layer")]


def _windows(config: TransformerConfig, further: int) -> TransformerConfig:
    """With windows that reach further: an encoder's includes the token at its distance."""
    pattern = config.layer_pattern
    own = [] if pattern is None else [dict(layer) for layer in pattern]
    for values in own:
        if values.get("window") is not None:
            values["window"] += further
    window = None if config.window is None else config.window + further
    return config.replace(window=window, layer_pattern=tuple(own) or None)


def _read_side(values: Values, name: str) -> TransformerConfig:
    given = values.get(name) or {}
    if not isinstance(given, dict):
        raise ValueError(f"{name} must be an object, received {given!r}.")
    dropout = {"attention_dropout": values.get("attention_dropout", 0.0)}
    config = GEMMA2.config({**given, **dropout})
    return _windows(config, 1) if name == "encoder" else config


def _read_sides(values: Values) -> dict[str, Any]:
    if values.get("is_encoder_decoder") is False:
        alone = _read_side(values, "encoder").to_dict()
        kept = {name: alone[name] for name in alone if name not in ("dropout", "tie_embeddings")}
        return {**kept, "kind": "encoder", "share_embeddings": None}
    read = [_read_side(values, name) for name in SIDES]
    encoder, decoder = (side.to_dict() for side in read)
    names = [name for name in (*_OWN, "layer_pattern") if name != "dropout"]
    # What follows from the encoder's other values does not from the decoder's, if that is stated.
    stated = read[1].stated().keys() - read[0].stated().keys()
    own = {n: decoder[n] for n in names if decoder[n] != encoder[n] or n in stated}
    shared = {name: encoder[name] for name in names}
    # Of the whole model.
    shared |= {name: decoder[name] for name in ("logit_soft_cap", "scale_embedding")}
    return {**shared, "decoder": own or None}


def _write_sides(config: TransformerConfig) -> dict[str, Any]:
    theirs = {}
    for side in config.sides:
        flat = side.replace(kind="decoder", dropout=0.0, tie_embeddings=True)
        flat = _windows(flat, -1) if side.kind == "encoder" else flat
        theirs[side.kind] = {**GEMMA2.published_config(flat), "model_type": _MODEL_TYPE}
        del theirs[side.kind]["architectures"]
        # Asked for there, whether or not a layer has a window.
        theirs[side.kind]["sliding_window"] = theirs[side.kind]["sliding_window"] or 4096
    if config.kind == "encoder":
        # Their config has a decoder all the same, whose special tokens are those of the model.
        theirs |= {"decoder": theirs["encoder"], "architectures": ["T5GemmaEncoderModel"]}
    return {**theirs, "is_encoder_decoder": config.kind == "seq2seq"}


def _stack(name: str, *attentions: str) -> tuple[Weight, ...]:
    names = {
        f"feed_forward/{ours}": f"mlp.{theirs}_proj"
        for ours, theirs in (("gate", "gate"), ("intermediate", "up"), ("output", "down"))
    }
    for each in attentions:
        projections = attention("{}_proj", "q", "k", "v", "o", ours=f"{each}_attention")
        names |= {ours: f"{each}_attn.{theirs}" for ours, theirs in projections.items()}
    parts = {"feed_forward": "feedforward"} | {f"{x}_attention": f"{x}_attn" for x in attentions}
    for ours, theirs in parts.items():
        names[f"{ours}_norm"] = f"pre_{theirs}_layernorm"
        names[f"{ours}_output_norm"] = f"post_{theirs}_layernorm"
    return (
        *layers(names, f"{name}/layer_{{i}}/", f"{name}.layers.{{i}}."),
        *layers({f"{name}/final_norm": f"{name}.norm"}),
    )


T5GEMMA = Family(
    model_type="t5gemma",
    architecture="T5GemmaModel",
    fields={
        "vocab_size": Field("vocabulary_size", 256000),
        "dropout_rate": Field("dropout", 0.0),
        "attention_dropout": Field("attention_dropout", 0.0),
        "tie_word_embeddings": Field("tie_embeddings", True),
    },
    constants={**GEMMA2.constants, "kind": "seq2seq", "share_embeddings": False},
    conversions=(Conversion(_read_sides, _write_sides),),
    weights=(
        Weight("encoder_token_embedding/embeddings", "encoder.embed_tokens.weight"),
        *(
            Weight("token_embedding/embeddings", f"{last}.embed_tokens.weight", when=("kind", kind))
            for kind, last in (("seq2seq", "decoder"), ("encoder", "encoder"))
        ),
        output_matrix("lm_head.out_proj.weight"),
        *_stack("encoder", "self"),
        *_stack("decoder", "self", "cross"),
    ),
    heads={"Seq2SeqLM": Head(values={"start_id": 2})},
    names=Names(prefixes=("model.",), ignored=unread("score.out_proj")),
)
