"""Batches on their way to the device."""

import keras
import numpy as np

from keras_transformer.kernels.device import device, on
from keras_transformer.kernels.values import HOST


def sent(batch):
    """Return a batch whose arrays are on the way to a GPU of PyTorch; elsewhere as it is.

    The host does not wait for the copy, which is from memory that the system does not move.
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
