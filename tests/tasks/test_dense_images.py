"""Depths and classes of pixels: fit, metrics, augmentation, results, files, and wrong data."""

import keras
import numpy as np
import pytest
from PIL import Image

import keras_transformer as kt
from keras_transformer.layers.fusion import interpolate, linear_weights
from tests.checkpoints.family_dense import segformer
from tests.tasks.images import patches

LABELS = ["ground", "object"]


def segmenter(**options):
    processor = kt.ImageProcessor(size=(12, 16))
    return kt.ImageSegmenter(kt.models.Encoder(patches()), processor, labels=LABELS, **options)


def estimator(**options):
    processor = kt.ImageProcessor(size=(12, 16))
    return kt.DepthEstimator(kt.models.Encoder(patches()), processor, **options)


def scenes(count=8, size=(24, 32), seed=0):
    """Images with a bright rectangle on a dark ground, and their masks."""
    random, images, masks = np.random.default_rng(seed), [], []
    for _ in range(count):
        image = random.integers(0, 50, (*size, 3)).astype("uint8")
        top, left = random.integers(0, size[0] // 2), random.integers(0, size[1] // 2)
        mask = np.zeros(size, "uint8")
        mask[top : top + size[0] // 2, left : left + size[1] // 2] = 1
        image[mask == 1] += 180
        images.append(image)
        masks.append(mask)
    return images, masks


def test_a_segmenter_learns_from_files(tmp_path):
    images, masks = scenes()
    paths = [tmp_path / f"{i}.png" for i in range(len(images))]
    files = [tmp_path / f"mask_{i}.png" for i in range(len(images))]
    for image, mask, path, file in zip(images, masks, paths, files, strict=True):
        Image.fromarray(image).save(path)
        shown = Image.fromarray(mask).convert("P")  # a palette, whose indices are the classes
        shown.putpalette([255, 0, 0, 0, 0, 255])
        shown.save(file)
    keras.utils.set_random_seed(0)
    task = segmenter()
    task.compile(keras.optimizers.Adam(1e-2))
    history = task.fit(paths, files, epochs=12, batch_size=4, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] / 2
    scores = task.evaluate(images, masks, verbose=0, return_dict=True)
    assert scores["mean_iou"] > 0.6

    result = task.segment(paths[0])
    assert result.classes.shape == (24, 32) and result.classes.dtype == np.uint8
    assert result.share("object") == (result.classes == 1).mean()
    several = task.segment([images[0], images[1][:20]])
    assert [each.classes.shape for each in several] == [(24, 32), (20, 32)]
    assert np.array_equal(several[0].classes, result.classes)

    task.save_to_preset(tmp_path / "saved")
    again = kt.Task.from_preset(tmp_path / "saved")
    assert again.task_values() == task.task_values()
    assert np.array_equal(again.segment(paths[0]).classes, result.classes)


def test_the_score_is_the_mean_intersection_over_union():
    task = segmenter()
    images, masks = scenes(4)
    masks[0][:5] = 255  # does not count
    known = np.stack(masks)
    counts = known != 255
    task.processor.size = {"height": 24, "width": 32}  # as large as the masks
    found = np.stack([each.classes for each in task.segment(images)])
    shares = [
        ((found == n) & (known == n))[counts].sum() / ((found == n) | (known == n))[counts].sum()
        for n in (0, 1)
    ]
    score = task.evaluate(images, masks, verbose=0, return_dict=True)["mean_iou"]
    assert abs(score - np.mean(shares)) < 1e-5


@pytest.mark.parametrize("max_depth", [None, 10.0])
def test_an_estimator_learns_depths(tmp_path, max_depth):
    images, masks = scenes()
    depths = [np.where(mask == 1, 6.0, 2.0).astype("float32") for mask in masks]
    depths[0][:3] = np.nan  # unknown
    keras.utils.set_random_seed(1)
    task = estimator(max_depth=max_depth)
    task.compile(keras.optimizers.Adam(1e-2))
    history = task.fit(images, depths, epochs=8, batch_size=4, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert np.isfinite(history["absolute_relative_error"]).all()
    result = task.estimate(images[0])
    assert result.depth.shape == (24, 32) and np.isfinite(result.depth).all()
    assert result.unit == ("nearness" if max_depth is None else "metres")
    task.save(tmp_path / "task.keras")
    again = keras.models.load_model(tmp_path / "task.keras")
    assert np.allclose(again.estimate(images[0]).depth, result.depth, atol=1e-5)


def test_augmentation_moves_masks_with_images():
    """A model that is told nothing but the flipped batch: its inputs and targets still agree."""
    images, masks = scenes(4, (12, 16))
    task = segmenter()
    task.processor.mean = task.processor.std = None
    move = {"fill_mode": "constant", "interpolation": "nearest"}
    layers = [
        keras.layers.RandomFlip(seed=3),
        keras.layers.RandomTranslation(0.2, 0.2, seed=4, **move),
    ]
    task.compile(augmentation=layers)
    x, y = task.make_dataset(images, masks)[0]
    loss = task.step_loss()
    x, y = (
        {n: keras.ops.convert_to_tensor(a) for n, a in x.items()},
        keras.ops.convert_to_tensor(y),
    )
    moved, targets, _ = loss.batch(x, y, None, training=True)
    bright = keras.ops.convert_to_numpy(moved["images"])[..., 0] > 0.5
    targets = keras.ops.convert_to_numpy(targets)
    assert np.array_equal(bright, targets == 1)
    assert not np.array_equal(targets, keras.ops.convert_to_numpy(y))
    same, kept, _ = loss.batch(x, y, None, training=False)
    assert same is x and kept is y
    history = task.fit(images, masks, epochs=1, verbose=0).history
    assert np.isfinite(history["loss"][0]) and np.isfinite(history["mean_iou"][0])


@pytest.mark.one_backend
def test_wrong_data_is_refused_before_work():
    task = segmenter()
    images, masks = scenes(2)
    for wrong, message in (
        ([masks[0]], "one for each of 2 images"),
        ([masks[0], masks[1][:-1]], r"`y\[1\]` has 23 x 32 pixels .* image has 24 x 32"),
        ([masks[0], masks[1] + 1], r"`y\[1\]` must hold classes from 0 to 1, and 255"),
        ([masks[0], masks[1] / 2], r"`y\[1\]` must hold classes"),
        ([masks[0], images[1]], "one number for each pixel"),
    ):
        with pytest.raises(ValueError, match=message):
            task.fit(images, wrong, verbose=0)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        task.fit(images, [masks[0], "nowhere.png"], verbose=0)
    with pytest.raises(ValueError, match="`class_weight` is not for masks"):
        task.fit(images, masks, class_weight={0: 2.0}, verbose=0)
    with pytest.raises(ValueError, match="learns from labels"):
        task.fit(images, verbose=0)
    with pytest.raises(ValueError, match="from 2 to 255"):
        kt.ImageSegmenter(kt.models.Encoder(patches()), num_classes=256)

    depth = estimator(max_depth=5.0)
    with pytest.raises(ValueError, match=r"a depth of 60, but max_depth=5 metres"):
        depth.fit(images, [np.full((24, 32), 60.0)] * 2, verbose=0)
    with pytest.raises(ValueError, match="has no depth above 0"):
        depth.fit(images, [np.zeros((24, 32))] * 2, verbose=0)
    with pytest.raises(ValueError, match="`decoder` must be a dict with keys among"):
        estimator(decoder={"layer": [1]})
    with pytest.raises(ValueError, match="backbone has 1 blocks"):
        estimator(decoder={"layers": [1, 1, 2, 2]})
    with pytest.raises(ValueError, match="needs a backbone that reads patches"):
        config = kt.TransformerConfig(
            kind="encoder", vocabulary_size=9, hidden_dim=8, num_layers=1, num_heads=1,
            intermediate_dim=8,
        )  # fmt: skip
        kt.DepthEstimator(kt.models.Encoder(config))


@pytest.mark.thorough
def test_onnx_gives_the_same_maps(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    segformer(image_size=32).save_pretrained(tmp_path / "segformer")
    stages = kt.Task.from_preset(tmp_path / "segformer")
    tasks = ((segmenter(), "logits"), (estimator(), "predicted_depth"), (stages, "logits"))
    for i, (task, name) in enumerate(tasks):
        kt.export(task, tmp_path / str(i), format="onnx")
        size = task.backbone.config.stem.image_size
        pixels = np.random.default_rng(0).normal(size=(3, *size, 3)).astype("float32")
        session = runtime.InferenceSession(tmp_path / str(i) / "model.onnx")
        assert [each.name for each in session.get_outputs()] == [name]
        (found,) = session.run(None, {session.get_inputs()[0].name: pixels})
        expected = keras.ops.convert_to_numpy(task({"images": pixels}))
        assert np.abs(found - expected).max() < 1e-4


def test_rows_of_a_table(tmp_path):
    datasets = pytest.importorskip("datasets")
    images, masks = scenes(4)
    columns = {"image": [Image.fromarray(x) for x in images]}
    columns["annotation"] = [Image.fromarray(x) for x in masks]
    features = datasets.Features({name: datasets.Image() for name in columns})
    table = datasets.Dataset.from_dict(columns, features=features)
    task = segmenter()
    keras.utils.set_random_seed(0)
    assert np.isfinite(task.fit(table, epochs=1, verbose=0).history["loss"][0])


@pytest.mark.one_backend
def test_plots():
    pytest.importorskip("matplotlib")
    images, _ = scenes(1)
    for result in (segmenter().segment(images[0]), estimator().estimate(images[0])):
        figure = result.plot()
        assert len(figure.axes) >= 2 and figure.axes[0].images


def test_losses_of_depths_are_the_published_sums():
    random = np.random.default_rng(0)
    known, found = random.uniform(1, 9, (2, 2, 3, 4)).astype("float32")
    known[0, 0] = 0
    log = [np.log(f[k > 0]) - np.log(k[k > 0]) for f, k in zip(found, known, strict=True)]
    expected = np.mean([np.sqrt((d**2).mean() - 0.5 * d.mean() ** 2) for d in log])
    loss = kt.training.ScaleInvariantLogLoss()
    assert abs(float(loss(known, found)) - expected) < 1e-5
    shifted = np.where(known > 0, 3 * known + 4, known)
    assert float(kt.training.AffineInvariantLoss()(shifted, found)) == pytest.approx(
        float(kt.training.AffineInvariantLoss()(known, 2 * found + 5)), abs=1e-5
    )
    metric = kt.training.AbsoluteRelativeError(aligned=True)
    metric.update_state(known, found)
    errors = []
    for f, k in zip(found, known, strict=True):
        f, k = f[k > 0], k[k > 0]
        slope, shift = np.polyfit(f, k, 1)
        errors.append((np.abs(slope * f + shift - k) / k).mean())
    assert float(metric.result()) == pytest.approx(np.mean(errors), abs=1e-5)


def test_interpolation_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(1, 3, 4, 2)).astype("float32")
    given = torch.tensor(np.moveaxis(x, -1, 1).copy())
    for size in ((3, 4), (7, 9), (2, 1)):
        expected = torch.nn.functional.interpolate(given, size, mode="bilinear", align_corners=True)
        found = keras.ops.convert_to_numpy(interpolate(keras.ops.convert_to_tensor(x), size))
        assert np.abs(np.moveaxis(found, -1, 1) - expected.numpy()).max() < 1e-6
        edges = torch.nn.functional.interpolate(given, size, mode="bilinear")
        rows, columns = (linear_weights(n, m, "edges") for n, m in zip((3, 4), size, strict=True))
        found = np.einsum("ai,bj,nijd->ndab", rows, columns, x)
        assert np.abs(found - edges.numpy()).max() < 1e-6
