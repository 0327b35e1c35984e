"""Backbones of KerasHub 0.32 that are not read in its form: what reads them, or why nothing does.

Together with the families that are read they are all transformers of `keras_hub.models`, and all
other backbones: a test compares the list with the installed release.
"""

from collections.abc import Mapping

# The `model_type` under which checkpoints of the same architecture load in Hugging Face's form.
PUBLISHED_FORM: Mapping[str, tuple[str, ...]] = {
    "BLIP2Backbone": ("blip-2",),
    "DFineBackbone": ("d_fine",),
    "DebertaV3Backbone": ("deberta-v2",),
    "DepthAnythingBackbone": ("depth_anything",),
    "ESMBackbone": ("esm",),
    "Gemma3nBackbone": ("gemma3n", "gemma3n_text"),
    "Gemma4Backbone": ("gemma4", "gemma4_text"),
    "MoonshineBackbone": ("moonshine",),
    "PaliGemmaBackbone": ("paligemma",),
    # It normalizes images within the model, and contains the whole head of a `PromptedSegmenter`.
    "SAMBackbone": ("sam",),
    # Its published weights are SAM's encoder, which has the reason above.
    "ViTDetBackbone": ("sam", "vitdet"),
    "XLNetBackbone": ("xlnet",),
}
# Transformers that this library does not compute, with the reason.
NOT_COMPUTED: Mapping[str, str] = {
    "EdRecBackbone": "its encoder-decoder has not been compared, and has no published weights.",
    "FluxBackbone": "diffusion of images is not a task here.",
    "SAM3PromptableConceptBackbone": "finding every object that a text names is not a task here.",
    "StableDiffusion3Backbone": "diffusion of images is not a task here.",
}
# Convolutional networks, and the base class.
NO_TRANSFORMER = (
    "BASNetBackbone", "Backbone", "CSPNetBackbone", "DeepLabV3Backbone", "DenseNetBackbone",
    "EfficientNetBackbone", "FeaturePyramidBackbone", "HGNetV2Backbone", "MobileNetBackbone",
    "MobileNetV5Backbone", "ResNetBackbone", "RetinaNetBackbone", "VGGBackbone", "XceptionBackbone",
)  # fmt: skip


def what_else(name: str) -> str:
    """Return a sentence for an error about a backbone that is not read in KerasHub's form."""
    if name in PUBLISHED_FORM:
        types = " or ".join(map(repr, PUBLISHED_FORM[name]))
        return (
            f"Its published checkpoints load in Hugging Face's form, as model_type {types}: "
            '`from_preset("hf://org/name")`.'
        )
    if name in NOT_COMPUTED:
        return f"It is not covered: {NOT_COMPUTED[name]}"
    return ""
