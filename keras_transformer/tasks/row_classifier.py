"""The base of tasks that classify whole rows, such as texts or images."""

import warnings
from typing import Any

import keras
import numpy as np

from keras_transformer.checking import check_bool, check_int, check_number
from keras_transformer.checkpoints.heads import LABELS, PROBLEM
from keras_transformer.config import TransformerConfig
from keras_transformer.tasks.class_labels import class_number
from keras_transformer.tasks.class_weights import ClassWeights, by_class
from keras_transformer.tasks.classifier import Classifier
from keras_transformer.tasks.inputs import OF_CLASSES, loss_name
from keras_transformer.tasks.labels import (
    check_probabilities,
    class_rows,
    likeliest,
    real_numbers,
)
from keras_transformer.tasks.task import sigmoid, softmax
from keras_transformer.training import ClassAccuracy, ClassCrossEntropy, FineTuningAdamW
from keras_transformer.training.metrics import metric_of_logits

# Losses that take rows of probabilities alone.
_BY_ROW = ("categoricalcrossentropy", "binarycrossentropy", "kldivergence")


class RowClassifier(Classifier):
    """A classifier whose labels are of whole rows. `num_classes=1` is a regression."""

    fewest_classes = 1
    row_unit = "text"  # what errors call a row
    published_head = (LABELS, PROBLEM)
    task_options = (*Classifier.task_options, "multi_label")

    def compile_usual(self, multi_label: bool, optimizer=None) -> None:
        """Compiles with what fits the classes, once the layers are made."""
        self.multi_label = check_bool("multi_label", multi_label)
        loss, metric = ClassCrossEntropy(), ClassAccuracy(self.multi_label)
        if self.multi_label:
            loss = keras.losses.BinaryCrossentropy(from_logits=True)
        elif self.is_regression:
            loss = keras.losses.MeanSquaredError()
            metric = keras.metrics.MeanAbsoluteError(name="mean_absolute_error")
        self.compile(optimizer or FineTuningAdamW(), loss, metrics=[metric])

    def metric_of(self, given):
        """A metric by name is that of logits, and with `multi_label` of each class."""
        return given if self.is_regression else metric_of_logits(given, self.multi_label)

    @staticmethod
    def count_of(num_classes: int | None, labels: Any, multi_label: Any) -> int | None:
        """Return `num_classes`, or 1 for the one name of a class that may be right or not."""
        alone = isinstance(labels, (list, tuple)) and len(labels) == 1 and multi_label
        return 1 if alone and num_classes is None else num_classes

    @property
    def is_regression(self) -> bool:
        """Whether labels are numbers: there is one output, and it is not of a class."""
        return self.num_classes == 1 and not self.multi_label

    @property
    def weighs_each_class(self) -> bool:
        """Whether the loss of a row is that of each class, with a weight of its own."""
        return self.multi_label or "binary" in loss_name(self).lower()

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
        if "binary" not in loss_name(self).lower():
            raise ValueError(
                "`class_weight` of a task with several right classes weighs the loss of each, and "
                f"{loss_name(self)} has one for all: compile with keras.losses.BinaryCrossentropy("
                "from_logits=True), or leave it out."
            )
        if self._compile_metrics is not None and self._compile_metrics._user_weighted_metrics:
            raise ValueError(
                "`class_weight` of a task with several right classes is a weight for each class, "
                "which `weighted_metrics` do not take: compile with `metrics`."
            )
        return ClassWeights(by_class(class_weight, self.num_classes, self.labels), True)

    def _targets(self, y, count: int, of_file: bool = False) -> np.ndarray:
        """Labels as the loss takes them; `of_file`: the different ones of a file."""
        if self.is_regression:
            return real_numbers(y, count, self.row_unit)
        given = (self.num_classes, self.labels, self.multi_label, self.row_unit)
        rows = class_rows(y, count, *given)
        by_number = loss_name(self) in OF_CLASSES
        if rows is None:
            for label in y if of_file else ():
                class_number(label, self.num_classes, self.labels)
            found = self._class_numbers(y, count, self.row_unit)
            by_row = loss_name(self).lower().replace("_", "") in _BY_ROW
            return np.eye(self.num_classes, dtype="float32")[found] if by_row else found
        if by_number:
            check_probabilities(rows)
            if (rows.max(axis=1) == 1).all():
                return rows.argmax(axis=1).astype("int32")
            if not isinstance(self.loss, ClassCrossEntropy):
                raise ValueError(
                    f"The loss {loss_name(self)} takes numbers of classes, and `y` has "
                    "probabilities: compile with training.ClassCrossEntropy()."
                )
        return rows

    def _check_training_set(self, dataset):
        if "labels" not in dataset.values or self.is_regression:
            return
        labels = dataset.values["labels"]
        present = set((labels if labels.ndim == 1 else np.nonzero(labels)[1]).tolist())
        missing = [name for number, name in enumerate(self.label_names) if number not in present]
        if missing:
            shown = ", ".join(map(repr, missing[:9])) + (", ..." if len(missing) > 9 else "")
            warnings.warn(
                f"The training data has no example of {len(missing)} of the {self.num_classes} "
                f"classes: {shown}. The model will not learn to give them.",
                stacklevel=5,
            )

    def likeliest(self, x, batch_size=None, top_k=None, threshold=None, alone=False) -> list:
        """What `classify` gives; `alone`: `x` has one row, and its result is wanted."""
        check_int("top_k", top_k, at_least=1, none=True)  # before anything is computed
        check_number("threshold", threshold, at_least=0, at_most=1, none=True)
        if self.is_regression:
            raise ValueError("This task is a regression (num_classes=1): `predict` gives numbers.")
        logits = self.predict(x, batch_size=batch_size, verbose=0)
        shares = sigmoid(logits) if self.multi_label else softmax(logits)
        found = likeliest(shares, self.label_names, top_k, threshold, several=self.multi_label)
        return found[0] if alone else found

    @classmethod
    def head_values(cls, config: TransformerConfig, values: dict[str, Any]) -> dict[str, Any]:
        return {
            **super().head_values(config, values),
            "multi_label": bool(values.get("multi_label")),
        }
