"""Configs of small models of images and texts, by family: as those of `family_images`."""

_TEXTS = {
    "vocab_size": 61,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 9,
    "bos_token_id": 58,
    "eos_token_id": 59,
}
_IMAGES = {
    "hidden_size": 16,
    "intermediate_size": 28,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 20,
    "patch_size": 5,
}
_OTHER = {**_IMAGES, "hidden_act": "gelu", "layer_norm_eps": 1e-3, "num_channels": 2}
_OLD_END = {**_TEXTS, "eos_token_id": 2}
_WIDE = {**_TEXTS, "projection_size": 16}

CONFIGS = {
    "clip": (
        "CLIP",
        [
            {"text_config": _TEXTS, "vision_config": _IMAGES, "projection_dim": 10},
            {"text_config": _OLD_END, "vision_config": _OTHER, "projection_dim": 10},
        ],
    ),
    "metaclip_2": (
        "MetaClip2",
        [{"text_config": _TEXTS, "vision_config": _IMAGES, "projection_dim": 10}],
    ),
    "siglip": (
        "Siglip",
        [
            {"text_config": _WIDE, "vision_config": _IMAGES},
            {"text_config": _WIDE, "vision_config": _OTHER},
        ],
    ),
}

_PATCHES = {key: value for key, value in _IMAGES.items() if key != "image_size"}
_PATCHES |= {"num_patches": 25, "patch_size": 4}
_FEW = {**_PATCHES, "num_patches": 9, "hidden_act": "gelu", "layer_norm_eps": 1e-3}
# Models whose images are sequences of patches, see `test_naflex.py`.
OF_PATCHES = {
    "siglip2": (
        "Siglip2",
        [
            {"text_config": _WIDE, "vision_config": _PATCHES},
            {"text_config": _WIDE, "vision_config": _FEW},
        ],
    ),
    "siglip2_vision_model": ("Siglip2Vision", [_PATCHES, _FEW]),
    "siglip2_text_model": ("Siglip2Text", [_WIDE]),
}

# Towers of texts by themselves; towers of images are in `family_images`.
TEXTS = {
    "clip_text_model": ("CLIPText", [_TEXTS, {**_OLD_END, "hidden_act": "gelu"}]),
    "metaclip_2_text_model": ("MetaClip2Text", [_TEXTS]),
    "siglip_text_model": ("SiglipText", [_WIDE, {**_TEXTS, "projection_size": 8}]),
}

_VIDEOS = {
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 18,
    "image_size": 10,
    "num_frames": 4,
    "tubelet_size": [1, 5, 5],
    "num_spatial_layers": 2,
    "num_temporal_layers": 1,
    "num_auxiliary_layers": 1,
}
_SAID = {name: _TEXTS[name] for name in _TEXTS if not name.endswith("_token_id")}
# Models of videos and texts, see `test_videoprism.py`.
OF_VIDEOS = {
    "videoprism": (
        "VideoPrism",
        [
            {"text_config": _SAID, "vision_config": _VIDEOS},
            {
                "text_config": {**_SAID, "hidden_act": "gelu", "attn_logit_softcapping": 3.0},
                "vision_config": {**_VIDEOS, "num_auxiliary_layers": 0, "image_size": 15},
            },
        ],
    ),
}

_WORDS = {
    "vocab_size": 61,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 14,
    "type_vocab_size": 1,
}
_SOUND = {
    "num_mel_bins": 8,
    "spec_size": 32,
    "window_size": 4,
    "patch_embeds_hidden_size": 6,
    "hidden_size": 12,
    "depths": [2, 2],
    "num_attention_heads": [2, 3],
}
# Windows of 5 do not divide the grids; patches of 6 overlap.
_OTHER_SOUND = {
    **_SOUND,
    "spec_size": 48,
    "window_size": 5,
    "patch_size": [6, 6],
    "patch_stride": 4,
    "depths": [1, 2],
    "num_attention_heads": [1, 2],
    "num_mel_bins": 16,
    "hidden_act": "relu",
    "mlp_ratio": 2.5,
    "qkv_bias": False,
}
# Models of recordings and texts, see `test_clap.py`.
OF_SOUND = {
    "clap": (
        "Clap",
        [
            {"text_config": _WORDS, "audio_config": _SOUND, "projection_dim": 10},
            {
                "text_config": {**_WORDS, "hidden_act": "relu", "layer_norm_eps": 1e-3},
                "audio_config": _OTHER_SOUND,
                "projection_dim": 7,
                "projection_hidden_act": "gelu",
            },
            {
                "text_config": _WORDS,
                "audio_config": {**_SOUND, "enable_fusion": True, "aff_block_r": 2},
                "projection_dim": 10,
            },
        ],
    ),
}
