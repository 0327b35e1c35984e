"""Losses of CLIP and SigLIP for batches of matching images or recordings and texts."""

from typing import Any

import keras
from keras import ops

from keras_transformer.distribution.replicas import mean_over_replicas, share_of_weight
from keras_transformer.layers.arguments import agree, known_shape
from keras_transformer.support.checking import nearest, shorten, with_article
from keras_transformer.training.losses.losses import below_largest

_HIDDEN = -1e30


class PairLoss(keras.losses.Loss):
    """Base class of losses of the logits of a batch of pairs, `(pairs, pairs)`, in float32.

    The i-th image or recording and the i-th text are a pair. Pairs of weight 0 are ignored.
    """

    # Whether logits `(pairs, pairs, 2)` may differ for the texts of an image and the images of a
    # text.
    takes_both = False

    def __init__(self, name: str | None = None):
        super().__init__(name=name, reduction=None, dtype="float32")

    def __call__(self, y_true, y_pred, sample_weight=None):
        logits = ops.convert_to_tensor(y_pred, dtype="float32")
        shape = known_shape(logits)
        square = shape is None or (len(shape) >= 2 and agree(shape[:1], shape[1:2]))
        if not square or (shape and shape[2:] not in ((), (2,) if self.takes_both else ())):
            raise ValueError(
                f"{type(self).__name__} takes the logits of as many images as texts, `(pairs, "
                f"pairs)`, received shape {shape}. Fit on both: fit((images, texts))."
            )
        if sample_weight is None:
            weights = ops.ones_like(ops.reshape(logits, (ops.shape(logits)[0], -1))[:, 0])
        else:
            weights = sample_weight
        weights = ops.reshape(ops.convert_to_tensor(weights, dtype="float32"), (-1,))
        losses = self.of_pairs(logits, weights > 0)
        total = ops.sum(weights)
        mean = ops.divide_no_nan(ops.sum(losses * weights), total)
        return mean * share_of_weight(total)

    def total_weight(self, y_true, sample_weight=None):
        """Return the total weight of the pairs that the loss is a mean over, a float scalar."""
        weights = ops.ones_like(y_true) if sample_weight is None else sample_weight
        return mean_over_replicas(ops.sum(ops.cast(weights, "float32")))

    def of_pairs(self, logits, there):
        """Return the loss of each pair, `(pairs,)`.

        Pairs for which `there`, bool `(pairs,)`, is False are ignored.
        """
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}


@keras.saving.register_keras_serializable(package="keras_transformer")
class ContrastiveLoss(PairLoss):
    """Mean of two cross-entropies: each image's text among all texts, and each text's image.

    Larger batches have more negatives. A text that occurs twice in a batch also counts as wrong for
    its own image: let texts differ from row to row. Logits `(pairs, pairs, 2)` have a scale of
    their own in each of the two (CLAP).

    Args:
        name: see `keras.losses.Loss`.

    Raises:
        ValueError: if the logits are not square.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import ContrastiveLoss

    loss = ContrastiveLoss()(np.ones(2), np.array([[2.0, 0.0], [0.0, 2.0]]))
    assert abs(float(loss) - np.log(1 + np.exp(-2))) < 1e-6
    ```

    Source: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
    Supervision", figure 3.
    """

    def __init__(self, name: str = "contrastive"):
        super().__init__(name)

    takes_both = True

    def of_pairs(self, logits, there):
        total = 0.0
        of_rows, of_columns = (logits, logits) if len(logits.shape) == 2 else split(logits)
        for scores in (of_rows, ops.transpose(of_columns)):
            # The number of pairs may be unknown to a graph, so a pair's own score is the diagonal.
            scores = below_largest(ops.where(there[None], scores, _HIDDEN))
            total += ops.log(ops.sum(ops.exp(scores), axis=-1)) - ops.diagonal(scores)
        return total / 2


@keras.saving.register_keras_serializable(package="keras_transformer")
class PairwiseSigmoidLoss(PairLoss):
    """Binary cross-entropy of whether each image and text belong together, summed over the texts.

    Each combination is judged on its own, so the loss depends less on the batch size than
    `ContrastiveLoss`.

    Args:
        name: see `keras.losses.Loss`.

    Raises:
        ValueError: if the logits are not square.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import PairwiseSigmoidLoss

    loss = PairwiseSigmoidLoss()(np.ones(2), np.array([[2.0, -2.0], [-2.0, 2.0]]))
    assert abs(float(loss) - 2 * np.log(1 + np.exp(-2))) < 1e-6
    ```

    Source: Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training", section 3.
    """

    def __init__(self, name: str = "pairwise_sigmoid"):
        super().__init__(name)

    def of_pairs(self, logits, there):
        own = ops.eye(ops.shape(logits)[0], dtype="float32")
        losses = ops.softplus(logits * (1 - 2 * own))
        return ops.sum(ops.where(there[None], losses, 0.0), axis=1)


@keras.saving.register_keras_serializable(package="keras_transformer")
class PairAccuracy(keras.metrics.MeanMetricWrapper):
    """Share of images or recordings whose own text is the likeliest of their batch, from logits.

    Args:
        name, dtype: see `keras.metrics.Metric`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import PairAccuracy

    metric = PairAccuracy()
    metric.update_state(np.ones(2), np.array([[2.0, 0.0], [3.0, 1.0]]))
    assert float(metric.result()) == 0.5
    ```
    """

    _direction = "up"

    def __init__(self, name: str = "accuracy", dtype=None):
        super().__init__(pair_accuracy, name=name, dtype=dtype)

    def get_config(self) -> dict:
        return {"name": self.name, "dtype": self.dtype}


def pair_accuracy(y_true, y_pred):
    """Return 1 for each row whose own text is the likeliest, else 0, float32 `(pairs,)`."""
    if len(y_pred.shape) == 3:
        y_pred, _ = split(y_pred)
    places = ops.arange(ops.shape(y_pred)[0], dtype="int32")
    return ops.cast(ops.equal(ops.cast(ops.argmax(y_pred, axis=1), "int32"), places), "float32")


def split(logits):
    """Return the logits `(pairs, pairs)` of the rows and of the columns of `(pairs, pairs, 2)`."""
    return logits[..., 0], logits[..., 1]


_LOSSES = {"contrastive": ContrastiveLoss, "pairwise_sigmoid": PairwiseSigmoidLoss}


def pair_loss(given: Any, task: str) -> Any:
    """Return the loss with this name, or a given loss itself.

    Raises ValueError if it is unknown; `task` is the name of the task that has no such loss.
    """
    if not isinstance(given, str) or given == "auto":
        return given
    if given not in _LOSSES:
        raise ValueError(
            f"{with_article(task, capital=True)} has no loss "
            f"{shorten(given)}.{nearest(given, _LOSSES)} It has "
            f"{', '.join(map(repr, _LOSSES))}; or give a loss of `keras_transformer.training`."
        )
    return _LOSSES[given]()
