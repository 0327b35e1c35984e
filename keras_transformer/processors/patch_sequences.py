"""`PatchSequenceProcessor`: images of any size as sequences of patches, each with its place."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.processors.audio_files import Sound
from keras_transformer.processors.image import CLIP, MOST_PIXELS, ImageProcessor
from keras_transformer.processors.image_files import image_size
from keras_transformer.processors.tiling import Layout
from keras_transformer.processors.video_files import Video
from keras_transformer.support.checking import check_int, describe, shorten

_BICUBIC = 3
# The longest side over the shortest, at most.
_MOST_ASPECT = 200
# Of an image, at most: states, and values of its patches, a gigabyte. Published models allow 16,384
# states, and 100 million values.
MOST_STATES = 2**18
MOST_VALUES = 2**28


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
        videos: `PatchVideoProcessor`, which reads the videos of conversations, or None if they have
            none. It is saved in a file of its own, `video_preprocessor_config.json`.

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

    # Set by the module of `PatchVideoProcessor`. None if images have no videos beside them.
    video_class: ClassVar[Any] = None

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
        videos: Any = None,
    ):
        super().__init__(None, None, resample, rescale_factor, mean, std, family)
        self.patch_size = check_int("patch_size", patch_size, 1, 2**15)
        self.merge_size = check_int("merge_size", merge_size, 1, 2**10)
        self.num_frames = check_int("num_frames", num_frames, 1, 1024)
        if videos is not None and not isinstance(videos, self.video_class or ()):
            raise ValueError(
                f"`videos` must be a {getattr(self.video_class, '__name__', None)} or None, "
                f"received {describe(videos)}."
            )
        self.videos = videos
        self.min_pixels = check_int("min_pixels", min_pixels, 1, MOST_PIXELS)
        self.max_pixels = check_int("max_pixels", max_pixels, 1, MOST_PIXELS)
        if max_pixels < max(min_pixels, self.square**2):
            raise ValueError(
                f"`max_pixels` must be at least `min_pixels` and at least {self.square**2:,}, a "
                f"square of patches, received {max_pixels:,} and {min_pixels:,}."
            )
        states, values = max_pixels // self.square**2, max_pixels * 3 * self.num_frames
        if states > MOST_STATES or values > MOST_VALUES:
            raise ValueError(
                f"An image of `max_pixels`={max_pixels:,} has {states:,} states and {values:,} "
                f"values in patches, and may have {MOST_STATES:,} and {MOST_VALUES:,}."
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

        `states` are not used: images have different numbers of them. With a processor for `videos`,
        each of `images` may also be a `Video`, and with one for `sounds` a `Sound`.
        """
        kinds = {Video: "video", Sound: "sound"}
        names = (kinds.get(type(each), "image") for each in images)
        places = [f"{name} {i}" for i, name in enumerate(names, 1)] if places is None else places
        return [self._layout(*each) for each in zip(images, places, strict=True)]

    def _layout(self, given: Any, place: str) -> Layout:
        if isinstance(given, Video):
            return self.videos.layout(given, place)
        if isinstance(given, Sound):
            return self.sounds.layout(given, place)
        return Layout((0, 0), 1, (np.arange(self.num_states(given, place)),))

    def patches_of(self, given: Any, place: str, window: int | None = None) -> list[Patches]:
        """Return the patches of an image, or of each pair of frames of a `Video`.

        Args:
            given: an image, or a `Video`.
            place: its name in errors.
            window: as for `patches`.
        """
        if isinstance(given, Video):
            return self.videos.patches_of(given, place, window)
        return [self.patches(self.pixels(given, place), window)]

    def patches(self, pixels: np.ndarray, window: int | None = None) -> Patches:
        """Cut the pixels of an image into patches.

        Args:
            pixels: uint8 `(height, width, 3)`, the result of `pixels`, or `(num_frames, height,
                width, 3)`, frames of a video.
            window: int, rows and columns of patches of the windows in which they are put in order,
                padded to whole windows. None puts squares of patches row by row.

        Returns:
            `Patches`. The patches of a square follow each other.
        """
        size, merge = self.patch_size, self.merge_size
        rows, columns = (side // size for side in pixels.shape[-3:-1])
        frames = self.normalized(pixels if pixels.ndim == 4 else pixels[None])
        cut = frames.reshape(-1, rows, size, columns, size, frames.shape[-1])
        cut = cut.transpose(1, 3, 0, 2, 4, 5)
        cut = np.broadcast_to(cut, (rows, columns, self.num_frames, *cut.shape[3:]))
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

    def arrays(self, images: Any, places: Sequence[int] | None = None) -> dict[str, np.ndarray]:
        """Return the images as the arrays of a `PatchSequenceStem`, padded to the longest."""
        rows = self.rows(images)
        places = range(len(rows)) if places is None else places
        made = [self.patches(self.pixels(*each)) for each in _placed(rows, places)]
        length = self._length(max(len(each.values) for each in made))
        values = np.zeros((len(made), length, made[0].values.shape[1]), "float32")
        positions = np.full((len(made), length, 2), -1, "int32")
        for i, each in enumerate(made):
            values[i, : len(each.values)] = each.values
            positions[i, : len(each.values)] = each.positions
        return {"patches": values, "patch_positions": positions}

    def _length(self, longest: int) -> int:
        """Return the number of patches to which those of images are padded."""
        return longest

    def __call__(self, images: Any, places: Sequence[int] | None = None) -> np.ndarray:
        """Raise ValueError: the patches of images do not fit one array without their places."""
        raise ValueError(
            "Images of any size are no single array: call `patches(pixels(image))` for each, or "
            "give the images to a task."
        )

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        return fitted(height, width, self.square, self.min_pixels, self.max_pixels)

    def check(self, config: TransformerConfig) -> None:
        stem = config.sides[0].stem
        theirs = {name: getattr(stem, name, None) for name in ("patch_size", "num_frames")}
        if config.projector is not None:
            theirs["merge_size"] = config.projector.pool
        for name, each in {"images": self, "videos": self.videos}.items():
            mine = {key: getattr(each, key) for key in theirs} if each is not None else theirs
            if mine != theirs:
                raise ValueError(
                    f"The {name} are cut into patches of {mine}, but the model's config has "
                    f"{theirs}: give the processor that belongs to the model."
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

    def save(self, directory: str) -> None:
        super().save(directory)
        if self.videos is not None:
            self.videos.save(directory)

    def with_files_of(self, directory: str) -> "PatchSequenceProcessor":
        kind = self.video_class
        if kind is not None:
            self.videos = kind.from_files(directory) if kind.is_in(directory) else kind.beside(self)
        return self

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "PatchSequenceProcessor":
        return cls(**published_options(values, (56 * 56, 28 * 28 * 1280)))


def published_options(
    values: Mapping[str, Any],
    bounds: tuple[int, int],
    patch_size: int = 14,
    mean: Sequence[float] = CLIP[0],
    std: Sequence[float] = CLIP[1],
) -> dict[str, Any]:
    """Return the options of a processor of patches that a published file states.

    Args:
        values: the content of the file.
        bounds: ints, `min_pixels` and `max_pixels` if it has none.
        patch_size: int, if it has none.
        mean: three numbers, if it has none.
        std: three numbers, if it has none.

    Raises:
        ValueError: if it does not resize images to bounds of their pixels.
    """
    size = values.get("size") or {}
    if not isinstance(size, Mapping) or not values.get("do_resize", True):
        raise ValueError(
            "`size` must hold 'shortest_edge' and 'longest_edge', and do_resize be true, "
            f"received {shorten(size)} and {shorten(values.get('do_resize', True))}."
        )
    rescales, normalizes = (values.get(f"do_{n}", True) for n in ("rescale", "normalize"))
    return {
        # Old files give the bounds by themselves.
        "min_pixels": values.get("min_pixels") or size.get("shortest_edge") or bounds[0],
        "max_pixels": values.get("max_pixels") or size.get("longest_edge") or bounds[1],
        "patch_size": values.get("patch_size", patch_size),
        "merge_size": values.get("merge_size", 2),
        "num_frames": values.get("temporal_patch_size", 2),
        "resample": values.get("resample", _BICUBIC),
        "rescale_factor": values.get("rescale_factor", 1 / 255) if rescales else None,
        "mean": values.get("image_mean", mean) if normalizes else None,
        "std": values.get("image_std", std) if normalizes else None,
    }


def fitted(
    height: int, width: int, square: int, least: int, most: int, frames: int = 1, counted: int = 1
) -> tuple[int, int]:
    """Return the sides of an image in whole squares, so that it has neither few nor many pixels.

    Args:
        height: int, of the image.
        width: int, of the image.
        square: int, height and width of a square.
        least: int, the fewest pixels.
        most: int, the most pixels, unless one square has more.
        frames: int, number of frames whose pixels are counted, for a video.
        counted: int, this number rounded to whole pairs, by which it is found out of bounds.

    Raises:
        ValueError: if the image is more than 200 times as long as wide.
    """
    short, long = sorted((height, width))
    if long > _MOST_ASPECT * short:
        raise ValueError(
            f"An image of {height:,} x {width:,} pixels is more than {_MOST_ASPECT} times as "
            "long as wide. Crop it, or cut it into several images."
        )
    found = [round(side / square) * square for side in (height, width)]
    if counted * math.prod(found) > most:
        shrunk = math.sqrt(frames * height * width / most)
        sides = (math.floor(side / shrunk / square) * square for side in (height, width))
        found = [max(square, side) for side in sides]
    elif counted * math.prod(found) < least:
        grown = math.sqrt(least / (frames * height * width))
        found = [math.ceil(side * grown / square) * square for side in (height, width)]
    return found[0], found[1]


def _placed(rows: Sequence, places: Sequence[int]) -> list[tuple[Any, str]]:
    """Return images, each with its name in errors."""
    return [(row, f"x[{i}]") for i, row in zip(places, rows, strict=True)]


def _by_squares(grid: np.ndarray, window: tuple[int, int], merge: int) -> np.ndarray:
    """Return `(rows, columns, ...)` as `(rows * columns, ...)`: windows, and in them squares."""
    (high, wide), (rows, columns) = window, grid.shape[:2]
    sizes = (rows // high, high // merge, merge, columns // wide, wide // merge, merge)
    rest = tuple(range(6, 6 + grid.ndim - 2))
    cut = grid.reshape(*sizes, *grid.shape[2:]).transpose(0, 3, 1, 4, 2, 5, *rest)
    return cut.reshape(rows * columns, *grid.shape[2:])


ImageProcessor.subclasses["Qwen2VL"] = PatchSequenceProcessor
