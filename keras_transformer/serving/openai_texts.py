"""The texts that a request asks for: jobs of the worker, and what is told of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from keras_transformer.serving import openai_fields as fields
from keras_transformer.serving.app import in_thread
from keras_transformer.serving.compiling import Left
from keras_transformer.serving.limits import Limits, TooManyRequests
from keras_transformer.serving.openai_answers import Answer, Logprobs, usage_of
from keras_transformer.serving.openai_fields import ApiError, Prompts
from keras_transformer.serving.verbs import Served
from keras_transformer.serving.worker import Done, Failed, Job, Piece, Worker


class Model(NamedTuple):
    """A task, and what it needs here if it writes texts."""

    served: Served
    worker: Worker | None
    logprobs: Logprobs | None


class Written:
    """The texts of one request, as the worker writes them."""

    def __init__(self, model: Model, asked: Prompts, answer: Answer, facts: dict[str, Any]):
        self.model, self.asked, self.answer, self.facts = model, asked, answer, facts
        self.jobs: list[Job] = []
        self._loop_call = asyncio.get_running_loop().call_soon_threadsafe
        self._send, self._receive = anyio.create_memory_object_stream[tuple[int, Any]](float("inf"))

    def make_jobs(self, limits: Limits) -> None:
        """A job for each text. ValueError for what the model cannot take."""
        asked, task = self.asked, self.model.served.task
        room = fields.room_of(task, limits)
        for row in asked.prompts:
            most = asked.most or room - len(row)
            for copy in range(asked.samples):
                self.jobs.append(
                    Job(
                        task, row, most, asked.temperature, asked.top_p, asked.seed, copy,
                        self._teller(len(self.jobs)), **asked.options,
                    )
                )  # fmt: skip

    def leave(self) -> None:
        """Nobody waits for the texts any more."""
        if self.model.worker:
            self.model.worker.leave(self.jobs)

    async def whole(self) -> Response:
        texts, ended = [""] * len(self.jobs), {}
        async for index, event in self._told():
            if isinstance(event, Failed):
                raise _model_failed(event.error)
            texts[index] += event.text
            if isinstance(event, Done):
                ended[index] = event
        found = [ended[i] for i in range(len(self.jobs))]
        scores = await in_thread(self._scores, list(enumerate(found)))
        choices = [
            self.answer.choice(i, text, done.reason, score)
            for i, (text, done, score) in enumerate(zip(texts, found, scores, strict=True))
        ]
        return JSONResponse(self.answer.whole(choices, self._usage()))

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events. The log-probabilities of a text come with its end."""
        answer = self.answer
        try:
            if answer.form.is_chat:
                for index in range(len(self.jobs)):
                    yield _event(answer.chunk([answer.delta(index, "", first=True)]))
            async for index, event in self._told():
                if isinstance(event, Failed):
                    yield _event(_model_failed(event.error).body)
                    return
                if event.text:
                    yield _event(answer.chunk([answer.delta(index, event.text)]))
                if isinstance(event, Done):
                    (score,) = await in_thread(self._scores, [(index, event)])
                    yield _event(answer.chunk([answer.delta(index, "", event.reason, score)]))
            if self.asked.usage:
                yield _event(answer.chunk([], self._usage()))
            yield "data: [DONE]\n\n"
        finally:
            self.leave()

    async def _told(self) -> AsyncIterator[tuple[int, Any]]:
        """What the jobs tell, until all are done or one has failed."""
        missing = len(self.jobs)
        while missing:
            index, event = await self._receive.receive()
            if isinstance(event, Done):
                missing -= 1
                begun = self.jobs[index].begun
                self.facts["began"] = min(self.facts.get("began", begun), begun)
                self.facts["completion_tokens"] = (
                    self.facts.get("completion_tokens", 0) + len(event.token_ids)
                )  # fmt: skip
            yield index, event

    def _teller(self, index: int) -> Callable[[Piece | Done | Failed], None]:
        return lambda event: self._loop_call(self._send.send_nowait, (index, event))

    def _usage(self) -> dict[str, int]:
        return usage_of(sum(map(len, self.asked.prompts)), self.facts["completion_tokens"])

    def _scores(self, ended: list[tuple[int, Done]]) -> list[Any]:
        """The log-probabilities of texts, None for each where nobody asks."""
        top_k, model = self.asked.top_k, self.model
        if top_k is None:
            return [None] * len(ended)
        prompts = [self.jobs[i].waiting.prompt for i, _ in ended]
        pairs = [(prompt, done.token_ids) for prompt, (_, done) in zip(prompts, ended, strict=True)]
        scores = model.served.task.token_scores(pairs, top_k=top_k)
        form, made = self.answer.form, model.logprobs.of
        return [
            made(form, done, score, top_k) for (_, done), score in zip(ended, scores, strict=True)
        ]


async def while_listened(
    request: Request, make: Callable[[], Any], leave: Callable[[], None]
) -> Any:
    """Return what `make` gives, or an answer that nobody reads if the client goes before."""
    made: list[Any] = []
    try:
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                while (await request.receive())["type"] != "http.disconnect":
                    pass
                leave()  # before what waits for a thread is cancelled
                group.cancel_scope.cancel()

            group.start_soon(watch)
            made.append(await make())
            group.cancel_scope.cancel()
    except* (ApiError, TooManyRequests) as errors:
        raise errors.exceptions[0] from None
    except* Left:  # nobody reads the answer
        made.clear()
    finally:
        leave()
    return made[0] if made else Response(status_code=499)


def _event(given: dict[str, Any]) -> str:
    return f"data: {json.dumps(given, ensure_ascii=False)}\n\n"


def _model_failed(error: Exception) -> ApiError:
    return ApiError(500, f"The model failed: {type(error).__name__}: {error}", "model_failed")
