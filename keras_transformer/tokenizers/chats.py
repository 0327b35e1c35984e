"""A tokenizer's chats: their text, and their ids, in which no message can pass for the template."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tokenizers

from keras_transformer.tokenizers.backend import copy_backend
from keras_transformer.tokenizers.chat import render_chat
from keras_transformer.tokenizers.folder import PUBLISHED_KEYS


class Chats:
    """Mixin of `Tokenizer`: `render_chat` and `encode_chat`."""

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text of a chat by `chat_template`, as Transformers' `apply_chat_template`.

        The text has the special tokens in it. `encode_chat` gives its ids.

        Args:
            messages: dicts with the strings `role` (`"system"`, `"user"`, `"assistant"`, ...)
                and `content`, and further keys that the template may know.
            add_generation_prompt: end with what comes before the assistant's next answer.
            tools: descriptions of functions that the model may call, as dicts of JSON values.
            **variables: what else the template knows, such as `enable_thinking`.

        Returns:
            A string.

        Raises:
            ImportError: if jinja2 is not installed.
            ValueError: if there is no template, if a message is wrong, or if the template is or
                refuses the chat.

        Example:
        ```python
        from keras_transformer.tokenizers import Tokenizer

        tokenizer = Tokenizer.train(["user: hello"] * 2, vocabulary_size=300)
        tokenizer.chat_template = (
            "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
        )
        text = tokenizer.render_chat([{"role": "user", "content": "hello"}])
        assert text == "user: hello</s>"
        assert tokenizer.encode(text, special_tokens=False)[-1] == tokenizer.end_id
        ```
        """
        if self.chat_template is None:
            raise ValueError(
                "The tokenizer has no chat template: it is not that of a chat model. Set its "
                "`chat_template`, or write the prompt as the model was trained on it."
            )
        return render_chat(
            self.chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            special_tokens={PUBLISHED_KEYS[r][0]: t for r, t in self._roles.items() if t},
            tools=tools,
            **variables,
        )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """The ids of a chat, in which special tokens are those of the template alone.

        A special token that is written out in a message, such as `</s>`, is encoded as the
        characters that it is written with, so that no message can end its turn and begin another.

        Args:
            messages: as of `render_chat`.
            **options: as of `render_chat`.

        Returns:
            A list of ints: of messages without special tokens those of
            `encode(render_chat(messages), special_tokens=False)`.

        Raises:
            ImportError: if jinja2 is not installed.
            ValueError: as `render_chat`.

        Example:
        ```python
        from keras_transformer.tokenizers import Tokenizer

        tokenizer = Tokenizer.train(["user: hello"] * 2, vocabulary_size=300)
        tokenizer.chat_template = "{{ messages[0].content }}{{ eos_token }}"
        ids = tokenizer.encode_chat([{"role": "user", "content": "a</s>b"}])
        assert ids.count(tokenizer.end_id) == 1 and tokenizer.decode(ids) == "a</s>b"
        ```
        """
        given = {"messages": messages, **options}
        written = "\0".join(_texts(given))
        added = self._backend.get_added_tokens_decoder().values()
        special = {token.content: token for token in added if token.special and token.content}
        if not any(token in written for token in special):
            return self.encode(self.render_chat(**given), special_tokens=False)
        # Characters that nobody writes stand for those of messages while the template is rendered,
        # and others for its own while the text is encoded, of which the library takes no other.
        unused = (chr(code) for code in range(0xF0000, 0xFFFFD) if chr(code) not in written)
        theirs = dict(zip(special, unused, strict=False))
        text = self.render_chat(**_replaced(given, theirs))
        ours = dict(zip(special, unused, strict=False))
        text = _pattern(ours).sub(lambda found: ours[found[0]], text)
        for token, mark in theirs.items():
            text = text.replace(mark, token)
        backend = copy_backend(self._backend)
        backend.encode_special_tokens = True
        backend.add_tokens([_named(special[token], mark) for token, mark in ours.items()])
        ids = {backend.token_to_id(m): backend.token_to_id(t) for t, m in ours.items()}
        with self._refusing("encode"):
            encoding = backend.encode(text, add_special_tokens=False)
        return [ids.get(id, id) for id in encoding.ids]


def _texts(value: Any) -> Iterator[str]:
    """All strings of JSON, names too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _texts(pair)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)


def _replaced(value: Any, marks: Mapping[str, str]) -> Any:
    """JSON with a character in the place of each special token."""
    if isinstance(value, str):
        return _pattern(marks).sub(lambda found: marks[found[0]], value)
    if isinstance(value, Mapping):
        return {_replaced(n, marks): _replaced(each, marks) for n, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replaced(each, marks) for each in value]
    return value


def _pattern(tokens: Iterable[str]) -> re.Pattern:
    """Each of the tokens; of several that begin at one place the longest."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))


def _named(token: tokenizers.AddedToken, name: str) -> tokenizers.AddedToken:
    """A token that is cut out of a text as another is, by another name."""
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    return tokenizers.AddedToken(name, **{flag: getattr(token, flag) for flag in flags})
