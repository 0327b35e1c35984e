"""GPT-J: Wang and Komatsuzaki 2021, https://github.com/kingoflolz/mesh-transformer-jax.

Attention and feed-forward in parallel, after one norm; rotary positions of neighbouring features.
"""

import dataclasses

from keras_transformer.checkpoints.families.base.family import ConfigField, Conversion
from keras_transformer.checkpoints.families.base.shared import decoder_heads, number
from keras_transformer.checkpoints.families.decoders.gpt import GPT2, inner_width
from keras_transformer.checkpoints.weights.tables import (
    WeightLine,
    attention,
    layers,
    output_matrix,
)

_ONCE = {"token_embedding": "wte", "decoder/final_norm": "ln_f"}
_LAYER = {
    **attention("attn.{}_proj", "q", "k", "v", "out"),
    "self_attention_norm": "ln_1",
    "feed_forward/intermediate": "mlp.fc_in",
    "feed_forward/output": "mlp.fc_out",
}
_ROTATED = Conversion(
    lambda values: {"rotary_dim": number(values, "rotary_dim", 64)},
    lambda config: {"rotary_dim": config.rotary_dim},
)

GPTJ = dataclasses.replace(
    GPT2,
    model_type="gptj",
    architecture="GPTJModel",
    fields={
        **GPT2.fields,
        "vocab_size": ConfigField("vocabulary_size", 50400),
        "n_positions": ConfigField("max_sequence_length", 2048),
        "n_embd": ConfigField("hidden_dim", 4096),
        "n_layer": ConfigField("num_layers", 28),
        "n_head": ConfigField("num_heads", 16),
        "resid_pdrop": ConfigField("dropout", 0.0),
        "attn_pdrop": ConfigField("attention_dropout", 0.0),
        "tie_word_embeddings": ConfigField("tie_embeddings", False),
    },
    constants={
        "kind": "decoder",
        "position": "rotary",
        "rotary_interleaved": True,
        "normalize_first": True,
        "parallel_residual": True,
        "share_normalization": True,
        "attention_bias": False,
        "output_bias": True,
    },
    conversions=(inner_width(4096), _ROTATED),
    required={},
    weights=(
        *layers(_ONCE),
        *layers(_LAYER, "decoder/layer_{i}/", "h.{i}."),
        output_matrix("lm_head.weight"),
        WeightLine("output_bias/bias", "lm_head.bias", outside=True),
    ),
    heads=decoder_heads(),
    output_bias="lm_head.bias",
)
