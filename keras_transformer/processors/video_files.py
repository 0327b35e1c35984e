"""Decoding of untrusted videos from files, bytes, arrays and lists of frames.

The decoder opens nothing but the file that it is given: no other file, and no connection.
"""

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from keras_transformer.processors.image_files import image_size, to_bytes
from keras_transformer.processors.media import (
    advice,
    array_of,
    files_by_class,
    is_tensor,
    opened_path,
)
from keras_transformer.processors.packages import pyav
from keras_transformer.support.checking import describe

MOST_BYTES = 2**28  # in a data URL
MOST_FRAMES = 2**17  # in a video: an hour of 30 frames a second, and some minutes
MOST_PIXELS = 2**25  # in a frame: 8K has 33 million
# Pixels of all frames up to the last one that is taken, since each is decoded: an hour of 1920 x
# 1080 at 30 frames a second has 224 billion.
MOST_DECODED = 2**38
SUFFIXES = (
    ".avi", ".flv", ".gif", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".ts", ".webm",
    ".wmv",
)  # fmt: skip
# FFmpeg's names of the formats that hold their frames themselves. Others, such as playlists (hls,
# dash, concat), name further files and addresses to open.
_FORMATS = ("asf", "avi", "flv", "gif", "matroska", "mov", "mpeg", "mpegts", "ogg")

Choose = Callable[[int, str], np.ndarray]
Take = Callable[[Any, str], np.ndarray]


class Video(NamedTuple):
    """A video of a conversation.

    Args:
        content: whatever `read_frames` reads: a path, the bytes of a file, a data URL, an array
            `(frames, height, width, 3)`, or a list of images.
        fps: number of frames of an array or a list that were taken in a second; None if
            they were chosen already, at the rate of the processor. A file states its own.

    Example:
    ```python
    import keras_transformer as kt

    content = [{"type": "video", "video": "cat.mp4"}, {"type": "text", "text": "What happens?"}]
    found = kt.data.pictured([{"role": "user", "content": content}])
    assert found.images == [kt.processors.Video("cat.mp4")]
    ```
    """

    content: Any
    fps: float | None = None


class VideoShape(NamedTuple):
    """Number and size of the frames of a video, before they are read.

    Args:
        frames: int, number of its frames.
        height: int, of a frame that is turned upright.
        width: int.
        fps: number of frames in a second, a float; None if it is an array or a list.
    """

    frames: int
    height: int
    width: int
    fps: float | None


def is_one_video(x: Any) -> bool:
    """Return whether `x` is a single video."""
    if isinstance(x, (str, bytes, bytearray, memoryview, os.PathLike, Mapping)):
        return True
    if isinstance(x, (list, tuple)):
        return bool(x) and _is_frame(x[0])
    return (is_tensor(x) or (isinstance(x, np.ndarray) and x.dtype.kind in "uifb")) and x.ndim <= 4


def _is_frame(x: Any) -> bool:
    array = isinstance(x, np.ndarray) or is_tensor(x)
    return hasattr(x, "getbands") or (array and x.ndim in (2, 3))


def read_frames(given: Any, choose: Choose, take: Take, place: str = "x") -> list[np.ndarray]:
    """Read some frames of a video, in their order.

    Frames are decoded one after another, and only what `take` returns of the chosen ones is kept.

    Args:
        given: a path; a data URL; the bytes of a file; a dict with `"bytes"` or `"path"`, as in
            `datasets`; an array or a tensor `(frames, height, width)` or `(frames, height, width,
            channels)`; or a list of frames, each of them an image.
        choose: function of the number of frames and of the name of the video, which returns the
            numbers of the wanted frames, int, in ascending order.
        take: function of a frame and of its name, which returns what is kept of it. A frame of a
            file is uint8 `(height, width, 3)`, turned upright.
        place: name of the input in error messages.

    Returns:
        What `take` returns for each wanted frame.

    Raises:
        ValueError: if the input is not a video, or is damaged or too large.
        FileNotFoundError: if a path does not exist.
        ImportError: if it is a file and PyAV is not installed.
    """
    given = _content(given)
    if isinstance(given, (str, os.PathLike)):
        with opened_path(given, place, MOST_BYTES) as (file, name):
            return _of_file(file, choose, take, name)
    if isinstance(given, (bytes, bytearray, memoryview)):
        return _of_file(io.BytesIO(given), choose, take, place)
    if isinstance(given, np.ndarray) or is_tensor(given):
        _check_array(given, place)
        frames = array_of(given)[choose(len(given), place)]
        if frames.dtype != np.uint8:  # as one array: a dark frame has small values alone
            frames = to_bytes(frames, (frames.min(), frames.max()), place)
        return [take(frame, place) for frame in frames]
    if isinstance(given, Sequence) and given:
        return [take(given[i], f"{place}[{i}]") for i in choose(len(given), place)]
    raise _no_video(given, place)


