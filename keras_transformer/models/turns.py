"""Which calls on a model may overlap when several threads make them.

Calls that read the weights may: each gives what it gives alone. A call that changes them excludes
all others, and says so at once: to wait for a `fit` of hours would look like a hang. What is called
within another call of the same thread, as by a callback, belongs to it.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import keras

from keras_transformer.models.quantized import quickly, refuse_quantized, refuse_training
from keras_transformer.models.saving import SavesWhole
from keras_transformer.registry import bound

# With its type, a decorated method keeps its signature for type checkers.
Method = TypeVar("Method", bound=Callable)


class _Call(NamedTuple):
    thread: threading.Thread
    verb: str
    changes: bool


class Turns:
    """The calls that are under way on some weights."""

    def __init__(self):
        self._lock = threading.Lock()  # held for a moment only
        self._calls: dict[object, _Call] = {}
        self.trainer = threading.RLock()  # held for the time of a `predict` or `fit`

    @contextlib.contextmanager
    def of(self, verb: str, changes: bool) -> Iterator[None]:
        """The time of a call. RuntimeError if another thread is in a call that excludes it."""
        call, key = _Call(threading.current_thread(), verb, changes), object()
        try:
            with self._lock:
                for other in list(self._calls.values()):
                    if other.thread is not call.thread and (changes or other.changes):
                        raise RuntimeError(_excluded(call, other))
                self._calls[key] = call
            yield
        finally:
            self._calls.pop(key, None)


def _in_turn(method, changes: bool):
    verb = method.__name__

    @functools.wraps(method)
    def in_turn(self, *args, **kwargs):
        with self.turns.of(verb, changes):
            return method(self, *args, **kwargs)

    return in_turn


def reads(method: Method) -> Method:
    """A method that reads the weights: it may overlap with others that do."""
    return _in_turn(method, changes=False)


def changes(method: Method) -> Method:
    """A method that changes the weights, or what is trained: no call of another thread overlaps."""
    return _in_turn(method, changes=True)


def in_pieces(model, verb: str, pieces: Iterator) -> Iterator:
    """What an iterator gives. Only while it makes a piece, it is a call that reads."""
    while True:
        with model.turns.of(verb, changes=False):
            try:
                piece = next(pieces)
            except StopIteration:
                return
        yield piece


class ThreadSafe(SavesWhole):
    """A `keras.Model` whose calls several threads may make, see `Turns`.

    Keras keeps on the model what an evaluation or a prediction is at, so those of one model wait
    for each other.
    """

    turns: Turns  # of the weights: models that share some share it

    def compile(self, *args, **kwargs):
        if not self.compiled:  # A model that is being made: nobody else knows it.
            return super().compile(*args, **kwargs)
        with self.turns.of("compile", changes=True):
            return super().compile(*args, **kwargs)

    def compile_from_config(self, config: dict) -> None:
        # Keras's own leaves a model alone that has a `compile` of its own.
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    @changes
    def fit(self, *args, **kwargs):
        refuse_training(self)
        with self.turns.trainer:
            return super().fit(*args, **kwargs)

    @changes
    def train_on_batch(self, *args, **kwargs):
        refuse_training(self)
        with self.turns.trainer:
            return super().train_on_batch(*args, **kwargs)

    @reads
    def evaluate(self, *args, **kwargs):
        with self.turns.trainer:
            return super().evaluate(*args, **kwargs)

    @reads
    def test_on_batch(self, *args, **kwargs):
        with self.turns.trainer:
            return super().test_on_batch(*args, **kwargs)

    @reads
    def predict(self, *args, **kwargs):
        with self.turns.trainer:
            return super().predict(*args, **kwargs)

    @reads
    def predict_on_batch(self, *args, **kwargs):
        with self.turns.trainer:
            return super().predict_on_batch(*args, **kwargs)

    @changes
    def set_weights(self, *args, **kwargs):
        return super().set_weights(*args, **kwargs)

    @changes
    def load_weights(self, *args, **kwargs):
        return super().load_weights(*args, **kwargs)

    @changes
    def quantize(self, mode=None, config=None, filters=None, **kwargs):
        if filters is None:  # which may have left some layers out
            refuse_quantized(self, "load it again for another mode")
        if any(getattr(layer, "lora_enabled", False) for layer in self._flatten_layers()):
            raise ValueError(
                "The model has adapters beside its weights. Call the task's `merge_lora` before "
                "`quantize`, or `save_adapter` to keep them apart."
            )
        if any(getattr(layer, "has_experts", False) for layer in self._flatten_layers()):
            raise ValueError(
                "A model with experts is not quantized: theirs are most of its weights, and would "
                "stay as they are. Load it with dtype='bfloat16' for half of the memory."
            )
        with quickly():
            return super().quantize(mode, config, filters, **kwargs)

    @reads
    def save(self, filepath, *args, **kwargs):
        if str(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                f"{type(self).__name__} cannot be loaded from an HDF5 file. Save it as Keras's "
                "own format, save('model.keras'), or as a folder, save_to_preset('folder'). Its "
                "weights alone: save_weights('model.weights.h5')."
            )
        try:
            self.get_config()  # What cannot be saved is refused before Keras opens the file.
        except OSError as error:  # of the temporary folder through which a processor is packed
            reason = error.strerror or error
            raise OSError(error.errno, f"{filepath} could not be written: {reason}") from error
        return super().save(filepath, *args, **kwargs)

    @reads
    def export(self, filepath, format="saved_model", verbose=None, input_signature=None, **options):
        """As `keras_transformer.export`, by Keras's name; it says nothing, whatever `verbose`.

        Args:
            filepath: the folder.
            format: as there; `"tf_saved_model"` too, Keras's name of `"saved_model"`.
            verbose: as in `keras.Model.export`.
            input_signature: None. What a graph takes is said in docs/export.md.
            **options: those of the format.

        Raises:
            ValueError: as there, and for an `input_signature`.
        """
        if input_signature is not None:
            raise ValueError(
                "`input_signature` must be None: an exported graph takes any number of rows of "
                "any length, by names that the docs of the format say."
            )
        format = "saved_model" if format == "tf_saved_model" else format
        bound("export")(self, filepath, format, **options)

    @reads
    def save_weights(self, *args, **kwargs):
        return super().save_weights(*args, **kwargs)


def _excluded(call: _Call, other: _Call) -> str:
    changing = call if call.changes else other
    return (
        f"`{call.verb}` of {call.thread.name} and `{other.verb}` of {other.thread.name} cannot "
        f"overlap: `{changing.verb}` changes the model. Call one when the other is done. To use a "
        "model while it is trained, do it from a callback of `fit`, or with a copy of the model."
    )
