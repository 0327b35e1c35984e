"""The packages that read files, asked for where one is read."""


def pillow() -> tuple:
    """`PIL.Image` and `PIL.ImageOps`. ImportError with what to install."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ImportError(
            "Images are read by Pillow, which is not installed. Run `pip install "
            '"keras_transformer[images]"`.'
        ) from None
    return Image, ImageOps
