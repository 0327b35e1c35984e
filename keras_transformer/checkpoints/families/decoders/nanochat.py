"""NanoChat: Karpathy 2025, https://github.com/karpathy/nanochat.

Norms without weights, also of the embeddings and of the rotated queries and keys; an ungated
feed-forward layer; a cap on the logits; rotary positions that turn clockwise.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField, PublishedHead
from keras_transformer.checkpoints.families.base.shared import rotary
from keras_transformer.checkpoints.families.decoders.llama import LLAMA
from keras_transformer.checkpoints.weights.tables import attention, layers, output_matrix

_LAYER = {
    **attention("self_attn.{}_proj", "q", "k", "v", "o"),
    "feed_forward/intermediate": "mlp.fc1",
    "feed_forward/output": "mlp.fc2",
}

NANOCHAT = dataclasses.replace(
    LLAMA,
    model_type="nanochat",
    architecture="NanoChatModel",
    fields={name: field for name, field in LLAMA.fields.items() if name != "mlp_bias"}
    | {
        "vocab_size": ConfigField("vocabulary_size", 50304),
        "hidden_size": ConfigField("hidden_dim", 768),
        "num_hidden_layers": ConfigField("num_layers", 12),
        "num_attention_heads": ConfigField("num_heads", 6),
        "intermediate_size": ConfigField("intermediate_dim", 8192),
        "hidden_act": ConfigField("activation", "relu2"),
        "final_logit_softcapping": ConfigField("logit_soft_cap", 15.0),
    },
    constants={
        **LLAMA.constants,
        "use_bias": False,
        "gated": False,
        "normalization": "rms_norm_no_weight",
        "embedding_normalization": True,
        "query_key_norm": True,
        "query_key_norm_after_rotation": True,
        "rotary_direction": "clockwise",
    },
    conversions=(rotary(),),
    weights=(
        *layers({"token_embedding": "embed_tokens"}),
        output_matrix("lm_head.weight"),
        *layers(_LAYER, "decoder/layer_{i}/", "layers.{i}."),
    ),
    heads={"CausalLM": PublishedHead()},
)
