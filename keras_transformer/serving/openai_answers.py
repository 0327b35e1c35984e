"""The answers of OpenAI's API, as its clients read them."""

import base64
import dataclasses
import secrets
import time
from typing import Any

import numpy as np

from keras_transformer.generation.scoring import TokenScores
from keras_transformer.serving.worker import Done
from keras_transformer.tokenizers.pieces import token_bytes


@dataclasses.dataclass(frozen=True)
class Form:
    """How an endpoint gives texts.

    Args:
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
    """One answer: what all of its parts have in common, and their shapes."""

    def __init__(self, form: Form, model: str):
        self.form = form
        self.base = {
            "id": f"{form.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        return {**self.base, "object": self.form.whole, "choices": choices, "usage": usage}

    def chunk(
        self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None
    ) -> dict[str, Any]:
        return {**self.base, "object": self.form.chunk, "choices": choices, "usage": usage}

    def choice(self, index: int, text: str, reason: str, logprobs: Any) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text}
        if self.form.is_chat:
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}

    def delta(
        self, index: int, text: str, reason: str | None = None, logprobs: Any = None,
        first: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        content: dict[str, Any] = {"text": text}
        if self.form.is_chat:
            delta: dict[str, Any] = {"role": "assistant"} if first else {}
            content = {"delta": {**delta, "content": text} if text or first else delta}
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}


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
        # A token that adds nothing to a text, as an end, is called by its name.
        self._bytes = [
            names.get(i, "").encode() if piece is None else piece for i, piece in enumerate(pieces)
        ]

    def of(self, form: Form, done: Done, scores: TokenScores, top_k: int) -> dict[str, Any]:
        """Those of a text, as an endpoint gives them."""
        tokens = [self._text(token) for token in done.token_ids]
        values = np.asarray(scores.log_probabilities, "float64").tolist()
        best: list[list[tuple[int, float]]] = [[] for _ in tokens]
        if top_k:
            best = [
                list(zip(ids, row, strict=True))
                for ids, row in zip(scores.best_ids.tolist(), scores.best.tolist(), strict=True)
            ]
        if form.is_chat:
            content = [
                {**self._entry(token, value), "top_logprobs": [self._entry(*pair) for pair in row]}
                for token, value, row in zip(done.token_ids, values, best, strict=True)
            ]
            return {"content": content, "refusal": None}
        offsets, before = [], b""
        for token in done.token_ids:
            offsets.append(len(before.decode("utf-8", "ignore")))
            before += self._bytes[token]
        top = [{self._text(i): value for i, value in row} for row in best] if top_k else None
        return {
            "tokens": tokens,
            "token_logprobs": values,
            "top_logprobs": top,
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


def embeddings(vectors: np.ndarray, model: str, tokens: int, as_base64: bool) -> dict[str, Any]:
    """Vectors, float32 `(texts, size)`."""

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
