"""YOLOS against the Transformers library: outputs, gradients, pixels, labels, both ways."""

import copy

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.training import DetectionLoss
from tests.checkpoints.test_families import _gradients, assert_gradients

torch = pytest.importorskip("torch")

VALUES = {
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "image_size": [16, 24],
    "patch_size": 4,
    "num_detection_tokens": 6,
    "num_labels": 3,
}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Their model with random weights, ours, and the folder that it was read from."""
    import transformers

    folder = tmp_path_factory.mktemp("theirs")
    names = {0: "N/A", 1: "cat", 2: "N/A"}  # as COCO's unused numbers
    values = {**VALUES, "id2label": names, "label2id": {"N/A": 0, "cat": 1}}
    reference = transformers.YolosForObjectDetection(transformers.YolosConfig(**values)).eval()
    with torch.no_grad():
        random = torch.Generator().manual_seed(1)
        for name, tensor in reference.state_dict().items():
            tensor.copy_(torch.randn(tensor.shape, generator=random) * 0.3)
            if "layernorm" in name and name.endswith("weight"):
                tensor.add_(1)
    reference.save_pretrained(folder)
    kt.ImageProcessor(size={"shortest_edge": 20, "longest_edge": 40}, family="Yolos").save(folder)
    return reference, kt.Task.from_preset(folder), folder


def pixels(*size):
    values = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
    return values, torch.tensor(np.moveaxis(values, -1, 1).copy())


@pytest.mark.each_backend
def test_same_outputs(both):
    """Images of the usual size, and of others."""
    reference, task, _ = both
    assert type(task) is kt.ObjectDetector and task.labels == ["N/A", "cat", "N/A 2"]
    for size in ((16, 24), (29, 19)):
        ours, theirs = pixels(*size)
        with torch.no_grad():
            expected = reference(theirs)
        found = to_numpy(task({"images": ours}))
        assert expected.logits.std() > 0.1 and expected.pred_boxes.std() > 0.01
        assert np.abs(found[..., 4:] - expected.logits.numpy()).max() <= 1e-4
        assert np.abs(found[..., :4] - expected.pred_boxes.numpy()).max() <= 1e-4


@pytest.mark.each_backend
def test_same_gradients_of_the_loss(both, tmp_path):
    reference, task, _ = both
    reference = copy.deepcopy(reference)  # whose weights become its gradients
    ours, theirs = pixels(16, 24)
    boxes = [[[0.3, 0.4, 0.2, 0.3], [0.6, 0.5, 0.3, 0.2]], []]
    labels = [
        {
            "boxes": torch.tensor(own).reshape(-1, 4),
            "class_labels": torch.tensor([1, 2][: len(own)]).long(),
        }
        for own in boxes
    ]
    targets = np.zeros((2, 2, 5), "float32")
    targets[..., 4] = -1
    targets[0, :, :4], targets[0, :, 4] = boxes[0], [1, 2]
    expected = reference(theirs, labels=labels).loss
    expected.backward()
    loss = DetectionLoss()
    assert abs(float(loss(targets, task({"images": ours}))) - float(expected.detach())) <= 1e-4
    backbone = task.backbone
    found = _gradients(backbone, lambda: loss(targets, task({"images": ours})))
    assert_gradients(found, reference, tmp_path / "gradients")


@pytest.mark.one_backend
def test_export_is_the_way_back(both, tmp_path):
    reference, task, folder = both
    kt.export_to_huggingface(task, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    _, theirs = pixels(20, 16)
    with torch.no_grad():
        found, expected = again.eval()(theirs), reference(theirs)
    assert (found.logits - expected.logits).abs().max() <= 1e-6
    back = kt.Task.from_preset(tmp_path)
    assert back.task_values() == task.task_values()
    assert back.processor.values() == task.processor.values()
    assert kt.Backbone.from_preset(folder).config == task.backbone.config


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    "values",
    [
        {"size": {"shortest_edge": 40, "longest_edge": 70}},
        {"size": {"height": 20, "width": 30}},
        {"size": 48, "max_size": 80},  # of old files
    ],
)
def test_same_pixels(values):
    from transformers.models.yolos.image_processing_pil_yolos import YolosImageProcessorPil

    theirs = YolosImageProcessorPil(**values)
    ours = kt.ImageProcessor.from_values({"image_processor_type": "YolosImageProcessor", **values})
    assert kt.ImageProcessor.from_values(ours.values()).values() == ours.values()
    random = np.random.default_rng(0)
    for size in ((37, 53), (61, 40), (42, 142), (133, 41), (48, 79), (40, 40)):
        image = random.integers(0, 256, (*size, 3)).astype("uint8")
        expected = theirs(image, return_tensors="np")["pixel_values"]
        assert np.abs(np.moveaxis(ours([image]), -1, 1) - expected).max() <= 1e-5


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_detection_tokens": "many"}, "num_detection_tokens must be a number"),
        ({"num_detection_tokens": -1}, "`num_detection_tokens` must be at least 0"),
        ({"num_detection_tokens": 0, "architectures": ["YolosForObjectDetection"]}, "needs a back"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers must be a number"),
    ],
)
def test_wrong_values_are_refused(values, message):
    family = FAMILIES["yolos"]
    given = {**VALUES, **values}
    with pytest.raises(ValueError, match=message):
        kt.ObjectDetector.head_shapes(family.config(given), {"num_classes": 2})
    with pytest.raises(ValueError, match="pad_size"):
        kt.ImageProcessor.from_values(
            {"image_processor_type": "YolosImageProcessor", "pad_size": {"height": 9, "width": 9}}
        )
