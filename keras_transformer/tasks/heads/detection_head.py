"""Head that predicts a set of objects: a class and a box for each token or query."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.checkpoints.heads import LABELS, Conversion, Values
from keras_transformer.config import TransformerConfig
from keras_transformer.config.box_decoder import BoxDecoder
from keras_transformer.config.network import NetworkStemConfig
from keras_transformer.config.structure import shapes_of
from keras_transformer.config.weight import Weight, dense_of
from keras_transformer.layers.merging import as_map
from keras_transformer.layers.pyramid import MapPyramid
from keras_transformer.layers.refining_decoder import RefiningDecoder
from keras_transformer.support.checking import check_bool, check_int, shorten
from keras_transformer.tasks.heads.class_head import ClassHead
from keras_transformer.training import FineTuningAdamW
from keras_transformer.training.losses.detection_loss import (
    DetectionLoss,
    EdgeDetectionLoss,
    VarifocalDetectionLoss,
)

_BOX_LAYERS = 3
OF_TRAINING = ("decoder/denoising_classes/*",)
# Further inputs in training on maps: the targets, of which the decoder makes noisy objects.
BOXES, CLASSES = "object_boxes", "object_classes"


def _read_labels(values: Values) -> dict[str, Any]:
    """Return the published names of classes; repeated ones, of unused numbers, get their number."""
    task = LABELS.read(values)
    names: list[str] = []
    for number, name in enumerate(task["labels"]):
        names.append(f"{name} {number}" if name in names else name)
    return {**task, "labels": names}


class DetectionHead(ClassHead):
    """Perceptrons on the states of detection tokens or queries: logits of classes, and boxes.

    On an `Encoder` of the last map of a ResNet or HGNet it is a `MapPyramid` of the maps, and a
    `RefiningDecoder`, with a probability of each class by itself.

    Args:
        task: as for `Head`.
        num_classes, labels: as for `ClassHead`.
        class_layers: int, linear layers from a state to its logits, with a ReLU between two. One
            on maps.
        box_decoder: dict of the values of `config.box_decoder.BoxDecoder`, for maps.
        auxiliary_loss: bool, whether in training the outputs of each layer of a decoder of object
            queries have a loss, by the same perceptrons on its normalized states. On maps each
            layer has one.
    """

    options = ("num_classes", "labels", "class_layers", "box_decoder", "auxiliary_loss")
    compile_options = ()
    of_classes = (
        "class_*",
        "decoder/classes_*",
        "decoder/proposal_classes/*",
        *OF_TRAINING,
    )
    of_training = OF_TRAINING
    published_as = ("ForObjectDetection",)
    published_head = (Conversion(_read_labels, LABELS.write),)
    learned = ("objects", "annotations")
    fewest_classes = 1
    takes_records = False
    num_denoising = 0
    has_edges = False

    def __init__(
        self,
        task,
        num_classes: int | None = None,
        labels: list[str] | None = None,
        class_layers: int = 3,
        box_decoder: Mapping[str, Any] | None = None,
        auxiliary_loss: bool | None = None,
    ):
        several = isinstance(labels, (list, tuple)) and num_classes is None
        super().__init__(task, len(labels) if several else num_classes, labels, dropout=0.0)
        self.class_layers = check_int("class_layers", class_layers, 1, 16)
        config = task.backbone.config
        values = _decoder_of(config, {"box_decoder": box_decoder})
        self.reads_maps = values is not None
        self.box_decoder = values and values.values()
        self.auxiliary_loss = _auxiliary_loss_of(config, auxiliary_loss)
        if values is not None:
            self.count, self.num_denoising = values.num_queries, values.num_denoising
            self.has_edges = values.edges is not None
            self.further_inputs = (BOXES, CLASSES) if self.reads_objects else ()
            self._make_decoder(values)
            return
        self.count = _tokens_of(config)
        width = config.hidden_dim
        if self.auxiliary_loss:
            self.learned_layers = tuple(range(1, config.sides[-1].num_layers + 1))
        for name, depth, outputs in self._perceptrons():
            units = [width] * (depth - 1) + [outputs]
            layers = [self.make_dense(n, f"{name}_{i}") for i, n in enumerate(units)]
            self.keep(**{f"{name}_{i}": layer for i, layer in enumerate(layers)})

    @property
    def reads_objects(self) -> bool:
        """Whether the loss of `fit` is of more than the outputs, which the targets make."""
        return bool(self.num_denoising or self.has_edges)

    def _make_decoder(self, values: BoxDecoder) -> None:
        """Make the layers that find objects in maps."""
        config, dtype = self.task.backbone.config, self.task.dtype_policy
        widths, features = config.stem.map_widths, config.hidden_dim
        sizes = (len(widths) + 1, features, self.num_classes)
        options = {"dropout": config.dropout, "name": "decoder", "dtype": dtype}
        self.keep(
            pyramid_layer=MapPyramid(values, widths, features, name="pyramid", dtype=dtype),
            decoder_layer=RefiningDecoder(values, *sizes, **options),
        )
        for layer in (self.pyramid_layer, self.decoder_layer):
            layer.build()

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
        if self.reads_maps:
            return self._found_in_maps(states, inputs, training)
        if isinstance(states, list):  # of all layers
            norm = self.task.backbone.decoder.final_norm
            states = ops.stack([x if norm is None else norm(x) for x in states], axis=1)
        found = {}
        for name, depth, _ in self._perceptrons():
            x = states[..., -self.count :, :]
            for i in range(depth):
                x = getattr(self, f"{name}_{i}")(x)
                x = ops.relu(x) if i < depth - 1 else x
            found[name] = x
        return ops.concatenate([ops.sigmoid(found["box"]), found["class"]], axis=-1)

    def _found_in_maps(self, maps, inputs, training: bool):
        """Return the outputs for the maps of the stages, the last of which are states."""
        stem = self.task.backbone.stem
        grid = stem.config.stem.grid(stem.image_size(inputs["images"]))
        maps = self.pyramid_layer([*maps[:-1], as_map(maps[-1], grid)], training=training)
        objects = None
        if training and self.reads_objects and inputs.get(CLASSES) is not None:
            objects = inputs[BOXES], inputs[CLASSES]
        return self.decoder_layer(maps, objects=objects, training=training)

    def metric_of(self, given):
        if isinstance(given, str):
            raise ValueError(
                f"An ObjectDetector cannot compute the metric {given!r} of a batch: its outputs "
                "are boxes and classes, paired with objects in the loss. Leave it out, and score "
                "with kt.evaluating.evaluate_detector(detector, images, objects)."
            )
        return given

    def usual(self) -> dict[str, Any]:
        loss = VarifocalDetectionLoss() if self.reads_maps else DetectionLoss()
        loss = EdgeDetectionLoss() if self.has_edges else loss
        return {"optimizer": FineTuningAdamW(), "loss": loss, "metrics": []}

    def found_objects(self, outputs: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, ...]:
        """Return the boxes, classes and scores of an image, see `found_objects`."""
        return found_objects(outputs, size, exclusive=not self.reads_maps)

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        decoder = _decoder_of(config, values)
        if decoder is not None:
            return {"box_decoder": decoder.lasting_values()}
        return {"class_layers": values.get("class_layers", 3)}

    @classmethod
    def weight_shapes(
        cls, config: TransformerConfig, values: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        classes, depth = values.get("num_classes"), values.get("class_layers", 3)
        if not isinstance(classes, int):
            raise ValueError(f"`num_classes` must be an integer, received {classes!r}.")
        decoder = _decoder_of(config, values)
        if decoder is not None:
            return decoder.shapes(config.stem.map_widths, config.hidden_dim, classes)
        _tokens_of(config)
        weights: tuple[Weight, ...] = ()
        check_int("class_layers", depth, 1, 16)
        for name, count, last in (("class", depth, "num_outputs"), ("box", _BOX_LAYERS, "box")):
            for i in range(count):
                outputs = last if i == count - 1 else "hidden_dim"
                weights += dense_of(f"{name}_{i}", "hidden_dim", outputs)
        width = config.sides[-1].hidden_dim
        return shapes_of(weights, config, num_outputs=classes + 1, box=4, hidden_dim=width)


def _decoder_of(config: TransformerConfig, values: Mapping[str, Any]) -> BoxDecoder | None:
    """Return the values of the decoder of maps, or None if the backbone has tokens or queries."""
    given = values.get("box_decoder")
    if _has_maps(config):
        decoder = BoxDecoder.of(given)
        decoder.points(config.stem.num_maps + 1)
        return decoder
    if given is not None:
        raise ValueError(
            "`box_decoder` is for an Encoder whose `stem` is a 'resnet' or 'hgnet', whose maps it "
            f"reads, received {shorten(given)}."
        )
    return None


def _has_maps(config: TransformerConfig) -> bool:
    """Return whether the backbone is an encoder behind a convolutional network."""
    return config.kind == "encoder" and isinstance(config.stem, NetworkStemConfig)


def _auxiliary_loss_of(config: TransformerConfig, given: bool | None) -> bool:
    """Return whether each layer has a loss. Raises ValueError if the backbone does not allow it."""
    on_maps = _has_maps(config)
    if given is None:
        return on_maps
    given = check_bool("auxiliary_loss", given)
    if on_maps and not given:
        raise ValueError(
            "`auxiliary_loss` must be True or None on maps, where each layer of the decoder learns "
            "to refine boxes, received False."
        )
    if given and config.kind == "encoder" and not on_maps:
        raise ValueError(
            "`auxiliary_loss` is for the layers of a decoder, but detection tokens are states of "
            "an encoder: leave it out."
        )
    return given


def _tokens_of(config: TransformerConfig) -> int:
    """Return the number of detection tokens or object queries. Raises ValueError without any."""
    stem = config.sides[-1].stem
    count = getattr(stem, "num_queries", 0) or getattr(stem, "num_detection_tokens", 0)
    if not count:
        raise ValueError(
            "An ObjectDetector needs a backbone with detection tokens, object queries or maps: "
            "give the config a `stem` with `num_detection_tokens`, such as 100, or of the kind "
            "'resnet' or 'hgnet', or the decoder of kind='seq2seq' a `stem` of the kind 'queries'."
        )
    return count


def found_objects(
    outputs: np.ndarray, size: tuple[int, int], exclusive: bool = True
) -> tuple[np.ndarray, ...]:
    """Return the likeliest class of each prediction of an image, its score and its box.

    Args:
        outputs: float `(predictions, 4 + logits)`, the outputs of the head for an image.
        size: ints, height and width of the image.
        exclusive: bool, whether a prediction has one class, or none, which has the last logit.
            Otherwise each class has a probability of its own, and the results are the likeliest
            pairs of a prediction and a class.

    Returns:
        Float32 boxes `(predictions, 4)`, x_min, y_min, x_max and y_max in pixels; int classes and
        float32 scores `(predictions,)`: the probability of the class.
    """
    outputs = outputs.astype("float32")
    centers, halves, logits = outputs[:, :2], outputs[:, 2:4] / 2, outputs[:, 4:]
    boxes = np.concatenate([centers - halves, centers + halves], axis=-1)
    boxes = boxes * np.array([size[1], size[0]] * 2, "float32")
    if not exclusive:
        scores = 1 / (1 + np.exp(-np.clip(logits, -80, 80)))
        likeliest = np.argsort(-scores.reshape(-1), kind="stable")[: len(outputs)]
        predictions, classes = np.divmod(likeliest, logits.shape[1])
        return boxes[predictions], classes, scores.reshape(-1)[likeliest]
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares = (exponentials / exponentials.sum(axis=-1, keepdims=True))[:, :-1]
    return boxes, shares.argmax(axis=-1), shares.max(axis=-1)
