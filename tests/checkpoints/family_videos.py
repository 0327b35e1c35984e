"""Configs of small models of videos, by family: Transformers' prefix, and the values of each."""

_SIZES = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "image_size": 10,
    "num_frames": 4,
}
_OTHER = {
    **_SIZES,
    "num_hidden_layers": 1,
    "image_size": [10, 15],
    "num_frames": 6,
    "num_channels": 2,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-3,
}
# Of masked pre-training.
_DECODER = {
    "decoder_hidden_size": 8,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 8,
}
_MAE = {**_SIZES, **_DECODER, "patch_size": 5}
_MAE_OTHER = {
    **_OTHER, **_DECODER, "patch_size": 5, "tubelet_size": 3, "qv_bias": False,
    "use_mean_pooling": False,
}  # fmt: skip

_PRISM = {
    **{name: value for name, value in _SIZES.items() if name != "num_hidden_layers"},
    "tubelet_size": [1, 5, 5],
    "intermediate_size": 21,
    "num_spatial_layers": 2,
    "num_temporal_layers": 1,
}
_PRISM_OTHER = {
    **_PRISM,
    "image_size": [10, 15],
    "num_channels": 2,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-3,
    "qkv_bias": False,
    "attn_logit_softcapping": 2.0,
    "num_spatial_layers": 1,
    "num_temporal_layers": 2,
}

CONFIGS = {
    "videomae": ("VideoMAE", [_MAE, _MAE_OTHER]),
    "videoprism_vision_model": ("VideoPrismVision", [_PRISM, _PRISM_OTHER]),
    "vivit": (
        "Vivit",
        [
            {**_SIZES, "tubelet_size": [2, 5, 5]},
            {**_OTHER, "tubelet_size": [3, 5, 5], "qkv_bias": False},
        ],
    ),
}
