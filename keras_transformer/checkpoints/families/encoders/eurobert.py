"""EuroBERT: Boizard et al. 2025, https://arxiv.org/abs/2503.05500.

A Llama whose tokens see both sides. Its masked language model has no layers between states and
logits, and its classifier by default the mean of a hidden layer's outputs.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import NO_PADDING, rotary
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    attention,
    layers,
    output_matrix,
)
from keras_transformer.config import TransformerConfig

_LAYER = {
    **attention("self_attn.{}_proj", "q", "k", "v", "o"),
    "self_attention_norm": "input_layernorm",
    "feed_forward/gate": "mlp.gate_proj",
    "feed_forward/intermediate": "mlp.up_proj",
    "feed_forward/output": "mlp.down_proj",
    "feed_forward_norm": "post_attention_layernorm",
}
# Published poolings -> ours.
_POOLINGS = {"late": "mean_hidden", "bos": "first", "mean": "mean"}


def _read_pooling(values: Values) -> dict[str, Any]:
    name = values.get("classifier_pooling", "late")
    if not isinstance(name, str) or name not in _POOLINGS:
        known = ", ".join(map(repr, _POOLINGS))
        raise ValueError(f"classifier_pooling={name!r} is not supported, only {known}.")
    return {"pooling": _POOLINGS[name]}


def _write_pooling(task: Values) -> dict[str, Any]:
    found = (theirs for theirs, ours in _POOLINGS.items() if ours == task["pooling"])
    return {"classifier_pooling": next(found, "late")}


def _check_bias(config: TransformerConfig) -> dict[str, Any]:
    if config.output_bias and not config.use_bias:
        raise ValueError(
            "A eurobert checkpoint cannot express output_bias=True with use_bias=False."
        )
    return {}


EUROBERT = Family(
    model_type="eurobert",
    architecture="EuroBertModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 128256),
        "hidden_size": ConfigField("hidden_dim", 768),
        "num_hidden_layers": ConfigField("num_layers", 12),
        "num_attention_heads": ConfigField("num_heads", 12),
        "num_key_value_heads": ConfigField("num_key_value_heads", None),
        "head_dim": ConfigField("head_dim", None),
        "intermediate_size": ConfigField("intermediate_dim", 3072),
        "max_position_embeddings": ConfigField("max_sequence_length", 8192),
        "hidden_act": ConfigField("activation", "silu"),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
        "attention_bias": ConfigField("attention_bias", False),
        "mlp_bias": ConfigField("use_bias", False),
        "initializer_range": ConfigField("initializer_range", 0.02),
        "rms_norm_eps": ConfigField("normalization_epsilon", 1e-5),
        "tie_word_embeddings": ConfigField("tie_embeddings", False),
    },
    constants={
        "kind": "encoder",
        "position": "rotary",
        "normalization": "rms_norm",
        "normalize_first": True,
        "gated": True,
    },
    conversions=(rotary(), Conversion(lambda values: {}, _check_bias), NO_PADDING),
    weights=(
        *layers({"token_embedding": "embed_tokens", "encoder/final_norm": "norm"}),
        *layers(_LAYER, "encoder/layer_{i}/", "layers.{i}."),
        output_matrix("lm_head.weight"),
        WeightLine("output_bias/bias", "lm_head.bias", outside=True),
    ),
    heads={
        "MaskedLM": PublishedHead(values={"projection": "linear"}),
        "TextClassifier": PublishedHead(
            weights=layers({"hidden": "dense", "output": "classifier"}),
            values={"hidden_activation": "gelu"},
            options=(Conversion(_read_pooling, _write_pooling),),
        ),
        "TokenClassifier": PublishedHead(weights=layers({"output": "classifier"})),
    },
    names=Names(prefixes=("model.",)),
    output_bias="lm_head.bias",
)
