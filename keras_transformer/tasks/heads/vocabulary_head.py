"""The head of language models, and their loss, which does not materialize the logits."""

from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.distribution.replicas import part_of_mean
from keras_transformer.layers.embedding import VocabularyBias
from keras_transformer.models.runtime.runtime import TrainingLoss
from keras_transformer.support.checking import check_int, shorten
from keras_transformer.tasks.base.head import PER_TOKEN, Head
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.data.class_weights import ClassWeights
from keras_transformer.training.losses.linear_cross_entropy import (
    linear_cross_entropy,
    linear_log_probabilities,
    mean_of,
)
from keras_transformer.training.losses.losses import (
    TokenCrossEntropy,
    checked_targets,
    token_cross_entropy,
)
from keras_transformer.training.metrics import Perplexity, TokenAccuracy, TokenMean

# A task that overrides one of these methods expects logits, so `TokenLoss` cannot be used.
_OF_LOGITS = ("call", "head_outputs", "compute_loss", "compute_metrics")


class TokenLoss(TrainingLoss):
    """Token cross-entropy computed from the states before the projection, with its metrics."""

    def __init__(self, model: Task, metrics: list[TokenMean]):
        super().__init__(model)
        self.metrics = metrics

    def states(self, x, sample_weight, training):
        inputs = given = self.model._named(x)
        if training and sample_weight is not None:
            given = self.model.backbone.without_unseen_padding(inputs, sample_weight)
        states, _ = self.model.backbone_states(given, training=training)
        return self.model.head.projected_states(states, inputs)

    def loss(self, states, x, y, sample_weight, training):
        task = self.model
        states, kernel = task.head.output_projection(states, joined=False)
        whole = kernel.shape[0] == task.head.number_of_targets
        sums = linear_cross_entropy(
            states,
            kernel,
            y,
            sample_weight,
            task.head.summed_bias(),
            task.loss.label_smoothing,
            gradient="states" if training and not task.head.projection_learns else training,
            sharing=None if whole else task.backbone.token_embedding.sharing,
        )
        for metric in self.metrics:
            metric.update_from_sums(sums)
        loss = part_of_mean(mean_of(sums), sums.weight)
        for more in task.losses:  # from regularizers
            loss = loss + ops.cast(task._aggregate_additional_loss(more), loss.dtype)
        return loss

    def weight(self, x, y, sample_weight):
        return self.model.loss.total_weight(y, sample_weight)

    def logs(self, states, x, y, sample_weight):
        # `loss` has already updated the metrics, but Keras only lists metrics that it has built.
        compiled = self.model._compile_metrics
        if compiled is not None and not compiled.built:
            compiled.build(y, states)
        return super().logs(states, x, y, sample_weight)


