"""Images of strangers, from files, bytes, arrays and other libraries' objects, to RGB pixels."""

import io
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.checking import check_path, describe
from keras_transformer.processors.media import read_path
from keras_transformer.processors.packages import pillow

MOST_BYTES = 2**28  # of a file
MOST_PIXELS = 2**27  # of an image: 134 million, which are 400 MB once it is decoded
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def is_one_image(x: Any) -> bool:
    """Whether `x` is a single image, and not several."""
    if isinstance(x, (str, bytes, os.PathLike, Mapping)) or hasattr(x, "getbands"):  # of Pillow
        return True
    return isinstance(x, np.ndarray) and x.dtype.kind in "uif" and x.ndim <= 3


def read_image(given: Any, place: str = "x") -> np.ndarray:
    """The pixels of an image, uint8 `(height, width, 3)`.

    Args:
        given: a path, the bytes of a file, a dict with `"bytes"` or `"path"` as `datasets` has
            them, an image of Pillow, or an array `(height, width)` or `(height, width, 1, 3 or 4)`
            of uint8, or of floats from 0 to 1.
        place: what errors call it.

    Raises:
        ValueError: for what is no image, is damaged, or is too large, with its place.
        FileNotFoundError: for a path without a file.
    """
    if isinstance(given, Mapping):
        content, path = given.get("bytes"), given.get("path")
        given = path if content is None else content
    if hasattr(given, "getbands"):
        return _pixels(given, place)
    if isinstance(given, (str, os.PathLike)):
        given, place = read_path(given, place, MOST_BYTES)
    if isinstance(given, (bytes, bytearray, memoryview)):
        return _decoded(bytes(given), place)
    if isinstance(given, np.ndarray) or hasattr(given, "__array__"):
        return _of_array(np.asarray(given), place)
    raise ValueError(
        f"`{place}` must be an image: a path, bytes, an image of Pillow, or an array (height, "
        f"width, channels), received {describe(given)}."
    )


def image_folder(folder: str | os.PathLike) -> tuple[list[str], list[str]]:
    """The images of a folder with a folder for each class, and their labels.

    Args:
        folder: path. `folder/cat/1.jpg` is an image of the class `"cat"`.

    Returns:
        A list of paths and a list of labels, sorted: what `ImageClassifier.fit` takes.

    Raises:
        FileNotFoundError: for no folder.
        ValueError: for a folder without images in folders.

    Example:
    ```python
    import pathlib, tempfile
    import numpy as np
    from PIL import Image
    import keras_transformer as kt

    folder = pathlib.Path(tempfile.mkdtemp())
    for label in ("cat", "dog"):
        (folder / label).mkdir()
        Image.fromarray(np.zeros((8, 8, 3), "uint8")).save(folder / label / "1.png")
    images, labels = kt.processors.image_folder(folder)
    assert labels == ["cat", "dog"]
    ```
    """
    place = Path(check_path("folder", folder)).expanduser()
    if not place.is_dir():
        raise FileNotFoundError(f"There is no folder {place}.")
    found = sorted(p for p in place.glob("*/*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not found:
        raise ValueError(
            f"{place} has no images: it must have a folder for each class, such as "
            f"{place}/cat/1.jpg, with files that end with {', '.join(SUFFIXES)}."
        )
    return [str(path) for path in found], [path.parent.name for path in found]


def _decoded(content: bytes, place: str) -> np.ndarray:
    image_module, image_ops = pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, which are bounded here
            image = image_module.open(io.BytesIO(content))
            _check_pixels(image.width, image.height, place)
            return _pixels(image_ops.exif_transpose(image), place)
    except image_module.DecompressionBombError as error:
        raise ValueError(f"`{place}` is too large: {error} Make it smaller.") from None
    except (OSError, SyntaxError, EOFError) as error:
        kind = "is no image that Pillow reads" if not content else "cannot be read as an image"
        raise ValueError(f"`{place}` {kind}: {error}. Is the file whole?") from None


def _pixels(image, place: str) -> np.ndarray:
    """Those of an image of Pillow, without its alpha channel."""
    _check_pixels(image.width, image.height, place)
    if image.mode.startswith(("I", "F")):  # 16 bits, or floats
        array = np.asarray(image).astype("float64")
        if image.mode == "F":
            return _of_array(array, place)
        return _of_array(np.clip(array // 256, 0, 255).astype("uint8"), place)
    return np.asarray(image.convert("RGB"))


def _of_array(array: np.ndarray, place: str) -> np.ndarray:
    grey = array.ndim == 2
    if not grey and not (array.ndim == 3 and array.shape[2] in (1, 3, 4)):
        hint = ""
        if array.ndim == 3 and array.shape[0] in (1, 3, 4):
            hint = " Its channels are in front: give `np.moveaxis(image, 0, -1)`."
        raise ValueError(
            f"`{place}` must be of shape (height, width, channels) with 1, 3 or 4 channels, "
            f"received {array.shape}.{hint}"
        )
    if 0 in array.shape:
        raise ValueError(f"`{place}` has no pixels: it has shape {array.shape}.")
    _check_pixels(array.shape[1], array.shape[0], place)
    if array.dtype != np.uint8:
        array = _bytes_of(array, place)
    array = array[..., None] if grey else array
    return np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array[..., :3]


def _bytes_of(array: np.ndarray, place: str) -> np.ndarray:
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ValueError(f"`{place}` has pixels that are NaN or infinite.")
        if array.min() < 0 or array.max() > 1:
            raise ValueError(
                f"`{place}` has floats from {array.min():g} to {array.max():g}; those of an image "
                "are from 0 to 1. Give uint8 for 0 to 255."
            )
        return np.rint(array * 255).astype("uint8")
    if array.dtype.kind in "iub" and array.min() >= 0 and array.max() <= 255:
        return array.astype("uint8")
    raise ValueError(
        f"`{place}` must hold numbers from 0 to 255, or floats from 0 to 1, received "
        f"{array.dtype} from {array.min()} to {array.max()}."
    )


def _check_pixels(width: int, height: int, place: str) -> None:
    if width * height > MOST_PIXELS:
        raise ValueError(
            f"`{place}` has {width:,} x {height:,} pixels; an image may have {MOST_PIXELS:,}. Make "
            "it smaller."
        )
