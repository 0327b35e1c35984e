"""TrOCR: Li et al. 2021, https://arxiv.org/abs/2109.10282. The decoder, which reads lines of text.

A BART's decoder, some with waves for positions and an output of their own. It is a side of
`vision_encoder_decoder`.
"""

from typing import Any

from keras_transformer.checkpoints.families.family import Conversion, Family, Field, Values
from keras_transformer.checkpoints.families.shared import number
from keras_transformer.checkpoints.weights import Names, attention, layers, output_matrix
from keras_transformer.config import TransformerConfig

_LEARNED = "use_learned_position_embeddings"
_ONCE = {
    "token_embedding": "embed_tokens",
    "decoder/position_embedding": "embed_positions",
    "decoder/embedding_norm": "layernorm_embedding",
}
_LAYER = {
    **attention("self_attn.{}_proj", "q", "k", "v", "out"),
    "self_attention_norm": "self_attn_layer_norm",
    **attention("encoder_attn.{}_proj", "q", "k", "v", "out", ours="cross_attention"),
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward/intermediate": "fc1",
    "feed_forward/output": "fc2",
    "feed_forward_norm": "final_layer_norm",
}


def _read_positions(values: Values) -> dict[str, Any]:
    if values.get(_LEARNED, True):
        return {"position": "learned", "position_offset": 2}
    offset = number(values, "pad_token_id", 1) + 1
    waves = {"sinusoidal_interleaved": False, "sinusoidal_inclusive": True}
    return {"position": "sinusoidal", "position_offset": offset, **waves}


def _write_positions(config: TransformerConfig) -> dict[str, Any]:
    if config.position == "learned":
        return {_LEARNED: True}
    return {_LEARNED: False, "pad_token_id": config.position_offset - 1}


TROCR = Family(
    model_type="trocr",
    architecture="TrOCRForCausalLM",
    fields={
        "vocab_size": Field("vocabulary_size", 50265),
        "d_model": Field("hidden_dim", 1024),
        "decoder_layers": Field("num_layers", 12),
        "decoder_attention_heads": Field("num_heads", 16),
        "decoder_ffn_dim": Field("intermediate_dim", 4096),
        "activation_function": Field("activation", "gelu"),
        "dropout": Field("dropout", 0.1),
        "attention_dropout": Field("attention_dropout", 0.0),
        "max_position_embeddings": Field("max_sequence_length", 512),
        "init_std": Field("initializer_range", 0.02),
        "scale_embedding": Field("scale_embedding", False),
        "layernorm_embedding": Field("embedding_normalization", True),
        "tie_word_embeddings": Field("tie_embeddings", True),
    },
    constants={"kind": "decoder", "normalize_first": False, "normalization_epsilon": 1e-5},
    conversions=(Conversion(_read_positions, _write_positions),),
    required={"is_decoder": True, "add_cross_attention": True},
    weights=(
        *layers(_ONCE),
        *layers(_LAYER, "decoder/layer_{i}/", "layers.{i}."),
        output_matrix("output_projection.weight"),
    ),
    names=Names(prefixes=("model.decoder.",)),
)
