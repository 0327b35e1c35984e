"""Boxes with classes: fit, results, loss, augmentation, files, scores, and wrong data."""

import json

import keras
import numpy as np
import pytest
from PIL import Image

import keras_transformer as kt
from keras_transformer.kernels.assignment import assign
from keras_transformer.tasks.heads.detection_head import found_objects
from keras_transformer.tasks.images.objects import read_objects
from keras_transformer.training import DetectionLoss
from tests.tasks.images import patches

LABELS = ["dark", "bright"]
TOKENS = 4


def detector(labels=LABELS, size=(12, 16), **options):
    backbone = kt.models.Encoder(patches(num_detection_tokens=TOKENS, mid_positions=1))
    return kt.ObjectDetector(backbone, kt.ImageProcessor(size=size), labels=labels, **options)


def scenes(count=8, size=(24, 32), seed=0):
    """Grey images with a bright rectangle, half of them with a dark one too."""
    random, images, objects = np.random.default_rng(seed), [], []
    for i in range(count):
        image = np.full((*size, 3), 120, "uint8")
        found = {"boxes": [], "labels": []}
        for n in range(1 + i % 2):
            left, top = int(random.integers(1, 5)) + 15 * n, int(random.integers(1, 12))
            box = [left, top, left + 10, top + 9]
            image[top : top + 9, left : left + 10] = 0 if n else 255
            found["boxes"].append(box)
            found["labels"].append(LABELS[0 if n else 1])
        images.append(image)
        objects.append(found)
    return images, objects


def targets_and_outputs(classes=4, predictions=7, counts=(3, 0, 5), seed=0):
    """Targets of a batch, padded, and outputs of random boxes."""
    random = np.random.default_rng(seed)
    outputs = random.normal(size=(len(counts), predictions, 4 + classes + 1)).astype("float32")
    outputs[..., :4] = 1 / (1 + np.exp(-outputs[..., :4]))
    targets = np.zeros((len(counts), max(counts), 5), "float32")
    targets[..., 4] = -1
    for row, count in zip(targets, counts, strict=True):
        places = random.permutation(max(counts))[:count]  # padding may stand anywhere
        row[places, :4] = random.uniform(0.2, 0.6, (count, 4))
        row[places, 4] = random.integers(0, classes, count)
    return targets, outputs


def value_and_gradient(function, x):
    """A function of an array, as compiled steps of the backend compute it."""
    backend = keras.backend.backend()
    if backend == "torch":
        x = keras.ops.convert_to_tensor(x).requires_grad_()
        value = function(x)
        value.backward()
        return float(value.detach()), x.grad.cpu().numpy()
    if backend == "jax":
        import jax

        value, gradient = jax.jit(jax.value_and_grad(function))(x)
        return float(value), np.asarray(gradient)
    import tensorflow as tf

    @tf.function
    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = function(x)
        return value, tape.gradient(value, x)

    value, gradient = both(tf.constant(x))
    return float(value), gradient.numpy()


@pytest.mark.each_backend
@pytest.mark.parametrize("factors", [(5.0, 2.0, 0.1), (1.0, 3.0, 0.5)])
def test_the_loss_is_that_of_transformers(factors):
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.loss.loss_for_object_detection")
    targets, outputs = targets_and_outputs()
    labels = [
        {
            "class_labels": torch.tensor(row[row[:, 4] >= 0, 4]).long(),
            "boxes": torch.tensor(row[row[:, 4] >= 0, :4]),
        }
        for row in targets
    ]
    l1, giou, no_object = factors
    matcher = theirs.HungarianMatcher(class_cost=1, bbox_cost=l1, giou_cost=giou)
    criterion = theirs.ImageLoss(matcher, 4, no_object, ["labels", "boxes"])
    given = torch.tensor(outputs, requires_grad=True)
    parts = criterion({"logits": given[..., 4:], "pred_boxes": given[..., :4]}, labels)
    expected = parts["loss_ce"] + l1 * parts["loss_bbox"] + giou * parts["loss_giou"]
    expected.backward()
    loss = DetectionLoss(l1=l1, giou=giou, no_object=no_object)
    value, gradient = value_and_gradient(lambda x: loss(targets, x), outputs)
    assert abs(value - float(expected.detach())) <= 1e-5
    assert np.abs(gradient - given.grad.numpy()).max() <= 1e-5
    # An image with the weight 2 counts as two images.
    twice = [0, 1, 2, 2]
    weighted = loss(targets, outputs, sample_weight=np.array([1.0, 1.0, 2.0], "float32"))
    assert float(weighted) == pytest.approx(float(loss(targets[twice], outputs[twice])), abs=1e-5)


