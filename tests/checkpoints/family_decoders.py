"""Configs of decoders: the start of the classes' names, and three configs or more."""

from tests.checkpoints.family_sizes import LLAMA, WIDER

_GPT = {"vocab_size": 61, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 24}
_NEOX = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
_MOE = {**LLAMA, "num_experts_per_tok": 2, "pad_token_id": 0}
_MIXTRAL = {**_MOE, "num_local_experts": 4}
_OLMOE = {**_MOE, "num_experts": 4, "num_key_value_heads": 3}
_QWEN_MOE = {**_MOE, "num_experts": 4, "moe_intermediate_size": 16, "head_dim": 4}
_QWEN2_MOE = {**_QWEN_MOE, "shared_expert_intermediate_size": 10}
_GPT_OSS = {**_MIXTRAL, "head_dim": 6, "sliding_window": 4, "swiglu_limit": 0.4}
_OPT = {
    "vocab_size": 61,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "ffn_dim": 20,
    "max_position_embeddings": 80,
}
_NARROW = {"hidden_size": 20, "num_attention_heads": 5, "enable_bias": False}
_BLOOM = {"vocab_size": 61, "hidden_size": 12, "n_layer": 2, "n_head": 3}
_GPTJ = {**_GPT, "n_embd": 24, "rotary_dim": 4, "n_positions": 80}
_PHI = {**_NEOX, "hidden_size": 24}
_FALCON = {**_PHI, "ffn_hidden_size": 20}
_PAD = {"pad_token_id": 0}  # the published one is not in so small a vocabulary
_GEMMA3 = {"head_dim": 6, "sliding_window": 4}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "beta_fast": 8.0,
    "original_max_position_embeddings": 16,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 50.0,
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 4.0],
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_OF_EXPERTS = (
    "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "pad_token_id",
)  # fmt: skip
_LATENT = {
    **{name: x for name, x in LLAMA.items() if name != "num_key_value_heads"},
    "kv_lora_rank": 6,
    "q_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "moe_intermediate_size": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "pad_token_id": 0,
}
_V3 = {**_LATENT, "num_key_value_heads": LLAMA["num_attention_heads"]}
_GLM = {**LLAMA, **{name: _LATENT[name] for name in _OF_EXPERTS}}
_GROUPS = {"n_group": 4, "topk_group": 2}
_MSCALE = {"mscale": 0.7, "mscale_all_dim": 1.3}

