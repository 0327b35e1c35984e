"""The loss of boxes and classes that are predicted as a set."""

import keras
from keras import ops

from keras_transformer.kernels.assignment import assign
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
    numbers of an output are logits of the classes, the last one of "no object".

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
        targets, outputs = (ops.cast(ops.convert_to_tensor(x), "float32") for x in (y_true, y_pred))
        boxes, logits = outputs[..., :4], outputs[..., 4:]
        objects, classes = targets[..., :4], ops.cast(targets[..., 4], "int32")
        real = classes >= 0
        present = ops.cast(real, "float32")
        # Padding has boxes without area.
        objects = ops.where(real[..., None], objects, 0.5)

        log_shares = ops.log_softmax(logits, axis=-1)
        own = ops.one_hot(ops.where(real, classes, 0), logits.shape[-1], dtype="float32")
        shares = ops.einsum("bqc,bnc->bnq", ops.exp(log_shares), own)
        pairs = objects[:, :, None], boxes[:, None]
        costs = self.l1 * ops.sum(ops.abs(pairs[0] - pairs[1]), axis=-1) - shares
        costs = costs - self.giou * generalized_iou(*pairs)
        matched = assign(costs, real)

        # (batch, targets, predictions)
        paired = ops.one_hot(matched, boxes.shape[1], dtype="float32") * present[..., None]
        taken = ops.einsum("bnq,bqd->bnd", paired, boxes)
        taken = ops.where(real[..., None], taken, 0.5)
        weights = ops.ones_like(present[:, 0])
        if sample_weight is not None:
            weights = ops.reshape(ops.cast(sample_weight, "float32"), (-1,))
        present = present * weights[:, None]
        number = ops.maximum(ops.sum(present), 1.0)
        distances = ops.sum(ops.abs(taken - objects), axis=-1)
        l1 = ops.sum(present * distances) / number
        giou = ops.sum(present * (1 - generalized_iou(taken, objects))) / number

        wanted = ops.einsum("bnq,bnc->bqc", paired, own)
        free = 1 - ops.sum(paired, axis=1)
        last = ops.one_hot(logits.shape[-1] - 1, logits.shape[-1], dtype="float32")
        wanted = wanted + free[..., None] * last
        importance = ((1 - free) + self.no_object * free) * weights[:, None]
        entropies = -ops.sum(wanted * log_shares, axis=-1)
        sums = (ops.sum(importance * entropies), ops.sum(importance))
        entropy = sums[0] / ops.maximum(sums[1], 1e-12)
        return entropy + self.l1 * l1 + self.giou * giou

    def get_config(self) -> dict:
        factors = {"l1": self.l1, "giou": self.giou, "no_object": self.no_object}
        return {**factors, "reduction": self.reduction, "name": self.name}


def corners(boxes):
    """Return boxes as (x_min, y_min, x_max, y_max), from (center x, center y, width, height)."""
    centers, halves = boxes[..., :2], boxes[..., 2:4] / 2
    return ops.concatenate([centers - halves, centers + halves], axis=-1)


def generalized_iou(boxes, others):
    """Return the generalized intersection over union of pairs of boxes.

    Args:
        boxes: float `(..., 4)`, center x, center y, width and height.
        others: the same, of a shape that broadcasts with `boxes`.
    """
    one, two = corners(boxes), corners(others)
    areas = [(each[..., 2] - each[..., 0]) * (each[..., 3] - each[..., 1]) for each in (one, two)]
    low, high = ops.maximum(one[..., :2], two[..., :2]), ops.minimum(one[..., 2:], two[..., 2:])
    shared = ops.maximum(high - low, 0)
    shared = shared[..., 0] * shared[..., 1]
    union = areas[0] + areas[1] - shared
    around = ops.maximum(one[..., 2:], two[..., 2:]) - ops.minimum(one[..., :2], two[..., :2])
    around = around[..., 0] * around[..., 1]
    # Boxes without any area have no IoU.
    tiny = 1e-12
    return shared / ops.maximum(union, tiny) - (around - union) / ops.maximum(around, tiny)
