"""Token ids of conversations, and which of them a model learns to write.

The chat template renders a conversation once, as a whole. What the assistant writes in it is found
in one of two ways: between the marks `{% generation %}` of a template that has them, otherwise by
rendering the beginnings of the conversation. An answer begins where the prompt for it ends, which
is the text that a model is given when it answers, and ends where its message ends, with whatever
the template writes after it. If a beginning is not rendered in the same way alone and in the whole
conversation, the place of the message is found by rendering the conversation with other characters
in it. If that leaves a doubt, the template is refused.
"""

import contextlib
import itertools
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.support.checking import check_choice
from keras_transformer.tokenizers.chat import check_messages, check_values, render_all, text_of
from keras_transformer.tokenizers.chat_child import GENERATION_MARKS
from keras_transformer.tokenizers.chats import SpecialMarks, strings_of
from keras_transformer.tokenizers.image_markup import ImageMarkup
from keras_transformer.tokenizers.tokenizer import Tokenizer

TRAIN_ON = ("assistant", "completion", "all")
_GROUP = 64  # the most conversations whose texts are rendered in one request
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_GENERATION = re.compile(r"\{%[-+]?\s*generation\b")
# Strings of a message that templates may check, so that they are not varied.
_FIXED = ("role", "type", "id", "tool_call_id")


class ConversationTokens(NamedTuple):
    """Token ids of a conversation, and whether the loss counts each, see `encode_conversation`.

    Args:
        ids: list of int.
        counted: list of bool, as long as `ids`.
    """

    ids: list[int]
    counted: list[bool]


def encode_conversation(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    train_on: str = "assistant",
    tools: Sequence[Mapping[str, Any]] | None = None,
    prompt: int = 0,
) -> ConversationTokens:
    """Return the ids of a conversation, and which of them the loss counts.

    An answer counts from the end of the prompt for it, which `add_generation_prompt` ends, to the
    end of what the template writes for its message, such as `<|im_end|>` and a line break. A token
    that has a character of an answer counts.

    Args:
        tokenizer: `Tokenizer` with a chat template.
        messages: list of dicts, as for `Tokenizer.render_chat`.
        train_on: `"assistant"`, all messages of the assistant; `"completion"`, its last one; or
            `"all"`, all tokens.
        tools: descriptions of functions that the model may call, as dicts of JSON values.
        prompt: int, the number of messages at the beginning that do not count in any case.

    Returns:
        `ConversationTokens`, whose ids are those of
        `tokenizer.encode_chat(messages, tools=tools, add_generation_prompt=False)`.

    Raises:
        ImportError: if jinja2 is not installed.
        ValueError: if there is no template, a message is invalid, there is no message of the
            assistant, or the template does not tell exactly where the answers are.

    Example:
    ```python
    from keras_transformer.tokenizers import Tokenizer, encode_conversation

    tokenizer = Tokenizer.train(["user: hello"] * 2, vocabulary_size=300)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]
    ids, counted = encode_conversation(tokenizer, chat)
    answer = [id for id, counts in zip(ids, counted) if counts]
    assert answer[-1] == tokenizer.end_id and tokenizer.decode(answer) == "yes"
    ```
    """
    return ConversationEncoder(tokenizer, train_on)(messages, tools, prompt)


