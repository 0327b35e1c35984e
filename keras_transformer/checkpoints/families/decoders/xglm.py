"""XGLM: Lin et al. 2021, https://arxiv.org/abs/2112.10668.

Pre-norm, scaled embeddings, and the sinusoids of Tensor2Tensor, which start at position 2.
"""

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.weights.tables import Names, attention, layers, output_matrix

_OFFSET = 2
_LAYER = {
    **attention("self_attn.{}_proj", "q", "k", "v", "out"),
    "self_attention_norm": "self_attn_layer_norm",
    "feed_forward/intermediate": "fc1",
    "feed_forward/output": "fc2",
    "feed_forward_norm": "final_layer_norm",
}


def _check_padding(values: Values) -> dict:
    """Check that no position is the row of zeros that the padding's id names."""
    row = values.get("pad_token_id", 1)
    if row not in (None, *range(_OFFSET)):
        raise ValueError(
            f"pad_token_id={row!r} is not supported, only null, 0 and 1: the published model "
            "replaces the position of this row by zeros."
        )
    return {}


XGLM = Family(
    model_type="xglm",
    architecture="XGLMModel",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 256008),
        "d_model": ConfigField("hidden_dim", 1024),
        "num_layers": ConfigField("num_layers", 24),
        "attention_heads": ConfigField("num_heads", 16),
        "ffn_dim": ConfigField("intermediate_dim", 4096),
        "activation_function": ConfigField("activation", "gelu"),
        "dropout": ConfigField("dropout", 0.1),
        "attention_dropout": ConfigField("attention_dropout", 0.1),
        "max_position_embeddings": ConfigField("max_sequence_length", 2048),
        "init_std": ConfigField("initializer_range", 0.02),
        "scale_embedding": ConfigField("scale_embedding", True),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    constants={
        "kind": "decoder",
        "position": "sinusoidal",
        "position_offset": _OFFSET,
        "sinusoidal_interleaved": False,
        "sinusoidal_inclusive": True,
        "normalize_first": True,
        "normalization_epsilon": 1e-5,
    },
    conversions=(Conversion(_check_padding, lambda config: {"pad_token_id": None}),),
    required={"add_cross_attention": False},
    weights=(
        *layers({"token_embedding": "embed_tokens", "decoder/final_norm": "layer_norm"}),
        output_matrix("lm_head.weight"),
        *layers(_LAYER, "decoder/layer_{i}/", "layers.{i}."),
    ),
    heads={"CausalLM": PublishedHead()},
    names=Names(prefixes=("model.",)),
)
