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

CONFIGS = {
    "audio-spectrogram-transformer": ("AST", _AST),
    "whisper": ("Whisper", _WHISPER),
}
