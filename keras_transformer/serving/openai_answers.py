"""Response bodies and events of streams in the format of OpenAI's API."""

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
    """The name and id of a function call, as soon as a text begins one."""

    name: str
    id: str


class Arguments(NamedTuple):
    """The next part of a call's arguments, as text."""

    text: str


@dataclasses.dataclass
class Text:
    """One text of an answer, as far as it is generated.

    Args:
        prompt: list of int, ids of the prompt.
        content: str, the text itself.
        choice: str, the generated part of a function's name; None as long as no call has begun.
        call: `Called`, or None if the text does not call a function.
        arguments: str, arguments of the call.
        token_ids: list of int, the generated ids.
        done: `Done`, or None until the text is complete.
        score: log-probabilities in the endpoint's format, or None if they are not requested.
        rank: float, mean log-probability of the generated ids, if requested.
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
        """Add new content of the text: a `Piece`, `Called`, `Arguments` or `Done`."""
        if isinstance(told, Called):
            self.call = told
        elif isinstance(told, Arguments):
            self.arguments += told.text
        elif isinstance(told, Done):
            self.done = told
        else:
            self.content += told.text


class Form(NamedTuple):
    """The format in which an endpoint returns texts.

    Fields:
        prefix: str, prefix of the answers' ids.
        whole: str, the `object` of a whole answer.
        chunk: str, the `object` of an event of a stream.
        is_chat: bool, whether the texts are messages of a chat.
    """

    prefix: str
    whole: str
    chunk: str
    is_chat: bool


COMPLETION = Form("cmpl", "text_completion", "text_completion", False)
CHAT = Form("chatcmpl", "chat.completion", "chat.completion.chunk", True)


class EndpointAnswer:
    """Formats one answer of an endpoint, whole or as the server-sent events of a stream."""

    def __init__(self, form: Form, model: str, given: Mapping[str, Any]):
        self.is_chat = form.is_chat
        self.form = form
        self.base = {
            "id": f"{form.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def complete_body(self, texts: list[Text], usage: dict[str, int]) -> dict[str, Any]:
        """Return the whole answer, with all texts."""
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
        """Yield the events before the first text."""
        if self.is_chat:
            for index in range(count):
                yield self._chunk(index, {"delta": {"role": "assistant", "content": ""}})

    def told(self, index: int, told: Any, text: Text) -> Iterator[str]:
        """Yield the events for new content of a text: `Piece`, `Called`, `Arguments` or `Done`."""
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
        """Yield the events after all texts, with the token counts if `wanted`."""
        if wanted:
            yield self._event({"choices": [], "usage": usage})
        yield "data: [DONE]\n\n"

    def failed(self, error: ApiError) -> Iterator[str]:
        """Yield the event of an error, the last event of a stream."""
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
    """Return the token counts of an answer."""
    return {
        "prompt_tokens": prompts,
        "completion_tokens": written,
        "total_tokens": prompts + written,
    }


class Logprobs:
    """Formats log-probabilities of tokens, with the tokens' texts, for one tokenizer."""

    def __init__(self, tokenizer: Any):
        names = {index: token for token, index in tokenizer.get_vocabulary().items()}
        pieces = token_bytes(tokenizer)
        self._added = [piece or b"" for piece in pieces]
        # A token without text, such as an end token, is shown by its name.
        self._bytes = [
            names.get(i, "").encode() if piece is None else piece for i, piece in enumerate(pieces)
        ]

    def describe(
        self,
        is_chat: bool,
        ids: list[int],
        scores: TokenScores,
        top_k: int,
        whole: str | None = None,
    ) -> dict[str, Any]:
        """Return the log-probabilities of a text in the endpoint's format.

        If the `whole` text with its prompt is given, `ids` begin with the first token of the
        prompt, which has no log-probability.
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
                # A space that the tokenizer puts before a text does not belong to it.
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
        """Return a token's text, or its bytes in OpenAI's notation if it is part of a character."""
        try:
            return self._bytes[token].decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self._bytes[token])

    def _entry(self, token: int, value: float) -> dict[str, Any]:
        return {"token": self._text(token), "logprob": value, "bytes": list(self._bytes[token])}


def embeddings(
    vectors: Iterable[np.ndarray], model: str, tokens: int, as_base64: bool
) -> dict[str, Any]:
    """Return the body of an answer with vectors, each float32 `(size,)`."""

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
