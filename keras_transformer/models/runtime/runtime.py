"""Base class of all models of this package, which determines how they run, and losses of steps."""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

import keras
from keras import ops

from keras_transformer.distribution.replicas import lay_out
from keras_transformer.distribution.spread import MESHES, MODELS
from keras_transformer.kernels import jax_steps, packed, step_functions, tensorflow_steps
from keras_transformer.kernels.accumulation import count_updates
from keras_transformer.kernels.batches import shapes_of_batch
from keras_transformer.kernels.programs import compiles_by_default
from keras_transformer.kernels.training_step import compute_step, weight_of_batch
from keras_transformer.models.runtime import saving
from keras_transformer.models.runtime.quantized import (
    check_quantizes,
    quickly,
    refuse_quantized,
    refuse_training,
)
from keras_transformer.models.runtime.read_write_lock import ReadWriteLock, changes, copies, reads
from keras_transformer.support.checking import check_flag
from keras_transformer.support.foreign_names import Elsewhere, no_attribute
from keras_transformer.support.registry import bound


class TrainingLoss:
    """Computation of a training or evaluation step: forward pass, loss, and metrics.

    Args:
        model: the `keras.Model` of the step.
    """

    def __init__(self, model: keras.Model):
        self.model = model

    def batch(self, x, y, sample_weight, training: bool) -> tuple:
        """Return the batch that the step computes with: here the given one, unchanged."""
        return x, y, sample_weight

    def states(self, x, sample_weight, training: bool):
        """Run the forward pass, from which loss and metrics are computed."""
        raise NotImplementedError

    def loss(self, states, x, y, sample_weight, training: bool):
        """Compute the loss, a scalar, from the states of the inputs `x`."""
        raise NotImplementedError

    def weight(self, x, y, sample_weight):
        """Return the weight that the loss averages over, a float scalar: here the rows of `x`."""
        rows = ops.shape(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))[0]
        return ops.cast(rows, "float32")

    def apply(self, gradients: list, variables: list, weight) -> None:
        """Give the optimizer the gradients of a loss that is a mean over `weight`."""
        with weight_of_batch(self.model.optimizer, weight):
            self.model.optimizer.apply(gradients, variables)

    def logs(self, states, x, y, sample_weight) -> dict:
        """Return the values of all metrics after the step."""
        return self.model.get_metrics_result()


class OutputLoss(TrainingLoss):
    """Keras's loss and metrics, computed from the outputs of `call`."""

    def states(self, x, sample_weight, training):
        options = {"training": training} if self.model._call_has_training_arg else {}
        return self.model(x, **options)

    def loss(self, states, x, y, sample_weight, training):
        return self.model._compute_loss(x, y, states, sample_weight, training=training)

    def weight(self, x, y, sample_weight):
        loss = self.model.loss
        # A loss defined by the user has the meaning that Keras gives it.
        if not _is_of_library(type(self.model), "compute_loss"):
            return super().weight(x, y, sample_weight)
        if hasattr(loss, "total_weight"):
            return loss.total_weight(y, sample_weight)
        of_weights = getattr(loss, "reduction", None) == "mean_with_sample_weight"
        if not of_weights or sample_weight is None or keras.tree.is_nested(sample_weight):
            return super().weight(x, y, sample_weight)
        return ops.sum(ops.cast(sample_weight, "float32"))

    def logs(self, states, x, y, sample_weight):
        return self.model.compute_metrics(x, y, states, sample_weight)


def _is_of_library(kind: type, method: str) -> bool:
    """Return whether a method is defined by this library or Keras, not by a user's subclass."""
    owner = next(base for base in kind.__mro__ if method in vars(base))
    return owner.__module__.partition(".")[0] in ("keras", "keras_transformer")


# The model whose losses are kept in this thread, and these losses.
_KEPT: ContextVar[tuple | None] = ContextVar("kept_losses", default=None)