def video_shape(given: Any, place: str = "x") -> VideoShape:
    """Return the number of frames of a video and their size, of which at most one is decoded.

    Args:
        given: as for `read_frames`.
        place: as for `read_frames`.

    Raises:
        ValueError: as `read_frames`; and if a file does not state how many frames there are in a
            second.
        FileNotFoundError: if a path does not exist.
        ImportError: if it is a file and PyAV is not installed.
    """
    given = _content(given)
    if isinstance(given, (str, os.PathLike)):
        with opened_path(given, place, MOST_BYTES) as (file, name):
            return _shape_of_file(file, name)
    if isinstance(given, (bytes, bytearray, memoryview)):
        return _shape_of_file(io.BytesIO(given), place)
    if isinstance(given, np.ndarray) or is_tensor(given):
        _check_array(given, place)
        return VideoShape(*map(int, given.shape[:3]), fps=None)
    if isinstance(given, Sequence) and given:
        return VideoShape(len(given), *image_size(given[0], f"{place}[0]"), fps=None)
    raise _no_video(given, place)


def video_folder(folder: str | os.PathLike, seed: int | None = None) -> tuple[list[str], list[str]]:
    """List the videos of a folder with one subfolder per class, and their labels.

    Args:
        folder: path. `folder/waving/1.mp4` is a video of the class `"waving"`.
        seed: int, the seed of a random order, which the `validation_split` of `fit` needs, as it
            takes the last rows. Defaults to None: sorted by path, and so by class.

    Returns:
        A list of paths and a list of labels, as `VideoClassifier.fit` takes them.

    Raises:
        FileNotFoundError: if the folder does not exist.
        ValueError: if the seed is invalid, or no subfolder has videos.

    Example:
    ```python
    import pathlib, tempfile
    import numpy as np
    from PIL import Image
    import keras_transformer as kt

    folder = pathlib.Path(tempfile.mkdtemp())
    frames = [Image.fromarray(np.full((8, 8), 9 * i, "uint8")) for i in range(4)]
    for label in ("bright", "dark"):
        (folder / label).mkdir()
        frames[0].save(folder / label / "1.gif", save_all=True, append_images=frames[1:])
    videos, labels = kt.processors.video_folder(folder)
    assert labels == ["bright", "dark"]
    ```
    """
    return files_by_class(folder, seed, SUFFIXES, "video", "mp4")


def _content(given: Any) -> Any:
    """Return what a dict of `datasets` holds, or anything else as it is."""
    if not isinstance(given, Mapping):
        return given
    content, path = given.get("bytes"), given.get("path")
    return path if content is None else content


def _check_array(given: Any, place: str) -> None:
    """Raise ValueError unless an array or a tensor holds frames."""
    image = given.ndim == 3 and given.shape[2] <= 4  # (height, width, channels)
    first = given.ndim == 4 and given.shape[3] > 4 and min(given.shape[:2]) <= 4
    if given.ndim not in (3, 4) or 0 in given.shape or image or first:
        axis = 0 if given.shape[0] in (1, 3) else 1
        hint = f" Its channels come first: give `np.moveaxis(video, {axis}, -1)`." if first else ""
        raise ValueError(
            f"`{place}` must be of shape (frames, height, width, channels), received "
            f"{tuple(given.shape)}.{hint}"
        )


def _no_video(given: Any, place: str) -> ValueError:
    return ValueError(
        f"`{place}` must be a video: a path, bytes, an array (frames, height, width, channels), or "
        f"a list of frames, received {describe(given)}.{advice(given)}"
    )


