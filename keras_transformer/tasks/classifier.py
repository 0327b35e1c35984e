"""The base of the classifiers: classes and their names, adversarial training."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.checking import check_int, check_number, check_text, shorten
from keras_transformer.config import TransformerConfig
from keras_transformer.models.backbone import Backbone, as_mask
from keras_transformer.structure import CLASSIFIER_HEAD, shapes_of
from keras_transformer.tasks.class_weights import ClassWeights, by_class
from keras_transformer.tasks.hidden import OptionalHidden
from keras_transformer.tasks.labels import class_numbers
from keras_transformer.tasks.task import Task
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training.adversarial import adversarial_loss

_MOST_CLASSES = 2**24  # More would be a mistake, and take the memory.


class Classifier(OptionalHidden, Task):
    """A backbone with a linear layer to classes; `labels` may be assigned too, to rename them."""

    needs_labels = True
    task_options = ("num_classes", "labels", "dropout", *OptionalHidden.hidden_options)
    adversarial_norm: float = 0.0
    fewest_classes = 2
    weighs_each_class = False
    output_weights = CLASSIFIER_HEAD

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer | None = None,
        num_classes: int | None = None,
        labels: list[str] | None = None,
        dropout: float | None = None,
        name: str | None = None,
        hidden_activation: str | None = None,
        hidden_bias: bool = True,
        block_norm: bool = False,
    ):
        if labels is not None:
            labels = _checked_labels(labels)
            num_classes = max(len(labels), 2) if num_classes is None else num_classes
        num_classes = check_int(
            "num_classes", num_classes, at_least=self.fewest_classes, at_most=_MOST_CLASSES,
            hint="Give it, or `labels`, the names of the classes.",
        )  # fmt: skip
        super().__init__(backbone, tokenizer, name=name)
        self.num_classes = num_classes
        self.labels = labels
        dropout = check_number("dropout", dropout, at_least=0, below=1, none=True)
        self.dropout = backbone.config.dropout if dropout is None else dropout
        self.dropout_layer = self._dropout(self.dropout)
        self.set_hidden(hidden_activation, hidden_bias, block_norm)
        self._make_head()

    def _make_head(self) -> None:
        """Makes what a subclass adds with no further options, and compiles it."""

    def compile(self, *args, adversarial_norm: float | None = None, **kwargs):
        """As `keras.Model.compile`, and whether the training is adversarial.

        Args:
            *args: as in `keras.Model.compile`.
            adversarial_norm: float, 0 at first. Above 0, each step also learns from its texts with
                the token embeddings moved to where the loss rises most, by this share of their
                length. The loss is the mean of both. A step takes nearly three times as long, and
                few labels go further.
            **kwargs: as in `keras.Model.compile`.

        Raises:
            ValueError: for an `adversarial_norm` that is not a number of at least 0.

        Source: Miyato et al. 2017, "Adversarial Training Methods for Semi-Supervised Text
        Classification", section 3.
        """
        if adversarial_norm is None:
            adversarial_norm = self.adversarial_norm
        adversarial_norm = check_number(
            "adversarial_norm", adversarial_norm, at_least=0,
            hint="It is a share of the length of the embeddings, such as 0.1, or 0 for none.",
        )  # fmt: skip
        super().compile(*args, **kwargs)
        self.adversarial_norm = adversarial_norm

    def compile_values(self) -> dict:
        return {**super().compile_values(), "adversarial_norm": self.adversarial_norm}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss_of = self._loss_of
        if not training or not self.adversarial_norm:
            return loss_of(x, y, y_pred, sample_weight, training=training)

        def loss_again(x):
            # PyTorch's weights are multiplied by the mask where they are: each loss has its own.
            weights = None if sample_weight is None else ops.copy(sample_weight)
            return loss_of(x, y, self(x, training=True), weights, training=True)

        inputs = self._named(x)
        inputs["padding_mask"] = as_mask(inputs["token_ids"], inputs.get("padding_mask"))
        other = adversarial_loss(loss_again, self, inputs, self.adversarial_norm)
        loss = loss_of(x, y, y_pred, sample_weight, training=True)
        return (loss + other) / 2

    def _loss_of(self, x, y, y_pred, sample_weight, training: bool):
        """The loss as compiled; also of classes that have a weight each, `(batch, classes)`."""
        shape = None if sample_weight is None else sample_weight.shape
        if self.weighs_each_class and shape is not None and len(shape) == 2:
            # A loss takes the mean over the last axis: with one more it is of each class.
            y, y_pred = ops.expand_dims(y, -1), ops.expand_dims(y_pred, -1)
        return super().compute_loss(x, y, y_pred, sample_weight, training=training)

    @property
    def number_of_targets(self) -> int:
        return self.num_classes

    @property
    def labels(self) -> list[str] | None:
        """The names of the classes, in the order of their numbers, or None."""
        return self._labels

    @labels.setter
    def labels(self, labels) -> None:
        labels = None if labels is None else _checked_labels(labels)
        if labels is not None and len(labels) != self.num_classes:
            raise ValueError(f"Received {len(labels)} labels for num_classes={self.num_classes}.")
        self._labels = labels

    @property
    def label_names(self) -> list[str]:
        """The name of each class: without `labels` its number as a string."""
        return self.labels or [str(number) for number in range(self.num_classes)]

    @classmethod
    def head_values(cls, config: TransformerConfig, values: dict[str, Any]) -> dict[str, Any]:
        return cls.hidden_values(values)

    @classmethod
    def head_shapes(
        cls, config: TransformerConfig, values: dict[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        classes = values.get("num_classes")
        if not isinstance(classes, int):
            raise ValueError(f"`num_classes` must be an integer, received {classes!r}.")
        weights = (*cls.hidden_weights(config, values), *cls.output_weights)
        width = config.sides[-1].hidden_dim
        return shapes_of(weights, config, num_classes=classes, hidden_dim=width)

    def weights_of_classes(self, class_weight: dict) -> ClassWeights:
        return ClassWeights(by_class(class_weight, self.num_classes, self.labels))

    def _class_numbers(self, y, count: int, unit: str = "text", name: str = "y") -> np.ndarray:
        """Labels, by number or by name, as int32 `(count,)`; `name` is whose, in errors."""
        return class_numbers(y, count, self.num_classes, self.labels, unit, name)


def _checked_labels(labels) -> list[str]:
    several = isinstance(labels, Iterable) and not isinstance(labels, (str, bytes, Mapping))
    names = [str(n) if isinstance(n, str) else n for n in labels] if several else None
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"`labels` must be a list of strings, received {shorten(labels)}.")
    for place, name in enumerate(names):
        check_text(f"labels[{place}]", name)
    if len(set(names)) < len(names):
        raise ValueError(f"`labels` must differ from each other, received {shorten(names)}.")
    return names
