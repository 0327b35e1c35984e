"""`SoftTokenProcessor`: images of any aspect ratio as patches, with a budget of states each."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.config import TransformerConfig
from keras_transformer.processors.image import ImageProcessor
from keras_transformer.processors.patch_sequences import PatchSequenceProcessor
from keras_transformer.support.checking import check_int, shorten

_BICUBIC, _HALF = 3, (0.5,) * 3


class SoftTokenProcessor(PatchSequenceProcessor):
    """Convert images of any aspect ratio to sequences of patches, as Gemma 4 reads them.

    An image is scaled, up or down, until it has as many states (soft tokens) as `max_soft_tokens`
    allows; both sides are rounded down to whole squares of patches. The options are the values of
    `preprocessor_config.json`, and `save` writes the same file; what the published model does to
    the pixels itself, `2 * (x - 0.5)`, is in `mean` and `std` here.

    Args:
        max_soft_tokens: int, the most states of an image. Published models know 70, 140, 280, 560
            and 1,120.
        patch_size: int, height and width of a patch.
        merge_size: int, rows and columns of a square of patches that becomes one state.
        resample, rescale_factor, mean, std: as for `ImageProcessor`.
        videos: `SoftTokenVideoProcessor`, which reads the videos of conversations, or None if they
            have none. It is saved in a file of its own, `video_preprocessor_config.json`.
        sounds: `SoftTokenSoundProcessor`, which reads the recordings of conversations, or None if
            they have none. It is saved in a file of its own, `processor_config.json`.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    processor = kt.processors.SoftTokenProcessor(max_soft_tokens=12, patch_size=4, merge_size=2)
    images = [np.zeros((20, 60, 3), "uint8"), np.zeros((30, 30, 3), "uint8")]
    assert [processor.resized(image) for image in images] == [(16, 48), (24, 24)]
    assert [processor.num_states(image) for image in images] == [12, 9]
    ```

    Source: Google DeepMind 2026, https://ai.google.dev/gemma/docs/core/model_card_4; Dehghani et
    al. 2023, "Patch n' Pack: NaViT".
    """

    def __init__(
        self,
        max_soft_tokens: int = 280,
        patch_size: int = 16,
        merge_size: int = 3,
        resample: int = _BICUBIC,
        rescale_factor: float | None = 1 / 255,
        mean: Sequence[float] | None = _HALF,
        std: Sequence[float] | None = _HALF,
        videos: Any = None,
        sounds: Any = None,
    ):
        self.max_soft_tokens = check_int("max_soft_tokens", max_soft_tokens, 1, 2**16)
        square = check_int("patch_size", patch_size, 1, 4096) * check_int(
            "merge_size", merge_size, 1, 2**10
        )
        super().__init__(
            min_pixels=1, max_pixels=max_soft_tokens * square**2, patch_size=patch_size,
            merge_size=merge_size, num_frames=1, resample=resample, rescale_factor=rescale_factor,
            mean=mean, std=std, family="Gemma4", videos=videos,
        )  # fmt: skip
        self.sounds = self._checked_sounds(sounds)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        return within_budget(height, width, self.square, self.max_soft_tokens)

    def token_values(self) -> dict[str, str]:
        parts = {"video_token_id": self.videos, "audio_token_id": self.sounds}
        return {name: part.token for name, part in parts.items() if part is not None}

    def with_files_of(self, directory: str) -> "SoftTokenProcessor":
        super().with_files_of(directory)
        if self.sound_class.is_in(directory):
            self.sounds = self.sound_class.from_files(directory)
        return self

    def check(self, config: TransformerConfig) -> None:
        super().check(config)
        # Published folders describe the sounds for models that cannot hear too.
        if config.sound is not None and self.sounds is not None:
            self.sounds.check(config)
        known = config.sides[0].stem.axis_positions
        for kind, each in {"An image": self, "A frame": self.videos}.items():
            longest = 0 if each is None else each.max_soft_tokens * each.merge_size
            if known is not None and longest > known:
                raise ValueError(
                    f"{kind} of `max_soft_tokens`={each.max_soft_tokens:,} may have {longest:,} "
                    f"patches in rows or columns, and the model has {known:,} positions."
                )

    def values(self) -> dict[str, Any]:
        values = super().values()
        own = ("temporal_patch_size", "merge_size", "size", "do_center_crop")
        values = {name: value for name, value in values.items() if name not in own}
        return (
            values
            | published_pixels(self)
            | {
                "max_soft_tokens": self.max_soft_tokens,
                "pooling_kernel_size": self.merge_size,
            }
        )

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "SoftTokenProcessor":
        return cls(**soft_token_options(values, 280, normalizes=False))


def within_budget(height: int, width: int, square: int, most: int) -> tuple[int, int]:
    """Return the largest sides in whole squares, of about an image's aspect ratio.

    Args:
        height: int, of the image.
        width: int, of the image.
        square: int, height and width of a square.
        most: int, the most squares.

    Raises:
        ValueError: if the image is so long and narrow that no square fits.
    """
    scale = math.sqrt(most * square**2 / (height * width))
    rows, columns = (math.floor(scale * side / square) for side in (height, width))
    if not rows and not columns:
        raise ValueError(f"No square of {square} x {square} pixels fits into {most} of them.")
    if not rows:
        rows, columns = 1, min(width // height, most)
    elif not columns:
        rows, columns = min(height // width, most), 1
    return rows * square, columns * square


def soft_token_options(values: Mapping[str, Any], tokens: int, normalizes: bool) -> dict[str, Any]:
    """Return the options that a published file states.

    Args:
        values: the content of the file.
        tokens: int, `max_soft_tokens` if it has none.
        normalizes: bool, `do_normalize` if it has none.

    Raises:
        ValueError: if it does not resize, or its mean and deviation are no three numbers.
    """
    if not values.get("do_resize", True):
        raise ValueError(f"do_resize={shorten(values['do_resize'])} is not supported here.")
    mean, std = (0.0,) * 3, (1.0,) * 3
    if values.get("do_normalize", normalizes):
        given = (
            values.get(f"image_{name}", usual) for name, usual in (("mean", mean), ("std", std))
        )
        checked = ImageProcessor(None, None, **dict(zip(("mean", "std"), given, strict=True)))
        mean, std = checked.mean or mean, checked.std or std
    return {
        "max_soft_tokens": values.get("max_soft_tokens", tokens),
        "patch_size": values.get("patch_size", 16),
        "merge_size": values.get("pooling_kernel_size", 3),
        "resample": values.get("resample", _BICUBIC),
        "rescale_factor": (
            values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else None
        ),
        "mean": [m + s / 2 for m, s in zip(mean, std, strict=True)],
        "std": [s / 2 for s in std],
    }


def published_pixels(processor: PatchSequenceProcessor) -> dict[str, Any]:
    """Return the published values of the mean and the deviation of pixels, the reverse of these."""
    pairs = zip(processor.mean or (0.0,) * 3, processor.std or (1.0,) * 3, strict=True)
    mean, std = zip(*((m - s, 2 * s) for m, s in pairs), strict=True)
    plain = (mean, std) == ((0.0,) * 3, (1.0,) * 3)
    return {"do_normalize": not plain, "image_mean": list(mean), "image_std": list(std)}


ImageProcessor.subclasses["Gemma4"] = SoftTokenProcessor
