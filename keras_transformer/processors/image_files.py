"""Images of strangers, from files, bytes, arrays and other libraries' objects, to RGB pixels."""

import io
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from keras_transformer.checking import describe
from keras_transformer.processors.media import array_of, files_by_class, is_tensor, read_path
from keras_transformer.processors.packages import pillow

MOST_BYTES = 2**28  # of a file
MOST_PIXELS = 2**27  # of an image, 134 million
# Bytes that an image may take while it is decoded and made RGB, whatever its format and mode: half
# a gigabyte, which is 134 million pixels of a JPEG or a PNG in RGB and 34 million of a WebP.
MOST_MEMORY = 2**29
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
# Formats whose header says how large an image is. Pillow knows others that start a program (EPS)
# or hold images of other sizes than they say (ICO, ICNS).
_FORMATS = (
    "AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP",
)  # fmt: skip
# Bytes of a pixel that decoders hold, where they need more than the pixels that they give: frames
# of an animation, samples of 32 bits; one strip of a TIFF may be all of it. Measured.
_DECODERS = {"WEBP": 16, "AVIF": 12, "JPEG2000": 26, "TIFF": 8}
_DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")  # more than 8 bits a pixel
_GREY = ("1", "L", *_DEEP)
_BETWEEN = {"La": "LA", "RGBa": "RGBA"}  # what becomes of premultiplied modes
_STRIP = 2**20  # pixels that are converted at once
_ORIENTATION = 0x0112  # of EXIF, and how Pillow names what undoes it (`PIL.Image.Transpose`)
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}


def is_one_image(x: Any) -> bool:
    """Whether `x` is a single image, and not several."""
    if isinstance(x, (str, bytes, bytearray, memoryview, os.PathLike, Mapping)):
        return True
    if hasattr(x, "getbands"):  # of Pillow
        return True
    return (is_tensor(x) or (isinstance(x, np.ndarray) and x.dtype.kind in "uifb")) and x.ndim <= 3


def read_image(given: Any, place: str = "x") -> np.ndarray:
    """Read the pixels of an image, uint8 `(height, width, 3)`.

    A photo is turned as its camera says, transparency is put on white, and grey becomes three equal
    channels. Of an animation the first frame is read.

    Args:
        given: a path, a data URL, the bytes of a file, a dict with `"bytes"` or `"path"` as
            `datasets` has them, an image of Pillow, or an array or a tensor `(height, width)` or
            `(height, width, channels)` with 1, 2 (grey and alpha), 3 or 4 channels: booleans,
            integers from 0 to 255, uint16 of 16 bits, or floats from 0 to 1 (whole numbers to 255
            too, which `keras.utils.img_to_array` gives).
        place: what errors call it.

    Raises:
        ValueError: for what is no image, is damaged, or is too large, with its place.
        FileNotFoundError: for a path without a file.
    """
    image = open_image(given, place)
    if isinstance(image, np.ndarray):
        return image
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def open_image(given: Any, place: str = "x") -> Any:
    """Read an image as `read_image` does, but leave it in the memory of Pillow.

    Returns:
        An image of Pillow, of mode `"RGB"`, or `"L"` if it is grey; of an array without alpha its
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
        f"`{place}` must be an image: a path, bytes, an image of Pillow, or an array (height, "
        f"width, channels), received {describe(given)}."
    )


def image_folder(folder: str | os.PathLike) -> tuple[list[str], list[str]]:
    """List the images of a folder that has a folder for each class, and their labels.

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
    return files_by_class(folder, SUFFIXES, "image", "jpg")


def _decoded(content: bytes, place: str) -> Any:
    image_module = pillow()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of large images, which are bounded here

        def decode(_: Any, place: str) -> Any:
            return _upright(image_module.open(io.BytesIO(content), formats=_FORMATS), place)

        return _naming(decode, content, place)


def _naming(decode: Any, given: Any, place: str) -> Any:
    """Return `decode(given, place)`. Raises ValueError that names the place if it fails."""
    image_module = pillow()
    try:
        return decode(given, place)
    except _Refused:
        raise
    except (image_module.DecompressionBombError, MemoryError) as error:
        raise ValueError(f"`{place}` is too large: {error} Make it smaller.") from None
    except Exception as error:  # Decoders raise anything for a damaged file.
        kind = "cannot be read as an image" if given else "is no image that Pillow reads"
        raise ValueError(f"`{place}` {kind}: {error}. Is the file whole?") from None


class _Refused(ValueError):
    """Raised for a readable image that is refused."""


