"""Configs of small decoders with states of images among their own: as those of `family_duals`."""

from tests.checkpoints import mobilenet_v5
from tests.checkpoints.family_sizes import LLAMA

_IMAGES = {
    "model_type": "clip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 28,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 20,
    "patch_size": 5,
}
_OTHER = {
    **_IMAGES,
    "hidden_size": 12,
    "num_attention_heads": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-3,
    "num_channels": 2,
}
_LLAMA = {**LLAMA, "model_type": "llama", "bos_token_id": 1, "eos_token_id": 2}

_SIGLIP = {
    "model_type": "siglip_vision_model", "vision_use_head": False, "hidden_size": 18,
    "intermediate_size": 26, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 20,
    "patch_size": 5,
}  # fmt: skip
_SQUARES = {key: value for key, value in _SIGLIP.items() if key != "vision_use_head"}
_GEMMA = {
    **LLAMA, "model_type": "gemma", "head_dim": 6, "bos_token_id": 2, "eos_token_id": 1,
    "pad_token_id": 0,
}  # fmt: skip
# Some of the prompt is beyond the window, which it sees all the same.
_GEMMA2 = {
    **_GEMMA, "model_type": "gemma2", "sliding_window": 7, "query_pre_attn_scalar": 5,
    "num_hidden_layers": 3, "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
_GEMMA3 = {
    **LLAMA, "model_type": "gemma3_text", "head_dim": 6, "bos_token_id": 2, "eos_token_id": 1,
    "pad_token_id": 0, "sliding_window": 3, "query_pre_attn_scalar": 5,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
_GIT = {
    "vocab_size": 61, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 20, "max_position_embeddings": 24, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip

_ROPE = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [1, 1, 1]}
_QWEN = {
    **LLAMA, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 20, "bos_token_id": 1, "eos_token_id": 2,
    "rope_parameters": _ROPE,
}  # fmt: skip
_IDS = {
    "vision_start_token_id": 54, "vision_end_token_id": 55, "image_token_id": 57,
    "video_token_id": 58,
}  # fmt: skip
_TOWER = {"depth": 2, "hidden_size": 16, "num_heads": 2, "patch_size": 4, "out_hidden_size": 12}

# Families that read images of any size, see `tests/tasks/test_qwen_vl.py`.
OF_ANY_SIZE = {
    "qwen2_vl": (
        "Qwen2VL",
        [
            {
                "vision_config": {
                    **_TOWER, "embed_dim": 16, "hidden_size": 12, "mlp_ratio": 2,
                },
                "text_config": _QWEN,
                **_IDS,
            },
        ],
    ),
    # Windows of two by two squares, which the images do not fill, in the second layer.
    "qwen2_5_vl": (
        "Qwen2_5_VL",
        [
            {
                "vision_config": {
                    **_TOWER, "intermediate_size": 20, "window_size": 16,
                    "fullatt_block_indexes": [0], "tokens_per_second": 2,
                },
                "text_config": _QWEN,
                **_IDS,
            },
        ],
    ),
    # The states behind the first layer of the tower are added behind the first of the decoder.
    "qwen3_vl": (
        "Qwen3VL",
        [
            {
                "vision_config": {
                    **_TOWER, "intermediate_size": 20, "num_position_embeddings": 9,
                    "deepstack_visual_indexes": [0],
                },
                "text_config": {
                    **_QWEN, "head_dim": 8, "rope_parameters": {
                        **_ROPE, "mrope_section": [2, 1, 1], "mrope_interleaved": True,
                    },
                },
                **_IDS,
            },
        ],
    ),
    # A gated delta rule in the first layer, and half of a head rotated in the second.
    "qwen3_5": (
        "Qwen3_5",
        [
            {
                "vision_config": {
                    **_TOWER, "intermediate_size": 20, "num_position_embeddings": 9,
                },
                "text_config": {
                    **_QWEN, "head_dim": 12, "rope_parameters": {
                        **_ROPE, "partial_rotary_factor": 0.5, "mrope_interleaved": True,
                    },
                    "layer_types": ["linear_attention", "full_attention"],
                    "linear_key_head_dim": 4, "linear_value_head_dim": 3,
                    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                },
                **_IDS,
            },
        ],
    ),
}  # fmt: skip
_OF_3_5 = OF_ANY_SIZE["qwen3_5"][1][0]
_EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 8,
}  # fmt: skip
OF_ANY_SIZE["qwen3_5_moe"] = (
    "Qwen3_5Moe",
    [{**_OF_3_5, "text_config": {**_OF_3_5["text_config"], **_EXPERTS}}],
)
_OF_3 = OF_ANY_SIZE["qwen3_vl"][1][0]
# Not as wide as the states: of a square matrix Transformers cannot tell whether it is transposed.
_ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
OF_ANY_SIZE["qwen3_vl_moe"] = (
    "Qwen3VLMoe",
    [{**_OF_3, "text_config": {**_OF_3["text_config"], **_ROUTED}}],
)
_PIXTRAL = {
    "model_type": "pixtral", "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2,
    "num_attention_heads": 2, "patch_size": 4, "rope_parameters": {
        "rope_type": "axial", "rope_theta": 50.0,
    },
}  # fmt: skip
_MISTRAL = {
    **LLAMA, "model_type": "mistral", "hidden_size": 12, "num_hidden_layers": 2, "head_dim": 8,
    "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 20,
    "bos_token_id": 1, "eos_token_id": 2, "sliding_window": None, "rms_norm_eps": 1e-3,
    "max_position_embeddings": 512,
}  # fmt: skip
# Families that read images of any size, whose rows end with a token, see
# `tests/tasks/test_pixtral.py`. The second is a LLaVA with this tower.
OF_ROWS = {
    "mistral3": (
        "Mistral3",
        [
            {
                "vision_config": {**_PIXTRAL, "hidden_act": "silu"},
                "text_config": _MISTRAL,
                "image_token_index": 7,
                "spatial_merge_size": 2,
                "tie_word_embeddings": False,
            },
            {
                "vision_config": {**_PIXTRAL, "num_hidden_layers": 3},
                "text_config": {
                    **_MISTRAL,
                    "model_type": "ministral3",
                    "rope_parameters": {
                        "rope_type": "yarn", "rope_theta": 100.0, "factor": 32.0,
                        "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1,
                    },
                    "tie_word_embeddings": True,
                },
                "image_token_index": 7,
                "spatial_merge_size": 3,
                "vision_feature_layer": -2,
                "multimodal_projector_bias": True,
                "projector_hidden_act": "relu",
                "tie_word_embeddings": True,
            },
        ],
    ),
}  # fmt: skip
_GEMMA4_TEXT = {
    "model_type": "gemma4_text", "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "global_head_dim": 16,
    "intermediate_size": 20, "vocab_size_per_layer_input": 61, "hidden_size_per_layer_input": 10,
    "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "max_position_embeddings": 512,
}  # fmt: skip
_GEMMA4_TOWER = {
    "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 8, "patch_size": 2, "position_embedding_size": 240,
}  # fmt: skip
# Families that read images of any aspect ratio with a budget of states, see
# `tests/tasks/test_gemma4.py`: as the small models with clipped layers and shared keys, as the
# large ones whose states of an image see each other, and as those with experts.
OF_BUDGETS = {
    "gemma4": (
        "Gemma4",
        [
            {
                "vision_config": {
                    **_GEMMA4_TOWER, "use_clipped_linears": True, "pooling_kernel_size": 2,
                },
                "text_config": {
                    **_GEMMA4_TEXT, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
                },
                "audio_config": None,
                "image_token_id": 57,
            },
            {
                "vision_config": {
                    **_GEMMA4_TOWER, "standardize": True, "head_dim": 12, "num_key_value_heads": 1,
                    "rms_norm_eps": 1e-3, "hidden_activation": "silu",
                    "rope_parameters": {"rope_type": "axial", "rope_theta": 50.0},
                },
                "text_config": {
                    **_GEMMA4_TEXT, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
                    "num_global_key_value_heads": 1, "final_logit_softcapping": 3.0,
                    "use_bidirectional_attention": "vision", "tie_word_embeddings": False,
                    "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"],
                },
                "audio_config": None,
                "image_token_id": 57,
                "tie_word_embeddings": False,
            },
            {
                "vision_config": {**_GEMMA4_TOWER, "standardize": True, "pooling_kernel_size": 2},
                "text_config": {
                    **_GEMMA4_TEXT, "hidden_size_per_layer_input": 0, "enable_moe_block": True,
                    "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 8,
                    "use_bidirectional_attention": "vision", "num_hidden_layers": 2,
                    "layer_types": ["sliding_attention", "full_attention"],
                },
                "audio_config": None,
                "image_token_id": 57,
            },
        ],
    ),
}  # fmt: skip
# A family that also hears recordings, see `tests/tasks/test_gemma3n_images.py`.
OF_RECORDINGS = {
    "gemma3n": (
        "Gemma3n",
        [
            {
                "text_config": {
                    "vocab_size": 61, "vocab_size_per_layer_input": 55, "hidden_size": 24,
                    "hidden_size_per_layer_input": 4, "intermediate_size": 32,
                    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
                    "head_dim": 8, "num_kv_shared_layers": 2, "sliding_window": 16,
                    "laurel_rank": 3, "layer_types": ["sliding_attention", "full_attention"] * 2,
                    "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0], "bos_token_id": 1,
                    "eos_token_id": 2,
                },
                "audio_config": {
                    "vocab_size": 3, "vocab_offset": 58, "input_feat_size": 16, "hidden_size": 16,
                    "conf_num_attention_heads": 2, "conf_num_hidden_layers": 2,
                    "sscp_conv_channel_size": [8, 4], "conf_attention_context_left": 5,
                    "conf_attention_chunk_size": 4, "conf_attention_logit_cap": 2.0,
                    "conf_conv_kernel_size": 3,
                },
                "vision_config": {
                    "vocab_size": 3, "vocab_offset": 55, "model_args": mobilenet_v5.small_args(),
                },
                "vision_soft_tokens_per_image": 4,
                "audio_token_id": 59, "image_token_id": 56, "eoa_token_id": 58,
            },
        ],
    ),
}  # fmt: skip
PIXTRAL_LLAVA = {
    "vision_config": {**_PIXTRAL, "hidden_act": "silu"},
    "text_config": _MISTRAL,
    "image_token_index": 7,
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "multimodal_projector_bias": True,
}
# The images of BLIP-2, its query transformer, and its language models.
_OF_BLIP = {
    "hidden_size": 16, "intermediate_size": 28, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 20, "patch_size": 4,
}  # fmt: skip
_QUERIES = {
    "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 22,
    "vocab_size": 7,
}  # fmt: skip
_OPT = {
    "model_type": "opt", "vocab_size": 61, "hidden_size": 20, "word_embed_proj_dim": 20,
    "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 26, "max_position_embeddings": 64,
    "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
_T5 = {
    "model_type": "t5", "vocab_size": 61, "d_model": 20, "d_kv": 6, "d_ff": 26, "num_layers": 2,
    "num_heads": 3, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip

CONFIGS = {
    "llava": (
        "Llava",
        [
            {"vision_config": _IMAGES, "text_config": _LLAMA, "image_token_index": 60},
            {
                "vision_config": {**_OTHER, "model_type": "siglip_vision_model"},
                "text_config": {**_LLAMA, "model_type": "qwen2", "tie_word_embeddings": True},
                "image_token_index": 3,
                "vision_feature_layer": 1,
                "vision_feature_select_strategy": "full",
                "multimodal_projector_bias": False,
                "projector_hidden_act": "relu",
            },
            {
                "vision_config": _OTHER,
                "text_config": {**_LLAMA, "model_type": "mistral", "sliding_window": 6},
                "image_token_index": 4,
                "vision_feature_layer": -1,
                "vision_feature_select_strategy": "full",
            },
        ],
    ),
    "paligemma": (
        "PaliGemma",
        [
            {
                "vision_config": _SIGLIP,
                "text_config": _GEMMA,
                "image_token_index": 60,
                "projection_dim": 12,
                "hidden_size": 12,
            },
            {
                "vision_config": {**_SIGLIP, "layer_norm_eps": 1e-3, "hidden_act": "gelu"},
                "text_config": _GEMMA2,
                "image_token_index": 57,
                "projection_dim": 12,
                "hidden_size": 12,
                "tie_word_embeddings": False,
            },
        ],
    ),
    "gemma3": (
        "Gemma3",
        [
            {
                "vision_config": _SIGLIP,
                "text_config": _GEMMA3,
                "image_token_index": 60,
                "mm_tokens_per_image": 4,
            },
            # An image is wider than the window.
            {
                "vision_config": {**_SIGLIP, "layer_norm_eps": 1e-3, "hidden_act": "gelu"},
                "text_config": {**_GEMMA3, "tie_word_embeddings": False},
                "image_token_index": 57,
                "mm_tokens_per_image": 16,
                "tie_word_embeddings": False,
            },
        ],
    ),
    "idefics3": (
        "Idefics3",
        [
            {
                "vision_config": {**_SQUARES, "model_type": "idefics3_vision"},
                "text_config": _LLAMA,
                "image_token_id": 60,
                "scale_factor": 2,
            },
        ],
    ),
    "smolvlm": (
        "SmolVLM",
        [
            {
                "vision_config": {
                    **_SQUARES,
                    "model_type": "smolvlm_vision",
                    "layer_norm_eps": 1e-3,
                    "hidden_act": "gelu",
                },
                "text_config": {**_LLAMA, "tie_word_embeddings": True},
                "image_token_id": 57,
                "scale_factor": 4,
                "tie_word_embeddings": True,
            },
        ],
    ),
    "internvl": (
        "InternVL",
        [
            {
                "vision_config": {
                    **_SQUARES,
                    "model_type": "internvl_vision",
                    "hidden_size": 16,
                    "num_attention_heads": 2,
                    "attention_bias": True,
                },
                "text_config": {**_LLAMA, "model_type": "qwen2"},
                "image_token_id": 60,
                "tie_word_embeddings": False,
            },
            {
                "vision_config": {
                    **_SQUARES,
                    "model_type": "internvl_vision",
                    "hidden_size": 16,
                    "num_attention_heads": 2,
                    "norm_type": "rms_norm",
                    "use_qk_norm": True,
                },
                "text_config": {**_LLAMA, "model_type": "qwen3", "head_dim": 6},
                "image_token_id": 57,
                "downsample_ratio": 0.25,
                "projector_hidden_act": "relu",
            },
            {
                "vision_config": {
                    **_SQUARES,
                    "model_type": "internvl_vision",
                    "hidden_size": 16,
                    "num_attention_heads": 2,
                    "use_mean_pooling": False,
                    "use_absolute_position_embeddings": False,
                },
                "text_config": _LLAMA,
                "image_token_id": 57,
                "tie_word_embeddings": False,
            },
        ],
    ),
    "llava_next": (
        "LlavaNext",
        [
            {
                "vision_config": _IMAGES,
                "text_config": {**_LLAMA, "model_type": "mistral"},
                "image_token_index": 60,
                "image_grid_pinpoints": [[20, 20]],
            },
        ],
    ),
    "llava_onevision": (
        "LlavaOnevision",
        [
            {
                "vision_config": _SIGLIP,
                "text_config": {**_LLAMA, "model_type": "qwen2"},
                "image_token_index": 60,
                "image_grid_pinpoints": [[20, 20]],
            },
        ],
    ),
    "blip-2": (
        "Blip2",
        [
            {
                "vision_config": _OF_BLIP,
                "qformer_config": _QUERIES,
                "text_config": _OPT,
                "num_query_tokens": 3,
                "image_token_index": 60,
            },
            # A query transformer that attends to the image in its first layer alone.
            {
                "vision_config": {
                    **_OF_BLIP,
                    "hidden_size": 18,
                    "num_attention_heads": 3,
                    "qkv_bias": False,
                    "hidden_act": "relu",
                    "layer_norm_eps": 1e-3,
                    "image_size": 16,
                },
                "qformer_config": {
                    **_QUERIES,
                    "hidden_size": 15,
                    "num_hidden_layers": 2,
                    "hidden_act": "relu",
                    "layer_norm_eps": 1e-3,
                },
                "text_config": {
                    **_OPT,
                    "do_layer_norm_before": False,
                    "tie_word_embeddings": False,
                },
                "num_query_tokens": 5,
                "image_token_index": 4,
            },
            # Placed in the encoder of a T5, see `tests/checkpoints/test_placed_in_encoders.py`.
            {
                "vision_config": _OF_BLIP,
                "qformer_config": _QUERIES,
                "text_config": _T5,
                "num_query_tokens": 3,
                "image_token_index": 60,
            },
            {
                "vision_config": {**_OF_BLIP, "hidden_size": 18, "num_attention_heads": 3},
                "qformer_config": {**_QUERIES, "cross_attention_frequency": 1},
                "text_config": {
                    **_T5,
                    "feed_forward_proj": "gated-gelu",
                    "tie_word_embeddings": False,
                },
                "num_query_tokens": 4,
                "image_token_index": 4,
            },
        ],
    ),
    "git": (
        "Git",
        [
            {"vision_config": {**_IMAGES, "model_type": "git_vision_model"}, **_GIT},
            {
                "vision_config": {**_OTHER, "model_type": "git_vision_model"},
                **_GIT,
                "hidden_act": "relu",
                "layer_norm_eps": 1e-4,
                "tie_word_embeddings": True,
                "pad_token_id": 3,
            },
        ],
    ),
}

# Families whose encoder reads the images' states among its tokens, see
# `tests/checkpoints/test_placed_in_encoders.py`.
_SIDE = {**LLAMA, "head_dim": 6, "sliding_window": 4, "query_pre_attn_scalar": 5}
_ENCODER = {
    "text_config": _SIDE, "vision_config": _SQUARES, "mm_tokens_per_image": 4, "eoi_token_index": 6,
}  # fmt: skip
IN_ENCODERS = {
    "t5gemma2_images": (
        "T5Gemma2",
        [
            {
                "encoder": {
                    **_ENCODER,
                    "text_config": {
                        **_SIDE, "layer_types": ["full_attention", "sliding_attention"]
                    },
                },
                "decoder": _SIDE, "image_token_index": 60,
            },
            {
                "encoder": {
                    **_ENCODER, "mm_tokens_per_image": 1,
                    "vision_config": {**_SQUARES, "layer_norm_eps": 1e-3, "num_hidden_layers": 1},
                },
                "decoder": {**_SIDE, "num_hidden_layers": 3}, "image_token_index": 4,
            },
        ],
    ),
}  # fmt: skip

# Families of retrievers of pages, see `tests/tasks/test_page_embedder.py`.
RETRIEVERS = {
    "colpali": (
        "ColPali",
        [
            {"vlm_config": {**values, "model_type": "paligemma"}, "embedding_dim": 6}
            for values in CONFIGS["paligemma"][1]
        ],
    ),
    "colqwen2": (
        "ColQwen2",
        [
            {"vlm_config": {**values, "model_type": "qwen2_vl"}, "embedding_dim": 6}
            for values in OF_ANY_SIZE["qwen2_vl"][1]
        ],
    ),
}
