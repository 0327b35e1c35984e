"""Detectors on maps of several scales beside Transformers': inputs, random numbers, comparisons."""

import json
import math

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.checkpoints import load_config
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.presets.assignment import backbone_variables
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints.test_families import value_and_gradients_of
from tests.compiled import outputs_of


def shaken(reference, scale=0.3):
    """The model with random weights, none of them alike."""
    import torch

    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in reference.state_dict().items():
            if name.endswith(("num_batches_tracked", "points_scale", "reg_scale", ".up")):
                continue
            tensor.copy_(torch.randn(tensor.shape, generator=random) * scale)
            if name.endswith(("weight", "lab.scale")) and tensor.ndim == 1:
                tensor.add_(1)
            if name.endswith("running_var"):
                tensor.abs_().add_(0.5)
    return reference.eval()


def pixels(*size):
    """Two random images, for both libraries."""
    import torch

    values = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
    return values, torch.tensor(np.moveaxis(values, -1, 1).copy())


def assert_same_outputs(reference, folder, sizes):
    """For images of these sizes, and the way back. Returns the task."""
    import torch

    reference.save_pretrained(folder / "theirs")
    kt.ImageProcessor(size=(64, 96), family="RTDetr", mean=None, std=None).save(folder / "theirs")
    task = kt.Task.from_preset(folder / "theirs")
    assert type(task) is kt.ObjectDetector and task.num_classes == 5
    for size in sizes:
        ours, theirs = pixels(*size)
        with torch.no_grad():
            expected = reference(theirs)
        found = outputs_of(task, {"images": ours})
        assert expected.logits.std() > 0.1 and expected.pred_boxes.std() > 0.01
        # The chosen places have scores of their own, or they are alike.
        assert expected.enc_topk_logits.max(-1).values.unique().numel() > 2
        assert found.shape == (2, len(expected.logits[0]), 4 + 5)
        assert np.abs(found[..., 4:] - expected.logits.numpy()).max() <= 1e-4
        assert np.abs(found[..., :4] - expected.pred_boxes.numpy()).max() <= 1e-4

    kt.export_to_huggingface(task, folder / "ours")
    again, info = type(reference).from_pretrained(folder / "ours", output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        assert (again.eval()(theirs).logits - expected.logits).abs().max() <= 1e-5
    back = kt.Task.from_preset(folder / "ours")
    assert back.task_values() == task.task_values()
    assert back.backbone.config == task.backbone.config
    assert back.processor.values() == task.processor.values()
    assert kt.Backbone.from_preset(folder / "theirs").config == task.backbone.config
    return task, again


def random_objects(counts):
    """Random objects of two images, as targets of ours, and as labels of theirs."""
    import torch

    random, width = np.random.default_rng(3), 4
    targets = np.zeros((2, width, 5), "float32")
    targets[..., 4] = -1
    for row, count in zip(targets, counts, strict=True):
        places = random.permutation(width)[:count]  # padding may stand anywhere
        row[places, :4] = random.uniform(0.2, 0.5, (count, 4))
        row[places, 4] = random.integers(0, 5, count)
    known = [row[row[:, 4] >= 0] for row in targets]
    labels = [
        {"boxes": torch.tensor(row[:, :4]), "class_labels": torch.tensor(row[:, 4]).long()}
        for row in known
    ]
    return targets, labels


def share_noise(task, counts, monkeypatch):
    """Give both the same random numbers, in the order of their queries: ours are near, then far."""
    import torch

    most, width, wanted = max(counts), 4, task.box_decoder["num_denoising"]
    groups, slots = max(wanted // most, 1), max(wanted, width)
    noise = np.random.default_rng(4).uniform(size=(2, 2 * slots, 10)).astype("float32")
    task.decoder_layer.denoising.noise = lambda shape: keras.ops.convert_to_tensor(noise)
    near = np.arange(groups * most).reshape(groups, 1, most)
    drawn = torch.tensor(noise)[:, np.concatenate([near, near + slots], axis=1).reshape(-1)]
    shares = iter([drawn[..., 0], drawn[..., 6:]])
    integers = iter([(drawn[..., 1] * 5).int(), (drawn[..., 2:6] >= 0.5).float()])
    monkeypatch.setattr(torch, "rand_like", lambda *args, **options: next(shares))
    monkeypatch.setattr(torch, "randint_like", lambda *args, **options: next(integers))


def loss_of_a_step(task, images, targets):
    """A function that computes the loss of a training step."""
    step = task.step_loss()
    x, y, _ = step.batch({"images": images}, targets, None, training=True)

    def computed():
        return step.loss(step.states(x, None, training=True), x, y, None, training=True)

    return computed


def assert_same_gradients(task, computed, reference, folder, bounds=None):
    """Compare gradients of all trained variables, which theirs holds of its loss.

    Args:
        task: the task.
        computed: a function that computes the loss.
        reference: their model, whose weights become its gradients.
        folder: path of an empty folder.
        bounds: by a part of their paths, the largest differences of other variables than 1e-4.

    Returns:
        The loss, and the paths of the variables.
    """
    import torch

    variables = {**backbone_variables(task.backbone), **dict(task.head.items())}
    trained = {id(v) for v in task.trainable_variables}
    variables = {path: v for path, v in variables.items() if id(v) in trained}
    loss, found = value_and_gradients_of(variables, computed)
    # Their gradients are read as the weights of a checkpoint.
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.grad)
    reference.save_pretrained(folder / "gradients")
    gradients = kt.Task.from_preset(folder / "gradients")
    gradients = {**backbone_variables(gradients.backbone), **dict(gradients.head.items())}
    for path, value in found.items():
        wanted = to_numpy(gradients[path])
        bound = next((b for part, b in (bounds or {}).items() if part in path), 1e-4)
        assert np.abs(value - wanted).max() <= bound * max(np.abs(wanted).max(), 1), path
    return loss, list(found)


def checked_parameters(preset):
    """Return the number of parameters of a preset, once it is compared with Transformers' class.

    Frozen batch norms, and averages of others, are no parameters there.
    """
    import torch
    import transformers

    config, task, metadata = load_config(preset, load_weights=False)
    values = FAMILIES[metadata["family"]].published_config(config, {"labels": None, **task})
    with torch.device("meta"):
        made = transformers.AutoConfig.for_model(**json.loads(json.dumps(values)))
        theirs = getattr(transformers, values["architectures"][0])(made)
    expected = sum(each.numel() for each in theirs.parameters())
    expected += sum(
        each.numel()
        for path, each in theirs.named_buffers()
        if ".running_" in path or ".normalization." in path
    )
    head = kt.ObjectDetector.head_shapes(config, task)
    count = metadata["parameters"] + sum(map(math.prod, head.values()))
    assert count == expected
    return count
