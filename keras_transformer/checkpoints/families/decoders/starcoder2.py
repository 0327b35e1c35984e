"""StarCoder2: Lozhkov et al. 2024, https://arxiv.org/abs/2402.19173.

A Llama with LayerNorm, biases, an ungated feed-forward layer, and a window in its smaller sizes.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion
from keras_transformer.checkpoints.families.base.shared import rotary
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.weights.tables import attention, layers, output_matrix

_OTHER = ("attention_bias", "mlp_bias", "rms_norm_eps")
_LAYER = {
    **attention("self_attn.{}_proj", "q", "k", "v", "o"),
    "self_attention_norm": "input_layernorm",
    "feed_forward/intermediate": "mlp.c_fc",
    "feed_forward/output": "mlp.c_proj",
    "feed_forward_norm": "post_attention_layernorm",
}
_EMBEDDING_DROPOUT = Conversion(
    lambda values: {}, lambda config: {"embedding_dropout": config.dropout}
)

STARCODER2 = dataclasses.replace(
    LLAMA,
    model_type="starcoder2",
    architecture="Starcoder2Model",
    fields={name: field for name, field in LLAMA.fields.items() if name not in _OTHER}
    | {
        "vocab_size": ConfigField("vocabulary_size", 49152),
        "hidden_size": ConfigField("hidden_dim", 3072),
        "num_hidden_layers": ConfigField("num_layers", 30),
        "num_attention_heads": ConfigField("num_heads", 24),
        "num_key_value_heads": ConfigField("num_key_value_heads", 2),
        "intermediate_size": ConfigField("intermediate_dim", 12288),
        "hidden_act": ConfigField("activation", "gelu_pytorch_tanh"),
        "residual_dropout": ConfigField("dropout", 0.0),
        "max_position_embeddings": ConfigField("max_sequence_length", 4096),
        "initializer_range": ConfigField("initializer_range", 0.018042),
        "norm_epsilon": ConfigField("normalization_epsilon", 1e-5),
        "use_bias": ConfigField("use_bias", True),
        "sliding_window": ConfigField("window", None),
        "tie_word_embeddings": ConfigField("tie_embeddings", True),
    },
    constants={**LLAMA.constants, "normalization": "layer_norm", "gated": False},
    conversions=(rotary(), _EMBEDDING_DROPOUT),
    weights=(
        *layers({"token_embedding": "embed_tokens", "decoder/final_norm": "norm"}),
        output_matrix("lm_head.weight"),
        *layers(_LAYER, "decoder/layer_{i}/", "layers.{i}."),
    ),
)
