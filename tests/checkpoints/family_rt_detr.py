"""Small random models of RT-DETR and RT-DETRv2."""

NETWORK = {
    "embedding_size": 8,
    "hidden_sizes": [8, 12, 16, 24],
    "depths": [1, 2, 1, 1],
}
VALUES = {
    "d_model": 16,
    "encoder_hidden_dim": 12,
    "encoder_in_channels": [12, 16, 24],
    "decoder_in_channels": [12, 12, 12],
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 28,
    "decoder_layers": 2,
    "decoder_n_points": 3,
    "num_queries": 7,
    "num_labels": 5,
    "num_denoising": 0,
}


def rt_detr(network=None, version="", **values):
    import transformers

    network = {**NETWORK, "out_indices": [2, 3, 4], **(network or {})}
    own = transformers.RTDetrResNetConfig(**network)
    config = getattr(transformers, f"RTDetr{version}Config")
    config = config(**{**VALUES, **values}, backbone_config=own)
    return getattr(transformers, f"RTDetr{version}ForObjectDetection")(config)


def rt_detr_v2(network=None, **values):
    return rt_detr(network, version="V2", **values)