CONFIGS = {
    "openai-gpt": (
        "OpenAIGPT",
        [_GPT, {**_GPT, "n_embd": 40, "n_head": 5, "afn": "relu"}, {**_GPT, "afn": "swish"}],
    ),
    "gpt2": (
        "GPT2",
        [
            _GPT,
            {**_GPT, "n_embd": 40, "n_head": 5, "n_inner": 33, "activation_function": "relu"},
            {**_GPT, "tie_word_embeddings": False, "layer_norm_epsilon": 1e-3},
            {**_GPT, "n_layer": 3, "scale_attn_by_inverse_layer_idx": True},
            {**_GPT, "scale_attn_weights": False},
            {**_GPT, "scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
        ],
    ),
    "gpt_neox": (
        "GPTNeoX",
        [
            {**_NEOX, "hidden_size": 24},
            {**_NEOX, "hidden_size": 36},  # a quarter of 12 features
            {**_NEOX, "hidden_size": 40, "num_attention_heads": 5, "use_parallel_residual": False},
            {
                **_NEOX,
                "rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 1.0},
                "attention_bias": False,
                "tie_word_embeddings": True,
                "hidden_act": "gelu_new",
            },
        ],
    ),
    "llama": (
        "Llama",
        [
            {**LLAMA, "rope_parameters": _LLAMA3},
            {**LLAMA, "head_dim": 10, "attention_bias": True, "tie_word_embeddings": True},
            {**LLAMA, "hidden_act": "gelu", "mlp_bias": True, "rope_parameters": _YARN},
            {
                **LLAMA,
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 70.0},
            },
            {**LLAMA, "rope_parameters": {"rope_type": "dynamic", "factor": 3.0}},
        ],
    ),
    "mistral": (
        "Mistral",
        [
            {**LLAMA, "sliding_window": 4},
            {**LLAMA, "head_dim": 6, "sliding_window": None, "num_key_value_heads": 3},
            {**LLAMA, "hidden_act": "relu", "rms_norm_eps": 1e-3, "tie_word_embeddings": True},
        ],
    ),
    "qwen2": (
        "Qwen2",
        [
            LLAMA,
            {**LLAMA, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0},
            {**LLAMA, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
            {**LLAMA, "tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e6}},
        ],
    ),
    "qwen3": (
        "Qwen3",
        [
            {**LLAMA, "head_dim": 6},
            {**LLAMA, "head_dim": 8, "attention_bias": True, "num_key_value_heads": 3},
            {**LLAMA, "head_dim": 4, "tie_word_embeddings": True, "hidden_act": "gelu_new"},
        ],
    ),
    "gemma": (
        "Gemma",
        [
            {**LLAMA, "head_dim": 6},
            {**LLAMA, "head_dim": 8, "hidden_act": "gelu", "num_key_value_heads": 3},
            {
                **LLAMA,
                "head_dim": 4,
                "attention_bias": True,
                "tie_word_embeddings": False,
                "rope_parameters": {"rope_theta": 50.0},
            },
        ],
    ),
    "gemma2": (
        "Gemma2",
        [
            {**LLAMA, "head_dim": 6, "sliding_window": 4, "attn_logit_softcapping": 2.0},
            {**LLAMA, "head_dim": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": None},
            {
                **LLAMA,
                "num_hidden_layers": 3,
                "head_dim": 4,
                "query_pre_attn_scalar": 5,
                "sliding_window": 3,
                "layer_types": ["full_attention", "full_attention", "sliding_attention"],
                "attn_logit_softcapping": None,
                "hidden_activation": "silu",
            },
        ],
    ),
    "gemma3_text": (
        "Gemma3Text",
        [
            {**LLAMA, "num_hidden_layers": 3, "sliding_window_pattern": 2, **_GEMMA3},
            {
                **LLAMA,
                **_GEMMA3,
                "query_pre_attn_scalar": 5,
                "final_logit_softcapping": 2.0,
                "rope_theta": 70.0,
                "rope_local_base_freq": 20.0,
                "rope_scaling": {"rope_type": "linear", "factor": 3.0},
                "layer_types": ["sliding_attention", "full_attention"],
            },
            {**LLAMA, **_GEMMA3, "tie_word_embeddings": False, "hidden_activation": "relu"},
        ],
    ),
    "phi3": (
        "Phi3",
        [
            {**LLAMA, "hidden_size": 24, "num_attention_heads": 6, "sliding_window": 4, **_PAD},
            {
                **LLAMA,
                **_PAD,
                "hidden_size": 24,
                "rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.75},
            },
            {
                **LLAMA,
                **_PAD,
                "hidden_act": "gelu",
                "tie_word_embeddings": True,
                "rope_parameters": _LONGROPE,
                "original_max_position_embeddings": 16,
            },
        ],
    ),
    "olmo2": (
        "Olmo2",
        [
            LLAMA,
            {**LLAMA, "num_key_value_heads": 3, "attention_bias": True, "hidden_act": "gelu"},
            {**LLAMA, "tie_word_embeddings": True, "rope_parameters": _LLAMA3},
        ],
    ),
    "smollm3": (
        "SmolLM3",
        [
            {**LLAMA, **_PAD, "no_rope_layer_interval": 2},
            {
                **LLAMA,
                **_PAD,
                "num_hidden_layers": 3,
                "no_rope_layers": [0, 1, 1],
                "use_sliding_window": True,
                "sliding_window": 3,
                "attention_bias": True,
            },
            {
                **LLAMA,
                **_PAD,
                "use_sliding_window": False,  # the names of the layers count
                "sliding_window": 4,
                "layer_types": ["full_attention", "sliding_attention"],
                "rope_parameters": _YARN,
                "tie_word_embeddings": False,
                "mlp_bias": True,
            },
        ],
    ),
    "mixtral": (
        "Mixtral",
        [
            {**_MIXTRAL, "sliding_window": 4},
            {
                **_MIXTRAL,
                **WIDER,
                "intermediate_size": 36,
                "num_local_experts": 5,
                "num_experts_per_tok": 3,
            },
            {**_MIXTRAL, "num_experts_per_tok": 1, "head_dim": 6, "hidden_act": "gelu"},
        ],
    ),
    "olmoe": (
        "Olmoe",
        [
            _OLMOE,
            {
                **_OLMOE,
                **WIDER,
                "intermediate_size": 36,
                "num_key_value_heads": 1,
                "norm_topk_prob": True,
            },
            {**_OLMOE, "num_experts_per_tok": 4, "attention_bias": True},
        ],
    ),
    "qwen2_moe": (
        "Qwen2Moe",
        [
            {**_QWEN2_MOE, "num_hidden_layers": 3, "mlp_only_layers": [1]},
            {
                **_QWEN2_MOE,
                "num_hidden_layers": 3,
                "decoder_sparse_step": 2,
                "use_sliding_window": True,
                "sliding_window": 4,
                "norm_topk_prob": True,
            },
            {**_QWEN2_MOE, "qkv_bias": False, "num_experts": 7, "num_experts_per_tok": 3},
        ],
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        [
            {**_QWEN_MOE, "num_hidden_layers": 3, "mlp_only_layers": [0], "norm_topk_prob": True},
            {**_QWEN_MOE, "head_dim": 6, "attention_bias": True, "num_experts_per_tok": 1},
            {**_QWEN_MOE, "use_sliding_window": True, "sliding_window": 4, "num_experts": 6},
        ],
    ),
    "gpt_oss": (
        "GptOss",
        [
            {**_GPT_OSS, "rope_parameters": {**_YARN, "truncate": False}},
            {**_GPT_OSS, "num_hidden_layers": 3, "num_local_experts": 6, "attention_bias": False},
            {
                **_GPT_OSS,
                "layer_types": ["full_attention", "sliding_attention"],
                "rope_parameters": {**_YARN, "truncate": True},
                "num_experts_per_tok": 1,
            },
        ],
    ),
    "deepseek_v2": (
        "DeepseekV2",
        [
            {**_LATENT, "first_k_dense_replace": 1, "n_shared_experts": 2},
            {
                **_LATENT,
                **_GROUPS,
                "topk_method": "group_limited_greedy",
                "q_lora_rank": None,
                "routed_scaling_factor": 1.6,
                "rope_parameters": {**_YARN, **_MSCALE},
            },
            {
                **_LATENT,
                "num_hidden_layers": 3,
                "first_k_dense_replace": 2,
                "attention_bias": True,
                "v_head_dim": 12,
                "rms_norm_eps": 1e-3,
                "rope_parameters": {**_YARN, "mscale_all_dim": 0.8},
            },
        ],
    ),
    "deepseek_v3": (
        "DeepseekV3",
        [
            {**_V3, **_GROUPS, "first_k_dense_replace": 1},
            {
                **_V3,
                **_GROUPS,
                "first_k_dense_replace": 0,
                "q_lora_rank": None,
                "norm_topk_prob": False,
                "rope_interleave": False,
                "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
            },
            {
                **_V3,
                "n_group": 1,
                "topk_group": 1,
                "first_k_dense_replace": 1,
                "num_hidden_layers": 3,
                "attention_bias": True,
                "n_shared_experts": 2,
                "routed_scaling_factor": 1.0,
                "rms_norm_eps": 1e-3,
            },
        ],
    ),
    "glm4_moe": (
        "Glm4Moe",
        [
            {**_GLM, "hidden_size": 24},
            {**_GLM, **_GROUPS, "head_dim": 10, "use_qk_norm": True, "attention_bias": True},
            {
                **_GLM,
                "head_dim": 6,
                "num_hidden_layers": 3,
                "first_k_dense_replace": 0,
                "norm_topk_prob": False,
                "rope_parameters": {**_YARN, "partial_rotary_factor": 1.0},
            },
        ],
    ),
    "glm4_moe_lite": (
        "Glm4MoeLite",
        [
            _V3,
            {**_V3, **_GROUPS, "mlp_layer_types": ["sparse", "dense"], "attention_bias": True},
            {**_V3, "mlp_layer_types": ["sparse"] * 2, "q_lora_rank": None, "v_head_dim": 14},
        ],
    ),
    "opt": (
        "OPT",
        [
            _OPT,
            {**_OPT, "hidden_size": 40, "num_attention_heads": 5, "do_layer_norm_before": False},
            {**_OPT, "enable_bias": False, "tie_word_embeddings": False},
            {**_OPT, "word_embed_proj_dim": 7, "do_layer_norm_before": False},
            {**_OPT, **_NARROW, "word_embed_proj_dim": 15, "activation_function": "gelu"},
            {**_OPT, "word_embed_proj_dim": 16, "tie_word_embeddings": False}
            | {"_remove_final_layer_norm": True},
        ],
    ),
    "bloom": (
        "Bloom",
        [
            _BLOOM,
            {**_BLOOM, "hidden_size": 40, "n_head": 5, "layer_norm_epsilon": 1e-3},
            {**_BLOOM, "n_layer": 3, "n_head": 2, "tie_word_embeddings": False},
        ],
    ),
    "gptj": (
        "GPTJ",
        [
            _GPTJ,
            {**_GPTJ, "n_embd": 40, "n_head": 5, "n_inner": 33, "rotary_dim": 8},
            {**_GPTJ, "activation_function": "relu", "rotary_dim": 6, "tie_word_embeddings": True},
        ],
    ),
    "falcon": (
        "Falcon",
        [
            _FALCON,
            {**_FALCON, "num_attention_heads": 6, "new_decoder_architecture": True}
            | {"num_kv_heads": 2, "rope_parameters": {"rope_theta": 50.0}, "bias": True},
            {**_FALCON, "num_attention_heads": 6, "new_decoder_architecture": True}
            | {"num_kv_heads": 3, "num_ln_in_parallel_attn": 1, "activation": "relu"},
            {**_FALCON, "multi_query": False, "bias": True, "tie_word_embeddings": False},
            {**_FALCON, "multi_query": False, "bias": True, "alibi": True, "parallel_attn": False},
            {**_FALCON, "num_attention_heads": 6, "alibi": True, "layer_norm_epsilon": 1e-3},
            {**_FALCON, "num_attention_heads": 6, "alibi": True, "new_decoder_architecture": True}
            | {"num_kv_heads": 2, "bias": True},
            {**_FALCON, "parallel_attn": False, "rope_parameters": {"rope_theta": 50.0}},
        ],
    ),
    "phi": (
        "Phi",
        [
            _PHI,
            {**_PHI, "num_attention_heads": 6, "num_key_value_heads": 2, "qk_layernorm": True},
            {
                **_PHI,
                "hidden_act": "relu",
                "tie_word_embeddings": True,
                "rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.25},
            },
        ],
    ),
    "stablelm": (
        "StableLm",
        [
            {**LLAMA, "hidden_size": 24, "use_qkv_bias": True},
            {**LLAMA, "hidden_size": 24, "use_parallel_residual": True, "hidden_act": "gelu"},
            {
                **LLAMA,
                "num_key_value_heads": 3,
                "rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.5},
                "tie_word_embeddings": True,
            },
            {**LLAMA, "hidden_size": 24, "qk_layernorm": True, "use_parallel_residual": True},
            {**LLAMA, "hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 5}
            | {"qk_layernorm": True, "use_qkv_bias": True, "layer_norm_eps": 1e-3},
            {**LLAMA, "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
            | {"qk_layernorm": True, "rope_parameters": {"partial_rotary_factor": 0.5}},
        ],
    ),
    "cohere": (
        "Cohere",
        [
            {**LLAMA, "use_qk_norm": True},
            {**LLAMA, **WIDER, "num_key_value_heads": 5, "logit_scale": 0.3}
            | {"rope_parameters": {"rope_theta": 50.0}},
            {**LLAMA, "use_qk_norm": True, "num_key_value_heads": 3, "attention_bias": True}
            | {"tie_word_embeddings": False, "hidden_act": "gelu", "layer_norm_eps": 1e-3},
        ],
    ),
    "cohere2": (
        "Cohere2",
        [
            {**LLAMA, "num_hidden_layers": 4, "sliding_window": 4},
            {**LLAMA, "sliding_window": 3, "sliding_window_pattern": 2, "attention_bias": True}
            | {"num_hidden_layers": 3, "logit_scale": 0.3, "rope_parameters": {"rope_theta": 50.0}},
            {**LLAMA, "sliding_window": 4, "num_key_value_heads": 3, "tie_word_embeddings": False}
            | {"layer_types": ["full_attention", "sliding_attention"], "hidden_act": "gelu"},
        ],
    ),
    "granite": (
        "Granite",
        [
            {**LLAMA, "embedding_multiplier": 12.0, "logits_scaling": 6.0}
            | {"residual_multiplier": 0.22, "attention_multiplier": 0.3},
            {**LLAMA, "attention_bias": True, "tie_word_embeddings": True},
            {**LLAMA, "mlp_bias": True, "hidden_act": "gelu", "rope_parameters": _YARN}
            | {"logits_scaling": 49.0},
        ],
    ),
}