class Runtime(keras.Model):
    """A `keras.Model` as this package runs it: base class of `Backbone` and `tasks.Task`.

    - State: weights, optimizer and metrics always match the last whole step, even if an interrupt
      or an error ends `fit` at any moment (`kernels.step_functions`).
    - Steps: the number of their programs is limited, and on JAX on a CPU they are compiled before
      they are needed (`kernels.jax_step_programs`). A step computes the model's `training_loss`.
    - Threads: several threads may call the methods, and calls that change the weights exclude all
      others (`runtime.weights_lock`). Keras keeps the progress of an evaluation or a prediction
      on the model, so such calls on one model wait for each other.
    - Packed weights: `compile(pack_weights=True)` (`kernels.packed`).
    - Files appear whole or not at all (`runtime.saving`).
    - Method names of KerasHub and Transformers raise an error with our name for the method
      (`support.foreign_names`).

    Each concern is a module of functions; the methods here are where Keras calls them.
    """

    weights_lock: ReadWriteLock  # of the weights: models that share weights share it
    pack_weights: bool = False
    output_names: list[str] | None = None  # of models that Keras makes of layers, not of these
    is_spread: bool = False  # whether processes on PyTorch share the weights
    _traced = None
    _shapes_of_xla: frozenset = frozenset()
    _functions_without_xla: frozenset = frozenset()

    # Method names of other libraries.

    if not TYPE_CHECKING:
        from_pretrained = Elsewhere("`{owner}.from_preset(...)`, of a name or a folder,")
        presets = Elsewhere("`kt.list_presets(task=...)`")

        def __getattr__(self, name: str):
            with contextlib.suppress(AttributeError):
                return super().__getattr__(name)  # PyTorch modules define one
            if name.startswith("_"):  # not a public name of any library; Keras asks for many
                message = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(message, name=name, obj=self)
            raise no_attribute(self, name)

    # State.

    def _count_updates(self) -> None:
        """Let an optimizer that accumulates gradients count updates of the weights, not batches."""
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        if getattr(inner, "gradient_accumulation_steps", None):
            count_updates(self.optimizer)

    def make_train_function(self, force: bool = False):
        self._count_updates()  # of an optimizer that was set after `compile`
        if MESHES or MODELS:
            lay_out(self)
        step_functions.make_train_function(self, super().make_train_function, force)

    def make_test_function(self, force: bool = False):
        step_functions.make_test_function(self, super().make_test_function, force)

    def make_predict_function(self, force: bool = False):
        if self.pack_weights and packed.packs(self) and not self.run_eagerly:
            packed.make_packed_predict_function(self)
        else:
            step_functions.make_predict_function(self, super().make_predict_function, force)

    def batch_function(self) -> Callable:
        """Return a function from a batch to its outputs, which may return before they are ready."""
        return step_functions.batch_function(self)

    def _resolve_auto_jit_compile(self) -> bool:
        return compiles_by_default(super()._resolve_auto_jit_compile())

    def _make_function(self, step_function, *args, **kwargs):
        step_function = step_functions.atomic_step_function(self, step_function)
        return super()._make_function(step_function, *args, **kwargs)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        tensorflow_steps.symbolic_build(self, super()._maybe_symbolic_build, iterator, data_batch)

    def _get_jax_state(self, **groups) -> tuple:
        return jax_steps.state_groups(self, **groups)

    def jax_state_sync(self):
        self._jax_state_synced = True  # the variables are the state

    # Steps.

    def training_loss(self) -> TrainingLoss | None:
        """Return the loss of `fit` and `evaluate`; None means Keras's loss on the outputs."""
        return None

    @property
    def losses(self) -> list:
        model, losses = _KEPT.get() or (None, None)
        return losses if model is self else super().losses

    @contextlib.contextmanager
    def kept_losses(self) -> Iterator[None]:
        """Keep `losses` within the scope as they are at its start.

        Replicas on TensorFlow are threads that share the layers, and take turns where they exchange
        numbers: the next one replaces what layers have added by `add_loss`.
        """
        token = _KEPT.set((self, super().losses))
        try:
            yield
        finally:
            _KEPT.reset(token)

    def step_loss(self) -> TrainingLoss:
        """Return the loss that a step computes: the model's own or Keras's."""
        return self.training_loss() or OutputLoss(self)

    def train_step(self, *args):
        if not self.trainable_weights:  # Keras warns about it
            return super().train_step(*args)
        begin = time.perf_counter()
        logs = compute_step(self.step_loss(), *args, training=True)
        if step_functions.runs_at_once(self):
            shapes = shapes_of_batch(args[-1])
            step_functions.SLOW_STEPS.note((id(self), shapes), time.perf_counter() - begin)
        return logs

    def test_step(self, *args):
        return compute_step(self.step_loss(), *args, training=False)

    def _expect(self, step: str, data, is_batch: bool = False) -> None:
        """Announce the data of a step, such as `"train"`, to its programs."""
        step_functions.expect(self, step, data, is_batch)

    # Methods of Keras, which several threads may call.

    def compile(self, *args, pack_weights: bool | None = None, **kwargs):
        """Configure the model like `keras.Model.compile`, and choose whether to pack weights.

        Args:
            *args: see `keras.Model.compile`.
            pack_weights: bool, on PyTorch and a CPU: keep a second copy of the weights, in the
                order in which they are read. `predict` and `generate` are faster, for twice the
                memory and a second or so at the first batch of each size. Has no effect elsewhere.
                Defaults to the present setting, at first False.
            **kwargs: see `keras.Model.compile`.

        Raises:
            ValueError: if `pack_weights` is neither True nor False.
        """
        if pack_weights is not None:
            check_flag("pack_weights", pack_weights)
        # A new model is not known to other threads yet.
        is_known = self.compiled
        with (
            self.weights_lock.hold("compile", changes=True)
            if is_known
            else contextlib.nullcontext()
        ):
            super().compile(*args, **kwargs)
            self._count_updates()
        if pack_weights is not None:
            self.pack_weights = pack_weights
            self._traced = None

    def compile_from_config(self, config: dict) -> None:
        # Keras's own method skips models with a `compile` of their own.
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    @changes
    def fit(self, *args, **kwargs):
        refuse_training(self)
        with self.weights_lock.trainer:
            return super().fit(*args, **kwargs)

    @changes
    def train_on_batch(self, *args, **kwargs):
        refuse_training(self)
        with self.weights_lock.trainer:
            return super().train_on_batch(*args, **kwargs)

    @reads
    def evaluate(self, *args, **kwargs):
        with self.weights_lock.trainer:
            return super().evaluate(*args, **kwargs)

    @reads
    def test_on_batch(self, *args, **kwargs):
        with self.weights_lock.trainer:
            return super().test_on_batch(*args, **kwargs)

    @reads
    def predict(self, *args, **kwargs):
        with self.weights_lock.trainer:
            return super().predict(*args, **kwargs)

    @reads
    def predict_on_batch(self, *args, **kwargs):
        with self.weights_lock.trainer:
            return super().predict_on_batch(*args, **kwargs)

    @changes
    def set_weights(self, *args, **kwargs):
        return super().set_weights(*args, **kwargs)

    @changes
    def load_weights(self, *args, **kwargs):
        return super().load_weights(*args, **kwargs)

    @changes
    def quantize(self, mode=None, config=None, filters=None, **kwargs):
        if filters is None:  # a filter may have left out some layers
            refuse_quantized(self, "load it again for another mode")
        if any(getattr(layer, "lora_enabled", False) for layer in self._flatten_layers()):
            raise ValueError(
                "The model has adapters beside its weights. Call the task's `merge_lora` before "
                "`quantize`, or `save_adapter` to keep them apart."
            )
        check_quantizes(self)
        with quickly():
            return super().quantize(mode, config, filters, **kwargs)

    @copies
    def save(self, filepath, *args, **kwargs):
        if str(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                f"{type(self).__name__} cannot be loaded from an HDF5 file. Save it as Keras's "
                "own format, save('model.keras'), or as a folder, save_to_preset('folder'). Its "
                "weights alone: save_weights('model.weights.h5')."
            )
        try:
            self.get_config()  # raises before Keras opens the file if the model cannot be saved
        except OSError as error:  # from the temporary folder in which a processor is packed
            reason = error.strerror or error
            raise OSError(error.errno, f"{filepath} could not be written: {reason}") from error
        return saving.save_whole(super().save, filepath, *args, **kwargs)

    @copies
    def save_weights(self, *args, **kwargs):
        return saving.save_weights_whole(self, super().save_weights, *args, **kwargs)

    @copies
    def export(self, filepath, format="saved_model", verbose=None, input_signature=None, **options):
        """Export the model with `keras_transformer.export`, under Keras's name of the method.

        Args:
            filepath: the folder.
            format: see `keras_transformer.export`; `"tf_saved_model"`, Keras's name of
                `"saved_model"`, is accepted too.
            verbose: see `keras.Model.export`; it has no effect, since nothing is printed.
            input_signature: None. The inputs of a graph are described in docs/export.md.
            **options: options of the format.

        Raises:
            ValueError: if `keras_transformer.export` raises it, or `input_signature` is given.
        """
        if input_signature is not None:
            raise ValueError(
                "`input_signature` must be None: an exported graph takes any number of rows of "
                "any length, under the names in docs/export.md. Leave it out."
            )
        format = "saved_model" if format == "tf_saved_model" else format
        bound("export")(self, filepath, format, **options)
