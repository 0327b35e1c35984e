"""Locks that decide which calls on a model may overlap when several threads make them.

Calls that read the weights may overlap: each gives the same result as alone. A call that changes
them excludes all others, and raises at once: waiting for a `fit` of hours would look like a hang.
Calls within another call of the same thread, as from a callback, belong to that call.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from keras_transformer.distribution.reading import weights_for_reading
from keras_transformer.distribution.spread import MESHES, MODELS

# With its type, a decorated method keeps its signature for type checkers.
Method = TypeVar("Method", bound=Callable)


class _Call(NamedTuple):
    thread: threading.Thread
    verb: str
    changes: bool


class ReadWriteLock:
    """Register of the calls that are running on a set of weights."""

    def __init__(self):
        self._lock = threading.Lock()  # held for a moment only
        self._calls: dict[object, _Call] = {}
        self.trainer = threading.RLock()  # held for the time of a `predict` or `fit`

    @contextlib.contextmanager
    def hold(self, verb: str, changes: bool) -> Iterator[None]:
        """Hold the lock for a call. Raises RuntimeError if a call of another thread excludes it."""
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


def _locked(method, changes: bool, passes: bool = False):
    verb = method.__name__

    @functools.wraps(method)
    def locked(self, *args, **kwargs):
        with self.weights_lock.hold(verb, changes):
            if not passes or not (MODELS or MESHES):  # a process that shares no weights
                return method(self, *args, **kwargs)
            with weights_for_reading(self):
                return method(self, *args, **kwargs)

    return locked


def reads(method: Method) -> Method:
    """Decorate a method with forward passes: it may overlap with other reading calls."""
    return _locked(method, changes=False, passes=True)


def copies(method: Method) -> Method:
    """Decorate a method that writes the weights to files: it is a reading call too."""
    return _locked(method, changes=False)


def changes(method: Method) -> Method:
    """Decorate a method that changes weights or trainability: it excludes other threads' calls."""
    return _locked(method, changes=True)


def locked_stream(model, verb: str, pieces: Iterator) -> Iterator:
    """Yield the pieces of an iterator, which is a reading call only while it makes a piece."""
    while True:
        with model.weights_lock.hold(verb, changes=False), weights_for_reading(model):
            try:
                piece = next(pieces)
            except StopIteration:
                return
        yield piece


def _excluded(call: _Call, other: _Call) -> str:
    changing = call if call.changes else other
    return (
        f"`{call.verb}` of {call.thread.name} and `{other.verb}` of {other.thread.name} cannot "
        f"overlap: `{changing.verb}` changes the model. Call one when the other is done. To use a "
        "model while it is trained, do it from a callback of `fit`, or with a copy of the model."
    )
