"""GPT: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training".

GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3,
which moved the normalizations to the front.
"""

from typing import Any

from keras_transformer.checkpoints.families.conversions import number
from keras_transformer.checkpoints.families.decoders import decoder_heads, output_matrix
from keras_transformer.checkpoints.families.family import Conversion, Family, Field, Values
from keras_transformer.checkpoints.weights import Names, Weight, dense, fused, layer_norm
from keras_transformer.config import TransformerConfig

_LAYER = "decoder/layer_{i}"
_THEIRS = "h.{i}"
_FIELDS = {
    "n_positions": Field("max_sequence_length", 1024),
    "n_embd": Field("hidden_dim", 768),
    "n_layer": Field("num_layers", 12),
    "n_head": Field("num_heads", 12),
    "resid_pdrop": Field("dropout", 0.1),
    "attn_pdrop": Field("attention_dropout", 0.1),
    "layer_norm_epsilon": Field("normalization_epsilon", 1e-5),
    "initializer_range": Field("initializer_range", 0.02),
    "tie_word_embeddings": Field("tie_embeddings", True),
}
# These families store the matrices of their layers as Keras does.
_LAYERS = (
    *fused(
        [f"{_LAYER}/self_attention/{name}" for name in ("query", "key", "value")],
        f"{_THEIRS}.attn.c_attn",
        transpose=False,
    ),
    *dense(f"{_LAYER}/self_attention/output", f"{_THEIRS}.attn.c_proj", transpose=False),
    *layer_norm(f"{_LAYER}/self_attention_norm", f"{_THEIRS}.ln_1"),
    *dense(f"{_LAYER}/feed_forward/intermediate", f"{_THEIRS}.mlp.c_fc", transpose=False),
    *dense(f"{_LAYER}/feed_forward/output", f"{_THEIRS}.mlp.c_proj", transpose=False),
    *layer_norm(f"{_LAYER}/feed_forward_norm", f"{_THEIRS}.ln_2"),
)
_NAMES = Names(
    prefixes=("transformer.",),
    # The causal masks of older releases; the head of a classifier; that of two tasks in one.
    ignored=("h.*.attn.bias", "h.*.attn.masked_bias", "score.*", "multiple_choice_head.*"),
)


def _read_width(values: Values) -> dict[str, Any]:
    width = number(values, "n_embd", 768)
    inner = values.get("n_inner")
    return {"intermediate_dim": 4 * width if inner is None else inner}


def _write_width(config: TransformerConfig) -> dict[str, Any]:
    usual = config.intermediate_dim == 4 * config.hidden_dim
    return {"embd_pdrop": config.dropout} | ({} if usual else {"n_inner": config.intermediate_dim})


_WIDTH = Conversion(_read_width, _write_width)

GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2Model",
    fields={
        "vocab_size": Field("vocabulary_size", 50257),
        "activation_function": Field("activation", "gelu_new"),
        **_FIELDS,
    },
    constants={"kind": "decoder", "position": "learned", "normalize_first": True},
    conversions=(_WIDTH,),
    required={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    weights=(
        Weight("token_embedding/embeddings", "wte.weight"),
        output_matrix("lm_head.weight"),
        Weight("decoder/position_embedding/embeddings", "wpe.weight"),
        *_LAYERS,
        *layer_norm("decoder/final_norm", "ln_f"),
    ),
    heads=decoder_heads("GPT2", also_lm=("GPT2LMHeadModel",)),
    names=_NAMES,
)

GPT = Family(
    model_type="openai-gpt",
    architecture="OpenAIGPTModel",
    fields={
        "vocab_size": Field("vocabulary_size", 40478),
        "afn": Field("activation", "gelu"),
        **_FIELDS,
        "n_positions": Field("max_sequence_length", 512),
    },
    constants={"kind": "decoder", "position": "learned", "normalize_first": False},
    conversions=(_WIDTH,),
    required={"n_inner": None},
    # Its "gelu" has always been the approximate one.
    activations={"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"},
    weights=(
        Weight("token_embedding/embeddings", "tokens_embed.weight"),
        output_matrix("lm_head.weight"),
        Weight("decoder/position_embedding/embeddings", "positions_embed.weight"),
        *_LAYERS,
    ),
    heads=decoder_heads("OpenAIGPT", also_lm=("OpenAIGPTLMHeadModel",)),
    names=_NAMES,
)
