"""Decoding of untrusted images from files, bytes, arrays and objects of other libraries."""

import io
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from keras_transformer.processors.media import (
    advice,
    array_of,
    files_by_class,
    is_tensor,
    read_path,
    told,
)
from keras_transformer.processors.packages import pillow
from keras_transformer.support.checking import describe

MOST_BYTES = 2**28  # in a file
MOST_PIXELS = 2**27  # in an image, 134 million
# Bytes that an image may use while it is decoded and converted to RGB, in any format and mode: half
# a gigabyte, which is 134 million pixels of a JPEG or a PNG in RGB and 34 million of a WebP.
MOST_MEMORY = 2**29
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
# Formats whose header states the image size. Pillow also reads formats that start a program (EPS)
# or hold images of other sizes than stated (ICO, ICNS).
_FORMATS = (
    "AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP",
)  # fmt: skip
# Bytes per pixel, as measured, of decoders that hold more than the pixels they return, such as
# frames of an animation or 32-bit samples. One strip of a TIFF may be the whole image.
_DECODERS = {"WEBP": 16, "AVIF": 12, "JPEG2000": 26, "TIFF": 8}
_DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")  # more than 8 bits per pixel
_GREY = ("1", "L", *_DEEP)
_BETWEEN = {
    "La": "LA",
    "RGBa": "RGBA",
}  # modes without premultiplied alpha, to which these are converted first
_STRIP = 2**20  # pixels converted at once
# The EXIF tag of the orientation, and for its values the method of `PIL.Image.Transpose` that turns
# the image upright.
_ORIENTATION = 0x0112
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
# Names of the parts of a PNG that hold an orientation. They may stand behind the pixels, so that
# Pillow decodes these to look for them.
_PNG_TURNS = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")


def is_one_image(x: Any) -> bool:
    """Return whether `x` is a single image."""
    if isinstance(x, (str, bytes, bytearray, memoryview, os.PathLike, Mapping)):
        return True
    if hasattr(x, "getbands"):  # a Pillow image
        return True
    return (is_tensor(x) or (isinstance(x, np.ndarray) and x.dtype.kind in "uifb")) and x.ndim <= 3


def read_image(given: Any, place: str = "x") -> np.ndarray:
    """Read the pixels of an image, uint8 `(height, width, 3)`.

    A photo is turned upright by its EXIF orientation, transparent pixels are blended with white,
    and grey becomes three equal channels. Of an animation, the first frame is read.

    Args:
        given: a path; a data URL; the bytes of a file; a dict with `"bytes"` or `"path"`, as in
            `datasets`; a Pillow image; or an array or a tensor `(height, width)` or `(height,
            width, channels)` with 1, 2 (grey and alpha), 3 or 4 channels: booleans, integers from 0
            to 255, uint16 with 16 bits in use, or floats from 0 to 1 (or whole numbers to 255, as
            from `keras.utils.img_to_array`).
        place: name of the input in error messages.

    Raises:
        ValueError: if the input is not an image, or is damaged or too large.
        FileNotFoundError: if a path does not exist.
    """
    image = open_image(given, place)
    if isinstance(image, np.ndarray):
        return image
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def open_image(given: Any, place: str = "x") -> Any:
    """Read an image as `read_image` does, but leave it in Pillow's memory.

    Returns:
        A Pillow image of mode `"RGB"`, or `"L"` if it is grey; for an array without alpha its
        pixels, uint8 `(height, width, 3)`.
    """
    if isinstance(given, Mapping):
        content, path = given.get("bytes"), given.get("path")
        given = path if content is None else content
    if hasattr(given, "getbands"):
        return _naming(_upright, given, place)
    if isinstance(given, (str, os.PathLike)):
        given, place = read_path(given, place, MOST_BYTES)
    if isinstance(given, (bytes, bytearray, memoryview)):
        return _decoded(bytes(given), place)
    if isinstance(given, np.ndarray) or hasattr(given, "__array__"):
        return _of_array(array_of(given), place)
    raise ValueError(
        f"`{place}` must be an image: a path, bytes, a Pillow image, or an array (height, "
        f"width, channels), received {describe(given)}.{advice(given)}"
    )


