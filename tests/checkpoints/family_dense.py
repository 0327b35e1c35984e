"""Small random models of families with a head alone, for depths and segments."""

from tests.checkpoints.family_d_fine import d_fine
from tests.checkpoints.family_detr import detr, table_transformer
from tests.checkpoints.family_rt_detr import rt_detr, rt_detr_v2
from tests.checkpoints.family_sam import sam

_SIZES = {
    "hidden_size": 12,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "image_size": 16,
    "patch_size": 4,
}
_FUSION = {"neck_hidden_sizes": [4, 5, 6, 8], "fusion_hidden_size": 6}
# Its maps have 16 pixels for each row or column of patches.
DPT = {**_SIZES, **_FUSION, "backbone_out_indices": [0, 1, 2, 3]}
DPT |= {"patch_size": 16, "image_size": 64}


def dpt(suffix, **values):
    import transformers

    config = transformers.DPTConfig(**DPT | values)
    return getattr(transformers, f"DPTFor{suffix}")(config)


def depth_anything(**values):
    import transformers

    backbone = transformers.Dinov2Config(
        **_SIZES, mlp_ratio=2, out_indices=[1, 2, 3, 4], reshape_hidden_states=False
    )
    return transformers.DepthAnythingForDepthEstimation(
        transformers.DepthAnythingConfig(
            backbone_config=backbone,
            patch_size=4,
            reassemble_hidden_size=12,
            head_hidden_size=5,
            **_FUSION | values,
        )
    )


# Three stages, whose depths, heads and widths differ.
SEGFORMER = {
    "num_encoder_blocks": 3,
    "depths": [1, 2, 1],
    "sr_ratios": [4, 2, 1],
    "hidden_sizes": [8, 12, 16],
    "patch_sizes": [7, 3, 5],
    "strides": [4, 2, 2],
    "num_attention_heads": [1, 2, 4],
    "mlp_ratios": [2, 3, 2],
    "decoder_hidden_size": 6,
    "num_labels": 5,
}


def segformer(name="ForSemanticSegmentation", **values):
    import transformers

    config = transformers.SegformerConfig(**SEGFORMER | values)
    return getattr(transformers, f"Segformer{name}")(config)


MODELS = {
    "dpt": lambda: dpt("DepthEstimation"),
    "depth_anything": depth_anything,
    "sam": sam,
    "segformer": segformer,
    "detr": detr,
    "table-transformer": table_transformer,
    "d_fine": d_fine,
    "rt_detr": rt_detr,
    "rt_detr_v2": rt_detr_v2,
}