class VocabularyHead(Head):
    """A head whose outputs are vocabulary logits.

    With `TokenCrossEntropy`, and only `Perplexity` and `TokenAccuracy` as `weighted_metrics`, the
    projection is part of the loss, `TokenLoss`. Otherwise Keras computes the loss from the logits,
    as it does for a task that overrides `call`, `compute_loss` or `compute_metrics`.
    """

    predicts_tokens = True
    learns_tokens = True
    predict_options: ClassVar = PER_TOKEN
    _loss_metrics: list[TokenMean] | None = None  # for `TokenLoss`; None: Keras computes the loss

    @property
    def number_of_targets(self) -> int:
        return self.task.backbone.config.vocabulary_size

    def weights_of_classes(self, class_weight: dict) -> ClassWeights:
        """Return the weights of tokens; keys are ids, or strings of the vocabulary."""
        ids: dict[int, float] = {}
        tokenizer = self.task.tokenizer
        for key, weight in class_weight.items():
            if isinstance(key, str):
                token_id = None if tokenizer is None else tokenizer.token_to_id(key)
                if token_id is None:
                    raise ValueError(
                        f"`class_weight` has the key {shorten(key)}, which is not a token of the "
                        "vocabulary. Keys are tokens, such as those of `tokenizer.id_to_token`, or "
                        "their ids."
                    )
            else:
                most = self.number_of_targets - 1
                token_id = check_int("class_weight", key, 0, most, hint="Its keys are tokens.")
            if token_id in ids:
                raise ValueError(f"`class_weight` has two weights for the token {token_id}.")
            ids[token_id] = weight
        table = np.ones(self.number_of_targets, "float32")
        table[list(ids)] = list(ids.values())
        return ClassWeights(table)

    def projected_states(self, states, inputs):
        """Return the states that are projected to logits, `(batch, length, embedding_dim)`."""
        return states

    @property
    def vocabulary_bias(self) -> VocabularyBias | None:
        """The bias that the head adds to the backbone's logits, or None."""
        return None

    @property
    def biases(self) -> tuple[VocabularyBias | None, ...]:
        """All biases that are added to the logits."""
        return self.task.backbone.output_bias, self.vocabulary_bias

    def logits(self, states):
        """Compute the logits of projected states, without the `vocabulary_bias`."""
        return self.task.backbone.logits(states)

    @property
    def logits_are_a_product(self) -> bool:
        """Whether `logits` are the product of `output_projection`, plus a bias."""
        return self.task.backbone.logits_are_a_product

    @property
    def projection_learns(self) -> bool:
        """Whether the kernel or a bias of the projection is trained."""
        layers = (self.task.backbone.token_embedding, *self.biases)
        return any(layer.trainable_variables for layer in layers if layer is not None)

    def output_projection(self, states, joined: bool = True):
        """Return states and the kernel `(vocabulary_size, width)` that maps them to logits.

        Not `joined`, it has this process's rows alone, where processes share the vocabulary.
        """
        return self.task.backbone.output_projection(states, joined)

    def summed_bias(self):
        """Return the sum of the `biases`, `(vocabulary_size,)`, or None."""
        biases = [ops.convert_to_tensor(x.bias) for x in self.biases if x is not None]
        return sum(biases[1:], biases[0]) if biases else None

    @property
    def projects_last(self) -> bool:
        """Whether the task's logits are the head's, a product of states plus a bias."""
        kind = type(self.task)
        own = any(getattr(kind, name) is not getattr(Task, name) for name in _OF_LOGITS)
        return self.logits_are_a_product and not own

    def log_probabilities(self, states, inputs, targets, mask=None, temperature: float = 1.0):
        """Compute the log-probability of each target, without all logits if they are a product.

        Args:
            states: float `(batch, length, hidden_dim)`, of the backbone.
            inputs: dict of the backbone's inputs.
            targets: int `(batch, length)`.
            mask: bool or float `(batch, length)`, the targets to compute; others give 0.
            temperature: float above 0, divides the logits.

        Returns:
            float32 `(batch, length)`.
        """
        if self.logits_are_a_product:
            states, kernel = self.output_projection(self.projected_states(states, inputs))
            bias = self.summed_bias()
            if temperature != 1:
                states = states / temperature
                bias = None if bias is None else bias / temperature
            return linear_log_probabilities(states, kernel, targets, mask, bias)
        targets = checked_targets(targets, self.number_of_targets, mask)
        logits = self(states, inputs)
        logits = logits if temperature == 1 else ops.cast(logits, "float32") / temperature
        found = -token_cross_entropy(targets, logits)
        return found if mask is None else ops.where(ops.cast(mask, "bool"), found, 0.0)

    def __call__(self, states, inputs, training: bool = False):
        states = self.projected_states(states, inputs)
        logits = self.logits(states)
        return logits if self.vocabulary_bias is None else self.vocabulary_bias(logits)

    def usual(self) -> dict[str, Any]:
        return {
            "optimizer": keras.optimizers.Adam(1e-4),
            "loss": TokenCrossEntropy(),
            "weighted_metrics": [Perplexity(), TokenAccuracy()],
        }

    def compiled(self) -> None:
        task = self.task
        compiled = task._compile_metrics
        given = keras.tree.flatten((compiled and compiled._user_weighted_metrics) or [])
        suffices = (
            type(task.loss) is TokenCrossEntropy
            and task.loss.reduction == "mean_with_sample_weight"
            and task._compile_loss._user_loss_weights is None
            and not (compiled and compiled._user_metrics)
            and all(isinstance(metric, TokenMean) for metric in given)
        )
        self._loss_metrics = given if suffices else None

    def training_loss(self) -> TokenLoss | None:
        if not self.projects_last or self._loss_metrics is None:
            return None
        return TokenLoss(self.task, self._loss_metrics)
