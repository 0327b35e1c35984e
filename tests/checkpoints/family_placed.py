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
}
