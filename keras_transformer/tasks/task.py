"""What every task shares: a backbone, a head, a processor, presets."""

import inspect
import os
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Self

import keras
import numpy as np

from keras_transformer.checkpoints import load_task, save_preset
from keras_transformer.checkpoints.heads import Conversion
from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset
from keras_transformer.kerashub_names import ForeignNames, check_options
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.initializers import kernel_initializer
from keras_transformer.layers.remat import one_piece
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.inputs import check_positions
from keras_transformer.models.turns import ThreadSafe, Turns, reads
from keras_transformer.notebook import model_table
from keras_transformer.planning.flops import flops_per_token
from keras_transformer.processors.processor import Processor
from keras_transformer.sizes import Sizes
from keras_transformer.tasks.adapters import Adaptable
from keras_transformer.tasks.asked import refuse_source
from keras_transformer.tasks.one_input import OneInput
from keras_transformer.tasks.saving import Serializable
from keras_transformer.tasks.text import TextProcessor
from keras_transformer.tasks.verbs import Verbs
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training.compile_ahead import CompiledSteps

# A shape of MiniLM compiles in 2.4 s, in which it trains on 5,800 positions: 2,000 in each of three
# epochs. Smaller models train faster, and compile hardly faster.
_FLOPS_OF_A_SHAPE = 1.2e11

# A pooler that a task does not use has no gradient, and Keras would warn of a forgotten loss.
UNUSED = r"Gradients do not exist for variables \[('[^']*\b(pooler|vector\w*)/[^']*'(, )?)+\] "
warnings.filterwarnings("ignore", UNUSED)

PER_TOKEN: dict[str, Any] = {"max_buckets": 1, "sizes": None}


