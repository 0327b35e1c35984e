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
_LFM2 = {**LLAMA, "block_auto_adjust_ff_dim": False}
_LFM2_MOE = {
    **_MOE,
    "num_experts": 4,
    "moe_intermediate_size": 8,
    "num_dense_layers": 1,
    "layer_types": ["conv", "full_attention"],
}
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
_MAMBA2 = {
    "vocab_size": 61,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_heads": 6,
    "head_dim": 4,
    "state_size": 5,
    "n_groups": 2,
    "chunk_size": 4,
    "pad_token_id": 0,
}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 3,
    "layer_types": ["linear_attention", "full_attention"],
}
_QWEN3_NEXT = {
    **_QWEN2_MOE,
    **_LINEAR,
    "head_dim": 8,
}
_QWEN3_5 = {**LLAMA, **_LINEAR, "head_dim": 8}
# Transformers writes the convolutions of queries, keys and values as thirds of their sum, which is
# what they are if all are of one width.
_OLMO_HYBRID = {
    **LLAMA,
    "pad_token_id": 0,
    "linear_value_head_dim": 4,  # wider than keys, while their convolutions are cut in thirds
    "layer_types": ["linear_attention", "full_attention"],
}
_BAMBA = {
    **LLAMA,
    "mamba_n_heads": 6,
    "mamba_d_state": 5,
    "mamba_chunk_size": 4,
    "pad_token_id": 0,
}
_GRANITE_HYBRID = {
    **_MIXTRAL,
    "shared_intermediate_size": 10,
    "layer_types": ["linear_attention", "full_attention"],
    "mamba_n_heads": 6,
    "mamba_d_state": 5,
    "mamba_chunk_size": 4,
}
_NEMOTRON_H = {
    "vocab_size": 61,
    "hidden_size": 12,
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 5,
    "intermediate_size": 20,
    "mamba_num_heads": 6,
    "mamba_head_dim": 4,
    "ssm_state_size": 5,
    "n_groups": 2,
    "chunk_size": 4,
    "n_routed_experts": 4,
    "moe_intermediate_size": 8,
    "moe_shared_expert_intermediate_size": 10,
}
_RECURRENT_GEMMA = {
    "vocab_size": 61,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "intermediate_size": 20,
    "attention_window_size": 4,
    "block_types": ["recurrent", "attention"],
}
_ERNIE_MOE = {
    **_MOE,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_intermediate_size": 8,
}
_BIOGPT = {
    "vocab_size": 61,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 24,
}
_KIMI = {
    "vocab_size": 61,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "kv_lora_rank": 6,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 5,
    "linear_head_dim": 5,
    "linear_num_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_FALCON_H1 = {
    **_BAMBA,
    "mamba_d_ssm": 18,
    "embedding_multiplier": 5.5,
    "lm_head_multiplier": 0.04,
    "mlp_multipliers": [0.9, 0.6],
    "key_multiplier": 0.37,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.94,
    "ssm_multipliers": [0.35, 0.25, 0.18, 0.5, 0.3],
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.24,
}
_GEMMA4 = {
    **LLAMA,
    "num_hidden_layers": 4,
    "head_dim": 6,
    "global_head_dim": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 4,
    "hidden_size_per_layer_input": 5,
    "vocab_size_per_layer_input": 61,
    "pad_token_id": 0,
}
_GEMMA3N = {
    **LLAMA,
    "num_hidden_layers": 4,
    "head_dim": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 4,
    "hidden_size_per_layer_input": 5,
    "vocab_size_per_layer_input": 55,  # some tokens have no vectors
    "laurel_rank": 3,
    "altup_num_inputs": 3,
    "activation_sparsity_pattern": [0.6, 0.3, 0.0, 0.0],
    "num_kv_shared_layers": 2,
    "pad_token_id": 1,
}
_LLAMA4 = {
    **_MIXTRAL,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 28,
    "head_dim": 6,
    "no_rope_layers": [1, 0],
    "attention_chunk_size": 4,
    "floor_scale": 3,
    "attn_scale": 0.8,
    "pad_token_id": 0,
}
_PHI = {**_NEOX, "hidden_size": 24}
_FALCON = {**_PHI, "ffn_hidden_size": 20}
_STARCODER2 = {**LLAMA, "num_attention_heads": 6, "num_key_value_heads": 2}
_STARCODER2 |= {"hidden_size": 24}
_XGLM = {"vocab_size": 61, "d_model": 12, "num_layers": 2, "attention_heads": 3, "ffn_dim": 20}
_GPT_NEO = {
    "vocab_size": 61,
    "hidden_size": 12,
    "num_layers": 2,
    "num_heads": 3,
    "max_position_embeddings": 80,
    "window_size": 4,
    "attention_types": [[["global", "local"], 1]],
}
_CODEGEN = {**_GPTJ, "n_embd": 32, "n_head": 4}
_MPT = {"vocab_size": 61, "d_model": 12, "n_layers": 2, "n_heads": 3, "max_seq_len": 80}
_HELIUM = {**LLAMA, "head_dim": 4}
_NEMOTRON = {**LLAMA, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 24}
_PERSIMMON = {**_NEOX, "hidden_size": 24}
_PAD = {"pad_token_id": 0}  # the published one is not in so small a vocabulary
_GEMMA3 = {"head_dim": 6, "sliding_window": 4}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "beta_fast": 8.0,
    "original_max_position_embeddings": 16,
}
_GROWING = {
    **_YARN,
    "original_max_position_embeddings": 3,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.4,
}
_STILL = {
    "rope_type": "default",
    "original_max_position_embeddings": 16,
    "llama_4_scaling_beta": 0.0,
}
_ALPHA = {"rope_type": "dynamic", "rope_theta": 50.0, "alpha": 20.0, "factor": 1.0}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 50.0,
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 4.0],
}
_THETA = {"rope_type": "default", "rope_theta": 50.0}
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

