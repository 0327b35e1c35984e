"""What the two tasks that classify share: the classes, their names, the labels of a data set."""

import numpy as np

from keras_transformer.models.backbone import Backbone
from keras_transformer.tasks.task import Task
from keras_transformer.tokenizers import Tokenizer


class Classifier(Task):
    """A backbone with a linear layer to classes.

    Args:
        backbone: a backbone.
        tokenizer: `Tokenizer`, or None to take ids only.
        num_classes: int. Defaults to the number of `labels`.
        labels: list of class names, in the order of the class numbers.
        dropout: float, rate before the linear layer. Defaults to the backbone's.
        name: str.

    Raises:
        ValueError: for fewer than two classes, or labels that disagree with `num_classes`.
    """

    needs_labels = True

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer | None = None,
        num_classes: int | None = None,
        labels: list[str] | None = None,
        dropout: float | None = None,
        name: str | None = None,
    ):
        if labels is not None:
            labels = _checked_labels(labels)
            num_classes = len(labels) if num_classes is None else num_classes
        if not isinstance(num_classes, int) or num_classes < 2:
            raise ValueError(
                f"`num_classes` must be an integer of at least 2, received {num_classes!r}."
            )
        if labels is not None and len(labels) != num_classes:
            raise ValueError(f"Received {len(labels)} labels for num_classes={num_classes}.")
        super().__init__(backbone, tokenizer, name=name)
        self.num_classes = num_classes
        self.labels = labels
        self.dropout = backbone.config.dropout if dropout is None else dropout
        self.dropout_layer = self._dropout(self.dropout)

    @property
    def number_of_targets(self) -> int:
        return self.num_classes

    @property
    def label_names(self) -> list[str]:
        """The name of each class: without `labels` its number as a string."""
        return self.labels or [str(number) for number in range(self.num_classes)]

    def task_values(self) -> dict:
        return {"num_classes": self.num_classes, "labels": self.labels, "dropout": self.dropout}

    def _class_number(self, label: int | str) -> int:
        """The number of a label as files have it: a name, or a number, which may be text."""
        names = self.label_names
        if label in names:
            return names.index(label)
        if isinstance(label, str):
            number = int(label) if label.isascii() and label.isdecimal() else -1
        else:
            number = label
        if not 0 <= number < self.num_classes:
            known = f"{', '.join(map(repr, names[:20]))}{', ...' if len(names) > 20 else ''}"
            raise ValueError(
                f"the label {label!r} is not known. Known are {known}, or the numbers from 0 to "
                f"{self.num_classes - 1}."
            )
        return number

    def _class_numbers(self, y, count: int, unit: str = "text", place: str = "") -> np.ndarray:
        """Labels, by number or by name, as int32 `(count,)`; `place` says whose, in errors."""
        labels = np.asarray(y)
        if labels.dtype.kind == "O":  # such as a column of a data frame
            labels = np.asarray(labels.tolist())
        if labels.dtype.kind == "U" and self.labels is not None:
            unknown = sorted(set(labels.tolist()) - set(self.labels))
            if unknown:
                raise ValueError(f"Unknown labels {unknown}{place}, known are {self.labels}.")
            labels = np.asarray([self.labels.index(label) for label in labels.tolist()])
        if labels.shape != (count,) or labels.dtype.kind not in "iub":
            raise ValueError(
                f"The labels{place} must be one class number a {unit}, {count} in all, received "
                f"{labels.dtype} of shape {labels.shape}."
            )
        outside = np.flatnonzero((labels < 0) | (labels >= self.num_classes))
        if outside.size:
            raise ValueError(
                f"Labels must be from 0 to {self.num_classes - 1}, but label {outside[0]}{place} "
                f"is {labels[outside[0]]}. Give `num_classes` to match the data."
            )
        return labels.astype("int32")


def _checked_labels(labels) -> list[str]:
    names = None if isinstance(labels, str) else list(labels)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"`labels` must be a list of strings, received {labels!r}.")
    if len(set(names)) < len(names):
        raise ValueError(f"`labels` must differ from each other, received {names}.")
    return names
