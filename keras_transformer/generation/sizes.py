"""The sizes that compiled functions are made for: few, so that different calls share them."""

import numpy as np

from keras_transformer.generation.samplers import Sampler

# Rows are few: one more is a large part of the work.
_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# Tokens of a prompt, slots of a cache, room for new tokens: up to here, then see `round_size`.
_SIZES = (16, 32, 64, 96, 128, 192, 256, 384, 512)


def round_up(rows: int) -> int:
    """The next number of rows; above the ladder, multiples of 512."""
    for step in _ROWS:
        if rows <= step:
            return step
    return -(-rows // 512) * 512


def round_size(size: int) -> int:
    """The next number of tokens or slots; above the ladder, four steps to each power of two."""
    for step in _SIZES:
        if size <= step:
            return step
    quarter = 1 << ((size - 1).bit_length() - 3)
    return -(-size // quarter) * quarter


def most_steps(sampler: Sampler) -> int:
    """Steps in one call of the loop.

    So many that a call costs little beside them, and so few that the cache starts small and an
    interruption is heard soon.
    """
    return 16 if sampler.branches > 1 else max(8, 64 // sampler.step_length)


def of_width(uniforms: np.ndarray, width: int) -> np.ndarray:
    """Random numbers `(rows, count)` cut or filled up to `width` columns."""
    count = uniforms.shape[1]
    if count >= width:
        return uniforms[:, :width]
    return np.pad(uniforms, ((0, 0), (0, width - count)))
