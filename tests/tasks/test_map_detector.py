"""Objects in the maps of a ResNet, with boxes that a decoder refines: fit, files, other classes."""

import json
import logging
import zipfile

import h5py
import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.config.box_decoder import NOISE
from keras_transformer.training import DetectionLoss, VarifocalDetectionLoss
from tests.compiled import outputs_of
from tests.tasks.test_object_detector import LABELS, scenes

safetensors = pytest.importorskip("safetensors.numpy")

DECODER = {
    "num_queries": 6,
    "width": 16,
    "num_layers": 2,
    "num_heads": 2,
    "num_points": 2,
    "intermediate_dim": 24,
}
SIZE = (32, 48)


def detector(labels=LABELS, size=SIZE, stem=None, **decoder):
    """A detector of three maps with 8 x 12, 4 x 6 and 2 x 3 places."""
    stem = {"variant": "d", "block": "basic", "num_maps": 2, **(stem or {})}
    config = kt.TransformerConfig(
        kind="encoder",
        vocabulary_size=0,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=24,
        position="none",
        normalization_epsilon=1e-5,
        stem={
            "kind": "resnet",
            "image_size": (640, 640),
            "filters": 8,
            "widths": [8, 12, 16],
            "depths": [1, 1, 1],
            "projection_norm": True,
            "positions": "counts",
            **stem,
        },
    )
    processor = kt.ImageProcessor(size=size, family="RTDetr", mean=None, std=None)
    return kt.ObjectDetector(
        kt.models.Encoder(config), processor, labels=labels, box_decoder={**DECODER, **decoder}
    )


def test_a_detector_learns_boxes(tmp_path):
    images, objects = scenes(6)
    images[5], objects[5] = np.full((24, 32, 3), 120, "uint8"), {"boxes": [], "labels": []}
    keras.utils.set_random_seed(0)
    task = detector(stem={"num_maps": 1}, num_layers=1)
    assert isinstance(task.loss, VarifocalDetectionLoss)
    task.compile(keras.optimizers.Adam(5e-3))
    history = task.fit(images, objects, epochs=60, batch_size=6, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] / 2
    assert np.isfinite(task.evaluate(images, objects, verbose=0))
    scores = kt.evaluating.evaluate_detector(task, images, objects)
    assert scores.ap50 > 0.3 and set(scores.classes) == set(LABELS)

    result = task.detect(images, threshold=0.0)[1]
    assert len(result) == 6 and (np.diff(result.scores) <= 0).all()
    task.save_to_preset(tmp_path / "saved")
    again = kt.Task.from_preset(tmp_path / "saved")
    assert again.task_values() == task.task_values() and again.box_decoder["num_queries"] == 6
    saved = dict(again.head.items())
    for path, variable in task.head.items():
        assert np.array_equal(to_numpy(variable), to_numpy(saved[path])), path


@pytest.mark.one_backend
def test_other_classes_keep_all_that_does_not_depend_on_them(tmp_path, caplog):
    task = detector()
    task.save_to_preset(tmp_path / "ours")
    kt.export_to_huggingface(task, tmp_path / "theirs")
    for folder in ("ours", "theirs"):
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            other = kt.ObjectDetector.from_preset(tmp_path / folder, labels=["a", "b", "c"])
        assert "the layers that depend on them are newly initialized" in caplog.text
        assert other.num_classes == 3
        others = dict(other.head.items())
        for path, variable in task.head.items():
            same = variable.shape == others[path].shape
            assert same == ("classes" not in path), path
            if same:
                assert np.array_equal(to_numpy(variable), to_numpy(others[path])), path
        with pytest.raises(ValueError, match="was trained as ObjectDetector with box_decoder"):
            kt.ObjectDetector.from_preset(
                tmp_path / folder, box_decoder={**DECODER, "num_layers": 1}
            )


@pytest.mark.each_backend
def test_noisy_objects_are_of_training_alone():
    """Their loss is added in `fit`; a batch without any object has none."""
    images, objects = scenes(3)
    task = detector(num_denoising=5, stem={"num_maps": 1}, num_layers=1)
    without = detector(num_denoising=0, stem={"num_maps": 1}, num_layers=1)
    assert len(without.weights) == len(task.weights) - 1
    without.set_weights([w for w in task.get_weights() if w.shape != (3, 16)])
    x, y = task.make_dataset(images, objects)[0]
    weights = np.array([0.0, 1.0, 0.5], "float32")
    for each in (task, without):
        each.compile(augmentation=[keras.layers.RandomFlip(seed=1)])

    def losses(y, training):
        found = []
        for each in (task, without):
            step = each.step_loss()
            batch = step.batch(x, y, weights, training)
            states = step.states(batch[0], batch[2], training)
            found.append(float(to_numpy(step.loss(states, *batch, training))))
        return found

    more, less = losses(y, training=False)
    assert more == pytest.approx(less, abs=1e-4)
    more, less = losses(y, training=True)
    assert np.isfinite(more) and more > less + 0.5
    more, less = losses(np.full_like(y, -1), training=True)
    assert np.isfinite(more) and more == pytest.approx(less, abs=1e-3)
    # A loss of one's own gets the outputs that it would get without them.
    task.compile(loss=lambda y, outputs: keras.ops.mean(outputs, axis=(1, 2, 3)))
    assert type(task.step_loss().states(x, None, training=True)) is not dict


