"""The loss of boxes and classes that are predicted as a set."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.kernels.assignment import assign
from keras_transformer.layers.denoising import NO_QUERY
from keras_transformer.layers.refining_decoder import Edges
from keras_transformer.support.checking import check_number


class _Pairs(NamedTuple):
    """Pairs of predictions and objects, in rows: the layers of each image.

    Fields:
        layers: int, rows of an image.
        paired: float32 `(rows, targets, predictions)`, 1 for pairs.
        objects: float32 `(rows, targets, 4)`, boxes of targets, 0.5 for padding.
        present: float32 `(rows, targets)`, the weight of targets, 0 for padding.
        scores: float32 `(rows, targets)`, see `DetectionLoss.class_scores`.
        counted: float32 `(rows, predictions)`, the weight of predictions.
        number: float32, the weight of all objects of the batch.
        logits: float32 `(rows, predictions, classes)`.
    """

    layers: int
    paired: Any
    objects: Any
    present: Any
    scores: Any
    counted: Any
    number: Any
    logits: Any

    def of_last(self, count: int) -> "_Pairs":
        """Return the pairs of the last `count` layers of each image."""

        def last(x):
            shape = ops.shape(x)[1:]
            by_image = ops.reshape(x, (-1, self.layers, *shape))[:, -count:]
            return ops.reshape(by_image, (-1, *shape))

        kept = [
            x if name in ("layers", "number") else last(x) for name, x in self._asdict().items()
        ]
        return _Pairs(*kept)._replace(layers=count)


@keras.saving.register_keras_serializable(package="keras_transformer")
class DetectionLoss(keras.losses.Loss):
    """Cross-entropy of classes, L1 and generalized IoU of boxes, of predictions and their objects.

    In each image predictions are paired with objects at the least total cost: minus the probability
    of the class, plus the L1 distance and minus the generalized IoU of the boxes. A
    prediction without an object is to have the class "no object". Boxes are averaged over the
    objects of the batch, classes over the predictions by their weights.

    Takes float targets `(batch, targets, 5)` and outputs `(batch, predictions, 4 + classes + 1)`.
    The first four numbers of both are the center x, center y, width and height of a box as shares
    of the image. A target's last number is its class; -1 is no object. The other
    numbers of an output are logits of the classes, the last one of "no object". Outputs of several
    layers, `(batch, layers, predictions, ...)`, have a loss each, whose sum this is.

    Args:
        l1, giou: floats, factors of both terms of boxes, also in the cost.
        no_object: float, the weight of "no object" in the cross-entropy.
        reduction, name: as in `keras.losses.Loss`; the result is one number for the batch.

    Raises:
        ValueError: if a factor is below 0.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import DetectionLoss

    targets = np.array([[[0.5, 0.5, 0.2, 0.4, 1]]], "float32")  # one object of class 1
    nothing, found = [0.1, 0.1, 0.1, 0.1, 0, 0, 20], [0.5, 0.5, 0.2, 0.4, 0, 20, 0]
    outputs = np.array([[nothing, found]], "float32")
    assert float(DetectionLoss()(targets, outputs)) < 1e-5
    ```

    Source: Carion et al. 2020, "End-to-End Object Detection with Transformers", section 3.1 and
    appendix A.2; Rezatofighi et al. 2019, "Generalized Intersection over Union".
    """

    def __init__(
        self,
        l1: float = 5.0,
        giou: float = 2.0,
        no_object: float = 0.1,
        reduction="sum_over_batch_size",
        name: str = "detection_loss",
    ):
        super().__init__(name=name, reduction=reduction, dtype="float32")
        self.l1 = check_number("l1", l1, at_least=0)
        self.giou = check_number("giou", giou, at_least=0)
        self.no_object = check_number("no_object", no_object, at_least=0)

    def __call__(self, y_true, y_pred, sample_weight=None):
        return self._sum(y_true, y_pred, sample_weight, known=False)

    def of_known_pairs(self, y_true, y_pred, sample_weight=None):
        """Return the loss of predictions that belong to the targets in their order.

        Args:
            y_true: float `(batch, targets, 5)`, as for a call; the class -1 is no object, and -2
                means that predictions do not count.
            y_pred: float `(batch, 2 * targets, ...)`, or with an axis of layers. The first half are
                to find the targets, the second half nothing.
            sample_weight: float `(batch,)`, or None.
        """
        return self._sum(y_true, y_pred, sample_weight, known=True)

    def _sum(self, y_true, y_pred, sample_weight, known: bool, edges: Edges | None = None):
        targets, outputs = (ops.cast(ops.convert_to_tensor(x), "float32") for x in (y_true, y_pred))
        count = 1
        if len(outputs.shape) == 4:  # the layers of an image become rows with the same targets
            count = outputs.shape[1]
            outputs = ops.reshape(outputs, (-1, *outputs.shape[2:]))
            targets = ops.repeat(targets, count, axis=0)
        boxes, logits = self.boxes_of(outputs[..., :4]), outputs[..., 4:]
        objects, classes = targets[..., :4], ops.cast(targets[..., 4], "int32")
        real = classes >= 0
        present = ops.cast(real, "float32")
        # Padding has boxes without area.
        objects = ops.where(real[..., None], objects, 0.5)

        own = ops.one_hot(ops.where(real, classes, 0), logits.shape[-1], dtype="float32")
        if known:
            matched = ops.broadcast_to(ops.arange(classes.shape[1]), ops.shape(classes))
            counted = ops.tile(ops.cast(classes > NO_QUERY, "float32"), (1, 2))
        else:
            pairs = objects[:, :, None], boxes[:, None]
            costs = self.l1 * ops.sum(ops.abs(pairs[0] - pairs[1]), axis=-1)
            costs = costs + self.class_costs(logits, own) - self.giou * generalized_iou(*pairs)
            matched, counted = assign(costs, real), ops.ones_like(logits[..., 0])

        # (rows, targets, predictions)
        paired = ops.one_hot(matched, boxes.shape[1], dtype="float32") * present[..., None]
        taken = ops.einsum("bnq,bqd->bnd", paired, boxes)
        taken = ops.where(real[..., None], taken, 0.5)
        weights = ops.ones_like(present[:, 0])
        if sample_weight is not None:
            weights = ops.reshape(ops.cast(sample_weight, "float32"), (-1,))
            weights = ops.repeat(weights, count, axis=0)
        present = present * weights[:, None]
        number = ops.maximum(ops.sum(present) / count, 1.0)
        distances = ops.sum(ops.abs(taken - objects), axis=-1)
        l1 = ops.sum(present * distances) / number
        giou = ops.sum(present * (1 - generalized_iou(taken, objects))) / number

        wanted = ops.einsum("bnq,bnc->bqc", paired, own)
        scores = self.class_scores(taken, objects)
        counted = weights[:, None] * counted
        terms = self.class_terms(logits, wanted, ops.einsum("bnq,bn->bq", paired, scores))
        sums = [_by_layer(counted * each, count) for each in terms]
        # Each layer by itself.
        loss = ops.sum(sums[0] / (ops.maximum(sums[1], 1e-12) if sums[1:] else number))
        loss = loss + self.l1 * l1 + self.giou * giou
        if edges is None:
            return loss
        pairs = _Pairs(count, paired, objects, present, scores, counted, number, logits)
        return loss + self.edge_terms(edges, pairs.of_last(edges.logits.shape[1]))

    def boxes_of(self, boxes):
        """Return predicted boxes as they are compared with objects: here unchanged."""
        return boxes

    def class_costs(self, logits, own):
        """Return the cost of each pair by its class, `(rows, targets, predictions)`.

        Args:
            logits: float32 `(rows, predictions, classes)`.
            own: float32 `(rows, targets, classes)`, 1 for the class of a target.
        """
        return -ops.einsum("bqc,bnc->bnq", ops.softmax(logits, axis=-1), own)

    def class_scores(self, boxes, objects):
        """Return what the score of a pair is to be, `(rows, targets)`: here 1."""
        return ops.ones_like(boxes[..., 0])

    def class_terms(self, logits, wanted, scores) -> tuple:
        """Return the loss of classes of each prediction, `(rows, predictions)`, and its weight.

        Without weights, the sum of the losses is divided by the number of objects.

        Args:
            logits: float32 `(rows, predictions, classes)`.
            wanted: float32 of this shape, 1 for the class of a prediction's object.
            scores: float32 `(rows, predictions)`, what the score of this class is to be.
        """
        free = 1 - ops.sum(wanted, axis=-1)
        last = ops.one_hot(logits.shape[-1] - 1, logits.shape[-1], dtype="float32")
        wanted = wanted + free[..., None] * last
        importance = (1 - free) + self.no_object * free
        entropies = -ops.sum(wanted * ops.log_softmax(logits, axis=-1), axis=-1)
        return importance * entropies, importance

    def get_config(self) -> dict:
        factors = {"l1": self.l1, "giou": self.giou, "no_object": self.no_object}
        return {**factors, "reduction": self.reduction, "name": self.name}


@keras.saving.register_keras_serializable(package="keras_transformer")
class VarifocalDetectionLoss(DetectionLoss):
    """Varifocal loss of classes, L1 and generalized IoU of boxes, of predictions and their objects.

    Predictions are paired with objects as in `DetectionLoss`, but by a focal cost of the class.
    The score of a prediction's class is to be the IoU of its box and its object's, and 0 without
    an object; each class has a probability of its own. The sum is divided by the number of
    objects.

    Takes what `DetectionLoss` takes, without a logit of "no object".

    Args:
        l1, giou: floats, factors of both terms of boxes, also in the cost.
        class_cost: float, factor of the class in the cost.
        alpha, gamma: floats, the weight of classes that an object has not, which is multiplied by
            the power `gamma` of their probability.
        cost_alpha, cost_gamma: floats, weight and power of the focal cost.
        reduction, name: as in `keras.losses.Loss`; the result is one number for the batch.

    Raises:
        ValueError: if a factor is below 0.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import VarifocalDetectionLoss

    targets = np.array([[[0.5, 0.5, 0.2, 0.4, 1]]], "float32")  # one object of class 1
    nothing, found = [0.1, 0.1, 0.1, 0.1, -20, -20], [0.5, 0.5, 0.2, 0.4, -20, 20]
    outputs = np.array([[nothing, found]], "float32")
    assert float(VarifocalDetectionLoss()(targets, outputs)) < 1e-5
    ```

    Source: Zhang et al. 2021, "VarifocalNet: An IoU-aware Dense Object Detector", section 3.2; the
    cost: Zhao et al. 2023, "DETRs Beat YOLOs on Real-time Object Detection", section 5.1.
    """

    def __init__(
        self,
        l1: float = 5.0,
        giou: float = 2.0,
        class_cost: float = 2.0,
        alpha: float = 0.75,
        gamma: float = 2.0,
        cost_alpha: float = 0.25,
        cost_gamma: float = 2.0,
        reduction="sum_over_batch_size",
        name: str = "varifocal_detection_loss",
    ):
        super().__init__(l1, giou, reduction=reduction, name=name)
        given = {"class_cost": class_cost, "alpha": alpha, "gamma": gamma}
        given |= {"cost_alpha": cost_alpha, "cost_gamma": cost_gamma}
        for each, value in given.items():
            setattr(self, each, check_number(each, value, at_least=0))

    def class_costs(self, logits, own):
        shares = ops.einsum("bqc,bnc->bnq", ops.sigmoid(logits), own)
        found = self.cost_alpha * (1 - shares) ** self.cost_gamma * -ops.log(shares + 1e-8)
        other = (1 - self.cost_alpha) * shares**self.cost_gamma * -ops.log(1 - shares + 1e-8)
        return self.class_cost * (found - other)

    def class_scores(self, boxes, objects):
        return ops.stop_gradient(generalized_iou(boxes, objects, enclosing=False))

    def class_terms(self, logits, wanted, scores):
        shares, scored = ops.stop_gradient(ops.sigmoid(logits)), wanted * scores[..., None]
        weights = self.alpha * shares**self.gamma * (1 - wanted) + scored
        entropies = ops.softplus(logits) - scored * logits
        return (ops.sum(weights * entropies, axis=-1),)

    def get_config(self) -> dict:
        names = ("l1", "giou", "class_cost", "alpha", "gamma", "cost_alpha", "cost_gamma")
        own = {each: getattr(self, each) for each in names}
        return {**own, "reduction": self.reduction, "name": self.name}


@keras.saving.register_keras_serializable(package="keras_transformer")
class EdgeDetectionLoss(VarifocalDetectionLoss):
    """Varifocal detection loss, and losses of distributions of the edges of boxes (D-FINE).

    The distributions of a prediction with an object are to have the place of its edges as their
    expected value: their cross-entropy with the two distances next to it, weighted by the IoU of
    the box (fine-grained localization). The distributions of earlier layers are to be like those
    of the last one: their divergence, weighted by the IoU, or without an object by the largest
    probability of a class, as the mean of predictions with objects and the mean of others, by the
    square roots of their numbers (decoupled distillation).

    Takes what `VarifocalDetectionLoss` takes, and has its value. The other losses are in that of
    `fit`, which reads the distributions of the layers of a decoder with `edges`.

    Args:
        localization, distillation: floats, factors of both losses of distributions.
        temperature: float, by which logits are divided for the divergence.
        **kwargs: as for `VarifocalDetectionLoss`.

    Raises:
        ValueError: if a factor is below 0, or the temperature is not above 0.

    Example:
    ```python
    from keras_transformer.training import EdgeDetectionLoss

    loss = EdgeDetectionLoss(distillation=0.0)
    assert loss.localization == 0.15
    ```

    Source: Peng et al. 2024, "D-FINE: Redefine Regression Task of DETRs as Fine-grained
    Distribution Refinement", sections 4.1 and 4.2, https://arxiv.org/abs/2410.13842.
    """

    def __init__(
        self,
        localization: float = 0.15,
        distillation: float = 1.5,
        temperature: float = 5.0,
        name: str = "edge_detection_loss",
        **kwargs,
    ):
        super().__init__(name=name, **kwargs)
        self.localization = check_number("localization", localization, at_least=0)
        self.distillation = check_number("distillation", distillation, at_least=0)
        self.temperature = check_number("temperature", temperature, above=0)

    def of_layers(self, y_true, y_pred, edges: Edges, sample_weight=None, known: bool = False):
        """Return the loss of the outputs of layers and of the distributions of the last of them.

        Args:
            y_true: float `(batch, targets, 5)`, as for a call.
            y_pred: float `(batch, layers, predictions, 4 + classes)`.
            edges: `layers.refining_decoder.Edges` of the predictions.
            sample_weight: float `(batch,)`, or None.
            known: bool, whether predictions belong to the targets in their order, see
                `of_known_pairs`.
        """
        return self._sum(y_true, y_pred, sample_weight, known, edges)

    def boxes_of(self, boxes):
        return ops.clip(boxes, 0, 1)

    def edge_terms(self, edges: Edges, pairs: _Pairs):
        """Return both losses of distributions, for the pairs of their layers."""
        edges = Edges(*(ops.cast(each, "float32") for each in edges))
        rows = ops.shape(pairs.present)[0]
        bins, (layers, queries) = edges.distances.shape[0], edges.logits.shape[1:3]
        shape = (rows, queries, 4, bins)
        logits = ops.reshape(edges.logits, shape)
        start = ops.repeat(edges.start, layers, axis=0)
        loss = self.localization * self._localized(logits, start, edges, pairs)
        if layers == 1:
            return loss
        by_layer = ops.reshape(edges.logits, (-1, layers, queries, 4, bins))
        last = ops.stop_gradient(by_layer[:, -1:])
        classes = ops.reshape(pairs.logits, (-1, layers, *pairs.logits.shape[1:]))[:, -1]
        divergences = self._divergence(by_layer, last)
        divergences = ops.reshape(divergences, (rows, queries))
        sure = ops.repeat(ops.max(ops.sigmoid(classes), axis=-1), layers, axis=0)
        return loss + self.distillation * self._distilled(divergences, sure, pairs)

    def _localized(self, logits, start, edges: Edges, pairs: _Pairs):
        """Return the loss of the distributions of predictions with objects."""
        flat = ops.reshape(logits, (*ops.shape(logits)[:2], 4 * logits.shape[-1]))
        taken = ops.einsum("bnq,bqd->bnd", pairs.paired, flat)
        taken = ops.reshape(taken, (*ops.shape(taken)[:2], 4, logits.shape[-1]))
        start = ops.einsum("bnq,bqd->bnd", pairs.paired, start)
        wanted = ops.stop_gradient(_shares(edges, start, pairs.objects))
        entropies = -ops.sum(wanted * ops.log_softmax(taken, axis=-1), axis=(-1, -2))
        return ops.sum(pairs.present * pairs.scores * entropies) / pairs.number

    def _divergence(self, logits, teacher):
        """Return the sum over edges of the divergences of distributions from the last ones."""
        own, wanted = (
            ops.log_softmax(each / self.temperature, axis=-1) for each in (logits, teacher)
        )
        found = ops.sum(ops.exp(wanted) * (wanted - own), axis=(-1, -2))
        return self.temperature**2 * found

    def _distilled(self, divergences, sure, pairs: _Pairs):
        """Return the loss of distributions that are not like those of the last layer."""
        matched = ops.sum(pairs.paired, axis=1)
        scores = ops.einsum("bnq,bn->bq", pairs.paired, pairs.scores)
        importance = ops.stop_gradient(ops.where(matched > 0, scores, sure))
        loss = numbers = 0.0
        for each in (matched, 1 - matched):
            weights = pairs.counted * each
            number = _by_layer(weights, pairs.layers)
            total = _by_layer(weights * importance * divergences, pairs.layers)
            root = ops.sqrt(number)
            # The mean over four edges each.
            loss = loss + root * total / ops.maximum(4 * number, 1e-12)
            numbers = numbers + root
        return ops.sum(loss / ops.maximum(numbers, 1e-12))

    def get_config(self) -> dict:
        names = ("localization", "distillation", "temperature")
        return {**super().get_config(), **{each: getattr(self, each) for each in names}}


def _by_layer(x, layers: int):
    """Return the sums over images and predictions, `(layers,)`, of `(rows, predictions)`."""
    return ops.sum(ops.reshape(x, (-1, layers, x.shape[1])), axis=(0, 2))


def _shares(edges: Edges, start, objects):
    """Return the shares of distances whose mean is that of the edges of objects.

    Args:
        edges: `Edges`.
        start: float32 `(rows, targets, 4)`, the boxes whose edges are moved.
        objects: float32 `(rows, targets, 4)`, the boxes that are wanted.

    Returns:
        Float32 `(rows, targets, 4, bins + 1)`, at most two of which are not 0; for edges beyond the
        outermost distance, its share is 1.
    """
    scale, wanted = ops.abs(edges.scale), corners(objects)
    centers, steps = start[..., :2], start[..., 2:] / scale + 1e-16
    low, high = (centers - wanted[..., :2]) / steps, (wanted[..., 2:] - centers) / steps
    moved = (ops.concatenate([low, high], axis=-1) - scale / 2)[..., None]
    below, above = edges.distances[:-1], edges.distances[1:]
    share = ops.clip((moved - below) / (above - below), 0, 1)
    # The share of each distance is what its lower neighbour has passed on, less what it passes on.
    ones, zeros = ops.ones_like(share[..., :1]), ops.zeros_like(share[..., :1])
    return ops.concatenate([ones, share], axis=-1) - ops.concatenate([share, zeros], axis=-1)


def corners(boxes):
    """Return boxes as (x_min, y_min, x_max, y_max), from (center x, center y, width, height)."""
    centers, halves = boxes[..., :2], boxes[..., 2:4] / 2
    return ops.concatenate([centers - halves, centers + halves], axis=-1)


def generalized_iou(boxes, others, enclosing: bool = True):
    """Return the generalized intersection over union of pairs of boxes.

    Args:
        boxes: float `(..., 4)`, center x, center y, width and height.
        others: the same, of a shape that broadcasts with `boxes`.
        enclosing: bool, False for the plain intersection over union.
    """
    one, two = corners(boxes), corners(others)
    areas = [(each[..., 2] - each[..., 0]) * (each[..., 3] - each[..., 1]) for each in (one, two)]
    low, high = ops.maximum(one[..., :2], two[..., :2]), ops.minimum(one[..., 2:], two[..., 2:])
    shared = ops.maximum(high - low, 0)
    shared = shared[..., 0] * shared[..., 1]
    union = areas[0] + areas[1] - shared
    if not enclosing:
        return shared / ops.maximum(union, 1e-12)
    around = ops.maximum(one[..., 2:], two[..., 2:]) - ops.minimum(one[..., :2], two[..., :2])
    around = around[..., 0] * around[..., 1]
    # Boxes without any area have no IoU.
    tiny = 1e-12
    return shared / ops.maximum(union, tiny) - (around - union) / ops.maximum(around, tiny)