def image_size(given: Any, place: str = "x") -> tuple[int, int]:
    """Return height and width of an image that `read_image` reads, without its pixels if possible.

    The sides of a photo are those after it is turned upright. `given`, `place` and errors are those
    of `read_image`.
    """
    if isinstance(given, Mapping):
        content, path = given.get("bytes"), given.get("path")
        given = path if content is None else content
    if isinstance(given, (str, os.PathLike)):
        given, place = read_path(given, place, MOST_BYTES)
    if isinstance(given, (bytes, bytearray, memoryview)):
        return _naming(_size_of_file, bytes(given), place)
    if hasattr(given, "getbands"):
        return _naming(_size, given, place)
    image = open_image(given, place)
    return image.shape[:2] if isinstance(image, np.ndarray) else (image.height, image.width)


def count_pixels(content: bytes, place: str = "x") -> int:
    """Return the number of pixels of an image, from the header of its file.

    Args:
        content: the bytes of the file.
        place: name of the input in error messages.

    Raises:
        ValueError: if the header is not that of an image.
    """
    return _naming(lambda given, _: math.prod(_opened(given).size), content, place)


def read_map(given: Any, place: str = "y") -> np.ndarray:
    """Read a number for each pixel of an image: classes, or distances.

    Args:
        given: a path, bytes or a Pillow image of one channel, such as a PNG with grey pixels of 8
            or 16 bits, or with a palette, whose indices are read; or an array `(height, width)` or
            `(height, width, 1)` of numbers.
        place: name of the input in error messages.

    Returns:
        int32 or float32 `(height, width)`.

    Raises:
        ValueError: if there is more than one number for a pixel.
        FileNotFoundError: if a path does not exist.
    """
    values = _unread(given, place)
    if not isinstance(values, np.ndarray):
        _check_pixels(values.width, values.height, place)
        values = _naming(lambda given, _: np.asarray(given), values, place)
    values = values[..., 0] if values.ndim == 3 and values.shape[2] == 1 else values
    if values.ndim != 2 or 0 in values.shape or values.dtype.kind not in "biuf":
        raise ValueError(
            f"`{place}` must have one number for each pixel, (height, width), received "
            f"{values.dtype} {values.shape}. Replace colours by the numbers of their classes."
        )
    return values.astype("float32" if values.dtype.kind == "f" else "int32")


def _unread(given: Any, place: str) -> Any:
    """Return an array, or a Pillow image of which only the header is read."""
    if isinstance(given, Mapping):
        content, path = given.get("bytes"), given.get("path")
        given = path if content is None else content
    if hasattr(given, "getbands"):
        return given
    if isinstance(given, (str, os.PathLike)):
        given, place = read_path(given, place, MOST_BYTES)
    if isinstance(given, (bytes, bytearray, memoryview)):
        return _naming(lambda content, _: _opened(content), bytes(given), place)
    array = array_of(given) if hasattr(given, "__array__") else given
    array = np.asarray(array) if isinstance(array, list) else array
    if isinstance(array, np.ndarray) and array.ndim in (2, 3):
        return array
    raise ValueError(
        f"`{place}` must be a path, bytes, a Pillow image or an array of two or three axes, "
        f"received {describe(given)}.{advice(given)}"
    )


