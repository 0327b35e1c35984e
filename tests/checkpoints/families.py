"""Small random checkpoints of every family, made by the Transformers library."""

import numpy as np

# Sizes that differ from each other, odd head counts, head sizes that do not divide the width.
_BERT = {
    "vocab_size": 61,
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 24,
}
_MPNET = {**_BERT, "pad_token_id": 1}
_MODERN = {**_MPNET, "local_attention": 4}
_LONGFORMER = {**_BERT, "attention_window": 4, "pad_token_id": 1}
_BIG_BIRD = {**_BERT, "block_size": 2, "num_random_blocks": 1, "sep_token_id": 3}
_DEBERTA = {
    **_BERT,
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
}
_DISTILBERT = {
    "vocab_size": 61,
    "dim": 12,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 20,
    "max_position_embeddings": 24,
}
_GPT = {"vocab_size": 61, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 24}
_LLAMA = {
    "vocab_size": 61,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "intermediate_size": 20,
    "max_position_embeddings": 64,
}
_NEOX = {k: v for k, v in _LLAMA.items() if k != "num_key_value_heads"}
_T5 = {"vocab_size": 61, "d_model": 12, "d_kv": 5, "d_ff": 20, "num_layers": 2, "num_heads": 3}
_LONGT5 = {**_T5, "local_radius": 3, "encoder_attention_type": "transient-global"}
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
_MOE = {**_LLAMA, "num_experts_per_tok": 2, "pad_token_id": 0}
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
_SIDE = {
    **_LLAMA,
    "head_dim": 6,
    "sliding_window": 2,
    "attn_logit_softcapping": 2.0,
    "query_pre_attn_scalar": 5,
}
_WIDER = {"hidden_size": 40, "num_attention_heads": 5, "intermediate_size": 33}
_WIDER_MOE = {**_WIDER, "intermediate_size": 36}  # their products ask for fours
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

