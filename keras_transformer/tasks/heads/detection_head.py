"""Head that predicts a set of objects: a class and a box for each token or query."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.checkpoints.heads import LABELS, Conversion, Values
from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import shapes_of
from keras_transformer.config.weight import Weight, dense_of
from keras_transformer.support.checking import check_int
from keras_transformer.tasks.heads.class_head import ClassHead
from keras_transformer.training import FineTuningAdamW
from keras_transformer.training.losses.detection_loss import DetectionLoss

_BOX_LAYERS = 3


def _read_labels(values: Values) -> dict[str, Any]:
    """Return the published names of classes; repeated ones, of unused numbers, get their number."""
    task = LABELS.read(values)
    names: list[str] = []
    for number, name in enumerate(task["labels"]):
        names.append(f"{name} {number}" if name in names else name)
    return {**task, "labels": names}


class DetectionHead(ClassHead):
    """Perceptrons on the states of detection tokens or queries: logits of classes, and boxes.

    Args:
        task: as for `Head`.
        num_classes, labels: as for `ClassHead`.
        class_layers: int, linear layers from a state to its logits, with a ReLU between two.
    """

    options = ("num_classes", "labels", "class_layers")
    compile_options = ()
    published_as = ("ForObjectDetection",)
    published_head = (Conversion(_read_labels, LABELS.write),)
    learned = ("objects", "annotations")
    fewest_classes = 1
    takes_records = False

    def __init__(
        self,
        task,
        num_classes: int | None = None,
        labels: list[str] | None = None,
        class_layers: int = 3,
    ):
        several = isinstance(labels, (list, tuple)) and num_classes is None
        super().__init__(task, len(labels) if several else num_classes, labels, dropout=0.0)
        self.class_layers = check_int("class_layers", class_layers, 1, 16)
        self.count = _tokens_of(task.backbone.config)
        width = task.backbone.config.hidden_dim
        for name, depth, outputs in self._perceptrons():
            units = [width] * (depth - 1) + [outputs]
            layers = [self.make_dense(n, f"{name}_{i}") for i, n in enumerate(units)]
            self.keep(**{f"{name}_{i}": layer for i, layer in enumerate(layers)})

    def _perceptrons(self) -> tuple[tuple[str, int, int], ...]:
        """Return the name, the number of layers and the outputs of both perceptrons."""
        return ("class", self.class_layers, self.num_classes + 1), ("box", _BOX_LAYERS, 4)

    def weights_of_classes(self, class_weight: dict):
        raise ValueError(
            "`class_weight` is not for images with several objects. Leave it out, or compile a "
            "loss that weights classes."
        )

    @property
    def number_of_targets(self) -> int | None:
        return None  # targets are boxes and classes in one array

    def __call__(self, states, inputs, training: bool = False):
        found = {}
        for name, depth, _ in self._perceptrons():
            x = states[:, -self.count :]
            for i in range(depth):
                x = getattr(self, f"{name}_{i}")(x)
                x = ops.relu(x) if i < depth - 1 else x
            found[name] = x
        return ops.concatenate([ops.sigmoid(found["box"]), found["class"]], axis=-1)

    def usual(self) -> dict[str, Any]:
        return {"optimizer": FineTuningAdamW(), "loss": DetectionLoss(), "metrics": []}

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"class_layers": values.get("class_layers", 3)}

    @classmethod
    def weight_shapes(
        cls, config: TransformerConfig, values: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        classes, depth = values.get("num_classes"), values.get("class_layers", 3)
        if not isinstance(classes, int):
            raise ValueError(f"`num_classes` must be an integer, received {classes!r}.")
        _tokens_of(config)
        weights: tuple[Weight, ...] = ()
        check_int("class_layers", depth, 1, 16)
        for name, count, last in (("class", depth, "num_outputs"), ("box", _BOX_LAYERS, "box")):
            for i in range(count):
                outputs = last if i == count - 1 else "hidden_dim"
                weights += dense_of(f"{name}_{i}", "hidden_dim", outputs)
        width = config.sides[-1].hidden_dim
        return shapes_of(weights, config, num_outputs=classes + 1, box=4, hidden_dim=width)


def _tokens_of(config: TransformerConfig) -> int:
    """Return the number of detection tokens or object queries. Raises ValueError without any."""
    stem = config.sides[-1].stem
    count = getattr(stem, "num_queries", 0) or getattr(stem, "num_detection_tokens", 0)
    if not count:
        raise ValueError(
            "An ObjectDetector needs a backbone with detection tokens or object queries: give the "
            "config a `stem` with `num_detection_tokens`, such as 100, or the decoder of "
            "kind='seq2seq' a `stem` of the kind 'queries'."
        )
    return count


def found_objects(outputs: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """Return the likeliest class of each prediction of an image, its score and its box.

    Args:
        outputs: float `(predictions, 4 + classes + 1)`, the outputs of the head for an image.
        size: ints, height and width of the image.

    Returns:
        Float32 boxes `(predictions, 4)`, x_min, y_min, x_max and y_max in pixels; int classes and
        float32 scores `(predictions,)`: the probability of the class.
    """
    outputs = outputs.astype("float32")
    centers, halves, logits = outputs[:, :2], outputs[:, 2:4] / 2, outputs[:, 4:]
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares = (exponentials / exponentials.sum(axis=-1, keepdims=True))[:, :-1]
    boxes = np.concatenate([centers - halves, centers + halves], axis=-1)
    boxes = boxes * np.array([size[1], size[0]] * 2, "float32")
    return boxes, shares.argmax(axis=-1), shares.max(axis=-1)