def image_folder(folder: str | os.PathLike, seed: int | None = None) -> tuple[list[str], list[str]]:
    """List the images of a folder with one subfolder per class, and their labels.

    Args:
        folder: path. `folder/cat/1.jpg` is an image of the class `"cat"`.
        seed: int, the seed of a random order, which the `validation_split` of `fit` needs, as it
            takes the last rows. Defaults to None: sorted by path, and so by class.

    Returns:
        A list of paths and a list of labels, as `ImageClassifier.fit` takes them.

    Raises:
        FileNotFoundError: if the folder does not exist.
        ValueError: if the seed is invalid, or no subfolder has images.

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
    return files_by_class(folder, seed, SUFFIXES, "image", "jpg")


def _decoded(content: bytes, place: str) -> Any:
    return _naming(lambda given, place: _upright(_opened(given), place), content, place)


def _opened(content: bytes) -> Any:
    """Return a Pillow image of which the header is read."""
    return pillow().open(io.BytesIO(content), formats=_FORMATS)


def _naming(decode: Any, given: Any, place: str) -> Any:
    """Return `decode(given, place)`. Raises ValueError, with the place, if decoding fails."""
    image_module = pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images, whose size is checked here
            return decode(given, place)
    except _Refused:
        raise
    except (image_module.DecompressionBombError, MemoryError) as error:
        raise ValueError(f"`{place}` is too large: {error} Make it smaller.") from None
    except Exception as error:  # decoders raise all kinds of errors if a file is damaged
        kind = "cannot be read as an image" if given else "is not an image that Pillow can read"
        raise ValueError(f"`{place}` {kind}: {told(error)}. Is the file whole?") from None


class _Refused(ValueError):
    """Raised if an image can be read, but is refused."""


def _upright(image: Any, place: str) -> Any:
    """Convert a Pillow image to upright `"L"` or `"RGB"`, with transparent pixels white."""
    _check_pixels(image.width, image.height, place)
    plain = image.mode in ("L", "RGB") and not _is_transparent(image)
    made = 1 if image.mode in _GREY else 4
    _check_memory(image, _bytes_a_pixel(image) + made * (not plain), place)
    image.load()
    turn = _TURNS.get(image.getexif().get(_ORIENTATION))  # stored after the pixels in some files
    if turn is not None:
        _check_memory(image, _bytes_a_pixel(image) + made, place)
    image = image if plain else _plain(image, place)
    return image if turn is None else image.transpose(turn)


def _size_of_file(content: bytes, place: str) -> tuple[int, int]:
    image = _opened(content)
    may_turn = image.format != "PNG" or any(name in content for name in _PNG_TURNS)
    return _size(image, place, may_turn)


def _size(image: Any, place: str, may_turn: bool = True) -> tuple[int, int]:
    """Return height and width of a Pillow image when upright, within the limits of `_upright`."""
    _check_pixels(image.width, image.height, place)
    _check_memory(image, _bytes_a_pixel(image), place)
    size = image.height, image.width
    turned = may_turn and image.getexif().get(_ORIENTATION) in (5, 6, 7, 8)
    return size[::-1] if turned else size


def _check_memory(image: Any, bytes_a_pixel: int, place: str) -> None:
    if image.width * image.height > (most := MOST_MEMORY // bytes_a_pixel):
        raise _Refused(
            f"`{place}` has {image.width:,} x {image.height:,} pixels; an image of this kind "
            f"({image.format or 'Pillow'}, {image.mode}) may have {most:,}. Make it smaller."
        )


def _bytes_a_pixel(image: Any) -> int:
    """Return the bytes per pixel that the decoder of an image needs."""
    held = 1 if image.mode in ("1", "L", "P") else 2 if image.mode.startswith("I;") else 4
    if image.info.get("progressive"):  # a JPEG decoder also holds the coefficients of all scans
        held += 2 * len(image.getbands())
    return max(held, _DECODERS.get(image.format, 0))


def _is_transparent(image: Any) -> bool:
    given = image.info.get("transparency") is not None and image.mode not in _DEEP
    colours = image.palette.mode if image.mode == "P" and image.palette else ""
    bands = {*image.getbands(), *colours}
    return given or (not {"A", "a"}.isdisjoint(bands) and image.mode != "LAB")


def _plain(image: Any, place: str) -> Any:
    """Convert an image to mode `"L"` or `"RGB"`, with transparent pixels white."""
    image_module = pillow()
    transparent, deep = _is_transparent(image), image.mode in _DEEP
    made = image_module.new("L" if image.mode in _GREY and not transparent else "RGB", image.size)
    extremes = None
    if deep:
        found = [(a.min(), a.max()) for a in (np.asarray(part) for _, part in _strips(image))]
        extremes = min(low for low, _ in found), max(high for _, high in found)
    for top, part in _strips(image):
        if deep:
            part = image_module.fromarray(to_bytes(np.asarray(part), extremes, place))
        elif transparent:
            part = _on_white(part.convert(_BETWEEN.get(part.mode, part.mode)))
        made.paste(part.convert(made.mode), (0, top))
    return made


def _strips(image: Any) -> Iterator[tuple[int, Any]]:
    """Yield strips of an image, each with the number of its first row.

    Converting strip by strip needs little memory besides the image and the result.
    """
    rows = max(_STRIP // image.width, 1)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _on_white(image: Any) -> Any:
    """Blend a transparent Pillow image with white, as Transformers' `convert_to_rgb` does."""
    image_module = pillow()
    white = image_module.new("RGBA", image.size, (255, 255, 255, 255))
    return image_module.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def _of_array(array: np.ndarray, place: str) -> np.ndarray:
    grey = array.ndim == 2
    if not grey and not (array.ndim == 3 and array.shape[2] in (1, 2, 3, 4)):
        hint = ""
        if array.ndim == 3 and array.shape[0] in (1, 3, 4):
            hint = " Its channels come first: give `np.moveaxis(image, 0, -1)`."
        raise ValueError(
            f"`{place}` must be of shape (height, width, channels) with 1, 3 or 4 channels, or 2 "
            f"of grey and alpha, received {array.shape}.{hint}"
        )
    if 0 in array.shape:
        raise ValueError(f"`{place}` has no pixels: it has shape {array.shape}.")
    _check_pixels(array.shape[1], array.shape[0], place)
    if array.dtype != np.uint8:
        array = to_bytes(array, (array.min(), array.max()), place)
    array = array[..., None] if grey else array
    if array.shape[2] in (2, 4):
        return np.asarray(_on_white(pillow().fromarray(np.ascontiguousarray(array))))
    return np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array


