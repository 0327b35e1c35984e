"""Conversations with images: which image each part of a message holds."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from keras_transformer.support.checking import describe, shorten

# Keys of a part that hold its image: ours and Transformers', OpenAI's, and those of `datasets`.
_KEYS = ("image", "image_url", "url", "path", "bytes", "base64")
_OTHERS = ("type", "detail", "text")
_SCHEMES = ("http://", "https://", "file://", "ftp://")


class Pictured(NamedTuple):
    """Messages whose images are apart.

    Args:
        messages: list of dicts. Contents that were lists of parts have `{"type": "text", "text":
            str}` and, for each image, `{"type": "image"}`.
        images: list of the images, in the order of these parts.

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
    """Return messages and their images apart.

    Args:
        messages: list of dicts with `role` and `content`, a string or a list of parts: a string,
            `{"type": "text", "text": str}`, `{"type": "image", "image": image}`, or in OpenAI's
            form `{"type": "image_url", "image_url": {"url": str}}`. An image is whatever
            `processors.ImageProcessor` reads.
        images: the images of parts `{"type": "image"}` that hold none, in this order.
        place: how errors name the messages.

    Raises:
        ValueError: if a part is neither a text nor an image, or the numbers of images and of parts
            without one differ.
    """
    given, used = list(images or ()), 0
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
            image = _image_of(part, where)
            if image is None and used < len(given):
                image, used = given[used], used + 1
            elif image is None:
                raise ValueError(
                    f"{where} is an image without its picture: give {{'type': 'image', 'image': "
                    "...}, or a column 'images' with a list of pictures for each conversation"
                    + (f", which has only {len(given)} here." if given else ".")
                )
            found.append(image)
            parts.append({"type": "image"})
        made.append({**message, "content": parts})
    if used < len(given):
        raise ValueError(
            f"{place} have {used} parts {{'type': 'image'}} without a picture, and there are "
            f"{len(given)} 'images': give as many parts."
        )
    return Pictured(made, found)


def _text_of(part: Any) -> str | None:
    kinds = ("text", "input_text", "output_text")
    is_text = isinstance(part, Mapping) and part.get("type") in kinds
    return part["text"] if is_text and isinstance(part.get("text"), str) else None


def _image_of(part: Any, where: str) -> Any:
    """Return the image of a part; None if the part has none."""
    kinds = ("image", "image_url", "input_image")
    if not isinstance(part, Mapping) or part.get("type") not in kinds:
        raise ValueError(
            f"{where} must be a text, {{'type': 'text', 'text': ...}}, or an image, {{'type': "
            f"'image', 'image': ...}}, received {describe(part)}."
        )
    held = {key: part[key] for key in _KEYS if part.get(key) is not None}
    unknown = [key for key in part if key not in (*_KEYS, *_OTHERS)]
    if unknown or len(held) > 1:
        raise ValueError(
            f"{where} has the keys {shorten(list(part))}: beside 'type' an image has one of "
            f"{', '.join(map(repr, _KEYS))}."
        )
    if not held:
        return None
    ((key, image),) = held.items()
    if key == "base64":
        return f"data:;base64,{image}"
    if key == "image_url" and isinstance(image, Mapping):
        image = image.get("url")
    if key in ("image_url", "url") and not isinstance(image, str):
        raise ValueError(f"{where}: {key!r} must hold a URL, received {describe(image)}.")
    if isinstance(image, str) and image.lower().startswith(_SCHEMES):
        raise ValueError(
            f"{where} is a URL, {shorten(image)}, but nothing is fetched. Give a path, the bytes "
            "of the file, a picture, or a data URL."
        )
    return image


def is_messages(x: Any) -> bool:
    """Return whether `x` is one conversation, a list of messages, valid or not."""
    return isinstance(x, (list, tuple)) and len(x) > 0 and _is_message(x[0])


def _is_message(x: Any) -> bool:
    return isinstance(x, Mapping) and "role" in x
