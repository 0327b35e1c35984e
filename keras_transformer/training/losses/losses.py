"""Losses of models that predict tokens or classes."""

import keras
import numpy as np
from keras import ops

from keras_transformer.distribution.replicas import mean_over_replicas, share_of_weight
from keras_transformer.kernels.indexing import picked_by
from keras_transformer.kernels.values import values_at_hand
from keras_transformer.support.checking import check_choice, check_int, check_number

_REDUCTIONS = ("mean_with_sample_weight", "sum_over_batch_size", "sum", "mean", "none")


def below_largest(logits, axis: int = -1):
    """Return logits minus the largest of each row, which leaves their softmax unchanged.

    Differences of logits are exact, while a log-sum-exp of large logits would be rounded.
    """
    return logits - ops.stop_gradient(ops.max(logits, axis=axis, keepdims=True))


def checked_targets(targets, count: int, *weights, nothing: int = 0):
    """Check targets; return them as int32, with `nothing` in place of targets of weight 0.

    Raises ValueError if a target of nonzero weight is not from 0 to `count - 1` and values are
    known. They are unknown within a program of JAX or TensorFlow, and on a GPU reading them would
    make PyTorch wait: there the loss of such a target is NaN.

    Args:
        targets: int `(batch, ...)`.
        count: int, the number of classes or tokens, or None if unknown.
        *weights: float or bool, of the shape of `targets` or its first axes; or None.
        nothing: int, the replacement of targets of weight 0.
    """
    targets = ops.cast(targets, "int32")
    for given in weights:
        if given is None:
            continue
        given = ops.convert_to_tensor(given)
        rank = len(targets.shape) - len(given.shape)
        if rank >= 0:
            given = ops.reshape(given, (*ops.shape(given), *[1] * rank))
            targets = ops.where(ops.cast(given, "bool"), targets, nothing)
    values = values_at_hand(targets)
    if values is not None and count is not None and values.size:
        wrong = (values < 0) | (values >= count)
        if wrong.any():
            raise ValueError(
                f"Targets must be from 0 to {count - 1}, since the model has {count} outputs, "
                f"received {values[wrong][0]}. Targets to ignore, such as -100, need a "
                "`sample_weight` of 0."
            )
    return targets


def _mask_of(outputs):
    """Return the mask that Keras multiplies a loss of these outputs by, or None."""
    return getattr(outputs, "_keras_mask", None)


def within(targets, count: int):
    """Return which targets are from 0 to `count - 1`, bool, and targets clipped to that range."""
    return (targets >= 0) & (targets < count), ops.clip(targets, 0, count - 1)


