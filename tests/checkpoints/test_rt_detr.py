"""RT-DETR against the Transformers library: outputs, loss, gradients, pixels, results, back."""

import numpy as np
import pytest
from PIL import Image

import keras_transformer as kt
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.tasks.heads.detection_head import found_objects
from keras_transformer.training import VarifocalDetectionLoss
from tests.checkpoints.family_rt_detr import NETWORK, VALUES, rt_detr
from tests.checkpoints.on_maps import (
    assert_same_gradients,
    assert_same_outputs,
    checked_parameters,
    loss_of_a_step,
    pixels,
    random_objects,
    shaken,
    share_noise,
)

torch = pytest.importorskip("torch")

TWO_MAPS = {
    "network": {"out_indices": [3, 4]},
    "encoder_in_channels": [16, 24],
    "decoder_in_channels": [12, 12],
    "encode_proj_layers": [1],
    "num_feature_levels": 2,
    "encoder_layers": 2,
}
NARROW = {
    "hidden_expansion": 0.5,
    "decoder_layers": 3,
    "decoder_n_points": 1,
    "decoder_attention_heads": 2,
    "encoder_activation_function": "relu",
    "decoder_activation_function": "gelu",
    "activation_function": "relu",
}
CONFIGS = {
    "bottlenecks": {"num_denoising": 4, "num_queries": 12},
    "basic": {
        **NARROW,
        **TWO_MAPS,
        "network": {"layer_type": "basic", "out_indices": [3, 4]},
    },
    "second": {"version": "V2", "decoder_offset_scale": 0.8, "decoder_n_points": 2},
    "nearest": {"version": "V2", "decoder_method": "discrete", "decoder_n_levels": 2, **TWO_MAPS},
}


@pytest.mark.each_backend
@pytest.mark.parametrize("name", CONFIGS)
def test_same_outputs(tmp_path, name):
    """For images of several sizes, and the way back."""
    sizes = [(64, 96)]
    if name == "bottlenecks":  # in the second one some of the places are too near to the edge
        sizes += [(32, 448)]
    assert_same_outputs(shaken(rt_detr(**CONFIGS[name])), tmp_path, sizes)


@pytest.mark.each_backend
def test_same_loss_and_gradients(tmp_path):
    """The sum over all layers and the chosen places, in training, with statistics of the batch."""
    reference = shaken(rt_detr(**CONFIGS["basic"] | {"activation_function": "silu"}), 0.2)
    reference.save_pretrained(tmp_path / "theirs")
    task = kt.Task.from_preset(tmp_path / "theirs")
    ours, theirs = pixels(96, 128)
    boxes = [[[0.3, 0.4, 0.2, 0.3], [0.6, 0.5, 0.3, 0.2]], []]
    labels = [
        {
            "boxes": torch.tensor(own).reshape(-1, 4),
            "class_labels": torch.tensor([1, 4][: len(own)]).long(),
        }
        for own in boxes
    ]
    targets = np.zeros((2, 3, 5), "float32")
    targets[..., 4] = -1
    targets[0, 1:, :4], targets[0, 1:, 4] = boxes[0], [1, 4]
    reference.requires_grad_(True).train()
    expected = reference(theirs, labels=labels)
    expected.loss.backward()
    assert len(expected.auxiliary_outputs) == 3  # two layers, and the chosen places
    loss = VarifocalDetectionLoss()

    def computed():
        return loss(targets, task({"images": ours}, training=True))

    value, found = assert_same_gradients(task, computed, reference, tmp_path)
    assert abs(value - float(expected.loss.detach())) <= 1e-4 and len(found) > 150


DENOISING = {
    # Two groups of two places of each kind, and a place that no group has.
    "first": {"num_denoising": 5, "counts": [2, 1], "noise": {}},
    # One group, although there are more objects than queries; an image without objects.
    "second": {
        "version": "V2",
        "num_denoising": 2,
        "counts": [3, 0],
        "noise": {"label_noise_ratio": 1.0, "box_noise_scale": 0.4, "decoder_n_levels": 2},
    },
}


@pytest.mark.each_backend
@pytest.mark.parametrize("name", DENOISING)
def test_same_loss_and_gradients_of_noisy_objects(tmp_path, monkeypatch, name):
    given = DENOISING[name]
    counts, wanted, version = given["counts"], given["num_denoising"], given.get("version", "")
    values = CONFIGS["basic"] | {"activation_function": "silu"} | given["noise"]
    reference = shaken(rt_detr(**values, version=version, num_denoising=wanted), 0.2)
    reference.save_pretrained(tmp_path / "theirs")
    task = kt.Task.from_preset(tmp_path / "theirs")
    assert task.box_decoder["num_denoising"] == wanted
    targets, labels = random_objects(counts)
    share_noise(task, counts, monkeypatch)
    ours, theirs = pixels(96, 128)
    reference.requires_grad_(True).train()
    expected = reference(theirs, labels=labels)
    expected.loss.backward()
    parts = {name: float(part.detach()) for name, part in expected.loss_dict.items()}
    assert sum(value for name, value in parts.items() if "_dn_" in name) > 1
    monkeypatch.undo()

    computed = loss_of_a_step(task, ours, targets)
    value, found = assert_same_gradients(task, computed, reference, tmp_path)
    assert abs(value - float(expected.loss.detach())) <= 1e-4 * value
    assert "decoder/denoising_classes/embeddings" in found
    # Evaluation, and outputs without targets, have no noisy objects.
    x, _, _ = task.step_loss().batch({"images": ours}, targets, None, training=False)
    assert x.keys() == {"images"} and task(x, training=True).shape[2] == task.head.count


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    "values",
    [{}, {"size": {"height": 40, "width": 60}}, {"do_normalize": True}, {"do_rescale": False}],
)
def test_same_pixels(values):
    from transformers.models.rt_detr.image_processing_pil_rt_detr import RTDetrImageProcessorPil

    theirs = RTDetrImageProcessorPil(**values)
    ours = kt.ImageProcessor.from_values({"image_processor_type": "RTDetrImageProcessor"} | values)
    assert kt.ImageProcessor.from_values(ours.values()).values() == ours.values()
    random, options = np.random.default_rng(0), {"return_tensors": "np"}
    for size, mode in (((37, 53, 3), "RGB"), ((12, 8), "L"), ((70, 41, 3), "RGBA")):
        image = Image.fromarray(random.integers(0, 256, size).astype("uint8")).convert(mode)
        expected = theirs(image.convert("RGB"), **options)["pixel_values"]
        assert np.abs(np.moveaxis(ours([image]), -1, 1) - expected).max() <= 1e-5


