"""TrOCR: Li et al. 2021, https://arxiv.org/abs/2109.10282. The decoder, which reads text lines.

BART's decoder, in some models with sinusoidal positions and an untied output matrix. It is the
decoder of a `vision_encoder_decoder`.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.weights.tables import Names, attention, layers, output_matrix
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
        "vocab_size": ConfigField("vocabulary_size", 50265),
        "d_model": ConfigField("hidden_dim", 1024),
        "decoder_layers": ConfigField("num_layers", 12),
        "decoder_attention_heads": ConfigField("num_heads", 16),
        "decoder_ffn_dim": ConfigField("intermediate_dim", 4096),
        "activation_function": ConfigField("activation", "gelu"),
        "dropout": ConfigField("dropout", 0.1),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "max_position_embeddings": ConfigField("max_sequence_length", 512),
        "init_std": ConfigField("initializer_range", 0.02),
        "scale_embedding": ConfigField("scale_embedding", False),
        "layernorm_embedding": ConfigField("embedding_normalization", True),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
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
