"""What tasks share that predict tokens: their logits, and a loss that needs no logits."""

import dataclasses

import keras
from keras import ops

from keras_transformer.distribution.replicas import part_of_mean
from keras_transformer.layers.embedding import VocabularyBias
from keras_transformer.models.backbone import Backbone
from keras_transformer.tasks.task import Task
from keras_transformer.training.linear_cross_entropy import linear_cross_entropy, mean_of
from keras_transformer.training.losses import TokenCrossEntropy
from keras_transformer.training.metrics import TokenMean
from keras_transformer.training.steps import KnowsItsSteps

# What a subclass may override, to be given logits.
_OF_LOGITS = ("call", "compute_loss", "compute_metrics")


@dataclasses.dataclass(frozen=True)
class _SumsOfTokens:
    """What was compiled. In an object of its own, else Keras would take the metrics for more."""

    metrics: list
    suffice: bool  # whether loss and metrics can be computed from `TokenSums`


class TokenPredictor(KnowsItsSteps, Task):
    """A task whose outputs are logits of the vocabulary.

    In `fit` and `evaluate` the projection to the vocabulary is part of the loss, and the logits of
    a batch are never there as a whole (see `training.linear_cross_entropy`). So it is with the
    loss `TokenCrossEntropy`, and of metrics only `Perplexity` and `TokenAccuracy` among the
    `weighted_metrics`; with others Keras computes from the logits, and so it does for a subclass
    with a `call`, `compute_loss` or `compute_metrics` of its own, which are given the logits.
    """

    @property
    def number_of_targets(self) -> int:
        return self.backbone.config.vocabulary_size

    def final_states(self, inputs, training: bool = False):
        """What is projected to the vocabulary, `(batch, length, embedding_dim)`."""
        raise NotImplementedError

    @property
    def vocabulary_bias(self) -> VocabularyBias | None:
        """A bias of the logits beside the backbone's."""
        return None

    def call(self, inputs, training: bool = False):
        states = self.final_states(inputs, training=training)
        if self._in_step and self._projects_in_the_loss():
            return states
        logits = self.backbone.logits(states)
        return logits if self.vocabulary_bias is None else self.vocabulary_bias(logits)

    def compile(
        self,
        optimizer="rmsprop",
        loss=None,
        loss_weights=None,
        metrics=None,
        weighted_metrics=None,
        **kwargs,
    ):
        super().compile(optimizer, loss, loss_weights, metrics, weighted_metrics, **kwargs)
        token_means = [] if weighted_metrics is None else keras.tree.flatten(weighted_metrics)
        counted = all(isinstance(metric, TokenMean) for metric in token_means)
        self._sums = _SumsOfTokens(
            token_means,
            type(loss) is TokenCrossEntropy
            and loss.reduction == "mean_with_sample_weight"
            and loss_weights is None
            and metrics is None
            and counted,
        )

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if not self._in_step or not self._projects_in_the_loss():
            return super().compute_loss(x, y, y_pred, sample_weight, training=training)
        sums = linear_cross_entropy(
            *self.backbone.output_projection(y_pred),
            y,
            sample_weight,
            self._whole_bias(),
            self.loss.label_smoothing,
            gradient=training,
        )
        for metric in self._sums.metrics:
            metric.update_from_sums(sums)
        loss = part_of_mean(mean_of(sums), sums.weight)
        for more in self.losses:  # of regularizers
            loss = loss + ops.cast(self._aggregate_additional_loss(more), loss.dtype)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if not self._in_step or not self._projects_in_the_loss():
            return super().compute_metrics(x, y, y_pred, sample_weight)
        # The metrics were updated with the loss. Keras builds its list of them at the first update.
        if self._compile_metrics is not None and not self._compile_metrics.built:
            self._compile_metrics.build(y, y_pred)
        return self.get_metrics_result()

    def _projects_in_the_loss(self) -> bool:
        return (
            all(getattr(type(self), name) is getattr(TokenPredictor, name) for name in _OF_LOGITS)
            and type(self.backbone).logits is Backbone.logits
            and self._sums.suffice
            and self.backbone.token_embedding.quantization_mode is None
        )

    def _whole_bias(self):
        biases = (self.backbone.output_bias, self.vocabulary_bias)
        biases = [layer.bias for layer in biases if layer is not None]
        return sum(map(ops.convert_to_tensor, biases[1:]), biases[0]) if biases else None
