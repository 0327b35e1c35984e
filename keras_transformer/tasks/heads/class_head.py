"""Heads of classifiers: class names, targets, a hidden layer, adversarial training."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.checkpoints.heads import LABELS, PROBLEM
from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import CLASSIFIER_HEAD, shapes_of
from keras_transformer.models.backbone import as_mask
from keras_transformer.support.checking import (
    check_bool,
    check_int,
    check_number,
    check_text,
    shorten,
)
from keras_transformer.tasks.base.head import (
    HIDDEN_OPTIONS,
    Head,
    hidden_values,
    hidden_weights,
    optional_hidden,
    sigmoid,
    softmax,
)
from keras_transformer.tasks.data.arguments import OF_CLASSES, loss_name
from keras_transformer.tasks.data.class_weights import ClassWeights, by_class
from keras_transformer.tasks.data.labels import (
    check_probabilities,
    class_number,
    class_numbers,
    class_rows,
    real_numbers,
    top_classes,
)
from keras_transformer.training import ClassAccuracy, ClassCrossEntropy, FineTuningAdamW
from keras_transformer.training.adversarial import adversarial_loss
from keras_transformer.training.metrics import metric_of_logits

_MOST_CLASSES = 2**24  # More classes would be a mistake, and exhaust memory.
# Losses that only take rows of probabilities.
_BY_ROW = ("categoricalcrossentropy", "binarycrossentropy", "kldivergence")


class ClassHead(Head):
    """A head whose outputs are logits of classes: names, dropout, and an optional hidden layer.

    Args:
        task: as for `Head`.
        num_classes: int. Defaults to the number of `labels`.
        labels: list of class names, in the order of the class numbers; assign it to rename them.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        hidden_activation, hidden_bias, block_norm: the hidden layer, as for `TextClassifier`.
    """

    options = ("num_classes", "labels", "dropout", *HIDDEN_OPTIONS)
    compile_options = ("adversarial_norm",)
    needs_labels = True
    adversarial_norm: float = 0.0
    fewest_classes = 2
    weighs_each_class = False
    output_weights = CLASSIFIER_HEAD

    def __init__(
        self,
        task,
        num_classes: int | None = None,
        labels: list[str] | None = None,
        dropout: float | None = None,
        hidden_activation: str | None = None,
        hidden_bias: bool = True,
        block_norm: bool = False,
    ):
        super().__init__(task)
        if labels is not None:
            labels = _checked_labels(labels)
            if num_classes is None and len(labels) < 2:
                several = " or `multi_label=True`," if "multi_label" in self.options else ""
                raise ValueError(
                    "A single label leaves nothing to choose from: give at least two names in "
                    f"`labels`,{several} received {labels}."
                )
            num_classes = len(labels) if num_classes is None else num_classes
        self.num_classes = check_int(
            "num_classes", num_classes, at_least=self.fewest_classes, at_most=_MOST_CLASSES,
            hint="Give it, or `labels`, the names of the classes.",
        )  # fmt: skip
        self.labels = labels
        dropout = check_number("dropout", dropout, at_least=0, below=1, none=True)
        self.dropout = task.backbone.config.dropout if dropout is None else dropout
        self.keep(dropout_layer=self.make_dropout(self.dropout))
        self.hidden = optional_hidden(self, hidden_activation, hidden_bias, block_norm)

    @property
    def number_of_targets(self) -> int | None:
        return self.num_classes

    @property
    def labels(self) -> list[str] | None:
        """The class names in order of their numbers, or None."""
        return self._labels

    @labels.setter
    def labels(self, labels) -> None:
        labels = None if labels is None else _checked_labels(labels)
        if labels is not None and len(labels) != self.num_classes:
            raise ValueError(f"Received {len(labels)} labels for num_classes={self.num_classes}.")
        self._labels = labels

    @property
    def label_names(self) -> list[str]:
        """The name of each class; the number as a string if there are no `labels`."""
        return self.labels or [str(number) for number in range(self.num_classes)]

    def class_numbers(self, y, count: int, unit: str = "text", name: str = "y") -> np.ndarray:
        """Convert class numbers or names to int32 `(count,)`; `name` is the argument in errors."""
        return class_numbers(y, count, self.num_classes, self.labels, unit, name)

    def checked_compile_options(self, given: dict[str, Any]) -> dict[str, Any]:
        norm = given.get("adversarial_norm", self.adversarial_norm)
        norm = check_number(
            "adversarial_norm", norm, at_least=0,
            hint="It is a fraction of the norm of the embeddings, such as 0.1; 0 disables it.",
        )  # fmt: skip
        return {"adversarial_norm": norm}

    def compute_loss(self, compute: Callable, x, y, outputs, sample_weight, training: bool):
        """Compute the compiled loss; with `adversarial_norm`, its mean with the adversarial loss.

        Source: Miyato et al. 2017, "Adversarial Training Methods for Semi-Supervised Text
        Classification", section 3.
        """
        if not training or not self.adversarial_norm:
            return self._loss_of(compute, x, y, outputs, sample_weight, training=training)
        task = self.task

        def loss_again(x):
            # On PyTorch the weights are multiplied by the mask in place: each loss needs a copy.
            weights = None if sample_weight is None else ops.copy(sample_weight)
            return self._loss_of(compute, x, y, task(x, training=True), weights, training=True)

        inputs = task._named(x)
        inputs["padding_mask"] = as_mask(inputs["token_ids"], inputs.get("padding_mask"))
        other = adversarial_loss(loss_again, task, inputs, self.adversarial_norm)
        loss = self._loss_of(compute, x, y, outputs, sample_weight, training=True)
        return (loss + other) / 2

    def _loss_of(self, compute, x, y, outputs, sample_weight, training: bool):
        """Compute the compiled loss; weights are `(batch,)`, or per class `(batch, classes)`."""
        shape = None if sample_weight is None else sample_weight.shape
        if self.weighs_each_class and shape is not None and len(shape) == 2:
            # Losses average over the last axis: with a new last axis each class has its own loss.
            y, outputs = ops.expand_dims(y, -1), ops.expand_dims(outputs, -1)
        return compute(x, y, outputs, sample_weight, training=training)

    def weights_of_classes(self, class_weight: dict) -> ClassWeights:
        return ClassWeights(by_class(class_weight, self.num_classes, self.labels))

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        return hidden_values(values)

    @classmethod
    def weight_shapes(
        cls, config: TransformerConfig, values: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        classes = values.get("num_classes")
        if not isinstance(classes, int):
            raise ValueError(f"`num_classes` must be an integer, received {classes!r}.")
        weights = (*hidden_weights(config, values), *cls.output_weights)
        width = config.last_side.hidden_dim
        return shapes_of(weights, config, num_classes=classes, hidden_dim=width)


class RowHead(ClassHead):
    """A head that classifies whole rows. `num_classes=1` makes it a regression.

    Args:
        task: as for `Head`.
        num_classes, labels, dropout: as for `ClassHead`. A single label needs `multi_label`, and
            means one class.
        multi_label: bool, whether a row can have several classes.
        hidden_activation, hidden_bias, block_norm: as for `ClassHead`.
    """

    options = (*ClassHead.options, "multi_label")
    published_head = (LABELS, PROBLEM)
    fewest_classes = 1
    row_unit: ClassVar[str] = "text"  # name of a row in errors

    def __init__(
        self,
        task,
        num_classes: int | None = None,
        labels: list[str] | None = None,
        dropout: float | None = None,
        multi_label: bool = False,
        hidden_activation: str | None = None,
        hidden_bias: bool = True,
        block_norm: bool = False,
    ):
        alone = isinstance(labels, (list, tuple)) and len(labels) == 1 and multi_label
        num_classes = 1 if alone and num_classes is None else num_classes
        hidden = (hidden_activation, hidden_bias, block_norm)
        super().__init__(task, num_classes, labels, dropout, *hidden)
        self.multi_label = check_bool("multi_label", multi_label)

    def usual(self) -> dict[str, Any]:
        loss, metric = ClassCrossEntropy(), ClassAccuracy(self.multi_label)
        if self.multi_label:
            loss = keras.losses.BinaryCrossentropy(from_logits=True)
        elif self.is_regression:
            loss = keras.losses.MeanSquaredError()
            metric = keras.metrics.MeanAbsoluteError(name="mean_absolute_error")
        return {"optimizer": FineTuningAdamW(), "loss": loss, "metrics": [metric]}

    def metric_of(self, given):
        """Map a metric's name to the metric for logits; with `multi_label`, to one per class."""
        return given if self.is_regression else metric_of_logits(given, self.multi_label)

    @property
    def is_regression(self) -> bool:
        """True if targets are numbers: one output, which is not a class."""
        return self.num_classes == 1 and not self.multi_label

    @property
    def weighs_each_class(self) -> bool:
        """True if the loss of a row is computed for each class, with separate weights."""
        return self.multi_label or "binary" in loss_name(self.task).lower()

    @property
    def number_of_targets(self) -> int | None:
        return None if self.multi_label or self.is_regression else self.num_classes

    def weights_of_classes(self, class_weight: dict) -> ClassWeights:
        if self.is_regression:
            raise ValueError(
                "`class_weight` gives classes a weight, and this task is a regression "
                "(num_classes=1). Leave it out; a weight for each row is `sample_weight`."
            )
        if not self.weighs_each_class:
            return super().weights_of_classes(class_weight)
        if "binary" not in loss_name(self.task).lower():
            raise ValueError(
                "With `multi_label`, `class_weight` needs a separate loss for each class, which "
                f"{loss_name(self.task)} does not compute: compile with "
                "keras.losses.BinaryCrossentropy(from_logits=True), or leave `class_weight` out."
            )
        metrics = self.task._compile_metrics
        if metrics is not None and metrics._user_weighted_metrics:
            raise ValueError(
                "`weighted_metrics` cannot be combined with the `class_weight` of a loss for each "
                "class: compile with `metrics`."
            )
        return ClassWeights(by_class(class_weight, self.num_classes, self.labels), True)

    def targets(self, y, count: int, of_file: bool = False) -> np.ndarray:
        """Convert labels to targets of the loss; `of_file` means that `y` are a file's labels.

        The labels of a file are the distinct ones, and each must be a known class.
        """
        if self.is_regression:
            return real_numbers(y, count, self.row_unit)
        given = (self.num_classes, self.labels, self.multi_label, self.row_unit)
        rows = class_rows(y, count, *given)
        by_number = loss_name(self.task) in OF_CLASSES
        if rows is None:
            for label in y if of_file else ():
                class_number(label, self.num_classes, self.labels)
            found = self.class_numbers(y, count, self.row_unit)
            by_row = loss_name(self.task).lower().replace("_", "") in _BY_ROW
            return np.eye(self.num_classes, dtype="float32")[found] if by_row else found
        if by_number:
            check_probabilities(rows)
            if (rows.max(axis=1) == 1).all():
                return rows.argmax(axis=1).astype("int32")
            if not isinstance(self.task.loss, ClassCrossEntropy):
                raise ValueError(
                    f"The loss {loss_name(self.task)} takes class numbers, but `y` has "
                    "probabilities: compile with training.ClassCrossEntropy()."
                )
        return rows

    def check_training_set(self, dataset) -> None:
        if "labels" not in dataset.values or self.is_regression:
            return
        labels = dataset.values["labels"]
        present = set((labels if labels.ndim == 1 else np.nonzero(labels)[1]).tolist())
        missing = [name for number, name in enumerate(self.label_names) if number not in present]
        if missing:
            shown = ", ".join(map(repr, missing[:9])) + (", ..." if len(missing) > 9 else "")
            warnings.warn(
                f"The training data has no example of {len(missing)} of the {self.num_classes} "
                f"classes: {shown}. The model will not learn to predict them.",
                stacklevel=5,
            )

    def top_classes(self, x, batch_size=None, top_k=None, threshold=None, alone=False) -> list:
        """Return the result of `classify`; with `alone`, the result of the only row of `x`."""
        check_int("top_k", top_k, at_least=1, none=True)  # before anything is computed
        check_number("threshold", threshold, at_least=0, at_most=1, none=True)
        if self.is_regression:
            raise ValueError("This task is a regression (num_classes=1): `predict` gives numbers.")
        logits = self.task.predict(x, batch_size=batch_size, verbose=0)
        shares = sigmoid(logits) if self.multi_label else softmax(logits)
        found = top_classes(shares, self.label_names, top_k, threshold, several=self.multi_label)
        return found[0] if alone else found

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **super().weight_values(config, values),
            "multi_label": bool(values.get("multi_label")),
        }


def _checked_labels(labels) -> list[str]:
    several = isinstance(labels, Iterable) and not isinstance(labels, (str, bytes, Mapping))
    names = [str(n) if isinstance(n, str) else n for n in labels] if several else None
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"`labels` must be a list of strings, received {shorten(labels)}.")
    for place, name in enumerate(names):
        check_text(f"labels[{place}]", name)
    if len(set(names)) < len(names):
        raise ValueError(f"`labels` must be distinct, received {shorten(names)}.")
    return names