class ConversationEncoder:
    """Encoder of many conversations, see `encode_conversation`.

    Args:
        tokenizer: `Tokenizer` with a chat template.
        train_on: as for `encode_conversation`.
        images: how the chats write an image, if contents of messages may be lists of parts, texts
            and images. An image gives one token, which never counts.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        train_on: str = "assistant",
        images: ImageMarkup | None = None,
    ):
        check_choice("train_on", train_on, TRAIN_ON)
        tokenizer.check_chat_template()
        self._tokenizer, self._train_on, self._images = tokenizer, train_on, images
        self._marks = SpecialMarks(tokenizer._backend, "")
        if images is not None:
            template, variables = tokenizer.chat_template, tokenizer.chat_variables()
            takes_parts = images.takes_parts(template, variables)
            self._formed = images.in_parts if takes_parts else images.in_texts

    def __call__(self, messages, tools=None, prompt: int = 0) -> ConversationTokens:
        """Encode one conversation, see `encode_conversation`."""
        return self.encode([(messages, tools, prompt)])[0]

    def encode(
        self, conversations: Sequence[tuple], place: Callable[[int], str] | None = None
    ) -> list[ConversationTokens]:
        """Encode many conversations, tuples of messages, tools, and the length of the prompt.

        A fourth element are the texts of its images, as for `ImageMarkup.written`. `place` names a
        conversation in errors, by its index.
        """
        found: list[ConversationTokens] = []
        for start in range(0, len(conversations), _GROUP):
            group = conversations[start : start + _GROUP]
            renderings = []
            for index, given in enumerate(group, start):
                with _naming(place, index):
                    renderings.append(self._rendering(*given))
            found += self._encoded(renderings, start, place)
        return found

    def encode_prompts(
        self,
        conversations: Sequence[Sequence],
        place: Callable[[int], str] | None = None,
        images: Sequence[Sequence[str | None]] | None = None,
    ) -> list[list[int]]:
        """Return the ids that a model answers, of conversations without the answer.

        `place` is as for `encode`, `images` are the texts of the images of each conversation.
        """
        renderings = []
        for index, messages in enumerate(conversations):
            with _naming(place, index):
                texts = () if images is None else images[index]
                renderings.append(self._rendering(messages, None, 0, texts))
        wanted = {i: [r.chat(r.messages, asks=True)] for i, r in enumerate(renderings)}
        found = self._rendered(renderings, wanted)
        rows = []
        for index, rendering in enumerate(renderings):
            with _naming(place, index):
                text = text_of(*found[index][0])
                if rendering.is_marked:
                    text, _ = _between(text, rendering.begin, rendering.end)
                rows.append(self._tokens(rendering.marks, text, []).ids)
        return rows

    def _rendering(self, messages, tools, prompt: int, images: Sequence = ()) -> "_Rendering":
        check = None if self._images is None else self._images.check_content
        given = {"messages": check_messages(messages, check), "tools": check_values(tools, "tools")}
        written = strings_of(given)
        marks = self._marks
        if not marks.characters.isdisjoint(written):
            marks = SpecialMarks(self._tokenizer._backend, written)
        hidden = marks.hide(given)
        if self._images is not None:  # behind `hide`, since texts then hold the template's mark
            hidden["messages"] = self._formed(hidden["messages"])
        return _Rendering(self._tokenizer, marks, hidden, prompt, images)

    def _encoded(self, renderings: list, start: int, place) -> list[ConversationTokens]:
        """Encode a group of conversations, whose texts are rendered together."""
        found: dict[int, ConversationTokens] = {}
        searches = {i: _marked(r, self._train_on) for i, r in enumerate(renderings)}
        answers: dict[int, list | None] = dict.fromkeys(searches)
        while searches:
            wanted: dict[int, list] = {}
            for i, search in list(searches.items()):
                with _naming(place, start + i):
                    try:
                        wanted[i] = search.send(answers[i])
                    except StopIteration as done:
                        found[i] = self._tokens(renderings[i].marks, *done.value)
                        del searches[i]
            answers = self._rendered(renderings, wanted)
        return [found[i] for i in range(len(renderings))]

    def _rendered(self, renderings: list, wanted: dict[int, list]) -> dict[int, list]:
        """Return the texts that searches want, of one request if it is within the limits."""
        template, chats = self._tokenizer.chat_template, list(itertools.chain(*wanted.values()))
        results = iter(render_all(template, chats) if chats else ())
        found = {i: list(itertools.islice(results, len(some))) for i, some in wanted.items()}
        for i, some in wanted.items():
            if len(wanted) > 1 and any(kind == "size" for kind, _ in found[i]):
                found[i] = render_all(template, some)  # alone it may be within them
            found[i] = [
                (kind, self._marked(renderings[i], text) if kind == "text" else text)
                for kind, text in found[i]
            ]
        return found

    def _marked(self, rendering: "_Rendering", text: str) -> str:
        """Return a rendered text with its images written and its special tokens marked."""
        if self._images is not None:
            text = self._images.written(text, rendering.images)
        return rendering.marks.mark(text)

    def _tokens(self, marks: SpecialMarks, text: str, spans: list) -> ConversationTokens:
        text, spans = _shown(marks, text, spans)
        with self._tokenizer._refusing("encode"):
            encoding = marks.backend.encode(text, add_special_tokens=False)
        ids, counted = marks.ids_of(encoding), _inside(encoding.offsets, text, spans)
        if self._images is not None:
            image = self._tokenizer.token_to_id(self._images.token)
            counted = [counts and id != image for id, counts in zip(ids, counted, strict=True)]
        return ConversationTokens(ids, counted)


@contextlib.contextmanager
def _naming(place: Callable[[int], str] | None, index: int) -> Iterator[None]:
    """Add the name of a conversation to errors."""
    try:
        yield
    except ValueError as error:
        if place is None:
            raise
        raise ValueError(f"{place(index)}: {error}") from error


def encode_completion(
    tokenizer: Tokenizer, prompt: str, completion: str, train_on: str = "assistant"
) -> ConversationTokens:
    """Return the ids of a text and its continuation, of which only the continuation counts.

    The two are read as one text, which ends with the end token. No template is needed.

    Args:
        tokenizer: `Tokenizer`.
        prompt: str, which does not count, except with `train_on="all"`.
        completion: str.
        train_on: as for `encode_conversation`.

    Example:
    ```python
    from keras_transformer.tokenizers import Tokenizer, encode_completion

    tokenizer = Tokenizer.train(["two and two: four"] * 2, vocabulary_size=300)
    ids, counted = encode_completion(tokenizer, "two and two:", " four")
    answer = [id for id, counts in zip(ids, counted) if counts]
    assert answer[-1] == tokenizer.end_id and tokenizer.decode(answer) == "four"
    ```
    """
    check_choice("train_on", train_on, TRAIN_ON)
    text = prompt + completion
    (encoding,) = tokenizer.encode_batch_with_offsets([text])
    counted = _inside(encoding.offsets, text, [(len(prompt), len(text))])
    added = [number is None for number in encoding.sequence_ids]
    rows = list(zip(encoding.ids, counted, added, strict=True))
    while rows and rows[-1][2]:  # an end that the tokenizer's template adds
        rows.pop()
    ids = [id for id, _, _ in rows]
    counted = [counts and not special for _, counts, special in rows]
    if tokenizer.end_id is not None and ids[-1:] != [tokenizer.end_id]:
        ids, counted = [*ids, tokenizer.end_id], [*counted, True]
    return ConversationTokens(ids, [True] * len(ids) if train_on == "all" else counted)


class _Rendering:
    """The variables that a template gets for a conversation, and for its beginnings."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        marks: SpecialMarks,
        given: dict,
        prompt: int,
        images: Sequence = (),
    ):
        self.marks, self.messages, self.prompt = marks, given["messages"], prompt
        self.images = images
        self.begin, self.end, *self._others = marks.spare
        template = _COMMENT.sub("", tokenizer.chat_template)
        self.is_marked = _GENERATION.search(template) is not None
        self._variables = {**tokenizer.chat_variables(), **given, "documents": None}
        if self.is_marked:
            self._variables |= zip(GENERATION_MARKS, (self.begin, self.end), strict=True)

    def chat(self, messages: Sequence, asks: bool = False) -> dict[str, Any]:
        """Return the variables for these messages, followed by a generation prompt if it `asks`."""
        return {**self._variables, "messages": messages, "add_generation_prompt": asks}

    def varied(self, index: int, count: int | None = None) -> list:
        """Return the first `count` messages, with other first and last characters in one."""
        messages = list(self.messages[:count])
        messages[index] = {
            name: value if name in _FIXED else self._changed(value)
            for name, value in messages[index].items()
        }
        return messages

    def _changed(self, value: Any) -> Any:
        if isinstance(value, str):
            return value.join(self._others)
        if isinstance(value, Mapping):
            return {n: v if n in _FIXED else self._changed(v) for n, v in value.items()}
        return [self._changed(each) for each in value] if isinstance(value, list) else value


