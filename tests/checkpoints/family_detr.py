"""A small random DETR, and a Table Transformer, whose ResNet has basic blocks."""

VALUES = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 24,
    "num_queries": 6,
    "num_labels": 3,
    "use_timm_backbone": False,
    "backbone_config": {
        "model_type": "resnet",
        "embedding_size": 4,
        "hidden_sizes": [8, 12],
        "depths": [2, 1],
        "out_features": ["stage2"],
    },
}


TABLES = {**VALUES, "backbone_config": {**VALUES["backbone_config"], "layer_type": "basic"}}


def detr(**values):
    return _made("Detr", {**VALUES, **values})


def table_transformer(**values):
    return _made("TableTransformer", {**TABLES, **values})


def _made(name, values):
    import transformers

    network = {n: v for n, v in values["backbone_config"].items() if n != "model_type"}
    values["backbone_config"] = transformers.ResNetConfig(**network)
    config = getattr(transformers, f"{name}Config")(**values)
    return getattr(transformers, f"{name}ForObjectDetection")(config)
