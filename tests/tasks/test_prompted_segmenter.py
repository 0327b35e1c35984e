"""Masks of prompts: one pass of the encoder for many prompts, learning, files, wrong prompts."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.training.losses.mask_losses import (
    PromptedMaskLoss,
    dice_loss,
    focal_loss,
)
from tests.tasks.images import config

DECODER = {"width": 16, "num_heads": 2, "intermediate_dim": 16, "mask_channels": 4, "score_dim": 8}


def segmenter(dtype=None, **options):
    stem = {"kind": "patches", "image_size": (32, 32), "patch_size": 8, "class_token": False}
    backbone = kt.models.Encoder(config(stem), dtype=dtype)
    processor = kt.processors.PromptedImageProcessor(size=32)
    return kt.PromptedSegmenter(backbone, processor, decoder=DECODER, **options)


def scene(seed=0, size=(24, 32)):
    """An image with a bright rectangle, its mask, and its box."""
    random = np.random.default_rng(seed)
    image = random.integers(0, 50, (*size, 3)).astype("uint8")
    top, left = random.integers(0, size[0] // 2), random.integers(0, size[1] // 2)
    mask = np.zeros(size, "uint8")
    mask[top : top + size[0] // 2, left : left + size[1] // 2] = 1
    image[mask == 1] += 180
    return image, mask, [left, top, left + size[1] // 2, top + size[0] // 2]


@pytest.fixture(scope="module")
def task():
    keras.utils.set_random_seed(0)
    return segmenter()


@pytest.mark.one_backend  # others do not enter `call` again once it is compiled
def test_a_second_prompt_does_not_run_the_encoder(task, monkeypatch):
    image, counted = scene()[0], []
    kind = type(task.backbone)
    whole = kind.call
    monkeypatch.setattr(kind, "call", lambda *x, **y: counted.append(1) or whole(*x, **y))
    encoded = task.encode(image)
    assert len(counted) == 1
    first = encoded.segment(points=[12, 9])
    second = encoded.segment(points=[[[12, 9], [3, 4]]], labels=[[1, 0]])
    assert len(counted) == 1
    # The same as at once.
    again = task.segment(image, points=[[[12, 9], [3, 4]]], labels=[[1, 0]])
    assert len(counted) == 2
    assert np.abs(again.logits - second.logits).max() <= 1e-5
    assert np.abs(first.logits - second.logits).max() > 1e-4


def test_points_are_not_rounded_in_half_precision():
    """A bfloat16 number from 16 to 32 is 0.125 from the next one."""
    task = segmenter(dtype="mixed_bfloat16")
    images = np.random.default_rng(0).normal(size=(1, 32, 32, 3)).astype("float32")
    found = []
    for x in (20.0, 20.05):
        points = np.array([[[[x, 10.0]]]], "float32")
        inputs = {"images": images, "points": points, "point_labels": np.ones((1, 1, 1), "int32")}
        found.append(task(inputs))
    first, second = (keras.tree.map_structure(numpy, each) for each in found)
    flat = zip(keras.tree.flatten(first), keras.tree.flatten(second), strict=True)
    assert max(np.abs(a - b).max() for a, b in flat) > 0


def test_images_and_prompts_of_different_numbers(task):
    """Each answer is what it is alone: padding changes nothing."""
    images = [scene(0)[0], scene(1, (40, 20))[0]]
    points = [[[[3, 4]], [[10, 9], [11, 5], [20, 20]], [[7, 7]]], None]
    labels = [[[1], [1, 0, 0], [0]], None]
    boxes = [None, [[1, 2, 19, 30]]]
    both = task.segment(images, points=points, labels=labels, boxes=boxes, batch_size=2)
    assert [each.masks.shape for each in both] == [(3, 3, 24, 32), (1, 3, 40, 20)]
    assert [each.iou_scores.shape for each in both] == [(3, 3), (1, 3)]
    alone = [
        task.segment(images[0], points=[points[0][1]], labels=[labels[0][1]]),
        task.segment(images[1], boxes=boxes[1][0]),
    ]
    assert np.abs(both[0].logits[1:2] - alone[0].logits).max() <= 1e-5
    assert np.abs(both[1].logits - alone[1].logits).max() <= 1e-5
    assert np.abs(both[0].iou_scores[1:2] - alone[0].iou_scores).max() <= 1e-5
    many = task.segment(images[0], points=[[[x, 5]] for x in range(17)], multimask=False)
    one = task.segment(images[0], points=[[16, 5]], multimask=False)
    assert many.masks.shape == (17, 1, 24, 32)
    assert np.abs(many.logits[16] - one.logits[0]).max() <= 1e-5


@pytest.mark.one_backend
def test_answers_are_prompts_again_and_are_drawn(task):
    pytest.importorskip("matplotlib")
    encoded = task.encode(scene()[0])
    first = encoded.segment(points=[12, 9])
    chosen = first.logits[np.arange(1), first.iou_scores.argmax(axis=1)]
    second = encoded.segment(points=[[12, 9]], boxes=[1, 2, 20, 20], masks=chosen, multimask=False)
    assert second.masks.shape == (1, 1, 24, 32)
    plain = encoded.segment(points=[[12, 9]], boxes=[1, 2, 20, 20], multimask=False)
    assert np.abs(second.logits - plain.logits).max() > 1e-5
    assert np.array_equal(first.best[0], first.masks[0, first.iou_scores[0].argmax()])
    figure = second.plot()
    assert len(figure.axes[1].patches) == 1 and len(figure.axes[1].lines) == 1


# With the flags of XLA that make tests compile sooner (`tests/conftest.py`), the gradients of focal
# and dice losses together are not numbers on JAX; without these flags they are.
@pytest.mark.one_backend
def test_it_learns_masks_and_scores(tmp_path):
    keras.utils.set_random_seed(0)
    task = segmenter()
    scenes = [scene(i) for i in range(8)]
    images = [image for image, *_ in scenes]
    # Numbers of prompts differ.
    prompts = [
        {"boxes": [box, box]} if i % 2 else {"boxes": box} for i, (*_, box) in enumerate(scenes)
    ]
    masks = [[mask, mask] if i % 2 else [mask] for i, (_, mask, _) in enumerate(scenes)]
    task.compile(keras.optimizers.Adam(1e-2))
    encoder = [np.array(keras.ops.convert_to_numpy(v)) for v in task.backbone.weights]
    before = task.evaluate((images, prompts), masks, verbose=0)
    history = task.fit((images, prompts), masks, epochs=15, batch_size=4, verbose=0).history
    assert history["loss"][-1] < before / 2
    after = task.evaluate((images, prompts), masks, verbose=0)
    assert after < before / 2
    for old, variable in zip(encoder, task.backbone.weights, strict=True):
        assert np.array_equal(old, keras.ops.convert_to_numpy(variable))

    image, _, box = scenes[0]
    result = task.segment(image, boxes=box)
    task.save_to_preset(tmp_path / "preset")
    task.save(tmp_path / "task.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "task.keras"),
    ):
        assert again.task_values() == task.task_values()
        assert np.abs(again.segment(image, boxes=box).logits - result.logits).max() <= 1e-5
        assert not any(v.trainable for v in again.backbone.weights)
    task.freeze(layers=0, embeddings=False)
    assert all(v.trainable for v in (*task.backbone.weights, *task.neck.weights))


@pytest.mark.one_backend
def test_losses_as_defined():
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    logits = random.normal(size=(1, 2, 4, 6, 5)).astype("float32")
    targets = (random.random((1, 2, 6, 5)) > 0.6).astype("float32")
    t, x = torch.tensor(targets)[:, :, None], torch.tensor(logits)
    share = torch.where(t == 1, x.sigmoid(), 1 - x.sigmoid())
    weights = torch.where(t == 1, 0.25, 0.75)
    focal = (-weights * (1 - share) ** 2 * share.log()).mean(dim=(-2, -1)).numpy()
    dice = 1 - (2 * (x.sigmoid() * t).sum((-2, -1)) + 1) / (
        x.sigmoid().sum((-2, -1)) + t.sum((-2, -1)) + 1
    )
    known = np.ones_like(targets)[:, :, None]
    given = [keras.ops.convert_to_tensor(a) for a in (targets[:, :, None], logits, known)]
    assert np.abs(keras.ops.convert_to_numpy(focal_loss(*given)) - focal).max() <= 1e-6
    assert np.abs(keras.ops.convert_to_numpy(dice_loss(*given)) - dice.numpy()).max() <= 1e-6

    found, there = logits > 0, targets[:, :, None] == 1
    iou = (found & there).sum((-2, -1)) / (found | there).sum((-2, -1))
    scores = random.random((1, 2, 4)).astype("float32")
    outputs = {"masks": logits, "iou_scores": scores, "ambiguous": np.array([[True, False]])}
    each = 20 * focal + dice.numpy()
    expected = [
        each[0, 0, 1:].min() + ((scores - iou) ** 2)[0, 0, 1:].mean(),
        each[0, 1, 0] + (scores - iou)[0, 1, 0] ** 2,
    ]
    loss = PromptedMaskLoss()
    value = loss(targets, outputs, sample_weight=np.array([[1.0, 3.0]], "float32"))
    assert abs(float(value) - (expected[0] + 3 * expected[1]) / 4) <= 1e-5
    # Unknown pixels do not count.
    unknown = np.concatenate([targets, np.full((1, 2, 2, 5), 255, "float32")], axis=2)
    further = random.normal(size=(1, 2, 4, 2, 5)).astype("float32")
    outputs["masks"] = np.concatenate([logits, further], axis=3)
    again = loss(unknown, outputs, sample_weight=np.array([[1.0, 3.0]], "float32"))
    assert abs(float(value) - float(again)) <= 1e-5


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "There is no prompt"),
        ({"points": [33, 4]}, r"x=33, y=4, which is outside of the image of 32 x 24"),
        ({"points": [[3, -1]]}, "outside of the image"),
        ({"points": [[3, float("nan")]]}, "finite numbers"),
        ({"points": [[3, 4, 5]]}, "2 finite numbers"),
        ({"points": "here"}, "must be"),
        ({"points": [[[3, 4]] * 300]}, "1 to 256 points"),
        ({"points": [[[3, 4]], []]}, "2 finite numbers"),
        ({"points": [3, 4], "labels": 2}, "must be 1 for a point on the object and 0"),
        ({"points": [[3, 4], [5, 6]], "labels": [1]}, "a label for each of 2 points"),
        ({"labels": [1]}, "those of `points`, which are not given"),
        ({"boxes": [9, 3, 2, 8]}, "empty or upside down"),
        ({"boxes": [[1, 8, 9, 3]]}, "empty or upside down"),
        ({"boxes": [1, 2, 40, 8]}, "not within the image"),
        ({"boxes": [1, 2, 3]}, "4 finite numbers"),
        ({"boxes": [1, 2, 9, 8], "points": [[[3, 4]], [[5, 6]]]}, "one entry for each object"),
        ({"masks": np.zeros((24, 32), "float32")}, "must be logits of 16 x 16"),
        ({"masks": [np.full((16, 16), np.inf)]}, "NaN or infinite"),
        ({"points": [[[3, 4]]] * 5000}, "at most 4,096"),
        ({"points": [3, 4], "multimask": "yes"}, "`multimask` must be"),
    ],
)
def test_wrong_prompts_are_refused_before_the_encoder_runs(task, monkeypatch, given, message):
    def refuse(*args, **kwargs):
        raise AssertionError("the model ran")

    image = scene()[0]
    monkeypatch.setattr(task, "predict_on_batch", refuse)
    with pytest.raises(ValueError, match=message):
        task.segment(image, **given)


@pytest.mark.one_backend
def test_wrong_data_is_refused_before_training(task):
    image, mask, box = scene()
    good = ([image], [{"boxes": box}])
    for x, y, message in (
        ([image], [[mask]], r"takes a pair: fit\(\(images, prompts\), masks\)"),
        (good, [[mask[:5]]], "`y\\[0\\]\\[0\\]` has 5 x 32 pixels"),
        (good, [[mask, mask]], "must be a list of 1, received 2"),
        (([image], []), [[mask]], "must be a list of 1, received 0"),
        (([image], [{"boxes": [box] * 65}]), [[mask] * 65], "at most 64 may be learned"),
        (([image], [{"boxes": [5, 5, 3, 9]}]), [[mask]], "of image 0.*upside down"),
    ):
        with pytest.raises(ValueError, match=message):
            task.fit(x, y, verbose=0)
    with pytest.raises(ValueError, match="has no class token"):
        stem = {"kind": "patches", "image_size": (32, 32), "patch_size": 8}
        kt.PromptedSegmenter(kt.models.Encoder(config(stem)))
    with pytest.raises(ValueError, match="`decoder` must be a dict with keys among"):
        kt.PromptedSegmenter(task.backbone, decoder={"depth": 3})
    with pytest.raises(ValueError, match="give it `size=32`"):
        kt.PromptedSegmenter(task.backbone, kt.processors.PromptedImageProcessor(size=64))


@pytest.mark.one_backend
def test_large_photos(task, monkeypatch):
    """Masks of many prompts on a large photo are refused, and one is made a strip at a time."""
    from keras_transformer.tasks.images import prompted_segmenter

    photo = np.zeros((10_000, 10_000), "uint8")
    with pytest.raises(ValueError, match="would have 9,000,000,000 pixels"):
        task.segment(photo, points=[[[5, 5]]] * 30)
    sizes = []
    empty = np.empty
    monkeypatch.setattr(prompted_segmenter, "_STRIP", 2**10)
    low = np.random.default_rng(0).normal(size=(16, 16)).astype("float32")
    given = (low, 32, (24, 32), (300, 400))
    monkeypatch.setattr(np, "empty", lambda *x: sizes.append(x) or empty(*x))
    found = prompted_segmenter.enlarged(*given)
    assert sizes[-1] == ((300, 400), "bool")
    monkeypatch.setattr(prompted_segmenter, "_STRIP", 2**30)
    assert np.array_equal(found, prompted_segmenter.enlarged(*given))


@pytest.mark.thorough
def test_onnx_of_images_and_of_prompts(task, tmp_path):
    """Two graphs, as for many prompts of an image: any number of images, prompts and points."""
    runtime = pytest.importorskip("onnxruntime")
    kt.export(task, tmp_path, format="onnx")
    sessions = {
        name: runtime.InferenceSession(tmp_path / f"{name}.onnx")
        for name in ("vision_encoder", "prompt_encoder_mask_decoder")
    }
    images = np.random.default_rng(0).normal(size=(3, 32, 32, 3)).astype("float32")
    (states,) = sessions["vision_encoder"].run(None, {"images": images})
    assert np.abs(states - numpy(task({"images": images}))).max() < 1e-4
    # A point, one that is not on the object, and a box with padding behind it.
    points = np.full((3, 2, 3, 2), 5.0, "float32") + np.arange(3, dtype="float32")[:, None]
    labels = np.array([[[1, 0, -1], [2, 3, -10]]] * 3, "int64")
    given = {"input_points": points, "input_labels": labels, "image_embeddings": states}
    decoder = sessions["prompt_encoder_mask_decoder"]
    assert {each.name for each in decoder.get_inputs()} == set(given)
    found = dict(
        zip((each.name for each in decoder.get_outputs()), decoder.run(None, given), strict=True)
    )
    expected = task({"images": images, "points": points, "point_labels": labels.astype("int32")})
    assert np.abs(found["pred_masks"] - numpy(expected["masks"])).max() < 1e-4
    assert np.abs(found["iou_scores"] - numpy(expected["iou_scores"])).max() < 1e-4


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)
