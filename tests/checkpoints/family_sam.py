"""A small random SAM."""

VISION = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 80,
    "patch_size": 16,
    "window_size": 2,  # 5 patches in a row: the last window has padding
    "global_attn_indexes": [1],
    "output_channels": 16,
    "num_pos_feats": 8,
    "mlp_dim": 32,
}
PROMPTS = {"hidden_size": 16, "image_size": 80, "patch_size": 16, "mask_input_channels": 8}
DECODER = {
    "hidden_size": 16,
    "mlp_dim": 24,
    "num_attention_heads": 2,
    "iou_head_hidden_dim": 12,
}
VALUES = {
    "model_type": "sam",
    "architectures": ["SamModel"],
    "vision_config": VISION,
    "prompt_encoder_config": PROMPTS,
    "mask_decoder_config": DECODER,
}


def sam(**vision):
    import torch
    import transformers

    config = transformers.SamConfig(
        vision_config=VISION | vision,
        prompt_encoder_config=dict(PROMPTS),
        mask_decoder_config=dict(DECODER),
    )
    model = transformers.SamModel(config)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape, generator=random) * 0.3)
    return model.eval()