Span = tuple[int, int]
# A search for the counted parts of a conversation yields the chats that it wants rendered, receives
# the kind and text of each, and returns the conversation's text and the spans in it.
Search = Generator[list[dict], list[tuple[str, str]], tuple[str, list[Span]]]


def _marked(rendering: _Rendering, train_on: str) -> Search:
    """Search for the counted parts of a conversation; special tokens are marks in its text."""
    messages = rendering.messages
    if train_on == "all":
        (result,) = yield [rendering.chat(messages)]
        text, _ = _between(text_of(*result), rendering.begin, rendering.end)
        return text, [(0, len(text))]
    first = rendering.prompt
    turns = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i >= first]
    if not turns:
        raise ValueError(
            "There is no message of the assistant to learn from: its role must be 'assistant', "
            f"received {[message['role'] for message in messages]}."
        )
    turns = turns[-1:] if train_on == "completion" else turns
    find = _spans_of_marks if rendering.is_marked else _spans_of_beginnings
    return (yield from find(rendering, turns))


def _spans_of_marks(rendering: _Rendering, turns: list[int]) -> Search:
    """Search in a template that marks what the assistant writes."""
    wanted = [rendering.chat(rendering.messages)]
    before = rendering.messages[: turns[0]]
    if any(message["role"] == "assistant" for message in before):
        wanted.append(rendering.chat(before))
    result, *beginnings = yield wanted
    text, spans = _between(text_of(*result), rendering.begin, rendering.end)
    for beginning in beginnings:
        known = _between(_rendered(beginning, turns[0]), rendering.begin, rendering.end)[1]
        spans = spans[len(known) :]
    if not spans:
        raise _inexact(turns[-1], "there is nothing between its marks of what the assistant writes")
    return text, spans


