"""GPT: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training".

GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3,
which introduced pre-norm.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import (
    cycle_of_layers,
    decoder_heads,
    flag,
    number,
    unread,
)
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    fused,
    layers,
    output_matrix,
)
from keras_transformer.config import MOST_LAYERS, TransformerConfig

_FIELDS = {
    "n_positions": ConfigField("max_sequence_length", 1024),
    "n_embd": ConfigField("hidden_dim", 768),
    "n_layer": ConfigField("num_layers", 12),
    "n_head": ConfigField("num_heads", 12),
    "resid_pdrop": ConfigField("dropout", 0.1),
    "attn_pdrop": ConfigField("attention_dropout", 0.1),
    "layer_norm_epsilon": ConfigField("normalization_epsilon", 1e-5),
    "initializer_range": ConfigField("initializer_range", 0.02),
    "tie_word_embeddings": ConfigField("tie_embeddings", True),
}
_BY_LAYER = "scale_attn_by_inverse_layer_idx"
_QKV = [f"decoder/layer_{{i}}/self_attention/{name}" for name in ("query", "key", "value")]
_LAYER = {
    "self_attention/output": "attn.c_proj",
    "self_attention_norm": "ln_1",
    "feed_forward/intermediate": "mlp.c_fc",
    "feed_forward/output": "mlp.c_proj",
    "feed_forward_norm": "ln_2",
}


def _weights(tokens: str, positions: str) -> tuple[WeightLine, ...]:
    return (
        *layers({"token_embedding": tokens, "decoder/position_embedding": positions}),
        output_matrix("lm_head.weight"),
        # These families store matrices like Keras, not transposed.
        *fused(_QKV, "h.{i}.attn.c_attn", transpose=False),
        *layers(_LAYER, "decoder/layer_{i}/", "h.{i}.", transpose=False),
    )


def inner_width(default: int) -> Conversion:
    """Return a conversion of the feed-forward width; `default` is the default hidden width."""

    def read(values: Values) -> dict[str, Any]:
        width, inner = number(values, "n_embd", default), values.get("n_inner")
        return {"intermediate_dim": 4 * width if inner is None else inner}

    def write(config: TransformerConfig) -> dict[str, Any]:
        inner = config.intermediate_dim
        usual = inner == 4 * config.hidden_dim
        return {"embd_pdrop": config.dropout} | ({} if usual else {"n_inner": inner})

    return Conversion(read, write)


def _read_scores(values: Values) -> dict[str, Any]:
    """Return the score factors, which in some GPT-2 models (Stanford's Mistral) fall by layer."""
    scaled = flag(values, "scale_attn_weights", True)
    if not flag(values, _BY_LAYER):
        return {"score": "scaled_dot" if scaled else "dot"}
    width, heads, count = (
        number(values, name, _FIELDS[name].default) for name in ("n_embd", "n_head", "n_layer")
    )
    factor = max(width // max(heads, 1), 1) ** -0.5 if scaled else 1.0
    layers_ = range(min(max(count, 1), MOST_LAYERS))
    return cycle_of_layers(layers_, {i: {"score_scale": factor / (i + 1)} for i in layers_})


def _write_scores(config: TransformerConfig) -> dict[str, Any]:
    first = config.layer(0).score_scale
    scaled = first != 1 or config.head_dim == 1
    return {"scale_attn_weights": scaled, _BY_LAYER: config.layer_pattern is not None}


GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2Model",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 50257),
        "activation_function": ConfigField("activation", "gelu_new"),
        **_FIELDS,
    },
    constants={"kind": "decoder", "position": "learned", "normalize_first": True},
    conversions=(inner_width(768), Conversion(_read_scores, _write_scores)),
    required={"add_cross_attention": False},
    weights=(*_weights("wte", "wpe"), *layers({"decoder/final_norm": "ln_f"})),
    heads=decoder_heads("GPT2LMHeadModel", tokens="classifier"),
    names=Names(
        prefixes=("transformer.",),
        ignored=unread("multiple_choice_head.summary"),
    ),
)

GPT = dataclasses.replace(
    GPT2,
    model_type="openai-gpt",
    architecture="OpenAIGPTModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 40478),
        "afn": ConfigField("activation", "gelu"),
        **_FIELDS,
        "n_positions": ConfigField("max_sequence_length", 512),
    },
    constants={**GPT2.constants, "normalize_first": False},
    conversions=(inner_width(768),),
    required={"n_inner": None},
    # GPT's "gelu" has always been the tanh approximation.
    activations={"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"},
    weights=_weights("tokens_embed", "positions_embed"),
    heads=decoder_heads("OpenAIGPTLMHeadModel"),
)
