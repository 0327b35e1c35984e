"""Configs of small models of images, by family: Transformers' prefix, and the values of each."""

_SIZES = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "image_size": 20,
    "patch_size": 5,
}
_OTHER = {
    **_SIZES,
    "num_channels": 2,
    "image_size": [15, 20],
    "hidden_act": "quick_gelu",
    "qkv_bias": False,
    "layer_norm_eps": 1e-3,
}

_GATED = {**_SIZES, "patch_size": 4, "mlp_ratio": 3, "use_swiglu_ffn": True, "qkv_bias": False}
_RATIO = {**_SIZES, "mlp_ratio": 2, "image_size": 25}

_BIASED = {**_SIZES, "use_relative_position_bias": True}
_SHARED = {
    **_SIZES,
    "use_shared_relative_position_bias": True,
    "use_absolute_position_embeddings": True,
    "use_mean_pooling": False,
    "layer_scale_init_value": 0.0,
    "hidden_act": "relu",
}

_REGISTERS = {**_SIZES, "mlp_ratio": 2, "num_register_tokens": 3}
_ROTATED = {**_SIZES, "num_register_tokens": 2}
_ROTATED_GATED = {
    **_SIZES,
    "hidden_size": 24,
    "image_size": [15, 20],
    "use_gated_mlp": True,
    "hidden_act": "silu",
    "key_bias": True,
    "proj_bias": False,
    "mlp_bias": False,
    "rope_theta": 30.0,
    "layer_norm_eps": 1e-3,
}

_TOWER = {**_SIZES, "num_channels": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-3}

_DETECTION = {**_SIZES, "image_size": [15, 20], "num_detection_tokens": 3}

# Patches do not divide the images, nor windows the grids. Transformers' model keeps for later
# images that a grid was not above its windows, as in the last stage of the second one.
_WINDOWS = {
    "embed_dim": 6,
    "depths": [3, 1],
    "num_heads": [1, 3],
    "window_size": 2,
    "image_size": 21,
    "patch_size": 2,
    "mlp_ratio": 2.5,
}
_FEW_WINDOWS = {
    **_WINDOWS,
    "depths": [1, 2],
    "num_heads": [3, 2],
    "window_size": 4,
    "num_channels": 2,
    "image_size": [15, 26],
    "hidden_act": "relu",
    "qkv_bias": False,
}
# The windows of a second stage of 5 rows, and shifted ones of grids of 13 x 4 and 7 x 2 patches.
_NETWORKS = {**_WINDOWS, "window_size": 6, "image_size": 22, "pretrained_window_sizes": [6, 3]}
_FEW_NETWORKS = {**_FEW_WINDOWS, "window_size": 5, "image_size": [26, 8], "depths": [2, 2]}

_DETECTED = {
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "mlp_ratio": 2,
    "image_size": 20,
    "pretrain_image_size": 20,
    "patch_size": 5,
}
# Windows that do not divide the grid of 5 x 4 patches, and positions of another one.
_IN_WINDOWS = {
    **_DETECTED,
    "num_channels": 2,
    "image_size": [25, 20],
    "pretrain_image_size": 15,
    "window_size": 3,
    "window_block_indices": [0, 2],
    "residual_block_indices": [1, 2],
    "use_relative_position_embeddings": True,
    "hidden_act": "relu",
    "qkv_bias": False,
    "layer_norm_eps": 1e-3,
}
# Each layer has convolutions behind it, and none windows.
_BEHIND = {**_DETECTED, "num_hidden_layers": 1, "residual_block_indices": [0]}

# Families without a pooled vector there.
OF_MAPS = {"vitdet": ("VitDet", [_DETECTED, _IN_WINDOWS, _BEHIND])}

CONFIGS = {
    "yolos": (
        "Yolos",
        [_DETECTION, {**_DETECTION, "use_mid_position_embeddings": False, "qkv_bias": False}],
    ),
    "vit": ("ViT", [_SIZES, _OTHER]),
    "deit": ("DeiT", [_SIZES, _OTHER]),
    "dinov2": ("Dinov2", [_RATIO, _GATED]),
    "dinov2_with_registers": (
        "Dinov2WithRegisters",
        [_REGISTERS, {**_GATED, "num_register_tokens": 1}],
    ),
    "dinov3_vit": ("DINOv3ViT", [_ROTATED, _ROTATED_GATED]),
    "beit": ("Beit", [_BIASED, _SHARED, {**_SIZES, "use_absolute_position_embeddings": True}]),
    "clip_vision_model": ("CLIPVision", [_SIZES, _TOWER]),
    "metaclip_2_vision_model": ("MetaClip2Vision", [_SIZES, _TOWER]),
    "siglip_vision_model": ("SiglipVision", [_SIZES, _TOWER]),
    "swin": ("Swin", [_WINDOWS, _FEW_WINDOWS]),
    "swinv2": ("Swinv2", [_NETWORKS, _FEW_NETWORKS]),
}
