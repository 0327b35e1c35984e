"""The texts that a request asks for: jobs of the worker, and what is told of them."""

import asyncio
import functools
import json
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from keras_transformer.serving import openai_fields as fields
from keras_transformer.serving.app import in_thread
from keras_transformer.serving.compiling import Left
from keras_transformer.serving.limits import Limits, TooManyRequests
from keras_transformer.serving.openai_answers import (
    Arguments,
    Called,
    Logprobs,
    Text,
    usage_of,
)
from keras_transformer.serving.openai_errors import ApiError
from keras_transformer.serving.openai_fields import Prompts
from keras_transformer.serving.verbs import Served
from keras_transformer.serving.worker import Done, Failed, Job, Piece, Worker


class Model(NamedTuple):
    """A task, and what it needs here if it writes texts."""

    served: Served
    worker: Worker | None
    logprobs: Logprobs | None


class Written:
    """The texts of one request, as the worker writes them.

    A text that may call a function is written by up to three jobs, one behind the other: a text
    that ends where a call begins, the name of a function, and its arguments.

    Args:
        model: `Model`.
        asked: `Prompts`.
        answer: what makes texts the answer of an endpoint, such as `Answer`.
        facts: dict of what is logged of the request.
        scoring: semaphore of the passes that compute log-probabilities.
    """

    def __init__(
        self, model: Model, asked: Prompts, answer: Any, facts: dict[str, Any],
        scoring: anyio.Semaphore,
    ):  # fmt: skip
        self.model, self.asked, self.answer, self.facts = model, asked, answer, facts
        self.texts = [Text(row) for row in asked.prompts for _ in range(asked.written)]
        self.jobs: list[Job] = []  # the current one of each text
        self._scoring = scoring
        self._loop_call = asyncio.get_running_loop().call_soon_threadsafe
        self._send, self._receive = anyio.create_memory_object_stream[tuple[int, Any]](float("inf"))

    def make_jobs(self, limits: Limits) -> None:
        """Make a job for each text. Raises ValueError for what the model cannot take."""
        asked, tools = self.asked, self.asked.tools
        self._room = fields.room_of(self.model.served.task, limits)
        options = asked.options
        if tools is not None and not tools.required:
            options = {**options, "stop": [*options.get("stop", ()), tools.marker]}
        for index, text in enumerate(self.texts if asked.most != 0 else ()):
            if tools is not None and tools.required:
                self.jobs.append(self._call_job(index))
            else:
                self.jobs.append(self._job(index, text.prompt, options))

    @property
    def worker(self) -> Worker:
        """The thread that writes the texts."""
        return self.model.worker

    def leave(self) -> None:
        """Nobody waits for the texts any more."""
        self.worker.leave(self.jobs)

    async def whole(self) -> Response:
        async for _, told in self._told():
            if isinstance(told, Failed):
                raise _model_failed(told.error)
        await self._score(self.texts)
        return JSONResponse(self.answer.whole(self._best(), self._usage()))

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events. The log-probabilities of a text come with its end."""
        answer = self.answer
        try:
            for event in answer.begun(len(self.texts)):
                yield event
            async for index, told in self._told():
                text = self.texts[index]
                if isinstance(told, Failed):
                    for event in answer.failed(_model_failed(told.error)):
                        yield event
                    return
                if isinstance(told, Done):
                    await self._score([text])
                for event in answer.told(index, told, text):
                    yield event
            for event in answer.closed(self._usage(), self.asked.usage):
                yield event
        finally:
            self.leave()

    async def _told(self) -> AsyncIterator[tuple[int, Any]]:
        """Yield what is new of the texts, until all are done or one has failed."""
        self.facts["completion_tokens"] = 0
        for index, text in enumerate(self.texts):
            known: list[Any] = [text.call] if text.call else []
            if self.asked.echoes:
                known = [Piece(self.asked.echoes[index // self.asked.written])]
            if self.asked.most == 0:
                known.append(Done("", [], "length"))
            for told in known:
                text.add(told)
                yield index, told
        missing = len(self.jobs)
        while missing:
            index, event = await self._receive.receive()
            if isinstance(event, Failed):
                yield index, event
                return
            text = self.texts[index]
            if text.choice is not None and text.call is None:
                text.choice += event.text
            elif event.text:
                told = Piece(event.text) if text.call is None else Arguments(event.text)
                text.add(told)
                yield index, told
            if isinstance(event, Done):
                async for told in self._ended(index, event):
                    if not isinstance(told, Failed):
                        text.add(told)
                    missing -= isinstance(told, Done)
                    yield index, told

    async def _ended(self, index: int, done: Done) -> AsyncIterator[Called | Done | Failed]:
        """Yield what follows the end of a job: the end of its text, or the next job of a call."""
        text, tools, begun = self.texts[index], self.asked.tools, self.jobs[index].begun
        self.facts["began"] = min(self.facts.get("began", begun), begun)
        self.facts["completion_tokens"] += len(done.token_ids)
        text.token_ids += done.token_ids
        if text.call is not None:
            yield done._replace(reason="tool_calls" if _is_json(text.arguments) else "length")
            return
        if tools is None or (text.choice is None and done.stop != tools.marker):
            yield done
            return
        job = await in_thread(self._call_job, index)
        if text.call is not None:
            yield text.call
        if job is None:
            yield done._replace(reason="length")
            return
        try:
            self.worker.submit([job], admitted=True)
            self.jobs[index] = job
        except TooManyRequests:
            yield Failed(RuntimeError("The server stops."))

    def _call_job(self, index: int) -> Job | None:
        """The job of the name of a function, or of its arguments; None without room for them."""
        text, tools = self.texts[index], self.asked.tools
        if text.choice is None and len(tools.schemas) > 1:
            text.choice, ids, constraint = "", tools.behind(text.content), tools.names
        else:
            name = tools.chosen(text.choice) if text.choice else next(iter(tools.schemas))
            text.call = Called(name, secrets.token_hex(5)[:9])  # some templates demand nine
            ids, constraint = tools.behind(text.content, name), tools.schemas[name]
        options = {name: x for name, x in self.asked.options.items() if name != "stop"}
        return self._job(index, text.prompt + ids, {**options, "constraint": constraint})

    def _job(self, index: int, prompt: list[int], options: dict[str, Any]) -> Job | None:
        """The job of a text, or of a part of it; None if there is no room for a further part."""
        asked, text, longest = self.asked, self.texts[index], len(prompt)
        if asked.negative:  # what is written of a text already stands behind this prompt too
            negative = asked.negative[index // asked.written] + prompt[len(text.prompt) :]
            options = {**options, "negative_prompts": [negative]}
            longest = max(longest, len(negative))
        room = self._room - longest
        most = room if asked.most is None else min(room, asked.most - len(text.token_ids))
        constraint = options.get("constraint")
        if text.token_ids and most < max(1, constraint.shortest):
            return None
        if most < 1:  # with the beginning of a call
            raise fields.too_long(
                f"This model's maximum context length is {self._room:,} tokens: there is no room "
                "behind the prompt for a call. Shorten the prompt.", "messages",
            )  # fmt: skip
        return Job(
            self.model.served.task, prompt, most, asked.temperature, asked.top_p, asked.seed,
            index % asked.written, self._teller(index), **options,
        )  # fmt: skip

    def _teller(self, index: int) -> Callable[[Piece | Done | Failed], None]:
        return lambda event: self._loop_call(self._send.send_nowait, (index, event))

    def _usage(self) -> dict[str, int]:
        return usage_of(sum(map(len, self.asked.prompts)), self.facts["completion_tokens"])

    def _best(self) -> list[Text]:
        """The texts that are the answer: of each prompt's those with the likeliest tokens."""
        if self.asked.best_of is None:
            return self.texts
        found = []
        for first in range(0, len(self.texts), self.asked.best_of):
            several = self.texts[first : first + self.asked.best_of]
            found += sorted(several, key=lambda text: -text.rank)[: self.asked.samples]
        return found

    async def _score(self, texts: list[Text]) -> None:
        """Give texts their log-probabilities and their rank, if those are wanted."""
        if self.asked.top_k is not None or self.asked.best_of is not None:
            async with self._scoring:
                await in_thread(self._score_now, texts)

    def _score_now(self, texts: list[Text]) -> None:
        asked, echo = self.asked, bool(self.asked.echoes)
        written = [text.token_ids for text in texts]
        if not self.answer.is_chat:  # completions have the log-probability of their end too
            ends = [text.done.stop for text in texts]
            written = [
                [*ids, end] if isinstance(end, int) else ids
                for ids, end in zip(written, ends, strict=True)
            ]
        pairs = [
            (text.prompt[:1], text.prompt[1:] + ids) if echo else (text.prompt, ids)
            for text, ids in zip(texts, written, strict=True)
        ]
        scores = self.model.served.task.token_scores(pairs, top_k=asked.top_k or 0)
        of = functools.partial(self.model.logprobs.of, self.answer.is_chat)
        for text, ids, score in zip(texts, written, scores, strict=True):
            new = score.log_probabilities[len(score.log_probabilities) - len(ids) :]
            text.rank = float(new.mean()) if len(new) else float("-inf")
            if asked.top_k is not None and echo:
                text.score = of(text.prompt + ids, score, asked.top_k, text.content)
            elif asked.top_k is not None:
                text.score = of(ids, score, asked.top_k)


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


def _is_json(text: str) -> bool:
    """Whether a text is complete JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _model_failed(error: Exception) -> ApiError:
    return ApiError(500, f"The model failed: {type(error).__name__}: {error}", "model_failed")
