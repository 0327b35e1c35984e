"""`PatchRowProcessor`: images of any size as patches, whose rows end with a token in the text."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.processors.image import CLIP, ImageProcessor
from keras_transformer.processors.media import OF_ALL_PARTS
from keras_transformer.processors.patch_sequences import PatchSequenceProcessor
from keras_transformer.processors.tiling import Layout
from keras_transformer.support.checking import check_int, check_text, shorten
from keras_transformer.support.files import write_text

_BICUBIC = 3


class PatchRowProcessor(PatchSequenceProcessor):
    """Convert images of any size to sequences of patches, as Pixtral and Mistral 3 read them.

    An image whose height or width is above `longest_edge` is made smaller, in its proportions. Then
    both sides are rounded up to whole squares of patches. In a text, a token follows the states of
    each row of squares. The options are the values of `preprocessor_config.json` and, for the
    squares and the tokens, of `processor_config.json`; `save` writes the same files.

    Args:
        longest_edge: int, height and width of an image at most, before they are rounded up.
        patch_size: int, height and width of a patch.
        merge_size: int, rows and columns of a square of patches that becomes one state.
        row_end: str, the token behind each row of squares except the last.
        image_end: str, the token behind the last row.
        resample, rescale_factor, mean, std: as for `ImageProcessor`.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    processor = kt.processors.PatchRowProcessor(longest_edge=32, patch_size=4, merge_size=2)
    image = np.zeros((23, 31, 3), "uint8")  # becomes 24 x 32
    assert processor.num_states(image) == 3 * 4
    (layout,) = processor.layouts([image], (0, 0))
    assert [len(run) for run in layout.runs] == [4, 4, 4]
    assert layout.text == "{image}[IMG_BREAK]{image}[IMG_BREAK]{image}[IMG_END]"
    ```

    Source: Agrawal et al. 2024, "Pixtral 12B", section 2.2.
    """

    video_class = None
    outer_values = ("patch_size", "spatial_merge_size", "image_break_token", "image_end_token")

    def __init__(
        self,
        longest_edge: int = 1024,
        patch_size: int = 16,
        merge_size: int = 1,
        row_end: str = "[IMG_BREAK]",
        image_end: str = "[IMG_END]",
        resample: int = _BICUBIC,
        rescale_factor: float | None = 1 / 255,
        mean: Sequence[float] | None = CLIP[0],
        std: Sequence[float] | None = CLIP[1],
    ):
        self.longest_edge = check_int("longest_edge", longest_edge, 1, 4096)
        square = check_int("patch_size", patch_size, 1, 4096) * check_int(
            "merge_size", merge_size, 1, 2**10
        )
        longest = -(-self.longest_edge // square) * square
        super().__init__(
            min_pixels=1, max_pixels=longest**2, patch_size=patch_size, merge_size=merge_size,
            num_frames=1, resample=resample, rescale_factor=rescale_factor, mean=mean, std=std,
            family="Pixtral",
        )  # fmt: skip
        self.row_end = check_text("row_end", row_end)
        self.image_end = check_text("image_end", image_end)

    def layouts(
        self, images: Sequence, states: tuple[int, int], places: Sequence[str] | None = None
    ) -> list[Layout]:
        places = [f"image {i}" for i in range(1, len(images) + 1)] if places is None else places
        found = []
        for image, place in zip(images, places, strict=True):
            rows, columns = (side // self.square for side in self.resized(image, place))
            runs = tuple(np.arange(rows * columns).reshape(rows, columns))
            text = self.row_end.join(["{image}"] * rows) + self.image_end
            found.append(Layout((0, 0), 1, runs, text))
        return found

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        ratio = max(height, width) / self.longest_edge
        sides = [height, width] if ratio <= 1 else [math.floor(n / ratio) for n in (height, width)]
        if min(sides) < 1:
            raise ValueError(
                f"An image of {height:,} x {width:,} pixels is more than {self.longest_edge:,} "
                "times as long as wide. Crop it, or cut it into several images."
            )
        rows, columns = (-(-side // self.square) * self.square for side in sides)
        return rows, columns

    def values(self) -> dict[str, Any]:
        values = super().values()
        own = ("temporal_patch_size", "merge_size")
        return {name: value for name, value in values.items() if name not in own} | {
            "size": {"longest_edge": self.longest_edge},
            "patch_size": {"height": self.patch_size, "width": self.patch_size},
        }

    def save(self, directory: str) -> None:
        super().save(directory)
        values = {
            "processor_class": "PixtralProcessor",
            "patch_size": self.patch_size,
            "spatial_merge_size": self.merge_size,
            "image_break_token": self.row_end,
            "image_end_token": self.image_end,
        }
        write_text(Path(directory, OF_ALL_PARTS), json.dumps(values, indent=2) + "\n")

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "PatchRowProcessor":
        size, patch = values.get("size") or {}, values.get("patch_size", 16)
        known = isinstance(size, Mapping) and size.keys() <= {"longest_edge"}
        if not known or not values.get("do_resize", True):
            raise ValueError(
                "`size` must hold 'longest_edge' alone, and do_resize be true, received "
                f"{shorten(size)} and {shorten(values.get('do_resize', True))}."
            )
        if isinstance(patch, Mapping):
            if patch.get("height") != patch.get("width"):
                raise ValueError(f"`patch_size` must be a square, received {shorten(patch)}.")
            patch = patch.get("height")
        rescales, normalizes = (values.get(f"do_{n}", True) for n in ("rescale", "normalize"))
        return cls(
            longest_edge=size.get("longest_edge", 1024),
            patch_size=patch,
            merge_size=values.get("spatial_merge_size", 1),
            row_end=values.get("image_break_token", "[IMG_BREAK]"),
            image_end=values.get("image_end_token", "[IMG_END]"),
            resample=values.get("resample", _BICUBIC),
            rescale_factor=values.get("rescale_factor", 1 / 255) if rescales else None,
            mean=values.get("image_mean", CLIP[0]) if normalizes else None,
            std=values.get("image_std", CLIP[1]) if normalizes else None,
        )


ImageProcessor.subclasses["Pixtral"] = PatchRowProcessor
