"""Tiles of Idefics 3 and SmolVLM: the squares of an enlarged image, and the image as a whole."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.processors.tiling.tiling import MOST_TILES, Layout, Tiling, resized
from keras_transformer.support.checking import check_choice, check_int, shorten

_LONGEST = 4096  # of an image between resizing and splitting
_VIEWS = ("tiles", "whole")
_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"


class Splitting(Tiling):
    """Enlarge an image to whole tiles, and put it as a whole behind them.

    In a text each tile follows its row and column, such as `"<row_1_col_2>"`, and the whole image
    follows `"<global-img>"`.

    Args:
        side: int, height and width of a tile. Defaults to 512.
        longest_edge: int, the longer side of an image before it is enlarged to whole tiles.
            Defaults to 2048.
        views: `"tiles"` and the whole image, or the `"whole"` image alone, in one tile. Defaults to
            `"tiles"`.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    tiling = kt.processors.Splitting(side=8, longest_edge=32)
    processor = kt.ImageProcessor(size=8, tiling=tiling)
    assert tiling.grids([(30, 60)]) == [(2, 4)]
    assert processor([np.zeros((30, 60, 3), "uint8")]).shape == (2 * 4 + 1, 8, 8, 3)
    ```

    Source: Laurençon et al. 2024, "Building and better understanding vision-language models",
    section 3.2, https://arxiv.org/abs/2408.12637.
    """

    def __init__(
        self,
        side: int = 512,
        longest_edge: int = 2048,
        views: str = "tiles",
    ):
        self.side = check_int("side", side, 1, _LONGEST)
        self.longest_edge = check_int("longest_edge", longest_edge, 1, 2**15)
        self.views = check_choice("views", views, _VIEWS)
        longest = math.ceil(min(self.longest_edge, _LONGEST) / self.side)
        if self.views == "tiles" and longest**2 > MOST_TILES:
            raise ValueError(
                f"`longest_edge`={longest_edge} means up to {longest} x {longest} tiles of "
                f"`side`={side}, and an image may have {MOST_TILES:,}."
            )

    @property
    def family(self):
        return "SmolVLM"

    def grids(self, sizes):
        return [self._grid(size) for size in sizes]

    def _grid(self, size: tuple[int, int]) -> tuple[int, int]:
        if self.views == "whole":
            return 0, 0
        height, width = self._first_size(size)
        ratio = width / height
        if width >= height:
            width = self._whole_tiles(width)
            height = self._whole_tiles(int(width / ratio))
        else:
            height = self._whole_tiles(height)
            width = self._whole_tiles(int(height * ratio))
        grid = height // self.side, width // self.side
        return (0, 0) if grid == (1, 1) else grid

    def _whole_tiles(self, length: int) -> int:
        return max(math.ceil(length / self.side), 1) * self.side

    def _first_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size at which the longer side is `longest_edge`, with an even shorter one."""
        height, width = size
        ratio, longest = width / height, self.longest_edge
        other = int(longest / ratio) if width >= height else int(longest * ratio)
        other = max(other + other % 2, 1)
        height, width = (other, longest) if width >= height else (longest, other)
        if max(height, width) <= _LONGEST:
            return height, width
        ratio = width / height
        if width >= height:
            return max(int(_LONGEST / ratio), 1), _LONGEST
        return _LONGEST, max(int(_LONGEST * ratio), 1)

    def cut(self, image, grid, resample):
        side = self.side
        image = resized(image, *self._first_size((image.height, image.width)), resample)
        if grid == (0, 0):
            return [np.asarray(resized(image, side, side, resample))]
        image = resized(image, grid[0] * side, grid[1] * side, resample)
        whole = np.asarray(resized(image, side, side, resample))
        return [*self.pieces(np.asarray(image)), whole]

    def layout(self, size, grid, states):
        rows, columns = grid
        tiles, count = rows * columns + 1, math.prod(states)
        runs = tuple(np.arange(tiles * count).reshape(tiles, count))
        lines = "".join(
            "".join(
                f"{_AROUND}<row_{row}_col_{column}>{{image}}" for column in range(1, columns + 1)
            )
            + "\n"
            for row in range(1, rows + 1)
        )
        text = f"{lines}\n" if rows else ""
        return Layout(grid, tiles, runs, f"{text}{_AROUND}{_WHOLE}{{image}}{_AROUND}")

    def values(self):
        return {
            "size": {"longest_edge": self.longest_edge},
            "max_image_size": {"longest_edge": self.side},
            "do_image_splitting": self.views == "tiles",
            "do_pad": True,
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any], family: str) -> "Splitting":
        size, tile = (
            values.get(name, {"longest_edge": default})
            for name, default in (("size", 4 * 364), ("max_image_size", 364))
        )
        for name, given in (("size", size), ("max_image_size", tile)):
            if not isinstance(given, Mapping) or given.keys() != {"longest_edge"}:
                raise ValueError(
                    f"{name} must be {{'longest_edge': ...}}, received {shorten(given)}."
                )
        if values.get("do_resize", True) is not True:
            raise ValueError("do_resize=false is not supported for images that are split.")
        views = "tiles" if values.get("do_image_splitting", True) else "whole"
        return cls(tile["longest_edge"], size["longest_edge"], views)
