"""YOLOS and DETR against the Transformers library: outputs, gradients, pixels, labels, back."""

import copy
import importlib
import shutil

import numpy as np
import pytest
from PIL import Image

import keras_transformer as kt
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.presets.assignment import backbone_variables
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.training import DetectionLoss
from tests.checkpoints.family_detr import VALUES as DETR
from tests.checkpoints.family_detr import detr, table_transformer
from tests.checkpoints.test_families import _gradients, assert_gradients, value_and_gradients_of
from tests.compiled import outputs_of

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.numpy")

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


def yolos(**values):
    import transformers

    return transformers.YolosForObjectDetection(transformers.YolosConfig(**VALUES, **values))


@pytest.fixture(scope="module", params=[yolos, detr, table_transformer])
def both(request, tmp_path_factory):
    """Their model with random weights, ours, and the folder that it was read from."""
    folder = tmp_path_factory.mktemp("theirs")
    names = {0: "N/A", 1: "cat", 2: "N/A"}  # as COCO's unused numbers
    reference = request.param(id2label=names, label2id={"N/A": 0, "cat": 1}).eval()
    with torch.no_grad():
        random = torch.Generator().manual_seed(1)
        for name, tensor in reference.state_dict().items():
            tensor.copy_(torch.randn(tensor.shape, generator=random) * 0.3)
            if "norm" in name and name.endswith("weight"):
                tensor.add_(1)
            if name.endswith("running_var"):
                tensor.abs_().add_(0.5)
    reference.save_pretrained(folder)
    family = type(reference).__name__.removesuffix("ForObjectDetection")
    family = "Detr" if family == "TableTransformer" else family
    kt.ImageProcessor(size={"shortest_edge": 20, "longest_edge": 40}, family=family).save(folder)
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
        found = outputs_of(task, {"images": ours})
        assert expected.logits.std() > 0.1 and expected.pred_boxes.std() > 0.01
        assert np.abs(found[..., 4:] - expected.logits.numpy()).max() <= 1e-4
        assert np.abs(found[..., :4] - expected.pred_boxes.numpy()).max() <= 1e-4


@pytest.mark.each_backend
@pytest.mark.parametrize("make", [detr, table_transformer])
def test_same_outputs_of_padded_images(tmp_path, make):
    """Images of several sizes in one batch, by DETR."""
    reference = make().eval()
    reference.save_pretrained(tmp_path)
    task = kt.Task.from_preset(tmp_path)
    ours, _ = pixels(37, 52)
    mask = np.zeros(ours.shape[:3], bool)
    mask[0, :30], mask[1, :, :33] = True, True
    ours = ours * mask[..., None]
    theirs = torch.tensor(np.moveaxis(ours, -1, 1).copy())
    with torch.no_grad():
        expected = reference(theirs, pixel_mask=torch.tensor(mask).long())
    found = outputs_of(task, {"images": ours, "padding_mask": mask})
    assert np.abs(found[..., 4:] - expected.logits.numpy()).max() <= 1e-4
    assert np.abs(found[..., :4] - expected.pred_boxes.numpy()).max() <= 1e-4
    alone = outputs_of(task, {"images": ours})
    assert np.abs(alone - found).max() > 1e-3
    with pytest.raises(ValueError, match="`padding_mask` must be of shape"):
        task({"images": ours, "padding_mask": mask[:, 1:]})


@pytest.mark.one_backend
def test_names_of_timm(tmp_path):
    """Older files have timm's names of the layers of the ResNet, and its name in the config."""
    folder = tmp_path / "theirs"
    detr().save_pretrained(folder)
    task = kt.Task.from_preset(folder)
    family, config = FAMILIES["detr"], task.backbone.config
    shapes = {line.ours: line for line in family.lines(config)}
    names = [line.also[0] for path, line in shapes.items() if "stage_0_block_1_con" in path]
    assert "backbone.conv_encoder.model.layer1.1.conv3.weight" in names
    assert "backbone.conv_encoder.model.layer1.1.bn2.running_var" in names
    arrays = safetensors.load_file(folder / "model.safetensors")
    renamed = {}
    for name, array in arrays.items():
        line = next((x for x in shapes.values() if f"model.{x.theirs}" == name and x.also), None)
        renamed[name if line is None else f"model.{line.also[0]}"] = array
    assert renamed.keys() != arrays.keys()
    safetensors.save_file(renamed, tmp_path / "model.safetensors")
    shutil.copy(folder / "config.json", tmp_path)
    again = kt.Task.from_preset(tmp_path)
    for one, two in zip(again.weights, task.weights, strict=True):
        assert np.array_equal(to_numpy(one), to_numpy(two))
    for values in (
        {},
        {"backbone": "resnet50", "use_timm_backbone": True},
        {"backbone_config": {"model_type": "timm_backbone", "backbone": "resnet101"}},
    ):
        depths = family.config(values).encoder.input.depths
        assert tuple(depths) == (3, 4, 23 if "backbone_config" in values else 6, 3)


