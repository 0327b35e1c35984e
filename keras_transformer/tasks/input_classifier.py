"""The base of classifiers of what a stem reads, such as images or sound."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import check_choice, describe
from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.turns import reads
from keras_transformer.processors.processor import Processor
from keras_transformer.structure import dense_of, shapes_of
from keras_transformer.tasks.labels import check_weights
from keras_transformer.tasks.pooling import pool_stem, pooled_width
from keras_transformer.tasks.row_classifier import RowClassifier
from keras_transformer.tasks.tables import TakesTables

POOLINGS = ("first", "mean", "first_and_mean", "tokens", "attention", "pooler")


def num_tokens(config: TransformerConfig) -> int:
    """The states of a stem that are of no patch and no frame, and stand before them."""
    return getattr(config.stem, "num_tokens", 0)


class InputClassifier(TakesTables, RowClassifier):
    """A backbone whose stem reads images or sound, with a linear layer on one state of an input.

    The state is that of the first token with `pooling="first"`; with `"mean"` the mean over the
    states that are of no token; with `"first_and_mean"` both side by side; with `"tokens"` the mean
    of all tokens; with `"attention"` a mean whose weights are a softmax over a linear layer; with
    `"pooler"` what the backbone's `pool` gives.

    A subclass says which arrays it reads (`reads_arrays`), and makes them (`arrays_of`).
    """

    backbone_kinds = ("encoder",)
    takes_records = False
    stem_example: ClassVar[str]  # A stem in a config, for the error of a backbone that has none.
    task_options = (*RowClassifier.task_options, "pooling", "distilled")

    def __init__(
        self,
        backbone: Backbone,
        processor: Processor | None = None,
        num_classes: int | None = None,
        labels: list[str] | None = None,
        dropout: float | None = None,
        pooling: str | None = None,
        name: str | None = None,
        multi_label: bool = False,
        distilled: bool = False,
        hidden_activation: str | None = None,
        hidden_bias: bool = True,
        block_norm: bool = False,
    ):
        hidden = (hidden_activation, hidden_bias, block_norm)
        num_classes = self.count_of(num_classes, labels, multi_label)
        super().__init__(backbone, processor, num_classes, labels, dropout, name, *hidden)
        if backbone.id_inputs[0] not in self.reads_arrays:
            raise ValueError(
                f"{type(self).__name__} needs a backbone that reads {self.row_unit}s: give the "
                f"config a `stem`, such as {self.stem_example}."
            )
        values = self.head_values(backbone.config, {"pooling": pooling, "distilled": distilled})
        self.pooling = check_choice("pooling", values["pooling"], POOLINGS)
        self.distilled = values["distilled"]
        has_token = getattr(backbone.config.stem, "distillation_token", False)
        if self.distilled and not (has_token and self.pooling == "first"):
            raise ValueError(
                "`distilled` needs a backbone whose stem has a `distillation_token`, and "
                f"pooling='first', received {self.pooling!r}."
            )
        self.first_only = self.pooling == "first" and not self.distilled
        wide = pooled_width(backbone.config, self.pooling) != backbone.config.hidden_dim
        if self.hidden_dense is not None and (self.distilled or wide):
            raise ValueError("A hidden layer is of one state: it needs another `pooling`.")
        self.augmentation = self.pooling_dense = None
        if self.pooling == "attention":
            self.pooling_dense = self._dense(1, "pooling")
        width = self.output_width(backbone.config)
        names = ("class_output", "distillation_output") if self.distilled else ("output",)
        self.outputs_dense = [self._dense(self.num_classes, name, width=width) for name in names]
        self.built = True
        self.compile_usual(multi_label)

    def compile(self, *args, augmentation=None, **kwargs):
        """As `keras.Model.compile`, and how inputs of a training step are changed at random.

        Args:
            *args: as in `keras.Model.compile`.
            augmentation: list of `keras.layers`, such as `[keras.layers.RandomFlip("horizontal")]`,
                which a training step applies to its arrays, in their order. Defaults to what it
                was; `[]` for none.
            **kwargs: as in `keras.Model.compile`.
        """
        if kwargs.get("adversarial_norm"):
            raise ValueError(
                "`adversarial_norm` moves the embeddings of tokens, which "
                f"{self.row_unit}s do not have."
            )
        if augmentation is not None:
            wrong = [x for x in augmentation if not isinstance(x, keras.layers.Layer)]
            if wrong:
                raise ValueError(
                    f"`augmentation` must be a list of Keras layers, received {describe(wrong[0])}."
                )
            self.augmentation = keras.Sequential(augmentation) if augmentation else None
        super().compile(*args, **kwargs)

    def compile_values(self) -> dict:
        layers = [] if self.augmentation is None else self.augmentation.layers
        return {**super().compile_values(), "augmentation": list(layers)}

    def call(self, inputs, collect: tuple[str, ...] = (), training: bool = False):
        if training and self.augmentation is not None:
            name = self.backbone.id_inputs[0]
            inputs = {**inputs, name: self.augmentation(inputs[name], training=True)}
        return super().call(inputs, collect=collect, training=training)

    def head_outputs(self, states, inputs, training: bool):
        if self.distilled:
            both = zip(self.outputs_dense, (states[:, 0], states[:, 1]), strict=True)
            first, second = (
                layer(self.dropout_layer(state, training=training)) for layer, state in both
            )
            return (first + second) / 2
        mask = inputs.get("padding_mask")
        if mask is not None:
            mask = self.backbone.stem.mask_of_states(mask, ops.shape(states)[1])
        state = self.pooled(states, mask)
        if self.hidden_dense is not None:
            state = self.hidden(self.dropout_layer(state, training=training))
        return self.outputs_dense[0](self.dropout_layer(state, training=training))

    def output_width(self, config: TransformerConfig) -> int:
        """The width of what the output reads."""
        return pooled_width(config, self.pooling)

    def pooled(self, states, mask=None):
        """The state that the output reads, `(batch, width)`; `mask` is of the states, if any."""
        if self.pooling == "pooler":
            return self.backbone.pool(states)
        if self.pooling == "attention":
            scores = ops.cast(self.pooling_dense(states), "float32")
            scores = scores if mask is None else ops.where(mask[..., None], scores, -1e9)
            weights = ops.softmax(scores, axis=1)
            return ops.sum(states * ops.cast(weights, states.dtype), axis=1)
        return pool_stem(states, self.pooling, num_tokens(self.backbone.config), mask)

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Inputs as batches, which are read when they are asked for. See `Task.make_dataset`."""
        given = self._require_processor().rows(x)
        values = {}
        if y is not None:
            values["labels"] = self._targets(y, len(given))
            weights = check_weights("sample_weight", sample_weight, len(given), unit=self.row_unit)
            if weights is not None:
                values["sample_weight"] = weights

        def make_batch(arrays, masks):
            rows = arrays["row"]
            inputs = self.arrays_of([given[i] for i in rows], rows)
            return inputs, *(arrays[name] for name in values)

        columns = {"place": np.zeros((len(given), 1), "int32")}
        options["max_buckets"] = 1
        return self._bucketed(columns, make_batch, values=values, **options)

    def arrays_of(self, given: Sequence, places: Sequence[int] | None = None) -> dict:
        """The arrays of the backbone, of inputs as the processor takes them."""
        return {self.backbone.id_inputs[0]: self._require_processor()(given, places=places)}

    @reads
    def classify(
        self,
        x,
        batch_size: int | None = None,
        top_k: int | None = None,
        threshold: float | None = None,
    ) -> list:
        """The likeliest class of each input and its probability; or several.

        Args:
            x: what `predict` takes; or one image or recording alone.
            batch_size: int.
            top_k: int, the likeliest classes of each input; `num_classes` or more for all.
            threshold: float, classes below this probability are left out. Defaults, with
                `multi_label` and without `top_k`, to 0.5.

        Returns:
            One `(label, probability)` an input, or, with `top_k`, `threshold` or `multi_label`, a
            list of them, the likeliest first; for one input its result alone.

        Raises:
            ValueError: for a regression, and for what the processor cannot read, with its place.
        """
        alone = self.processor_class.is_one(x)
        return self.likeliest([x] if alone else x, batch_size, top_k, threshold, alone)

    @classmethod
    def head_values(cls, config: TransformerConfig, values: dict[str, Any]) -> dict[str, Any]:
        usual = "first" if num_tokens(config) else "mean"
        usual = "pooler" if config.mean_pooler or config.vector_pooling else usual
        return {
            **super().head_values(config, values),
            "pooling": values.get("pooling") or usual,
            "distilled": bool(values.get("distilled")),
        }

    @classmethod
    def head_shapes(
        cls, config: TransformerConfig, values: dict[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        shapes = super().head_shapes(config, values)
        head = cls.head_values(config, values)
        pooling = head["pooling"]
        if head["distilled"]:
            parts = {name: shapes.pop(f"output/{name}") for name in ("kernel", "bias")}
            outputs = ("class_output", "distillation_output")
            shapes |= {f"{output}/{name}": parts[name] for output in outputs for name in parts}
        width = pooled_width(config, pooling)
        if "output/kernel" in shapes and width != config.hidden_dim:
            shapes["output/kernel"] = (width, shapes["output/kernel"][1])
        if pooling == "attention":
            shapes |= shapes_of(dense_of("pooling", "hidden_dim", "one"), config)
        return shapes
