"""How the chats of a model write an image."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from keras_transformer.support.checking import shorten
from keras_transformer.tokenizers.chat import render_all

_PLACE = "{image}"
_ASKED = "What is in this image"


class ImageMarkup(NamedTuple):
    """The tokens and the text that stand for an image in the chats of a model.

    Args:
        token: str, the token that each state of an image replaces, such as `"<image>"`.
        mark: str, the token that chat templates write for an image. Usually the same.
        text: str, what replaces the mark, with `"{image}"` for the states of the image.

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

    def check_content(self, content: Any, place: str) -> None:
        """Raise ValueError unless a content is a text, or a list of parts: texts and images."""
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
            elif kind != "image":
                raise ValueError(
                    f"{place}, part {i} must be {{'type': 'text', 'text': ...}} or {{'type': "
                    f"'image', 'image': ...}}, received {shorten(part)}."
                )

    def _check_text(self, text: str, place: str) -> None:
        for token in dict.fromkeys((self.token, self.mark)):
            if token in text:
                raise ValueError(
                    f"{place}: the text has {token!r}, which stands for an image. Give the image "
                    "as a part, {'type': 'image', 'image': ...}, or leave the token out."
                )

    def written(self, text: str, texts: Sequence[str | None] = ()) -> str:
        """Return the text of a chat with `text` in place of each mark.

        `texts` are those of the first images, if they have texts of their own.
        """
        before, *behind = text.split(self.mark)
        own = [each or self.text for each in texts[: len(behind)]]
        own += [self.text] * (len(behind) - len(own))
        for image, rest in zip(own, behind, strict=True):
            before += image.replace(_PLACE, self.token) + rest
        return before

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
        """Return messages whose contents are strings, with the mark in place of each image."""
        return [
            {
                **message,
                "content": "".join(
                    self.mark if part["type"] == "image" else part["text"]
                    for part in message["content"]
                ),
            }
            if isinstance(message.get("content"), (list, tuple))
            else dict(message)
            for message in messages
        ]
