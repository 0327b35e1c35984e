"""Matrices that resample positions, biases and maps along an axis."""

import numpy as np


def linear_resampling(before: int, after: int, antialiased: bool = False) -> np.ndarray:
    """Return the matrix that interpolates `before` values to `after`, float32 `(after, before)`.

    With `antialiased`, each of fewer values is a mean of all those that it stands for, as in
    PyTorch's `antialias=True`.
    """
    step = before / after
    scale = max(step, 1.0) if antialiased else 1.0
    centers = (np.arange(after) + 0.5) * step
    centers = centers if antialiased else np.clip(centers, 0.5, before - 0.5)
    distances = np.abs(np.arange(before) + 0.5 - centers[:, None])
    matrix = np.maximum(1 - distances / scale, 0)
    return (matrix / matrix.sum(axis=1, keepdims=True)).astype("float32")


def cubic_resampling(before: int, after: int) -> np.ndarray:
    """Return the matrix that resamples `before` values to `after`, float32 `(after, before)`.

    Source: Keys 1981, "Cubic Convolution Interpolation for Digital Image Processing", with
    a = -0.75 as in PyTorch, with which published models interpolate positions.
    """
    a, matrix = -0.75, np.zeros((after, before))
    for i in range(after):
        center = (i + 0.5) * before / after - 0.5
        first = int(np.floor(center)) - 1
        for place in range(first, first + 4):
            t = abs(center - place)
            near = (a + 2) * t**3 - (a + 3) * t**2 + 1
            far = a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
            matrix[i, min(max(place, 0), before - 1)] += near if t <= 1 else far
    return matrix.astype("float32")


def antialiased_cubic_resampling(before: int, after: int) -> np.ndarray:
    """Return such a matrix, whose kernel is as wide as the steps of `after` values.

    Source: as above, with a = -0.5, the kernel stretched as in Pillow and in PyTorch's
    `antialias=True`.
    """
    a, step = -0.5, before / after
    scale = max(step, 1.0)
    matrix = np.zeros((after, before))
    for i in range(after):
        center = (i + 0.5) * step
        first, last = int(max(center - 2 * scale + 0.5, 0)), int(center + 2 * scale + 0.5)
        places = np.arange(first, min(last, before))
        t = np.abs(places - center + 0.5) / scale
        near = (a + 2) * t**3 - (a + 3) * t**2 + 1
        far = a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
        weights = np.where(t < 1, near, np.where(t < 2, far, 0))
        matrix[i, places] = weights / weights.sum()
    return matrix.astype("float32")
