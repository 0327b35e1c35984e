"""Configs of small decoders with states of images among their own: as those of `family_duals`."""

from tests.checkpoints.family_sizes import LLAMA

_IMAGES = {
    "model_type": "clip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 28,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 20,
    "patch_size": 5,
}
_OTHER = {
    **_IMAGES,
    "hidden_size": 12,
    "num_attention_heads": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-3,
    "num_channels": 2,
}
_LLAMA = {**LLAMA, "model_type": "llama", "bos_token_id": 1, "eos_token_id": 2}

_SIGLIP = {
    "model_type": "siglip_vision_model", "vision_use_head": False, "hidden_size": 18,
    "intermediate_size": 26, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 20,
    "patch_size": 5,
}  # fmt: skip
_GEMMA = {
    **LLAMA, "model_type": "gemma", "head_dim": 6, "bos_token_id": 2, "eos_token_id": 1,
    "pad_token_id": 0,
}  # fmt: skip
# Some of the prompt is beyond the window, which it sees all the same.
_GEMMA2 = {
    **_GEMMA, "model_type": "gemma2", "sliding_window": 7, "query_pre_attn_scalar": 5,
    "num_hidden_layers": 3, "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
_GIT = {
    "vocab_size": 61, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 20, "max_position_embeddings": 24, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip

CONFIGS = {
    "llava": (
        "Llava",
        [
            {"vision_config": _IMAGES, "text_config": _LLAMA, "image_token_index": 60},
            {
                "vision_config": {**_OTHER, "model_type": "siglip_vision_model"},
                "text_config": {**_LLAMA, "model_type": "qwen2", "tie_word_embeddings": True},
                "image_token_index": 3,
                "vision_feature_layer": 1,
                "vision_feature_select_strategy": "full",
                "multimodal_projector_bias": False,
                "projector_hidden_act": "relu",
            },
            {
                "vision_config": _OTHER,
                "text_config": {**_LLAMA, "model_type": "mistral", "sliding_window": 6},
                "image_token_index": 4,
                "vision_feature_layer": -1,
                "vision_feature_select_strategy": "full",
            },
        ],
    ),
    "paligemma": (
        "PaliGemma",
        [
            {
                "vision_config": _SIGLIP,
                "text_config": _GEMMA,
                "image_token_index": 60,
                "projection_dim": 12,
                "hidden_size": 12,
            },
            {
                "vision_config": {**_SIGLIP, "layer_norm_eps": 1e-3, "hidden_act": "gelu"},
                "text_config": _GEMMA2,
                "image_token_index": 57,
                "projection_dim": 12,
                "hidden_size": 12,
                "tie_word_embeddings": False,
            },
        ],
    ),
    "git": (
        "Git",
        [
            {"vision_config": {**_IMAGES, "model_type": "git_vision_model"}, **_GIT},
            {
                "vision_config": {**_OTHER, "model_type": "git_vision_model"},
                **_GIT,
                "hidden_act": "relu",
                "layer_norm_eps": 1e-4,
                "tie_word_embeddings": True,
                "pad_token_id": 3,
            },
        ],
    ),
}
