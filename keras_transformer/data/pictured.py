"""Conversations with images, videos and recordings: what each part of a message holds."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from keras_transformer.processors.audio_files import Sound
from keras_transformer.processors.video_files import Video
from keras_transformer.support.checking import check_number, describe, shorten

# Keys of a part that hold its image: ours and Transformers', OpenAI's, and those of `datasets`.
_KEYS = ("image", "image_url", "url", "path", "bytes", "base64")
_OTHERS = ("type", "detail", "text")
_VIDEO_KEYS = ("video", "video_url", "url", "path", "bytes", "base64")
_KINDS = ("image", "image_url", "input_image")
_VIDEO_KINDS = ("video", "video_url", "input_video")
_SOUND_KEYS = ("audio", "input_audio", "audio_url", "url", "path", "bytes", "base64")
_SOUND_KINDS = ("audio", "audio_url", "input_audio")
# What a part may hold, by its kind.
_CONTENTS = {"image": "a picture", "video": "frames", "audio": "samples"}
_SCHEMES = ("http://", "https://", "file://", "ftp://")


class Pictured(NamedTuple):
    """Messages whose images, videos and recordings are apart.

    Args:
        messages: list of dicts. Contents that were lists of parts have `{"type": "text", "text":
            str}`, for each image `{"type": "image"}`, for each video `{"type": "video"}`, and for
            each recording `{"type": "audio"}`.
        images: list of the images, of the videos, each a `processors.Video`, and of the recordings,
            each a `processors.Sound`, in the order of these parts.

    Example:
    ```python
    from keras_transformer.data import pictured

    content = [{"type": "image", "image": "cat.png"}, {"type": "text", "text": "What is it?"}]
    found = pictured([{"role": "user", "content": content}])
    assert found.images == ["cat.png"]
    assert found.messages[0]["content"][0] == {"type": "image"}
    ```
    """

    messages: list[dict[str, Any]]
    images: list[Any]


def pictured(
    messages: Sequence[Mapping[str, Any]], images: Sequence | None = None, place: str = "messages"
) -> Pictured:
    """Return messages apart from their images, videos and recordings.

    Args:
        messages: list of dicts with `role` and `content`, a string or a list of parts: a string,
            `{"type": "text", "text": str}`, `{"type": "image", "image": image}`, or in OpenAI's
            form `{"type": "image_url", "image_url": {"url": str}}`. An image is whatever
            `processors.ImageProcessor` reads. A video is `{"type": "video", "video": video}`, with
            `"fps"` if it is an array or a list of frames, see `processors.Video`. A recording is
            `{"type": "audio", "audio": recording}`, see `processors.Sound`, or in OpenAI's form
            `{"type": "input_audio", "input_audio": {"data": str}}`.
        images: the images of parts `{"type": "image"}` that hold none, and the videos and
            recordings, each a `processors.Video` or `processors.Sound`, of such parts `{"type":
            "video"}` and `{"type": "audio"}`. Each kind is in the order of its parts.
        place: how errors name the messages.

    Raises:
        ValueError: if a part is neither a text, nor an image, a video or a recording, or the
            numbers of images and of parts without one differ.
    """
    given: dict[str, list] = {"image": [], "video": [], "audio": []}
    for one in images or ():
        kind = "video" if isinstance(one, Video) else "audio" if isinstance(one, Sound) else "image"
        given[kind].append(one)
    waiting = {kind: iter(each) for kind, each in given.items()}
    found, made = [], []
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, (list, tuple)):
            made.append(message)
            continue
        parts = []
        for i, part in enumerate(content):
            where = f"{place}[{number}], part {i}"
            text = part if isinstance(part, str) else _text_of(part)
            if text is not None:
                parts.append({"type": "text", "text": text})
                continue
            kind, read, lacks = _kind_of(part)
            one = read(part, where)
            one = next(waiting[kind], None) if one is None else one
            if one is None:
                raise ValueError(
                    f"{where} is {lacks}: give {{'type': '{kind}', '{kind}': ...}}, or a column "
                    f"'{kind}s' with a list for each conversation"
                    + (f", which has only {len(given[kind])} here." if given[kind] else ".")
                )
            found.append(one)
            parts.append({"type": kind})
        made.append({**message, "content": parts})
    for kind, each in waiting.items():
        left = len(list(each))
        if left:
            raise ValueError(
                f"{place} have {len(given[kind]) - left} parts {{'type': '{kind}'}} without "
                f"{_CONTENTS[kind]}, and there are {len(given[kind])} '{kind}s': give as many "
                "parts."
            )
    return Pictured(made, found)


def _kind_of(part: Any) -> tuple[str, Callable, str]:
    """Return the kind of a part beside texts, who reads it, and what it may lack."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _VIDEO_KINDS:
        return "video", _video_of, "a video without its frames"
    if kind in _SOUND_KINDS:
        return "audio", _sound_of, "a recording without its samples"
    return "image", _image_of, "an image without its picture"


