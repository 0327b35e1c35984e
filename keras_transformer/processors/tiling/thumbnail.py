"""Tiles of InternVL: an image stretched to a grid of tiles, and behind them a thumbnail."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.processors.tiling.tiling import Layout, Tiling, resized, square_of
from keras_transformer.support.checking import check_int

_MOST = 64
_MOST_PIXELS = 2**26  # of the tiles of an image


class Thumbnail(Tiling):
    """Stretch an image to the grid of tiles that is nearest to its proportions.

    An image of several tiles is followed by its thumbnail, one more tile.

    Args:
        side: int, height and width of a tile. Defaults to 448.
        least, most: int, numbers of tiles without the thumbnail. Default to 1 and 12.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import keras_transformer as kt

    tiling = kt.processors.Thumbnail(side=8, most=6)
    assert tiling.grids([(20, 60), (9, 8)]) == [(1, 3), (1, 1)]
    assert [each.tiles for each in tiling.layouts([(20, 60), (9, 8)], (2, 2))] == [4, 1]
    ```

    Source: Chen et al. 2024, "How Far Are We to GPT-4V?", section 3.3,
    https://arxiv.org/abs/2404.16821.
    """

    def __init__(self, side: int = 448, least: int = 1, most: int = 12):
        self.side = check_int("side", side, 1, 4096)
        self.most = check_int("most", most, 1, _MOST)
        self.least = check_int("least", least, 1, self.most)
        if self.most * self.side**2 > _MOST_PIXELS:
            raise ValueError(
                f"`most`={most} tiles of `side`={side} have more than {_MOST_PIXELS:,} pixels."
            )

    @property
    def family(self):
        return "GotOcr2"

    def grids(self, sizes):
        return [self._grid(*size) for size in sizes]

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        numbers = range(1, self.most + 1)
        grids = [
            (rows, columns)
            for columns in numbers
            for rows in numbers
            if self.least <= rows * columns <= self.most
        ]
        best, least = (1, 1), math.inf
        for rows, columns in sorted(grids, key=math.prod):
            difference = abs(width / height - columns / rows)
            # More tiles only if they do not enlarge the image more than twofold.
            larger = height * width > 0.5 * self.side**2 * rows * columns
            if difference < least or (difference == least and larger):
                best, least = (rows, columns), difference
        return best

    def cut(self, image, grid, resample):
        rows, columns = grid
        whole = resized(image, rows * self.side, columns * self.side, resample)
        tiles = self.pieces(np.asarray(whole))
        if len(tiles) > 1:
            tiles.append(np.asarray(resized(image, self.side, self.side, resample)))
        return tiles

    def layout(self, size, grid, states):
        tiles = math.prod(grid)
        tiles += tiles > 1
        return Layout(grid, tiles, (np.arange(tiles * math.prod(states)),))

    def values(self):
        return {
            "size": {"height": self.side, "width": self.side},
            "crop_to_patches": True,
            "min_patches": self.least,
            "max_patches": self.most,
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any], family: str) -> "Thumbnail":
        size = values.get("size", {"height": 384, "width": 384})
        side = square_of(size=size)
        return cls(side, values.get("min_patches", 1), values.get("max_patches", 12))
