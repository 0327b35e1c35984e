"""Base class of all tasks: a backbone, a head, a processor, presets."""

import contextlib
import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np
from keras import ops

from keras_transformer.checkpoints import load_task, save_preset
from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset
from keras_transformer.data.dataset import check_batch
from keras_transformer.distribution import DatasetShard
from keras_transformer.explanations import explaining
from keras_transformer.explanations.explainer import Explainer
from keras_transformer.kernels.device import device
from keras_transformer.models.backbone import Backbone, check_positions
from keras_transformer.models.runtime.quantized import refuse_training
from keras_transformer.models.runtime.read_write_lock import ReadWriteLock, changes, copies, reads
from keras_transformer.models.runtime.runtime import Runtime, TrainingLoss
from keras_transformer.planning.flops import flops_per_token
from keras_transformer.processors.processor import Processor
from keras_transformer.support.checking import check_seed
from keras_transformer.support.foreign_names import check_options
from keras_transformer.support.notebook import model_table
from keras_transformer.support.sizes import ShapeBuckets
from keras_transformer.tasks.base import saving
from keras_transformer.tasks.base.adapters import load_adapter, save_adapter
from keras_transformer.tasks.base.head import Head
from keras_transformer.tasks.base.input_adapter import InputAdapter
from keras_transformer.tasks.base.predicting import TextParts, comes_in_parts, is_served, predicted
from keras_transformer.tasks.data import tables
from keras_transformer.tasks.data.arguments import (
    check_arrays,
    check_known,
    check_labels_given,
    checked_options,
    naming,
    parts_of,
    refuse_folder,
    refuse_open_file,
    split_rows,
)
from keras_transformer.tasks.data.class_weights import ClassWeights, check_class_weight, weighted
from keras_transformer.tasks.data.streams import TextBatches
from keras_transformer.tasks.data.text import TextProcessor
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import lora

# Compiling MiniLM for one shape takes 2.4 s, as long as training on 5,800 positions: 2,000 in each
# of three epochs. Smaller models train faster, but hardly compile faster.
_FLOPS_OF_A_SHAPE = 1.2e11

# Keras would warn of a pooler without gradients, although it is only unused by the task.
UNUSED = r"Gradients do not exist for variables \[('[^']*\b(pooler|vector\w*)/[^']*'(, )?)+\] "
warnings.filterwarnings("ignore", UNUSED)

# Attributes that subclasses of `Task` once stated themselves, and that their heads state now.
_OF_HEADS = (
    "head_of", "published_as", "published_head", "published_options", "reads_pooler",
    "predicts_tokens", "needs_labels", "learns_tokens", "takes_records", "most_texts",
    "usual_columns", "further_inputs", "reads_padding", "predicts_by_tokens", "predict_options",
    "row_unit",
)  # fmt: skip
_WHOLE = {"batch_size": 2**31 - 1, "max_buckets": 1}  # all rows in one batch


