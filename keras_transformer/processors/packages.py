"""Packages for reading files, which are imported only when a file is read."""


def pillow():
    """Return the module `PIL.Image`. Raises ImportError, with what to install, if it is missing."""
    try:
        from PIL import Image
    except ImportError:
        raise _missing("Images are read by Pillow", "images") from None
    return Image


def soundfile():
    """Return the module `soundfile`. Raises ImportError, with what to install, if it is missing."""
    try:
        import soundfile
    except ImportError:
        raise _missing("Audio files are read by soundfile", "audio") from None
    return soundfile


def soxr():
    """Return the module `soxr`. Raises ImportError, with what to install, if it is missing."""
    try:
        import soxr
    except ImportError:
        raise _missing("Audio is resampled by soxr", "audio") from None
    return soxr


def pyav():
    """Return the module `av`. Raises ImportError, with what to install, if it is missing."""
    try:
        import av
    except ImportError:
        raise _missing("Videos are read by PyAV", "video") from None
    return av


def _missing(what: str, extra: str) -> ImportError:
    return ImportError(
        f'{what}, which is not installed. Run `pip install "keras_transformer[{extra}]"`.'
    )
