"""Which library computes a product fastest on PyTorch and a CPU. Imported only on PyTorch."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from keras_transformer.kernels.fastest import fastest
from keras_transformer.kernels.values import not_traced

# Elements from which a matrix is worth a measurement: calls take longer than smaller products.
LARGE = 2**16
# Elements up to which all of a matrix is measured: of a larger one it is the first outputs.
_LARGEST = 2**24
# What this process has chosen: found sooner than by the long keys of `fastest`.
_CHOSEN: dict[tuple, str] = {}
# Rows up to which their number is told apart: beyond it, all are "many".
MANY = 128


def choose(what: tuple, ways: Callable[[], Mapping[str, Callable[[], Sequence[Callable]]]]) -> str:
    """Return the name of the fastest way, see `fastest`, for this version of PyTorch.

    Args:
        what: tuple of names and numbers that says what is computed.
        ways: function that returns the ways. It is not called if the choice is known.
    """
    known = (*what, torch.get_num_threads())
    chosen = _CHOSEN.get(known)
    if chosen is None:
        *named, threads = map(str, known)
        key = f"torch {torch.__version__}, {threads} threads, {' '.join(named)}"
        chosen = _CHOSEN[known] = fastest(key, ways(), _computing)
    return chosen


def measured_outputs(outputs: int, inputs: int) -> int:
    """Return how many outputs of a matrix are measured."""
    return min(outputs, max(1, _LARGEST // inputs))


def up_to_power_of_two(size: int) -> int:
    """Return the least power of two that is not smaller: near sizes share a measurement."""
    return 1 << max(size - 1, 0).bit_length()


def has_mkl() -> bool:
    """Return True if PyTorch has MKL's products with packed matrices."""
    return torch.backends.mkl.is_available() and hasattr(torch.ops.mkl, "_mkl_linear")


@contextlib.contextmanager
def _computing() -> Iterator[None]:
    """Compute within the scope without gradients, and record nothing."""
    with not_traced(), torch.inference_mode(False), torch.no_grad():
        yield