def to_bytes(array: np.ndarray, extremes: tuple, place: str) -> np.ndarray:
    """Convert pixels of an image or a strip to uint8.

    `extremes` are the minimum and maximum of the whole image, which decide how it is scaled.
    """
    low, high = extremes
    if array.dtype.kind == "b":
        return array.astype("uint8") * np.uint8(255)
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise _Refused(f"`{place}` has pixels that are NaN or infinite.")
        if low >= 0 and high <= 1:
            return np.rint(array * 255).astype("uint8")
        if low >= 0 and high <= 255 and (array == np.rint(array)).all():
            return array.astype("uint8")
        raise _Refused(
            f"`{place}` has floats from {low:g} to {high:g}, but an image must have 0 to 1. "
            "Give uint8 for 0 to 255."
        )
    if array.dtype.kind in "iu" and low >= 0:
        if high <= 255:
            return array.astype("uint8")
        # Values of 16-bit files in Pillow and other libraries.
        deep = array.dtype in ("uint16", ">u2") or (array.dtype == "int32" and array.ndim == 2)
        if deep and high < 2**16:
            return (array // 256).astype("uint8")
    raise _Refused(
        f"`{place}` must hold numbers from 0 to 255, or floats from 0 to 1, received "
        f"{array.dtype} from {low} to {high}."
    )


def _check_pixels(width: int, height: int, place: str) -> None:
    if width * height > MOST_PIXELS:
        raise _Refused(
            f"`{place}` has {width:,} x {height:,} pixels; an image may have {MOST_PIXELS:,}. Make "
            "it smaller."
        )
