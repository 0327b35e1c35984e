"""Objects in the maps of an HGNet, with distributions of their edges: fit, files, graphs."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.training import EdgeDetectionLoss, VarifocalDetectionLoss
from tests.compiled import outputs_of
from tests.tasks.test_object_detector import LABELS, scenes

DECODER = {
    "num_queries": 6,
    "width": 16,
    "num_layers": 2,
    "num_heads": 2,
    "num_points": [2, 1],
    "intermediate_dim": 24,
    "join": "csp_elan",
    "join_depth": 0.4,
    "project_always": False,
    "value_projection": False,
    "gated": True,
    "edges": {"bins": 8, "quality_dim": 8},
    "num_denoising": 4,
}
SIZE = (32, 48)


def detector(stem=None, dtype=None, **decoder):
    """A detector of two maps with 4 x 6 and 2 x 3 places."""
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
            "kind": "hgnet",
            "image_size": (640, 640),
            "filters": [8, 8],
            "widths": [8, 12, 16],
            "inner_widths": [6, 6, 8],
            "depths": [1, 1, 1],
            "block_layers": [1, 2, 1],
            "kernel_sizes": [3, 3, 5],
            "light": [False, False, True],
            "affine": True,
            "num_maps": 1,
            "projection_norm": True,
            "positions": "counts",
            **(stem or {}),
        },
    )
    processor = kt.ImageProcessor(size=SIZE, family="RTDetr", mean=None, std=None)
    values = {**DECODER, **decoder}
    backbone = kt.models.Encoder(config, dtype=dtype)
    return kt.ObjectDetector(backbone, processor, labels=LABELS, box_decoder=values)


def test_a_detector_learns_boxes(tmp_path):
    images, objects = scenes(6)
    images[5], objects[5] = np.full((24, 32, 3), 120, "uint8"), {"boxes": [], "labels": []}
    keras.utils.set_random_seed(0)
    task = detector()
    assert isinstance(task.loss, EdgeDetectionLoss)
    task.compile(keras.optimizers.Adam(5e-3))
    history = task.fit(images, objects, epochs=60, batch_size=6, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] / 2
    assert np.isfinite(task.evaluate(images, objects, verbose=0))
    scores = kt.evaluating.evaluate_detector(task, images, objects)
    assert scores.ap50 > 0.3 and set(scores.classes) == set(LABELS)
    for name, initial in (("reach", 0.5), ("scale", 4.0)):
        assert to_numpy(task.head[f"decoder/edges/{name}"]) == initial

    result = task.detect(images, threshold=0.0)[1]
    assert len(result) == 6 and (np.diff(result.scores) <= 0).all()
    task.save_to_preset(tmp_path / "saved")
    again = kt.Task.from_preset(tmp_path / "saved")
    assert again.task_values() == task.task_values() and again.box_decoder["edges"]["top"] == 4
    saved = dict(again.head.items())
    for path, variable in task.head.items():
        assert np.array_equal(to_numpy(variable), to_numpy(saved[path])), path


def test_mixed_precision_learns_noisy_objects():
    """Their boxes, distributions and losses are finite, and the weights stay float32."""
    images, objects = scenes(4)
    keras.utils.set_random_seed(0)
    task = detector(dtype="mixed_bfloat16")
    task.compile(keras.optimizers.Adam(5e-3))
    history = task.fit(images, objects, epochs=12, batch_size=4, verbose=0).history
    assert np.isfinite(history["loss"]).all() and history["loss"][-1] < history["loss"][0]
    assert {each.dtype for each in task.trainable_weights} == {"float32"}
    result = task.detect(images, threshold=0.0)[0]
    assert np.isfinite(result.scores).all() and np.isfinite(result.boxes).all()


@pytest.mark.one_backend
def test_the_loss_of_a_step():
    """Distributions have a loss in `fit` alone, and only if the loss says so."""
    images, objects = scenes(3)
    task = detector(num_denoising=0)
    random = np.random.default_rng(0)
    for i in range(2):  # which are zeros at first, so that all distributions are alike
        kernel = task.head[f"decoder/boxes_{i}/output/kernel"]
        kernel.assign(random.normal(size=kernel.shape) * 0.5)
    x, y = task.make_dataset(images, objects)[0]
    weights = np.array([0.0, 1.0, 2.0], "float32")

    def value(training, x=x, y=y, weights=weights):
        step = task.step_loss()
        batch = step.batch(x, y, weights, training)
        states = step.states(batch[0], batch[2], training)
        return float(to_numpy(step.loss(states, *batch, training)))

    factors = {"localization": 0.0, "distillation": 0.0}
    found = {}
    for name, loss in {
        "all": EdgeDetectionLoss(),
        "localization": EdgeDetectionLoss(distillation=0.0),
        "none": EdgeDetectionLoss(**factors),
        "other": VarifocalDetectionLoss(),
    }.items():
        task.compile(loss=loss)
        found[name] = value(training=True)
        assert value(training=False) == pytest.approx(value(training=False))
    assert found["all"] > found["localization"] > found["none"] + 0.01
    assert found["none"] == pytest.approx(found["other"], abs=0.5)  # boxes within the image, or not

    # An image of the weight 2 counts as often, and one of 0 not at all. The batch norms of training
    # read images of any weight.
    task.compile(loss=EdgeDetectionLoss())
    step = task.step_loss()
    kept, _, _ = step.batch(x, y, None, True)
    states = step.states(kept, None, True)
    whole = step.loss(states, kept, y, weights, True)
    twice = np.array([1, 2, 2])
    states = keras.tree.map_structure(lambda t: t[twice] if t.ndim > 1 else t, states)
    kept = {name: keras.ops.convert_to_tensor(t)[twice] for name, t in kept.items()}
    again = step.loss(states, kept, y[twice], None, True)
    assert float(to_numpy(whole)) == pytest.approx(float(to_numpy(again)), abs=1e-3)
    outputs = task(x, training=True)
    assert outputs.shape == (3, 2 + 2, 6, 4 + 2)  # the chosen places, the first boxes, two layers
    loss = EdgeDetectionLoss(temperature=2.0, l1=1.0)
    assert type(loss).from_config(loss.get_config()).get_config() == loss.get_config()


@pytest.mark.one_backend
def test_files(tmp_path):
    task = detector()
    images, _ = scenes(1)
    expected = task.detect(images[0], threshold=0.0)
    task.save(tmp_path / "task.keras")
    again = keras.models.load_model(tmp_path / "task.keras")
    assert np.allclose(again.detect(images[0], threshold=0.0).boxes, expected.boxes, atol=1e-4)
    kt.export_to_huggingface(task, tmp_path / "theirs")
    other = kt.ObjectDetector.from_preset(tmp_path / "theirs", labels=["a", "b", "c"])
    others = dict(other.head.items())
    for path, variable in task.head.items():
        same = variable.shape == others[path].shape
        assert same == ("classes" not in path), path
        if same:
            assert np.array_equal(to_numpy(variable), to_numpy(others[path])), path


@pytest.mark.thorough
@pytest.mark.one_backend
def test_onnx_gives_the_same_outputs(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    task = detector(stem={"image_size": SIZE, "num_maps": 0}, num_layers=1, num_points=2)
    kt.export(task, tmp_path, format="onnx")
    pixels = np.random.default_rng(0).normal(size=(3, *SIZE, 3)).astype("float32")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    logits, boxes = session.run(None, {session.get_inputs()[0].name: pixels})
    found = outputs_of(task, {"images": pixels})
    assert np.abs(boxes - found[..., :4]).max() < 1e-5
    assert np.abs(logits - found[..., 4:]).max() < 1e-4


@pytest.mark.one_backend
def test_an_hgnet_before_a_decoder_of_queries():
    """A DETR of one, whose images of several sizes have a mask of their padding."""
    config = kt.TransformerConfig(
        kind="seq2seq",
        vocabulary_size=0,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=24,
        position="none",
        stem={"kind": "queries", "num_queries": 3},
        encoder={"stem": {**detector().backbone.config.stem.to_dict(), "positions": "shares"}},
    )
    task = kt.ObjectDetector(kt.models.Seq2Seq(config), num_classes=2)
    pixels = np.random.default_rng(0).normal(size=(1, 33, 47, 3)).astype("float32")
    mask = np.zeros((1, 33, 47), bool)
    mask[:, :20] = True
    whole = outputs_of(task, {"images": pixels})
    assert whole.shape == (1, 3, 4 + 3)
    assert np.abs(whole - outputs_of(task, {"images": pixels, "padding_mask": mask})).max() > 1e-4


@pytest.mark.one_backend
def test_wrong_values_are_refused():
    for values, message in (
        ({"num_points": [1, 2, 3]}, "must have a number for each of 2 maps"),
        ({"edges": {"bin": 8}}, "`edges` of the `box_decoder` must be a dict with keys among"),
        ({"edges": [8]}, "`edges` of the `box_decoder` must be a dict with keys among"),
        ({"edges": {"bins": 8.0}}, "`bins` must be an integer"),
        ({"join": "sum"}, "`join` must be"),
        ({"join_depth": 0.01}, "`join_depth` must leave at least one block"),
        ({"gated": 1}, "`gated` must be"),
        ({"num_points": []}, "`num_points` must be an integer, or one for each map"),
    ):
        with pytest.raises(ValueError, match=message):
            detector(**values)
    for stem, message in (
        ({"inner_widths": [4, 4]}, "`inner_widths` of the stem must have a value for each of 3"),
        ({"widths": [8, 13, 16]}, "`widths` of the stem must be 1 to 8 integers .* multiples of 2"),
        ({"filters": [8]}, "`filters` of the stem must be two integers"),
        ({"light": [False, True, 1]}, "`light` of the stem must be True or False"),
        ({"kernel_sizes": [3, 3, 33]}, "`kernel_sizes` of the stem must be odd numbers below 32"),
        ({"num_maps": 3}, "`num_maps` must be below the number of stages, 3"),
    ):
        with pytest.raises(ValueError, match=message):
            detector(stem=stem)
    for values in ({"distillation": -1}, {"temperature": 0}, {"localization": "much"}):
        with pytest.raises(ValueError, match="must be a number"):
            EdgeDetectionLoss(**values)