@pytest.mark.backend_independent
def test_results_are_those_of_transformers():
    from transformers.models.rt_detr.image_processing_pil_rt_detr import RTDetrImageProcessorPil
    from transformers.models.rt_detr.modeling_rt_detr import RTDetrObjectDetectionOutput

    outputs = np.random.default_rng(0).normal(size=(2, 7, 4 + 3)).astype("float32")
    outputs[..., :4] = np.abs(outputs[..., :4]) / 4
    theirs = RTDetrObjectDetectionOutput(
        logits=torch.tensor(outputs[..., 4:]), pred_boxes=torch.tensor(outputs[..., :4])
    )
    sizes = [(21, 30), (40, 17)]
    expected = RTDetrImageProcessorPil().post_process_object_detection(
        theirs, threshold=0.0, target_sizes=sizes
    )
    for own, each, size in zip(outputs, expected, sizes, strict=True):
        boxes, classes, scores = found_objects(own, size, exclusive=False)
        assert np.abs(boxes - each["boxes"].numpy()).max() <= 1e-4
        assert np.array_equal(classes, each["labels"].numpy())
        assert np.abs(scores - each["scores"].numpy()).max() <= 1e-6
        # A place may have several classes.
        assert len(set(map(tuple, boxes))) < len(boxes)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_queries": 0}, "`num_queries` must be an integer of"),
        ({"decoder_layers": 17}, "`num_layers` must be"),
        ({"decoder_attention_heads": 3}, "`width` of the `box_decoder` must be a multiple"),
        ({"hidden_expansion": "half"}, "hidden_expansion must be a number"),
        ({"activation_function": "snake"}, "activation_function='snake' is not supported"),
        ({"normalize_before": True}, "normalize_before=True is not supported"),
        ({"learn_initial_query": True}, "learn_initial_query=True is not supported"),
        ({"encode_proj_layers": [1, 2]}, r"encode_proj_layers=\[1, 2\] is not supported"),
        ({"num_feature_levels": 4}, "num_feature_levels=4 is not supported"),
        ({"decoder_in_channels": [12, 12]}, "decoder_in_channels"),
        ({"encoder_in_channels": "all"}, "encoder_in_channels='all' is not supported"),
        (
            {
                "encoder_hidden_dim": 14,
                "encoder_attention_heads": 2,
                "decoder_in_channels": [14] * 3,
            },
            "a multiple of 4",
        ),
        ({"use_timm_backbone": True}, "without timm"),
        ({"decoder_method": "cubic"}, "decoder_method='cubic' is not supported"),
        ({"decoder_n_levels": 2}, "decoder_n_levels=2 is not supported"),
        ({"decoder_offset_scale": 0}, "`offset_scale` must be"),
        ({"backbone_config": {"model_type": "resnet"}}, "of model_type 'resnet'"),
        ({"backbone_config": NETWORK | {"depths": 3}}, "depths must be a list"),
        ({"backbone_config": NETWORK | {"out_indices": [1, 3, 4]}}, "only the last stages"),
        ({"backbone_config": NETWORK | {"layer_type": "wide"}}, "`block` must be one of"),
        ({"backbone_config": NETWORK | {"hidden_act": "gelu"}}, "hidden_act='gelu'"),
        (
            {"backbone_config": NETWORK | {"layer_type": "basic", "embedding_size": 6}},
            "needs an embedding_size equal to",
        ),
        ({"backbone_config": NETWORK | {"embedding_size": 7}}, "`filters` of the stem must be"),
    ],
)
def test_wrong_values_are_refused(values, message):
    second = any(name in values for name in ("decoder_method", "decoder_n_levels"))
    second = second or "decoder_offset_scale" in values
    family = FAMILIES["rt_detr_v2" if second else "rt_detr"]
    network = {**NETWORK, "out_indices": [2, 3, 4]}
    given = {"backbone_config": network, **VALUES, **values}
    given["backbone_config"] = {"out_indices": [2, 3, 4], **given["backbone_config"]}
    given["architectures"] = [f"RTDetr{'V2' * second}ForObjectDetection"]
    with pytest.raises(ValueError, match=message):
        kt.ObjectDetector.head_values(family.config(given), family.task(given))


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["r18vd", "r50vd", "r101vd", "v2_r18vd", "v2_r50vd", "v2_r101vd"])
def test_presets_have_as_many_parameters(name):
    """As Transformers' class, and in the paper."""
    # Millions in table 2 of the paper.
    said = {"r18vd": 20, "r50vd": 42, "r101vd": 76}[name.removeprefix("v2_")]
    assert checked_parameters(f"rtdetr_{name}") == pytest.approx(said * 1e6, rel=0.03)
