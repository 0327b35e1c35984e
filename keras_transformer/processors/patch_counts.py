"""`PatchCountProcessor`: images of any aspect ratio as sequences of few enough patches."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.processors.image import ImageProcessor
from keras_transformer.processors.patch_sequences import PatchSequenceProcessor
from keras_transformer.support.checking import check_int, shorten

_BILINEAR, _HALF = 2, ((0.5,) * 3, (0.5,) * 3)
# Where the search of a scale begins and ends, and how fine it is.
_SCALES, _STEP = (1e-6, 100.0), 1e-5


class PatchCountProcessor(PatchSequenceProcessor):
    """Convert images of any aspect ratio to sequences of patches, as SigLIP 2 (NaFlex) reads them.

    An image is scaled, up or down, until it has as many patches as `max_num_patches` allows; both
    sides are rounded up to whole patches. The options are the values of `preprocessor_config.json`,
    and `save` writes the same file.

    Args:
        max_num_patches: int, the most patches of an image, to which batches are padded.
        patch_size: int, height and width of a patch.
        resample, rescale_factor, mean, std: as for `ImageProcessor`.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    processor = kt.processors.PatchCountProcessor(max_num_patches=12, patch_size=4)
    images = [np.zeros((20, 60, 3), "uint8"), np.zeros((30, 30, 3), "uint8")]
    assert [processor.resized(image) for image in images] == [(8, 24), (12, 12)]
    arrays = processor.arrays(images)
    assert arrays["patches"].shape == (2, 12, 4 * 4 * 3)
    assert (arrays["patch_positions"][..., 0] >= 0).sum(axis=1).tolist() == [12, 9]
    ```

    Source: Tschannen et al. 2025, "SigLIP 2", section 2.4.2; Beyer et al. 2023, "FlexiViT";
    Dehghani et al. 2023, "Patch n' Pack: NaViT".
    """

    video_class = None

    def __init__(
        self,
        max_num_patches: int = 256,
        patch_size: int = 16,
        resample: int = _BILINEAR,
        rescale_factor: float | None = 1 / 255,
        mean: Sequence[float] | None = _HALF[0],
        std: Sequence[float] | None = _HALF[1],
    ):
        self.max_num_patches = check_int("max_num_patches", max_num_patches, 1, 2**13)
        size = check_int("patch_size", patch_size, 1, 2**12)
        super().__init__(
            min_pixels=1, max_pixels=max_num_patches * size**2, patch_size=size, merge_size=1,
            num_frames=1, resample=resample, rescale_factor=rescale_factor, mean=mean, std=std,
            family="Siglip2",
        )  # fmt: skip

    def _length(self, longest: int) -> int:
        return self.max_num_patches

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        low, high = _SCALES
        while high - low >= _STEP:
            middle = (low + high) / 2
            if math.prod(self._scaled(middle, height, width)) <= self.max_num_patches:
                low = middle
            else:
                high = middle
        rows, columns = self._scaled(low, height, width)
        return rows * self.patch_size, columns * self.patch_size

    def _scaled(self, scale: float, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of the patches of an image at a scale."""
        rows, columns = (
            max(1, math.ceil(side * scale / self.patch_size)) for side in (height, width)
        )
        return rows, columns

    def values(self) -> dict[str, Any]:
        values = super().values()
        own = ("temporal_patch_size", "merge_size", "size")
        return {name: value for name, value in values.items() if name not in own} | {
            "max_num_patches": self.max_num_patches
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "PatchCountProcessor":
        if not values.get("do_resize", True):
            raise ValueError(f"do_resize={shorten(values['do_resize'])} is not supported here.")
        rescales, normalizes = (values.get(f"do_{n}", True) for n in ("rescale", "normalize"))
        return cls(
            max_num_patches=values.get("max_num_patches", 256),
            patch_size=values.get("patch_size", 16),
            resample=values.get("resample", _BILINEAR),
            rescale_factor=values.get("rescale_factor", 1 / 255) if rescales else None,
            mean=values.get("image_mean", _HALF[0]) if normalizes else None,
            std=values.get("image_std", _HALF[1]) if normalizes else None,
        )


ImageProcessor.subclasses["Siglip2"] = PatchCountProcessor
