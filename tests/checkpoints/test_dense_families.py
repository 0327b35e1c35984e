"""Families of depths and segments against the Transformers library: maps, processors, both ways."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.families import FAMILIES
from tests.checkpoints.family_dense import DPT, depth_anything, dpt
from tests.compiled import outputs_of
from tests.tasks.images import patches

torch = pytest.importorskip("torch")

# Processors of the same values: Transformers has one on Pillow, without another package.
_RESIZE = {"size": {"height": 16, "width": 16}, "resample": 3}


def shaken(model):
    """The model with random weights and averages, in evaluation mode."""
    with torch.no_grad():
        random = torch.Generator().manual_seed(1)
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point():
                continue
            tensor.copy_(torch.randn(tensor.shape, generator=random) * 0.2)
            if name.startswith("head.") and name.endswith("bias"):
                tensor.abs_()  # so that no ReLU hides all depths
            if name.endswith("running_var"):
                tensor.abs_().add_(0.5)
    return model.eval()


CASES = {
    "depth_anything": (kt.DepthEstimator, lambda: depth_anything()),
    "metric": (
        kt.DepthEstimator,
        lambda: depth_anything(depth_estimation_type="metric", max_depth=20),
    ),
    "dpt": (kt.DepthEstimator, lambda: dpt("DepthEstimation")),
    "segments": (
        kt.ImageSegmenter,
        lambda: dpt(
            "SemanticSegmentation",
            num_labels=5,
            use_batch_norm_in_fusion_residual=True,
            readout_type="ignore",
        ),
    ),
}


@pytest.mark.each_backend
@pytest.mark.parametrize("case", CASES)
def test_same_maps(tmp_path, case):
    """And the way back."""
    kind, make = CASES[case]
    reference = shaken(make())
    reference.save_pretrained(tmp_path / "theirs")
    kt.ImageProcessor(**_RESIZE, family="DPT").save(tmp_path / "theirs")
    task = kt.Task.from_preset(tmp_path / "theirs")
    assert type(task) is kind
    # Depth Anything also reads an odd number of patches.
    size = (20, 16) if reference.config.model_type == "depth_anything" else (64, 64)
    pixels = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
    theirs = torch.tensor(np.moveaxis(pixels, -1, 1).copy())
    with torch.no_grad():
        expected = reference(theirs)[0].numpy()
    found = outputs_of(task, {"images": pixels})
    found = np.moveaxis(found, -1, 1) if kind is kt.ImageSegmenter else found
    assert found.shape == expected.shape and expected.std() > 0.01
    assert np.abs(found - expected).max() <= 1e-4

    if not kt.Backbone.from_preset(tmp_path / "theirs").config == task.backbone.config:
        raise AssertionError("a bare backbone has another config")
    kt.export_to_huggingface(task, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    # The first fusion has weights there that nothing reads.
    assert all(".0.residual_layer1." in name for name in info["missing_keys"])
    assert not info["unexpected_keys"] and not info["mismatched_keys"]
    with torch.no_grad():
        assert np.abs(again.eval()(theirs)[0].numpy() - expected).max() <= 1e-5
    back = kt.Task.from_preset(tmp_path / "ours")
    assert back.task_values() == task.task_values()
    assert back.processor.values() == task.processor.values()


@pytest.mark.one_backend
def test_a_backbone_alone_is_a_dinov2(tmp_path):
    """Transformers has no class of a Depth Anything without its head."""
    transformers = pytest.importorskip("transformers")
    shaken(depth_anything()).save_pretrained(tmp_path / "theirs")
    backbone = kt.Backbone.from_preset(tmp_path / "theirs")
    kt.export_to_huggingface(backbone, tmp_path / "ours")
    again = transformers.AutoModel.from_pretrained(tmp_path / "ours").eval()
    assert type(again).__name__ == "Dinov2Model"
    pixels = np.random.default_rng(0).normal(size=(1, 20, 16, 3)).astype("float32")
    with torch.no_grad():
        expected = again(torch.tensor(np.moveaxis(pixels, -1, 1).copy())).last_hidden_state.numpy()
    assert np.abs(outputs_of(backbone, {"images": pixels}) - expected).max() <= 2e-5
    with pytest.raises(
        ValueError, match="depth_anything checkpoint cannot express a model without"
    ):
        kt.export_to_huggingface(backbone, tmp_path / "other", family="depth_anything")


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "values",
    [
        {"size": {"height": 42, "width": 42}, "keep_aspect_ratio": True, "ensure_multiple_of": 14},
        {"size": {"height": 20, "width": 30}, "resample": 2, "image_mean": [0.1, 0.2, 0.3]},
    ],
)
def test_same_pixels(values):
    from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil

    theirs = DPTImageProcessorPil(**values)
    given = {"image_processor_type": "DPTImageProcessor", **values}
    ours = kt.ImageProcessor.from_values(given)
    assert kt.ImageProcessor.from_values(ours.values()).values() == ours.values()
    random = np.random.default_rng(0)
    for size in ((37, 53), (60, 41), (42, 42)):
        image = random.integers(0, 256, (*size, 3)).astype("uint8")
        expected = theirs(image, return_tensors="np")["pixel_values"]
        assert np.abs(np.moveaxis(ours([image]), -1, 1) - expected).max() <= 1e-5


@pytest.mark.one_backend
def test_same_results():
    """Depths and classes in the size of the image, from the same outputs."""
    from transformers.modeling_outputs import DepthEstimatorOutput, SemanticSegmenterOutput
    from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil

    theirs, backbone = DPTImageProcessorPil(), kt.models.Encoder(patches())
    image = np.random.default_rng(0).integers(0, 256, (21, 30, 3)).astype("uint8")
    processor = kt.ImageProcessor(size=(12, 16))
    segmenter = kt.ImageSegmenter(backbone, processor, num_classes=4)
    logits = torch.tensor(np.moveaxis(segmenter.predict([image], verbose=0), -1, 1).copy())
    expected = theirs.post_process_semantic_segmentation(
        SemanticSegmenterOutput(logits=logits), target_sizes=[(21, 30)]
    )[0]
    assert np.array_equal(segmenter.segment(image).classes, expected.numpy())

    estimator = kt.DepthEstimator(backbone, processor, max_depth=3.0)
    depth = torch.tensor(estimator.predict([image], verbose=0))
    expected = theirs.post_process_depth_estimation(
        DepthEstimatorOutput(predicted_depth=depth), target_sizes=[(21, 30)]
    )[0]["predicted_depth"]
    assert np.abs(estimator.estimate(image).depth - expected.numpy()).max() <= 1e-5


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("dpt", {"add_projection": True}, "add_projection=true is not supported"),
        ("dpt", {"reassemble_factors": [2, 1, 1, 1]}, "reassemble_factors"),
        ("dpt", {"use_bias_in_fusion_residual": False}, "either biases or batch norms"),
        ("dpt", {"readout_type": "add"}, "`readout` must be"),
        ("dpt", {"neck_hidden_sizes": [4, 4]}, "`channels` must be four"),
        ("depth_anything", {"backbone_config": {"model_type": "swin"}}, "only 'dinov2'"),
        ("dpt", {"backbone_out_indices": 5}, "a list of whole numbers, received 5"),
        ("dpt", {"reassemble_factors": None}, "reassemble_factors=None"),
        ("depth_anything", {"backbone_config": {"out_indices": 5}}, "a list of whole numbers"),
        ("depth_anything", {"backbone_config": {"out_features": ["stem"]}}, "'stage12', received"),
        ("depth_anything", {"depth_estimation_type": "far"}, "only 'relative' and 'metric'"),
        ("depth_anything", {"max_depth": 20}, "not supported for relative depths"),
        ("depth_anything", {"head_in_index": 0}, "head_in_index=0"),
    ],
)
def test_wrong_values_are_refused(family, values, message):
    family = FAMILIES[family]
    given = {**DPT, "architectures": list(family.classes("DepthEstimator")), **values}

    def read():
        return kt.DepthEstimator.head_values(family.config(given), family.task(given))

    with pytest.raises(ValueError, match=message):
        read()
