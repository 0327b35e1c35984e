"""Object detection: boxes with classes in images."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels import assignment
from keras_transformer.layers.arguments import agree, known_shape, show_shape
from keras_transformer.layers.denoising import repeated
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.processors import ImageProcessor
from keras_transformer.processors.image_files import image_size
from keras_transformer.support.checking import check_number
from keras_transformer.tasks.heads.detection_head import BOXES, CLASSES, DetectionHead
from keras_transformer.tasks.images.located import LocatedTask, MovedTargets, Targets
from keras_transformer.tasks.images.map_plots import draw_objects
from keras_transformer.tasks.images.objects import read_objects
from keras_transformer.tasks.media.augmentation import augmentation_of
from keras_transformer.training.losses.detection_loss import (
    DetectionLoss,
    EdgeDetectionLoss,
    corners,
)

# Targets of a batch are padded to a multiple of this, so that few shapes are compiled.
_STEP = 8
# The least width and height, in pixels, of a box of which an augmentation left a part.
_LEAST_SIDE = 1.0
# How layers of Keras are given boxes: corners in pixels.
_FORMAT = "xyxy"


@dataclasses.dataclass(frozen=True)
class Detection:
    """The objects that were found in an image, the likeliest first.

    Attributes:
        boxes: float32 `(objects, 4)`, x_min, y_min, x_max and y_max in pixels of the image. A box
            may reach beyond the image.
        labels: list of str, the class of each object.
        scores: float32 `(objects,)`, the probability of its class.
        image: the image as it was given.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    boxes = np.array([[2, 3, 8, 9]], "float32")
    image = np.zeros((10, 10, 3), "uint8")
    result = kt.tasks.Detection(boxes, ["cat"], np.array([0.9], "float32"), image)
    assert [(label, box.tolist()) for label, box in zip(result.labels, result.boxes)] == [
        ("cat", [2, 3, 8, 9])
    ]
    ```
    """

    boxes: np.ndarray
    labels: list[str]
    scores: np.ndarray
    image: Any = dataclasses.field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def plot(self) -> Any:
        """Draw the image with the boxes, each with its class and score.

        Returns:
            A `matplotlib.figure.Figure`.

        Raises:
            ImportError: if matplotlib is not installed.
        """
        return draw_objects(self.image, self.boxes, self.labels, self.scores)


class Objects(Targets):
    """Boxes with classes, see `read_objects`, as `training.DetectionLoss` takes them."""

    name = "objects"

    def read(self, task, images, given):
        _require_scipy()
        found, count = [], task.head.count
        for i in range(len(images)):
            size = tuple(image_size(images[i], f"x[{i}]"))
            read = read_objects(given[i], size, task.num_classes, task.labels, f"y[{i}]")
            if len(read[0]) > count:
                raise ValueError(
                    f"`y[{i}]` has {len(read[0])} objects, but this model finds at most {count}, "
                    "its `num_detection_tokens` or `num_queries`."
                )
            found.append((size, *read))
        most = max(len(boxes) for _, boxes, _ in found)
        most = max(-(-most // _STEP) * _STEP, 1)

        def target_of(i: int) -> np.ndarray:
            size, boxes, classes = found[i]
            boxes = task.processor.map_boxes(boxes, size)
            target = np.zeros((most, 5), "float32")
            target[:, 4] = -1
            kept = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)  # in the crop, if there is one
            boxes, classes = boxes[kept], classes[kept]
            target[: len(boxes), :2] = (boxes[:, :2] + boxes[:, 2:]) / 2
            target[: len(boxes), 2:4] = boxes[:, 2:] - boxes[:, :2]
            target[: len(boxes), 4] = classes
            return target

        return target_of

    def moved(self, images, targets, layers):
        boxes, classes = corners(targets), targets[..., 4]
        boxes = boxes * _sides(images)
        for layer in layers:
            if isinstance(layer, keras.layers.RandomCrop):
                images, boxes = _cropped(layer, images, boxes)
                continue
            labels = ops.cast(classes, "int32")
            given = {"images": images, "bounding_boxes": {"boxes": boxes, "labels": labels}}
            moved = layer(given, training=True)
            images, boxes = moved["images"], ops.cast(moved["bounding_boxes"]["boxes"], boxes.dtype)
        sides = _sides(images)
        boxes = ops.minimum(ops.maximum(boxes, 0), sides)
        least = ops.min(boxes[..., 2:] - boxes[..., :2], axis=-1)
        classes = ops.where(least < _LEAST_SIDE, -1, classes)
        boxes = boxes / sides
        centers, lengths = (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
        return images, ops.concatenate([centers, lengths, classes[..., None]], axis=-1)


class DecodedTargets(MovedTargets):
    """The loss of predictions, and of what the decoder makes with the targets.

    These are queries of noisy objects, and distributions of edges.
    """

    def batch(self, x, y, sample_weight, training):
        x, y, sample_weight = super().batch(x, y, sample_weight, training)
        if training:
            y = ops.convert_to_tensor(y)
            x = {**x, BOXES: y[..., :4], CLASSES: ops.cast(y[..., 4], "int32")}
        return x, y, sample_weight

    def loss(self, states, x, y, sample_weight, training):
        if not training:
            return super().loss(states, x, y, sample_weight, training)
        model, loss = self.model, self.model.loss
        edges = "found_edges" in states and isinstance(loss, EdgeDetectionLoss)
        further = []
        if edges:
            value = loss.of_layers(y, states["found"], states["found_edges"], sample_weight)
            further += model.losses
        else:
            value = super().loss(states["found"], x, y, sample_weight, training)
        if "denoised" in states:
            boxes, classes, _ = repeated(x[BOXES], x[CLASSES], model.head.num_denoising)
            targets = ops.concatenate([boxes, ops.cast(classes, boxes.dtype)[..., None]], axis=-1)
            found = states["denoised"]
            if edges:
                given = targets, found, states["denoised_edges"], sample_weight
                further.append(loss.of_layers(*given, known=True))
            else:
                further.append(loss.of_known_pairs(targets, found, sample_weight))
        # As Keras adds losses of layers: each of several replicas has its share.
        return value + sum(model._aggregate_additional_loss(each) for each in further)

    def logs(self, states, x, y, sample_weight):
        states = states["found"] if isinstance(states, dict) else states
        return super().logs(states, x, y, sample_weight)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ObjectDetector(LocatedTask):
    """A vision transformer with detection tokens (YOLOS) or object queries (DETR, RT-DETR, D-FINE).

    Each token or query may find an object. Two perceptrons on its state give the logits of its
    class, one of which is "no object", and its box. On an `Encoder` of the last map of a ResNet or
    HGNet, queries are chosen among the places of the maps, each layer of a decoder refines their
    boxes (RT-DETR) or distributions of the boxes' edges (D-FINE), and each class has a probability
    of its own.

    `fit` takes images and for each a dict of its objects: `boxes`, a list of (x_min, y_min, x_max,
    y_max) in pixels, and `labels`, a list of names or numbers of classes. With `bbox` the boxes are
    (x_min, y_min, width, height), as in COCO, and the classes may be named `category`. An image may
    have no object. `processors.read_coco` and `processors.read_voc` read folders, and a table of
    `datasets` needs the columns `image` and `objects`.

    On maps `fit` adds queries of noisy objects, `num_denoising` of the `box_decoder`, and their
    loss, if the loss is a `training.DetectionLoss`; and with `edges` losses of distributions, if it
    is a `training.EdgeDetectionLoss`.

    Compiled with AdamW (5e-5) and `training.DetectionLoss`, for maps
    `training.VarifocalDetectionLoss`, with `edges` `training.EdgeDetectionLoss`; SciPy pairs
    predictions with objects.
    `compile` changes this, and takes an `augmentation`, which moves images and boxes alike, such as
    `keras.layers.RandomFlip()` and `RandomCrop`. On TensorFlow steps are not compiled by XLA, which
    cannot call SciPy.

    Args:
        backbone: an `Encoder` whose config has a `stem` of patches with `num_detection_tokens`; or
            a `Seq2Seq` whose encoder reads images, with a stem of the kind `"resnet"`, `"hgnet"` or
            `"patches"`, and whose decoder has a stem of the kind `"queries"`; or an `Encoder` with
            a stem of the kind `"resnet"` or `"hgnet"`.
        processor: `processors.ImageProcessor`, or None if the task only takes arrays.
        num_classes: int. Defaults to the number of `labels`.
        labels: list of class names, in the order of the class numbers.
        class_layers: int, linear layers from a state to its logits; one on maps.
        box_decoder: dict, for the maps of a network: values that differ from those of
            `config.box_decoder.BoxDecoder`, such as `num_queries`.
        auxiliary_loss: bool, whether `fit` sums the losses of all layers of a decoder of object
            queries; `evaluate` has that of the last one. Defaults to False, and on maps to True,
            where it is always so.
        name: str.

    Call arguments:
        inputs: dict with `images`, float `(batch, height, width, channels)`, as the processor
            returns them; for a network with `positions="shares"` optionally `padding_mask`, bool
            `(batch, height, width)`, True for the pixels of an image. Boxes are then shares of the
            image without padding.

    Returns:
        Float `(batch, predictions, 4 + num_classes + 1)`, one for each token or query: center x,
        center y, width and height of a box as shares of the image, then logits, the last one of
        "no object", which there is not on maps. Training with `auxiliary_loss` computes `(batch,
        layers, predictions, ...)`: outputs of each layer of the decoder, on maps behind those of
        the chosen places, and with `edges` behind the boxes whose edges are moved.

    Raises:
        ValueError: if the backbone has neither detection tokens nor queries, the number of classes
            is missing, a value is out of range, or `auxiliary_loss` does not fit the backbone.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    stem = {"kind": "patches", "image_size": [16, 16], "patch_size": 4, "num_detection_tokens": 5}
    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=16, num_layers=2, num_heads=2,
        intermediate_dim=32, position="learned", normalize_first=True, stem=stem,
    )
    detector = kt.ObjectDetector(
        kt.models.Encoder(config), kt.ImageProcessor(size=16), labels=["circle", "square"]
    )
    image = np.zeros((20, 24, 3), "uint8")
    image[5:12, 8:20] = 255
    objects = {"boxes": [[8, 5, 20, 12]], "labels": ["square"]}
    detector.fit([image] * 4, [objects] * 4, epochs=1, verbose=0)
    result = detector.detect(image, threshold=0.0)
    assert result.boxes.shape == (5, 4) and set(result.labels) <= {"circle", "square"}
    ```

    Source: Fang et al. 2021, "You Only Look at One Sequence: Rethinking Transformer in Vision
    through Object Detection", section 3; with queries: Carion et al. 2020, "End-to-End Object
    Detection with Transformers", section 3; on maps: Zhao et al. 2023, "DETRs Beat YOLOs on
    Real-time Object Detection", section 4; edges: Peng et al. 2024, "D-FINE", section 4,
    https://arxiv.org/abs/2410.13842.
    """

    alias = "object_detection"
    backbone_kinds = ("encoder", "seq2seq")
    stem_kinds = ("patches", "resnet", "hgnet")
    takes_queries = True
    head_class = DetectionHead
    task_options = DetectionHead.options
    targets = Objects()

    num_classes: int
    labels: list[str] | None
    class_layers: int
    box_decoder: dict | None
    auxiliary_loss: bool

    def __init__(
        self,
        backbone: Backbone,
        processor: ImageProcessor | None = None,
        num_classes: int | None = None,
        labels: list[str] | None = None,
        class_layers: int = 3,
        name: str | None = None,
        box_decoder: dict | None = None,
        auxiliary_loss: bool | None = None,
    ):
        options = {"num_classes": num_classes, "labels": labels, "class_layers": class_layers}
        options |= {"box_decoder": box_decoder, "auxiliary_loss": auxiliary_loss}
        super().__init__(backbone, processor, name=name, **options)

    @property
    def supports_jit(self) -> bool:
        return assignment.supports_jit()

    @supports_jit.setter
    def supports_jit(self, value: bool) -> None:
        pass  # Keras sets it for every layer.

    @property
    def label_names(self) -> list[str]:
        """The name of each class; the number as a string if there are no `labels`."""
        return self.head.label_names

    def training_loss(self):
        if self.head.reads_objects and isinstance(self.loss, DetectionLoss):
            return DecodedTargets(self)
        return super().training_loss()

    def _named(self, inputs):
        further = self.head.further_inputs
        if not isinstance(inputs, Mapping) or not inputs.keys() & set(further):
            return super()._named(inputs)
        named = super()._named({n: x for n, x in inputs.items() if n not in further})
        found = {name: inputs.get(name) for name in further}
        shapes = [() if each is None else known_shape(each) for each in found.values()]
        if None not in shapes and not agree(shapes[0], (*shapes[1], 4)):
            raise ValueError(
                f"`{BOXES}` and `{CLASSES}` go together, of shapes (batch, objects, 4) and (batch, "
                f"objects), received {' and '.join(map(show_shape, shapes))}."
            )
        return {**named, **found}

    def compile(self, *args, augmentation=None, **kwargs):
        if augmentation is not None:
            for layer in augmentation_of(augmentation).layers if augmentation else ():
                _set_format(layer)
        super().compile(*args, augmentation=augmentation, **kwargs)

    @reads
    def detect(
        self, images: Any, threshold: float = 0.5, batch_size: int | None = None
    ) -> Detection | list[Detection]:
        """Find the objects in images of any size.

        Args:
            images: a list of images that `ImageProcessor` can read, or one image.
            threshold: float, objects with a score above it are returned.
            batch_size: int, images of one size that are computed together. Defaults to 8.

        Returns:
            A `Detection` for each image. For one image, its `Detection`.

        Raises:
            ValueError: if an image cannot be read, or the threshold is not from 0 to 1.
        """
        check_number("threshold", threshold, at_least=0, at_most=1)
        alone = self._require_processor().is_one(images)
        rows: Sequence = [images] if alone else images
        found, names = [], self.label_names
        for image, (size, outputs) in zip(rows, self.outputs_of(rows, batch_size), strict=True):
            boxes, classes, scores = self.head.found_objects(outputs, size)
            order = np.argsort(-scores, kind="stable")
            order = order[scores[order] > threshold]
            labels = [names[n] for n in classes[order]]
            found.append(Detection(boxes[order], labels, scores[order], image))
        return found[0] if alone else found


def _sides(images):
    """Return width, height, width and height of images, float32 `(4,)`."""
    height, width = images.shape[1:3]
    return ops.convert_to_tensor(np.array([width, height] * 2, "float32"))


def _cropped(layer: keras.layers.Layer, images, boxes) -> tuple:
    """Apply a `RandomCrop`, which subtracts the row of its corner from both x and y of boxes."""
    height, width = images.shape[1:3]
    if height < layer.height or width < layer.width:
        raise ValueError(
            f"RandomCrop has {layer.height} x {layer.width} pixels, but the images of a step have "
            f"{height} x {width}: make it smaller."
        )
    top, left = layer.get_random_transformation(images, training=True)
    images = layer.transform_images(images, (top, left), training=True)
    shift = ops.cast(ops.stack([left, top, left, top]), boxes.dtype)
    return images, boxes - shift


def _set_format(layer: keras.layers.Layer) -> None:
    """Tell a layer of Keras how its boxes are given. Raises ValueError if it takes none."""
    known = getattr(layer, "bounding_box_format", "")
    if known not in (None, _FORMAT):
        what = "takes no boxes" if known == "" else f"has bounding_box_format={known!r}"
        raise ValueError(
            f"The layer {layer.name!r} of `augmentation` {what}: give a layer of Keras that moves "
            f"boxes, such as keras.layers.RandomFlip(), without a format or with {_FORMAT!r}."
        )
    layer.bounding_box_format = _FORMAT


def _require_scipy() -> None:
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        raise ImportError(
            "Predictions are paired with objects by SciPy, which is not installed. Run `pip "
            'install "keras_transformer[detection]"`.'
        ) from None