@pytest.mark.one_backend
def test_files_without_the_classes_of_noisy_objects(tmp_path, caplog):
    """Files that were saved before lack them: they are new. A task without them leaves them out."""
    task = detector(num_denoising=5)
    images, objects = scenes(2)
    expected = task.detect(images[0], threshold=0.0)
    name = "decoder/denoising_classes/embeddings"
    task.save_to_preset(tmp_path / "ours")
    kt.export_to_huggingface(task, tmp_path / "theirs")
    task.save(tmp_path / "task.keras")
    for folder in ("ours", "theirs"):
        path = tmp_path / folder
        assert np.array_equal(
            to_numpy(kt.Task.from_preset(path).head[name]), to_numpy(task.head[name])
        )
        values = {**task.box_decoder, "num_denoising": 0, "label_noise_ratio": 0.1}
        other = kt.ObjectDetector.from_preset(path, box_decoder=values)
        assert name not in other.head and other.box_decoder["label_noise_ratio"] == 0.1
        assert np.allclose(other.detect(images[0], threshold=0.0).boxes, expected.boxes, atol=1e-3)
        arrays = safetensors.load_file(path / "model.safetensors")
        kept = {n: x for n, x in arrays.items() if x.shape != (3, 16)}
        assert len(kept) == len(arrays) - 1
        safetensors.save_file(kept, path / "model.safetensors")
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            again = kt.Task.from_preset(path)
        assert not caplog.records and again.head[name].shape == (3, 16)
        assert np.allclose(again.detect(images[0], threshold=0.0).boxes, expected.boxes, atol=1e-3)
        assert np.isfinite(again.fit(images, objects, verbose=0).history["loss"][0])

    def without(given):
        if isinstance(given, dict):
            given = {n: without(x) for n, x in given.items() if n not in NOISE}
        return [without(x) for x in given] if isinstance(given, list) else given

    with zipfile.ZipFile(tmp_path / "task.keras") as before:
        files = {each: before.read(each) for each in before.namelist()}
    files["config.json"] = json.dumps(without(json.loads(files["config.json"]))).encode()
    (tmp_path / "model.weights.h5").write_bytes(files["model.weights.h5"])
    with h5py.File(tmp_path / "model.weights.h5", "r+") as weights:
        found = []
        weights.visit(lambda each: found.append(each) if each.endswith("denoising") else None)
        assert len(found) == 1
        del weights[found[0]]
    files["model.weights.h5"] = (tmp_path / "model.weights.h5").read_bytes()
    with zipfile.ZipFile(tmp_path / "old.keras", "w") as after:
        for each, content in files.items():
            after.writestr(each, content)
    old = keras.models.load_model(tmp_path / "old.keras")
    assert old.box_decoder["num_denoising"] == 100 and old.head[name].shape == (3, 16)
    assert np.allclose(old.detect(images[0], threshold=0.0).boxes, expected.boxes, atol=1e-3)
    assert np.isfinite(old.fit(images, objects, verbose=0).history["loss"][0])


@pytest.mark.one_backend
def test_files(tmp_path):
    task = detector(stem={"block": "bottleneck", "variant": "b", "num_maps": 1})
    images, objects = scenes(2)
    pixels = np.random.default_rng(0).normal(size=(2, *SIZE, 3)).astype("float32")
    alone, both = outputs_of(task, {"images": pixels[1:]}), outputs_of(task, {"images": pixels})
    assert np.abs(both[1:] - alone).max() <= 1e-4
    outputs = task({"images": pixels}, training=True)
    assert outputs.shape == (2, 1 + 2, 6, 4 + 2)  # the chosen places, and two layers
    expected = task.detect(images[0], threshold=0.0)  # by the averages that training changed
    task.save(tmp_path / "task.keras")
    again = keras.models.load_model(tmp_path / "task.keras")
    assert np.allclose(again.detect(images[0], threshold=0.0).boxes, expected.boxes, atol=1e-4)
    assert np.isfinite(again.fit(images, objects, verbose=0).history["loss"][0])
    config = task.backbone.config
    plan = kt.planning.make_plan(config, batch_size=2, length=config.stem.num_states)
    assert task.backbone.count_params() == plan.parameters
    shapes = kt.ObjectDetector.head_shapes(config, task.task_values())
    assert {path: tuple(v.shape) for path, v in task.head.items()} == shapes


