"""Facts about the numbers in tensors that are known while a step is traced or run."""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.device import on

# The attribute of a tensor of a GPU that has the array which it was made of.
HOST = "host_array"


def is_behind(padding, weights=None) -> bool:
    """Whether each row has its real tokens first, and no padding a weight, as far as is known.

    On PyTorch it is, where the values of the mask `(batch, length)` and of the weights are on the
    host. Within a program of JAX or TensorFlow they are not there yet.
    """
    return on("torch") and padding is not None and _holds("behind", padding, weights)


def none_if_whole(padding):
    """The mask `(batch, length)`, or None if all is real, as far as is known.

    Attention then needs no mask, forward and backward.
    """
    whole = on("torch") and padding is not None and _holds("whole", padding)
    return None if whole else padding


def _behind(padding: np.ndarray, weights: np.ndarray | None) -> bool:
    padding = padding.astype(bool)
    if weights is not None and weights.shape != padding.shape:
        return False
    seen = padding[:, 1:] & ~padding[:, :-1]
    counted = False if weights is None else ((weights != 0) & ~padding).any()
    return not (seen.any() or counted)


# What may be asked of arrays of a batch, by name.
_ANSWERS = {"behind": _behind, "whole": lambda padding: bool(padding.all())}


def _holds(question: str, *tensors) -> bool:
    """The answer to a question about tensors of a batch; False where their values are not known."""
    if is_traced():
        asked = _asked.get()
        return asked is not None and asked.answer(question, tensors)
    arrays = [None if x is None else host_array(x) for x in tensors]
    known = all(x is None or array is not None for x, array in zip(tensors, arrays, strict=True))
    return known and bool(_ANSWERS[question](*arrays))


class Questions:
    """What a step asks of the arrays of its batch while it is written down.

    The answers are a part of what it does: for a batch with other ones it is written down anew.

    Args:
        arrays: those of the batch on the host, None for one that is not known there.
    """

    def __init__(self, arrays: list):
        self.arrays = arrays
        self.asked: list[tuple[str, tuple]] = []
        self._places: dict[int, int] = {}

    @contextlib.contextmanager
    def about(self, tensors: list) -> Iterator[None]:
        """Within, tensors that are written down stand for the arrays."""
        self._places = {id(x): place for place, x in enumerate(tensors) if x is not None}
        token = _asked.set(self)
        try:
            yield
        finally:
            _asked.reset(token)

    def answer(self, question: str, tensors: Sequence) -> bool:
        """Return whether it holds, and note that it was asked. False for what is not known."""
        places = tuple(None if x is None else self._places.get(id(x), -1) for x in tensors)
        if (question, places) not in self.asked:
            self.asked.append((question, places))
        return self.holds(question, places)

    def answers(self, asked: list) -> tuple[bool, ...]:
        """Return the answers to questions that were asked of another batch."""
        return tuple(self.holds(*each) for each in asked)

    def holds(self, question: str, places: tuple) -> bool:
        """Return the answer to a question that was asked, of these arrays."""
        if any(place is not None and (place < 0 or self.arrays[place] is None) for place in places):
            return False
        arrays = [None if place is None else self.arrays[place] for place in places]
        return bool(_ANSWERS[question](*arrays))


_asked: contextvars.ContextVar[Questions | None] = contextvars.ContextVar("asked", default=None)


def host_array(x) -> np.ndarray | None:
    """The values of an array or a tensor of PyTorch that are on the host, None if they are not."""
    if isinstance(x, np.ndarray):
        return x
    kept = getattr(x, HOST, None)
    if kept is not None or not has_values(x) or x.device.type != "cpu" or x.requires_grad:
        return kept
    return None if str(x.dtype) == "torch.bfloat16" else x.numpy()


def has_values(x) -> bool:
    """Whether the numbers of a tensor can be looked at: on PyTorch, where nothing is traced."""
    if x is None or not on("torch"):
        return False
    import torch

    from keras_transformer.kernels.torch_modes import computes_now

    return type(x) is torch.Tensor and x.device.type != "meta" and computes_now()


def is_traced() -> bool:
    """Return whether PyTorch writes down what is called, and computes nothing."""
    if not on("torch"):
        return False
    from keras_transformer.kernels.torch_modes import computes_now

    return not computes_now()


def known_values(array) -> np.ndarray | None:
    """An array of NumPy, or one of JAX on a CPU, which by itself takes any id, as NumPy's."""
    if on("jax") and not isinstance(array, np.ndarray):
        import jax

        known = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
        if known and array.is_fully_addressable and next(iter(array.devices())).platform == "cpu":
            return np.asarray(array)
    return array if isinstance(array, np.ndarray) else None


def tensor_of(x):
    """Return the value of a variable; TensorFlow's custom gradients take no variables eagerly."""
    if not on("tensorflow"):
        return x
    import tensorflow as tf

    return tf.convert_to_tensor(x)


def number_of(variable: keras.Variable):
    """The number of a scalar variable: Python's on PyTorch, also within a trace, else a tensor."""
    if not on("torch"):
        return variable
    from keras_transformer.kernels.torch_modes import not_traced

    with not_traced():
        return variable._value.item()


def constant(array: np.ndarray):
    """A tensor of an array that does not change, for compiled code."""
    if on("torch"):
        from keras_transformer.kernels.torch_modes import not_traced

        # Else a traced function would copy the array in every step, and had it without numbers.
        with not_traced():
            return ops.convert_to_tensor(array)
    return ops.convert_to_tensor(array)