@pytest.mark.each_backend
def test_same_gradients_of_the_loss(both, tmp_path):
    reference, task, _ = both
    reference = copy.deepcopy(reference)  # whose weights become its gradients
    reference.requires_grad_(True)  # DETR's ResNet is frozen there
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
    with torch.no_grad():
        for buffer in reference.buffers():  # of frozen batch norms
            buffer.zero_()
    found |= {path: np.zeros(1) for path in found if "frozen_norm" in path}
    assert_gradients(found, reference, tmp_path / "gradients")


@pytest.mark.each_backend
def test_same_gradients_of_the_losses_of_all_layers(tmp_path):
    """Transformers' heads and loss on the normalized states of each layer, as in the paper.

    Its own `auxiliary_loss` also gives these to the next layer, which makes another model unless
    they are normalized already: as they are before the norms have learned.
    """
    reference = detr(decoder_layers=3, dropout=0.0).eval()
    random = torch.Generator().manual_seed(2)
    decoder = reference.model.decoder
    with torch.no_grad():
        for tensor in reference.parameters():
            tensor.add_(torch.randn(tensor.shape, generator=random) * 0.2)
        norms = [decoder.layernorm, *(layer.final_layer_norm for layer in decoder.layers)]
        for norm in norms:
            norm.weight.fill_(1)
            norm.bias.zero_()
    reference.requires_grad_(True)
    reference.save_pretrained(tmp_path / "theirs")
    task = kt.ObjectDetector.from_preset(tmp_path / "theirs", auxiliary_loss=True)
    assert task.auxiliary_loss and not kt.Task.from_preset(tmp_path / "theirs").auxiliary_loss
    ours, theirs = pixels(16, 24)
    targets = np.array([[[0.3, 0.4, 0.2, 0.3, 1]], [[0.6, 0.5, 0.3, 0.2, 2]]], "float32")
    labels = [
        {"boxes": torch.tensor(row[:, :4]), "class_labels": torch.tensor(row[:, 4]).long()}
        for row in targets
    ]

    def theirs_of():
        config = copy.deepcopy(reference.config)
        config.auxiliary_loss = True
        states = []
        hooks = [
            layer.register_forward_hook(lambda module, args, x: states.append(x))
            for layer in decoder.layers
        ]
        reference(theirs)
        for hook in hooks:
            hook.remove()
        states = decoder.layernorm(torch.stack(states))
        logits = reference.class_labels_classifier(states)
        boxes = reference.bbox_predictor(states).sigmoid()
        last = logits[-1], labels, "cpu", boxes[-1]
        return reference.loss_function(*last, config, logits, boxes)[0]

    loss = DetectionLoss()

    def computed():
        return loss(targets, task({"images": ours}, training=True))

    assert task({"images": ours}, training=True).shape == (2, 3, 6, 4 + 4)
    assert task({"images": ours}).shape == (2, 6, 4 + 4)
    for config in (reference.config, decoder.config):
        config.auxiliary_loss = True
    expected = float(reference(theirs, labels=labels).loss.detach())
    assert abs(float(computed()) - expected) <= 1e-3 * expected
    for config in (reference.config, decoder.config):
        config.auxiliary_loss = False

    with torch.no_grad():
        for norm in norms:
            for tensor in norm.parameters():
                tensor.add_(torch.randn(tensor.shape, generator=random) * 0.3)
    reference.save_pretrained(tmp_path / "theirs")
    task = kt.ObjectDetector.from_preset(tmp_path / "theirs", auxiliary_loss=True)
    expected = theirs_of()
    expected.backward()
    variables = {**backbone_variables(task.backbone), **dict(task.head.items())}
    trained = {id(v) for v in task.trainable_variables}
    variables = {path: v for path, v in variables.items() if id(v) in trained}
    value, found = value_and_gradients_of(variables, computed)
    assert abs(value - float(expected.detach())) <= 1e-4
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.grad)
    reference.save_pretrained(tmp_path / "gradients")
    gradients = kt.Task.from_preset(tmp_path / "gradients")
    gradients = {**backbone_variables(gradients.backbone), **gradients.head}
    assert len(found) > 80 and "decoder/final_norm/gamma" in found
    for path, value in found.items():
        wanted = to_numpy(gradients[path])
        assert np.abs(value - wanted).max() <= 1e-4 * max(np.abs(wanted).max(), 1), path
    kt.export_to_huggingface(task, tmp_path / "ours")
    back = type(reference).from_pretrained(tmp_path / "ours").eval()
    assert not back.config.auxiliary_loss  # with which it would compute something else
    with torch.no_grad():
        logits = back(theirs).logits.numpy()
    assert np.abs(outputs_of(task, {"images": ours})[..., 4:] - logits).max() <= 1e-4


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
@pytest.mark.parametrize("family", ["Yolos", "Detr"])
@pytest.mark.parametrize(
    "values",
    [
        {"size": {"shortest_edge": 40, "longest_edge": 70}},
        {"size": {"height": 20, "width": 30}},
        {"size": 48, "max_size": 80},  # of old files
    ],
)
def test_same_pixels(family, values):
    name = family.lower()
    module = importlib.import_module(f"transformers.models.{name}.image_processing_pil_{name}")
    theirs = getattr(module, f"{family}ImageProcessorPil")(**values)
    ours = kt.ImageProcessor.from_values(
        {"image_processor_type": f"{family}ImageProcessor", **values}
    )
    assert kt.ImageProcessor.from_values(ours.values()).values() == ours.values()
    random = np.random.default_rng(0)
    images = [
        random.integers(0, 256, (*size, 3)).astype("uint8")
        for size in ((37, 53), (61, 40), (42, 142), (133, 41), (48, 79), (40, 40), (1, 9))
        if family == "Detr" or size[0] > 1  # which theirs would round to no pixel
    ]
    options = {"return_tensors": "np", "input_data_format": "channels_last"}
    for image in images:
        expected = theirs(image, **options)["pixel_values"]
        assert np.abs(np.moveaxis(ours([image]), -1, 1) - expected).max() <= 1e-5
    for mode in ("L", "RGBA"):
        image = Image.fromarray(images[0]).convert(mode)
        expected = theirs(np.asarray(image.convert("RGB")), **options)["pixel_values"]
        assert np.abs(np.moveaxis(ours([image]), -1, 1) - expected).max() <= 1e-5
    if family == "Detr":
        expected = theirs(images, **options)
        found = ours.padded(images)
        alike = "height" in values["size"] if isinstance(values["size"], dict) else False
        assert ("padding_mask" in found) != alike
        difference = np.moveaxis(found["images"], -1, 1) - expected["pixel_values"]
        assert np.abs(difference).max() <= 1e-5
        assert (found.get("padding_mask", True) == expected["pixel_mask"]).all()


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


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_queries": 0}, "`num_queries` must be at least 1"),
        ({"dilation": True}, "dilation=True is not supported"),
        ({"auxiliary_loss": True}, "auxiliary_loss=True is not supported"),
        ({"position_embedding_type": "learned"}, "position_embedding_type='learned' is not"),
        ({"d_model": 18, "encoder_attention_heads": 2}, "whose width is a multiple of 4"),
        ({"backbone_config": None, "backbone": "swin"}, "backbone='swin' is not supported"),
        ({"backbone_config": {"model_type": "swin"}}, "of model_type 'swin' is not supported"),
        (
            {"backbone_config": {"model_type": "resnet", "layer_type": "wide"}},
            "layer_type='wide' is not supported, only 'bottleneck' and 'basic'",
        ),
        ({"backbone_config": {"model_type": "resnet", "depths": 3}}, "depths must be a list"),
        ({"backbone_config": {"model_type": "resnet", "depths": [2, 0, 1, 1]}}, "`depths` of the"),
        ({"backbone_config": {"model_type": "resnet", "out_features": ["stem"]}}, "the last stage"),
    ],
)
def test_wrong_values_of_detr_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["detr"].config({**DETR, **values})
