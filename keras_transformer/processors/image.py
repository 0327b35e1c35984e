"""`ImageProcessor`: converts images to arrays of one size, as published models expect them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.processors.audio_files import Sound
from keras_transformer.processors.image_files import image_size, is_one_image, open_image
from keras_transformer.processors.media import MediaProcessor
from keras_transformer.processors.packages import pillow
from keras_transformer.processors.tiling import Layout, Resolutions, Splitting, Thumbnail, Tiling
from keras_transformer.processors.tiling.tiling import as_rgb
from keras_transformer.support.checking import check_bool, check_int, describe, is_number, shorten

_HALF, _IMAGENET = ((0.5,) * 3, (0.5,) * 3), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_NEAREST, _LANCZOS, _BILINEAR, _BICUBIC = range(4)
# Prefix of each Transformers class -> defaults for values that are missing in a file: size, crop
# size, resample, and (mean, std).
_DEFAULTS: dict[str, tuple] = {
    "ViT": (224, None, _BILINEAR, _HALF),
    "DeiT": (256, 224, _BICUBIC, _HALF),
    "Beit": (224, None, _BICUBIC, _HALF),
    "CLIP": ({"shortest_edge": 224}, 224, _BICUBIC, CLIP),
    "Siglip": (224, None, _BICUBIC, _HALF),
    "Bit": ({"shortest_edge": 224}, 224, _BICUBIC, CLIP),
    "Blip": (384, None, _BICUBIC, CLIP),
    "Gemma3": (224, None, _BILINEAR, _HALF),
    "DINOv3ViT": (224, None, _BILINEAR, _IMAGENET),
    "DPT": (384, None, _BICUBIC, _HALF),
    "Segformer": (512, None, _BILINEAR, _IMAGENET),
    "Yolos": ({"shortest_edge": 800, "longest_edge": 1333}, None, _BILINEAR, _IMAGENET),
    "Detr": ({"shortest_edge": 800, "longest_edge": 1333}, None, _BILINEAR, _IMAGENET),
    "RTDetr": ({"height": 640, "width": 640}, None, _BILINEAR, _IMAGENET),
    "Idefics3": (None, None, _LANCZOS, _HALF),
    "SmolVLM": (None, None, _LANCZOS, _HALF),
    "LlavaNext": (None, None, _BICUBIC, CLIP),
    "LlavaOnevision": (None, None, _BICUBIC, CLIP),
    "GotOcr2": (None, None, _BICUBIC, CLIP),  # InternVL's
}
# Classes that resize floats: resized pixels are not rounded to whole numbers.
_UNROUNDED = ("DINOv3ViT",)
# Families whose sides are rounded down to multiples of a number, if images keep their proportions.
_FLOORED = {"Yolos": 16}
# Families whose pixels are normalized only if the file says so.
_UNNORMALIZED = ("RTDetr",)
# Families that pad the images of a batch to the largest.
_PADDED = ("Yolos", "Detr")
# Families whose images are cut into tiles.
_TILINGS: dict[str, type[Tiling]] = {
    "Idefics3": Splitting,
    "SmolVLM": Splitting,
    "LlavaNext": Resolutions,
    "LlavaOnevision": Resolutions,
    "GotOcr2": Thumbnail,
}


# Key of the values of the recordings beside those of the images.
_SOUNDS = "sounds"
# Maximum pixels of an image after resizing and cropping, and in between: 4096 x 4096.
MOST_PIXELS = 2**24


class ImageProcessor(MediaProcessor):
    """Convert images to float32 arrays: resize, crop, scale to 0 to 1 and normalize, as configured.

    The options are the values of `preprocessor_config.json`, in which published models describe
    their inputs; `save` writes the same file.

    Args:
        size: size after resizing: an int for a square, `(height, width)`, `{"height": ..., "width":
            ...}`, or `{"shortest_edge": ...}`, which keeps the aspect ratio; with `"longest_edge"`
            beside it, images become smaller if their longest edge would exceed it. None disables
            resizing.
        crop_size: an int, or height and width, to crop from the center. None disables cropping.
        resample: int, interpolation of pixels in Pillow's numbering: 0 nearest, 2 bilinear, 3
            bicubic.
        rescale_factor: float, by which pixels from 0 to 255 are multiplied. None disables this.
        mean, std: float, or a list of one for each channel: rescaled pixels become
            `(x - mean) / std`. None disables this.
        family: str, prefix of the Transformers class that the file names, such as `"ViT"`. With a
            `tiling` of another class than this family's, it is that of the tiling.
        keep_aspect_ratio: bool, for a `size` of height and width: change both sides by the factor
            of the side that changes less, so that images keep their own proportions.
        multiple_of: int, round height and width after resizing to multiples of it.
        tiling: a `Tiling`, by which each image becomes one or several tiles of one size, such as
            `Splitting`; `size` is then the size of a tile. With None each image is one array.
        sounds: `SoftTokenSoundProcessor`, which reads the recordings of conversations, or None if
            they have none. It is saved in a file of its own, `processor_config.json`.

    Raises:
        ValueError: if a value is out of range, or `size` or `crop_size` do not go with the tiling.

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
    # Subclasses for images of other kinds, by the prefix of the Transformers class.
    subclasses: ClassVar[dict[str, type["ImageProcessor"]]] = {}
    # Set by the module of `SoftTokenSoundProcessor`.
    sound_class: ClassVar[Any] = None
    # Values of such a subclass that a `processor_config.json` holds beside those of the images.
    outer_values: ClassVar[tuple[str, ...]] = ()
    raw = "images"
    reads_arrays = ("images", "patches")
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
        keep_aspect_ratio: bool = False,
        multiple_of: int = 1,
        tiling: Tiling | None = None,
        sounds: Any = None,
    ):
        self.sounds = self._checked_sounds(sounds)
        self.size = None if size is None else _size("size", size, shortest=True)
        self.crop_size = None if crop_size is None else _size("crop_size", crop_size)
        self.resample = check_int("resample", resample, 0, 5)
        if rescale_factor is not None and not is_number(rescale_factor):
            raise ValueError(
                f"`rescale_factor` must be a number or None, received {describe(rescale_factor)}."
            )
        self.rescale_factor = rescale_factor
        if (mean is None) != (std is None):
            raise ValueError("`mean` and `std` go together: give both or neither.")
        self.mean, self.std = _channels("mean", mean), _channels("std", std)
        if self.std is not None and min(self.std) <= 0:
            raise ValueError(f"`std` must be above 0, received {self.std}.")
        self.family, self.tiling = family, tiling
        self.keep_aspect_ratio = check_bool("keep_aspect_ratio", keep_aspect_ratio)
        self.multiple_of = check_int("multiple_of", multiple_of, 1, 2**10)
        if (keep_aspect_ratio or multiple_of > 1) and set(self.size or {}) != {"height", "width"}:
            raise ValueError(
                "`keep_aspect_ratio` and `multiple_of` need a `size` of height and width, received "
                f"{shorten(size)}."
            )
        if tiling is None:
            return
        if _TILINGS.get(family) is not type(tiling):
            self.family = getattr(tiling, "family", family)
        if not isinstance(tiling, Tiling):
            raise ValueError(f"`tiling` must be a Tiling or None, received {describe(tiling)}.")
        if crop_size is not None or self.size != _size("size", tiling.side):
            raise ValueError(
                f"`size` must be that of a tile, {tiling.side}, and `crop_size` None, received "
                f"{self.size} and {self.crop_size}."
            )

    def _checked_sounds(self, sounds: Any) -> Any:
        if sounds is not None and not isinstance(sounds, self.sound_class or ()):
            raise ValueError(
                f"`sounds` must be a {getattr(self.sound_class, '__name__', None)} or None, "
                f"received {describe(sounds)}."
            )
        return sounds

    @staticmethod
    def is_one(x: Any) -> bool:
        """Return whether `x` is a single image."""
        return is_one_image(x)

    @classmethod
    def like(cls, batch: Any, first: Any) -> Any:
        """Convert floats to uint8 if the first batch has values above 1, so that 255 is white.

        `keras.utils.image_dataset_from_directory` returns such floats, since it resizes.
        """
        to_255 = isinstance(first, np.ndarray) and first.dtype.kind == "f" and first.max() > 1
        if not to_255 or not np.isfinite(batch).all():
            return batch
        return np.clip(np.rint(batch), 0, 255).astype("uint8")

    def __call__(self, images: Any, places: Sequence[int] | None = None) -> np.ndarray:
        """Return the images as one array.

        Args:
            images: a list, an array or a column of inputs of `processors.image_files.read_image`,
                or one such input.
            places: list of int, row numbers of the images for error messages. Defaults to 0, 1, 2,
                ...

        Returns:
            Float32 `(batch, height, width, 3)`; with a `tiling` float32 `(tiles, height, width,
            3)`, the tiles of one image after those of another, each cut as if alone in its row.

        Raises:
            ValueError: if an input is not an image (the message has its row number), or if sizes
                differ and the processor has neither a `size` nor a `crop_size`.
        """
        rows = [images] if is_one_image(images) else self.rows(images)
        places = range(len(rows)) if places is None else places
        if self.tiling is not None:
            named = [(row, f"x[{i}]") for i, row in zip(places, rows, strict=True)]
            cut = [self.tiles(*each, self.tiling.grids([image_size(*each)])[0]) for each in named]
            return self.normalized(np.concatenate(cut))
        made = [self.pixels(row, f"x[{i}]") for i, row in zip(places, rows, strict=True)]
        shapes = {array.shape for array in made}
        if len(shapes) > 1:
            raise ValueError(
                f"The images have {len(shapes)} sizes, such as {sorted(shapes)[:2]}. Give the "
                "processor a `size`, or a `crop_size`."
            )
        return self.normalized(np.stack(made))

    def arrays(self, images: Any, places: Sequence[int] | None = None) -> dict[str, np.ndarray]:
        """Return the images as the arrays of a stem, by name; arguments as for `__call__`."""
        return {"images": self(images, places)}

    def padded(
        self, images: Sequence, places: Sequence[int] | None = None
    ) -> dict[str, np.ndarray]:
        """Return images of different sizes as one array, padded below and to the right.

        Args:
            images: a list of images.
            places: as in `__call__`.

        Returns:
            Dict of `images`, float32 `(batch, height, width, 3)`, where padding is 0 behind the
            normalization. If the sizes differ, also `padding_mask`, bool `(batch, height, width)`,
            True for the pixels of an image.

        Raises:
            ValueError: if an input is not an image, or the largest sides are too many pixels.
        """
        places = range(len(images)) if places is None else places
        made = [self.pixels(row, f"x[{i}]") for i, row in zip(places, images, strict=True)]
        height, width = (max(array.shape[axis] for array in made) for axis in (0, 1))
        if all(array.shape[:2] == (height, width) for array in made):
            return {"images": self.normalized(np.stack(made))}
        if height * width > MOST_PIXELS:
            raise ValueError(
                f"Images of one batch would be padded to {height:,} x {width:,} pixels, more than "
                f"{MOST_PIXELS:,}: give the processor a smaller `size`."
            )
        array = np.zeros((len(made), height, width, 3), "float32")
        mask = np.zeros(array.shape[:3], "bool")
        for i, pixels in enumerate(made):
            rows, columns = pixels.shape[:2]
            array[i, :rows, :columns] = self.normalized(pixels[None])[0]
            mask[i, :rows, :columns] = True
        return {"images": array, "padding_mask": mask}

    def normalized(self, pixels: np.ndarray) -> np.ndarray:
        """Return pixels from 0 to 255, `(batch, height, width, 3)`, as the model's float32."""
        array = pixels.astype("float32")
        if self.rescale_factor is not None:
            array *= np.float32(self.rescale_factor)
        if self.mean is not None:
            array -= np.asarray(self.mean, "float32")
            array /= np.asarray(self.std, "float32")
        return array

    def layouts(
        self, images: Sequence, states: tuple[int, int], places: Sequence[str] | None = None
    ) -> list[Layout]:
        """Return how each image of a row is cut, and what stands for it in a text.

        Without a `tiling` no image is read; with one its size is read, before its pixels.

        Args:
            images: the images of a row, in its order; with `sounds` each may also be a `Sound`.
            states: rows and columns of the states of a tile, or of an image without a tiling.
            places: names of the images in errors. Defaults to `"image 1"`, `"image 2"`, ...

        Raises:
            ValueError: if one of them is not an image, or too large.
        """
        if self.tiling is None:
            plain = Layout((0, 0), 1, (np.arange(math.prod(states)),))
            return [
                self.sounds.layout(each, f"sound {i}") if isinstance(each, Sound) else plain
                for i, each in enumerate(images, 1)
            ]
        places = [f"image {i}" for i in range(1, len(images) + 1)] if places is None else places
        sizes = [image_size(image, place) for image, place in zip(images, places, strict=True)]
        return self.tiling.layouts(sizes, states)

    def tiles(self, given: Any, place: str = "x", grid: tuple[int, int] = (0, 0)) -> np.ndarray:
        """Read an image and cut it as its layout says, uint8 `(tiles, height, width, 3)`."""
        if self.tiling is None:
            return self.pixels(given, place)[None]
        return np.stack(self.tiling.cut(as_rgb(open_image(given, place)), grid, self.resample))

    def pixels(self, given: Any, place: str = "x") -> np.ndarray:
        """Read, resize and crop an image, `(height, width, 3)`, from 0 to 255.

        The pixels are uint8, or float32 for a `family` that does not round them.
        """
        image = open_image(given, place)
        of_array = isinstance(image, np.ndarray)
        height, width = image.shape[:2] if of_array else (image.height, image.width)
        wanted, crop = self._wanted(height, width)
        most = max(wanted if self.size is not None else (0, 0), crop.values(), key=math.prod)
        if math.prod(most) > MOST_PIXELS:
            raise ValueError(
                f"`{place}` has {height:,} x {width:,} pixels, which the processor would resize to "
                f"{' x '.join(f'{n:,}' for n in most)}, more than {MOST_PIXELS:,} in all. Crop "
                "its long side, or give the processor a smaller `size`."
            )
        if wanted != (height, width):
            image = self._resampled(pillow().fromarray(image) if of_array else image, wanted)
        if isinstance(image, np.ndarray):
            return _padded(image[_middle(wanted, crop)], crop)
        rows, columns = _middle(wanted, crop)
        image = image.crop((columns.start, rows.start, columns.stop, rows.stop))
        return _padded(np.asarray(image.convert("RGB")), crop)

    def _resampled(self, image: Any, wanted: tuple[int, int]) -> Any:
        """Resize a Pillow image to a height and width. Pixels that are not rounded are an array."""
        size = wanted[::-1]
        if self.family not in _UNROUNDED:
            return image.resize(size, resample=self.resample)
        bands = [band.convert("F") for band in image.convert("RGB").split()]
        return np.stack([band.resize(size, resample=self.resample) for band in bands], axis=-1)

    def map_pixels(self, values: np.ndarray, fill: float) -> np.ndarray:
        """Resize and crop a map as `pixels` does its image, taking the nearest value.

        Args:
            values: int32 or float32 `(height, width)`, a number for each pixel of an image.
            fill: the value beside the map, where a crop is larger than the map.

        Returns:
            An array of the same dtype, with the height and width of the processed image.
        """
        wanted, crop = self._wanted(*values.shape)
        if wanted != values.shape:
            resized = pillow().fromarray(values).resize(wanted[::-1], resample=_NEAREST)
            values = np.asarray(resized)
        return _padded(values[_middle(wanted, crop)], crop, fill)

    def map_boxes(self, boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Return boxes as shares of the processed image, cut to what a crop leaves of them.

        Args:
            boxes: float `(boxes, 4)`, x_min, y_min, x_max and y_max in pixels of an image.
            size: ints, height and width of that image.

        Returns:
            Float32 `(boxes, 4)`, from 0 to 1. A box beside the crop has no area.
        """
        wanted, crop = self._wanted(*size)
        given = np.array([size[1], size[0]] * 2, "float64")
        resized = np.array([wanted[1], wanted[0]] * 2, "float64")
        # A positive shift is cut off, a negative one is padding, see `_middle` and `_padded`.
        shift = [(n - crop[name]) // 2 for n, name in zip(wanted, ("height", "width"), strict=True)]
        kept = np.array([crop["width"], crop["height"]] * 2, "float64")
        moved = boxes.astype("float64") * (resized / given) - np.array(shift[::-1] * 2)
        return np.clip(moved / kept, 0, 1).astype("float32")

    def _wanted(self, height: int, width: int) -> tuple[tuple[int, int], Mapping[str, int]]:
        """Return height and width after resizing, and those of the crop that follows."""
        wanted = self._resized(height, width)
        return wanted, self.crop_size or {"height": wanted[0], "width": wanted[1]}

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width to which an image is resized."""
        if self.size is None:
            return height, width
        if "shortest_edge" not in self.size:
            scales = self.size["height"] / height, self.size["width"] / width
            if self.keep_aspect_ratio:
                scales = (min(scales, key=lambda scale: abs(1 - scale)),) * 2
            sides = (scale * side for scale, side in zip(scales, (height, width), strict=True))
            rows, columns = (self._rounded(side) for side in sides)
            return rows, columns
        edge, short = self.size["shortest_edge"], min(height, width)
        exact, most = edge, self.size.get("longest_edge")
        if most is not None and max(height, width) / short * edge > most:
            exact = most * short / max(height, width)
            edge = round(exact)
        longest = int(exact * max(height, width) / short)
        if most is not None and edge == height <= width:  # as it is, also if rounding changes it
            longest = width
        step = _FLOORED.get(self.family, 1) if most is not None else 1
        edge, longest = (max(side - side % step, step) for side in (edge, longest))
        return (edge, longest) if height <= width else (longest, edge)

    def _rounded(self, side: float) -> int:
        """Round to the nearest multiple of `multiple_of`, at least one of them."""
        return max(round(side / self.multiple_of), 1) * self.multiple_of

    def check(self, config: TransformerConfig) -> None:
        if config.hearing_side == "encoder":
            if self.sounds is None:
                raise ValueError(
                    "This model hears recordings, and sees no images: give the processor `sounds`, "
                    "a `SoftTokenSoundProcessor`."
                )
            self.sounds.check(config)
            return
        if config.hearing_side is not None and self.sounds is not None:
            self.sounds.check(config)
        if getattr(config.sides[0].stem, "kind", None) == "patch_sequence":
            raise ValueError(
                "This model reads images of any size: give it a "
                "`processors.PatchSequenceProcessor`."
            )
        if getattr(config.sides[0].stem, "image_size", None) is None:
            raise ValueError(
                "An ImageProcessor needs a model whose config has a `stem` for images."
            )
        side, size = self.tiling and self.tiling.side, config.sides[0].stem.image_size
        if side is not None and tuple(size) != (side, side):
            raise ValueError(
                f"The tiles of the processor are {side} x {side} pixels, and the model reads "
                f"{' x '.join(map(str, size))}: give the tiling `side={size[0]}`."
            )

    def config_values(self) -> dict[str, Any]:
        return {} if self.tiling is None else self.tiling.config_values()

    def values(self) -> dict[str, Any]:
        """Return the content of `preprocessor_config.json`.

        Raises ValueError if no published class cuts images as the `tiling` does.
        """
        if self.family is None:
            raise ValueError(
                f"{type(self.tiling).__name__} is a class of your own, which no file describes: "
                "save the model without its processor, and give it the processor when it is loaded."
            )
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
        if self.keep_aspect_ratio or self.multiple_of > 1:
            further |= {
                "keep_aspect_ratio": self.keep_aspect_ratio,
                "ensure_multiple_of": self.multiple_of,
            }
        values |= {name: value for name, value in further.items() if value is not None}
        return values if self.tiling is None else values | self.tiling.values()

    @classmethod
    def with_outer(cls, values: Mapping[str, Any], of_all: Mapping[str, Any]) -> Mapping[str, Any]:
        names = cls.subclasses.get(_named(values)[1], cls).outer_values
        values = {
            **values,
            **{name: of_all[name] for name in names if of_all.get(name) is not None},
        }
        # The values of recordings are a part of their own, or among those of the images.
        for sounds in (of_all.get("feature_extractor"), values):
            named = sounds.get("feature_extractor_type") if isinstance(sounds, Mapping) else None
            if cls.sound_class is not None and named in cls.sound_class.beside_images:
                return {**values, _SOUNDS: cls.sound_class.with_outer(sounds, of_all)}
        return values

    def save(self, directory: str) -> None:
        super().save(directory)
        if self.sounds is not None:
            self.sounds.save(directory)

    @classmethod
    def from_files(cls, directory: str) -> "ImageProcessor":
        return super().from_files(directory).with_files_of(directory)

    def with_files_of(self, directory: str) -> "ImageProcessor":
        """Return the processor with what further files of its folder hold, if it has any."""
        return self

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "ImageProcessor":
        """Return the processor described by a `preprocessor_config.json`.

        Raises:
            ValueError: if the class is unknown or a value is out of range.
        """
        named, family = _named(values)
        if family in cls.subclasses:
            return cls.subclasses[family].from_values(values)
        if family not in _DEFAULTS:
            raise ValueError(
                f"Images for {shorten(named)} are not supported, only for "
                f"{', '.join(map(repr, (*_DEFAULTS, *cls.subclasses)))}."
            )
        if values.get("do_pan_and_scan"):
            raise ValueError(
                "do_pan_and_scan=true, which cuts an image into several, is not supported: set it "
                "to false, as published models do."
            )
        size, crop, resample, (mean, std) = _DEFAULTS[family]
        tiling, sounds = None, values.get(_SOUNDS)
        if family in _PADDED and values.get("pad_size") is not None:
            raise ValueError(f"pad_size={shorten(values['pad_size'])} is not supported, only null.")
        if family in _TILINGS:
            tiling = _TILINGS[family].from_values(values, family)
            values = {**values, "size": tiling.side, "crop_size": None, "do_center_crop": False}
        given = values.get("size", size)
        if isinstance(given, int) and isinstance(
            size, dict
        ):  # old files give the shortest edge as a number
            given = {"shortest_edge": given}
            if "longest_edge" in size:
                given["longest_edge"] = values.get("max_size", size["longest_edge"])
        crop = values.get("crop_size", crop)
        has = {name: values.get(f"do_{name}", True) for name in ("resize", "rescale")}
        has["normalize"] = values.get("do_normalize", family not in _UNNORMALIZED)
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
            keep_aspect_ratio=values.get("keep_aspect_ratio") or False,
            multiple_of=values.get("ensure_multiple_of") or 1,
            tiling=tiling,
            sounds=cls.sound_class.from_values(sounds) if isinstance(sounds, Mapping) else None,
        )


