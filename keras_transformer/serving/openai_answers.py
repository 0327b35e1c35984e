"""The answers of OpenAI's API, as its clients read them."""

import base64
import codecs
import dataclasses
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.generation.scoring import TokenScores
from keras_transformer.serving.openai_errors import ApiError
from keras_transformer.serving.worker import Done
from keras_transformer.tokenizers.pieces import token_bytes


class Called(NamedTuple):
    """A function that a text turns out to call."""

    name: str
    id: str


class Arguments(NamedTuple):
    """More of the arguments of a call, as text."""

    text: str


@dataclasses.dataclass
class Text:
    """One text of an answer: what is written of it so far.

    Args:
        prompt: list of ids that are continued.
        content: str.
        choice: str, what is written of the name of a function; None as long as it may be a text.
        call: `Called`, if it calls a function.
        arguments: str, of the call.
        token_ids: list of the ids that were written.
        done: `Done`, once it is complete.
        score: log-probabilities in the form of the endpoint, if they are wanted.
        rank: the mean log-probability of the ids that were written, if it is wanted.
    """

    prompt: list[int]
    content: str = ""
    choice: str | None = None
    call: Called | None = None
    arguments: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    done: Done | None = None
    score: Any = None
    rank: float = 0.0

    def add(self, told: Any) -> None:
        """Take what is new of the text: a `Piece`, `Called`, `Arguments` or `Done`."""
        if isinstance(told, Called):
            self.call = told
        elif isinstance(told, Arguments):
            self.arguments += told.text
        elif isinstance(told, Done):
            self.done = told
        else:
            self.content += told.text


class Form(NamedTuple):
    """How an endpoint gives texts.

    Fields:
        prefix: of the ids of answers.
        whole: the name of an answer.
        chunk: the name of a part of a stream.
        is_chat: bool, whether a text is a message.
    """

    prefix: str
    whole: str
    chunk: str
    is_chat: bool


COMPLETION = Form("cmpl", "text_completion", "text_completion", False)
CHAT = Form("chatcmpl", "chat.completion", "chat.completion.chunk", True)


class Answer:
    """One answer of an endpoint: as a whole, and as the server-sent events of a stream."""

    def __init__(self, form: Form, model: str, given: Mapping[str, Any]):
        self.is_chat = form.is_chat
        self.form = form
        self.base = {
            "id": f"{form.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, texts: list[Text], usage: dict[str, int]) -> dict[str, Any]:
        """The answer with all texts at once."""
        choices = [
            {
                "index": index,
                **(self._message(text) if self.is_chat else {"text": text.content}),
                "logprobs": text.score,
                "finish_reason": text.done.reason,
            }
            for index, text in enumerate(texts)
        ]
        return {**self.base, "object": self.form.whole, "choices": choices, "usage": usage}

    def begun(self, count: int) -> Iterator[str]:
        """The events before the first text."""
        if self.is_chat:
            for index in range(count):
                yield self._chunk(index, {"delta": {"role": "assistant", "content": ""}})

    def told(self, index: int, told: Any, text: Text) -> Iterator[str]:
        """The events of what is new of a text, a `Piece`, `Called`, `Arguments` or `Done`."""
        if isinstance(told, Done):
            content: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": ""}
            yield self._chunk(index, content, told.reason, text.score)
        elif isinstance(told, (Called, Arguments)):
            call: dict[str, Any] = {"index": 0, "function": {"arguments": ""}}
            if isinstance(told, Called):
                call |= {"id": told.id, "type": "function"}
                call["function"] = {"name": told.name, "arguments": ""}
            else:
                call["function"] = {"arguments": told.text}
            yield self._chunk(index, {"delta": {"tool_calls": [call]}})
        elif self.is_chat:
            yield self._chunk(index, {"delta": {"content": told.text}})
        else:
            yield self._chunk(index, {"text": told.text})

    def closed(self, usage: dict[str, int], wanted: bool) -> Iterator[str]:
        """The events behind all texts; with the numbers of tokens where they are wanted."""
        if wanted:
            yield self._event({"choices": [], "usage": usage})
        yield "data: [DONE]\n\n"

    def failed(self, error: ApiError) -> Iterator[str]:
        """The events of an error, which is the end."""
        yield f"data: {json.dumps(error.body, ensure_ascii=False)}\n\n"

    def _message(self, text: Text) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text.content, "refusal": None}
        if text.call is not None:
            function = {"name": text.call.name, "arguments": text.arguments}
            message["content"] = text.content or None
            message["tool_calls"] = [{"id": text.call.id, "type": "function", "function": function}]
        return {"message": message}

    def _chunk(
        self, index: int, content: dict[str, Any], reason: str | None = None, score: Any = None
    ) -> str:
        choice = {"index": index, **content, "logprobs": score, "finish_reason": reason}
        return self._event({"choices": [choice], "usage": None})

    def _event(self, given: dict[str, Any]) -> str:
        chunk = {**self.base, "object": self.form.chunk, **given}
        return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


