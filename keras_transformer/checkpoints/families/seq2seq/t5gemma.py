"""T5Gemma: Zhang et al. 2025, https://arxiv.org/abs/2504.06225.

An encoder and a decoder of Gemma 2's blocks, each with a config and an embedding of its own.
"""

from collections.abc import Callable
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import flag, unread
from keras_transformer.checkpoints.families.decoders.gemma import GEMMA2
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    attention,
    layers,
    output_matrix,
)
from keras_transformer.config import OPTIONS, SIDES, TransformerConfig

_MODEL_TYPE = "t5_gemma_module"
# Options that each side may have of its own.
_OWN = [name for name, known in OPTIONS.items() if known["of"] in ("side", "layer")]


def with_windows(config: TransformerConfig, size: Callable[[int], int]) -> TransformerConfig:
    """Return the config with all windows changed by a function of their size."""
    pattern = config.layer_pattern
    own = [] if pattern is None else [dict(layer) for layer in pattern]
    for values in own:
        if values.get("window") is not None:
            values["window"] = size(values["window"])
    window = None if config.window is None else size(config.window)
    return config.replace(window=window, layer_pattern=tuple(own) or None)


def joined(encoder: TransformerConfig, decoder: TransformerConfig) -> dict[str, Any]:
    """Return the values of an encoder-decoder whose sides have the configs of two decoders."""
    encoder_values, decoder_values = encoder.flat, decoder.flat
    names = [name for name in (*_OWN, "layer_pattern") if name != "dropout"]
    # Values that only the decoder states are kept even if equal: the encoder derives them from
    # others, which may differ in the decoder.
    stated = decoder.stated().keys() - encoder.stated().keys()
    own = {
        n: decoder_values[n] for n in names if decoder_values[n] != encoder_values[n] or n in stated
    }
    shared = {name: encoder_values[name] for name in names}
    # Options of the whole model.
    shared |= {name: decoder_values[name] for name in ("logit_soft_cap", "scale_embedding")}
    return {**shared, "decoder": own or None}


def _read_side(values: Values, name: str) -> TransformerConfig:
    given = values.get(name) or {}
    if not isinstance(given, dict):
        raise ValueError(f"{name} must be an object, received {given!r}.")
    dropout = {"attention_dropout": values.get("attention_dropout", 0.0)}
    config = GEMMA2.config({**given, **dropout})
    # A published encoder's window includes the token at its last distance, ours does not.
    return with_windows(config, lambda size: size + 1) if name == "encoder" else config


def _read_sides(values: Values) -> dict[str, Any]:
    if not flag(values, "is_encoder_decoder", True):
        alone = _read_side(values, "encoder").flat
        kept = {name: alone[name] for name in alone if name not in ("dropout", "tie_embeddings")}
        return {**kept, "kind": "encoder", "share_embeddings": None}
    return joined(*(_read_side(values, name) for name in SIDES))


def _write_sides(config: TransformerConfig) -> dict[str, Any]:
    theirs = {}
    for side in config.sides:
        flat = side.replace(kind="decoder", dropout=0.0, tie_embeddings=True)
        flat = with_windows(flat, lambda size: size - 1) if side.kind == "encoder" else flat
        theirs[side.kind] = {**GEMMA2.published_config(flat), "model_type": _MODEL_TYPE}
        del theirs[side.kind]["architectures"]
        # Required in the published config, whether or not a layer has a window.
        theirs[side.kind]["sliding_window"] = theirs[side.kind]["sliding_window"] or 4096
    if config.kind == "encoder":
        # The published config has a decoder even without one, with the model's special tokens.
        theirs |= {"decoder": theirs["encoder"], "architectures": ["T5GemmaEncoderModel"]}
    return {**theirs, "is_encoder_decoder": config.kind == "seq2seq"}


def stack(name: str, *attentions: str) -> tuple[WeightLine, ...]:
    """Return the lines of a side's blocks, with these attentions, and of the norm behind them."""
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
        "vocab_size": ConfigField("vocabulary_size", 256000),
        "dropout_rate": ConfigField("dropout", 0.0),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    constants={**GEMMA2.constants, "kind": "seq2seq", "share_embeddings": False},
    conversions=(Conversion(_read_sides, _write_sides),),
    weights=(
        WeightLine("encoder_token_embedding/embeddings", "encoder.embed_tokens.weight"),
        *(
            WeightLine(
                "token_embedding/embeddings", f"{last}.embed_tokens.weight", when=("kind", kind)
            )
            for kind, last in (("seq2seq", "decoder"), ("encoder", "encoder"))
        ),
        output_matrix("lm_head.out_proj.weight"),
        *stack("encoder", "self"),
        *stack("decoder", "self", "cross"),
    ),
    heads={"Seq2SeqLM": PublishedHead(values={"start_id": 2})},
    names=Names(prefixes=("model.",), ignored=unread("score.out_proj")),
)