def _named(values: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the Transformers class that a file names, and its prefix."""
    named = values.get("image_processor_type") or values.get("feature_extractor_type") or "ViT"
    family = str(named)
    for end in ("Pil", "Fast", "ImageProcessor", "FeatureExtractor"):
        family = family.removesuffix(end)
    return named, family


def _size(name: str, given: Any, shortest: bool = False) -> dict[str, int]:
    """Return a dict of height and width, or of edges. Raises ValueError if invalid."""
    if isinstance(given, int) and not isinstance(given, bool):
        given = (given, given)
    if isinstance(given, (list, tuple)) and len(given) == 2:
        given = {"height": given[0], "width": given[1]}
    edges = ({"shortest_edge"}, {"shortest_edge", "longest_edge"}) if shortest else ()
    known = ({"height", "width"}, *edges)
    values = {n: v for n, v in given.items() if v is not None} if isinstance(given, Mapping) else {}
    if values.keys() not in known:
        edge = ", or {'shortest_edge': ...}" if shortest else ""
        raise ValueError(
            f"`{name}` must be a number, (height, width){edge}, received {shorten(given)}."
        )
    values = {n: check_int(f"{name}[{n!r}]", v, 1, 2**15) for n, v in values.items()}
    if math.prod(values.values()) ** (2 if len(values) == 1 else 1) > MOST_PIXELS:
        raise ValueError(f"`{name}` is {values}: an image may have {MOST_PIXELS:,} pixels.")
    return values


def _channels(name: str, given: Any) -> list[float] | None:
    if given is None:
        return None
    values = [given] * 3 if is_number(given) else given
    fits = isinstance(values, (list, tuple)) and len(values) == 3 and all(map(is_number, values))
    if not fits:
        raise ValueError(
            f"`{name}` must be three numbers, one per channel, received {shorten(given)}."
        )
    return [float(value) for value in values]


def _middle(size: tuple[int, int], crop: Mapping[str, int]) -> tuple[slice, slice]:
    """Return the center rows and columns of an image: all of them if the crop is larger."""
    rows, columns = size
    height, width = min(crop["height"], rows), min(crop["width"], columns)
    top, first = (rows - height) // 2, (columns - width) // 2
    return slice(top, top + height), slice(first, first + width)


def _padded(pixels: np.ndarray, crop: Mapping[str, int], fill: float = 0) -> np.ndarray:
    """Pad an image that is smaller than the crop."""
    above, left = crop["height"] - pixels.shape[0], crop["width"] - pixels.shape[1]
    if not above and not left:
        return pixels
    # As in Transformers, the larger half of the padding goes first.
    before = ((above + 1) // 2, (left + 1) // 2)
    sides = ((before[0], above - before[0]), (before[1], left - before[1]), (0, 0))
    return np.pad(pixels, sides[: pixels.ndim], constant_values=fill)