def _upright(image: Any, place: str) -> Any:
    """Convert a Pillow image to upright `"L"` or `"RGB"`, on white where it was transparent."""
    _check_pixels(image.width, image.height, place)
    plain = image.mode in ("L", "RGB") and not _is_transparent(image)
    made = 1 if image.mode in _GREY else 4
    _check_memory(image, _bytes_a_pixel(image) + made * (not plain), place)
    image.load()
    turn = _TURNS.get(image.getexif().get(_ORIENTATION))  # behind the pixels in some files
    if turn is not None:
        _check_memory(image, _bytes_a_pixel(image) + made, place)
    image = image if plain else _plain(image, place)
    return image if turn is None else image.transpose(turn)


def _check_memory(image: Any, bytes_a_pixel: int, place: str) -> None:
    if image.width * image.height > (most := MOST_MEMORY // bytes_a_pixel):
        raise _Refused(
            f"`{place}` has {image.width:,} x {image.height:,} pixels; one of its kind "
            f"({image.format or 'Pillow'}, {image.mode}) may have {most:,}. Make it smaller."
        )


def _bytes_a_pixel(image: Any) -> int:
    """Return the bytes that the decoder of an image takes for each pixel."""
    held = 1 if image.mode in ("1", "L", "P") else 2 if image.mode.startswith("I;") else 4
    if image.info.get("progressive"):  # Of a JPEG of many scans the coefficients are held too.
        held += 2 * len(image.getbands())
    return max(held, _DECODERS.get(image.format, 0))


def _is_transparent(image: Any) -> bool:
    given = image.info.get("transparency") is not None and image.mode not in _DEEP
    colours = image.palette.mode if image.mode == "P" and image.palette else ""
    bands = {*image.getbands(), *colours}
    return given or (not {"A", "a"}.isdisjoint(bands) and image.mode != "LAB")


def _plain(image: Any, place: str) -> Any:
    """Convert an image to mode `"L"` or `"RGB"`, on white where it was transparent."""
    image_module = pillow()
    transparent, deep = _is_transparent(image), image.mode in _DEEP
    made = image_module.new("L" if image.mode in _GREY and not transparent else "RGB", image.size)
    extremes = None
    if deep:
        found = [(a.min(), a.max()) for a in (np.asarray(part) for _, part in _strips(image))]
        extremes = min(low for low, _ in found), max(high for _, high in found)
    for top, part in _strips(image):
        if deep:
            part = image_module.fromarray(_to_bytes(np.asarray(part), extremes, place))
        elif transparent:
            part = _on_white(part.convert(_BETWEEN.get(part.mode, part.mode)))
        made.paste(part.convert(made.mode), (0, top))
    return made


def _strips(image: Any) -> Iterator[tuple[int, Any]]:
    """Yield strips of an image with their first rows, so that little is held twice."""
    rows = max(_STRIP // image.width, 1)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _on_white(image: Any) -> Any:
    """Put a transparent Pillow image on white, as Transformers' `convert_to_rgb` does."""
    image_module = pillow()
    white = image_module.new("RGBA", image.size, (255, 255, 255, 255))
    return image_module.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def _of_array(array: np.ndarray, place: str) -> np.ndarray:
    grey = array.ndim == 2
    if not grey and not (array.ndim == 3 and array.shape[2] in (1, 2, 3, 4)):
        hint = ""
        if array.ndim == 3 and array.shape[0] in (1, 3, 4):
            hint = " Its channels are in front: give `np.moveaxis(image, 0, -1)`."
        raise ValueError(
            f"`{place}` must be of shape (height, width, channels) with 1, 3 or 4 channels, or 2 "
            f"of grey and alpha, received {array.shape}.{hint}"
        )
    if 0 in array.shape:
        raise ValueError(f"`{place}` has no pixels: it has shape {array.shape}.")
    _check_pixels(array.shape[1], array.shape[0], place)
    if array.dtype != np.uint8:
        array = _to_bytes(array, (array.min(), array.max()), place)
    array = array[..., None] if grey else array
    if array.shape[2] in (2, 4):
        return np.asarray(_on_white(pillow().fromarray(np.ascontiguousarray(array))))
    return np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array


def _to_bytes(array: np.ndarray, extremes: tuple, place: str) -> np.ndarray:
    """Convert pixels, all or a part, to uint8; `extremes` are those of the whole image."""
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
            f"`{place}` has floats from {low:g} to {high:g}; those of an image are from 0 to 1. "
            "Give uint8 for 0 to 255."
        )
    if array.dtype.kind in "iu" and low >= 0:
        if high <= 255:
            return array.astype("uint8")
        # What Pillow and others have of files of 16 bits.
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
