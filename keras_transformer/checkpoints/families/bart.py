"""BART: Lewis et al. 2019, https://arxiv.org/abs/1910.13461.

Marian: Junczys-Dowmunt et al. 2018, https://arxiv.org/abs/1804.00344, as the OPUS-MT models are
published: the original Transformer with its sines before its cosines.
"""

from typing import Any

from keras_transformer.checkpoints.families.conversions import equal_sides
from keras_transformer.checkpoints.families.decoders import output_matrix
from keras_transformer.checkpoints.families.family import Conversion, Family, Field, Head, Values
from keras_transformer.checkpoints.weights import Names, Weight, dense, layer_norm
from keras_transformer.config import TransformerConfig

_FIELDS = {
    "vocab_size": Field("vocabulary_size", 50265),
    "d_model": Field("hidden_dim", 1024),
    "encoder_layers": Field("num_layers", 12),
    "decoder_layers": Field("num_decoder_layers", 12),
    "encoder_attention_heads": Field("num_heads", 16),
    "encoder_ffn_dim": Field("intermediate_dim", 4096),
    "activation_function": Field("activation", "gelu"),
    "dropout": Field("dropout", 0.1),
    "attention_dropout": Field("attention_dropout", 0.0),
    "max_position_embeddings": Field("max_sequence_length", 1024),
    "init_std": Field("initializer_range", 0.02),
    "scale_embedding": Field("scale_embedding", False),
    "tie_word_embeddings": Field("tie_embeddings", True),
}
_CONSTANTS = {"kind": "seq2seq", "normalize_first": False, "normalization_epsilon": 1e-5}
_SIDES = equal_sides("attention_heads", "ffn_dim")


def _attention(ours: str, theirs: str) -> tuple[Weight, ...]:
    return (
        *dense(f"{ours}/query", f"{theirs}.q_proj"),
        *dense(f"{ours}/key", f"{theirs}.k_proj"),
        *dense(f"{ours}/value", f"{theirs}.v_proj"),
        *dense(f"{ours}/output", f"{theirs}.out_proj"),
        *layer_norm(f"{ours}_norm", f"{theirs}_layer_norm"),
    )


def _stack(name: str) -> tuple[Weight, ...]:
    ours, theirs = f"{name}/layer_{{i}}", f"{name}.layers.{{i}}"
    return (
        *_attention(f"{ours}/self_attention", f"{theirs}.self_attn"),
        *dense(f"{ours}/feed_forward/intermediate", f"{theirs}.fc1"),
        *dense(f"{ours}/feed_forward/output", f"{theirs}.fc2"),
        *layer_norm(f"{ours}/feed_forward_norm", f"{theirs}.final_layer_norm"),
    )


def _learned_positions(name: str) -> tuple[Weight, ...]:
    return (
        Weight(f"{name}/position_embedding/embeddings", f"{name}.embed_positions.weight"),
        *layer_norm(f"{name}/embedding_norm", f"{name}.layernorm_embedding"),
    )


_WEIGHTS = (
    Weight(
        "token_embedding/embeddings",
        "shared.weight",
        also=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    ),
    output_matrix("lm_head.weight"),
    Weight("output_bias/bias", "final_logits_bias", row=True, outside=True),
    *_stack("encoder"),
    *_stack("decoder"),
    *_attention("decoder/layer_{i}/cross_attention", "decoder.layers.{i}.encoder_attn"),
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
    conversions=(_SIDES,),
    weights=(*_WEIGHTS, *_learned_positions("encoder"), *_learned_positions("decoder")),
    heads={
        "Seq2SeqLM": Head(architectures=("BartForConditionalGeneration",), values={"start_id": 2})
    },
    names=Names(
        prefixes=("model.",), ignored=("*.version", "classification_head.*", "qa_outputs.*")
    ),
    output_bias="final_logits_bias",
)


def _write_vocabulary(config: TransformerConfig) -> dict[str, Any]:
    last = config.vocabulary_size - 1  # is the padding, which starts the decoder
    return {
        "decoder_vocab_size": config.vocabulary_size,
        "pad_token_id": last,
        "decoder_start_token_id": last,
    }


def _read_vocabulary(values: Values) -> dict[str, Any]:
    encoder, decoder = values.get("vocab_size", 58101), values.get("decoder_vocab_size")
    if decoder not in (None, encoder):
        raise ValueError(
            f"vocab_size={encoder!r} and decoder_vocab_size={decoder!r} must be equal: two "
            "vocabularies are not supported."
        )
    return {}


MARIAN = Family(
    model_type="marian",
    architecture="MarianModel",
    fields={**_FIELDS, "vocab_size": Field("vocabulary_size", 58101)},
    constants={**_CONSTANTS, "position": "sinusoidal", "sinusoidal_interleaved": False},
    conversions=(
        _SIDES,
        Conversion(_read_vocabulary, _write_vocabulary),
    ),
    required={"share_encoder_decoder_embeddings": True},
    weights=_WEIGHTS,
    heads={"Seq2SeqLM": Head(architectures=("MarianMTModel",), values={"start_id": 58100})},
    names=Names(
        prefixes=("model.",),
        # The sines and cosines, which are computed.
        ignored=("encoder.embed_positions.weight", "decoder.embed_positions.weight"),
    ),
    output_bias="final_logits_bias",
)
