"""The base of the tasks with logits of the vocabulary, and their loss without logits."""

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import check_int, shorten
from keras_transformer.distribution.replicas import part_of_mean
from keras_transformer.layers.embedding import VocabularyBias
from keras_transformer.tasks.class_weights import ClassWeights
from keras_transformer.tasks.task import Task
from keras_transformer.training.linear_cross_entropy import linear_cross_entropy, mean_of
from keras_transformer.training.losses import TokenCrossEntropy
from keras_transformer.training.metrics import TokenMean
from keras_transformer.training.steps import TrainingLoss

# What a subclass may override, to be given logits.
_OF_LOGITS = ("call", "head_outputs", "compute_loss", "compute_metrics")


class TokenLoss(TrainingLoss):
    """Token cross-entropy from the states before the projection, and the metrics beside it."""

    def __init__(self, model: "TokenPredictor", metrics: list[TokenMean]):
        super().__init__(model)
        self.metrics = metrics

    def states(self, x, sample_weight, training):
        inputs = given = self.model._named(x)
        if training and sample_weight is not None:
            given = self.model.backbone.without_unseen_padding(inputs, sample_weight)
        states, _ = self.model.backbone_states(given, training=training)
        return self.model.projected_states(states, inputs)

    def loss(self, states, x, y, sample_weight, training):
        task = self.model
        biases = (task.backbone.output_bias, task.vocabulary_bias)
        biases = [layer.bias for layer in biases if layer is not None]
        sums = linear_cross_entropy(
            *task.backbone.output_projection(states),
            y,
            sample_weight,
            sum(map(ops.convert_to_tensor, biases[1:]), biases[0]) if biases else None,
            task.loss.label_smoothing,
            gradient=training,
        )
        for metric in self.metrics:
            metric.update_from_sums(sums)
        loss = part_of_mean(mean_of(sums), sums.weight)
        for more in task.losses:  # of regularizers
            loss = loss + ops.cast(task._aggregate_additional_loss(more), loss.dtype)
        return loss

    def weight(self, x, y, sample_weight):
        return self.model.loss.total_weight(y, sample_weight)

    def logs(self, states, x, y, sample_weight):
        # The metrics were updated with the loss. Keras builds its list of them at the first update.
        compiled = self.model._compile_metrics
        if compiled is not None and not compiled.built:
            compiled.build(y, states)
        return super().logs(states, x, y, sample_weight)


class TokenPredictor(Task):
    """A task whose outputs are logits of the vocabulary.

    With `TokenCrossEntropy`, and `Perplexity` and `TokenAccuracy` as `weighted_metrics`, the
    projection is part of the loss, `TokenLoss`. Otherwise Keras computes from the logits, and so it
    does for a subclass with a `call`, `compute_loss` or `compute_metrics` of its own.
    """

    predicts_tokens = True
    learns_tokens = True

    @property
    def number_of_targets(self) -> int:
        return self.backbone.config.vocabulary_size

    def weights_of_classes(self, class_weight: dict) -> ClassWeights:
        """Weights of tokens: keys are ids, or strings of the vocabulary."""
        ids: dict[int, float] = {}
        for key, weight in class_weight.items():
            if isinstance(key, str):
                token_id = None if self.tokenizer is None else self.tokenizer.token_to_id(key)
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
        """What is projected to the vocabulary, `(batch, length, embedding_dim)`."""
        return states

    @property
    def vocabulary_bias(self) -> VocabularyBias | None:
        """A bias of the logits beside the backbone's."""
        return None

    def head_outputs(self, states, inputs, training: bool):
        states = self.projected_states(states, inputs)
        logits = self.backbone.logits(states)
        return logits if self.vocabulary_bias is None else self.vocabulary_bias(logits)

    def compile(self, *args, **kwargs):
        super().compile(*args, **kwargs)
        compiled = self._compile_metrics
        given = keras.tree.flatten((compiled and compiled._user_weighted_metrics) or [])
        suffices = (
            type(self.loss) is TokenCrossEntropy
            and self.loss.reduction == "mean_with_sample_weight"
            and self._compile_loss._user_loss_weights is None
            and not (compiled and compiled._user_metrics)
            and all(isinstance(metric, TokenMean) for metric in given)
        )
        self._token_loss = TokenLoss(self, given) if suffices else None

    def training_loss(self) -> TokenLoss | None:
        from_logits = (
            any(getattr(type(self), n) is not getattr(TokenPredictor, n) for n in _OF_LOGITS)
            or not self.backbone.logits_are_a_product
        )
        return None if from_logits else self._token_loss
