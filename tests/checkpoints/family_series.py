"""Configs of small models of series, by family: Transformers' prefix, and the values of each."""

_SIZES = {
    "num_input_channels": 2, "context_length": 21, "patch_length": 6, "patch_stride": 4,
    "d_model": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "ffn_dim": 20,
    "prediction_length": 5, "scaling": "std",
}  # fmt: skip
_PATCHTST = [
    _SIZES,
    {**_SIZES, "norm_type": "layernorm", "pre_norm": False, "bias": False, "pooling_type": None,
     "activation_function": "relu", "positional_encoding_type": "random", "norm_eps": 1e-3},
    {**_SIZES, "pre_norm": False, "use_cls_token": True, "pooling_type": "max",
     "patch_stride": 6, "context_length": 24, "d_model": 16, "num_attention_heads": 2},
    {**_SIZES, "norm_type": "layernorm", "pooling_type": "max", "init_std": 0.3,
     "num_hidden_layers": 1, "path_dropout": 0.1, "attention_dropout": 0.2, "head_dropout": 0.3},
]  # fmt: skip

# Of a T5, and what `chronos_config` says.
_T5 = {
    "d_model": 12, "d_kv": 5, "d_ff": 20, "num_layers": 2, "num_heads": 3, "dropout_rate": 0.0,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
    "tie_word_embeddings": True, "decoder_start_token_id": 0,
}  # fmt: skip
_PIECES = {
    "context_length": 32, "prediction_length": 5, "input_patch_size": 4, "input_patch_stride": 4,
    "quantiles": [0.1, 0.5, 0.9], "use_reg_token": True,
}  # fmt: skip
_CHRONOS_BOLT = [
    {**_T5, "chronos_config": _PIECES},
    {**_T5, "num_decoder_layers": 1, "feed_forward_proj": "gated-gelu", "d_model": 16,
     "chronos_config": {**_PIECES, "use_reg_token": False, "input_patch_size": 6,
                        "input_patch_stride": 6}},
    {**_T5, "num_layers": 1, "num_heads": 2, "d_kv": 6, "layer_norm_epsilon": 1e-3,
     "feed_forward_proj": "silu", "dropout_rate": 0.1,
     "chronos_config": {**_PIECES, "context_length": 30, "quantiles": [0.25, 0.75]}},
]  # fmt: skip

_MIXER = {
    "num_input_channels": 2, "context_length": 21, "patch_length": 6, "patch_stride": 4,
    "d_model": 12, "num_layers": 2, "expansion_factor": 3, "prediction_length": 5,
}  # fmt: skip
_PATCHTSMIXER = [
    _MIXER,
    {**_MIXER, "norm_mlp": "BatchNorm", "gated_attn": False, "use_positional_encoding": True,
     "scaling": True, "dropout": 0.0},
    {**_MIXER, "patch_stride": 5, "use_positional_encoding": True, "num_layers": 1,
     "positional_encoding_type": "random", "norm_eps": 1e-3, "head_dropout": 0.3, "init_std": 0.3},
    {**_MIXER, "mode": "mix_channel", "use_positional_encoding": True},
    {**_MIXER, "mode": "mix_channel", "num_input_channels": 5, "norm_mlp": "BatchNorm",
     "gated_attn": False, "expansion_factor": 2},
    {**_MIXER, "self_attn": True, "self_attn_heads": 3, "norm_mlp": "BatchNorm"},
    {**_MIXER, "mode": "mix_channel", "self_attn": True, "self_attn_heads": 2},
]  # fmt: skip

_TIMES = {
    "context_length": 32, "patch_length": 4, "horizon_length": 5, "output_quantile_len": 7,
    "quantiles": [0.1, 0.5, 0.9], "decode_index": 2, "num_hidden_layers": 2, "hidden_size": 12,
    "intermediate_size": 12, "head_dim": 4, "num_attention_heads": 3, "num_key_value_heads": 3,
}  # fmt: skip
_TIMESFM2_5 = [
    _TIMES,
    {**_TIMES, "num_key_value_heads": 1, "attention_bias": True, "use_bias": True,
     "activation": "gelu", "rms_norm_eps": 1e-3, "force_flip_invariance": False,
     "infer_is_positive": False, "quantiles": [0.5], "decode_index": 1,
     "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
]  # fmt: skip

CONFIGS = {
    "patchtst": ("PatchTST", _PATCHTST),
    "chronos_bolt": ("T5", _CHRONOS_BOLT),
    "patchtsmixer": ("PatchTSMixer", _PATCHTSMIXER),
    "timesfm2_5": ("TimesFm2_5", _TIMESFM2_5),
}