def _between(text: str, begin: str, end: str) -> tuple[str, list[Span]]:
    """Return a text without marks, and the spans between a `begin` and an `end`."""
    parts, spans, length, start = [], [], 0, 0
    for part in re.split(f"([{begin}{end}])", text):
        if part == begin:
            start = length
        elif part == end:
            spans.append((start, length))
        else:
            parts.append(part)
            length += len(part)
    return "".join(parts), [span for span in spans if span[0] < span[1]]


def _spans_of_beginnings(rendering: _Rendering, turns: list[int]) -> Search:
    """Search by rendering the beginnings of the conversation."""
    messages = rendering.messages
    wanted = [rendering.chat(messages)]
    for i in turns:
        wanted.append(rendering.chat(messages[:i], asks=True))
        if i + 1 < len(messages):
            wanted += [rendering.chat(messages[:i]), rendering.chat(messages[: i + 1], asks=True)]
    result, *beginnings = yield wanted
    text, spans = text_of(*result), []
    for i in turns:
        number = 1 if i + 1 == len(messages) else 3
        some, beginnings = beginnings[:number], beginnings[number:]
        spans.append((yield from _span(rendering, text, i, *some)))
    return text, spans


def _span(rendering: _Rendering, text: str, index: int, before, *others) -> Generator:
    """Search for a message in a text, given the renderings of `_spans_of_beginnings`."""
    prompt = _rendered(before, index)
    if not others:  # the last message
        if not text.startswith(prompt):
            raise _inexact(index, "its text does not begin with the prompt that asks for it")
        return len(prompt), len(text)
    bare, asking = (_rendered(result, index) for result in others)
    header = prompt[_shared(bare, prompt) :]  # the generation prompt
    if not asking.endswith(header):
        raise _inexact(index, "the prompt for an answer depends on the messages before it")
    alone = asking[: len(asking) - len(header)]
    if alone.startswith(prompt) and text.startswith(alone):
        return len(prompt), len(alone)
    # The beginning is rendered differently when more messages follow: find the message itself.
    varied, varied_alone = yield [
        rendering.chat(rendering.varied(index)),
        rendering.chat(rendering.varied(index, index + 1), asks=True),
    ]
    begin, end = _changed(text, _rendered(varied, index))
    begin_alone, end_alone = _changed(asking, _rendered(varied_alone, index))
    closing = alone[end_alone:]
    if begin == len(text) or not text.startswith(closing, end):
        raise _inexact(index, "it ends differently when more messages follow")
    end += len(closing)
    if text.startswith(prompt) and len(prompt) <= begin:
        return len(prompt), end
    answer = alone[len(prompt) :]
    start = begin - (begin_alone - len(prompt))
    if not alone.startswith(prompt) or start < 0 or text[start:end] != answer:
        raise _inexact(index, "its text is different when more messages follow")
    return start, end


def _rendered(result: tuple[str, str], index: int) -> str:
    kind, text = result
    if kind != "text":
        raise _inexact(index, f"it refuses a part of the conversation: {text}")
    return text


def _inexact(index: int, why: str) -> ValueError:
    return ValueError(
        "The chat template does not tell exactly which text "
        f"messages[{index}] gives: {why}. Put {{% generation %}} and {{% endgeneration %}} around "
        "what the assistant writes in `tokenizer.chat_template`; or give each answer a row of its "
        'own, with train_on="completion", if only the last one counts; or count all tokens, '
        'train_on="all".'
    )


def _shared(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # bisected, since texts are compared faster than their characters
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one.startswith(other[:middle]) else (low, middle - 1)
    return low


def _changed(text: str, varied: str) -> Span:
    """Return the part of a text that differs in the same text with a varied message."""
    begin = _shared(text, varied)
    rest, other = text[begin:], varied[begin:]
    return begin, len(text) - _shared(rest[::-1], other[::-1])


def _shown(marks: SpecialMarks, text: str, spans: list[Span]) -> tuple[str, list[Span]]:
    """Return text and spans with the special tokens of messages written out."""
    places = [0, *itertools.chain(*spans), len(text)]
    parts = [marks.show(text[a:b]) for a, b in itertools.pairwise(places)]
    ends = list(itertools.accumulate(map(len, parts)))
    return "".join(parts), [(ends[i], ends[i + 1]) for i in range(0, len(ends) - 1, 2)]


def _inside(offsets: list[Span], text: str, spans: list[Span]) -> list[bool]:
    """Return for each token whether a character of it, or its place, is within a span."""
    inside = np.zeros(len(text) + 1, "int64")
    for begin, end in spans:
        inside[begin:end] = 1
    total = np.concatenate([[0], np.cumsum(inside)])
    begins, ends = np.asarray(offsets, "int64").reshape(-1, 2).T
    return (total[np.maximum(ends, begins + 1)] > total[begins]).tolist()
