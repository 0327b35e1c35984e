"""Chats of a tokenizer: their text, and ids in which no message can imitate special tokens."""

import copy
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import tokenizers

from keras_transformer.support.checking import check_text, shorten
from keras_transformer.tokenizers.backend import copy_backend
from keras_transformer.tokenizers.chat import render_chat
from keras_transformer.tokenizers.chat_templates import TEMPLATES, NamedTemplate
from keras_transformer.tokenizers.folder import PUBLISHED_KEYS

_PRIVATE = (0xF0000, 0xFFFFD)  # a range of characters for private use
_MARK = re.compile(f"[{chr(_PRIVATE[0])}-{chr(_PRIVATE[1])}]")


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
        self.check_chat_template()
        return render_chat(
            self.chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            special_tokens=self.chat_variables(),
            tools=tools,
            **variables,
        )

    def with_chat_template(self, template: str, end: str | None = None) -> Self:
        """Return a tokenizer with the same tokens and another chat template.

        Use it to make an assistant of a base model, whose tokenizer has no template:
        `lm = CausalLM(lm.backbone, lm.tokenizer.with_chat_template("zephyr"))`. Presets store the
        template.

        Args:
            template: a template in Jinja, or the name of one: `"chatml"`, whose tokens
                `<|im_start|>` and `<|im_end|>` the vocabulary must have; `"zephyr"`, which needs no
                tokens but the tokenizer's end token; or `"alpaca"`, which needs the same.
            end: the token that ends a message, which becomes the tokenizer's end token, so that
                `generate` ends there. Defaults to the current one, for `"chatml"` to
                `<|im_end|>`.

        Raises:
            ValueError: if the template is neither known nor one in Jinja, or the vocabulary lacks
                a token that it needs.

        Example:
        ```python
        from keras_transformer.tokenizers import Tokenizer

        tokenizer = Tokenizer.train(["hello"] * 2, vocabulary_size=300)
        tokenizer = tokenizer.with_chat_template("zephyr")
        chat = [{"role": "user", "content": "hello"}]
        text = tokenizer.render_chat(chat)
        assert text.splitlines() == ["<|user|>", "hello</s>", "<|assistant|>"]
        ```
        """
        known = TEMPLATES.get(check_text("template", template))
        if known is None and "{" not in template:
            raise ValueError(
                f"`template` must be a template in Jinja or one of {', '.join(TEMPLATES)}, "
                f"received {shorten(template)}."
            )
        text, tokens = known or NamedTemplate(template)
        end = end or (tokens[-1] if tokens else self._roles["end"])
        needed = tokens if known is None and end is None else (*tokens, end)
        for token in needed:
            if token is None or self.token_to_id(token) is None:
                missing = "end token" if token is None else f"token {token!r}"
                raise ValueError(
                    f"The vocabulary has no {missing}, which the chat template needs. Train a "
                    "tokenizer that has it, or give another template: 'zephyr' and 'alpaca' need "
                    "nothing but an end token."
                )
        found = copy.copy(self)
        found.__dict__.pop("special_ids", None)  # cached, and depends on the roles
        found._roles, found.chat_template = {**self._roles, "end": end}, text
        return found

    def check_chat_template(self) -> None:
        """Raise ValueError if the tokenizer has no chat template."""
        if self.chat_template is None:
            raise ValueError(
                "The tokenizer has no chat template: it does not belong to a chat model. Set its "
                "`chat_template`, or write the prompt in the form that the model was trained on. "
                "To train a chat model, see `with_chat_template`."
            )

    def chat_variables(self) -> dict[str, str]:
        """Return the variables of a template that hold special tokens, such as `eos_token`."""
        return {PUBLISHED_KEYS[role][0]: token for role, token in self._roles.items() if token}

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
        written = strings_of(given)
        if not any(token in written for token in special_tokens(self._backend)):
            return self.encode(self.render_chat(**given), special_tokens=False)
        marks = SpecialMarks(self._backend, written)
        text = marks.mark(self.render_chat(**marks.hide(given)))
        with self._refusing("encode"):
            encoding = marks.backend.encode(marks.show(text), add_special_tokens=False)
        return marks.ids_of(encoding)


class SpecialMarks:
    """Characters that tell the special tokens of a template from those written in messages.

    Private use characters stand for special tokens in messages while the template is rendered, and
    others stand for the template's own while the text is encoded. The library recognizes only the
    latter as special tokens.

    Args:
        backend: the `tokenizers.Tokenizer`.
        written: str, text with all characters of the messages, none of which becomes a mark.

    Attributes:
        backend: a copy of the backend, which knows the marks of the template's tokens. It does not
            trim the offsets of tokens.
        spare: four more characters that the messages do not have.
        characters: the set of all these characters.
    """

    def __init__(self, backend: tokenizers.Tokenizer, written: str):
        special = special_tokens(backend)
        unused = (chr(code) for code in range(*_PRIVATE) if chr(code) not in written)
        self._theirs = dict(zip(special, unused, strict=False))
        self._ours = dict(zip(special, unused, strict=False))
        self._written = {mark: token for token, mark in self._theirs.items()}
        self.spare = tuple(itertools.islice(unused, 4))
        self.characters = {*self._theirs.values(), *self._ours.values(), *self.spare}
        self._pattern = _pattern(special)
        self.backend = copy_backend(backend)
        self.backend.post_processor = None  # it adds nothing to a chat, but trims offsets
        self.backend.encode_special_tokens = True
        self.backend.add_tokens(
            [_named(special[token], mark) for token, mark in self._ours.items()]
        )
        find = self.backend.token_to_id
        self._ids = {find(mark): find(token) for token, mark in self._ours.items()}

    def hide(self, value: Any) -> Any:
        """Return a JSON value with one character in place of each special token in its strings."""
        if isinstance(value, str):
            return self._pattern.sub(lambda found: self._theirs[found[0]], value)
        if isinstance(value, Mapping):
            return {self.hide(name): self.hide(each) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide(each) for each in value]
        return value

    def mark(self, text: str) -> str:
        """Return a rendered text with one character in place of each token of the template."""
        return self._pattern.sub(lambda found: self._ours[found[0]], text)

    def show(self, text: str) -> str:
        """Return a text in which the special tokens of messages are written out again."""
        return _MARK.sub(lambda found: self._written.get(found[0], found[0]), text)

    def ids_of(self, encoding: tokenizers.Encoding) -> list[int]:
        """Return the ids of an encoding of `backend`, with special tokens in place of marks."""
        return [self._ids.get(id, id) for id in encoding.ids]


def special_tokens(backend: tokenizers.Tokenizer) -> dict[str, tokenizers.AddedToken]:
    """Return the special tokens of a backend by their text."""
    added = backend.get_added_tokens_decoder().values()
    return {token.content: token for token in added if token.special and token.content}


def strings_of(value: Any) -> str:
    """Return all strings of a JSON value, and the keys of objects, between null characters."""
    return "\0".join(_texts(value))


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


def _pattern(tokens: Iterable[str]) -> re.Pattern:
    """Return a pattern that matches any of the tokens, and prefers the longest."""
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) if longest_first else "(?!)")


def _named(token: tokenizers.AddedToken, name: str) -> tokenizers.AddedToken:
    """Return a token that is split from a text as `token` is, under another name."""
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    return tokenizers.AddedToken(name, **{flag: getattr(token, flag) for flag in flags})
