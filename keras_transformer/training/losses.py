"""The losses of models that predict tokens or classes."""

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import check_choice, check_int, check_number
from keras_transformer.distribution.replicas import mean_over_replicas, share_of_weight
from keras_transformer.kernels.values import has_values

_REDUCTIONS = ("mean_with_sample_weight", "sum_over_batch_size", "sum", "mean", "none")


def below_largest(logits, axis: int = -1):
    """Return logits without the largest of each row, which no softmax depends on.

    Differences of logits are exact where the sum of their exponentials, a number as large as they
    are, is not.
    """
    return logits - ops.stop_gradient(ops.max(logits, axis=axis, keepdims=True))


def checked_targets(targets, count: int, *weights, nothing: int = 0):
    """Return int32 targets, `nothing` in place of those of a weight of 0, which may be any number.

    Raises ValueError for another one that is not from 0 to `count - 1`, if the values are known:
    within a program of JAX or TensorFlow they are not, and on a GPU of PyTorch a look would wait.
    There the loss of such a target is NaN.

    Args:
        targets: int `(batch, ...)`.
        count: int, the number of classes or tokens; None if it is not known.
        *weights: float or bool, of the shape of `targets` or its first axes; or None.
        nothing: int.
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
    values = _known(targets)
    if values is not None and count is not None and values.size:
        wrong = (values < 0) | (values >= count)
        if wrong.any():
            raise ValueError(
                f"Targets must be from 0 to {count - 1}, since the model tells {count} apart, "
                f"received {values[wrong][0]}. What does not count, such as -100, needs a "
                "`sample_weight` of 0."
            )
    return targets


def _mask_of(outputs):
    """Return the mask that Keras multiplies a loss of these outputs by, or None."""
    return getattr(outputs, "_keras_mask", None)


def _known(tensor) -> "np.ndarray | None":
    """The values of a tensor, None where they cannot be looked at, or only by waiting for them."""
    backend = keras.backend.backend()
    if backend == "torch":
        known = has_values(tensor) and tensor.device.type == "cpu"
    elif backend == "jax":
        import jax

        known = isinstance(tensor, jax.Array) and not isinstance(tensor, jax.core.Tracer)
        known = known and tensor.is_fully_addressable
    else:
        known = hasattr(tensor, "numpy")  # of an eager tensor of TensorFlow alone
    return ops.convert_to_numpy(tensor) if known else None


def within(targets, count: int):
    """Whether targets are from 0 to `count - 1`, and the nearest that are: bool and int."""
    return (targets >= 0) & (targets < count), ops.clip(targets, 0, count - 1)


def token_cross_entropy(targets, logits, label_smoothing: float = 0.0):
    """Loss per token, in float32 nats: `logsumexp(z) - (1 - s) * z[target] - s * mean(z)`.

    It is NaN, without a gradient, for a target that is none of the tokens.
    """
    logits = below_largest(ops.cast(logits, "float32"))
    known, targets = within(ops.cast(targets, "int32"), logits.shape[-1])
    targets = ops.expand_dims(targets, -1)
    if keras.backend.backend() == "tensorflow":
        # Picked by comparison: TensorFlow's gradient of a gather is a slow scatter. Measured
        # forward and backward with a 128-wide projection, 256 x 24 tokens, 8,000 words, 2
        # cores: TensorFlow 593 ms by gather and 398 ms by comparison, but JAX 405 and 461,
        # PyTorch 969 and 1,141.
        is_target = ops.equal(ops.arange(logits.shape[-1], dtype="int32"), targets)
        picked = ops.sum(ops.where(is_target, logits, 0.0), axis=-1)
    else:
        picked = ops.squeeze(ops.take_along_axis(logits, targets, axis=-1), axis=-1)
    losses = ops.log(ops.sum(ops.exp(logits), axis=-1)) - (1.0 - label_smoothing) * picked
    if label_smoothing:
        losses = losses - label_smoothing * ops.mean(logits, axis=-1)
    return ops.where(known, losses, np.nan)


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenCrossEntropy(keras.losses.Loss):
    """Label-smoothed cross-entropy, averaged over the real tokens of a batch.

    Takes int targets `(batch, length)`, logits `(batch, length, vocabulary)` of any float dtype
    and, as sample weight, the mask `(batch, length)` of the real tokens, over which the mean is.
    Computed in float32.

    Args:
        label_smoothing: float in [0, 1), the probability that is spread evenly over the
            vocabulary.
        reduction, name: as in `keras.losses.Loss`.

    Raises:
        ValueError: for a `label_smoothing` out of range.

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
        # float32 whatever floatx is: the losses of a whole batch are summed in this dtype.
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
        """What the loss of these targets is a mean over, a float scalar: the tokens, by weight."""
        if sample_weight is None or self.reduction != "mean_with_sample_weight":
            return ops.cast(ops.size(y_true), "float32")
        return mean_over_replicas(ops.sum(ops.cast(sample_weight, "float32")))

    def call(self, y_true, y_pred):
        return token_cross_entropy(y_true, y_pred, self.label_smoothing)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable(package="keras_transformer")