# Family: the start of its classes' names, and three configs or more.
CONFIGS = {
    "bert": (
        "Bert",
        [
            _BERT,
            {**_BERT, **_WIDER, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
            {**_BERT, "hidden_act": "mish", "type_vocab_size": 5, "tie_word_embeddings": False},
        ],
    ),
    "roberta": (
        "Roberta",
        [
            {**_BERT, "type_vocab_size": 1},
            {**_BERT, **_WIDER, "hidden_act": "relu", "pad_token_id": 4},
            {**_BERT, "hidden_act": "quick_gelu", "tie_word_embeddings": False},
        ],
    ),
    "xlm-roberta": (
        "XLMRoberta",
        [_BERT, {**_BERT, **_WIDER, "hidden_act": "tanh"}, {**_BERT, "pad_token_id": 0}],
    ),
    "camembert": (
        "Camembert",
        [_BERT, {**_BERT, **_WIDER, "hidden_act": "silu"}, {**_BERT, "type_vocab_size": 3}],
    ),
    "distilbert": (
        "DistilBert",
        [
            _DISTILBERT,
            {**_DISTILBERT, "dim": 40, "n_heads": 5, "activation": "relu"},
            {**_DISTILBERT, "sinusoidal_pos_embds": True, "tie_word_embeddings": False},
        ],
    ),
    "albert": (
        "Albert",
        [
            {**_BERT, "embedding_size": 7},
            {**_BERT, **_WIDER, "embedding_size": 40, "num_hidden_groups": 2},
            {**_BERT, "embedding_size": 20, "hidden_act": "relu", "tie_word_embeddings": False},
            {**_BERT, "num_hidden_groups": 2, "inner_group_num": 2, "num_attention_heads": 2},
        ],
    ),
    "electra": (
        "Electra",
        [
            {**_BERT, "embedding_size": 7},
            {**_BERT, **_WIDER, "embedding_size": 40, "hidden_act": "gelu_new"},
            {**_BERT, "embedding_size": 20, "type_vocab_size": 3, "tie_word_embeddings": False},
        ],
    ),
    "mpnet": (
        "MPNet",
        [
            _MPNET,
            {**_MPNET, **_WIDER, "hidden_act": "relu", "layer_norm_eps": 1e-3},
            {**_MPNET, "hidden_act": "gelu_new"},
        ],
    ),
    "nomic_bert": (
        "NomicBert",
        [
            _BERT,
            {**_BERT, **_WIDER, "type_vocab_size": 3, "rope_parameters": {"rope_theta": 70.0}},
            {**_BERT, "head_dim": 6, "hidden_act": "gelu", "layer_norm_eps": 1e-3},
        ],
    ),
    "modernbert": (
        "ModernBert",
        [
            {**_MODERN, "num_hidden_layers": 4},
            {
                **_MODERN,
                **_WIDER,
                "norm_bias": True,
                "global_rope_theta": 70.0,
                "local_rope_theta": 20.0,
                "global_attn_every_n_layers": 2,
                "attention_bias": True,
                "classifier_pooling": "mean",
                "classifier_bias": True,
                "classifier_activation": "relu",
            },
            {
                **_MODERN,
                "layer_types": ["sliding_attention", "full_attention", "full_attention"],
                "rope_parameters": {"full_attention": {"rope_theta": 50.0}},
                "mlp_bias": True,
                "hidden_activation": "gelu_new",
            },
        ],
    ),
    "longformer": (
        "Longformer",
        [
            _LONGFORMER,
            {**_LONGFORMER, **_WIDER, "attention_window": [4, 12, 4], "type_vocab_size": 1},
            {**_LONGFORMER, "hidden_act": "relu", "tie_word_embeddings": False},
        ],
    ),
    "big_bird": (
        "BigBird",
        [
            _BIG_BIRD,
            {**_BIG_BIRD, **_WIDER, "use_bias": False, "rescale_embeddings": True},
            {**_BIG_BIRD, "attention_type": "original_full", "type_vocab_size": 4},
        ],
    ),
    "deberta-v2": (
        "DebertaV2",
        [
            {**_DEBERTA, "position_buckets": 4, "share_att_key": True},
            {
                **_DEBERTA,
                **_WIDER,
                "pos_att_type": "p2c|c2p",
                "max_relative_positions": 5,
                "position_biased_input": True,
                "type_vocab_size": 2,
                "legacy": False,
            },
            {
                **_DEBERTA,
                "position_buckets": 3,
                "max_relative_positions": 7,
                "hidden_act": "gelu_new",
                "layer_norm_eps": 1e-3,
                "tie_word_embeddings": False,
            },
            _BERT,  # without relative positions
            {**_DEBERTA, "conv_kernel_size": 3, "conv_act": "gelu", "position_buckets": 4},
            {**_DEBERTA, **_WIDER, "conv_kernel_size": 5, "num_hidden_layers": 1},
            {**_DEBERTA, "conv_kernel_size": 1, "conv_act": "silu", "layer_norm_eps": 1e-3},
        ],
    ),
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
            {**_LLAMA, "rope_parameters": _LLAMA3},
            {**_LLAMA, "head_dim": 10, "attention_bias": True, "tie_word_embeddings": True},
            {**_LLAMA, "hidden_act": "gelu", "mlp_bias": True, "rope_parameters": _YARN},
            {
                **_LLAMA,
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 70.0},
            },
            {**_LLAMA, "rope_parameters": {"rope_type": "dynamic", "factor": 3.0}},
        ],
    ),
    "mistral": (
        "Mistral",
        [
            {**_LLAMA, "sliding_window": 4},
            {**_LLAMA, "head_dim": 6, "sliding_window": None, "num_key_value_heads": 3},
            {**_LLAMA, "hidden_act": "relu", "rms_norm_eps": 1e-3, "tie_word_embeddings": True},
        ],
    ),
    "qwen2": (
        "Qwen2",
        [
            _LLAMA,
            {**_LLAMA, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0},
            {**_LLAMA, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
            {**_LLAMA, "tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e6}},
        ],
    ),
    "qwen3": (
        "Qwen3",
        [
            {**_LLAMA, "head_dim": 6},
            {**_LLAMA, "head_dim": 8, "attention_bias": True, "num_key_value_heads": 3},
            {**_LLAMA, "head_dim": 4, "tie_word_embeddings": True, "hidden_act": "gelu_new"},
        ],
    ),
    "gemma": (
        "Gemma",
        [
            {**_LLAMA, "head_dim": 6},
            {**_LLAMA, "head_dim": 8, "hidden_act": "gelu", "num_key_value_heads": 3},
            {
                **_LLAMA,
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
            {**_LLAMA, "head_dim": 6, "sliding_window": 4, "attn_logit_softcapping": 2.0},
            {**_LLAMA, "head_dim": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": None},
            {
                **_LLAMA,
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
            {**_LLAMA, "num_hidden_layers": 3, "sliding_window_pattern": 2, **_GEMMA3},
            {
                **_LLAMA,
                **_GEMMA3,
                "query_pre_attn_scalar": 5,
                "final_logit_softcapping": 2.0,
                "rope_theta": 70.0,
                "rope_local_base_freq": 20.0,
                "rope_scaling": {"rope_type": "linear", "factor": 3.0},
                "layer_types": ["sliding_attention", "full_attention"],
            },
            {**_LLAMA, **_GEMMA3, "tie_word_embeddings": False, "hidden_activation": "relu"},
        ],
    ),
    "phi3": (
        "Phi3",
        [
            {**_LLAMA, "hidden_size": 24, "num_attention_heads": 6, "sliding_window": 4, **_PAD},
            {
                **_LLAMA,
                **_PAD,
                "hidden_size": 24,
                "rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.75},
            },
            {
                **_LLAMA,
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
            _LLAMA,
            {**_LLAMA, "num_key_value_heads": 3, "attention_bias": True, "hidden_act": "gelu"},
            {**_LLAMA, "tie_word_embeddings": True, "rope_parameters": _LLAMA3},
        ],
    ),
    "smollm3": (
        "SmolLM3",
        [
            {**_LLAMA, **_PAD, "no_rope_layer_interval": 2},
            {
                **_LLAMA,
                **_PAD,
                "num_hidden_layers": 3,
                "no_rope_layers": [0, 1, 1],
                "use_sliding_window": True,
                "sliding_window": 3,
                "attention_bias": True,
            },
            {
                **_LLAMA,
                **_PAD,
                "use_sliding_window": True,
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
                **_WIDER,
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
                **_WIDER,
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
            {**_LLAMA, "hidden_size": 24, "use_qkv_bias": True},
            {**_LLAMA, "hidden_size": 24, "use_parallel_residual": True, "hidden_act": "gelu"},
            {
                **_LLAMA,
                "num_key_value_heads": 3,
                "rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.5},
                "tie_word_embeddings": True,
            },
            {**_LLAMA, "hidden_size": 24, "qk_layernorm": True, "use_parallel_residual": True},
            {**_LLAMA, "hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 5}
            | {"qk_layernorm": True, "use_qkv_bias": True, "layer_norm_eps": 1e-3},
            {**_LLAMA, "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
            | {"qk_layernorm": True, "rope_parameters": {"partial_rotary_factor": 0.5}},
        ],
    ),
    "cohere": (
        "Cohere",
        [
            {**_LLAMA, "use_qk_norm": True},
            {**_LLAMA, **_WIDER, "num_key_value_heads": 5, "logit_scale": 0.3}
            | {"rope_parameters": {"rope_theta": 50.0}},
            {**_LLAMA, "use_qk_norm": True, "num_key_value_heads": 3, "attention_bias": True}
            | {"tie_word_embeddings": False, "hidden_act": "gelu", "layer_norm_eps": 1e-3},
        ],
    ),
    "cohere2": (
        "Cohere2",
        [
            {**_LLAMA, "num_hidden_layers": 4, "sliding_window": 4},
            {**_LLAMA, "sliding_window": 3, "sliding_window_pattern": 2, "attention_bias": True}
            | {"num_hidden_layers": 3, "logit_scale": 0.3, "rope_parameters": {"rope_theta": 50.0}},
            {**_LLAMA, "sliding_window": 4, "num_key_value_heads": 3, "tie_word_embeddings": False}
            | {"layer_types": ["full_attention", "sliding_attention"], "hidden_act": "gelu"},
        ],
    ),
    "granite": (
        "Granite",
        [
            {**_LLAMA, "embedding_multiplier": 12.0, "logits_scaling": 6.0}
            | {"residual_multiplier": 0.22, "attention_multiplier": 0.3},
            {**_LLAMA, "attention_bias": True, "tie_word_embeddings": True},
            {**_LLAMA, "mlp_bias": True, "hidden_act": "gelu", "rope_parameters": _YARN}
            | {"logits_scaling": 49.0},
        ],
    ),
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
    "mt5": (
        "MT5",
        [
            _T5,
            {**_T5, "feed_forward_proj": "gated-silu", "num_decoder_layers": 1},
            {**_T5, "feed_forward_proj": "relu", "relative_attention_num_buckets": 8},
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
            {
                "encoder": {**_SIDE, "layer_types": ["full_attention"] * 2},
                "decoder": {**_SIDE, "rope_parameters": {"rope_theta": 50.0}},
                "vocab_size": 61,
            },
        ],
    ),
    "mbart": (
        "MBart",
        [
            {**_BART, "max_position_embeddings": 66},
            {**_BART, "scale_embedding": True, "activation_function": "relu"},
            {**_BART, "decoder_attention_heads": 2, "decoder_ffn_dim": 28},
        ],
    ),
    "pegasus": (
        "Pegasus",
        [
            {**_BART, "max_position_embeddings": 66},
            {**_BART, "scale_embedding": True, "activation_function": "relu"},
            {**_BART, "encoder_attention_heads": 2, "encoder_ffn_dim": 28},
        ],
    ),
    "bart": (
        "Bart",
        [
            _BART,
            {**_BART, "scale_embedding": True, "activation_function": "relu"},
            {**_BART, "d_model": 40, "encoder_attention_heads": 5, "decoder_attention_heads": 5},
            {**_BART, "decoder_attention_heads": 2, "decoder_ffn_dim": 28},
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
        ],
    ),
}
LANGUAGE_MODELS = {
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "openai-gpt": "OpenAIGPTLMHeadModel",
    "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "pegasus": "PegasusForConditionalGeneration",
    "t5gemma": "T5GemmaForConditionalGeneration",
    "marian": "MarianMTModel",
    "led": "LEDForConditionalGeneration",
    "longt5": "LongT5ForConditionalGeneration",
}


def cases(*kinds):
    """`(model_type, number of the config)` of the families of these kinds, or of all."""
    from keras_transformer.checkpoints.families import FAMILIES

    assert set(CONFIGS) == set(FAMILIES), "every family has its configs here"
    return [
        (model_type, number)
        for model_type, (_, configs) in CONFIGS.items()
        for number in range(len(configs))
        if not kinds or FAMILIES[model_type].constants["kind"] in kinds
    ]


def class_name(model_type, suffix):
    """The class of the Transformers library, e.g. for the suffix `"Model"` or `"ForMaskedLM"`."""
    prefix = CONFIGS[model_type][0]
    if suffix == "LanguageModel":
        return LANGUAGE_MODELS.get(model_type, f"{prefix}ForCausalLM")
    return f"{prefix}{suffix}"


def make(model_type, number, suffix, seed=0, **values):
    """A model of the Transformers library, all of whose weights differ."""
    import torch
    import transformers

    prefix, configs = CONFIGS[model_type]
    config = getattr(transformers, f"{prefix}Config")(**{**configs[number], **values})
    model = getattr(transformers, class_name(model_type, suffix))(config).eval()
    # As wide as to tell one activation, epsilon or position from another.
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name and model_type in ("marian", "pegasus"):
                continue
            norm = "norm" in name.lower() or "ln_" in name
            offset = 1.0 if norm and name.endswith("weight") else 0.0
            noise = torch.randn(parameter.shape, generator=random)
            parameter.copy_(offset + 0.3 * noise)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, generator=random))
    return model


def batch(pad_id=0, rows=3, length=9, seed=1, words=61):
    """Ids `(rows, length)` without the padding's, of rows of several lengths, and their mask."""
    random = np.random.default_rng(seed)
    ids = random.integers(5, words, (rows, length)).astype("int32")
    mask = np.arange(length) < np.array([[length], [length - 4], [2]])[:rows]
    return np.where(mask, ids, pad_id).astype("int32"), mask