@pytest.mark.each_backend
def test_pairs_have_the_least_cost():
    costs = np.array([[[4.0, 1, 3], [2, 0, 5]], [[np.nan, 2, 1], [9, 9, 9]]], "float32")
    real = np.array([[True, True], [True, False]])
    found = keras.ops.convert_to_numpy(assign(costs, real))
    assert found.tolist() == [[1, 0], [2, 0]]  # 1 + 2 is less than any other sum


@pytest.mark.each_backend
def test_a_detector_learns_boxes(tmp_path):
    images, objects = scenes()
    keras.utils.set_random_seed(0)
    task = detector()
    task.compile(keras.optimizers.Adam(1e-2), augmentation=[keras.layers.RandomFlip(seed=0)])
    empty = {"boxes": [], "labels": []}
    images, objects = [*images, np.full((24, 32, 3), 120, "uint8")], [*objects, empty]
    history = task.fit(images, objects, epochs=80, batch_size=9, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] / 2
    assert np.isfinite(task.evaluate(images, objects, verbose=0))
    scores = kt.evaluating.evaluate_detector(task, images, objects)
    assert scores.ap50 > 0.3 and set(scores.classes) == set(LABELS)

    result = task.detect(images[1], threshold=0.0)
    assert len(result) == TOKENS and (np.diff(result.scores) <= 0).all()
    several = task.detect([images[1], images[0][:20]], threshold=0.3)
    assert np.allclose(several[0].boxes, result.boxes[result.scores > 0.3], atol=1e-3)
    task.save_to_preset(tmp_path / "saved")
    again = kt.Task.from_preset(tmp_path / "saved")
    assert again.task_values() == task.task_values()
    assert np.allclose(again.detect(images[1], threshold=0.0).boxes, result.boxes, atol=1e-3)


def query_detector(size=(24, 32), num_layers=1, **options):
    """A ResNet and a decoder of object queries."""
    config = kt.TransformerConfig(
        kind="seq2seq",
        vocabulary_size=0,
        hidden_dim=16,
        num_layers=num_layers,
        num_heads=2,
        intermediate_dim=24,
        position="none",
        stem={"kind": "queries", "num_queries": TOKENS},
        encoder={"stem": {"kind": "resnet", "filters": 8, "widths": [16], "depths": [1]}},
        decoder={"final_normalization": True},
    )
    processor = kt.ImageProcessor(size=size, family="Detr")
    return kt.ObjectDetector(kt.models.Seq2Seq(config), processor, labels=LABELS, **options)


@pytest.mark.each_backend
def test_a_decoder_of_queries_learns_boxes(tmp_path):
    """Images of two sizes, of which a batch pads the smaller ones."""
    keras.utils.set_random_seed(0)
    task = query_detector(size={"shortest_edge": 24})
    images, objects = scenes(4)
    images = [np.pad(image, ((0, 0), (0, 8 * (i % 2)), (0, 0))) for i, image in enumerate(images)]
    x, y = task.make_dataset(images, objects)[0]
    assert x["images"].shape == (4, 24, 40, 3) and x["padding_mask"].sum() == 24 * (32 + 40) * 2
    left, _, right, _ = objects[0]["boxes"][0]
    assert y[0, 0, 0] == pytest.approx((left + right) / 2 / 32)  # a share without the padding
    before = {w.path: keras.ops.convert_to_numpy(w) for w in task.backbone.encoder_stem.weights}
    task.compile(keras.optimizers.Adam(1e-2))
    losses = task.fit(images, objects, epochs=80, batch_size=4, verbose=0).history["loss"]
    assert np.mean(losses[-10:]) < losses[0] / 2  # a single step may leap
    assert np.isfinite(task.evaluate(images, objects, verbose=0))
    for weight in task.backbone.encoder_stem.weights:
        same = np.array_equal(before[weight.path], keras.ops.convert_to_numpy(weight))
        assert same == ("frozen_norm" in weight.path), weight.path
    task.save_to_preset(tmp_path / "saved")
    again = kt.Task.from_preset(tmp_path / "saved")
    result = task.detect(images[1], threshold=0.0)
    assert np.allclose(again.detect(images[1], threshold=0.0).boxes, result.boxes, atol=1e-3)
    task.compile(augmentation=[keras.layers.RandomFlip()])
    with pytest.raises(ValueError, match="`augmentation` needs images of one size"):
        task.fit(images, objects, batch_size=4, verbose=0)


