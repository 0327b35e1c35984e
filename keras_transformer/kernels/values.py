"""Facts about the values of tensors that are known while a step is traced or run.

On PyTorch they include whether it traces, and a scope in which it does not.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.device import on

if on("torch"):
    import torch
    from torch._C._functorch import peek_interpreter_stack
    from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

# Attribute of a GPU tensor that holds the host array it was made from.
HOST = "host_array"


def is_right_padded(padding, weights=None) -> bool:
    """Return True if each row is known to have padding, without weight, only after real tokens.

    This is known on PyTorch if the values of the mask `(batch, length)` and of the weights are on
    the host, but not within a program of JAX or TensorFlow.
    """
    return on("torch") and padding is not None and _holds("behind", padding, weights)


def drop_trivial_mask(padding):
    """Return the mask `(batch, length)`, or None if all tokens are known to be real.

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


# Questions about arrays of a batch, by name.
_ANSWERS = {"behind": _behind, "whole": lambda padding: bool(padding.all())}


def _holds(question: str, *tensors) -> bool:
    """Answer a question about tensors of a batch; False if their values are unknown."""
    if is_traced():
        asked = _asked.get()
        return asked is not None and asked.answer(question, tensors)
    arrays = [None if x is None else host_array(x) for x in tensors]
    known = all(x is None or array is not None for x, array in zip(tensors, arrays, strict=True))
    return known and bool(_ANSWERS[question](*arrays))


class Questions:
    """Questions that a step asks about the arrays of its batch while it is traced.

    The answers determine what the step does: a batch with other answers needs a new trace.

    Args:
        arrays: the host arrays of the batch, with None in place of arrays on a device.
    """

    def __init__(self, arrays: list):
        self.arrays = arrays
        self.asked: list[tuple[str, tuple]] = []
        self._places: dict[int, int] = {}

    @contextlib.contextmanager
    def about(self, tensors: list) -> Iterator[None]:
        """Let traced tensors stand for the arrays within the scope."""
        self._places = {id(x): place for place, x in enumerate(tensors) if x is not None}
        token = _asked.set(self)
        try:
            yield
        finally:
            _asked.reset(token)

    def answer(self, question: str, tensors: Sequence) -> bool:
        """Answer a question and record that it was asked. False if the values are unknown."""
        places = tuple(None if x is None else self._places.get(id(x), -1) for x in tensors)
        if (question, places) not in self.asked:
            self.asked.append((question, places))
        return self.holds(question, places)

    def answers(self, asked: list) -> tuple[bool, ...]:
        """Return the answers of this batch to the questions asked about another one."""
        return tuple(self.holds(*each) for each in asked)

    def holds(self, question: str, places: tuple) -> bool:
        """Return the answer to a question that was asked, for these arrays."""
        if any(place is not None and (place < 0 or self.arrays[place] is None) for place in places):
            return False
        arrays = [None if place is None else self.arrays[place] for place in places]
        return bool(_ANSWERS[question](*arrays))


_asked: contextvars.ContextVar[Questions | None] = contextvars.ContextVar("asked", default=None)


def host_array(x) -> np.ndarray | None:
    """Return the values of an array or a PyTorch tensor; None if they are not on the host."""
    if isinstance(x, np.ndarray):
        return x
    kept = getattr(x, HOST, None)
    if kept is not None or not is_concrete(x) or x.device.type != "cpu" or x.requires_grad:
        return kept
    return None if str(x.dtype) == "torch.bfloat16" else x.numpy()


def values_at_hand(tensor) -> np.ndarray | None:
    """Return the values of a tensor; None if reading them is impossible or means waiting."""
    if on("torch"):
        known = is_concrete(tensor) and tensor.device.type == "cpu"
    elif on("jax"):
        import jax

        known = isinstance(tensor, jax.Array) and not isinstance(tensor, jax.core.Tracer)
        known = known and tensor.is_fully_addressable
    else:
        known = hasattr(tensor, "numpy")  # only eager TensorFlow tensors have it
    return ops.convert_to_numpy(tensor) if known else None


def is_concrete(x) -> bool:
    """Return True if the values of a tensor can be read: on PyTorch, outside a trace."""
    if x is None or not on("torch"):
        return False
    return type(x) is torch.Tensor and x.device.type != "meta" and is_eager()


def is_eager() -> bool:
    """Return True if PyTorch's operations give values now, not in a trace or in `torch.func`."""
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or peek_interpreter_stack() is not None
        or _get_current_dispatch_mode() is not None
    )


@contextlib.contextmanager
def not_traced() -> Iterator[None]:
    """Compute PyTorch's tensors within the scope for real and record nothing, even in a trace."""
    with _disable_current_modes():
        yield


def is_traced() -> bool:
    """Return True if PyTorch records operations instead of computing them."""
    return on("torch") and not is_eager()


def known_values(array) -> np.ndarray | None:
    """Return the values of a NumPy array, or of a JAX array on a CPU; otherwise None.

    JAX itself would accept any id, so its ids must be checked too.
    """
    if on("jax") and not isinstance(array, np.ndarray):
        import jax

        known = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
        if known and array.is_fully_addressable and next(iter(array.devices())).platform == "cpu":
            return np.asarray(array)
    return array if isinstance(array, np.ndarray) else None


def full_tensor(shape: tuple, number: float, dtype: str):
    """Return a tensor filled with one number.

    On PyTorch `keras.ops.full` sends the number to the device and waits to read it back.
    """
    return ops.zeros(shape, dtype) + number


def tensor_of(x):
    """Return the value of a variable: eager TensorFlow's custom gradients take no variables."""
    if not on("tensorflow"):
        return x
    import tensorflow as tf

    return tf.convert_to_tensor(x)


def number_of(variable: keras.Variable):
    """Return a scalar variable's value: a Python number on PyTorch, even traced, or a tensor."""
    if not on("torch"):
        return variable
    with not_traced():
        return variable._value.item()


def constant(array: np.ndarray):
    """Convert an array that does not change to a tensor, for compiled code."""
    if on("torch"):
        # Otherwise a traced function would copy the array in every step, and not know its values.
        with not_traced():
            return ops.convert_to_tensor(array)
    return ops.convert_to_tensor(array)


def is_on_cpu(model: keras.Model) -> bool:
    """Return True if a PyTorch model has its weights on a CPU."""
    return model.weights[0].value.device.type == "cpu"
