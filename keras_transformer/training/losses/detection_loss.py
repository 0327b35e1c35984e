"""The loss of boxes and classes that are predicted as a set."""

import keras
from keras import ops

from keras_transformer.kernels.assignment import assign
from keras_transformer.layers.denoising import NO_QUERY
from keras_transformer.support.checking import check_number


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

    def _sum(self, y_true, y_pred, sample_weight, known: bool):
        targets, outputs = (ops.cast(ops.convert_to_tensor(x), "float32") for x in (y_true, y_pred))
        count = 1
        if len(outputs.shape) == 4:  # the layers of an image become rows with the same targets
            count = outputs.shape[1]
            outputs = ops.reshape(outputs, (-1, *outputs.shape[2:]))
            targets = ops.repeat(targets, count, axis=0)
        boxes, logits = outputs[..., :4], outputs[..., 4:]
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
            matched, counted = assign(costs, real), 1.0

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
        scores = ops.einsum("bnq,bn->bq", paired, self.class_scores(taken, objects))
        sums = [
            ops.sum(ops.reshape(each, (-1, count, each.shape[1])), axis=(0, 2))
            for each in (
                weights[:, None] * counted * each
                for each in self.class_terms(logits, wanted, scores)
            )
        ]
        # Each layer by itself.
        loss = ops.sum(sums[0] / (ops.maximum(sums[1], 1e-12) if sums[1:] else number))
        return loss + self.l1 * l1 + self.giou * giou

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
