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
     "max_source_positions": 9, "encoder_ffn_dim": 30, "init_std": 0.3},
]  # fmt: skip

CONFIGS = {"whisper": ("Whisper", _WHISPER)}
