"""`ImageProcessor`: images to arrays of one size, as published models expect them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.checking import check_bool, check_int, describe, is_number, shorten
from keras_transformer.config import TransformerConfig
from keras_transformer.processors.image_files import is_one_image, open_image
from keras_transformer.processors.media import MediaProcessor
from keras_transformer.processors.packages import pillow

_HALF, _IMAGENET = ((0.5,) * 3, (0.5,) * 3), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_NEAREST, _LANCZOS, _BILINEAR, _BICUBIC = range(4)
# What a class of Transformers takes where a file does not say it: size, crop, resample, values.
_DEFAULTS: dict[str, tuple] = {
    "ViT": (224, None, _BILINEAR, _HALF),
    "DeiT": (256, 224, _BICUBIC, _HALF),
    "Beit": (224, None, _BICUBIC, _HALF),
    "CLIP": ({"shortest_edge": 224}, 224, _BICUBIC, _CLIP),
    "Siglip": (224, None, _BICUBIC, _HALF),
    "Bit": ({"shortest_edge": 224}, 224, _BICUBIC, _CLIP),
    "Blip": (384, None, _BICUBIC, _CLIP),
}


# Pixels that an image may have once it is resized and cropped, and on the way there: 4096 x 4096.
MOST_PIXELS = 2**24


class ImageProcessor(MediaProcessor):
    """Images to float32 arrays: resized, cropped, scaled to 0 to 1 and normalized, each if wanted.

    The values are those of `preprocessor_config.json`, by which published models say how their
    images were made, and so is the file that it writes.

    Args:
        size: what an image is resized to: an int for a square, `(height, width)`,
            `{"height": ..., "width": ...}`, or `{"shortest_edge": ...}`, which keeps its shape.
            None for no resizing.
        crop_size: an int or height and width that are cut from the middle. None for no crop.
        resample: int, how pixels are interpolated, as Pillow counts: 0 nearest, 2 bilinear, 3
            bicubic.
        rescale_factor: float that pixels of 0 to 255 are multiplied with. None for none.
        mean, std: a float for each channel, subtracted and divided by then. None for none.
        family: str, whose class of Transformers the file names, such as `"ViT"`.

    Raises:
        ValueError: for values out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    processor = kt.ImageProcessor(size=32)
    images = processor([np.zeros((40, 60, 3), "uint8"), np.full((8, 8), 255, "uint8")])
    assert images.shape == (2, 32, 32, 3) and images.min() == -1 and images.max() == 1
    ```
    """

    kind = "image processor"
    raw = "images"
    part = "image_processor"
    unit = "image"
    feature = "Image"
    column_names = ("image", "images", "img", "image_path", "path", "file", "file_name")

    def __init__(
        self,
        size: int | Sequence | Mapping | None = 224,
        crop_size: int | Sequence | Mapping | None = None,
        resample: int = _BILINEAR,
        rescale_factor: float | None = 1 / 255,
        mean: Sequence[float] | None = _HALF[0],
        std: Sequence[float] | None = _HALF[1],
        family: str = "ViT",
    ):
        self.size = None if size is None else _size("size", size, shortest=True)
        self.crop_size = None if crop_size is None else _size("crop_size", crop_size)
        self.resample = check_int("resample", resample, 0, 5)
        if rescale_factor is not None and not is_number(rescale_factor):
            raise ValueError(
                f"`rescale_factor` must be a number or None, received {describe(rescale_factor)}."
            )
        self.rescale_factor = rescale_factor
        if (mean is None) != (std is None):
            raise ValueError("`mean` and `std` go together: give both, or None for both.")
        self.mean, self.std = _channels("mean", mean), _channels("std", std)
        if self.std is not None and min(self.std) <= 0:
            raise ValueError(f"`std` must be above 0, received {self.std}.")
        self.family = family

    @staticmethod
    def is_one(x: Any) -> bool:
        """Whether `x` is a single image."""
        return is_one_image(x)

    @classmethod
    def like(cls, batch: Any, first: Any) -> Any:
        """Convert floats to uint8 if the first batch goes beyond 1, so that they are from 0 to 255.

        So those of `keras.utils.image_dataset_from_directory` are, which resizes.
        """
        to_255 = isinstance(first, np.ndarray) and first.dtype.kind == "f" and first.max() > 1
        if not to_255 or not np.isfinite(batch).all():
            return batch
        return np.clip(np.rint(batch), 0, 255).astype("uint8")

    def __call__(self, images: Any, places: Sequence[int] | None = None) -> np.ndarray:
        """The images as one array.

        Args:
            images: a list, an array or a column of what `processors.image_files.read_image` takes;
                or one of them.
            places: their numbers in what errors call `x`. Defaults to 0, 1, 2, ...

        Returns:
            Float32 `(batch, height, width, 3)`.

        Raises:
            ValueError: for what is no image, with its place; or if their sizes differ and nothing
                makes them one.
        """
        rows = [images] if is_one_image(images) else self.rows(images)
        places = range(len(rows)) if places is None else places
        made = [self._one(row, f"x[{i}]") for i, row in zip(places, rows, strict=True)]
        shapes = {array.shape for array in made}
        if len(shapes) > 1:
            raise ValueError(
                f"The images have {len(shapes)} sizes, such as {sorted(shapes)[:2]}. Give the "
                "processor a `size`, or a `crop_size`."
            )
        array = np.stack(made).astype("float32")
        if self.rescale_factor is not None:
            array *= np.float32(self.rescale_factor)
        if self.mean is not None:
            array -= np.asarray(self.mean, "float32")
            array /= np.asarray(self.std, "float32")
        return array

    def _one(self, given: Any, place: str) -> np.ndarray:
        """Resize and crop an image, uint8 `(height, width, 3)`."""
        image = open_image(given, place)
        of_array = isinstance(image, np.ndarray)
        height, width = image.shape[:2] if of_array else (image.height, image.width)
        wanted = self._resized(height, width)
        crop = self.crop_size or {"height": wanted[0], "width": wanted[1]}
        most = max(wanted if self.size is not None else (0, 0), crop.values(), key=math.prod)
        if math.prod(most) > MOST_PIXELS:
            raise ValueError(
                f"`{place}` has {height:,} x {width:,} pixels, of which the processor would make "
                f"{' x '.join(f'{n:,}' for n in most)}, and it makes at most {MOST_PIXELS:,}. Cut "
                "what is longer than it is wide, or give the processor a smaller `size`."
            )
        if wanted != (height, width):
            image = pillow().fromarray(image) if of_array else image
            image = image.resize(wanted[::-1], resample=self.resample)
        if isinstance(image, np.ndarray):
            return _padded(image[_middle(wanted, crop)], crop)
        rows, columns = _middle(wanted, crop)
        image = image.crop((columns.start, rows.start, columns.stop, rows.stop))
        return _padded(np.asarray(image.convert("RGB")), crop)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that an image is resized to."""
        if self.size is None:
            return height, width
        if "shortest_edge" not in self.size:
            return self.size["height"], self.size["width"]
        edge = self.size["shortest_edge"]
        longest = int(edge * max(height, width) / min(height, width))
        return (edge, longest) if height <= width else (longest, edge)

    def check(self, config: TransformerConfig) -> None:
        if getattr(config.sides[0].stem, "image_size", None) is None:
            raise ValueError(
                "An ImageProcessor belongs to a model whose config has a `stem` of images."
            )

    def values(self) -> dict[str, Any]:
        """The content of `preprocessor_config.json`."""
        values: dict[str, Any] = {
            "image_processor_type": f"{self.family}ImageProcessor",
            "do_convert_rgb": True,
            "do_resize": self.size is not None,
            "resample": self.resample,
            "do_center_crop": self.crop_size is not None,
            "do_rescale": self.rescale_factor is not None,
            "do_normalize": self.mean is not None,
        }
        further = {
            "size": self.size, "crop_size": self.crop_size, "rescale_factor": self.rescale_factor,
            "image_mean": self.mean, "image_std": self.std,
        }  # fmt: skip
        return values | {name: value for name, value in further.items() if value is not None}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "ImageProcessor":
        """The processor of the content of a `preprocessor_config.json`.

        Raises:
            ValueError: for a class that is not known, or values out of range.
        """
        named = values.get("image_processor_type") or values.get("feature_extractor_type") or "ViT"
        family = str(named)
        for end in ("Pil", "Fast", "ImageProcessor", "FeatureExtractor"):
            family = family.removesuffix(end)
        if family not in _DEFAULTS:
            raise ValueError(
                f"Images for {shorten(named)} are not supported, only for "
                f"{', '.join(map(repr, _DEFAULTS))}."
            )
        size, crop, resample, (mean, std) = _DEFAULTS[family]
        given = values.get("size", size)
        if isinstance(given, int) and isinstance(size, dict):  # of old
            given = {"shortest_edge": given}
        crop = values.get("crop_size", crop)
        has = {name: values.get(f"do_{name}", True) for name in ("resize", "rescale", "normalize")}
        has["center_crop"] = values.get("do_center_crop", _DEFAULTS[family][1] is not None)
        for name, value in has.items():
            check_bool(f"do_{name}", value)
        return cls(
            size=given if has["resize"] else None,
            crop_size=crop if has["center_crop"] else None,
            resample=values.get("resample", resample),
            rescale_factor=values.get("rescale_factor", 1 / 255) if has["rescale"] else None,
            mean=values.get("image_mean", mean) if has["normalize"] else None,
            std=values.get("image_std", std) if has["normalize"] else None,
            family=family,
        )


def _size(name: str, given: Any, shortest: bool = False) -> dict[str, int]:
    """Height and width by name, or the shortest edge."""
    if isinstance(given, int) and not isinstance(given, bool):
        given = (given, given)
    if isinstance(given, (list, tuple)) and len(given) == 2:
        given = {"height": given[0], "width": given[1]}
    known = ({"height", "width"}, {"shortest_edge"}) if shortest else ({"height", "width"},)
    values = {n: v for n, v in given.items() if v is not None} if isinstance(given, Mapping) else {}
    if values.keys() not in known:
        edge = ", or {'shortest_edge': ...}" if shortest else ""
        raise ValueError(
            f"`{name}` must be a number, (height, width){edge}, received {shorten(given)}."
        )
    values = {n: check_int(f"{name}[{n!r}]", v, 1, 2**15) for n, v in values.items()}
    if math.prod(values.values()) ** (2 if len(values) == 1 else 1) > MOST_PIXELS:
        raise ValueError(f"`{name}` is {values}: an image may be made {MOST_PIXELS:,} pixels.")
    return values


def _channels(name: str, given: Any) -> list[float] | None:
    if given is None:
        return None
    values = [given] * 3 if is_number(given) else given
    fits = isinstance(values, (list, tuple)) and len(values) == 3 and all(map(is_number, values))
    if not fits:
        raise ValueError(
            f"`{name}` must be three numbers, one a channel, received {shorten(given)}."
        )
    return [float(value) for value in values]


def _middle(size: tuple[int, int], crop: Mapping[str, int]) -> tuple[slice, slice]:
    """Return the middle rows and columns of an image: all of them if the crop has more."""
    rows, columns = size
    height, width = min(crop["height"], rows), min(crop["width"], columns)
    top, first = (rows - height) // 2, (columns - width) // 2
    return slice(top, top + height), slice(first, first + width)


def _padded(pixels: np.ndarray, crop: Mapping[str, int]) -> np.ndarray:
    """Pad an image that is smaller than the crop with zeros."""
    above, left = crop["height"] - pixels.shape[0], crop["width"] - pixels.shape[1]
    if not above and not left:
        return pixels
    # As Transformers does, the larger half in front.
    before = ((above + 1) // 2, (left + 1) // 2)
    return np.pad(pixels, ((before[0], above - before[0]), (before[1], left - before[1]), (0, 0)))
