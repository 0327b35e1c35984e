"""How the chats of a model write an image, a video and a recording."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from keras_transformer.support.checking import shorten
from keras_transformer.tokenizers.chat import render_all

_PLACE = "{image}"
_ASKED = "What is in this image"


class VideoText(str):
    """The text of a video in a chat, with `"{image}"` for each run of its states."""


class SoundText(str):
    """The text of a recording in a chat, with `"{image}"` for its states."""


class ImageMarkup(NamedTuple):
    """The tokens and the text that stand for an image, a video or a recording in a model's chats.

    Args:
        token: str, the token that each state of an image replaces, such as `"<image>"`.
        mark: str, the token that chat templates write for an image. Usually the same.
        text: str, what replaces the mark, with `"{image}"` for the states of the image.
        video: str, the token that chat templates write for a video, or None if the model reads
            none. A video has a text of its own, a `VideoText`.
        around: strs, what templates write around this token. It goes where the text of the video
            has it.
        sound: str, the token that chat templates write for a recording, or None if the model hears
            none. A recording has a text of its own, a `SoundText`.

    Example:
    ```python
    from keras_transformer.tokenizers import ImageMarkup

    markup = ImageMarkup("<soft>", "<start>", "<start>{image}<end>")
    assert markup.written("user: <start> what is it?") == "user: <start><soft><end> what is it?"
    ```
    """

    token: str
    mark: str
    text: str = _PLACE
    video: str | None = None
    around: tuple[str, str] = ("", "")
    sound: str | None = None

    @property
    def _kinds(self) -> dict[str, tuple[str, str, type | None]]:
        """The kind of a part, its name, and the class of its text, by what templates write."""
        kinds: dict[str, tuple[str, str, type | None]] = {self.mark: ("image", "an image", None)}
        if self.video is not None:
            kinds[self.video] = ("video", "a video", VideoText)
        if self.sound is not None:
            kinds[self.sound] = ("audio", "a recording", SoundText)
        return kinds

    def check_content(self, content: Any, place: str) -> None:
        """Raise ValueError unless a content is a text, or a list of texts and what is known."""
        if isinstance(content, str):
            self._check_text(content, place)
            return
        if not isinstance(content, (list, tuple)):
            raise ValueError(
                f"{place}: 'content' must be a string or a list of parts, but is "
                f"{type(content).__name__}."
            )
        for i, part in enumerate(content):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind == "text" and isinstance(part.get("text"), str):
                self._check_text(part["text"], f"{place}, part {i}")
            elif kind not in (known for known, *_ in self._kinds.values()):
                raise ValueError(
                    f"{place}, part {i} must be {{'type': 'text', 'text': ...}} or {{'type': "
                    f"'image', 'image': ...}}, received {shorten(part)}."
                )

    def _check_text(self, text: str, place: str) -> None:
        kinds = self._kinds
        for token, (kind, an, _) in {self.token: kinds[self.mark], **kinds}.items():
            if token in text:
                raise ValueError(
                    f"{place}: the text has {token!r}, which stands for {an}. Give the "
                    f"{an.split()[1]} as a part, {{'type': '{kind}', '{kind}': ...}}, or leave the "
                    "token out."
                )

    def written(self, text: str, texts: Sequence[str | None] = ()) -> str:
        """Return the text of a chat with `text` in place of each mark.

        `texts` are those of the first images, videos and recordings, in their order, if they have
        texts of their own.

        Raises:
            ValueError: if those of the chat are not those of `texts`, in order.
        """
        kinds = self._kinds
        written, last = [], 0
        for number, found in enumerate(self._marks.finditer(text)):
            own = texts[number] if number < len(texts) else None
            *_, kind = kinds[found.group()]
            given = type(own) if isinstance(own, (VideoText, SoundText)) else None
            if number < len(texts) and kind is not given:
                raise ValueError(
                    "The chat template does not write the images and videos, or the recordings, of "
                    "the messages in their order."
                )
            start, end = found.span()
            if kind is VideoText and own is not None and own != _PLACE:
                before, behind = self.around
                start -= len(before) if text.endswith(before, last, start) else 0
                end += len(behind) if text.startswith(behind, end) else 0
            own = own or (self.text if kind is None else _PLACE)
            written += [text[last:start], own.replace(_PLACE, self.token)]
            last = end
        return "".join([*written, text[last:]])

    @property
    def _marks(self) -> re.Pattern:
        """The pattern of what a template writes for an image, a video or a recording."""
        return re.compile("|".join(map(re.escape, self._kinds)))

    def takes_parts(self, template: str, variables: Mapping[str, Any]) -> bool:
        """Return whether a template takes contents that are lists of parts."""
        content = [{"type": "text", "text": _ASKED}, {"type": "image"}]
        chat = {
            **variables,
            "messages": [{"role": "user", "content": content}],
            "tools": None,
            "documents": None,
            "add_generation_prompt": False,
        }
        ((kind, text),) = render_all(template, [chat])
        return kind == "text" and self.mark in text and _ASKED in text and "'type'" not in text

    def in_parts(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages whose contents are lists of parts."""
        return [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if isinstance(message.get("content"), str)
            else dict(message)
            for message in messages
        ]

    def in_texts(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages whose contents are strings, with a mark for each part beside texts."""
        marks = {kind: mark for mark, (kind, *_) in self._kinds.items()}
        return [
            {
                **message,
                "content": "".join(
                    marks.get(part["type"]) or part["text"] for part in message["content"]
                ),
            }
            if isinstance(message.get("content"), (list, tuple))
            else dict(message)
            for message in messages
        ]
