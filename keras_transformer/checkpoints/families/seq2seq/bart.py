"""BART: Lewis et al. 2019, https://arxiv.org/abs/1910.13461.

Marian: Junczys-Dowmunt et al. 2018, https://arxiv.org/abs/1804.00344, as in the published OPUS-MT
models: the original Transformer with its sines before its cosines.
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
from keras_transformer.checkpoints.families.base.shared import flag, seq2seq_heads, sides
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    attention,
    layers,
    output_matrix,
)
from keras_transformer.config import TransformerConfig

_FIELDS = {
    "vocab_size": ConfigField("vocabulary_size", 50265),
    "d_model": ConfigField("hidden_dim", 1024),
    "encoder_layers": ConfigField("num_layers", 12),
    "decoder_layers": ConfigField("num_decoder_layers", 12),
    "activation_function": ConfigField("activation", "gelu"),
    "dropout": ConfigField("dropout", 0.1),
    "attention_dropout": ConfigField("attention_dropout", 0.0),
    "max_position_embeddings": ConfigField("max_sequence_length", 1024),
    "init_std": ConfigField("initializer_range", 0.02),
    "scale_embedding": ConfigField("scale_embedding", False),
    "tie_word_embeddings": ConfigField("tie_embeddings", True),
}
_CONSTANTS = {"kind": "seq2seq", "normalize_first": False, "normalization_epsilon": 1e-5}
SIDES = sides(attention_heads=("num_heads", 16), ffn_dim=("intermediate_dim", 4096))
_ATTENTION = {
    **attention("attn.{}_proj", "q", "k", "v", "out", ours="attention"),
    "attention_norm": "attn_layer_norm",
}
_FEED_FORWARD = {
    "feed_forward/intermediate": "fc1",
    "feed_forward/output": "fc2",
    "feed_forward_norm": "final_layer_norm",
}


def stack(name: str, layers_of: str | None = None) -> tuple[WeightLine, ...]:
    """Return the lines of the blocks of a side, without cross-attention.

    Args:
        name: the side.
        layers_of: str, prefix of the published number of layers. Defaults to the side's prefix.
    """
    ours, theirs = f"{name}/layer_{{i}}/", f"{layers_of or f'{name}.layers.'}{{i}}."
    return (
        *layers(_ATTENTION, f"{ours}self_", f"{theirs}self_"),
        *layers(_FEED_FORWARD, ours, theirs),
    )


def positions(name: str) -> tuple[WeightLine, ...]:
    """Return the lines of learned positions and the norm after them."""
    table = {"position_embedding": "embed_positions", "embedding_norm": "layernorm_embedding"}
    return layers(table, f"{name}/", f"{name}.")


_SHARED = "shared.weight"
_EMBEDDINGS = {
    "encoder_token_embedding/embeddings": "encoder.embed_tokens.weight",
    "token_embedding/embeddings": "decoder.embed_tokens.weight",
}
# Files from before untied sides were supported have a tensor for each side too, but only the shared
# one is valid.
_OWN_EMBEDDINGS = tuple(
    WeightLine(ours, theirs, also=(_SHARED,), when=("share_embeddings", False))
    for ours, theirs in _EMBEDDINGS.items()
)
EMBEDDINGS = (
    WeightLine(
        "token_embedding/embeddings",
        _SHARED,
        also=(*_EMBEDDINGS.values(),),
        when=("share_embeddings", True),
    ),
    _OWN_EMBEDDINGS[0],
    # A third tensor, which is not read but expected in the file.
    dataclasses.replace(_OWN_EMBEDDINGS[1], also=(), copies=(_SHARED,)),
)
# Embeddings that are not tied to the output are not tied to the other side either.
TIES = Conversion(
    lambda values: {"share_embeddings": values.get("tie_word_embeddings", True)}, lambda config: {}
)
BLOCKS = (
    *stack("encoder"),
    *stack("decoder"),
    *layers(_ATTENTION, "decoder/layer_{i}/cross_", "decoder.layers.{i}.encoder_"),
)
WEIGHTS = (
    output_matrix("lm_head.weight"),
    WeightLine("output_bias/bias", "final_logits_bias", row=1, outside=True),
    *BLOCKS,
)

BART = Family(
    model_type="bart",
    architecture="BartModel",
    fields=_FIELDS,
    constants={
        **_CONSTANTS,
        "position": "learned",
        "position_offset": 2,
        "embedding_normalization": True,
    },
    conversions=(SIDES, TIES),
    weights=(
        *EMBEDDINGS,
        *WEIGHTS,
        *positions("encoder"),
        *positions("decoder"),
    ),
    heads={"Seq2SeqLM": PublishedHead(values={"start_id": 2}), **seq2seq_heads(2, 2)},
    # Version numbers that fairseq stores as tensors.
    names=Names(prefixes=("model.",), ignored=("encoder.version", "decoder.version")),
    output_bias="final_logits_bias",
)


def _write_vocabulary(config: TransformerConfig) -> dict[str, Any]:
    sizes = [side.vocabulary_size for side in config.sides]
    last = min(sizes) - 1  # the padding token, which starts the decoder
    return {
        "vocab_size": sizes[0],
        "decoder_vocab_size": sizes[-1],
        "share_encoder_decoder_embeddings": config.share_embeddings,
        "pad_token_id": last,
        "decoder_start_token_id": last,
    }


def _read_vocabulary(values: Values) -> dict[str, Any]:
    encoder, decoder = values.get("vocab_size", 58101), values.get("decoder_vocab_size")
    own = {} if decoder in (None, encoder) else {"vocabulary_size": decoder}
    sides = SIDES.read(values)
    own |= sides.pop("decoder", {})
    shared = flag(values, "share_encoder_decoder_embeddings", True)
    shared = shared and TIES.read(values)["share_embeddings"]
    return {**sides, "share_embeddings": shared, **({"decoder": own} if own else {})}


MARIAN = dataclasses.replace(
    BART,
    model_type="marian",
    architecture="MarianModel",
    fields={**_FIELDS, "vocab_size": ConfigField("vocabulary_size", 58101)},
    constants={**_CONSTANTS, "position": "sinusoidal", "sinusoidal_interleaved": False},
    conversions=(
        Conversion(
            _read_vocabulary, lambda config: SIDES.write(config) | _write_vocabulary(config)
        ),
    ),
    weights=(EMBEDDINGS[0], *_OWN_EMBEDDINGS, *WEIGHTS),
    heads={
        "Seq2SeqLM": PublishedHead(architectures=("MarianMTModel",), values={"start_id": 58100})
    },
    names=Names(prefixes=("model.",)),
)
