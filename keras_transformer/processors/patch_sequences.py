"""`PatchSequenceProcessor`: images of any size as sequences of patches, each with its place."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.processors.image import CLIP, MOST_PIXELS, ImageProcessor
from keras_transformer.processors.image_files import image_size
from keras_transformer.processors.tiling import Layout
from keras_transformer.support.checking import check_int, shorten

_BICUBIC = 3
# The longest side over the shortest, at most.
_MOST_ASPECT = 200
# Of an image, at most: states, and values of its patches, a gigabyte. Published models allow 16,384
# states, and 100 million values.
_MOST_STATES = 2**18
_MOST_VALUES = 2**28


class Patches(NamedTuple):
    """The patches of one image.

    Fields:
        values: float32 `(length, values)`, by frame, row, column and channel.
        positions: int32 `(length, 2)`, row and column of each patch, -1 for padding.
        states: int32 `(rows * columns,)`: which of the squares of patches, in the order of the
            sequence, is at each place of the image, row by row.
        grid: ints, rows and columns of squares.
    """

    values: np.ndarray
    positions: np.ndarray
    states: np.ndarray
    grid: tuple[int, int]


class PatchSequenceProcessor(ImageProcessor):
    """Convert images of any size to sequences of patches, as Qwen2-VL and its successors read them.

    An image keeps its aspect ratio: its sides are rounded to whole squares of patches, and it is
    scaled until it has between `min_pixels` and `max_pixels`. The options are the values of
    `preprocessor_config.json`, and `save` writes the same file.

    Args:
        min_pixels, max_pixels: int, bounds of the pixels of a resized image. They are the bounds of
            the states that an image takes, and of its memory.
        patch_size: int, height and width of a patch.
        merge_size: int, rows and columns of a square of patches that becomes one state.
        num_frames: int, number of frames of a patch. An image is repeated.
        resample, rescale_factor, mean, std: as for `ImageProcessor`.
        family: str, prefix of the Transformers class that the file names.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    processor = kt.processors.PatchSequenceProcessor(
        min_pixels=64, max_pixels=1024, patch_size=4, num_frames=1
    )
    image = np.zeros((23, 31, 3), "uint8")  # becomes 24 x 32
    patches = processor.patches(processor.pixels(image))
    assert patches.values.shape == (6 * 8, 4 * 4 * 3) and patches.grid == (3, 4)
    assert processor.num_states(image) == 12
    ```

    Source: Wang et al. 2024, "Qwen2-VL", section 2.1.
    """

    def __init__(
        self,
        min_pixels: int = 56 * 56,
        max_pixels: int = 28 * 28 * 1280,
        patch_size: int = 14,
        merge_size: int = 2,
        num_frames: int = 2,
        resample: int = _BICUBIC,
        rescale_factor: float | None = 1 / 255,
        mean: Sequence[float] | None = CLIP[0],
        std: Sequence[float] | None = CLIP[1],
        family: str = "Qwen2VL",
    ):
        super().__init__(None, None, resample, rescale_factor, mean, std, family)
        self.patch_size = check_int("patch_size", patch_size, 1, 2**15)
        self.merge_size = check_int("merge_size", merge_size, 1, 2**10)
        self.num_frames = check_int("num_frames", num_frames, 1, 1024)
        self.min_pixels = check_int("min_pixels", min_pixels, 1, MOST_PIXELS)
        self.max_pixels = check_int("max_pixels", max_pixels, 1, MOST_PIXELS)
        if max_pixels < max(min_pixels, self.square**2):
            raise ValueError(
                f"`max_pixels` must be at least `min_pixels` and at least {self.square**2:,}, a "
                f"square of patches, received {max_pixels:,} and {min_pixels:,}."
            )
        states, values = max_pixels // self.square**2, max_pixels * 3 * self.num_frames
        if states > _MOST_STATES or values > _MOST_VALUES:
            raise ValueError(
                f"An image of `max_pixels`={max_pixels:,} has {states:,} states and {values:,} "
                f"values in patches, and may have {_MOST_STATES:,} and {_MOST_VALUES:,}."
            )

    @property
    def square(self) -> int:
        """Height and width in pixels of the patches that become one state."""
        return self.patch_size * self.merge_size

    def num_states(self, image: Any, place: str = "x") -> int:
        """Return the number of states of an image, from the header of its file.

        Args:
            image: whatever `ImageProcessor` reads.
            place: name of the image in errors.

        Raises:
            ValueError: if it is not an image, is too large, or is over 200 times as long as wide.
        """
        return math.prod(self.resized(image, place)) // self.square**2

    def resized(self, image: Any, place: str = "x") -> tuple[int, int]:
        """Return height and width of an image as it is read, as `num_states` its states."""
        size = image_size(image, place)
        try:
            return self._resized(*size)
        except ValueError as error:
            raise ValueError(f"`{place}`: {error}") from None

    def layouts(
        self, images: Sequence, states: tuple[int, int], places: Sequence[str] | None = None
    ) -> list[Layout]:
        """Return what stands for each image of a row in a text, by its size; see `ImageProcessor`.

        `states` are not used: images have different numbers of them.
        """
        places = [f"image {i}" for i in range(1, len(images) + 1)] if places is None else places
        counts = [self.num_states(*each) for each in zip(images, places, strict=True)]
        return [Layout((0, 0), 1, (np.arange(count),)) for count in counts]

    def patches(self, pixels: np.ndarray, window: int | None = None) -> Patches:
        """Cut the pixels of an image into patches.

        Args:
            pixels: uint8 `(height, width, 3)`, the result of `pixels`.
            window: int, rows and columns of patches of the windows in which they are put in order,
                padded to whole windows. None puts squares of patches row by row.

        Returns:
            `Patches`. The patches of a square follow each other.
        """
        size, merge = self.patch_size, self.merge_size
        rows, columns = (side // size for side in pixels.shape[:2])
        images = self.normalized(pixels[None])
        cut = images.reshape(rows, size, columns, size, -1).swapaxes(1, 2)
        cut = np.broadcast_to(cut[:, :, None], (rows, columns, self.num_frames, *cut.shape[2:]))
        places = np.stack(np.indices((rows, columns), "int32"), axis=-1)
        high, wide = (window, window) if window else (rows, columns)
        padding = [(0, -rows % high), (0, -columns % wide)]
        cut, places = (
            np.pad(each, [*padding, *[(0, 0)] * (each.ndim - 2)], constant_values=fill)
            for each, fill in ((cut, 0), (places, -1))
        )
        values, positions = (_by_squares(each, (high, wide), merge) for each in (cut, places))
        corners = positions[:: merge**2]
        numbers = corners[:, 0] // merge * (columns // merge) + corners[:, 1] // merge
        real = np.flatnonzero(corners[:, 0] >= 0).astype("int32")
        states = real[np.argsort(numbers[real])]
        values = np.ascontiguousarray(values.reshape(len(values), -1))
        return Patches(values, positions, states, (rows // merge, columns // merge))

    def __call__(self, images: Any, places: Sequence[int] | None = None) -> np.ndarray:
        """Raise ValueError: the patches of images do not fit one array without their places."""
        raise ValueError(
            "Images of any size are no single array: call `patches(pixels(image))` for each, or "
            "give the images to a task."
        )

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        short, long = sorted((height, width))
        if long > _MOST_ASPECT * short:
            raise ValueError(
                f"An image of {height:,} x {width:,} pixels is more than {_MOST_ASPECT} times as "
                "long as wide. Crop it, or cut it into several images."
            )
        square = self.square
        found = [round(side / square) * square for side in (height, width)]
        if math.prod(found) > self.max_pixels:
            shrunk = math.sqrt(height * width / self.max_pixels)
            sides = (math.floor(side / shrunk / square) * square for side in (height, width))
            found = [max(square, side) for side in sides]
        elif math.prod(found) < self.min_pixels:
            grown = math.sqrt(self.min_pixels / (height * width))
            found = [math.ceil(side * grown / square) * square for side in (height, width)]
        return found[0], found[1]

    def check(self, config: TransformerConfig) -> None:
        stem = config.sides[0].stem
        names = ("patch_size", "num_frames")
        mine = {name: getattr(self, name) for name in names}
        theirs = {name: getattr(stem, name, None) for name in names}
        if config.projector is not None:
            mine["merge_size"], theirs["merge_size"] = self.merge_size, config.projector.pool
        if mine != theirs:
            raise ValueError(
                f"The images are cut into patches of {mine}, but the model's config has {theirs}: "
                "give the processor that belongs to the model."
            )

    def values(self) -> dict[str, Any]:
        values = super().values()
        return values | {
            "do_resize": True,
            "size": {"shortest_edge": self.min_pixels, "longest_edge": self.max_pixels},
            "patch_size": self.patch_size,
            "temporal_patch_size": self.num_frames,
            "merge_size": self.merge_size,
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "PatchSequenceProcessor":
        size = values.get("size") or {}
        if not isinstance(size, Mapping) or not values.get("do_resize", True):
            raise ValueError(
                "`size` must hold 'shortest_edge' and 'longest_edge', and do_resize be true, "
                f"received {shorten(size)} and {shorten(values.get('do_resize', True))}."
            )
        # Old files give the bounds by themselves.
        least = values.get("min_pixels") or size.get("shortest_edge") or 56 * 56
        most = values.get("max_pixels") or size.get("longest_edge") or 28 * 28 * 1280
        rescales, normalizes = (values.get(f"do_{n}", True) for n in ("rescale", "normalize"))
        return cls(
            min_pixels=least,
            max_pixels=most,
            patch_size=values.get("patch_size", 14),
            merge_size=values.get("merge_size", 2),
            num_frames=values.get("temporal_patch_size", 2),
            resample=values.get("resample", _BICUBIC),
            rescale_factor=values.get("rescale_factor", 1 / 255) if rescales else None,
            mean=values.get("image_mean", CLIP[0]) if normalizes else None,
            std=values.get("image_std", CLIP[1]) if normalizes else None,
        )


def _by_squares(grid: np.ndarray, window: tuple[int, int], merge: int) -> np.ndarray:
    """Return `(rows, columns, ...)` as `(rows * columns, ...)`: windows, and in them squares."""
    (high, wide), (rows, columns) = window, grid.shape[:2]
    sizes = (rows // high, high // merge, merge, columns // wide, wide // merge, merge)
    rest = tuple(range(6, 6 + grid.ndim - 2))
    cut = grid.reshape(*sizes, *grid.shape[2:]).transpose(0, 3, 1, 4, 2, 5, *rest)
    return cut.reshape(rows * columns, *grid.shape[2:])


ImageProcessor.subclasses["Qwen2VL"] = PatchSequenceProcessor
