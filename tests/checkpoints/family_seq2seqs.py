"""Configs of encoder-decoders: the start of the classes' names, and three configs or more."""

from tests.checkpoints.family_sizes import LLAMA

_T5 = {"vocab_size": 61, "d_model": 12, "d_kv": 5, "d_ff": 20, "num_layers": 2, "num_heads": 3}
_LONGT5 = {**_T5, "local_radius": 3, "encoder_attention_type": "transient-global"}
_SWITCH = {**_T5, "num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_experts": 3}
_BART = {
    "vocab_size": 61,
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 24,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
_LED = {
    **{name: value for name, value in _BART.items() if name != "max_position_embeddings"},
    "attention_window": 4,
    "max_encoder_position_embeddings": 24,
    "max_decoder_position_embeddings": 17,
}
_CHUNKS = {"block_size": 4, "num_global_tokens": 3}
_SIDE = {
    **LLAMA,
    "head_dim": 6,
    "sliding_window": 2,
    "attn_logit_softcapping": 2.0,
    "query_pre_attn_scalar": 5,
}
_SIDE3 = {**LLAMA, "head_dim": 6, "sliding_window": 4, "query_pre_attn_scalar": 5}
_KINDS = ["full_attention", "sliding_attention"]
# What an encoder of T5Gemma 2 has for images, the smallest; token 6 has a vector of its own.
NO_IMAGES = {
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 4,
        "intermediate_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 4,
        "patch_size": 2,
    },
    "mm_tokens_per_image": 1,
    "eoi_token_index": 6,
}


def _t5gemma2(encoder, decoder, **values):
    return {"encoder": {"text_config": encoder, **NO_IMAGES}, "decoder": decoder, **values}


