"""Decoding of untrusted recordings from files, bytes, arrays and objects of other libraries."""

import io
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.processors.media import (
    advice,
    array_of,
    files_by_class,
    is_tensor,
    read_path,
    told,
)
from keras_transformer.processors.packages import soundfile, soxr
from keras_transformer.support.checking import describe, is_int, is_number

MOST_BYTES = 2**30  # in a file
MOST_SAMPLES = 2**28  # in a recording, all channels: 4.6 hours at 16 kHz, 1 GB of float32
_MOST_CHANNELS = 64
# Floats above this are integers of 16 bits or more that were converted without a division. The
# samples of a recording are from -1 to 1, and a little above if it was resampled or made louder.
_LOUDEST = 100.0
_RATES = (100, 1_000_000)
# Largest factor by which resampling may increase the rate, such as from 1 kHz to 16 kHz.
_MOST_GROWTH = 16
SUFFIXES = (".aif", ".aiff", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav")


class Sound(NamedTuple):
    """A recording in a conversation.

    Args:
        content: whatever `read_audio` reads: a path, a data URL, bytes, samples with their rate
            `(array, rate)`, or an array at the rate of the model.

    Example:
    ```python
    import keras_transformer as kt

    content = [{"type": "audio", "audio": "cat.wav"}, {"type": "text", "text": "What is it?"}]
    found = kt.data.pictured([{"role": "user", "content": content}])
    assert found.images == [kt.processors.Sound("cat.wav")]
    ```
    """

    content: Any


class TooLong(ValueError):
    """Raised if a recording has more samples than are allowed."""


def is_one_recording(x: Any) -> bool:
    """Return whether `x` is a single recording.

    An array with few columns is one recording `(samples, channels)`, as stereo files are decoded:
    as rows of several recordings, each would last less than a hundredth of a second.
    """
    if isinstance(x, (str, bytes, bytearray, memoryview, os.PathLike, Mapping)) or _is_decoder(x):
        return True
    if isinstance(x, tuple) and len(x) == 2 and (is_number(x[1]) or _is_rate_first(x)):
        return True
    if not is_tensor(x) and not (isinstance(x, np.ndarray) and x.dtype.kind in "uif"):
        return False
    return x.ndim <= 1 or (x.ndim == 2 and 1 <= x.shape[1] <= _MOST_CHANNELS)


def _is_rate_first(x: tuple) -> bool:
    """Return whether a pair is a rate and samples, as `scipy.io.wavfile.read` returns them."""
    return is_number(x[0]) and hasattr(x[1], "__array__")


def read_audio(given: Any, sampling_rate: int, place: str = "x") -> np.ndarray:
    """Read the samples of a recording, float32 `(samples,)`, mono, from -1 to 1.

    Args:
        given: a path; a data URL; the bytes of a file; a dict with `"bytes"` or `"path"`, or with
            `"array"` and `"sampling_rate"`, as in `datasets`; a tuple of an array and its rate; or
            an array alone, whose rate is taken to be `sampling_rate`. Arrays and tensors are
            `(samples,)` or `(samples, channels)`, floats or integers of 16 or 32 bits. Channels are
            averaged.
        sampling_rate: int, samples per second in the result.
        place: name of the input in error messages.

    Raises:
        ValueError: if the input is not a recording, or is damaged, empty or too long; if samples
            are not finite; or if the rate is out of range or below a sixteenth of `sampling_rate`.
            Rates and lengths are checked before anything is decoded or resampled.
        FileNotFoundError: if a path does not exist.
        ImportError: if soundfile is needed to read a file, or soxr to resample, and is missing.
    """
    samples, rate, shown = _opened(given, sampling_rate, place)
    if samples.ndim == 2:
        samples = samples.mean(axis=1)
    if not samples.size:
        raise ValueError(f"`{shown}` has no samples: it is empty.")
    if not np.isfinite(samples).all():
        raise ValueError(f"`{shown}` has samples that are NaN or infinite.")
    if (loudest := max(float(samples.max()), -float(samples.min()))) > _LOUDEST:
        raise ValueError(
            f"`{shown}` has floats up to {loudest:g}, but samples must be from -1 to 1. Give "
            "integers of 16 or 32 bits as they are, or divide them: by 2**15 if they had 16 bits."
        )
    if rate != sampling_rate:
        samples = soxr().resample(samples, rate, sampling_rate)
        if not samples.size:
            raise ValueError(f"`{shown}` is too short: it has no sample at {sampling_rate} Hz.")
    return np.ascontiguousarray(samples, "float32")


def audio_folder(folder: str | os.PathLike, seed: int | None = None) -> tuple[list[str], list[str]]:
    """List the recordings of a folder with one subfolder per class, and their labels.

    Args:
        folder: path. `folder/yes/1.wav` is a recording of the class `"yes"`.
        seed: int, the seed of a random order, which the `validation_split` of `fit` needs, as it
            takes the last rows. Defaults to None: sorted by path, and so by class.

    Returns:
        A list of paths and a list of labels, as `AudioClassifier.fit` takes them.

    Raises:
        FileNotFoundError: if the folder does not exist.
        ValueError: if the seed is invalid, or no subfolder has recordings.

    Example:
    ```python
    import pathlib, tempfile
    import numpy as np
    import soundfile
    import keras_transformer as kt

    folder = pathlib.Path(tempfile.mkdtemp())
    for label in ("yes", "no"):
        (folder / label).mkdir()
        soundfile.write(folder / label / "1.wav", np.zeros(800), 8000)
    recordings, labels = kt.processors.audio_folder(folder)
    assert labels == ["no", "yes"]
    ```
    """
    return files_by_class(folder, seed, SUFFIXES, "recording", "wav")


def count_samples(
    given: Any, sampling_rate: int, place: str = "x", most: int = MOST_SAMPLES
) -> int:
    """Return the number of samples that `read_audio` would return; for a file, from its header.

    If the recording is resampled, the number may be wrong by one.

    Args:
        given: as in `read_audio`.
        sampling_rate: int, samples per second after reading.
        place: name of the input in error messages.
        most: int, most samples of all channels at the file's rate, and of the one channel at
            `sampling_rate`. Defaults to `MOST_SAMPLES`.

    Raises:
        ValueError: as in `read_audio`; a `TooLong` if there are more samples than `most`.
    """
    content = given
    if isinstance(given, Mapping) and given.get("array") is None:
        content = next((given[n] for n in ("bytes", "path") if given.get(n) is not None), None)
    if isinstance(content, (str, os.PathLike)):
        content, place = read_path(content, place, MOST_BYTES)
    if not isinstance(content, (bytes, bytearray, memoryview)):
        return len(read_audio(given, sampling_rate, place))
    module = soundfile()
    try:
        with module.SoundFile(io.BytesIO(bytes(content))) as file:
            sizes = (file.frames, file.channels, file.samplerate)
            _check_length(*sizes, sampling_rate, place, most)
            return max(-(-file.frames * sampling_rate // file.samplerate), 1)
    except module.LibsndfileError as error:
        raise _unreadable(place, error) from None


def _unreadable(place: str, error: Exception) -> ValueError:
    return ValueError(f"`{place}` cannot be read as audio: {told(error)} Is the file whole?")


def _opened(given: Any, usual_rate: int, place: str) -> tuple[np.ndarray, int, str]:
    """Return float32 samples, with channels last if any, their rate, and their name in errors."""
    if isinstance(given, Mapping):
        content = next(
            (given[n] for n in ("array", "bytes", "path") if given.get(n) is not None), None
        )
        rate = given.get("sampling_rate")
        given = content if given.get("array") is None or rate is None else (content, rate)
    if _is_decoder(given):
        decoded = given.get_all_samples()
        given = (np.moveaxis(np.asarray(decoded.data), 0, -1), decoded.sample_rate)
    rate = usual_rate
    if isinstance(given, tuple) and len(given) == 2:
        if _is_rate_first(given):
            raise ValueError(f"`{place}` has its rate first: give `(samples, rate)`.")
        given, rate = given
    if isinstance(given, (str, os.PathLike)):
        given, place = read_path(given, place, MOST_BYTES)
    if isinstance(given, (bytes, bytearray, memoryview)):
        return *_decoded(bytes(given), usual_rate, place), place
    if isinstance(given, list) and given and all(isinstance(n, (int, float)) for n in given):
        given = np.asarray(given, "float64")
    if isinstance(given, np.ndarray) or hasattr(given, "__array__"):
        array = array_of(given)
        _check_shape(array, place)
        _check_length(len(array), array.size // max(len(array), 1), rate, usual_rate, place)
        return _of_array(array, place), rate, place
    raise ValueError(
        f"`{place}` must be a recording: a path, bytes, an array (samples,), or an array and its "
        f"rate, received {describe(given)}.{advice(given)}"
    )


def _decoded(content: bytes, sampling_rate: int, place: str) -> tuple[np.ndarray, int]:
    module = soundfile()
    try:
        with module.SoundFile(io.BytesIO(content)) as file:
            # The header of a damaged file may state any number of samples.
            _check_length(file.frames, file.channels, file.samplerate, sampling_rate, place)
            return file.read(dtype="float32"), file.samplerate
    except module.LibsndfileError as error:
        raise _unreadable(place, error) from None


def _check_length(
    count: int, channels: int, rate: Any, sampling_rate: int, place: str, most: int = MOST_SAMPLES
) -> None:
    """Check the rate and the length of a recording. Raises ValueError if one is out of range."""
    if not (is_int(rate) or isinstance(rate, float)) or not _RATES[0] <= rate <= _RATES[1]:
        raise ValueError(
            f"`{place}` must have a rate of {_RATES[0]} to {_RATES[1]:,} samples a second, "
            f"received {describe(rate)}."
        )
    if rate * _MOST_GROWTH < sampling_rate:
        raise ValueError(
            f"`{place}` has a rate of {rate:,} samples a second, but the model reads "
            f"{sampling_rate:,}, more than {_MOST_GROWTH} times as many. Is its rate correct?"
        )
    if channels > _MOST_CHANNELS:
        raise ValueError(
            f"`{place}` has {channels:,} channels, but a recording may have {_MOST_CHANNELS}. Mix "
            "them down, or keep one."
        )
    resampled = math.ceil(count / rate * sampling_rate)
    if max(count * channels, resampled) > most:
        raise TooLong(
            f"`{place}` has {count:,} samples of {channels} channels at {rate:,} Hz, {resampled:,} "
            f"at {sampling_rate:,} Hz; a recording may have {most:,}. Cut it into pieces."
        )


def _check_shape(array: np.ndarray, place: str) -> None:
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] > _MOST_CHANNELS):
        hint = ""
        if array.ndim == 2 and 1 <= array.shape[0] <= _MOST_CHANNELS:
            hint = " Its channels come first: give `recording.T`."
        raise ValueError(
            f"`{place}` must be of shape (samples,) or (samples, channels), received "
            f"{array.shape}.{hint}"
        )


def _of_array(array: np.ndarray, place: str) -> np.ndarray:
    if array.dtype.kind == "f":
        return array.astype("float32")
    if array.dtype.kind == "i" and array.dtype.itemsize in (2, 4):
        return array.astype("float32") / -float(np.iinfo(array.dtype).min)
    raise ValueError(
        f"`{place}` must hold floats from -1 to 1, or integers of 16 or 32 bits, received "
        f"{array.dtype}."
    )


def _is_decoder(x: Any) -> bool:
    """Return whether `x` is an audio decoder of torchcodec, as `datasets` returns."""
    return hasattr(x, "get_all_samples")
