"""Resizing of frames of videos as published models do it, whose filters differ from Pillow's.

The filters are those of Pillow, in numbers of 16 bits, so that one pixel in some hundred differs by
one level.
"""

from collections.abc import Callable

import numpy as np

# Columns or rows that are computed together, of a part of the frame.
_TOGETHER = 32
_MOST_PRECISION = 22


def _cubic(x: np.ndarray) -> np.ndarray:
    """Return the values of a cubic filter. Source: Keys 1981, with a = -0.5."""
    x = np.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1
    far = -0.5 * (((x - 5) * x + 8) * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _linear(x: np.ndarray) -> np.ndarray:
    """Return the values of a triangle filter."""
    return np.maximum(1 - np.abs(x), 0.0)


# By the numbers of Pillow: the filter, and how far it reaches.
FILTERS: dict[int, tuple[Callable, int]] = {2: (_linear, 1), 3: (_cubic, 2)}


def resampled(frame: np.ndarray, height: int, width: int, resample: int) -> np.ndarray:
    """Resize a frame with a filter that is as wide as the scale, so that no pixel is left out.

    Args:
        frame: uint8 `(height, width, channels)`.
        height: int, of the result.
        width: int, of the result.
        resample: int, 2 for linear and 3 for cubic, as in Pillow.

    Returns:
        Uint8 `(height, width, channels)`: the columns first, then the rows, each rounded, as by
        PyTorch's `interpolate` of bytes with `antialias=True`.
    """
    if frame.shape[1] != width:
        turned = np.ascontiguousarray(frame.transpose(1, 0, 2))
        frame = _rows(turned, width, resample).transpose(1, 0, 2)
    return _rows(np.ascontiguousarray(frame), height, resample)


def _rows(array: np.ndarray, length: int, resample: int) -> np.ndarray:
    """Return uint8 `(rows, ...)` with another number of rows."""
    if len(array) == length:
        return array
    first, weights, precision = _weights(len(array), length, resample)
    flat, reach = array.reshape(len(array), -1), weights.shape[1]
    made = np.empty((length, flat.shape[1]), "uint8")
    for start in range(0, length, _TOGETHER):
        begins = first[start : start + _TOGETHER]
        low, high = begins[0], min(begins[-1] + reach, len(array))
        band = np.zeros((len(begins), begins[-1] + reach - low), "float64")
        places = (begins - low)[:, None] + np.arange(reach)
        np.put_along_axis(band, places, weights[start : start + _TOGETHER], axis=1)
        # Sums of whole numbers below 2 ** 53, which float64 holds exactly.
        sums = band[:, : high - low] @ flat[low:high].astype("float64")
        levels = np.floor((sums + 2 ** (precision - 1)) / 2**precision)
        made[start : start + _TOGETHER] = np.clip(levels, 0, 255)
    return made.reshape(length, *array.shape[1:])


def _weights(given: int, wanted: int, resample: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the first row of each sum, the whole numbers that rows are multiplied by, and bits.

    The sums are divided by two to the power of the bits.
    """
    function, reach = FILTERS[resample]
    scale = given / wanted
    wide = max(scale, 1.0)
    centers = scale * (np.arange(wanted) + 0.5)
    first = np.maximum((centers - reach * wide + 0.5).astype("int64"), 0)
    behind = np.minimum((centers + reach * wide + 0.5).astype("int64"), given)
    places = first[:, None] + np.arange((behind - first).max())
    weights = function((places - centers[:, None] + 0.5) * (1 / wide))
    weights = np.where(places < behind[:, None], weights, 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    most, precision = weights.max(), 0
    while precision < _MOST_PRECISION and int(0.5 + most * 2 ** (precision + 1)) < 2**15:
        precision += 1
    scaled = weights * 2**precision
    return first, np.trunc(scaled + np.copysign(0.5, scaled)), precision