CONFIGS = {
    "t5": (
        "T5",
        [
            _T5,
            {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
            {
                **_T5,
                "num_decoder_layers": 1,
                "feed_forward_proj": "gated-silu",
                "relative_attention_num_buckets": 8,
                "relative_attention_max_distance": 9,
            },
        ],
    ),
    "switch_transformers": (
        "SwitchTransformers",
        [
            _SWITCH,
            {**_SWITCH, "num_layers": 3, "num_sparse_decoder_layers": 2, "router_bias": True},
            {
                **_SWITCH,
                "num_decoder_layers": 3,
                "num_sparse_decoder_layers": 1,
                "dense_act_fn": "gelu",
            },
        ],
    ),
    "mt5": (
        "MT5",
        [
            _T5,
            {**_T5, "feed_forward_proj": "gated-silu", "num_decoder_layers": 1},
            {**_T5, "feed_forward_proj": "relu", "relative_attention_num_buckets": 8},
        ],
    ),
    "umt5": (
        "UMT5",
        [
            _T5,
            {**_T5, "feed_forward_proj": "gated-silu", "num_decoder_layers": 1},
            {
                **_T5,
                "num_decoder_layers": 3,
                "feed_forward_proj": "relu",
                "relative_attention_num_buckets": 8,
                "relative_attention_max_distance": 9,
            },
        ],
    ),
    "t5gemma": (
        "T5Gemma",
        [
            {"encoder": _SIDE, "decoder": _SIDE, "vocab_size": 61},
            {
                "encoder": {**_SIDE, "num_attention_heads": 6, "num_key_value_heads": 2},
                "decoder": {
                    **_SIDE,
                    "hidden_size": 18,
                    "num_hidden_layers": 3,
                    "head_dim": 8,
                    "intermediate_size": 28,
                    "sliding_window": 3,
                    "final_logit_softcapping": None,
                },
                "vocab_size": 61,
                "tie_word_embeddings": False,
            },
            {  # Heads as wide as the encoder would have anyway, and the decoder would not.
                "encoder": {**_SIDE, "head_dim": 4, "num_key_value_heads": 3},
                "decoder": {
                    **_SIDE,
                    "hidden_size": 36,
                    "num_attention_heads": 6,
                    "num_key_value_heads": 3,
                    "head_dim": 4,
                    "intermediate_size": 28,
                },
                "vocab_size": 61,
            },
            {
                "encoder": {**_SIDE, "layer_types": ["full_attention"] * 2},
                "decoder": {**_SIDE, "rope_parameters": {"rope_theta": 50.0}},
                "vocab_size": 61,
            },
        ],
    ),
    "t5gemma2": (
        "T5Gemma2",
        [
            _t5gemma2({**_SIDE3, "layer_types": _KINDS}, {**_SIDE3, "layer_types": _KINDS}),
            _t5gemma2(
                {**_SIDE3, "sliding_window": 5, "num_key_value_heads": 3, "attention_bias": True},
                {
                    **_SIDE3,
                    "num_hidden_layers": 3,
                    "num_attention_heads": 6,
                    "num_key_value_heads": 2,
                    "head_dim": 8,
                    "intermediate_size": 28,
                    "sliding_window": 3,
                    "final_logit_softcapping": 2.0,
                },
            ),
            _t5gemma2(
                {
                    **_SIDE3,
                    "rope_parameters": {
                        "full_attention": {
                            "rope_type": "linear",
                            "factor": 8.0,
                            "rope_theta": 1e6,
                        },
                        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                    },
                },
                {**_SIDE3, "layer_types": ["full_attention"] * 2},
            ),
        ],
    ),
    "mbart": (
        "MBart",
        [
            {
                **_BART,
                "max_position_embeddings": 66,
                "decoder_start_token_id": None,
                "bos_token_id": 3,
            },
            {**_BART, "scale_embedding": True, "activation_function": "relu"},
            {**_BART, "decoder_attention_heads": 2, "decoder_ffn_dim": 28},
        ],
    ),
    "blenderbot": (
        "Blenderbot",
        [
            _BART,
            {
                **_BART,
                "scale_embedding": True,
                "activation_function": "relu",
                "decoder_attention_heads": 2,
                "decoder_ffn_dim": 28,
            },
            {**_BART, "d_model": 40, "encoder_attention_heads": 5, "decoder_attention_heads": 5},
            {**_BART, "tie_word_embeddings": False, "encoder_layers": 1},
        ],
    ),
    "m2m_100": (
        "M2M100",
        [
            {**_BART, "max_position_embeddings": 66},
            {
                **_BART,
                "scale_embedding": False,
                "activation_function": "gelu",
                "pad_token_id": 4,
                "decoder_attention_heads": 2,
                "decoder_ffn_dim": 28,
            },
            {**_BART, "d_model": 40, "encoder_attention_heads": 5, "decoder_attention_heads": 5},
            {**_BART, "tie_word_embeddings": False, "encoder_ffn_dim": 28},
        ],
    ),
    "pegasus": (
        "Pegasus",
        [
            {**_BART, "max_position_embeddings": 66},
            {**_BART, "scale_embedding": True, "activation_function": "relu"},
            {**_BART, "encoder_attention_heads": 2, "encoder_ffn_dim": 28},
            {**_BART, "tie_word_embeddings": False},
        ],
    ),
    "pegasus_x": (
        "PegasusX",
        [
            {**_BART, "max_position_embeddings": 66, **_CHUNKS},
            {
                **_BART,
                **_CHUNKS,
                "stagger_local_blocks": False,
                "scale_embedding": False,
                "activation_function": "relu",
                "block_size": 5,
                "decoder_attention_heads": 2,
            },
            {
                **_BART,
                **_CHUNKS,
                "num_global_tokens": 7,
                "encoder_layers": 1,
                "encoder_ffn_dim": 28,
                "tie_word_embeddings": False,
            },
            {**_BART, **_CHUNKS, "num_global_tokens": 1, "block_size": 6, "encoder_layers": 3},
        ],
    ),
    "bart": (
        "Bart",
        [
            _BART,
            {**_BART, "scale_embedding": True, "activation_function": "relu"},
            {**_BART, "d_model": 40, "encoder_attention_heads": 5, "decoder_attention_heads": 5},
            {**_BART, "decoder_attention_heads": 2, "decoder_ffn_dim": 28},
            {**_BART, "tie_word_embeddings": False},
        ],
    ),
    "plbart": (
        "PLBart",
        [
            _BART,
            {**_BART, "scale_embedding": False, "activation_function": "relu"},
            {**_BART, "decoder_attention_heads": 2, "tie_word_embeddings": False},
        ],
    ),
    "marian": (
        "Marian",
        [
            _BART,
            {**_BART, "scale_embedding": True, "activation_function": "swish"},
            {**_BART, "d_model": 40, "encoder_attention_heads": 5, "decoder_attention_heads": 5},
            {
                **_BART,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 28,
                "decoder_vocab_size": 70,
                "share_encoder_decoder_embeddings": False,
            },
            {**_BART, "tie_word_embeddings": False},
        ],
    ),
    "longt5": (
        "LongT5",
        [
            {**_T5, "local_radius": 3},
            {**_LONGT5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
            {**_LONGT5, "global_block_size": 4, "relative_attention_num_buckets": 8},
        ],
    ),
    "led": (
        "LED",
        [
            _LED,
            {**_LED, "d_model": 40, "encoder_attention_heads": 5, "decoder_attention_heads": 5},
            {**_LED, "attention_window": [4, 8], "decoder_ffn_dim": 28, "encoder_ffn_dim": 24},
            {**_LED, "tie_word_embeddings": False},
        ],
    ),
}
