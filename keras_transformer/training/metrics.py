"""Perplexity and accuracy of tokens, accuracy of classes."""

import inspect
from typing import Any

import keras
from keras import ops

from keras_transformer.training.losses.linear_cross_entropy import TokenSums
from keras_transformer.training.losses.losses import checked_targets, token_cross_entropy


class TokenMean(keras.metrics.Metric):
    """Base class of weighted means over tokens, not over rows: padding does not count."""

    def __init__(self, name=None, dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.total = self.add_variable(shape=(), initializer="zeros", name="total")
        self.count = self.add_variable(shape=(), initializer="zeros", name="count")

    def token_values(self, y_true, y_pred):
        """Return the values to average, `(batch, length)`."""
        raise NotImplementedError

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_pred = ops.convert_to_tensor(y_pred)
        y_true = checked_targets(y_true, y_pred.shape[-1], sample_weight)
        values = ops.cast(self.token_values(y_true, y_pred), self.dtype)
        weights = ops.ones_like(values)
        if sample_weight is not None:
            weights = weights * ops.cast(sample_weight, self.dtype)
        # `where` drops outputs at padded positions even if they are infinite.
        self.total.assign_add(ops.sum(ops.where(weights > 0, values * weights, 0.0)))
        self.count.assign_add(ops.sum(weights))

    def total_of(self, sums: TokenSums):
        """Return the weighted sum over a batch from which this metric takes the mean."""
        raise NotImplementedError

    def update_from_sums(self, sums: TokenSums) -> None:
        """Update the state from sums that the loss has already computed."""
        self.total.assign_add(ops.cast(self.total_of(sums), self.dtype))
        self.count.assign_add(ops.cast(sums.weight, self.dtype))

    def result(self):
        return ops.divide_no_nan(self.total, self.count)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenMean):
    """The exponential of the mean cross-entropy of the real tokens, from logits.

    Takes int targets `(batch, length)`, logits `(batch, length, vocabulary)` and the mask of the
    real tokens as sample weight: give it to `compile` as one of `weighted_metrics`. Label smoothing
    is not included.

    Args:
        name, dtype: see `keras.metrics.Metric`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import Perplexity

    metric = Perplexity()
    metric.update_state(np.array([[1, 2]]), np.zeros((1, 2, 5), "float32"))
    assert abs(float(metric.result()) - 5.0) < 1e-4
    ```
    """

    _direction = "down"  # tells Keras's callbacks which value is better

    def __init__(self, name="perplexity", dtype=None):
        super().__init__(name=name, dtype=dtype)

    def token_values(self, y_true, y_pred):
        return token_cross_entropy(y_true, y_pred)

    def total_of(self, sums: TokenSums):
        return sums.cross_entropy

    def result(self):
        """Return the perplexity of all batches so far; 0 before the first, as in Keras."""
        return ops.where(ops.equal(self.count, 0), 0.0, ops.exp(super().result()))


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(TokenMean):
    """The share of real tokens whose most likely prediction is the target.

    Takes the same arguments as `Perplexity`. Batches of different lengths count by their tokens,
    unlike with `keras.metrics.SparseCategoricalAccuracy`.

    Args:
        name, dtype: see `keras.metrics.Metric`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import TokenAccuracy

    metric = TokenAccuracy()
    logits = np.eye(3, dtype="float32")[None]
    metric.update_state([[0, 1, 1]], logits, sample_weight=[[True, True, False]])
    assert float(metric.result()) == 1.0
    ```
    """

    _direction = "up"

    def __init__(self, name="accuracy", dtype=None):
        super().__init__(name=name, dtype=dtype)

    def token_values(self, y_true, y_pred):
        return ops.equal(ops.argmax(y_pred, axis=-1), ops.cast(y_true, "int32"))

    def total_of(self, sums: TokenSums):
        return sums.correct


def class_accuracy(y_true, y_pred, multi_label: bool):
    """Return 1 or 0 for right and wrong classes, or the share of right multi-labels, `(batch,)`."""
    if multi_label:
        right = ops.equal(ops.greater(y_pred, 0), ops.greater(y_true, 0.5))
        return ops.mean(ops.cast(right, "float32"), axis=-1)
    if len(y_true.shape) == len(y_pred.shape):
        y_true = ops.argmax(y_true, axis=-1) if y_true.shape[-1] > 1 else ops.squeeze(y_true, -1)
    right = ops.equal(ops.argmax(y_pred, axis=-1), ops.cast(y_true, "int32"))
    return ops.cast(right, "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class ClassAccuracy(keras.metrics.MeanMetricWrapper):
    """The share of rows whose likeliest class is right, from logits `(batch, classes)`.

    Takes class ids `(batch,)`, or probabilities `(batch, classes)`, of which the largest is the
    right class. With `multi_label` it is the share of classes that are predicted correctly, present
    or absent.

    Args:
        multi_label: bool, see above.
        name, dtype: see `keras.metrics.Metric`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import ClassAccuracy

    metric = ClassAccuracy()
    metric.update_state(np.array([0, 0]), np.array([[2.0, 0.0], [0.0, 2.0]]))
    assert float(metric.result()) == 0.5
    ```
    """

    _direction = "up"

    def __init__(self, multi_label: bool = False, name: str = "accuracy", dtype=None):
        super().__init__(class_accuracy, name=name, dtype=dtype, multi_label=multi_label)
        self.multi_label = multi_label

    def get_config(self) -> dict:
        return {"multi_label": self.multi_label, "name": self.name, "dtype": self.dtype}


def metric_of_logits(metric: Any, multi_label: bool) -> Any:
    """Return the Keras metric with this name, for logits of classes, or a given metric itself."""
    if not isinstance(metric, str):
        return metric
    if metric.lower() in ("accuracy", "acc", "binary_accuracy", "binaryaccuracy"):
        return ClassAccuracy(multi_label, name=metric)
    try:
        kind = type(keras.metrics.get(metric))
    except ValueError:  # Keras reports unknown names itself
        return metric
    known = inspect.signature(kind.__init__).parameters
    return kind(name=metric, from_logits=True) if "from_logits" in known else metric
