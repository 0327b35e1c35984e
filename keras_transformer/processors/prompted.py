"""`PromptedImageProcessor`: images padded to a square, and the places of prompts on them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.processors.image import _BILINEAR, _IMAGENET, ImageProcessor
from keras_transformer.processors.image_files import is_one_image
from keras_transformer.support.checking import check_int, shorten

# Rows and columns of mask logits for each row and column of a published image.
_LOW = 4


class PromptedImageProcessor(ImageProcessor):
    """Resize images so that their longest side is `size`, normalize and pad them to a square (SAM).

    The options are the values of `preprocessor_config.json`, and `save` writes the same file.
    Padding is zeros, below and on the right.

    Args:
        size: int, height and width of the square.
        resample, rescale_factor, mean, std: as for `ImageProcessor`.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    processor = kt.processors.PromptedImageProcessor(size=32)
    images = processor([np.zeros((10, 20, 3), "uint8"), np.full((40, 8, 3), 255, "uint8")])
    assert images.shape == (2, 32, 32, 3) and not images[0, 16:].any()
    assert processor.resized_size((10, 20)) == (16, 32)
    assert np.array_equal(processor.places([[10, 5]], (10, 20)), [[16, 8]])
    ```

    Source: Kirillov et al. 2023, "Segment Anything", appendix A.
    """

    def __init__(
        self,
        size: int = 1024,
        resample: int = _BILINEAR,
        rescale_factor: float | None = 1 / 255,
        mean: Sequence[float] | None = _IMAGENET[0],
        std: Sequence[float] | None = _IMAGENET[1],
    ):
        self.side = check_int("size", size, 1, 2**12)
        super().__init__(
            size=self.side, resample=resample, rescale_factor=rescale_factor, mean=mean, std=std,
            family="Sam",
        )  # fmt: skip

    @classmethod
    def takes(cls, x: Any) -> bool:
        """Return whether `x` is images, or a pair of images and their prompts."""
        return super().takes(x[0] if isinstance(x, tuple) and len(x) == 2 else x)

    @classmethod
    def stream(cls, task, data, batch_size=None, steps=None, **options):
        pair = isinstance(data, tuple)
        return data if pair else super().stream(task, data, batch_size, steps, **options)

    @classmethod
    def load_dataset(cls, task, data, options):
        return data if isinstance(data, tuple) else super().load_dataset(task, data, options)

    def resized_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width of a resized image, without padding.

        Args:
            size: ints, height and width of the image.
        """
        scale = self.side * 1.0 / max(size)
        height, width = (max(int(n * scale + 0.5), 1) for n in size)
        return height, width

    def _resized(self, height, width):
        return self.resized_size((height, width))

    def __call__(self, images: Any, places: Sequence[int] | None = None) -> np.ndarray:
        """Return the images as one array, float32 `(batch, size, size, 3)`.

        Args:
            images: as for `ImageProcessor`.
            places: as for `ImageProcessor`.

        Raises:
            ValueError: if an input is not an image; the message has its row number.
        """
        rows = [images] if is_one_image(images) else self.rows(images)
        places = range(len(rows)) if places is None else places
        made = np.zeros((len(rows), self.side, self.side, 3), "float32")
        for i, (row, place) in enumerate(zip(rows, places, strict=True)):
            pixels = self.pixels(row, f"x[{place}]")
            made[i, : pixels.shape[0], : pixels.shape[1]] = self.normalized(pixels)
        return made

    def places(self, places: Any, size: tuple[int, int]) -> np.ndarray:
        """Return where places of an image are on the resized one, float32 `(..., 2)`.

        Args:
            places: numbers `(..., 2)`, x and y in pixels.
            size: ints, height and width of the image.
        """
        height, width = self.resized_size(size)
        scales = np.array([width / size[1], height / size[0]])
        return (np.asarray(places, "float64") * scales).astype("float32")

    def check(self, config: TransformerConfig) -> None:
        super().check(config)
        size = tuple(config.sides[0].stem.image_size)
        if size != (self.side, self.side):
            raise ValueError(
                f"The processor makes images of {self.side} x {self.side} pixels, and the model "
                f"reads {' x '.join(map(str, size))}: give it `size={size[0]}`."
            )

    def values(self) -> dict[str, Any]:
        """Return the content of `preprocessor_config.json`."""
        low = max(self.side // _LOW, 1)
        return {
            **super().values(),
            "size": {"longest_edge": self.side},
            "do_pad": True,
            "pad_size": {"height": self.side, "width": self.side},
            "mask_size": {"longest_edge": low},
            "mask_pad_size": {"height": low, "width": low},
            "processor_class": "SamProcessor",
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "PromptedImageProcessor":
        """Return the processor described by a `preprocessor_config.json`.

        Raises:
            ValueError: if the class is another, or a value is not supported.
        """
        named = values.get("image_processor_type") or "SamImageProcessor"
        family = str(named).removesuffix("Pil").removesuffix("Fast")
        if family != "SamImageProcessor":
            raise ValueError(
                f"Prompts are on images of a 'SamImageProcessor', received {shorten(named)}."
            )
        for name in ("do_resize", "do_pad", "do_rescale", "do_normalize"):
            if values.get(name, True) is not True:
                raise ValueError(f"{name}={shorten(values[name])} is not supported, only true.")
        size = values.get("size", {"longest_edge": 1024})
        edge = size.get("longest_edge") if isinstance(size, Mapping) else size
        padded = values.get("pad_size", {"height": edge, "width": edge})
        sides = list(padded.values()) if isinstance(padded, Mapping) else [padded]
        if edge is None or any(side not in (edge, None) for side in sides):
            raise ValueError(
                f"size={shorten(size)} with pad_size={shorten(padded)} is not supported, only a "
                "longest edge and a square of it."
            )
        return cls(
            size=edge,
            resample=values.get("resample", _BILINEAR),
            rescale_factor=values.get("rescale_factor", 1 / 255),
            mean=values.get("image_mean", _IMAGENET[0]),
            std=values.get("image_std", _IMAGENET[1]),
        )


ImageProcessor.subclasses["Sam"] = PromptedImageProcessor
