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

CONFIGS = {"patchtst": ("PatchTST", _PATCHTST)}
