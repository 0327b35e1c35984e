"""Tiles of LLaVA-NeXT and LLaVA-OneVision: the image as a whole, and cut at a resolution."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.processors.packages import pillow
from keras_transformer.processors.tiling.tiling import (
    MOST_TILES,
    SEPARATOR,
    Layout,
    Mixes,
    Tiling,
    resized,
    square_of,
)
from keras_transformer.support.checking import check_int, check_number, shorten

_NEXT = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
_ONEVISION = tuple((384 * row, 384 * column) for row in range(1, 7) for column in range(1, 7))
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_MOST_RESOLUTIONS = 256
_LONGEST = 4096  # of a resolution
# The longer side of an image that is filled up to a square; a longer one is made smaller first.
_SQUARE = 2**13
# How many times the states of `most_tiles` an image may have before they are interpolated.
_TOO_MANY = 1.1


class Resolutions(Tiling):
    """Put an image as a whole before its tiles, at the resolution that fits it best.

    The image keeps its proportions and is padded with black. States of padding are left out of the
    text, and a separator ends each row of patches.

    Args:
        side: int, height and width of a tile. Defaults to 336.
        resolutions: height and width of the images that may be cut, multiples of `side`. Defaults
            to those of LLaVA-NeXT.
        most_tiles: int, with whose number of states an image is described at most; if it has more,
            its states are interpolated (LLaVA-OneVision). None allows any number.
        square_color: three ints from 0 to 255. If a row has several images, each is filled up with
            this color to a square, and is one tile (LLaVA-OneVision). None cuts them too.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import keras_transformer as kt

    tiling = kt.processors.Resolutions(side=8, resolutions=[(8, 16), (16, 8), (16, 16)])
    (layout,) = tiling.layouts([(20, 40)], states=(2, 2))
    assert layout.grid == (1, 2) and layout.tiles == 3
    assert len(layout.states) == 4 + 2 * (4 + 1)  # two rows of patches
    ```

    Source: Liu et al. 2024, "LLaVA-NeXT"; Li et al. 2024, "LLaVA-OneVision", section 3.2,
    https://arxiv.org/abs/2408.03326.
    """

    def __init__(
        self,
        side: int = 336,
        resolutions: Sequence[Sequence[int]] = _NEXT,
        most_tiles: int | None = None,
        square_color: Sequence[int] | None = None,
    ):
        self.side = check_int("side", side, 1, 4096)
        fit = isinstance(resolutions, (list, tuple)) and 0 < len(resolutions) <= _MOST_RESOLUTIONS
        if not fit or not all(map(self._fits, resolutions)):
            raise ValueError(
                f"`resolutions` must be pairs of height and width, multiples of {side} up to "
                f"{_LONGEST} with up to {MOST_TILES:,} tiles, received {shorten(resolutions)}."
            )
        self.resolutions = tuple((height, width) for height, width in resolutions)
        self.most_tiles = check_int("most_tiles", most_tiles, 1, none=True)
        self.square_color = None
        if square_color is not None:
            color = tuple(check_int("square_color", each, 0, 255) for each in square_color)
            if len(color) != 3:
                raise ValueError(f"`square_color` must be three numbers, received {color}.")
            self.square_color = color

    def _fits(self, pair: Any) -> bool:
        return (
            isinstance(pair, (list, tuple))
            and len(pair) == 2
            and all(type(n) is int and 0 < n <= _LONGEST and n % self.side == 0 for n in pair)
            and math.prod(pair) <= MOST_TILES * self.side**2
        )

    @property
    def family(self):
        return "LlavaNext" if self.square_color is None else "LlavaOnevision"

    def grids(self, sizes):
        if self.square_color is not None and len(sizes) > 1:
            return [(0, 0)] * len(sizes)
        return [tuple(n // self.side for n in self._resolution(*size)) for size in sizes]

    def _resolution(self, height: int, width: int) -> tuple[int, int]:
        """Return the resolution that keeps most pixels, and of several the one of least padding."""

        def fit(pair: tuple[int, int]) -> tuple[int, int]:
            scale = min(pair[1] / width, pair[0] / height)
            kept = min(int(width * scale) * int(height * scale), width * height)
            return kept, kept - math.prod(pair)

        return max(self.resolutions, key=fit)

    def cut(self, image, grid, resample):
        side = self.side
        if grid == (0, 0):
            longest = max(image.size)
            if longest > _SQUARE:
                sides = [max(n * _SQUARE // longest, 1) for n in (image.height, image.width)]
                image, longest = resized(image, *sides, resample), _SQUARE
            square = pillow().new("RGB", (longest, longest), self.square_color)
            square.paste(image, ((longest - image.width) // 2, (longest - image.height) // 2))
            return [np.asarray(resized(square, side, side, resample))]
        height, width = (n * side for n in grid)
        scales = width / image.width, height / image.height
        if scales[0] < scales[1]:
            wanted = min(math.ceil(image.height * scales[0]), height), width
        else:
            wanted = height, min(math.ceil(image.width * scales[1]), width)
        padded = np.zeros((height, width, 3), "uint8")
        top, left = (height - wanted[0]) // 2, (width - wanted[1]) // 2
        pixels = np.asarray(resized(image, *wanted, resample))
        padded[top : top + wanted[0], left : left + wanted[1]] = pixels
        return [np.asarray(resized(image, side, side, resample)), *self.pieces(padded)]

    def layout(self, size, grid, states):
        (rows, columns), (high, wide) = grid, states
        count = high * wide
        whole = np.arange(count)
        if grid == (0, 0):
            return Layout(grid, 1, (np.append(whole, SEPARATOR),))
        tiles = rows * columns + 1
        numbers = np.arange(count, tiles * count).reshape(rows, columns, high, wide)
        numbers = numbers.transpose(0, 2, 1, 3).reshape(rows * high, columns * wide)
        numbers, mixes = _unpadded(numbers, size), None
        if self.most_tiles is not None:
            ratio = math.sqrt(numbers.size / (self.most_tiles * high**2))
            if ratio > _TOO_MANY:
                mixes, shape = _interpolated(numbers, ratio)
                numbers = np.arange(math.prod(shape)).reshape(shape) + tiles * count
        ends = np.full((len(numbers), 1), SEPARATOR)
        run = np.concatenate([whole, np.concatenate([numbers, ends], axis=1).ravel()])
        return Layout(grid, tiles, (run,), mixes=mixes)

    def values(self):
        side = {"height": self.side, "width": self.side}
        found = self.config_values()
        if self.square_color is not None:
            return found | {"size": side}
        return found | {
            "size": {"shortest_edge": self.side},
            "crop_size": side,
            "do_center_crop": True,
        }

    def config_values(self):
        return {"image_grid_pinpoints": [list(pair) for pair in self.resolutions]}

    @classmethod
    def from_values(cls, values: Mapping[str, Any], family: str) -> "Resolutions":
        of_next = family == "LlavaNext"
        usual = {"shortest_edge": 224} if of_next else {"height": 384, "width": 384}
        size = values.get("size") or usual
        crop = (values.get("crop_size") or {"height": 224}) if of_next else size
        side = square_of(size=size, crop_size=crop)
        resolutions = values.get("image_grid_pinpoints") or (_NEXT if of_next else _ONEVISION)
        if of_next:
            return cls(side, resolutions)
        mean = values.get("image_mean") or _CLIP_MEAN
        mean = mean if isinstance(mean, (list, tuple)) else [mean] * 3
        color = [int(check_number("image_mean", each, 0, 1) * 255) for each in mean]
        return cls(side, resolutions, most_tiles=9, square_color=color)


def _unpadded(numbers: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return the numbers of the patches of an image of this size, without those of its padding."""
    (height, width), (rows, columns) = size, numbers.shape
    if width / height > columns / rows:
        padding = (rows - int(round(height * (columns / width), 7))) // 2
        return numbers[padding : rows - padding]
    padding = (columns - int(round(width * (rows / height), 7))) // 2
    return numbers[:, padding : columns - padding]


def _interpolated(numbers: np.ndarray, ratio: float) -> tuple[Mixes, tuple[int, int]]:
    """Return the bilinear mixes of patches on a grid that is smaller by `ratio`, and its shape."""
    shape = tuple(max(int(n // ratio), 1) for n in numbers.shape)
    along = []
    for before, after in zip(numbers.shape, shape, strict=True):
        places = np.maximum((np.arange(after) + 0.5) * (before / after) - 0.5, 0)
        first = places.astype("int64")
        along.append((first, np.minimum(first + 1, before - 1), places - first))
    (top, bottom, down), (left, right, aside) = along
    states, weights = [], []
    for row, of_row in ((top, 1 - down), (bottom, down)):
        for column, of_column in ((left, 1 - aside), (right, aside)):
            states.append(numbers[np.ix_(row, column)].ravel())
            weights.append(np.outer(of_row, of_column).ravel())
    return Mixes(np.stack(states, 1), np.stack(weights, 1).astype("float32")), shape
