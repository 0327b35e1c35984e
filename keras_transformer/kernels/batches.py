"""Transfer of batches to the device, and of their outputs to the host."""

import math

import keras
import numpy as np

from keras_transformer.kernels.device import device, on
from keras_transformer.kernels.values import HOST


def sent(batch):
    """Start copying the arrays of a batch to the GPU on PyTorch; otherwise return it unchanged.

    The host does not wait for the copy, since it is made from pinned memory.
    """
    if not on("torch") or device().kind != "cuda":
        return batch
    return keras.tree.map_structure(_sent, batch)


def _sent(array):
    if not isinstance(array, np.ndarray):
        return array
    with keras.device("cpu"):
        tensor = keras.ops.convert_to_tensor(array)
    tensor = tensor.pin_memory().to(device().kind, non_blocking=True)
    setattr(tensor, HOST, array)
    return tensor


def infers_shapes_from_batches() -> bool:
    """Return True if the first two batches of a data set determine the shapes of all: TensorFlow.

    A size that both share is fixed. They are fetched before the first epoch, only to be inspected.
    """
    return on("tensorflow")


def shapes_of_batch(batch) -> tuple:
    """Return the shape of each array of a batch."""
    return tuple(
        None if array is None else tuple(array.shape) for array in keras.tree.flatten(batch)
    )


class PendingOutputs:
    """Outputs of batches that stay on the device and are copied to the host together.

    The host waits for a batch when its outputs are copied, so all are copied once the last batch
    has been sent, or once the outputs would take too much of the device's memory. On JAX, where
    concatenating arrays needs a program for their number and sizes, each copy begins with its
    batch, without waiting.

    Args:
        most: the most bytes to keep on the device. Defaults to the device's `waiting_bytes`.

    Example:
    ```python
    from keras_transformer.kernels.batches import PendingOutputs
    import keras

    outputs = PendingOutputs()
    outputs.add(keras.ops.ones((2, 3)))
    outputs.add(keras.ops.zeros((1, 3)))
    assert outputs.arrays().shape == (3, 3)
    ```
    """

    def __init__(self, most: int | None = None):
        self._most = device().waiting_bytes if most is None else most
        self._waiting: list = []
        self._bytes = 0
        self._there: list = []

    def add(self, outputs) -> None:
        """Add the outputs of a batch, a nested structure of tensors `(rows, ...)`."""
        self._waiting.append(outputs)
        for tensor in keras.tree.flatten(outputs):
            self._bytes += math.prod(tensor.shape) * _item_bytes(tensor)
            if on("jax"):
                tensor.copy_to_host_async()
        if self._bytes >= self._most:
            self._copy()

    def arrays(self):
        """Return the outputs of all batches, a structure of NumPy arrays `(rows, ...)`."""
        self._copy()
        first, *others = self._there
        return keras.tree.map_structure(_joined, first, *others) if others else first

    def _copy(self) -> None:
        if not self._waiting:
            return
        first, *others = self._waiting
        if on("torch"):
            import torch

            copied = keras.tree.map_structure(
                lambda *parts: keras.ops.convert_to_numpy(torch.cat(parts)), first, *others
            )
        else:
            copied = keras.tree.map_structure(_joined, first, *others)
        self._there.append(copied)
        self._waiting, self._bytes = [], 0


def _item_bytes(tensor) -> int:
    return tensor.dtype.size if on("tensorflow") else tensor.dtype.itemsize


def _joined(*arrays) -> np.ndarray:
    return np.concatenate([np.asarray(array) for array in arrays])