def token_cross_entropy(targets, logits, label_smoothing: float = 0.0):
    """Return the loss per token in float32 nats.

    `logsumexp(z) - (1 - s) * z[target] - s * mean(z)` for logits z and smoothing s. The loss is
    NaN, without a gradient, if the target is outside the vocabulary.
    """
    logits = below_largest(ops.cast(logits, "float32"))
    known, targets = within(ops.cast(targets, "int32"), logits.shape[-1])
    picked = (1.0 - label_smoothing) * picked_by(logits, targets)
    losses = ops.log(ops.sum(ops.exp(logits), axis=-1)) - picked
    if label_smoothing:
        losses = losses - label_smoothing * ops.mean(logits, axis=-1)
    return ops.where(known, losses, np.nan)


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenCrossEntropy(keras.losses.Loss):
    """Label-smoothed cross-entropy, averaged over the real tokens of a batch.

    Takes int targets `(batch, length)`, logits `(batch, length, vocabulary)` of any float dtype
    and, as sample weight, the mask `(batch, length)` of the real tokens to average over. Computed
    in float32.

    Args:
        label_smoothing: float in [0, 1), the probability that is spread evenly over the
            vocabulary.
        reduction, name: see `keras.losses.Loss`.

    Raises:
        ValueError: if `label_smoothing` is out of range.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import TokenCrossEntropy

    targets, logits = np.array([[2, 0]]), np.zeros((1, 2, 5), "float32")
    mask = np.array([[True, False]])
    loss = TokenCrossEntropy(label_smoothing=0.1)(targets, logits, sample_weight=mask)
    assert abs(float(loss) - np.log(5)) < 1e-6
    ```

    Source: Szegedy et al. 2016, "Rethinking the Inception Architecture", section 7; used by
    Vaswani et al. 2017, section 5.4, with 0.1.
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        reduction: str | None = "mean_with_sample_weight",
        name: str = "token_cross_entropy",
    ):
        # float32 for any `floatx`, since the losses of a whole batch are summed in this dtype.
        check_choice("reduction", reduction, _REDUCTIONS, none=True)
        super().__init__(name=name, reduction=reduction, dtype="float32")
        self.label_smoothing = check_number("label_smoothing", label_smoothing, at_least=0, below=1)

    def __call__(self, y_true, y_pred, sample_weight=None):
        y_true = checked_targets(y_true, y_pred.shape[-1], sample_weight, _mask_of(y_pred))
        loss = super().__call__(y_true, y_pred, sample_weight)
        if sample_weight is None or self.reduction != "mean_with_sample_weight":
            return loss
        return loss * share_of_weight(ops.sum(ops.cast(sample_weight, "float32")))

    def total_weight(self, y_true, sample_weight=None):
        """Return the total weight of the tokens that the loss is a mean over, a float scalar."""
        if sample_weight is None or self.reduction != "mean_with_sample_weight":
            return ops.cast(ops.size(y_true), "float32")
        return mean_over_replicas(ops.sum(ops.cast(sample_weight, "float32")))

    def call(self, y_true, y_pred):
        return token_cross_entropy(y_true, y_pred, self.label_smoothing)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable(package="keras_transformer")
class ClassCrossEntropy(keras.losses.Loss):
    """Cross-entropy of classes, given as ids or as probabilities.

    Takes int targets `(batch,)`, or float targets `(batch, classes)` whose rows add up to 1
    (one-hot and soft labels), and logits `(batch, classes)`. Computed in float32.

    Args:
        reduction, name: see `keras.losses.Loss`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import ClassCrossEntropy

    logits = np.array([[2.0, 0.0]], "float32")
    assert abs(float(ClassCrossEntropy()(np.array([0]), logits)) - np.log(1 + np.exp(-2))) < 1e-6
    ```
    """

    def __init__(self, reduction="sum_over_batch_size", name: str = "class_cross_entropy"):
        super().__init__(name=name, reduction=reduction, dtype="float32")

    def __call__(self, y_true, y_pred, sample_weight=None):
        y_true, y_pred = map(ops.convert_to_tensor, (y_true, y_pred))
        if len(y_true.shape) < len(y_pred.shape) or y_true.shape[-1] == 1:
            y_true = checked_targets(y_true, y_pred.shape[-1], sample_weight, _mask_of(y_pred))
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true, y_pred):
        if len(y_true.shape) < len(y_pred.shape):
            return token_cross_entropy(y_true, y_pred)
        if y_true.shape[-1] == 1:
            return token_cross_entropy(ops.squeeze(y_true, -1), y_pred)
        logits = ops.cast(y_pred, "float32")
        return -ops.sum(ops.cast(y_true, "float32") * ops.log_softmax(logits, axis=-1), axis=-1)


@keras.saving.register_keras_serializable(package="keras_transformer")
class QuantileLoss(keras.losses.Loss):
    """Pinball loss, which is minimal if the forecasts are the quantiles of the targets.

    Takes targets `(..., 1)` and forecasts `(..., quantiles)`; the loss of a target is the mean over
    the quantiles. Computed in float32.

    Args:
        quantiles: list of floats between 0 and 1.
        reduction, name: see `keras.losses.Loss`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training.losses.losses import QuantileLoss

    loss = QuantileLoss([0.1, 0.9])(np.array([[1.0]]), np.array([[0.0, 3.0]]))
    assert abs(float(loss) - (0.1 * 1 + 0.1 * 2) / 2) < 1e-6
    ```

    Source: Koenker & Bassett 1978, "Regression Quantiles", equation 2.1.
    """

    def __init__(self, quantiles, reduction="sum_over_batch_size", name: str = "quantile_loss"):
        super().__init__(name=name, reduction=reduction, dtype="float32")
        self.quantiles = list(quantiles)

    def call(self, y_true, y_pred):
        missed = ops.cast(y_true, "float32") - ops.cast(y_pred, "float32")
        share = ops.convert_to_tensor(self.quantiles, "float32")
        return ops.mean(ops.maximum(share * missed, (share - 1) * missed), axis=-1)

    def get_config(self):
        return {**super().get_config(), "quantiles": self.quantiles}


@keras.saving.register_keras_serializable(package="keras_transformer")
class CTCLoss(keras.losses.Loss):
    """Negative log-probability of a text under all alignments of its tokens to states.

    Takes int targets `(batch, length)`, with blanks after the tokens of a text, and logits `(batch,
    states, vocabulary)` of any float dtype. The loss of a text is in nats per token. Computed in
    float32. It is infinite or very large if a text has more tokens than its states can hold.

    Args:
        blank_id: int, the blank token.
        reduction, name: see `keras.losses.Loss`.

    Raises:
        ValueError: if `blank_id` is negative or outside the vocabulary; and, where values are
            known, if a target is outside the vocabulary or a blank precedes a token. Within a
            compiled program the loss of such a text is NaN.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import CTCLoss

    targets, logits = np.array([[1, 0]]), np.zeros((1, 2, 4), "float32")
    # Three of the sixteen outputs of two states give the text: 1 1, 1 blank, blank 1.
    assert abs(float(CTCLoss()(targets, logits)) - np.log(16 / 3)) < 1e-5
    ```

    Source: Graves et al. 2006, "Connectionist Temporal Classification", section 4.
    """

    def __init__(
        self,
        blank_id: int = 0,
        reduction: str | None = "sum_over_batch_size",
        name: str = "ctc_loss",
    ):
        check_choice("reduction", reduction, _REDUCTIONS, none=True)
        super().__init__(name=name, reduction=reduction, dtype="float32")
        self.blank_id = check_int("blank_id", blank_id, at_least=0)

    def __call__(self, y_true, y_pred, sample_weight=None):
        y_pred = ops.convert_to_tensor(y_pred)
        count = y_pred.shape[-1]
        check_int("blank_id", self.blank_id, 0, count - 1)
        y_true = checked_targets(y_true, count, sample_weight, nothing=self.blank_id)
        values = values_at_hand(self._in_order(y_true))
        if values is not None and not values.all():
            row = int(values.argmin())
            raise ValueError(
                f"Row {row} of the targets has the blank token {self.blank_id} before another "
                "token. Blanks may only fill a row after its text."
            )
        return super().__call__(y_true, y_pred, sample_weight)

    def _in_order(self, targets):
        """Return whether the blanks of each row follow its tokens, bool `(batch,)`."""
        said = ops.not_equal(targets, self.blank_id)
        return ops.all(said[:, :-1] | ~said[:, 1:], axis=-1)

    def call(self, y_true, y_pred):
        targets, logits = ops.cast(y_true, "int32"), ops.cast(y_pred, "float32")
        known, nearest = within(targets, logits.shape[-1])  # PyTorch would read past the logits
        tokens = ops.sum(ops.cast(ops.not_equal(targets, self.blank_id), "int32"), axis=-1)
        # Not `ops.full`, which on PyTorch reads its value from a tensor: the host would wait for
        # the GPU.
        states = ops.zeros_like(tokens) + ops.shape(logits)[1]
        losses = ops.ctc_loss(nearest, logits, tokens, states, mask_index=self.blank_id)
        losses = losses / ops.cast(ops.maximum(tokens, 1), "float32")
        return ops.where(ops.all(known, axis=-1) & self._in_order(targets), losses, np.nan)

    def get_config(self) -> dict:
        return {**super().get_config(), "blank_id": self.blank_id}
