"""KerasHub's image converters, to this package's image processors.

Images are resized as Pillow does it, in whole numbers of a pixel and with smaller images smoothed,
while KerasHub interpolates without smoothing by default. To a square they are cut if the converter
says so; to other shapes, of words, they are stretched, as the published code does.
"""

import os
from typing import Any

import numpy as np

from keras_transformer.checkpoints.keras_hub.family import registered_class, serialized_arguments
from keras_transformer.processors import ImageProcessor
from keras_transformer.support.checking import is_number
from keras_transformer.support.files import path_inside, read_json

IMAGES_FILE = "image_converter.json"
_RESAMPLE = {"nearest": 0, "lanczos3": 1, "bilinear": 2, "bicubic": 3}
_LEVELS = 255  # of a pixel


def has_images(folder: str | os.PathLike) -> bool:
    """Return whether a folder has an image converter in KerasHub's form."""
    return path_inside(folder, IMAGES_FILE).is_file()


def read_images(folder: str | os.PathLike) -> ImageProcessor:
    """Read the image converter of a KerasHub preset."""
    path = path_inside(folder, IMAGES_FILE)
    values = read_json(path)
    try:
        if not registered_class(values).endswith("ImageConverter"):
            raise ValueError(f"{registered_class(values)!r} is not an image converter.")
        own = serialized_arguments(values)
        name = own.get("interpolation", "bilinear")
        if not isinstance(name, str) or name not in _RESAMPLE:
            known = ", ".join(map(repr, _RESAMPLE))
            raise ValueError(f"interpolation={str(name)[:200]!r} is not supported, only {known}.")
        if own.get("pad_to_aspect_ratio"):
            raise ValueError("pad_to_aspect_ratio=true is not supported, only false.")
        scale, offset = (_numbers(own, each, usual) for each, usual in _USUAL.items())
        std = 1 / (_LEVELS * scale)
        mean = -offset * std
        return ImageProcessor(
            **_sizes(own),
            resample=_RESAMPLE[name],
            mean=mean.tolist(),
            std=std.tolist(),
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _sizes(own: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of an image processor for the arguments of an image converter."""
    size = own.get("image_size")
    square = isinstance(size, (list, tuple)) and len(size) == 2 and size[0] == size[1]
    if not square or not own.get("crop_to_aspect_ratio", True):
        return {"size": size}
    return {"size": {"shortest_edge": size[0]}, "crop_size": size[0]}


def _made_size(source: ImageProcessor) -> tuple[tuple[int, int], bool]:
    """Return the size of the arrays of a processor, and whether images are cut to its proportions.

    Raises ValueError if KerasHub's image converter cannot do the same.
    """
    size, crop = source.size or {}, source.crop_size
    plain = set(size) == {"height", "width"} and not crop
    cut = set(size) == {"shortest_edge"} and crop and {*crop.values()} == {*size.values()}
    alone = source.tiling or source.keep_aspect_ratio or source.multiple_of > 1
    if alone or not (plain or cut):
        raise ValueError(
            "its image converter resizes to a height and a width, or cuts to a square, and nothing "
            "else. Convert the `backbone` alone."
        )
    made = crop if cut else size
    return (made["height"], made["width"]), bool(cut)


def make_images(made_class: Any, source: ImageProcessor) -> Any:
    """Return KerasHub's image converter, of a class of it, for an image processor."""
    size, cut = _made_size(source)
    factor = 1.0 if source.rescale_factor is None else source.rescale_factor
    mean, std = (np.array(x or [usual] * 3) for x, usual in ((source.mean, 0), (source.std, 1)))
    names = {number: name for name, number in _RESAMPLE.items()}
    return made_class(
        image_size=size,
        scale=(factor / std).tolist(),
        offset=(-mean / std).tolist(),
        interpolation=names[source.resample],
        crop_to_aspect_ratio=cut,
        antialias=True,
    )


_USUAL = {"scale": 1.0, "offset": 0.0}


def _numbers(values: dict[str, Any], name: str, usual: float) -> np.ndarray:
    """Return an argument as a number for each of three channels."""
    given = values.get(name)
    given = usual if given is None else given
    numbers = given if isinstance(given, list) else [given] * 3
    fits = len(numbers) == 3 and all(map(is_number, numbers))
    if not fits or (name == "scale" and min(numbers) <= 0) or not np.isfinite(numbers).all():
        raise ValueError(f"{name} must be a number, or three, not {str(given)[:200]}.")
    return np.array(numbers, "float64")
