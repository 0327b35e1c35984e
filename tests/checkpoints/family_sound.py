"""Configs of small models of sound, by family: Transformers' prefix, and the values of each."""

_SIZES = {
    "vocab_size": 60, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 2, "decoder_attention_heads": 4, "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20, "num_mel_bins": 8, "max_source_positions": 25,
    "max_target_positions": 20, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 3, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
_WHISPER = [
    _SIZES,
    {**_SIZES, "activation_function": "relu", "encoder_layers": 1, "num_mel_bins": 5,
     "max_source_positions": 9, "encoder_ffn_dim": 30, "init_std": 0.3,
     "tie_word_embeddings": False},
]  # fmt: skip

_AST = [
    {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20,
     "patch_size": 4, "frequency_stride": 3, "time_stride": 3, "max_length": 23,
     "num_mel_bins": 10},
    {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12,
     "patch_size": 5, "frequency_stride": 5, "time_stride": 5, "max_length": 20,
     "num_mel_bins": 15, "qkv_bias": False, "hidden_act": "relu", "layer_norm_eps": 1e-3},
]  # fmt: skip

_WAVES = {
    "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20,
    "conv_dim": [6, 5, 4], "conv_kernel": [10, 3, 2], "conv_stride": [5, 2, 2],
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "vocab_size": 11,
    "classifier_proj_size": 7,
}  # fmt: skip
_WAV2VEC2 = [
    _WAVES,
    {**_WAVES, "feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True,
     "num_conv_pos_embeddings": 7, "num_conv_pos_embedding_groups": 3, "layer_norm_eps": 1e-3},
    {**_WAVES, "conv_dim": [7, 3], "conv_kernel": [6, 4], "conv_stride": [4, 3], "pad_token_id": 4,
     "hidden_act": "relu", "feat_extract_activation": "relu", "num_attention_heads": 2},
]  # fmt: skip
_HUBERT = [*_WAV2VEC2[:2], {**_WAV2VEC2[2], "feat_proj_layer_norm": False}]
_WAVLM = [
    {**_WAVES, "num_buckets": 12, "max_bucket_distance": 30},
    {**_WAV2VEC2[1], "num_attention_heads": 2, "num_buckets": 8, "max_bucket_distance": 9},
]

_BERT = {
    "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20,
    "feature_projection_input_dim": 10, "conv_depthwise_kernel_size": 5,
    "left_max_position_embeddings": 4, "right_max_position_embeddings": 2, "vocab_size": 11,
    "classifier_proj_size": 7,
}  # fmt: skip
_WAV2VEC2_BERT = [
    _BERT,
    {**_BERT, "hidden_size": 10, "num_attention_heads": 2, "hidden_act": "gelu",
     "conv_depthwise_kernel_size": 1, "left_max_position_embeddings": 40,
     "right_max_position_embeddings": 0, "layer_norm_eps": 1e-3, "num_hidden_layers": 3},
]  # fmt: skip

_PARAKEET = {
    "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20,
    "num_mel_bins": 8, "subsampling_conv_channels": 5, "subsampling_factor": 4,
    "conv_kernel_size": 5,
}  # fmt: skip
_PARAKEETS = [
    _PARAKEET,
    {**_PARAKEET, "hidden_size": 10, "num_attention_heads": 2, "hidden_act": "relu",
     "attention_bias": False, "convolution_bias": False, "scale_input": False,
     "subsampling_factor": 2, "subsampling_conv_kernel_size": 5, "conv_kernel_size": 1,
     "num_hidden_layers": 3},
]  # fmt: skip

_SHINE = {
    "vocab_size": 60, "hidden_size": 24, "intermediate_size": 20, "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 3, "encoder_num_attention_heads": 2,
    "decoder_num_attention_heads": 2, "pad_head_dim_to_multiple_of": 8,
}  # fmt: skip
_MOONSHINE = [
    _SHINE,
    {**_SHINE, "hidden_size": 20, "intermediate_size": 28, "encoder_num_hidden_layers": 1,
     "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4, "attention_bias": True,
     "encoder_hidden_act": "relu", "decoder_hidden_act": "gelu", "tie_word_embeddings": False,
     "rope_parameters": {"rope_type": "default", "rope_theta": 500.0,
                         "partial_rotary_factor": 0.5}},
    {**_SHINE, "head_dim": 10, "partial_rotary_factor": 0.9, "decoder_num_hidden_layers": 1,
     "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
]  # fmt: skip

CONFIGS = {
    "audio-spectrogram-transformer": ("AST", _AST),
    "whisper": ("Whisper", _WHISPER),
    "moonshine": ("Moonshine", _MOONSHINE),
    "wav2vec2": ("Wav2Vec2", _WAV2VEC2),
    "hubert": ("Hubert", _HUBERT),
    "wavlm": ("WavLM", _WAVLM),
    "wav2vec2-bert": ("Wav2Vec2Bert", _WAV2VEC2_BERT),
    "parakeet_encoder": ("ParakeetEncoder", _PARAKEETS),
    "parakeet_ctc": (
        "ParakeetCTC",
        [{"encoder_config": values, "vocab_size": 9, "pad_token_id": 8} for values in _PARAKEETS],
    ),
}
