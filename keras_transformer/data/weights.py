"""What a row counts in the loss."""

from typing import Any

import numpy as np
from keras import ops

from keras_transformer.checking import describe
from keras_transformer.data.buckets import array_of


def check_weights(
    name: str, weights: Any, rows: int, targets: tuple | None = None, unit: str = "text"
) -> np.ndarray | None:
    """Weights as float32, one for each of `rows`, or as `targets`, a shape, one a token."""
    if weights is None:
        return None
    if isinstance(weights, (str, bytes, dict)):
        raise ValueError(f"`{name}` must be an array of numbers, received {describe(weights)}.")
    array = array_of(ops.convert_to_numpy(weights) if ops.is_tensor(weights) else weights)
    if array.dtype.kind == "O" and array.ndim == 1:
        for place, weight in enumerate(array):
            if not isinstance(weight, (int, float, np.number)):
                raise ValueError(
                    f"`{name}[{place}]` must be a number, received {describe(weight)}."
                )
        array = array.astype("float64")
    if array.dtype.kind not in "iufb":
        raise ValueError(f"`{name}` must be an array of numbers, received {describe(weights)}.")
    if array.shape != (rows,) and (targets is None or array.shape != tuple(targets)):
        raise ValueError(
            f"`{name}` must be one number a {unit}, {rows} in all, received shape {array.shape}."
        )
    with np.errstate(over="ignore"):
        array = array.astype("float32", copy=False)
    right = np.isfinite(array) & (array >= 0)
    if not right.all():
        place = tuple(int(axis[0]) for axis in np.nonzero(~right))
        raise ValueError(
            f"`{name}[{', '.join(map(str, place))}]` is {array[place]}: a weight is a finite "
            "number of at least 0."
        )
    return array