_MODERN = {
    **{name: value for name, value in LLAMA.items() if name != "num_key_value_heads"},
    "local_attention": 6,
    "pad_token_id": 1,
}
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
    "bamba": (
        "Bamba",
        [
            {**_BAMBA, "attn_layer_indices": [1]},
            {
                **_BAMBA,
                "attn_layer_indices": [0],
                "mamba_n_groups": 3,
                "mamba_d_conv": 2,
                "mamba_conv_bias": False,
                "mamba_proj_bias": True,
            },
            {
                **_BAMBA,
                "num_hidden_layers": 3,
                "attn_layer_indices": [0, 2],
                "attention_bias": True,
                "mlp_bias": True,
                "mamba_expand": 3,
                "tie_word_embeddings": True,
                "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
            },
        ],
    ),
    "mamba2": (
        "Mamba2",
        [
            _MAMBA2,
            {**_MAMBA2, "n_groups": 1, "conv_kernel": 2, "use_conv_bias": False, "chunk_size": 64},
            {
                **_MAMBA2,
                "hidden_size": 20,
                "expand": 3,
                "num_heads": 10,
                "n_groups": 5,
                "head_dim": 6,
                "tie_word_embeddings": True,
                "layer_norm_epsilon": 1e-3,
            },
        ],
    ),
    "qwen3_next": (
        "Qwen3Next",
        [
            _QWEN3_NEXT,
            {
                **_QWEN3_NEXT,
                "layer_types": ["full_attention", "linear_attention"],
                "attention_bias": True,
                "mlp_only_layers": [1],
                "norm_topk_prob": False,
                "linear_conv_kernel_dim": 2,
                "rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.5},
            },
            {
                **_QWEN3_NEXT,
                "num_hidden_layers": 3,
                "layer_types": ["linear_attention", "full_attention", "linear_attention"],
                "decoder_sparse_step": 2,
                "linear_num_key_heads": 3,
                "linear_num_value_heads": 3,
                "rms_norm_eps": 1e-3,
                "tie_word_embeddings": True,
            },
        ],
    ),
    "qwen3_5_text": (
        "Qwen3_5Text",
        [
            _QWEN3_5,
            {**_QWEN3_5, "linear_key_head_dim": 7, "attention_bias": True, "hidden_act": "gelu"},
            {
                **_QWEN3_5,
                "layer_types": ["full_attention", "linear_attention"],
                "tie_word_embeddings": True,
                "num_key_value_heads": 3,
            },
        ],
    ),
    "qwen3_5_moe_text": (
        "Qwen3_5MoeText",
        [
            _QWEN3_NEXT,
            {**_QWEN3_NEXT, "num_experts_per_tok": 1, "attention_bias": True, "hidden_act": "gelu"},
            {**_QWEN3_NEXT, "layer_types": ["full_attention", "linear_attention"]}
            | {"num_experts": 5, "num_key_value_heads": 3, "tie_word_embeddings": True},
        ],
    ),
    "olmo_hybrid": (
        "OlmoHybrid",
        [
            _OLMO_HYBRID,
            {
                **_OLMO_HYBRID,
                "linear_allow_neg_eigval": False,
                "linear_key_head_dim": 6,
                "linear_num_value_heads": 6,
                "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
            },
            {
                **_OLMO_HYBRID,
                "layer_types": ["full_attention", "linear_attention"],
                "attention_bias": True,
                "tie_word_embeddings": True,
                "linear_key_head_dim": 5,
                "linear_value_head_dim": 5,
                "rms_norm_eps": 1e-3,
                "rope_parameters": {"rope_type": "default", "rope_theta": None},
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
    "olmo3": (
        "Olmo3",
        [
            {**LLAMA, "num_hidden_layers": 4, "sliding_window": 4}
            | {"rope_parameters": {"full_attention": _YARN}},
            {**LLAMA, "sliding_window": 3, "num_key_value_heads": 3, "attention_bias": True}
            | {"layer_types": ["full_attention", "sliding_attention"], "tie_word_embeddings": True}
            | {"rope_parameters": {"full_attention": _LLAMA3, "sliding_attention": _THETA}},
            {**LLAMA, **WIDER, "sliding_window": 4, "hidden_act": "gelu", "rms_norm_eps": 1e-3}
            | {"layer_types": ["sliding_attention"] * 2},
        ],
    ),
    "exaone4": (
        "Exaone4",
        [
            {**LLAMA, "num_hidden_layers": 4, "sliding_window": 4},
            {**LLAMA, "sliding_window": None, "rope_parameters": _LLAMA3, "head_dim": 6}
            | {"layer_types": ["full_attention"] * 2, "tie_word_embeddings": True},
            {**LLAMA, "sliding_window": 3, "num_key_value_heads": 3, "hidden_act": "gelu"}
            | {"layer_types": ["full_attention", "sliding_attention"], "rms_norm_eps": 1e-3},
        ],
    ),
    "glm": (
        "Glm",
        [
            {**LLAMA, **_PAD, "head_dim": 8},
            {**LLAMA, **_PAD, "head_dim": 4, "attention_bias": False, "hidden_act": "gelu"},
            {**LLAMA, **_PAD, "head_dim": 6, "num_key_value_heads": 3, "rms_norm_eps": 1e-3}
            | {"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 1.0}}
            | {"tie_word_embeddings": True},
        ],
    ),
    "glm4": (
        "Glm4",
        [
            {**LLAMA, **_PAD, "head_dim": 8},
            {**LLAMA, **_PAD, "head_dim": 4, "attention_bias": False, "hidden_act": "gelu"},
            {**LLAMA, **_PAD, "head_dim": 6, "num_key_value_heads": 3, "rms_norm_eps": 1e-3}
            | {"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 1.0}}
            | {"tie_word_embeddings": True},
        ],
    ),
    "ernie4_5": (
        "Ernie4_5",
        [
            {**LLAMA, "head_dim": 6},
            {**LLAMA, "head_dim": 4, "num_key_value_heads": 3, "use_bias": True},
            {**LLAMA, "head_dim": 8, "tie_word_embeddings": False, "hidden_act": "gelu"}
            | {"rope_parameters": _YARN},
        ],
    ),
    "ministral3": (
        "Ministral3",
        [
            {**LLAMA, **_PAD, "head_dim": 6, "rope_parameters": _GROWING},
            {**LLAMA, **_PAD, "head_dim": 4, "num_key_value_heads": 3, "sliding_window": 4}
            | {"rope_parameters": {**_GROWING, "mscale": 0.7, "llama_4_scaling_beta": 0.9}},
            {**LLAMA, **_PAD, "head_dim": 8, "tie_word_embeddings": True, "hidden_act": "gelu"}
            | {"rope_parameters": {**_LLAMA3, "llama_4_scaling_beta": 0.5}},
            {**LLAMA, **_PAD, "head_dim": 6, "rope_parameters": _STILL},
        ],
    ),
    "gemma3n_text": (
        "Gemma3nText",
        [
            _GEMMA3N,
            {**_GEMMA3N, "num_kv_shared_layers": 0, "activation_sparsity_pattern": None}
            | {"intermediate_size": [20, 24, 20, 28], "final_logit_softcapping": 3.0}
            | {"attention_bias": True, "tie_word_embeddings": False, "altup_num_inputs": 2},
            {**_GEMMA3N, "num_kv_shared_layers": 1, "hidden_activation": "silu"}
            | {"layer_types": ["full_attention"] * 4, "altup_coef_clip": 0.2}
            | {"activation_sparsity_pattern": [0.4] * 4, "rms_norm_eps": 0.01},
        ],
    ),
    "gemma4_text": (
        "Gemma4Text",
        [
            {**_GEMMA4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True},
            {**_GEMMA4, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True}
            | {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2}
            | {"moe_intermediate_size": 8}
            | {"num_global_key_value_heads": 1, "final_logit_softcapping": 3.0}
            | {"attention_bias": True, "tie_word_embeddings": False},
            {**_GEMMA4, "num_kv_shared_layers": 1, "hidden_activation": "silu"}
            | {
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}
                }
                | {
                    "full_attention": {
                        "rope_type": "proportional",
                        "rope_theta": 90.0,
                        "factor": 2.0,
                    }
                    | {"partial_rotary_factor": 0.5}
                }
            },
        ],
    ),
    "falcon_h1": (
        "FalconH1",
        [
            _FALCON_H1,
            {**_FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False}
            | {"mamba_n_groups": 3, "attention_bias": True, "mlp_bias": True}
            | {"mamba_proj_bias": True, "projectors_bias": True, "tie_word_embeddings": True},
            {**_FALCON_H1, "mamba_rms_norm": True, "mamba_conv_bias": False, "mamba_d_conv": 2}
            | {"ssm_multipliers": None, "mlp_multipliers": None, "key_multiplier": 1.0}
            | {"attention_in_multiplier": 1.0, "ssm_in_multiplier": 1.0, "mamba_d_ssm": None},
        ],
    ),
    "llama4_text": (
        "Llama4Text",
        [
            _LLAMA4,
            {
                **_LLAMA4,
                "num_hidden_layers": 4,
                "interleave_moe_layer_step": 2,
                "no_rope_layers": None,
            }
            | {"num_experts_per_tok": 3, "attention_bias": True, "rope_parameters": _LLAMA3}
            | {"attention_dropout": 0.1, "tie_word_embeddings": True, "hidden_act": "gelu"},
            {**_LLAMA4, "use_qk_norm": False, "attn_temperature_tuning": False}
            | {"layer_types": ["full_attention", "chunked_attention"], "moe_layers": [0]},
        ],
    ),
    "hunyuan_v1_dense": (
        "HunYuanDenseV1",
        [
            {**LLAMA, "head_dim": 6, "rope_parameters": _ALPHA},
            {**LLAMA, "head_dim": 4, "num_key_value_heads": 3, "attention_bias": True}
            | {"tie_word_embeddings": True, "rope_parameters": _YARN},
            {**LLAMA, "head_dim": 8, "hidden_act": "gelu", "rms_norm_eps": 1e-3}
            | {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0}},
        ],
    ),
    "nanochat": (
        "NanoChat",
        [
            LLAMA,
            {**LLAMA, "num_key_value_heads": 3, "attention_bias": True, "hidden_act": "gelu"}
            | {"final_logit_softcapping": None, "rope_parameters": _YARN},
            {**LLAMA, "tie_word_embeddings": True, "rms_norm_eps": 1e-2}
            | {"final_logit_softcapping": 2.0},
        ],
    ),
    "lfm2": (
        "Lfm2",
        [
            {**_LFM2, "num_hidden_layers": 3, "full_attn_idxs": [2], "conv_bias": True},
            {**_LFM2, "layer_types": ["full_attention", "conv"], "conv_L_cache": 5}
            | {"tie_word_embeddings": False, "rope_parameters": _YARN, "norm_eps": 1e-3},
            {**_LFM2, "num_key_value_heads": 3, "block_ffn_dim_multiplier": 1.3}
            | {"block_auto_adjust_ff_dim": True, "block_multiple_of": 4},
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
    "starcoder2": (
        "Starcoder2",
        [
            {**_STARCODER2, "sliding_window": 4},
            {**_STARCODER2, "use_bias": False, "tie_word_embeddings": False, "norm_epsilon": 1e-3},
            {**_STARCODER2, "num_key_value_heads": 3, "hidden_act": "relu", "residual_dropout": 0.3}
            | {"embedding_dropout": 0.3, "rope_parameters": _LLAMA3},
        ],
    ),
    "gpt_bigcode": (
        "GPTBigCode",
        [
            _GPT,
            {**_GPT, "n_embd": 40, "n_head": 5, "n_inner": 33, "scale_attn_weights": False},
            {**_GPT, "multi_query": False, "activation_function": "relu"},
            {**_GPT, "tie_word_embeddings": False, "layer_norm_epsilon": 1e-3},
        ],
    ),
    "xglm": (
        "XGLM",
        [
            _XGLM,
            {**_XGLM, "d_model": 40, "attention_heads": 5, "scale_embedding": False},
            {**_XGLM, "activation_function": "relu", "tie_word_embeddings": False, **_PAD},
        ],
    ),
    "gpt_neo": (
        "GPTNeo",
        [
            _GPT_NEO,
            {**_GPT_NEO, "hidden_size": 40, "num_heads": 5, "intermediate_size": 33}
            | {"attention_types": [[["local"], 2]], "activation_function": "relu"},
            {**_GPT_NEO, "num_layers": 3, "layer_norm_epsilon": 1e-3, "tie_word_embeddings": False}
            | {"attention_types": [[["global"], 2], [["local"], 1]], "window_size": 3},
            {**_GPT_NEO, "attention_types": [[["global"], 2]], "resid_dropout": 0.2},
        ],
    ),
    "codegen": (
        "CodeGen",
        [
            _CODEGEN,
            {**_CODEGEN, "n_embd": 48, "n_head": 8, "n_inner": 33, "rotary_dim": 6},
            {**_CODEGEN, "activation_function": "relu", "tie_word_embeddings": True},
        ],
    ),
    "mpt": (
        "Mpt",
        [
            _MPT,
            {**_MPT, "d_model": 40, "n_heads": 5, "layer_norm_epsilon": 1e-3},
            {**_MPT, "n_heads": 6, "tie_word_embeddings": False, "resid_pdrop": 0.2}
            | {"attn_config": {"softmax_scale": 0.3}},
        ],
    ),
    "helium": (
        "Helium",
        [
            _HELIUM,
            {**_HELIUM, "num_key_value_heads": 3, "attention_bias": True, "rms_norm_eps": 1e-3},
            {**_HELIUM, "mlp_bias": True, "hidden_act": "gelu", "tie_word_embeddings": True}
            | {"rope_parameters": {"rope_theta": 50.0}},
        ],
    ),
    "arcee": (
        "Arcee",
        [
            {**LLAMA, "rope_parameters": {**_YARN, "mscale": 2.0}},  # which has no effect
            {**LLAMA, "num_key_value_heads": 3, "attention_bias": True, "mlp_bias": True},
            {**LLAMA, "hidden_act": "gelu", "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
        ],
    ),
    "seed_oss": (
        "SeedOss",
        [
            {**LLAMA, "head_dim": 6},
            {**LLAMA, "head_dim": 4, "attention_bias": False, "tie_word_embeddings": True},
            {**LLAMA, "head_dim": 8, "attention_out_bias": True, "mlp_bias": True}
            | {"hidden_act": "gelu", "rope_parameters": {"rope_theta": 50.0}},
        ],
    ),
    "nemotron": (
        "Nemotron",
        [
            _NEMOTRON,
            {**_NEMOTRON, "head_dim": 8, "attention_bias": True, "norm_eps": 1e-3}
            | {"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.25}},
            {**_NEMOTRON, "mlp_bias": True, "hidden_act": "gelu", "tie_word_embeddings": True},
        ],
    ),
    "persimmon": (
        "Persimmon",
        [
            _PERSIMMON,
            {**_PERSIMMON, "qk_layernorm": False, "hidden_act": "gelu"},
            {**_PERSIMMON, "num_attention_heads": 6, "tie_word_embeddings": True}
            | {"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 1.0}},
        ],
    ),
    "granitemoe": (
        "GraniteMoe",
        [
            {**_MIXTRAL, "embedding_multiplier": 12.0, "logits_scaling": 6.0}
            | {"residual_multiplier": 0.22, "attention_multiplier": 0.3},
            {**_MIXTRAL, "intermediate_size": 36, "num_local_experts": 5, "num_experts_per_tok": 3}
            | {"attention_bias": True, "tie_word_embeddings": True},
            {**_MIXTRAL, "num_experts_per_tok": 1, "hidden_act": "gelu", "logits_scaling": 49.0},
        ],
    ),
    "recurrent_gemma": (
        "RecurrentGemma",
        [
            _RECURRENT_GEMMA,
            {**_RECURRENT_GEMMA, "block_types": ["attention", "recurrent", "recurrent"]}
            | {"num_hidden_layers": 3, "lru_width": 15, "conv1d_width": 2, "logits_soft_cap": 3.0}
            | {"attention_bias": True, "hidden_size": 24, "tie_word_embeddings": False},
            {**_RECURRENT_GEMMA, "hidden_activation": "silu", "num_key_value_heads": 3}
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
        ],
    ),
    "ernie4_5_moe": (
        "Ernie4_5_Moe",
        [
            _ERNIE_MOE,
            {**_ERNIE_MOE, "moe_layer_start_index": 0, "moe_num_shared_experts": 1, "moe_k": 3}
            | {"tie_word_embeddings": False, "moe_norm_min": 1e-9},
            {**_ERNIE_MOE, "num_hidden_layers": 4, "moe_layer_interval": 2, "hidden_act": "gelu"},
        ],
    ),
    "biogpt": (
        "BioGpt",
        [
            _BIOGPT,
            {**_BIOGPT, "hidden_size": 40, "num_attention_heads": 5, "hidden_act": "relu"},
            {**_BIOGPT, "scale_embedding": False, "tie_word_embeddings": False},
        ],
    ),
    "lfm2_moe": (
        "Lfm2Moe",
        [
            {**_LFM2_MOE, "routed_scaling_factor": 2.5},
            {**_LFM2_MOE, "layer_types": ["full_attention", "conv"], "conv_L_cache": 5}
            | {"num_dense_layers": 0, "use_expert_bias": False, "conv_bias": True},
            {**_LFM2_MOE, "num_hidden_layers": 3, "norm_topk_prob": False}
            | {"layer_types": ["conv", "full_attention", "conv"], "tie_word_embeddings": False},
        ],
    ),
    "granitemoeshared": (
        "GraniteMoeShared",
        [
            {**_MIXTRAL, "shared_intermediate_size": 10, "residual_multiplier": 0.22},
            _MIXTRAL,
            {**_MIXTRAL, "shared_intermediate_size": 16, "hidden_act": "gelu"}
            | {"num_local_experts": 5, "tie_word_embeddings": True},
        ],
    ),
    "kimi_linear": (
        "KimiLinear",
        [
            _KIMI,
            {**_KIMI, "layer_types": ["full_attention", "linear_attention"], "q_lora_rank": 6}
            | {"mlp_layer_types": ["sparse", "dense"], "linear_conv_kernel_dim": 2},
            {**_KIMI, "num_hidden_layers": 3, "n_group": 2, "norm_topk_prob": False}
            | {"layer_types": ["linear_attention", "linear_attention", "full_attention"]}
            | {"routed_scaling_factor": 1.5, "n_shared_experts": 2, "hidden_act": "gelu"},
        ],
    ),
    "phimoe": (
        "Phimoe",
        [
            {**_MIXTRAL, "router_jitter_noise": 0.4},
            {**_MIXTRAL, "num_local_experts": 5, "attention_bias": True, "lm_head_bias": True}
            | {"router_jitter_noise": 0.9, "tie_word_embeddings": False, "sliding_window": 4},
            {**_MIXTRAL, "hidden_act": "gelu", "router_jitter_noise": 0.1}
            | {
                "original_max_position_embeddings": 20,
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 50.0,
                    "short_factor": [1.0, 1.5],
                    "long_factor": [2.0, 3.0],
                    "short_mscale": 1.2,
                    "long_mscale": 1.2,
                    "original_max_position_embeddings": 20,
                },
            },
        ],
    ),
    "ministral": (
        "Ministral",
        [
            {**LLAMA, "head_dim": 4, "sliding_window": 4}
            | {"layer_types": ["sliding_attention", "full_attention"]},
            {**LLAMA, "sliding_window": 3, "head_dim": 6},
            # Theirs cannot generate without any window.
            {**LLAMA, "head_dim": 4, "sliding_window": 5, "tie_word_embeddings": True}
            | {"layer_types": ["full_attention", "sliding_attention"]},
        ],
    ),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        [
            {**_GRANITE_HYBRID, "embedding_multiplier": 12.0, "logits_scaling": 6.0}
            | {"residual_multiplier": 0.22, "attention_multiplier": 0.3},
            {**_GRANITE_HYBRID, "num_local_experts": 0, "position_embedding_type": "rope"}
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}
            | {"mamba_n_groups": 3, "tie_word_embeddings": True, "attention_bias": True},
            {**_GRANITE_HYBRID, "num_hidden_layers": 3, "mamba_conv_bias": False}
            | {"layer_types": ["attention", "mamba", "mamba"], "mamba_d_conv": 2},
        ],
    ),
    "nemotron_h": (
        "NemotronH",
        [
            {**_NEMOTRON_H, "time_step_min": 0.7},
            {**_NEMOTRON_H, "hybrid_override_pattern": "M-MM*-", "layers_block_type": None}
            | {"mlp_bias": True, "use_bias": True, "use_conv_bias": False, "conv_kernel": 2},
            {**_NEMOTRON_H, "hybrid_override_pattern": "*EME", "layers_block_type": None}
            | {"n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.5}
            | {"norm_topk_prob": False, "tie_word_embeddings": True, "mlp_hidden_act": "silu"},
        ],
    ),
    "modernbert-decoder": (
        "ModernBertDecoder",
        [
            {**_MODERN, "num_hidden_layers": 4},
            {
                **_MODERN,
                "hidden_size": 40,
                "num_attention_heads": 5,
                "norm_bias": True,
                "attention_bias": True,
                "global_rope_theta": 70.0,
                "global_attn_every_n_layers": 2,
                "classifier_activation": "relu",
            },
            {
                **_MODERN,
                "layer_types": ["sliding_attention", "full_attention"],
                "rope_parameters": {"full_attention": {"rope_theta": 50.0}},
                "mlp_bias": True,
                "classifier_bias": True,
                "decoder_bias": False,
                "tie_word_embeddings": False,
                "hidden_activation": "gelu_new",
            },
        ],
    ),
}
