"""Training and evaluation steps that weight a batch by what its loss averages over.

Keras weights a batch by its number of rows. If rows differ in their numbers of tokens, the loss of
an epoch then depends on the batch size, and so do gradients accumulated over several batches.
"""

import keras
from keras import ops

from keras_transformer.kernels.accumulation import weighed


class TrainingLoss:
    """Computation of a training or evaluation step: forward pass, loss, and metrics.

    Args:
        model: the `keras.Model` of the step.
    """

    def __init__(self, model: keras.Model):
        self.model = model

    def batch(self, x, y, sample_weight, training: bool) -> tuple:
        """Return the batch that the step computes with: here the given one, unchanged."""
        return x, y, sample_weight

    def states(self, x, sample_weight, training: bool):
        """Run the forward pass, from which loss and metrics are computed."""
        raise NotImplementedError

    def loss(self, states, x, y, sample_weight, training: bool):
        """Compute the loss, a scalar, from the states of the inputs `x`."""
        raise NotImplementedError

    def weight(self, x, y, sample_weight):
        """Return the weight that the loss averages over, a float scalar: here the rows of `x`."""
        rows = ops.shape(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))[0]
        return ops.cast(rows, "float32")

    def apply(self, gradients: list, variables: list, weight) -> None:
        """Give the optimizer the gradients of a loss that is a mean over `weight`."""
        with weighed(self.model.optimizer, weight):
            self.model.optimizer.apply(gradients, variables)

    def logs(self, states, x, y, sample_weight) -> dict:
        """Return the values of all metrics after the step."""
        return self.model.get_metrics_result()


class OutputLoss(TrainingLoss):
    """Keras's loss and metrics, computed from the outputs of `call`."""

    def states(self, x, sample_weight, training):
        options = {"training": training} if self.model._call_has_training_arg else {}
        return self.model(x, **options)

    def loss(self, states, x, y, sample_weight, training):
        return self.model._compute_loss(x, y, states, sample_weight, training=training)

    def weight(self, x, y, sample_weight):
        loss = self.model.loss
        # A loss defined by the user has the meaning that Keras gives it.
        if not _is_of_library(type(self.model), "compute_loss"):
            return super().weight(x, y, sample_weight)
        if hasattr(loss, "total_weight"):
            return loss.total_weight(y, sample_weight)
        of_weights = getattr(loss, "reduction", None) == "mean_with_sample_weight"
        if not of_weights or sample_weight is None or keras.tree.is_nested(sample_weight):
            return super().weight(x, y, sample_weight)
        return ops.sum(ops.cast(sample_weight, "float32"))

    def logs(self, states, x, y, sample_weight):
        return self.model.compute_metrics(x, y, states, sample_weight)


def _is_of_library(kind: type, method: str) -> bool:
    """Return whether a method is defined by this library or Keras, not by a user's subclass."""
    owner = next(base for base in kind.__mro__ if method in vars(base))
    return owner.__module__.partition(".")[0] in ("keras", "keras_transformer")
