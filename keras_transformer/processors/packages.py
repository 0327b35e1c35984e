"""The packages that read files, asked for where one is read."""


def pillow():
    """Return the module `PIL.Image`. Raises ImportError that says what to install."""
    try:
        from PIL import Image
    except ImportError:
        raise _missing("Images are read by Pillow", "images") from None
    return Image


def soundfile():
    """The module `soundfile`. ImportError with what to install."""
    try:
        import soundfile
    except ImportError:
        raise _missing("Files of sound are read by soundfile", "audio") from None
    return soundfile


def soxr():
    """The module `soxr`. ImportError with what to install."""
    try:
        import soxr
    except ImportError:
        raise _missing("Sound is resampled by soxr", "audio") from None
    return soxr


def _missing(what: str, extra: str) -> ImportError:
    return ImportError(
        f'{what}, which is not installed. Run `pip install "keras_transformer[{extra}]"`.'
    )