class Task(Runtime):
    """A backbone, a head and a processor: a `keras.Model` that also takes raw data, such as texts.

    `fit`, `evaluate` and `predict` take a dict of the backbone's input arrays, any dataset that
    Keras takes, or raw data that the processor converts. For text tasks the processor is a
    tokenizer, and raw data are strings: a list, a NumPy array, a column of a data frame, a tuple of
    two of them for pairs, a dataset of strings, or files, which may be larger than memory, as
    returned by `data.read`. Strings are tokenized in bulk and padded to a few length buckets, never
    to the model's maximum.

    The attribute `head`, a `tasks.Head`, holds the options, layers and variables of the head and
    computes the outputs. A subclass names its head and its processor, passes the head's options to
    `set_head`, and implements `make_dataset` (docs/add_a_task.md). See `Processor` to write a
    processor of your own.

    Args:
        backbone: a backbone of a kind that the task supports.
        processor: an instance of `processor_class`; for text tasks a `Tokenizer`, as the argument
            `tokenizer`; None if the task only takes arrays.
        name: str.
    """

    alias: ClassVar[str] = ""  # the task's name for users, such as "text_classification"
    backbone_kinds: ClassVar[tuple[str, ...]]  # the kinds of backbone that the task supports
    takes_queries: ClassVar[bool] = False  # whether a decoder may read object queries
    head_class: ClassVar[type[Head]] = Head
    processor_class: ClassVar[type[Processor]] = TextProcessor
    # Constructor options other than backbone, processor and name; presets store them.
    task_options: ClassVar[tuple[str, ...]] = ()

    head: Head
    # Maps one input to both sides of an encoder-decoder. None if each side has its own input.
    input_adapter: InputAdapter | None = None
    _explainer: Explainer | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        stated = {name: vars(cls)[name] for name in _OF_HEADS if name in vars(cls)}
        if stated:
            warnings.warn(
                f"{cls.__name__} states {', '.join(stated)}: state it in its `head_class`, a "
                "subclass of `tasks.Head`.",
                DeprecationWarning,
                stacklevel=2,
            )
            cls.head_class = type(f"{cls.__name__}Head", (cls.head_class,), stated)
        for name in (*cls.head_class.options, *cls.head_class.compile_options):
            if not hasattr(cls, name):
                setattr(cls, name, _value_of_head(name))

    def __new__(cls, *args, **kwargs):
        known = inspect.signature(cls.__init__).parameters
        if unknown := kwargs.keys() - known.keys():
            check_options(cls.__name__, unknown, known)
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, backbone: Backbone, processor=None, name: str | None = None):
        if not isinstance(backbone, Backbone) or backbone.config.kind not in self.backbone_kinds:
            given = backbone.config.kind if isinstance(backbone, Backbone) else type(backbone)
            raise ValueError(
                f"{type(self).__name__} needs a backbone of kind "
                f"{' or '.join(map(repr, self.backbone_kinds))}, received {given!r}. A decoder of "
                "your own is a subclass of `keras_transformer.models.DecoderBase`."
            )
        if backbone.config.source is not None:
            self._check_reads_source(backbone)
        if backbone.config.last_side.input.is_set and not self.takes_queries:
            raise ValueError(
                f"The decoder of this backbone reads object queries, not the tokens that "
                f"{type(self).__name__} needs. Its task is ObjectDetector."
            )
        if not backbone.built:  # A user's own backbone; it cannot be built in a compiled step.
            backbone.build()
        processor = self.processor_class.checked(processor)
        if processor is not None:
            processor.check(backbone.config)
        super().__init__(name=name, dtype=backbone.dtype_policy)
        self.backbone = backbone
        self.processor = processor
        if self.head_class.__init__ is Head.__init__:
            self.head = self.head_class(self)

    @functools.cached_property
    def _sizes(self) -> ShapeBuckets | None:
        """Shapes that rows are padded to outside of training, if each shape is compiled."""
        return ShapeBuckets() if device().compiles_shapes else None

    @functools.cached_property
    def _sizes_of_rows(self) -> ShapeBuckets | None:
        """Shapes for `explain`, whose batches have one row and must not be padded to more rows."""
        return ShapeBuckets() if device().compiles_shapes else None

    @classmethod
    def takes_backbone(cls, backbone: Backbone) -> bool:
        """Return whether the first input of a backbone is what the task makes of its data."""
        return backbone.id_inputs[0] in cls.processor_class.reads_arrays

    def _check_reads_source(self, backbone: Backbone) -> None:
        if not self.takes_backbone(backbone):
            raise ValueError(
                f"{type(self).__name__} reads only texts, but the encoder of this backbone also "
                f"attends to a `source`, {backbone.id_inputs[0]!r}. Its task is ImageToText."
            )

    @property
    def known_sizes_from(self) -> int | None:
        """See `Backbone.known_sizes_from`."""
        return getattr(self.backbone, "known_sizes_from", None)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the processor, or None."""
        return getattr(self.processor, "tokenizer", None)

    # Methods that a subclass defines, and values of its head.

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Convert raw data to batches of arrays, ready for `fit`.

        Args:
            x: texts, or other raw data that the processor takes, as for `fit`.
            y: labels or target texts, as for `fit`.
            sample_weight: one number for each row.
            **options: options of `data.BucketedDataset`, e.g. `shuffle`, `seed`, `batch_size`,
                `batch_tokens`, `max_length`.

        Returns:
            A `data.BucketedDataset`.
        """
        raise NotImplementedError

    def set_head(self, **options: Any) -> None:
        """Make the head from its options, and compile the task with the usual loss and metrics.

        A constructor must call it last, when all other layers of the task exist.
        """
        self.head = self.head_class(self, **options)
        self.built = True
        self.compile(**self.head.usual())

    @classmethod
    def head_values(cls, config: TransformerConfig, values: dict[str, Any]) -> dict[str, Any]:
        """Return the options among the task's `values` that the weights of the head depend on."""
        return cls.head_class.weight_values(config, values)

    @classmethod
    def head_shapes(
        cls, config: TransformerConfig, values: dict[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the head's variables by path, for a config and the task's values."""
        return cls.head_class.weight_shapes(config, values)

    def held(self, data: Any, batch_size=None, steps=None, **options) -> Any:
        """Convert a data set of images or audio to batches; return other data as it is."""
        return tables.held(self, data, batch_size, steps, **options)

    def held_inputs(self, data: Any, options: dict[str, Any]) -> Any:
        """Return the inputs of a data set of images or audio; return other data as it is."""
        return tables.held_inputs(self, data, options)

    def task_values(self) -> dict[str, Any]:
        """Return the values of `task_options`, from which the task can be constructed again."""
        return {name: getattr(self, name) for name in self.task_options}

    def to_predict(self, batch_size: int | None = None) -> dict[str, Any]:
        """Return the options of `make_dataset` for prediction.

        Batches have `batch_size` rows if given, otherwise as many tokens as the device prefers.
        """
        options = {"sizes": self._sizes, **check_batch(batch_size)}
        tokens = device().batch_tokens
        if batch_size is None and tokens is not None and self.head.predicts_by_tokens:
            options |= {"batch_tokens": tokens, "even": True}
        return options

    @property
    def input_interface(self) -> Backbone | InputAdapter:
        """The object that defines the task's inputs; its `config` bounds their lengths."""
        return self.input_adapter or self.backbone

    @property
    def number_of_targets(self) -> int | None:
        """Exclusive upper bound of integer targets; None if the task has no such targets."""
        return self.head.number_of_targets

    @property
    def generates(self) -> bool:
        """Whether the task has a method `generate`."""
        return hasattr(self, "generate")

    @property
    def weights_lock(self) -> ReadWriteLock:
        return self.backbone.weights_lock

    # Methods of `keras.Model`.

    def __call__(self, inputs=None, *args, **kwargs):
        named = self._named(inputs)
        if kwargs.keys() - {"training"}:
            check_options(type(self).__name__, kwargs, ())
        return super().__call__(named, *args, **kwargs)

    @property
    def input_dtype(self) -> str:
        """Dtype that Keras converts inputs to: coordinates, such as points, would be rounded.

        The layers convert what they compute with.
        """
        return "float32"

    def call(self, inputs, collect: tuple[str, ...] = (), training: bool = False):
        """Return the outputs of the head, and with `collect` a dict of further values.

        `collect` has the names `"states"` or `"attention"`. Outputs have at least float32
        precision, whatever the compute dtype.
        """
        states, collected = self.backbone_states(inputs, collect, training)
        outputs = keras.tree.map_structure(
            _at_least_float32, self.head_outputs(states, inputs, training)
        )
        return (outputs, collected) if collect else outputs

    def backbone_states(self, inputs, collect: tuple[str, ...] = (), training: bool = False):
        """Return the states that the head reads, and a dict of collected values."""
        inputs = {name: x for name, x in inputs.items() if name not in self.head.further_inputs}
        options = {"first_only": True} if self.head.first_only else {}
        if (
            self.backbone.config.sides[0].global_projection
            and inputs.get("global_positions") is None
        ):
            places = self.global_positions(inputs)
            inputs = inputs if places is None else {**inputs, "global_positions": places}
        if self.input_adapter is not None:
            inputs = self.input_adapter(inputs)
        layers = self.head.layers or (self.head.learned_layers if training else None)
        if layers is not None:
            collect = (*collect, "block_outputs")
            _, collected = self.backbone(inputs, collect=collect, training=training)
            outputs = collected.pop("block_outputs")
            return [outputs[i - 1] for i in layers], collected
        if self.head.reads_maps:
            collect = (*collect, "maps")
            states, collected = self.backbone(inputs, collect=collect, training=training)
            return [*collected.pop("maps"), states], collected
        if not collect:
            if training and not self.head.reads_padding:
                inputs = self.backbone.without_unseen_padding(inputs)
            return self.backbone(inputs, training=training, **options), {}
        return self.backbone(inputs, collect=tuple(collect), training=training)

    def global_positions(self, inputs):
        """Return the positions with global attention, see `Head.global_positions`."""
        return self.head.global_positions(inputs)

    def head_outputs(self, states, inputs, training: bool):
        """Return the outputs of the task for the backbone's states."""
        return self.head(states, inputs, training)

    def _named(self, inputs) -> dict[str, Any]:
        """Return the inputs by name. Raises ValueError if one is unknown or invalid."""
        input_interface = self.input_interface
        named = input_interface.checked_inputs(
            inputs, further=self.head.further_inputs, taker=type(self).__name__
        )
        for name in named.keys() & set(self.head.further_inputs):
            check_positions(name, named[name], named[input_interface.id_inputs[-1]])
        return named

    def _require_processor(self) -> Processor:
        if self.processor is None:
            kind = self.processor_class
            raise ValueError(
                f"This {type(self).__name__} has no {kind.kind} and takes {kind.made} only. Give "
                f"{kind.raw} to a task made with one, or a dict of arrays to this one."
            )
        return self.processor

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # Not each layer: the backbone rematerializes whole blocks.

    # For users' tasks that create their layers themselves rather than in a head.

    def _dense(self, units: int, name: str, use_bias: bool = True, width: int | None = None):
        return self.head.make_dense(units, name, use_bias, width)

    def _dropout(self, rate: float):
        return self.head.make_dropout(rate)

    def training_loss(self) -> TrainingLoss | None:
        return self.head.training_loss()

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.head.compute_loss(super().compute_loss, x, y, y_pred, sample_weight, training)

    def compile(
        self,
        optimizer="auto",
        loss="auto",
        loss_weights=None,
        metrics=None,
        weighted_metrics=None,
        **kwargs,
    ) -> None:
        """Compile as `keras.Model.compile` does. Omitted arguments keep their current values.

        Args:
            optimizer: as in `keras.Model.compile`. Initially the task's own.
            loss: a loss on the task's outputs, which are logits.
            loss_weights: as in `keras.Model.compile`.
            metrics: as in `keras.Model.compile`; the usual names mean the metrics for logits.
            weighted_metrics: like `metrics`, but weighted by `sample_weight`.
            **kwargs: as in `keras.Model.compile`; `pack_weights`, see docs/quantization.md; and for
                classifiers of tokens or texts `adversarial_norm`, float, initially 0: if positive,
                each step also trains on its texts with perturbed token embeddings, moved in the
                direction that raises the loss most, by this fraction of their norm. The loss is the
                mean of both. A step takes nearly three times as long; useful if labels are few.

        Raises:
            ValueError: if a value is out of range.
        """
        own = {name: kwargs.pop(name) for name in self.head.compile_options if name in kwargs}
        own = {name: value for name, value in own.items() if value is not None}
        own = self.head.checked_compile_options(own)
        if _is_auto(optimizer):
            optimizer = getattr(self, "optimizer", None) or "rmsprop"
        # None makes Keras keep the current value: a loss with its weights, and all metrics.
        loss, metrics, weighted_metrics = (
            None if _is_auto(given) else given for given in (loss, metrics, weighted_metrics)
        )
        metrics, weighted_metrics = keras.tree.map_structure(
            self.metric_of, (metrics, weighted_metrics)
        )
        super().compile(optimizer, loss, loss_weights, metrics, weighted_metrics, **kwargs)
        for name, value in own.items():
            setattr(self.head, name, value)
        self.head.compiled()
        if _takes_probabilities(self.loss):
            warnings.warn(
                f"The loss {getattr(self.loss, 'name', self.loss)!r} takes probabilities, but "
                f"{type(self).__name__} returns logits. Use the task's own loss, task.loss, or a "
                "loss of Keras with from_logits=True.",
                stacklevel=_level_of_caller(),
            )
        if self.head.learns_tokens and _counts_padding(self.loss):
            warnings.warn(
                f"The loss {getattr(self.loss, 'name', self.loss)!r} averages over padding too, "
                "so it depends on the batch size. Give it reduction='mean_with_sample_weight', or "
                "use the task's own loss, task.loss.",
                stacklevel=_level_of_caller(),
            )

    def _bucketed(self, columns: dict[str, Any], make_batch, **options) -> BucketedDataset:
        """Batch rows of at most the model's maximum length.

        In training, a further length bucket is only used if it saves more computation than its
        compilation costs.
        """
        config = self.input_interface.config
        if config.position == "learned" or config.score == "location":
            options = {"max_length": config.max_sequence_length, **options}
        if options.get("shuffle") and options.get("max_buckets") is None:
            options = {"least_saving": self._tokens_of_a_shape, **options}
        return BucketedDataset(columns, make_batch, **options)

    @functools.cached_property
    def _tokens_of_a_shape(self) -> int:
        """Number of tokens whose training step takes as long as compiling a shape of batches."""
        length = min(32, self.input_interface.config.max_sequence_length)
        return int(_FLOPS_OF_A_SHAPE / flops_per_token(self.backbone.config, length))

    def _row_outputs(self, dataset: BucketedDataset, reduce: Callable | None = None) -> list:
        """Return the outputs of each row, in the rows' order; `reduce` is applied to each batch."""
        rows: list = []

        def take(outputs):
            outputs = ops.convert_to_numpy(outputs)
            rows.extend(outputs if reduce is None else reduce(outputs))

        waiting: list = []  # processed while the device computes the next batch
        with self.weights_lock.trainer:
            for place in range(len(dataset)):
                batch = dataset[place][:1]
                self._expect("predict", batch[0], is_batch=True)
                waiting.append(self.batch_function()(batch))
                if place:
                    take(waiting.pop(0))
            take(*waiting)
        return dataset.restore_order(rows)

    def _refuse_targets(self, y, of: str = "texts") -> None:
        if y is not None:
            raise ValueError(
                f"{type(self).__name__} makes its targets from the {of}: give `x` alone, without "
                "`y`. Weights go to `sample_weight`, or in a data set to (x, None, sample_weight)."
            )

    def metric_of(self, given: Any) -> Any:
        """Map a metric given to `compile`, such as a name, to the metric that is used."""
        return self.head.metric_of(given)

    # Keras's `fit`, `evaluate` and `predict`, for raw data too.

    @changes
    def fit(
        self,
        x=None,
        y=None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks=None,
        validation_split: float = 0.0,
        validation_data=None,
        shuffle: bool = True,
        class_weight: dict[int | str, float] | None = None,
        sample_weight=None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq=1,
        *,
        batch_tokens: int | None = None,
        seed: int | None = None,
        **processing,
    ) -> keras.callbacks.History:
        """Train as `keras.Model.fit` does, also on raw data such as strings.

        Arguments that differ from Keras's:
            x: strings, or the result of `data.read`, which includes `y`; a dict of arrays; or a
                dataset.
            y: labels, or target strings.
            validation_data: `x` or `(x, y)`, with the same types.
            class_weight: dict from class names or numbers to weights that multiply the loss. With
                `multi_label` the weight applies to the loss of that class, in each row; for token
                labels or logits, to the loss of the token; for soft labels, the mean weight applies
                to the row. The classes of language models are tokens, given by id or as strings of
                the vocabulary.
            sample_weight: one number for each row; or, for labels of words or tokens, one for each
                of them. They are multiplied with `class_weight`.
            batch_tokens: int, the approximate number of tokens of a batch, instead of `batch_size`.
            seed: int, the seed of shuffling. Defaults to one drawn from NumPy, which
                `keras.utils.set_random_seed` seeds.
            processing: options of the task's processor: for texts `max_length`, the number of
                tokens that longer texts are truncated to, and `pack_length`, as in
                `data.BucketedDataset`; for conversations of a `CausalLM` also `train_on`, see its
                `make_dataset`.

        Returns:
            A `keras.callbacks.History` with the loss and metrics of each epoch.

        Raises:
            ValueError: if the data, labels, weights or options are invalid, or the model is
                quantized.
        """
        refuse_training(self)  # before any text is tokenized
        options = checked_options(
            {
                "epochs": epochs, "verbose": verbose, "callbacks": callbacks,
                "validation_split": validation_split, "initial_epoch": initial_epoch,
                "steps_per_epoch": steps_per_epoch, "validation_steps": validation_steps,
                "validation_freq": validation_freq,
                "validation_batch_size": validation_batch_size,
            }
        )  # fmt: skip
        check_known(processing, self.processor_class.options)
        weigh = self.class_weights(class_weight)
        sizes = check_batch(batch_size, batch_tokens)
        drawn = {"shuffle": shuffle, "seed": check_seed("seed", seed, none=True)}
        refuse_open_file(self, x)
        x = self.processor_class.stream(self, x, batch_size, steps_per_epoch, **drawn, **processing)
        if self._takes(x):
            share = options.pop("validation_split")
            if share and validation_data is None:
                check_labels_given(self, x, y)
                (x, y, sample_weight), validation_data = split_rows(x, y, sample_weight, share)
            drawn["seed"] = int(np.random.randint(2**31)) if seed is None else drawn["seed"]
        elif batch_tokens is not None:
            raw = self.processor_class.raw
            raise ValueError(f"`batch_tokens` needs {raw}: arrays and datasets cannot use it.")
        x, y, sample_weight = self._batches(x, y, sample_weight, processing, **sizes, **drawn)
        with naming("validation_data"):
            validation_data = self._validation(validation_data, options, batch_size, processing)
        options["validation_data"] = validation_data
        with self.weighing(x, y, sample_weight, weigh, steps_per_epoch) as (x, weights):
            options["sample_weight"] = weights
            return self._fit_batches(x, y, sizes["batch_size"], shuffle, **options)

    def _fit_batches(self, x, y, batch_size: int | None, shuffle: bool, **options):
        self._check_precision()
        if isinstance(x, BucketedDataset):
            self.head.check_training_set(x)
            batch_size = None
        if isinstance(x, (BucketedDataset, DatasetShard, TextBatches)):
            shuffle = False  # The data set shuffles itself.
        self._expect("train", x)
        return super().fit(x, y, batch_size=batch_size, shuffle=shuffle, **options)

    @reads
    def evaluate(
        self,
        x=None,
        y=None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight=None,
        steps: int | None = None,
        callbacks=None,
        return_dict: bool = False,
        **kwargs,
    ) -> Any:
        """Return loss and metrics as `keras.Model.evaluate` does, also for raw data.

        It also takes the options of the processor, as `fit` does.

        Returns:
            The loss, or a list of the loss and the metrics; a dict by name if `return_dict`.

        Raises:
            ValueError: if the data, labels, weights or options are invalid.
        """
        processing = {n: kwargs.pop(n) for n in self.processor_class.options if n in kwargs}
        options = {"verbose": verbose, "steps": steps, "callbacks": callbacks}
        options = checked_options({**options, "return_dict": return_dict, **kwargs})
        sizes = check_batch(batch_size)
        refuse_open_file(self, x)
        x = self.processor_class.stream(self, x, sizes["batch_size"], steps, **processing)
        x, y, sample_weight = self._batches(x, y, sample_weight, processing, **sizes)
        batch_size = None if isinstance(x, BucketedDataset) else sizes["batch_size"]
        self._expect("test", x)
        return super().evaluate(x, y, batch_size, sample_weight=sample_weight, **options)

    @reads
    def predict(
        self,
        x,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks=None,
    ) -> np.ndarray:
        """Return outputs in the order of the input as `keras.Model.predict` does, also for strings.

        Outputs for a data set from `make_dataset` are in the order of its texts, unless `steps`
        ends the pass early or the texts are packed.

        Returns:
            The outputs of the task as NumPy arrays, with a row for each input.

        Raises:
            ValueError: if the data or options are invalid.
        """
        options = checked_options({"verbose": verbose, "steps": steps, "callbacks": callbacks})
        sizes = check_batch(batch_size)
        served = is_served(self, options)
        refuse_open_file(self, x)
        x = self.processor_class.load_dataset(self, x, options)
        if self._takes(x):
            if isinstance(x, str):
                refuse_folder(self, x)
                raw = self.processor_class.raw
                raise ValueError(f"Give a list of {raw}: predict([text]), not predict(text).")
            made = {**self.to_predict(batch_size), **self.head.predict_options}
            return self._predicted(x, lambda some: self.make_dataset(some, **made), options)[0]
        if not isinstance(x, BucketedDataset):
            x, _ = check_arrays(self, x, learns=False)
            self._expect("predict", x)
            return super().predict(x, batch_size=sizes["batch_size"], **options)
        if "max_buckets" in self.head.predict_options:
            x = x.of_one_length()
        restore = x.restoring()
        self._expect("predict", x)
        if not served or x.workers > 1 or x.use_multiprocessing:
            return restore(super().predict(x, **options))
        with self.weights_lock.trainer:
            return restore(predicted(self, [x], options))

    def _predicted(self, x, make: Callable, options: dict) -> tuple[Any, int]:
        """Return the outputs for raw data in its order, and its number of tokens.

        `make` maps all of the data, or some rows, to a data set.
        """
        several = "max_buckets" not in self.head.predict_options and is_served(self, options)
        if not (several and comes_in_parts(x, options)):
            dataset = make(x)
            return Task.predict(self, dataset, **options), dataset.tokens_per_epoch
        parts = TextParts(x, make)
        with self.weights_lock.trainer:
            outputs = predicted(self, parts, options)
        return parts.restored(outputs), parts.tokens

    def _takes(self, x) -> bool:
        """Return True if `x` is raw data for the processor."""
        return self.processor_class.takes(x)

    def _batches(self, x, y, sample_weight, processing: dict, **options) -> tuple:
        """Return `(x, y, sample_weight)` for Keras: raw data as batches, other data checked."""
        if self._takes(x):
            check_labels_given(self, x, y)
            return self.make_dataset(x, y, sample_weight, **options, **processing), None, None
        given = [name for name, value in processing.items() if value is not None]
        if given and not isinstance(x, TextBatches):
            raw = self.processor_class.raw
            raise ValueError(f"`{given[0]}` needs {raw}: arrays and datasets cannot use it.")
        x, sample_weight = check_arrays(self, x, y, sample_weight)
        return x, y, sample_weight

    def _validation(self, data, options: dict, batch_size: int | None, processing: dict):
        """Return `validation_data` with raw data turned into batches."""
        given = (options.get("validation_batch_size"), options.get("validation_steps"))
        if isinstance(data, tuple) and data:
            data = (self.processor_class.stream(self, data[0], *given, **processing), *data[1:])
        else:
            data = self.processor_class.stream(self, data, *given, **processing)
        if self._takes(data) and not isinstance(data, tuple):
            data = (data,)  # texts that are their own targets
        if data is None:
            return None
        x, y, sample_weight = parts_of(data if isinstance(data, tuple) else (data,), "A tuple")
        if not self._takes(x):
            made, targets, weights = self._batches(x, y, sample_weight, {})
            return data if made is data else (made, targets, weights)
        size = options.pop("validation_batch_size") or batch_size
        return self._batches(x, y, sample_weight, processing, **check_batch(size))[0]

    def class_weights(self, class_weight: Any) -> ClassWeights | None:
        """Return the function that applies class weights, or None without class weights."""
        if class_weight is None:
            return None
        check_class_weight(class_weight)
        return self.weights_of_classes(class_weight) if class_weight else None

    def weights_of_classes(self, class_weight: dict) -> ClassWeights:
        """Return the weights of the task's classes. Raises ValueError if it has no classes."""
        return self.head.weights_of_classes(class_weight)

    @contextlib.contextmanager
    def weighing(
        self, x, y, sample_weight, weigh: ClassWeights | None, steps: int | None
    ) -> Iterator[tuple]:
        """Yield the data and sample weights with class weights applied."""
        if weigh is None:
            yield x, sample_weight
            return
        if isinstance(x, Mapping):
            sample_weight = weigh(y, sample_weight)
        with weighted(self, x, steps, weigh) as batches:
            yield batches, sample_weight

    def _check_precision(self) -> None:
        """Raise ValueError if the optimizer cannot change weights of this dtype."""
        dtype = self.dtype_policy.variable_dtype
        beta = getattr(self.optimizer, "beta_2", None)
        if dtype == "bfloat16" and beta is not None and beta > 1 - 2**-9:
            raise ValueError(
                f"In {dtype}, {beta} (`beta_2` of {type(self.optimizer).__name__}) rounds to 1, so "
                'no weight would change. Load the model with dtype="mixed_bfloat16", which keeps '
                "float32 weights and computes in bfloat16."
            )

    def train_on_batch(
        self, x, y=None, sample_weight=None, class_weight=None, return_dict: bool = False
    ):
        """Run one training step as `keras.Model.train_on_batch` does, also on strings."""
        weigh = self.class_weights(class_weight)
        x, y, sample_weight = self._one_batch(x, y, sample_weight, learns=True)
        sample_weight = sample_weight if weigh is None else weigh(y, sample_weight)
        self._expect("train", x, is_batch=True)
        return super().train_on_batch(x, y, sample_weight, return_dict=return_dict)

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict: bool = False):
        """Return loss and metrics of one batch as `keras.Model.test_on_batch`, also of strings."""
        x, y, sample_weight = self._one_batch(x, y, sample_weight)
        self._expect("test", x, is_batch=True)
        return super().test_on_batch(x, y, sample_weight, return_dict)

    def predict_on_batch(self, x):
        """Return outputs of one batch as `keras.Model.predict_on_batch` does, also of strings."""
        if not self._takes(x):
            self._expect("predict", x, is_batch=True)
            return super().predict_on_batch(x)
        dataset = self.make_dataset(x, **{**self.head.predict_options, **_WHOLE})
        batch = dataset[0][0]
        self._expect("predict", batch, is_batch=True)
        return dataset.restoring()(super().predict_on_batch(batch))

    def _one_batch(self, x, y, sample_weight, learns: bool = False) -> tuple:
        """Return inputs, targets and weights of one batch, checked; strings are encoded."""
        # The seed matters if the batch is made at random, such as by masking.
        drawn = {"shuffle": True, "seed": int(np.random.randint(2**31))} if learns else {}
        made = self._batches(x, y, sample_weight, {}, **drawn, **_WHOLE)
        return keras.utils.unpack_x_y_sample_weight(made[0][0]) if self._takes(x) else made

    # Explanations of outputs.

    @reads
    def explain(
        self,
        x,
        *,
        saliency: str | None = None,
        target: Any = None,
        position: int | str | None = None,
        steps: int = 50,
        baseline: str | int | None = None,
        top_k: int = 5,
        vectors: bool = True,
        max_attention: int | None = None,
    ) -> Any:
        """Explain the model's output for inputs: attention, states and token attributions.

        It runs the same forward pass as `predict`, with the same outputs.

        Args:
            x: a list of inputs, as for `predict`; or a single one, such as a string, a tuple of two
                strings for a pair, or an image.
            saliency: `"gradient_x_input"`, or `"integrated_gradients"`, which is slower and gives
                attributions that sum to the difference between the outputs for the input and for a
                baseline. Defaults to no attributions.
            target: the output to explain: a class by number or name, or a token by id or string.
                For embedding models also a text, to explain the similarity to its vector. Defaults
                to the most likely output.
            position: the token whose output to explain, by index or string, if each token has
                outputs. Defaults to the mask token, to the last token of a text that is continued,
                or to the most confident one.
            steps: int, the number of steps of integrated gradients.
            baseline: the start of integrated gradients: `"zeros"`; for texts also `"mean"`, the
                mean of all embeddings, or a token by id or string. Defaults to zeros if the model
                adds positions to its embeddings, and to the mean otherwise, since normalization is
                discontinuous at zero.
            top_k: int, the number of most likely tokens in each layer, if the model predicts
                tokens.
            vectors: bool, keep the queries and keys, which the page of `to_html` shows.
            max_attention: int, the maximum number of attention weights of an input, over all layers
                and heads; it grows with the square of the length. Defaults to no limit.

        Returns:
            An `explanations.Explanation`, or a list of them for a list of inputs.

        Raises:
            ValueError: if the model cannot take the inputs or has no such output; or, before any
                forward pass, if an input has more than `max_attention` weights.

        Example:
        ```python
        import keras_transformer as kt

        classifier = kt.TextClassifier.from_preset("minilm_l6_en", labels=["bad", "good"])
        explanation = classifier.explain("a warm and funny film", saliency="integrated_gradients")
        assert explanation.tokens[1] == "a" and explanation.attention.shape[:2] == (6, 12)
        assert len(explanation.saliency) == len(explanation.tokens)
        ```

        Source: Shrikumar et al. 2016; Sundararajan et al. 2017, "Axiomatic Attribution for Deep
        Networks".
        """
        return explaining.explain(
            self, x, saliency=saliency, target=target, position=position, steps=steps,
            baseline=baseline, top_k=top_k, vectors=vectors, max_attention=max_attention,
        )  # fmt: skip

    def explained_inputs(self, x: Any) -> tuple[list[dict[str, np.ndarray]], bool]:
        """Return the arrays of each input, as batches of one, and whether `x` is a single input."""
        return explaining.rows_to_explain(self, x)

    # Training only a part of the weights.

    @changes
    def freeze(self, layers: int, embeddings: bool = True) -> None:
        """Train only the upper blocks of the backbone and the head; optimizer states are reset.

        Call it again with fewer layers to thaw the blocks in between (gradual unfreezing).

        Args:
            layers: int, the number of lowest blocks to freeze; for an encoder-decoder, in each
                side.
            embeddings: bool, also freeze the embeddings and whatever else precedes the blocks.

        Raises:
            ValueError: if the backbone has fewer than `layers` blocks, or the task has adapters.

        Example:
        ```python
        import keras_transformer as kt

        classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
        classifier.freeze(layers=4)
        paths = [variable.path for variable in classifier.trainable_variables]
        assert not any("layer_3" in path or "embedding" in path for path in paths)
        assert any("layer_4" in path for path in paths)
        ```

        Source: Howard and Ruder 2018, "ULMFiT", section 3.3.
        """
        lora.freeze(self.backbone, layers, embeddings)
        lora.forget_compiled(self)

    @changes
    def enable_lora(
        self,
        rank: int,
        alpha: float | None = None,
        targets: Sequence[str] = ("query", "value"),
        method: str = "lora",
    ) -> None:
        """Freeze the backbone, and train low-rank matrices next to some of its kernels.

        The kernel `W` of a target becomes `W + alpha / rank * A @ B`. `B` starts at zero, so the
        model's outputs do not change at first. The task's head stays trainable. Optimizer states
        are reset: call this before `fit`. The compiled learning rate is kept.

        The kernels may be quantized (QLoRA): `quantize` the task, or its `backbone` if it has a
        head, before. They stay integers, and are converted for each product, without rounding the
        states, until `merge_lora`.

        Args:
            rank: int, the inner dimension of `A @ B`.
            alpha: float, see above. Defaults to `rank`.
            targets: names of the dense layers to adapt: `"query"`, `"key"`, `"value"`, `"output"`
                and the layers of the feed-forward part. `"decoder/query"` means only those of the
                decoder, `"encoder/query"` those of the encoder, such as an image tower.
            method: `"lora"`; `"rslora"`, with the scale `alpha / sqrt(rank)`; or `"dora"`, which
                also trains the length of each column of the adapted kernel.

        Raises:
            ValueError: if the rank or alpha is not positive, no layer has the name of a target, the
                model is already adapted, or a kernel is quantized to anything but int8 and int4.

        Example:
        ```python
        import math
        import keras_transformer as kt

        classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
        before = classifier.count_params()
        classifier.enable_lora(rank=4)
        trained = sum(math.prod(v.shape) for v in classifier.trainable_variables)
        assert trained < before / 50
        ```

        Source: Hu et al. 2021, "LoRA"; Kalajdzievski 2023, rsLoRA, equation 4; Liu et al. 2024,
        "DoRA", sections 4.1 and 4.3; Dettmers et al. 2023, "QLoRA", section 3.
        """
        lora.enable_lora(self.backbone, rank, alpha, targets, method=method)
        lora.forget_compiled(self)

    @changes
    def merge_lora(self) -> None:
        """Merge the adapters into the kernels and remove them.

        Weights that `enable_lora` froze become trainable again. A quantized kernel is converted to
        floats, merged, and quantized again as `quantize` does. To keep the precision of the
        adapters, `save_adapter`, and load them into the model of floats before merging.

        Raises:
            ValueError: if the task has no adapters.
        """
        lora.merge_lora(self.backbone)
        lora.forget_compiled(self)

    @copies
    def save_adapter(self, path: str | os.PathLike, format: str | None = None) -> None:
        """Save the adapters and the task's head, without the frozen weights.

        Args:
            path: path of a safetensors file, which appears complete or not at all; or, with
                `format="peft"`, of a folder.
            format: `"peft"` for a folder that the PEFT library loads beside the model that
                `export_to_huggingface` writes, or the published one that this task was loaded
                from. Defaults to a file for `load_adapter`.

        Raises:
            ValueError: if the task has no adapters, the path is a folder, or PEFT has no layer for
                an adapter.
            OSError: if the file cannot be written, or another process is writing it.

        Example:
        ```python
        import keras_transformer as kt

        classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
        classifier.enable_lora(rank=4)
        classifier.save_adapter("films", format="peft")
        other = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
        other.load_adapter("films")
        ```
        """
        save_adapter(self, path, format)

    @changes
    def load_adapter(self, path: str | os.PathLike) -> None:
        """Load adapters and the head, keeping the task's other weights.

        A folder of PEFT is read if it has LoRA of linear layers: with rsLoRA, ranks and alphas by
        module, and a trained head. Without a head in the folder, the task keeps its own.

        Args:
            path: path of a file that `save_adapter` wrote; a folder of PEFT, with
                `adapter_config.json` and `adapter_model.safetensors`; or its name on the hub,
                `"hf://org/name[@revision]"`.

        Raises:
            FileNotFoundError: if the file does not exist, or the folder has no adapter.
            ValueError: if the adapters belong to another model, or change it in a way that cannot
                be represented exactly; names the tensor or the value.
            ConnectionError, PermissionError: if the download from the hub fails.
        """
        load_adapter(self, path)

    # Saving in Keras's formats.

    def compile_values(self) -> dict[str, Any]:
        """Return the arguments of `compile` beyond Keras's."""
        own = {name: getattr(self.head, name) for name in self.head.compile_options}
        return {"pack_weights": self.pack_weights, **own}

    def get_config(self) -> dict[str, Any]:
        return saving.config_of(self)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects=None) -> Self:
        return saving.task_of(cls, config, custom_objects)

    def save_own_variables(self, store) -> None:
        saving.save_variables(self, super().save_own_variables, store)

    def load_own_variables(self, store) -> None:
        saving.load_variables(self, super().load_own_variables, store)

    def get_compile_config(self) -> dict[str, Any] | None:
        return saving.compile_config_of(self, super().get_compile_config())

    def compile_from_config(self, config: dict[str, Any]) -> None:
        saving.compile_from(self, config)

    def save_assets(self, directory: str) -> None:
        saving.save_sampler(self, directory)

    def load_assets(self, directory: str | None) -> None:
        saving.load_sampler(self, directory)

    # Presets.

    @classmethod
    def from_preset(
        cls, preset: str | os.PathLike, load_weights: bool = True, dtype=None, **options
    ) -> Self:
        """Load a task from a preset, compiled. A head that the preset lacks is initialized.

        Args:
            preset: a bundled name, a local directory, or `"hf://org/name[@revision]"`.
            load_weights: bool, False for fresh weights.
            dtype: dtype or dtype policy of the model; or `"int8"`, `"int4"`, `"int4/64"` or such as
                `"int4_from_bfloat16"` for integer weights of the backbone, quantized as they are
                loaded.
                Without one, quantized matrices that layers of int4 and int8 can hold stay
                as they are stored; with one, all are unpacked to it.
            **options: arguments of the task's constructor, e.g. `num_classes`, or values of the
                backbone's config to change, e.g. `dropout`. If weights are loaded, only values can
                change that the weights do not depend on, see `Backbone.from_preset`.

        Raises:
            ValueError: if the preset is unknown (the error suggests similar names) or of the wrong
                kind, or its weights do not fit or were trained with other values.
        """
        return load_task(cls, preset, load_weights=load_weights, dtype=dtype, **options)

    @copies
    def save_to_preset(
        self, directory: str | os.PathLike, dtype: str | None = None, **options
    ) -> None:
        """Save backbone, head, processor and a model card to `directory`.

        Args:
            directory: path, created if missing. A failure leaves no partial files.
            dtype: stored dtype, e.g. `"float16"`. Defaults to the weights' dtype.
            **options: `card` and `metadata`, see `checkpoints.save_preset`.
        """
        save_preset(
            directory,
            backbone=self.backbone,
            tokenizer=self.processor,
            task={"name": type(self).__name__, **self.task_values()},
            head_variables=self.head,
            dtype=dtype,
            **options,
        )

    @copies
    def push_to_hub(
        self,
        repository: str,
        format: str = "keras_transformer",
        *,
        private: bool | None = None,
        token: str | None = None,
        dtype: str | None = None,
        message: str = "Upload with keras_transformer",
        card: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Upload the task to the Hugging Face hub as one commit, with a card.

        Args:
            repository: str, `"org/name"` or `"org/name@branch"`. It is made if it does not exist.
            format: `"keras_transformer"` for a preset, or `"huggingface"` for what
                `checkpoints.export_to_huggingface` writes, which the Transformers library loads.
                Both load here as `from_preset("hf://org/name")`.
            private: bool, make a private repository. Defaults to the account's setting.
            token: str, an access token. Defaults to that of `hf auth login`, or to HF_TOKEN.
            dtype: stored dtype, e.g. `"float16"`. Defaults to the weights' dtype.
            message: str, the message of the commit.
            card: str, the text of `README.md`. Defaults to one that says what the model is and how
                it is loaded here, in Transformers and in ONNX Runtime.
            metadata: dict of facts for the card: `"license"`, `"description"`, `"languages"`, a
                list; `"data"`, what it was trained on; and `"scores"`, a dict.

        Returns:
            str, the address of the commit.

        Raises:
            ValueError: if the name is not one of a repository, or the task cannot be saved in the
                format.
            PermissionError: if the token is missing or may not write there.
            ConnectionError: if the hub cannot be reached. Nothing is committed then.

        Example:
        ```py
        classifier.push_to_hub(
            "me/films", metadata={"license": "mit", "data": "SST-2", "scores": {"accuracy": 0.91}}
        )
        ```
        """
        # Read when needed, with the tables of all families.
        from keras_transformer.checkpoints.uploading import push_to_hub

        return push_to_hub(
            self, repository, format, private=private, token=token, dtype=dtype, message=message,
            card=card, metadata=metadata,
        )  # fmt: skip

    def _repr_html_(self) -> str:
        task = {"name": type(self).__name__, **self.task_values()}
        return model_table(self, self.backbone.config, task, tokenizer=self.tokenizer)


def _at_least_float32(outputs):
    # Keras's losses and metrics compute in the dtype of outputs, and some fail in half precision.
    low = keras.backend.standardize_dtype(outputs.dtype) in ("float16", "bfloat16")
    return keras.ops.cast(outputs, "float32") if low else outputs


def _level_of_caller() -> int:
    """Return the `stacklevel` of the first frame outside of the tasks, for the calling method."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(__package__):
        frame, level = frame.f_back, level + 1
    return level


def _value_of_head(name: str) -> property:
    """Return a property of a task that reads and writes an attribute of its head."""
    return property(
        lambda task: getattr(task.head, name), lambda task, value: setattr(task.head, name, value)
    )


def _is_auto(given: Any) -> bool:
    return isinstance(given, str) and given == "auto"


def _counts_padding(loss: Any) -> bool:
    """Return True for a Keras loss, or its name, that averages over all targets of a batch."""
    if isinstance(loss, keras.losses.Loss):
        return loss.reduction in ("sum_over_batch_size", "mean")
    return isinstance(loss, str)


def _takes_probabilities(loss: Any) -> bool:
    """Return True for a Keras loss, or its name, that could take logits but is not set to."""
    if isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError:  # Keras raises its own error.
            return False
    if isinstance(loss, keras.losses.Loss):
        return getattr(loss, "from_logits", None) is False
    if not inspect.isfunction(loss):
        return False
    option = inspect.signature(loss).parameters.get("from_logits")
    return option is not None and option.default is False