@pytest.mark.each_backend
def test_images_of_other_sizes_in_turn():
    """In one data set, and one call after the other."""
    task = query_detector(size={"shortest_edge": 24})
    images, objects = scenes(3)
    images = [np.pad(x, ((0, 0), (0, 8 * i), (0, 0))) for i, x in enumerate(images)]
    for image in images:
        x = task.make_dataset([image])[0][0]
        found = task.detect(image, threshold=0.0)
        best = keras.ops.softmax(task(x)[0, :, 4:], axis=-1)[:, :-1]
        assert sorted(found.scores) == pytest.approx(
            sorted(keras.ops.convert_to_numpy(keras.ops.max(best, axis=-1))), abs=1e-4
        )
    alone = [
        task.evaluate([image], [of], verbose=0) for image, of in zip(images, objects, strict=True)
    ]
    assert task.evaluate(images, objects, batch_size=1, verbose=0) == pytest.approx(
        np.mean(alone), rel=1e-4
    )
    losses = task.fit(images, objects, batch_size=1, epochs=2, verbose=0).history["loss"]
    assert np.isfinite(losses).all()


@pytest.mark.each_backend
def test_each_layer_of_a_decoder_learns(tmp_path):
    """`fit` sums the losses of all layers, `evaluate` has that of the last one."""
    keras.utils.set_random_seed(0)
    task = query_detector(num_layers=2, auxiliary_loss=True)
    images, objects = scenes(4)
    task.compile(keras.optimizers.Adam(0.0))  # the weights stay as they are
    task.backbone.trainable = False
    first = task.fit(images, objects, batch_size=4, verbose=0).history["loss"][0]
    x, y = task.make_dataset(images, objects)[0]
    both = task(x, training=True)
    assert both.shape == (4, 2, TOKENS, 4 + 3)
    both = keras.ops.convert_to_numpy(both)
    losses = [float(task.loss(y, both[:, i])) for i in range(2)]
    assert first == pytest.approx(sum(losses), abs=1e-3)
    assert task.evaluate(images, objects, verbose=0) == pytest.approx(losses[1], abs=1e-3)
    assert np.allclose(keras.ops.convert_to_numpy(task(x)), both[:, 1], atol=1e-5)
    task.save_to_preset(tmp_path / "saved")
    task.save(tmp_path / "task.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "saved"),
        keras.models.load_model(tmp_path / "task.keras"),
    ):
        assert again.auxiliary_loss
    assert not kt.Task.from_preset(tmp_path / "saved", auxiliary_loss=False).auxiliary_loss
    with pytest.raises(ValueError, match="detection tokens are states of an encoder"):
        detector(auxiliary_loss=True)
    with pytest.raises(ValueError, match="`auxiliary_loss` must be True or False"):
        query_detector(auxiliary_loss="all")


@pytest.mark.one_backend
def test_queries_are_for_detectors(tmp_path):
    task = query_detector(class_layers=1)
    for kind, needed in ((kt.Seq2SeqLM, "reads object queries"), (kt.ImageToText, "reads object")):
        with pytest.raises(ValueError, match=needed):
            kind(task.backbone)
    config = task.backbone.config
    for wrong, message in (
        ({"kind": "encoder", "encoder": None, "decoder": None}, "is for the decoder"),
        ({"position": "learned"}, "needs position='none'"),
        ({"projector": "linear"}, "cannot be combined"),
    ):
        with pytest.raises(ValueError, match=message):
            kt.TransformerConfig(**{**config.stated(), **wrong})
    with pytest.raises(ValueError, match="takes no 'encoder_states'"):
        task.backbone({"encoder_images": np.zeros((1, 24, 32, 3), "float32"), "encoder_states": 1})
    task.save(tmp_path / "task.keras")
    again = keras.models.load_model(tmp_path / "task.keras")
    images, _ = scenes(1)
    expected = task.detect(images[0], threshold=0.0)
    assert np.allclose(again.detect(images[0], threshold=0.0).boxes, expected.boxes, atol=1e-4)


