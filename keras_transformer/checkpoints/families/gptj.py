"""GPT-J: Wang and Komatsuzaki 2021, https://github.com/kingoflolz/mesh-transformer-jax.

Attention and feed-forward side by side, behind one norm; rotary positions of neighbouring features.
"""

import dataclasses

from keras_transformer.checkpoints.families.family import Conversion, Field
from keras_transformer.checkpoints.families.gpt import GPT2, inner_width
from keras_transformer.checkpoints.families.shared import decoder_heads, number
from keras_transformer.checkpoints.weights import Weight, attention, layers, output_matrix

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
        "vocab_size": Field("vocabulary_size", 50400),
        "n_positions": Field("max_sequence_length", 2048),
        "n_embd": Field("hidden_dim", 4096),
        "n_layer": Field("num_layers", 28),
        "n_head": Field("num_heads", 16),
        "resid_pdrop": Field("dropout", 0.0),
        "attn_pdrop": Field("attention_dropout", 0.0),
        "tie_word_embeddings": Field("tie_embeddings", False),
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
        Weight("output_bias/bias", "lm_head.bias", outside=True),
    ),
    heads=decoder_heads(),
    output_bias="lm_head.bias",
)