def _text_of(part: Any) -> str | None:
    kinds = ("text", "input_text", "output_text")
    is_text = isinstance(part, Mapping) and part.get("type") in kinds
    return part["text"] if is_text and isinstance(part.get("text"), str) else None


def _image_of(part: Any, where: str) -> Any:
    """Return the image of a part; None if the part has none."""
    if not isinstance(part, Mapping) or part.get("type") not in _KINDS:
        raise ValueError(
            f"{where} must be a text, {{'type': 'text', 'text': ...}}, or an image, {{'type': "
            f"'image', 'image': ...}}, received {describe(part)}."
        )
    return _held(part, "an image", _KEYS, _OTHERS, where)


def _video_of(part: Mapping, where: str) -> Video | None:
    """Return the video of a part; None if the part has none."""
    content = _held(part, "a video", _VIDEO_KEYS, ("type", "text", "fps"), where)
    if content is None:
        return None
    fps = part.get("fps")
    if fps is not None:
        fps = check_number(f"{where}: 'fps'", fps, above=1e-9, at_most=10**6)
    return Video(content, fps)


def _sound_of(part: Mapping, where: str) -> Sound | None:
    """Return the recording of a part; None if the part has none."""
    held = part.get("input_audio")
    if isinstance(held, Mapping):  # OpenAI's form
        if not isinstance(held.get("data"), str):
            raise ValueError(f"{where}: 'input_audio' must hold 'data', the file in base64.")
        part = {**part, "input_audio": f"data:;base64,{held['data']}"}
    content = _held(part, "a recording", _SOUND_KEYS, ("type", "text", "sampling_rate"), where)
    if content is None:
        return None
    rate = part.get("sampling_rate")
    if rate is not None:
        check_number(f"{where}: 'sampling_rate'", rate, above=0)
        if isinstance(content, (str, bytes, bytearray, os.PathLike, Mapping, tuple)):
            raise ValueError(
                f"{where}: 'sampling_rate' is for an array of samples alone: what is given states "
                "its own."
            )
        content = (content, rate)
    return Sound(content)


def _held(
    part: Mapping, kind: str, keys: tuple[str, ...], others: tuple[str, ...], where: str
) -> Any:
    """Return what a part holds; None if it holds nothing."""
    held = {key: part[key] for key in keys if part.get(key) is not None}
    unknown = [key for key in part if key not in (*keys, *others)]
    if unknown or len(held) > 1:
        raise ValueError(
            f"{where} has the keys {shorten(list(part))}: beside 'type' {kind} has one of "
            f"{', '.join(map(repr, keys))}."
        )
    if not held:
        return None
    ((key, content),) = held.items()
    if key == "base64":
        return f"data:;base64,{content}"
    if key.endswith("_url") and isinstance(content, Mapping):
        content = content.get("url")
    if key.endswith("url") and not isinstance(content, str):
        raise ValueError(f"{where}: {key!r} must hold a URL, received {describe(content)}.")
    if isinstance(content, str) and content.lower().startswith(_SCHEMES):
        raise ValueError(
            f"{where} is a URL, {shorten(content)}, but nothing is fetched. Give a path, the bytes "
            "of the file, a data URL, or what is in it."
        )
    return content


def is_messages(x: Any) -> bool:
    """Return whether `x` is one conversation, a list of messages, valid or not."""
    return isinstance(x, (list, tuple)) and len(x) > 0 and _is_message(x[0])


def _is_message(x: Any) -> bool:
    return isinstance(x, Mapping) and "role" in x