@pytest.mark.one_backend
def test_a_keras_file(tmp_path):
    task = detector(class_layers=1)
    task.compile(augmentation=[keras.layers.RandomTranslation(0.1, 0.1)])
    task.save(tmp_path / "task.keras")
    again = keras.models.load_model(tmp_path / "task.keras")
    images, objects = scenes(2)
    expected = task.detect(images[0], threshold=0.0)
    assert np.allclose(again.detect(images[0], threshold=0.0).boxes, expected.boxes, atol=1e-4)
    assert np.isfinite(again.fit(images, objects, verbose=0).history["loss"][0])


LAYERS = {
    "flip": lambda: keras.layers.RandomFlip(seed=3),
    "shift": lambda: keras.layers.RandomTranslation(
        0.3, 0.3, seed=4, fill_mode="constant", interpolation="nearest"
    ),
    "crop": lambda: keras.layers.RandomCrop(10, 13, seed=5),
    "brightness": lambda: keras.layers.RandomBrightness(0.1, value_range=(0, 1), seed=6),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_augmentation_moves_boxes_with_images(layer):
    """The box of a moved image is that of its bright pixels."""
    random = np.random.default_rng(0)
    images, objects = [], []
    for _ in range(8):
        x, y = int(random.integers(0, 10)), int(random.integers(0, 7))
        images.append(np.zeros((12, 16, 3), "uint8"))
        images[-1][y : y + 5, x : x + 6] = 255
        objects.append({"boxes": [[x, y, x + 6, y + 5]], "labels": ["bright"]})
    task = detector()
    task.processor.mean = task.processor.std = None
    task.compile(augmentation=[LAYERS[layer]()])
    loss = task.step_loss()
    x, y = task.make_dataset(images, objects)[0]
    moved, targets, _ = loss.batch(x, y, None, training=True)
    pixels = keras.ops.convert_to_numpy(moved["images"])[..., 0] > 0.5
    targets, sides = keras.ops.convert_to_numpy(targets), np.array([*pixels.shape[:0:-1]] * 2)
    seen = 0
    for shown, target in zip(pixels, targets, strict=True):
        rows, columns = np.nonzero(shown)
        known = target[target[:, 4] >= 0]
        if len(known):
            center, size = known[0, :2] * sides[:2], known[0, 2:4] * sides[:2]
            found = [*(center - size / 2), *(center + size / 2)]
            expected = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert np.abs(np.subtract(found, expected)).max() <= 1  # of interpolation
            assert known[0, 4] == 1
            seen += 1
        else:
            assert len(rows) == 0 or min(np.ptp(rows), np.ptp(columns)) < 2
    assert seen >= 4
    assert loss.batch(x, y, None, training=False)[1] is y


@pytest.mark.one_backend
def test_crops_cut_boxes():
    task = detector(size=None)
    task.processor = kt.ImageProcessor(size=(24, 32), crop_size=(12, 16))
    boxes = [[0, 0, 16, 12], [0, 0, 4, 4]]  # of 48 x 64: the second one is beside the crop
    _, y = task.make_dataset(
        [np.zeros((48, 64, 3), "uint8")],
        [{"bbox": [[24, 20, 16, 12], [0, 0, 4, 4]], "category": ["dark", 1]}],
    )[0]
    expected = np.array([[4 / 16, 4 / 12, 12 / 16, 10 / 12]])
    center, size = (expected[:, :2] + expected[:, 2:]) / 2, expected[:, 2:] - expected[:, :2]
    assert np.allclose(y[0, 0, :4], np.concatenate([center, size], axis=1)[0], atol=1e-6)
    assert y[0, 0, 4] == 0 and (y[0, 1:, 4] == -1).all() and len(boxes) == 2
    with pytest.raises(ValueError, match="would cover a part of each image"):
        task.detect(np.zeros((48, 64, 3), "uint8"))


@pytest.mark.one_backend
def test_small_boxes_are_no_shares():
    (boxes, _) = read_objects({"boxes": [[0, 0, 1, 1]], "labels": [0]}, (24, 32), 2, None)
    assert boxes.tolist() == [[0, 0, 1, 1]]
    given = {"boxes": [[0.25, 0, 0.75, 1], [5, 6, 9, 9]], "labels": [0, 1]}
    assert read_objects(given, (24, 32), 2, None)[0][0].tolist() == [0.25, 0, 0.75, 1]


@pytest.mark.one_backend
def test_metrics_of_batches_are_refused():
    with pytest.raises(ValueError, match="cannot compute the metric 'accuracy'.*evaluate_detector"):
        detector().compile(metrics=["accuracy"])


@pytest.mark.one_backend
def test_wrong_data_is_refused_before_work():
    task = detector()
    images, objects = scenes(2)
    box = [1, 1, 5, 5]

    def with_boxes(*boxes, labels=None):
        return {"boxes": list(boxes), "labels": [0] * len(boxes) if labels is None else labels}

    for wrong, message in (
        ([objects[0]], "one for each of 2 images, received 1"),
        (objects[0], "must be a list of objects"),
        ([objects[0], 7], r"`y\[1\]` must be a dict with 'boxes' and 'labels'"),
        ([objects[0], {"boxes": [box]}], r"`y\[1\]` must have the key 'boxes'"),
        ([objects[0], with_boxes([1, 1, 40, 5])], r"not within its image of 32 x 24 pixels"),
        ([objects[0], with_boxes([-3, 1, 4, 5])], "not within its image"),
        ([objects[0], with_boxes([5, 1, 5, 5])], "has no area"),
        ([objects[0], with_boxes([9, 9, 5, 5])], "has no area.*width, height.*name them 'bbox'"),
        ([objects[0], {"bbox": [[20, 9, 28, 15]], "labels": [0]}], r"20.*28.*name them 'boxes'"),
        ([objects[0], with_boxes([0.1, 0.2, 0.5, 1.0])], "Multiply x and widths by 32, y and"),
        ([objects[0], {"bbox": [[0.1, 0.2, 0.5, 0.7]], "labels": [0]}], "they seem to be shares"),
        ([objects[0], with_boxes([1, 1, float("nan"), 5])], "four finite numbers"),
        ([objects[0], with_boxes([1, 1, 5])], "four finite numbers"),
        ([objects[0], with_boxes(box, labels=["grey"])], r"`y\[1\]`, object 0: the label 'grey'"),
        ([objects[0], with_boxes(box, labels=[2])], "the label 2 is not known"),
        ([objects[0], with_boxes(box, labels=[0, 1])], "1 boxes and 2 classes"),
        ([objects[0], with_boxes(*[box] * 5)], r"5 objects, but this model finds at most 4"),
        ([objects[0], [{"bbox": box, "category": 0}, {"bbox": box}]], "different keys"),
        ([objects[0], [box]], "a list of dicts of one object"),
    ):
        with pytest.raises(ValueError, match=message):
            task.fit(images, wrong, verbose=0)
    with pytest.raises(ValueError, match="`class_weight` is not for images"):
        task.fit(images, objects, class_weight={0: 2.0}, verbose=0)
    with pytest.raises(ValueError, match="learns from labels"):
        task.fit(images, verbose=0)
    with pytest.raises(ValueError, match="`threshold` must be a number from 0 to 1"):
        task.detect(images[0], threshold=2)
    with pytest.raises(ValueError, match="takes no boxes"):
        task.compile(augmentation=[keras.layers.Rescaling(2.0)])
    with pytest.raises(ValueError, match="has bounding_box_format='xywh'"):
        task.compile(augmentation=[keras.layers.RandomFlip(bounding_box_format="xywh")])
    with pytest.raises(ValueError, match="RandomCrop has 30 x 30 pixels"):
        task.compile(augmentation=[keras.layers.RandomCrop(30, 30)])
        task.fit(images, objects, verbose=0)
    with pytest.raises(ValueError, match="needs a backbone with detection tokens"):
        kt.ObjectDetector(kt.models.Encoder(patches()), num_classes=2)
    with pytest.raises(ValueError, match="without `num_detection_tokens`"):
        kt.ImageSegmenter(kt.models.Encoder(patches(num_detection_tokens=2)), num_classes=2)
    with pytest.raises(ValueError, match="`mid_positions` must be at most num_layers=1"):
        patches(mid_positions=2)
    assert task.make_dataset(images, [{}, []])[0][1][..., 4].max() == -1  # images may be empty
    assert detector(labels=["one"]).num_classes == 1


@pytest.mark.one_backend
def test_onnx_gives_the_same_outputs(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    task = detector()
    kt.export(task, tmp_path, format="onnx")
    pixels = np.random.default_rng(0).normal(size=(3, 12, 16, 3)).astype("float32")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    assert [each.name for each in session.get_outputs()] == ["logits", "pred_boxes"]
    logits, boxes = session.run(None, {session.get_inputs()[0].name: pixels})
    expected = keras.ops.convert_to_numpy(task({"images": pixels}))
    assert np.abs(boxes - expected[..., :4]).max() < 1e-5
    assert np.abs(logits - expected[..., 4:]).max() < 1e-4


@pytest.mark.one_backend
def test_rows_of_a_table():
    datasets = pytest.importorskip("datasets")
    images, objects = scenes(4)
    boxes = [[[a, b, c - a, d - b] for a, b, c, d in each["boxes"]] for each in objects]
    rows = [
        {"bbox": own, "category": [LABELS.index(n) for n in each["labels"]]}
        for own, each in zip(boxes, objects, strict=True)
    ]
    columns = {"image": [Image.fromarray(x) for x in images], "objects": rows}
    table = datasets.Dataset.from_dict(columns)
    task = detector()
    keras.utils.set_random_seed(0)
    assert np.isfinite(task.fit(table, epochs=1, verbose=0).history["loss"][0])
    expected, found = (task.make_dataset(images, each)[0][1] for each in (objects, rows))
    assert np.allclose(expected, found, atol=1e-6)
    listed = [
        [dict(zip(row, pair, strict=True)) for pair in zip(*row.values(), strict=True)]
        for row in rows
    ]
    assert np.allclose(task.make_dataset(images, listed)[0][1], expected, atol=1e-6)


@pytest.mark.backend_independent
def test_files_of_coco_and_voc(tmp_path):
    images, objects = scenes(3)
    names = [f"{i}.png" for i in range(3)]
    for image, name in zip(images, names, strict=True):
        Image.fromarray(image).save(tmp_path / name)
    numbers = {"dark": 3, "bright": 18}
    rows = [
        {
            "image_id": 10 * i,
            "category_id": numbers[label],
            "bbox": [a, b, c - a, d - b],
            "iscrowd": 0,
        }
        for i, each in enumerate(objects)
        for (a, b, c, d), label in zip(each["boxes"], each["labels"], strict=True)
    ]
    beside = {"image_id": 0, "category_id": 3, "bbox": [1, 1, 5, 5], "iscrowd": 1}
    empty = {"image_id": 0, "category_id": 3, "bbox": [1, 1, 0, 5]}
    data = {
        "images": [{"id": 10 * i, "file_name": name} for i, name in enumerate(names)],
        "annotations": [*rows, beside, empty],
        "categories": [{"id": n, "name": name} for name, n in numbers.items()],
    }

    def coco(**changed):
        (tmp_path / "coco.json").write_text(json.dumps({**data, **changed}))
        return kt.processors.read_coco(tmp_path / "coco.json", tmp_path)

    paths, found, labels = coco()
    assert paths == [str(tmp_path / name) for name in names]
    assert found == objects and labels == LABELS
    for changed, message in (
        ({"annotations": 3}, "must have 'annotations', a list of objects"),
        ({"annotations": [{**rows[0], "image_id": 5}]}, "annotation 0 has the image_id 5"),
        ({"annotations": [{**rows[0], "bbox": [1, 2]}]}, "bbox of annotation 0 must be four"),
        ({"categories": [{"id": "a", "name": "dog"}]}, "'id' must be an integer"),
        ({"images": [{"id": 1, "file_name": "../1.png"}]}, "must be inside"),
    ):
        with pytest.raises(ValueError, match=message):
            coco(**changed)
    with pytest.raises(FileNotFoundError, match=r"There is no image 'a\.png'"):
        coco(images=[{"id": 0, "file_name": "a.png"}], annotations=[])

    folder = tmp_path / "Annotations"
    folder.mkdir()

    def write(i, each, start=""):
        lines = [f"{start}<annotation><filename>{names[i]}</filename>"]
        for (a, b, c, d), label in zip(each["boxes"], each["labels"], strict=True):
            corners = zip(("xmin", "ymin", "xmax", "ymax"), (a + 1, b + 1, c, d), strict=True)
            box = "".join(f"<{n}>{value}</{n}>" for n, value in corners)
            lines.append(f"<object><name>{label}</name><bndbox>{box}</bndbox></object>")
        (folder / f"{i}.xml").write_text("\n".join([*lines, "</annotation>"]))

    for i, each in enumerate(objects):
        write(i, each)
    paths, found, labels = kt.processors.read_voc(folder, tmp_path)
    assert paths == [str(tmp_path / name) for name in names]
    assert found == objects and labels == sorted(LABELS)
    write(0, objects[0], '<!DOCTYPE a [<!ENTITY b "c">]>')
    with pytest.raises(ValueError, match="it has a document type"):
        kt.processors.read_voc(folder, tmp_path)
    (folder / "0.xml").write_text("<annotation><object><name>dog</name></object></annotation>")
    with pytest.raises(FileNotFoundError, match="There is no image"):
        kt.processors.read_voc(folder, folder)
    with pytest.raises(ValueError, match="object 0 must have a name and a bndbox"):
        kt.processors.read_voc(folder, tmp_path)


@pytest.mark.backend_independent
def test_average_precision_is_known():
    """Two of three objects are found; a false one lies between them in score."""
    image = np.zeros((100, 100, 3), "uint8")
    known = {"boxes": [[0, 0, 50, 50], [60, 60, 90, 90], [0, 70, 20, 90]], "labels": ["a"] * 3}
    # The second one has an intersection over union of 20 x 30 / 30 x 30, 2 / 3.
    boxes = np.array([[0, 0, 50, 50], [50, 0, 80, 30], [60, 60, 80, 90]], "float32")
    found = kt.tasks.Detection(boxes, ["a"] * 3, np.array([0.9, 0.8, 0.7], "float32"), image)
    scores = kt.evaluating.DetectionScores.of([known], [found], ["a", "b"])
    # Precision is 1 up to a recall of 1/3, that is for 34 of COCO's 101 recalls, and for thresholds
    # up to 0.65 it is 2/3 up to a recall of 2/3, for 33 more.
    low, high = (34 + 33 * 2 / 3) / 101, 34 / 101
    assert scores.ap50 == pytest.approx(low, abs=1e-6)
    assert scores.ap75 == pytest.approx(high, abs=1e-6)
    assert scores.ap == pytest.approx((4 * low + 6 * high) / 10, abs=1e-6)
    assert scores.classes["a"] == scores.ap and np.isnan(scores.classes["b"])
    nothing = kt.tasks.Detection(boxes[:0], [], np.zeros(0, "float32"), image)
    assert kt.evaluating.DetectionScores.of([known], [nothing], ["a"]).ap == 0
    assert np.isnan(kt.evaluating.DetectionScores.of([{}], [nothing], ["a"]).ap)
    with pytest.raises(ValueError, match="as many detections as images"):
        kt.evaluating.DetectionScores.of([known, known], [found], ["a"])


@pytest.mark.backend_independent
def test_plots():
    pytest.importorskip("matplotlib")
    boxes = np.array([[2, 3, 8, 9], [1, 1, 4, 5]], "float32")
    image = np.zeros((10, 12, 3), "uint8")
    result = kt.tasks.Detection(boxes, ["cat", "dog"], np.array([0.9, 0.6], "float32"), image)
    (axis,) = result.plot().axes
    assert [patch.get_bbox().extents.tolist() for patch in axis.patches] == boxes.tolist()
    assert [text.get_text() for text in axis.texts] == ["cat 0.90", "dog 0.60"]


@pytest.mark.backend_independent
def test_results_are_those_of_transformers():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.yolos.image_processing_pil_yolos import YolosImageProcessorPil
    from transformers.models.yolos.modeling_yolos import YolosObjectDetectionOutput

    _, outputs = targets_and_outputs()
    theirs = YolosObjectDetectionOutput(
        logits=torch.tensor(outputs[..., 4:]), pred_boxes=torch.tensor(outputs[..., :4])
    )
    sizes = [(21, 30), (40, 17), (9, 9)]
    expected = YolosImageProcessorPil().post_process_object_detection(
        theirs, threshold=0.0, target_sizes=sizes
    )
    for own, each, size in zip(outputs, expected, sizes, strict=True):
        boxes, classes, scores = found_objects(own, size)
        assert np.abs(boxes - each["boxes"].numpy()).max() <= 1e-4
        assert np.array_equal(classes, each["labels"].numpy())
        assert np.abs(scores - each["scores"].numpy()).max() <= 1e-6
