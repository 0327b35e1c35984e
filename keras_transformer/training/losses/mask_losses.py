"""The loss of masks of prompts: focal and dice losses of pixels, and the error of scores."""

import keras
from keras import ops

from keras_transformer.support.checking import check_number

UNKNOWN = 255  # the class of pixels that do not count


def focal_loss(targets, logits, known, gamma: float = 2.0, alpha: float = 0.25):
    """Return the mean focal loss of the known pixels of each mask.

    Args:
        targets: float 0 or 1, `(..., height, width)`.
        logits: float, a shape that it broadcasts to.
        known: float 0 or 1, like `targets`.
        gamma: float, how much less pixels count that are right already.
        alpha: float, the weight of pixels of objects; others have 1 less this.

    Source: Lin et al. 2017, "Focal Loss for Dense Object Detection", equation 5.
    """
    wrong = logits * (1 - 2 * targets)  # the logit of the other class
    weights = alpha * targets + (1 - alpha) * (1 - targets)
    values = weights * ops.sigmoid(wrong) ** gamma * ops.softplus(wrong) * known
    return ops.sum(values, axis=(-2, -1)) / ops.maximum(ops.sum(known, axis=(-2, -1)), 1.0)


def dice_loss(targets, logits, known):
    """Return 1 less the dice coefficient of each mask; arguments are those of `focal_loss`.

    Source: Milletari et al. 2016, "V-Net", section 3.
    """
    found = ops.sigmoid(logits) * known
    both = ops.sum(found * targets, axis=(-2, -1))
    sizes = ops.sum(found, axis=(-2, -1)) + ops.sum(targets * known, axis=(-2, -1))
    return 1 - (2 * both + 1) / (sizes + 1)


@keras.saving.register_keras_serializable(package="keras_transformer")
class PromptedMaskLoss(keras.losses.Loss):
    """The loss of masks and of their scores: focal and dice losses, and the squared error.

    An ambiguous prompt has several masks, of which the one with the lowest loss learns; a prompt
    that is not has one of its own. Each of these masks has a score, which learns the intersection
    over union of its mask with the target.

    Takes targets `(batch, prompts, height, width)`, 1 on the object, 0 beside it and 255 where it
    is unknown; and the outputs of a `PromptedSegmenter` with `"ambiguous"`, bool `(batch,
    prompts)`. The values are of each prompt.

    Args:
        focal, dice, score: float, weights of the three losses.
        reduction, name: as in `keras.losses.Loss`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import PromptedMaskLoss

    targets = np.eye(4, dtype="float32")[None, None]
    right = np.stack([40 * targets - 20] * 4, axis=2)  # one mask, and three of ambiguous prompts
    scores, ambiguous = np.ones((1, 1, 4), "float32"), np.array([[True]])
    outputs = {"masks": right, "iou_scores": scores, "ambiguous": ambiguous}
    assert float(PromptedMaskLoss()(targets, outputs)) < 1e-4
    ```

    Source: Kirillov et al. 2023, "Segment Anything", section 3 and appendix A.
    """

    def __init__(
        self,
        focal: float = 20.0,
        dice: float = 1.0,
        score: float = 1.0,
        reduction="mean_with_sample_weight",
        name: str = "prompted_mask_loss",
    ):
        super().__init__(name=name, reduction=reduction, dtype="float32")
        self.focal = check_number("focal", focal, at_least=0)
        self.dice = check_number("dice", dice, at_least=0)
        self.score = check_number("score", score, at_least=0)

    def call(self, y_true, y_pred):
        logits = ops.cast(y_pred["masks"], "float32")
        known = ops.cast(y_true != UNKNOWN, "float32")[:, :, None]
        targets = ops.cast(y_true, "float32")[:, :, None] * known
        values = self.focal * focal_loss(targets, logits, known)
        values = values + self.dice * dice_loss(targets, logits, known)
        scores = ops.cast(y_pred["iou_scores"], "float32")
        errors = ops.square(scores - intersection_over_union(targets, logits, known))
        of_several = ops.min(values[..., 1:], axis=-1) + self.score * ops.mean(
            errors[..., 1:], axis=-1
        )
        of_one = values[..., 0] + self.score * errors[..., 0]
        return ops.where(ops.cast(y_pred["ambiguous"], "bool"), of_several, of_one)

    def get_config(self):
        own = {"focal": self.focal, "dice": self.dice, "score": self.score}
        return {**super().get_config(), **own}


def intersection_over_union(targets, logits, known):
    """Return how well each mask fits, without a gradient; arguments are those of `focal_loss`."""
    found = ops.cast(logits > 0, "float32") * known
    both = ops.sum(found * targets, axis=(-2, -1))
    either = ops.sum(ops.maximum(found, targets * known), axis=(-2, -1))
    return ops.stop_gradient(both / ops.maximum(either, 1.0))
