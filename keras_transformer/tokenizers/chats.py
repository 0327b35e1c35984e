"""Chats of a tokenizer: their text, and ids in which no message can imitate special tokens."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tokenizers

from keras_transformer.tokenizers.backend import copy_backend
from keras_transformer.tokenizers.chat import render_chat
from keras_transformer.tokenizers.folder import PUBLISHED_KEYS


class Chats:
    """Mixin of `Tokenizer` that renders and encodes chats."""

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Render a chat with `chat_template`, as Transformers' `apply_chat_template` does.

        The text includes the special tokens. `encode_chat` returns its ids.

        Args:
            messages: dicts with the strings `role` (`"system"`, `"user"`, `"assistant"`, ...) and
                `content`, and other keys that the template may use.
            add_generation_prompt: end with the beginning of the assistant's next answer.
            tools: descriptions of functions that the model may call, as dicts of JSON values.
            **variables: other variables of the template, such as `enable_thinking`.

        Returns:
            A string.

        Raises:
            ImportError: if jinja2 is not installed.
            ValueError: if there is no template, if a message is invalid, if the template is
                invalid, or if it rejects the chat.

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
                "The tokenizer has no chat template: it does not belong to a chat model. Set its "
                "`chat_template`, or write the prompt in the form that the model was trained on."
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
        """Return the ids of a chat, in which all special tokens come from the template.

        A special token that is written out in a message, such as `</s>`, is encoded as ordinary
        characters, so that no message can end its turn and begin another.

        Args:
            messages: as in `render_chat`.
            **options: as in `render_chat`.

        Returns:
            A list of ints. If the messages contain no special tokens, it equals
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
        # Private use characters stand for special tokens in messages while the template is
        # rendered, and others stand for the template's own while the text is encoded. The library
        # recognizes only the latter as special tokens.
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
    """Yield all strings of a JSON value, including the keys of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _texts(pair)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)


def _replaced(value: Any, marks: Mapping[str, str]) -> Any:
    """Return a JSON value with one character in place of each special token."""
    if isinstance(value, str):
        return _pattern(marks).sub(lambda found: marks[found[0]], value)
    if isinstance(value, Mapping):
        return {_replaced(n, marks): _replaced(each, marks) for n, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replaced(each, marks) for each in value]
    return value


def _pattern(tokens: Iterable[str]) -> re.Pattern:
    """Return a pattern that matches any of the tokens, and prefers the longest."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))


def _named(token: tokenizers.AddedToken, name: str) -> tokenizers.AddedToken:
    """Return a token that is split from a text as `token` is, under another name."""
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    return tokenizers.AddedToken(name, **{flag: getattr(token, flag) for flag in flags})
