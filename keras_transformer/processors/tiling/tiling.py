"""Tiles of an image, and the layout of their states among the tokens of a text."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from keras_transformer.processors.packages import pillow
from keras_transformer.support.checking import shorten

# In a run: the trained state of the model that ends a row of patches.
SEPARATOR = -1
# Tiles of an image beside the whole one. Published models have up to 144.
MOST_TILES = 1024


class Mixes(NamedTuple):
    """States that are weighted sums of others.

    Args:
        states: int `(mixes, 4)`, their numbers.
        weights: float32 of the same shape.
    """

    states: np.ndarray
    weights: np.ndarray


class Layout(NamedTuple):
    """How an image is cut, and what stands for it in a text.

    Args:
        grid: tuple of int, rows and columns of its tiles; `(0, 0)` for one tile of the whole image.
        tiles: int, number of its tiles, with one of the whole image if there is such a tile.
        runs: tuple of int arrays, one for each place of `text`: the numbers of the states that go
            there, counted over the tiles of the image and then over its mixes, or `SEPARATOR`.
        text: str with `"{image}"` for each run; None means the text of the task.
        mixes: `Mixes` of its states, such as interpolated ones; None without any.
        seconds: float, from one tile to the next, if the tiles are pairs of frames of a video whose
            states are one run; None otherwise.

    Example:
    ```python
    import keras_transformer as kt

    tiling = kt.processors.Splitting(side=8, longest_edge=16)
    (layout,) = tiling.layouts([(20, 40)], states=(2, 2))
    assert layout.grid == (1, 2) and layout.tiles == 3
    assert [run.tolist() for run in layout.runs] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert layout.text.count("{image}") == 3
    ```
    """

    grid: tuple[int, int]
    tiles: int
    runs: tuple[np.ndarray, ...]
    text: str | None = None
    mixes: Mixes | None = None
    seconds: float | None = None

    @property
    def states(self) -> np.ndarray:
        """The numbers of all runs, int `(states,)`."""
        return np.concatenate(self.runs)


class Tiling(abc.ABC):
    """Rule by which an image of any size becomes tiles of one size, read like images.

    Attributes:
        side: int, height and width of a tile in pixels.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    class Halves(kt.processors.Tiling):  # the left and the right half
        side = 16

        def grids(self, sizes):
            return [(1, 2)] * len(sizes)

        def cut(self, image, grid, resample):
            return self.pieces(np.asarray(image.resize((32, 16), resample=resample)))

        def layout(self, size, grid, states):
            numbers = np.arange(2 * states[0] * states[1])
            return kt.processors.Layout(grid, 2, (numbers,))

        def values(self):
            return {}

        @classmethod
        def from_values(cls, values, family):
            return cls()

    processor = kt.ImageProcessor(size=16, tiling=Halves())
    assert processor(np.zeros((30, 90, 3), "uint8")).shape == (2, 16, 16, 3)
    ```
    """

    side: int

    @property
    def family(self) -> str | None:
        """Prefix of the Transformers class of its images; None if it cannot be saved, str."""
        return None

    @abc.abstractmethod
    def grids(self, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return rows and columns of the tiles of each image of a row of a batch.

        Args:
            sizes: height and width of each of its images, in pixels.
        """

    @abc.abstractmethod
    def cut(self, image: Any, grid: tuple[int, int], resample: int) -> list[np.ndarray]:
        """Return the tiles of a Pillow image in RGB, each uint8 `(side, side, 3)`."""

    @abc.abstractmethod
    def layout(
        self, size: tuple[int, int], grid: tuple[int, int], states: tuple[int, int]
    ) -> Layout:
        """Return the layout of an image.

        Args:
            size: height and width of the image.
            grid: rows and columns of its tiles.
            states: rows and columns of the states of a tile.
        """

    @abc.abstractmethod
    def values(self) -> dict[str, Any]:
        """Return its values in a `preprocessor_config.json`."""

    def config_values(self) -> dict[str, Any]:
        """Return its values that the `config.json` of a published model holds too."""
        return {}

    @classmethod
    @abc.abstractmethod
    def from_values(cls, values: Mapping[str, Any], family: str) -> Self:
        """Return the tiling that a `preprocessor_config.json` of a family describes."""

    def layouts(self, sizes: Sequence[tuple[int, int]], states: tuple[int, int]) -> list[Layout]:
        """Return the layout of each image of a row, given as in `grids` and `layout`."""
        pairs = zip(sizes, self.grids(sizes), strict=True)
        return [self.layout(size, grid, states) for size, grid in pairs]

    def pieces(self, pixels: np.ndarray) -> list[np.ndarray]:
        """Return the tiles of an image whose sides are multiples of theirs, row by row."""
        side, (height, width) = self.side, pixels.shape[:2]
        return [
            pixels[top : top + side, left : left + side]
            for top in range(0, height, side)
            for left in range(0, width, side)
        ]


def resized(image: Any, height: int, width: int, resample: int) -> Any:
    """Return a Pillow image in this size."""
    size = (width, height)
    return image if image.size == size else image.resize(size, resample=resample)


def square_of(**sizes: Any) -> Any:
    """Return the side of a tile from published sizes: numbers, or dicts of sides.

    Raises ValueError, with their names, unless all sides are the same.
    """
    each = [list(s.values()) if isinstance(s, Mapping) else [s] for s in sizes.values()]
    sides = [side for some in each for side in some]
    if not sides or any(side != sides[0] for side in sides):
        raise ValueError(
            f"{' and '.join(sizes)} must be of one square, a tile, received "
            f"{' and '.join(map(shorten, sizes.values()))}."
        )
    return sides[0]


def as_rgb(image: Any) -> Any:
    """Return what `open_image` returns as a Pillow image in RGB."""
    image = pillow().fromarray(image) if isinstance(image, np.ndarray) else image
    return image if image.mode == "RGB" else image.convert("RGB")