class ClassCrossEntropy(keras.losses.Loss):
    """Cross-entropy of classes, given by number or by the probability of each.

    Takes int targets `(batch,)`, or float ones `(batch, classes)` whose rows add up to 1 (one-hot
    and soft labels), and logits `(batch, classes)`. Computed in float32.

    Args:
        reduction, name: as in `keras.losses.Loss`.

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
    """The pinball loss: least if so large a share of the truth is below each forecast.

    Takes targets `(..., 1)` and forecasts `(..., quantiles)`; the loss of a target is the mean over
    the quantiles. Computed in float32.

    Args:
        quantiles: list of floats between 0 and 1.
        reduction, name: as in `keras.losses.Loss`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training.losses import QuantileLoss

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
    """Of a text the probability that states say it, whichever of them say which token.

    Takes int targets `(batch, length)`, blanks behind those of a text, and logits `(batch, states,
    vocabulary)` of any float dtype. That of a text is its negative log-probability, in nats, a
    token. Computed in float32. It is infinite, or very large, where a text has more tokens than
    there are states for it.

    Args:
        blank_id: int, the token that stands for nothing.
        reduction, name: as in `keras.losses.Loss`.

    Raises:
        ValueError: for a negative `blank_id`, or one that the logits do not have; and, where values
            are known, for a target that is none of the tokens, or a blank before a token. Within a
            program the loss of such a text is NaN.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import CTCLoss

    targets, logits = np.array([[1, 0]]), np.zeros((1, 2, 4), "float32")
    # Three of the sixteen things that two states can say are the text: 1 1, 1 and a blank.
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
        values = _known(self._in_order(y_true))
        if values is not None and not values.all():
            row = int(values.argmin())
            raise ValueError(
                f"Row {row} of the targets has the token {self.blank_id}, which stands for "
                "nothing, before another one. It fills a row behind its text alone."
            )
        return super().__call__(y_true, y_pred, sample_weight)

    def _in_order(self, targets):
        """Whether the blanks of each row are behind its tokens, bool `(batch,)`."""
        said = ops.not_equal(targets, self.blank_id)
        return ops.all(said[:, :-1] | ~said[:, 1:], axis=-1)

    def call(self, y_true, y_pred):
        targets, logits = ops.cast(y_true, "int32"), ops.cast(y_pred, "float32")
        known, nearest = within(targets, logits.shape[-1])  # PyTorch would read past the logits
        tokens = ops.sum(ops.cast(ops.not_equal(targets, self.blank_id), "int32"), axis=-1)
        states = ops.full((ops.shape(logits)[0],), ops.shape(logits)[1], dtype="int32")
        losses = ops.ctc_loss(nearest, logits, tokens, states, mask_index=self.blank_id)
        losses = losses / ops.cast(ops.maximum(tokens, 1), "float32")
        return ops.where(ops.all(known, axis=-1) & self._in_order(targets), losses, np.nan)

    def get_config(self) -> dict:
        return {**super().get_config(), "blank_id": self.blank_id}
