"""Base class of classifiers of non-text inputs, such as images, audio or videos."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import dense_of, norm_of, shapes_of
from keras_transformer.data import BucketedDataset
from keras_transformer.kernels.device import device
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.processors.processor import Processor
from keras_transformer.support.checking import check_bool, check_choice, check_int
from keras_transformer.support.sizes import round_rows_down
from keras_transformer.tasks.base.pooling import pool_stem, pooled_width
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.data.labels import check_weights
from keras_transformer.tasks.heads.class_head import RowHead
from keras_transformer.tasks.media.augmentation import augmentation_of, layers_of

POOLINGS = ("first", "mean", "first_and_mean", "tokens", "attention", "pooler")


def num_tokens(config: TransformerConfig) -> int:
    """Return the number of special tokens that a stem puts before the patches or frames."""
    return getattr(config.stem, "num_tokens", 0)


def rows_to_predict(config: TransformerConfig) -> int | None:
    """Return the batch size to predict with; None if the device has no preferred size.

    It is also None if the length of inputs varies.
    """
    stem = next(side.stem for side in config.sides if side.stem is not None)
    tokens, states = device().batch_tokens, stem.num_states
    return None if tokens is None or states is None else round_rows_down(max(1, tokens // states))


class InputClassHead(RowHead):
    """A linear layer on one pooled state of each image, recording or video.

    Args:
        task: as for `Head`.
        pooling, distilled: as for `ImageClassifier`.
        output_norm, projection_dim: as for `AudioClassifier`.
        **classes: as for `RowHead`.
    """

    options = (*RowHead.options, "pooling", "distilled")
    takes_records = False
    output_norm_epsilon: ClassVar[float | None] = None  # None takes the config's

    def __init__(
        self,
        task,
        pooling: str | None = None,
        distilled: bool = False,
        output_norm: bool = False,
        projection_dim: int | None = None,
        **classes,
    ):
        super().__init__(task, **classes)
        config = task.backbone.config
        values = self.weight_values(config, {"pooling": pooling, "distilled": distilled})
        self.pooling = check_choice("pooling", values["pooling"], POOLINGS)
        self.distilled = values["distilled"]
        has_token = getattr(config.stem, "distillation_token", False)
        if self.distilled and not (has_token and self.pooling == "first"):
            raise ValueError(
                "`distilled` needs a backbone whose stem has a `distillation_token`, and "
                f"pooling='first', received {self.pooling!r}."
            )
        self.first_only = self.pooling == "first" and not self.distilled
        width = pooled_width(config, self.pooling)
        if self.hidden is not None and (self.distilled or width != config.hidden_dim):
            raise ValueError(
                "A hidden layer reads one state of the backbone's width: choose another `pooling`, "
                "without `distilled`."
            )
        self.projection_dim = check_int("projection_dim", projection_dim, 1, 2**20, none=True)
        width = self.projection_dim or width
        attention = self.pooling == "attention"
        self.keep(pooling_dense=self.make_dense(1, "pooling") if attention else None)
        names = ("class_output", "distillation_output") if self.distilled else ("output",)
        self.keep(
            outputs_dense=[self.make_dense(self.num_classes, name, width=width) for name in names]
        )
        self._add_projection()
        self.output_norm = check_bool("output_norm", output_norm)
        self._add_output_norm()

    def _add_projection(self) -> None:
        self.keep(projection=None)
        if self.projection_dim is None:
            return
        if self.pooling == "first_and_mean" or self.distilled or self.hidden is not None:
            raise ValueError(
                "`projection_dim` projects one state: it cannot be combined with "
                "pooling='first_and_mean', `distilled` or a hidden layer."
            )
        self.keep(projection=self.make_dense(self.projection_dim, "projection"))

    def _add_output_norm(self) -> None:
        self.keep(output_normalization=None)
        if not self.output_norm:
            return
        if self.pooling == "first_and_mean":
            raise ValueError(
                "`output_norm` normalizes one state: it cannot be combined with "
                "pooling='first_and_mean'."
            )
        config = self.task.backbone.config
        norm = make_normalization(
            config.normalization,
            self.output_norm_epsilon or config.normalization_epsilon,
            name="output_norm",
            dtype=self.task.dtype_policy,
        )
        norm.build((None, config.hidden_dim))
        self.keep(output_normalization=norm)

    def __call__(self, states, inputs, training: bool = False):
        if self.distilled:
            both = zip(self.outputs_dense, (states[:, 0], states[:, 1]), strict=True)
            first, second = (
                layer(self.dropout_layer(state, training=training)) for layer, state in both
            )
            return (first + second) / 2
        mask = self.task.backbone.stem.mask_of(inputs, ops.shape(states)[1])
        state = self.pooled(states, mask)
        if self.hidden is not None:
            state = self.hidden(self.dropout_layer(state, training=training))
        return self.outputs_dense[0](self.dropout_layer(state, training=training))

    def pooled(self, states, mask=None):
        """Pool states to `(batch, width)`; `mask` marks the states of real input, if given."""
        state = self._pooled(states, mask)
        if self.output_normalization is not None:
            state = self.output_normalization(state)
        # The projection and the mean are linear: projecting after pooling gives the same with less
        # work.
        return state if self.projection is None else self.projection(state)

    def _pooled(self, states, mask):
        if self.pooling == "pooler":
            return self.task.backbone.pool(states, padding_mask=mask)
        if self.pooling == "attention":
            scores = ops.cast(self.pooling_dense(states), "float32")
            scores = scores if mask is None else ops.where(mask[..., None], scores, -1e9)
            weights = ops.softmax(scores, axis=1)
            return ops.sum(states * ops.cast(weights, states.dtype), axis=1)
        return pool_stem(states, self.pooling, num_tokens(self.task.backbone.config), mask)

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        usual = "first" if num_tokens(config) else "mean"
        usual = "pooler" if config.mean_pooler or config.vector_pooling else usual
        return {
            **super().weight_values(config, values),
            "pooling": values.get("pooling") or usual,
            "distilled": bool(values.get("distilled")),
        }

    @classmethod
    def weight_shapes(
        cls, config: TransformerConfig, values: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        shapes = super().weight_shapes(config, values)
        head = cls.weight_values(config, values)
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
        width = values.get("projection_dim")
        if width is not None:
            shapes |= shapes_of(dense_of("projection", "hidden_dim", "width"), config, width=width)
            shapes["output/kernel"] = (width, shapes["output/kernel"][1])
        if values.get("output_norm"):
            shapes |= shapes_of(norm_of("output_norm", config.normalization), config)
        return shapes


class InputClassifier(Task):
    """A backbone whose stem reads images, audio or videos, with a linear layer on one pooled state.

    `pooling="first"` is the state of the first token; `"mean"` the mean over the states of patches
    or frames; `"first_and_mean"` both concatenated; `"tokens"` the mean of all special tokens;
    `"attention"` a weighted mean, with a softmax over a linear layer as weights; `"pooler"` the
    output of the backbone's `pool`.

    A subclass names its head and its processor, and may override `arrays_of` to make other inputs.
    """

    backbone_kinds = ("encoder",)
    stem_example: ClassVar[str]  # A stem config, for the error if the backbone has no stem.

    augmentation: keras.Sequential | None

    # Values of the head.
    num_classes: int
    labels: list[str] | None
    dropout: float
    hidden_activation: str | None
    hidden_bias: bool
    block_norm: bool
    multi_label: bool
    pooling: str
    distilled: bool

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
        **options,
    ):
        super().__init__(backbone, processor, name=name)
        if backbone.id_inputs[0] not in self.processor_class.reads_arrays:
            raise ValueError(
                f"{type(self).__name__} needs a backbone that reads "
                f"{self.head_class.row_unit}s: give the config a `stem`, such as "
                f"{self.stem_example}."
            )
        self.augmentation = None
        self.set_head(
            num_classes=num_classes,
            labels=labels,
            dropout=dropout,
            multi_label=multi_label,
            hidden_activation=hidden_activation,
            hidden_bias=hidden_bias,
            block_norm=block_norm,
            pooling=pooling,
            distilled=distilled,
            **options,
        )

    @property
    def label_names(self) -> list[str]:
        """The name of each class; the number as a string if there are no `labels`."""
        return self.head.label_names

    @property
    def is_regression(self) -> bool:
        """True if targets are numbers: one output, which is not a class."""
        return self.head.is_regression

    def compile(self, *args, augmentation=None, **kwargs):
        """Compile as `keras.Model.compile` does, optionally with random augmentation.

        Args:
            *args: as in `keras.Model.compile`.
            augmentation: list of `keras.layers`, such as `[keras.layers.RandomFlip("horizontal")]`,
                which a training step applies to its inputs in order. Defaults to the current
                value; `[]` removes it.
            **kwargs: as in `keras.Model.compile`.
        """
        if kwargs.get("adversarial_norm"):
            raise ValueError(
                "`adversarial_norm` moves the embeddings of tokens, which "
                f"{self.head.row_unit}s do not have: leave it out."
            )
        if augmentation is not None:
            if augmentation and self.backbone.id_inputs[0] == "patches":
                raise ValueError(
                    "This model reads patches of images, which layers of augmentation cannot "
                    "change: change the images before they are given."
                )
            self.augmentation = augmentation_of(augmentation)
        super().compile(*args, **kwargs)

    def compile_values(self) -> dict:
        return {**super().compile_values(), "augmentation": layers_of(self.augmentation)}

    def call(self, inputs, collect: tuple[str, ...] = (), training: bool = False):
        if training and self.augmentation is not None:
            name = self.backbone.id_inputs[0]
            inputs = {**inputs, name: self.augmentation(inputs[name], training=True)}
        return super().call(inputs, collect=collect, training=training)

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Make batches of inputs, read when a batch is made. See `Task.make_dataset`."""
        processor = self._require_processor()
        given = processor.rows(x)
        values = {}
        if y is not None:
            values["labels"] = self.head.targets(y, len(given))
            weights = check_weights(
                "sample_weight", sample_weight, len(given), unit=self.head.row_unit
            )
            if weights is not None:
                values["sample_weight"] = weights

        def make_batch(arrays, masks):
            rows = arrays["row"]
            inputs = self.arrays_of([given[i] for i in rows], rows)
            return inputs, *(arrays[name] for name in values)

        columns = {"place": np.zeros((len(given), 1), "int32")}
        # Images without tiles have one size, whichever others are in the batch.
        options |= {"max_buckets": 1, "rowwise": getattr(processor, "tiling", True) is None}
        return self._bucketed(columns, make_batch, values=values, **options)

    def to_predict(self, batch_size: int | None = None) -> dict[str, Any]:
        if batch_size is None:
            batch_size = rows_to_predict(self.backbone.config)
        return super().to_predict(batch_size)

    def arrays_of(self, given: Sequence, places: Sequence[int] | None = None) -> dict:
        """Return the backbone's arrays for inputs that the processor takes."""
        return {self.backbone.id_inputs[0]: self._require_processor()(given, places=places)}

    @reads
    def classify(
        self,
        x,
        batch_size: int | None = None,
        top_k: int | None = None,
        threshold: float | None = None,
    ) -> list:
        """Return the most likely class of each input with its probability, or several.

        Args:
            x: as for `predict`; or a single image, recording or video.
            batch_size: int, as for `predict`.
            top_k: int, the number of most likely classes to return for each input; `num_classes`
                or more returns all.
            threshold: float, drop classes with a lower probability. Defaults to 0.5 with
                `multi_label` and without `top_k`.

        Returns:
            A `(label, probability)` for each input, or, with `top_k`, `threshold` or `multi_label`,
            a list of them, the most likely first. For a single input, only its result.

        Raises:
            ValueError: if the task is a regression, or an input cannot be read (names its index).
        """
        alone = self.processor_class.is_one(x)
        return self.head.top_classes([x] if alone else x, batch_size, top_k, threshold, alone)