def _shape_of_file(file: BinaryIO, place: str) -> VideoShape:
    """Return the shape of a video from its header and its first frame."""
    with _naming(place):
        count = _count_frames(file, place)
        with _opened(file, place) as (_, stream):
            fps = float(stream.average_rate or 0)
    if fps <= 0:
        raise _Refused(
            f"`{place}` does not state how many frames there are in a second. Give its frames as "
            "an array, and their `fps`."
        )
    found, _ = _decode(file, np.zeros(1, "int64"), lambda frame, _: frame, place)
    if found is None:
        raise _Refused(f"`{place}` has no frames. Is the file whole?")
    return VideoShape(count, *found[0].shape[:2], fps=fps)


def _of_file(file: BinaryIO, choose: Choose, take: Take, place: str) -> list[np.ndarray]:
    with _naming(place):
        count = _count_frames(file, place)
    wanted = choose(count, place)
    found, decoded = _decode(file, wanted, take, place)
    if found is None:  # the file states more frames than it has
        wanted = choose(decoded, place)
        found, _ = _decode(file, wanted, take, place)
        if found is None:
            raise ValueError(f"`{place}` cannot be read as a video. Is the file whole?")
    return [found[i] for i in wanted]


def _count_frames(file: BinaryIO, place: str) -> int:
    """Return the number of frames that the header states, or else that of the packets."""
    with _opened(file, place) as (container, stream):
        count = stream.frames
        if not count:
            for packet in container.demux(stream):
                count += bool(packet.size)
                if count > MOST_FRAMES:
                    break
    if count > MOST_FRAMES:
        raise _Refused(
            f"`{place}` has more than {MOST_FRAMES:,} frames, which a video may have. Cut it into "
            "pieces."
        )
    if not count:
        raise _Refused(f"`{place}` has no frames. Is the file whole?")
    return count


def _decode(
    file: BinaryIO, wanted: np.ndarray, take: Take, place: str
) -> tuple[dict[int, np.ndarray] | None, int]:
    """Return what is taken of the wanted frames by number, and how many frames were decoded.

    It is None instead if the video has fewer frames.
    """
    found: dict[int, np.ndarray] = {}
    chosen, last = set(map(int, wanted)), int(wanted[-1])
    most = min(MOST_PIXELS, MOST_DECODED // (last + 1))
    number = 0
    with _naming(place), _opened(file, place) as (container, stream):
        stream.thread_type = "AUTO"
        for frame in container.decode(stream):
            if frame.width * frame.height > most:
                raise _Refused(
                    f"`{place}` has frames of {frame.width:,} x {frame.height:,} pixels, of which "
                    f"{last + 1:,} would be decoded; they may have {most:,} pixels. Make them "
                    "smaller, or cut the video into pieces."
                )
            if number in chosen:
                pixels = np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))
                found[number] = take(np.ascontiguousarray(pixels), place)
            number += 1
            if number > last:
                return found, number
    return None, number


@contextlib.contextmanager
def _opened(file: BinaryIO, place: str) -> Iterator[tuple[Any, Any]]:
    """Yield the container of a file, from its beginning, and its first stream of frames."""
    file.seek(0)
    options = {
        "format_whitelist": ",".join(_FORMATS),
        "protocol_whitelist": "none",  # there is no protocol of this name
        "max_pixels": str(MOST_PIXELS),
    }
    with pyav().open(file, options=options, metadata_errors="ignore", io_open=_refuse) as container:
        streams = container.streams.video
        if not streams:
            raise _Refused(f"`{place}` has no frames, only sound or texts.")
        if streams[0].codec_context is None:
            raise _Refused(
                f"`{place}` is compressed in a way that the installed PyAV cannot decode. Convert "
                "it, such as by `ffmpeg -i INPUT -c:v libx264 OUTPUT.mp4`."
            )
        yield container, streams[0]


def _refuse(url: str, flags: int, options: dict) -> None:
    """Refuse to open what a file names."""
    raise PermissionError(f"a video may not open {url!r}")


@contextlib.contextmanager
def _naming(place: str) -> Iterator[None]:
    """Raise ValueError, with the name of the video, for errors of the decoder."""
    module = pyav()
    try:
        yield
    except _Refused:
        raise
    except (module.FFmpegError, PermissionError) as error:
        raise ValueError(
            f"`{place}` cannot be read as a video: {error.strerror or error}. Is the file whole, "
            f"of one of the formats {', '.join(_FORMATS)}, and with frames of at most "
            f"{MOST_PIXELS:,} pixels?"
        ) from None


class _Refused(ValueError):
    """Raised if a video can be read, but is refused."""