class Task(ForeignNames, Serializable, Verbs, Adaptable, ThreadSafe, CompiledSteps, keras.Model):
    """A backbone, a head and a processor: a `keras.Model` that also takes raw data, such as texts.

    `fit`, `evaluate` and `predict` take a dict of arrays as the backbone takes it, any dataset
    that Keras takes, or what the processor makes rows of. For the tasks of text it is a tokenizer,
    and they take strings: a list, a NumPy array, a column of a data frame, a tuple of two of them
    for pairs, a dataset of strings, or files, which may be larger than memory, as `data.read` makes
    them. Strings are tokenized in bulk and padded to a few length buckets, never to the model's
    maximum.

    A subclass declares its processor and its head in class attributes, and implements
    `head_outputs` and `make_dataset` (docs/add_a_task.md). See `Processor` for one with a processor
    of its own.

    Args:
        backbone: a backbone of the kind that the task needs.
        processor: of `processor_class`, for tasks of text a `Tokenizer`, by the name `tokenizer`;
            None for a task that takes arrays only.
        name: str.
    """

    backbone_kinds: ClassVar[tuple[str, ...]]  # The kinds of backbone that it works with.
    processor_class: ClassVar[type[Processor]] = TextProcessor
    # What presets and families of checkpoints read of a task, see `checkpoints.heads`.
    alias: ClassVar[str] = ""  # What users call it, such as "text_classification".
    published_as: ClassVar[tuple[str, ...]] = ()  # Ends of the names of published classes.
    head_of: ClassVar[str | None] = None  # The class whose head it has, if not its own.
    generates: ClassVar[bool] = False  # Whether its head is the backbone's logits, with a cache.
    # What the first array of its backbone may be.
    reads_arrays: ClassVar[tuple[str, ...]] = ("token_ids", "encoder_token_ids")
    predicts_tokens: ClassVar[bool] = False  # Whether its published classes are language models.
    learns_tokens: ClassVar[bool] = False  # Whether it has a target for each token.
    reads_pooler: ClassVar[bool] = False  # Whether its head reads a pooler's state, if any.
    published_head: ClassVar[tuple[Conversion, ...]] = ()  # In the config of a saved head.
    published_options: ClassVar[tuple[Conversion, ...]] = ()  # In any config.
    # The options of the constructor beside backbone, processor and name: they are in presets.
    task_options: ClassVar[tuple[str, ...]] = ()

    needs_labels: ClassVar[bool] = False  # Whether `fit` on what users have needs `y`.
    takes_records: ClassVar[bool] = True  # Whether its texts may be what `data.read` makes.
    most_texts: ClassVar[int | None] = 2  # Lists of texts in a tuple; None for any number.
    # Of a data set's columns, gives the names of the texts and of the labels. None for the usual.
    usual_columns: ClassVar[Callable | None] = None
    # Whether its rows are pairs of texts, and its labels spans of the second.
    answers: ClassVar[bool] = False
    further_inputs: ClassVar[tuple[str, ...]] = ()  # Arrays that it takes beside its backbone's.
    first_only = False  # Whether the head reads the state of the first token alone.
    # Gives one input to both sides of an encoder-decoder. None where each side has its own.
    one_input: OneInput | None = None
    reads_padding: ClassVar[bool] = True  # Whether its outputs include those of padding.
    # What `predict` adds to the options of `make_dataset`. Outputs for each token need `PER_TOKEN`:
    # those of all batches are put in one array, so all get the longest length.
    predict_options: ClassVar[dict[str, Any]] = {}

    def __new__(cls, *args, **kwargs):
        check_options(cls.__name__, kwargs, inspect.signature(cls.__init__).parameters)
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, backbone: Backbone, processor=None, name: str | None = None):
        if not isinstance(backbone, Backbone) or backbone.config.kind not in self.backbone_kinds:
            given = backbone.config.kind if isinstance(backbone, Backbone) else type(backbone)
            raise ValueError(
                f"{type(self).__name__} needs a backbone of kind "
                f"{' or '.join(map(repr, self.backbone_kinds))}, received {given!r}. A decoder of "
                "your own is a subclass of `keras_transformer.models.DecoderBase`."
            )
        refuse_source(type(self), backbone)
        if not backbone.built:  # One's own that forgot it: within a compiled step it is too late.
            backbone.build()
        processor = self.processor_class.of(processor)
        if processor is not None:
            processor.check(backbone.config)
        super().__init__(name=name, dtype=backbone.dtype_policy)
        self.backbone = backbone
        self.processor = processor
        # The sizes that rows are padded to outside of training, where shapes are compiled.
        compiles = keras.backend.backend() != "torch"
        self._sizes = Sizes() if compiles else None
        # Those of `explain`, whose batches are one row each and take no larger number of rows.
        self._sizes_of_rows = Sizes() if compiles else None

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of a task of text that has one."""
        return getattr(self.processor, "tokenizer", None)

    # What a subclass says of itself.

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batches of arrays, ready for `fit`, of what the processor takes.

        Args:
            x: texts, or what else the processor takes, as for `fit`.
            y: labels or target texts, as for `fit`.
            sample_weight: one number a row.
            **options: of `data.BucketedDataset`, e.g. `shuffle`, `seed`, `batch_size`,
                `batch_tokens`, `max_length`.
        """
        raise NotImplementedError

    @classmethod
    def head_values(cls, config: TransformerConfig, values: dict[str, Any]) -> dict[str, Any]:
        """Those options of the task, of its `values`, that the weights of the head depend on."""
        return {}

    @classmethod
    def head_shapes(
        cls, config: TransformerConfig, values: dict[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        """The shapes of the head's variables by path, for a config and `values` of the task."""
        return {}

    def task_values(self) -> dict[str, Any]:
        """The values of `task_options`, from which the task is made again."""
        return {name: getattr(self, name) for name in self.task_options}

    @property
    def intake(self) -> Backbone | OneInput:
        """What names the arrays that the task takes; its `config` says how long they may be."""
        return self.one_input or self.backbone

    @property
    def number_of_targets(self) -> int | None:
        """Integer targets are below this number. None for a task that has none."""
        return None

    @property
    def turns(self) -> Turns:
        return self.backbone.turns

    @property
    def head(self) -> dict[str, keras.Variable]:
        """The variables that are not the backbone's, by name."""
        inside = {id(variable) for variable in self.backbone.weights}
        return {v.path: v for v in self.weights if id(v) not in inside}

    # Keras's verbs.

    def __call__(self, inputs=None, *args, **kwargs):
        named = self._named(inputs)
        check_options(type(self).__name__, kwargs, ())
        return super().__call__(named, *args, **kwargs)

    def call(self, inputs, collect: tuple[str, ...] = (), training: bool = False):
        """The outputs of the head, and with `collect` what it names: `"states"`, `"attention"`.

        Whatever the model computes in, the outputs have at least the precision of float32.
        """
        states, collected = self.backbone_states(inputs, collect, training)
        outputs = keras.tree.map_structure(
            _at_least_float32, self.head_outputs(states, inputs, training)
        )
        return (outputs, collected) if collect else outputs

    def backbone_states(self, inputs, collect: tuple[str, ...] = (), training: bool = False):
        """The states that the head is given, and a dict of what was collected."""
        inputs = {name: x for name, x in inputs.items() if name not in self.further_inputs}
        options = {"first_only": True} if self.first_only else {}
        if (
            self.backbone.config.sides[0].global_projection
            and inputs.get("global_positions") is None
        ):
            places = self.global_positions(inputs)
            inputs = inputs if places is None else {**inputs, "global_positions": places}
        if self.one_input is not None:
            inputs = self.one_input(inputs)
        if not collect:
            if training and not self.reads_padding:
                inputs = self.backbone.without_unseen_padding(inputs)
            return self.backbone(inputs, training=training, **options), {}
        return self.backbone(inputs, collect=tuple(collect), training=training)

    def global_positions(self, inputs):
        """The places of the tokens that see all, for a model with projections for them, or None.

        Int `(batch or 1, count)`, -1 for none. The input `global_positions` takes their place.
        """

    def head_outputs(self, states, inputs, training: bool):
        """The outputs of the task, for the states of its inputs."""
        raise NotImplementedError

    def _named(self, inputs) -> dict[str, Any]:
        """The arrays by their names here; ValueError for unknown or wrong ones."""
        intake = self.intake
        named = intake.checked_inputs(
            inputs, further=self.further_inputs, taker=type(self).__name__
        )
        for name in named.keys() & set(self.further_inputs):
            check_positions(name, named[name], named[intake.id_inputs[-1]])
        return named

    def _check_training_set(self, dataset: BucketedDataset) -> None:
        """Warns of what a data set cannot teach, such as a class without an example."""

    def _require_processor(self) -> Processor:
        if self.processor is None:
            kind = self.processor_class
            raise ValueError(
                f"This {type(self).__name__} has no {kind.kind} and takes {kind.made} only. Give "
                f"{kind.raw} to a task made with one, or a dict of arrays to this one."
            )
        return self.processor

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # As in the backbone: its blocks are recomputed one by one.

    # Parts that several tasks have.

    def _dense(self, units: int, name: str, use_bias: bool = True, width: int | None = None):
        """A linear layer of the head, built, for states of `width`, usually the backbone's."""
        config = self.backbone.config
        with one_piece():
            dense = keras.layers.Dense(
                units,
                use_bias=use_bias,
                kernel_initializer=kernel_initializer(config),
                name=name,
                dtype=self.dtype_policy,
            )
        dense.build((None, width or config.sides[-1].hidden_dim))
        return dense

    def _dropout(self, rate: float) -> Dropout:
        with one_piece():
            return Dropout(rate, dtype=self.dtype_policy)

    def compile(
        self,
        optimizer="auto",
        loss="auto",
        loss_weights=None,
        metrics=None,
        weighted_metrics=None,
        **kwargs,
    ):
        """As `keras.Model.compile`, with `pack_weights`. What is not given, or is "auto", stays."""
        if _is_auto(optimizer):
            optimizer = getattr(self, "optimizer", None) or "rmsprop"
        # None is what Keras keeps: a loss with its weights, and all metrics.
        loss, metrics, weighted_metrics = (
            None if _is_auto(given) else given for given in (loss, metrics, weighted_metrics)
        )
        metrics, weighted_metrics = keras.tree.map_structure(
            self.metric_of, (metrics, weighted_metrics)
        )
        super().compile(optimizer, loss, loss_weights, metrics, weighted_metrics, **kwargs)
        if _takes_probabilities(self.loss):
            warnings.warn(
                f"The loss {getattr(self.loss, 'name', self.loss)!r} takes probabilities, and "
                f"{type(self).__name__} gives logits, of which it makes no sense. Give the loss "
                "that the task comes with, task.loss, or one of Keras with from_logits=True.",
                stacklevel=3,
            )
        if self.learns_tokens and _counts_padding(self.loss):
            warnings.warn(
                f"The loss {getattr(self.loss, 'name', self.loss)!r} is a mean over padding too: "
                "it changes with the size of the batches. Give it "
                "reduction='mean_with_sample_weight', or the loss that the task comes with, "
                "task.loss.",
                stacklevel=3,
            )

    def _bucketed(self, columns: dict[str, Any], make_batch, **options) -> BucketedDataset:
        """Batches no longer than the model allows; in training, of as few lengths as pay off."""
        config = self.intake.config
        if config.position == "learned" or config.score == "location":
            options = {"max_length": config.max_sequence_length, **options}
        if options.get("shuffle") and options.get("max_buckets") is None:
            length = min(32, config.max_sequence_length)
            saving = int(_FLOPS_OF_A_SHAPE / flops_per_token(self.backbone.config, length))
            options = {"least_saving": saving, **options}
        return BucketedDataset(columns, make_batch, **options)

    def _row_outputs(self, dataset: BucketedDataset, reduce: Callable | None = None) -> list:
        """The outputs for each row, or what `reduce` makes of a batch's, in the rows' order."""
        rows = []
        for place in range(len(dataset)):
            outputs = np.asarray(self.predict_on_batch(dataset[place][0]))
            rows.extend(outputs if reduce is None else reduce(outputs))
        return dataset.restore_order(rows)

    def _refuse_targets(self, y, of: str = "texts") -> None:
        if y is not None:
            raise ValueError(
                f"{type(self).__name__} makes its targets from the {of}: give `x` alone, or with "
                "weights as `sample_weight`, in a data set (x, None, sample_weight)."
            )

    def metric_of(self, given: Any) -> Any:
        """The metric for one that `compile` is given, such as a name."""
        return given

    # Presets.

    @classmethod
    def from_preset(
        cls, preset: str | os.PathLike, load_weights: bool = True, dtype=None, **options
    ) -> Self:
        """The task of a preset, compiled. A head that the preset lacks is made fresh.

        Args:
            preset: a bundled name, a local directory, or `"hf://org/name[@revision]"`.
            load_weights: bool, False for fresh weights.
            dtype: dtype or dtype policy of the model.
            **options: of the task's constructor, e.g. `num_classes`, or values of the
                backbone's config to change, e.g. `dropout`. With weights only what they do not
                depend on, see `Backbone.from_preset`.

        Raises:
            ValueError: for an unknown preset (nearest names are suggested), weights that do
                not fit or were trained with other values, or a preset of the wrong kind.
        """
        return load_task(cls, preset, load_weights=load_weights, dtype=dtype, **options)

    @reads
    def save_to_preset(
        self, directory: str | os.PathLike, dtype: str | None = None, **options
    ) -> None:
        """Writes backbone, head, processor and a card into `directory`.

        Args:
            directory: path, made if missing. Nothing half-written stays after a failure.
            dtype: stored dtype, e.g. `"float16"`. Defaults to that of the weights.
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

    def _repr_html_(self) -> str:
        task = {"name": type(self).__name__, **self.task_values()}
        return model_table(self, self.backbone.config, task, tokenizer=self.tokenizer)


def _at_least_float32(outputs):
    # Losses and metrics of Keras compute in what they are given, and some know no half precision.
    low = keras.backend.standardize_dtype(outputs.dtype) in ("float16", "bfloat16")
    return keras.ops.cast(outputs, "float32") if low else outputs


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """The probability of each logit by itself, float64."""
    logits = logits.astype("float64")
    return softmax(np.stack([logits, np.zeros_like(logits)], axis=-1))[..., 0]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities, float64, over the last axis of logits of any dtype."""
    logits = logits.astype("float64")
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _is_auto(given: Any) -> bool:
    return isinstance(given, str) and given == "auto"


def _counts_padding(loss: Any) -> bool:
    """Whether it is a loss of Keras, or its name, that is a mean over all targets of a batch."""
    if isinstance(loss, keras.losses.Loss):
        return loss.reduction in ("sum_over_batch_size", "mean")
    return isinstance(loss, str)


def _takes_probabilities(loss: Any) -> bool:
    """Whether it is a loss of Keras, or its name, that can take logits and is not told to."""
    if isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError:  # Keras says so itself.
            return False
    if isinstance(loss, keras.losses.Loss):
        return getattr(loss, "from_logits", None) is False
    if not inspect.isfunction(loss):
        return False
    option = inspect.signature(loss).parameters.get("from_logits")
    return option is not None and option.default is False
