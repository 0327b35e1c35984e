"""Heads map the states of a backbone to outputs and a loss: their base class and hidden layers."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import keras
import numpy as np

from keras_transformer.checkpoints.heads import Conversion
from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import Weight, hidden_of_head
from keras_transformer.data import BucketedDataset
from keras_transformer.layers.arguments import kernel_initializer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.feed_forward import FeedForward, get_activation
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.models.runtime.runtime import TrainingLoss
from keras_transformer.support.checking import check_bool
from keras_transformer.tasks.data.class_weights import ClassWeights

# Options of `predict` for outputs per token: the outputs of all batches are joined to one array, so
# all rows must be padded to the same length.
PER_TOKEN: dict[str, Any] = {"max_buckets": 1, "sizes": None}


class Head(Mapping):
    """The head of a task: its options and layers, and facts about the task for other modules.

    Calling a head maps the states of the backbone to the outputs of the task. A head is also a
    mapping from paths to variables: the task's variables outside of the backbone, which a preset
    stores. `keep` makes layers attributes of the task as well, since Keras tracks them there and
    names their variables in files by these attributes.

    A subclass states its options, creates its layers in the constructor, and implements
    `__call__`, `usual`, `weight_values` and `weight_shapes` (docs/add_a_task.md).

    Args:
        task: the task, with its backbone and processor already set. The head only holds a weak
            reference to it.
    """

    options: ClassVar[tuple[str, ...]] = ()  # names of its options, also attributes of the task
    compile_options: ClassVar[tuple[str, ...]] = ()  # further arguments of `compile`

    # For presets and families of checkpoints, see `checkpoints.heads`.
    head_of: ClassVar[str | None] = None  # the task that defines the head, if another one
    published_as: ClassVar[tuple[str, ...]] = ()  # suffixes of published class names
    published_head: ClassVar[tuple[Conversion, ...]] = ()  # conversions for configs with a head
    published_options: ClassVar[tuple[Conversion, ...]] = ()  # conversions for any config
    # Patterns of the paths of variables that depend on the classes, if all others do not: these are
    # loaded for other classes too.
    of_classes: ClassVar[tuple[str, ...]] = ()
    # Patterns of those that only training reads: files may lack them, or have them in vain.
    of_training: ClassVar[tuple[str, ...]] = ()
    reads_pooler: ClassVar[bool] = False  # whether it reads the pooler's output, if any
    predicts_tokens: ClassVar[bool] = False  # whether its outputs are vocabulary logits

    # For data sets.
    needs_labels: ClassVar[bool] = False  # whether `fit` on raw data needs `y`
    learns_tokens: ClassVar[bool] = False  # whether it has a target for each token
    learns_spans: ClassVar[bool] = False  # whether labels are spans of the second text of a pair
    takes_records: ClassVar[bool] = True  # whether its texts may come from `data.read`
    most_texts: ClassVar[int | None] = 2  # maximum number of texts per row; None: unlimited
    # Function from all column names of a data set to the names of its columns of texts and labels.
    # Defaults to a lookup of usual names.
    usual_columns: ClassVar[Callable | None] = None

    beside: ClassVar[tuple[str, ...]] = ()  # usual columns of texts that accompany images or audio
    learned: ClassVar[tuple[str, ...]] = ("label", "labels")  # usual columns of targets
    needs_beside: ClassVar[bool] = False  # whether training needs the accompanying texts

    # For forward passes.
    further_inputs: tuple[str, ...] = ()  # inputs in addition to the backbone's
    reads_padding: ClassVar[bool] = True  # whether it needs the states of padding
    # Whether outputs are small enough to predict large batches of tokens at a time.
    predicts_by_tokens: ClassVar[bool] = False
    predict_options: ClassVar[dict[str, Any]] = {}  # options of `make_dataset` in `predict`
    first_only: bool = False  # whether it reads only the state of the first token
    # If it reads the outputs of several blocks in place of the last states: their numbers, from 1.
    layers: tuple[int, ...] | None = None
    # The same in training alone, if the outputs of each of these blocks have a loss.
    learned_layers: tuple[int, ...] | None = None
    # Whether it reads the maps of earlier stages of a convolutional network before the states.
    reads_maps: bool = False

    def __init__(self, task: keras.Model):
        self._task = weakref.ref(task)

    @property
    def task(self) -> Any:
        return self._task()

    # The variables by path.

    def _variables(self) -> dict[str, keras.Variable]:
        task = self.task
        inside = {id(variable) for variable in task.backbone.weights}
        return {v.path: v for v in task.weights if id(v) not in inside}

    def __getitem__(self, path: str) -> keras.Variable:
        return self._variables()[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables())

    def __len__(self) -> int:
        return len(self._variables())

    # `Mapping` would look up each path by itself, for which Keras collects all variables anew.

    def items(self):
        return self._variables().items()

    def values(self):
        return self._variables().values()

    # Layers.

    def keep(self, **layers: Any) -> None:
        """Set layers, or lists of layers, as attributes of the head and of the task."""
        for name, layer in layers.items():
            setattr(self, name, layer)
            setattr(self.task, name, layer)

    def make_dense(self, units: int, name: str, use_bias: bool = True, width: int | None = None):
        """Build a linear layer; its input `width` defaults to the backbone's."""
        config = self.task.backbone.config
        with no_inner_remat():
            dense = keras.layers.Dense(
                units,
                use_bias=use_bias,
                kernel_initializer=kernel_initializer(config),
                name=name,
                dtype=self.task.dtype_policy,
            )
        dense.build((None, width or config.last_side.hidden_dim))
        return dense

    def make_dropout(self, rate: float) -> Dropout:
        """Return a dropout layer."""
        with no_inner_remat():
            return Dropout(rate, dtype=self.task.dtype_policy)

    # Methods that a subclass defines.

    def __call__(self, states, inputs, training: bool = False):
        """Return the outputs of the task for the backbone's states."""
        raise NotImplementedError

    def usual(self) -> dict[str, Any]:
        """Return the default arguments of `compile`: optimizer, loss and metrics."""
        raise NotImplementedError

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options among the task's `values` that the weights of the head depend on."""
        return {}

    @classmethod
    def weight_shapes(
        cls, config: TransformerConfig, values: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the head's variables by path, for a config and the task's values."""
        return {}

    @property
    def number_of_targets(self) -> int | None:
        """Exclusive upper bound of integer targets; None if the task has no such targets."""
        return None

    def global_positions(self, inputs):
        """Return the positions with global attention, int `(batch or 1, count)`, or None.

        They are padded with -1, and only used by models with global projections. An input
        `global_positions` overrides them.
        """

    # Training.

    def checked_compile_options(self, given: dict[str, Any]) -> dict[str, Any]:
        """Check the `given` options of `compile_options`, and return the values of all of them.

        Options that are not given keep their current values.
        """
        return {}

    def compiled(self) -> None:
        """Adapt to the loss and metrics that `compile` has just set; called after each compile."""

    def metric_of(self, given: Any) -> Any:
        """Map a metric given to `compile`, such as a name, to the metric that is used."""
        return given

    def training_loss(self) -> TrainingLoss | None:
        """Return the loss of a training step; None means that Keras computes it from outputs."""
        return None

    def compute_loss(self, compute: Callable, x, y, outputs, sample_weight, training: bool):
        """Compute the loss of a batch with Keras's `compute_loss`, given as `compute`."""
        return compute(x, y, outputs, sample_weight, training=training)

    def weights_of_classes(self, class_weight: dict) -> ClassWeights:
        """Return the weights of the task's classes. Raises ValueError if it has no classes."""
        raise ValueError(
            f"`class_weight` gives classes a weight, and {type(self.task).__name__} does not learn "
            "classes. Leave it out; a weight for each row is `sample_weight`."
        )

    def check_training_set(self, dataset: BucketedDataset) -> None:
        """Warn if a data set cannot teach the task, such as if a class has no examples."""


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the logistic function of each logit, float64."""
    logits = logits.astype("float64")
    return softmax(np.stack([logits, np.zeros_like(logits)], axis=-1))[..., 0]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities, float64, over the last axis of logits of any dtype."""
    logits = logits.astype("float64")
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


# Config values that the feed-forward layers are made from.
_OF_FEED_FORWARD = ("intermediate_dim", "activation", "gated", "gate_limit", "use_bias")
HIDDEN_OPTIONS = ("hidden_activation", "hidden_bias", "block_norm")


class HiddenLayer:
    """A dense layer, an activation and optionally a normalization, for a head.

    Args:
        head: the head; it and its task get the layers as attributes.
        activation: str, see `layers.FeedForward`.
        units: int, the width of the output.
        use_bias: bool, whether the dense layer has a bias.
        norm: str, the kind of normalization; None if there is no normalization.
        epsilon: float, the epsilon of the normalization.
        name: str, the prefix of the layers' names.
    """

    def __init__(
        self, head: Head, activation, units: int, use_bias: bool, norm, epsilon, name="hidden"
    ):
        self.activation = get_activation(activation)
        self.dense = head.make_dense(units, name, use_bias=use_bias)
        self.norm = None
        if norm is not None:
            policy = head.task.dtype_policy
            with no_inner_remat():
                self.norm = make_normalization(norm, epsilon, name=f"{name}_norm", dtype=policy)
            self.norm.build((None, None, units))
        head.keep(**{f"{name}_dense": self.dense, f"{name}_norm": self.norm})

    def __call__(self, states):
        states = self.activation(self.dense(states))
        return states if self.norm is None else self.norm(states)


def optional_hidden(
    head: Head, hidden_activation, hidden_bias: bool, block_norm: bool
) -> HiddenLayer | None:
    """Set the `HIDDEN_OPTIONS` of a head, and return its hidden layer or None."""
    head.hidden_activation = hidden_activation
    head.hidden_bias = check_bool("hidden_bias", hidden_bias)
    head.block_norm = check_bool("block_norm", block_norm)
    if hidden_activation is None:
        if block_norm or not hidden_bias:
            raise ValueError(
                "`hidden_bias` and `block_norm` need a hidden layer: give `hidden_activation`."
            )
        head.keep(hidden_dense=None, hidden_norm=None)
        return None
    config = head.task.backbone.config.sides[-1]
    norm = config.normalization if block_norm else None
    epsilon = config.normalization_epsilon
    return HiddenLayer(head, hidden_activation, config.hidden_dim, hidden_bias, norm, epsilon)


def hidden_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `HIDDEN_OPTIONS` among a task's values, with defaults."""
    return {
        "hidden_activation": values.get("hidden_activation"),
        "hidden_bias": values.get("hidden_bias", True),
        "block_norm": values.get("block_norm", False),
    }


def hidden_weights(config: TransformerConfig, values: Mapping[str, Any]) -> tuple[Weight, ...]:
    """Return the weights of the hidden layer that a task's values describe, if any."""
    values = hidden_values(values)
    if values["hidden_activation"] is None:
        return ()
    norm = config.normalization if values["block_norm"] else None
    return hidden_of_head("hidden", bias=values["hidden_bias"], norm=norm)


class FeedForwardSubLayer:
    """A feed-forward sub-layer with a post-norm residual, as in the blocks.

    It has the same options as the blocks of the side (encoder or decoder) that the head reads.
    """

    def __init__(self, head: Head):
        config = head.task.backbone.config.sides[-1]
        policy = head.task.dtype_policy
        options = {name: getattr(config, name) for name in _OF_FEED_FORWARD}
        with no_inner_remat():
            self.layer = FeedForward(
                **options,
                kernel_initializer=kernel_initializer(config),
                name="feed_forward",
                dtype=policy,
            )
            self.norm = make_normalization(
                config.normalization,
                config.normalization_epsilon,
                name="feed_forward_norm",
                dtype=policy,
            )
        for layer in (self.layer, self.norm):
            layer.build((None, None, config.hidden_dim))
        head.keep(feed_forward_layer=self.layer, feed_forward_norm=self.norm)

    def __call__(self, states, dropout: Callable):
        """Apply the sub-layer; `dropout` is a function applied to its input and its output."""
        return self.norm(states + dropout(self.layer(dropout(states))))
