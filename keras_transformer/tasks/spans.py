"""What a question answerer learns by: the loss and the metric of first and last tokens."""

import keras
from keras import ops

from keras_transformer.training.losses import token_cross_entropy


@keras.saving.register_keras_serializable(package="keras_transformer")
class SpanCrossEntropy(keras.losses.Loss):
    """The mean of two cross-entropies: int positions `(batch, 2)`, logits `(batch, length, 2)`.

    Source: Devlin et al. 2018, "BERT", section 4.2.
    """

    def __init__(self, reduction="sum_over_batch_size", name: str = "span_cross_entropy"):
        super().__init__(name=name, reduction=reduction, dtype="float32")

    def call(self, y_true, y_pred):
        losses = token_cross_entropy(y_true, ops.transpose(y_pred, (0, 2, 1)))
        return ops.mean(losses, axis=-1)


def exact_match(y_true, y_pred):
    """Whether both positions `(batch, 2)` are where the logits `(batch, length, 2)` are highest."""
    right = ops.equal(ops.argmax(y_pred, axis=1), ops.cast(y_true, "int32"))
    return ops.cast(ops.all(right, axis=-1), "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class SpanAccuracy(keras.metrics.MeanMetricWrapper):
    """The share of rows whose first and last token are both found."""

    _direction = "up"

    def __init__(self, name: str = "accuracy", dtype=None):
        super().__init__(exact_match, name=name, dtype=dtype)

    def get_config(self) -> dict:
        return {"name": self.name, "dtype": self.dtype}