def usage_of(prompts: int, written: int) -> dict[str, int]:
    """The numbers of tokens."""
    return {
        "prompt_tokens": prompts,
        "completion_tokens": written,
        "total_tokens": prompts + written,
    }


class Logprobs:
    """The log-probabilities of tokens, by their texts, for one tokenizer."""

    def __init__(self, tokenizer: Any):
        names = {index: token for token, index in tokenizer.get_vocabulary().items()}
        pieces = token_bytes(tokenizer)
        self._added = [piece or b"" for piece in pieces]
        # A token that adds nothing to a text, as an end, is called by its name.
        self._bytes = [
            names.get(i, "").encode() if piece is None else piece for i, piece in enumerate(pieces)
        ]

    def of(
        self,
        is_chat: bool,
        ids: list[int],
        scores: TokenScores,
        top_k: int,
        whole: str | None = None,
    ) -> dict[str, Any]:
        """The log-probabilities of a text, as an endpoint gives them.

        With the `whole` text the ids begin with its first, which has no log-probability.
        """
        values = np.asarray(scores.log_probabilities, "float64").tolist()
        best: list[list[tuple[int, float]]] = [[] for _ in values]
        if top_k:
            best = [
                list(zip(best_ids, row, strict=True))
                for best_ids, row in zip(
                    scores.best_ids.tolist(), scores.best.tolist(), strict=True
                )
            ]
        if is_chat:
            content = [
                {**self._entry(token, value), "top_logprobs": [self._entry(*pair) for pair in row]}
                for token, value, row in zip(ids, values, best, strict=True)
            ]
            return {"content": content, "refusal": None}
        decoder, offset, offsets = codecs.getincrementaldecoder("utf-8")("ignore"), 0, []
        texts = [self._text(token) for token in ids]
        for place, token in enumerate(ids):
            offsets.append(offset)
            added = decoder.decode(self._added[token])
            if whole and added and not offset and added.startswith(" ") and whole[0] != " ":
                # The space that a tokenizer puts before a text is not in it.
                texts[place] = added = added[1:]
            offset += len(added)
        unknown: list[Any] = [] if whole is None else [None]
        top = [{self._text(i): value for i, value in row} for row in best]
        return {
            "tokens": texts,
            "token_logprobs": unknown + values,
            "top_logprobs": unknown + top if top_k else None,
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        """The text of a token; of a part of a character its bytes, as OpenAI writes them."""
        try:
            return self._bytes[token].decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self._bytes[token])

    def _entry(self, token: int, value: float) -> dict[str, Any]:
        return {"token": self._text(token), "logprob": value, "bytes": list(self._bytes[token])}


def embeddings(
    vectors: Iterable[np.ndarray], model: str, tokens: int, as_base64: bool
) -> dict[str, Any]:
    """The answer with vectors, float32 `(size,)` each."""

    def written(vector: np.ndarray) -> Any:
        if as_base64:
            return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
        return vector.tolist()

    data = [
        {"object": "embedding", "index": i, "embedding": written(vector)}
        for i, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}
