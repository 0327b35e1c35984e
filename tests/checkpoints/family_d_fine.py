"""Small random models of D-FINE."""

NETWORK = {
    "stem_channels": [3, 8, 6],
    "stage_in_channels": [6, 8, 12, 16],
    "stage_mid_channels": [4, 5, 6, 7],
    "stage_out_channels": [8, 12, 16, 24],
    "stage_num_blocks": [1, 1, 2, 1],
    "stage_numb_of_layers": [2, 1, 2, 2],
    "use_learnable_affine_block": True,
    "hidden_sizes": [8, 12, 16, 24],
    "embedding_size": 6,
    "depths": [1, 1, 2, 1],
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
    "decoder_n_points": [3, 2, 1],
    "num_queries": 7,
    "num_labels": 5,
    "num_denoising": 0,
    "max_num_bins": 8,
    "lqe_hidden_dim": 6,
    "depth_mult": 0.34,
}


def d_fine(network=None, **values):
    import transformers

    network = {**NETWORK, "out_indices": [2, 3, 4], **(network or {})}
    own = transformers.HGNetV2Config(**network)
    config = transformers.DFineConfig(**{**VALUES, **values}, backbone_config=own)
    return transformers.DFineForObjectDetection(config)