@pytest.mark.one_backend
def test_onnx_gives_the_same_outputs(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    task = detector(stem={"image_size": SIZE, "num_maps": 0}, num_layers=1)
    kt.export(task, tmp_path, format="onnx")
    pixels = np.random.default_rng(0).normal(size=(3, *SIZE, 3)).astype("float32")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    assert [each.name for each in session.get_outputs()] == ["logits", "pred_boxes"]
    logits, boxes = session.run(None, {session.get_inputs()[0].name: pixels})
    expected = outputs_of(task, {"images": pixels})
    assert np.abs(boxes - expected[..., :4]).max() < 1e-5
    assert np.abs(logits - expected[..., 4:]).max() < 1e-4


@pytest.mark.one_backend
def test_wrong_values_are_refused():
    task = detector()
    with pytest.raises(ValueError, match="must halve from stage to stage"):
        task.predict({"images": np.zeros((1, 40, 48, 3), "float32")}, verbose=0)
    with pytest.raises(ValueError, match="has 126 places in its maps, but 300"):
        detector(num_queries=300).predict({"images": np.zeros((1, *SIZE, 3))}, verbose=0)
    with pytest.raises(ValueError, match="7 objects, but this model finds at most 6"):
        objects = {"boxes": [[1, 1, 5, 5]] * 7, "labels": ["dark"] * 7}
        task.fit(scenes(1)[0], [objects], verbose=0)
    with pytest.raises(ValueError, match="`box_decoder` must be a dict with keys among"):
        detector(depth=3)
    with pytest.raises(ValueError, match="`auxiliary_loss` must be True or None on maps"):
        kt.ObjectDetector(task.backbone, labels=LABELS, auxiliary_loss=False)
    with pytest.raises(ValueError, match="`num_denoising` must be an integer"):
        detector(num_denoising=2**20)
    with pytest.raises(ValueError, match="`label_noise_ratio` must be"):
        detector(label_noise_ratio=-1)
    images = np.zeros((2, *SIZE, 3), "float32")
    for boxes, classes in (((2, 3, 4), None), ((2, 3, 4), (2, 4)), ((2, 3), (2, 3))):
        given = {"object_boxes": np.zeros(boxes, "float32"), "images": images}
        given |= {} if classes is None else {"object_classes": np.zeros(classes, "int32")}
        with pytest.raises(ValueError, match="`object_boxes` and `object_classes` go together"):
            task(given, training=True)
    with pytest.raises(ValueError, match="takes no 'object_boxes'"):
        detector(num_denoising=0)({"images": images, "object_boxes": images}, training=True)
    with pytest.raises(ValueError, match="`num_maps` must be below the number of stages, 3"):
        detector(stem={"num_maps": 3})
    with pytest.raises(ValueError, match="takes no 'padding_mask'"):
        task({"images": np.zeros((1, *SIZE, 3)), "padding_mask": np.ones((1, *SIZE), bool)})


@pytest.mark.one_backend
def test_an_odd_map_is_averaged_over_the_places_that_there_are():
    """As PyTorch's average pooling with `ceil_mode`."""
    torch = pytest.importorskip("torch")
    from keras_transformer.layers.stems.resnet import _halved

    x = np.random.default_rng(0).normal(size=(2, 5, 7, 3)).astype("float32")
    pool = torch.nn.AvgPool2d(2, 2, 0, ceil_mode=True)
    expected = pool(torch.tensor(np.moveaxis(x, -1, 1).copy())).numpy()
    found = to_numpy(_halved(keras.ops.convert_to_tensor(x)))
    assert np.abs(np.moveaxis(found, -1, 1) - expected).max() <= 1e-6


@pytest.mark.each_backend
@pytest.mark.parametrize("kind", [DetectionLoss, VarifocalDetectionLoss])
def test_layers_have_a_loss_each(kind):
    random = np.random.default_rng(0)
    outputs = random.uniform(0.1, 0.9, (2, 3, 5, 4 + 3)).astype("float32")
    targets = random.uniform(0.2, 0.6, (2, 2, 5)).astype("float32")
    targets[..., 4] = [[1, 0], [2 if kind is VarifocalDetectionLoss else 0, -1]]
    loss, weights = kind(), np.array([1.0, 2.0], "float32")
    whole = float(loss(targets, outputs, sample_weight=weights))
    each = [float(loss(targets, outputs[:, i], sample_weight=weights)) for i in range(3)]
    assert whole == pytest.approx(sum(each), abs=1e-4)
    twice = [0, 1, 1]
    assert whole == pytest.approx(float(loss(targets[twice], outputs[twice])), abs=1e-4)
    assert kind.from_config(loss.get_config()).get_config() == loss.get_config()
