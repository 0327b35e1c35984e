"""Application that serves OpenAI's API: generated texts, embeddings, and the verbs of tasks."""

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import anyio
import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import keras_transformer as kt
from keras_transformer.distribution.spread import shared_by
from keras_transformer.serving import openai_fields as fields
from keras_transformer.serving.app import LOOPBACK, gone, in_thread
from keras_transformer.serving.bodies import NOSNIFF, Bodies, Guarded, RefusedRequest
from keras_transformer.serving.compiling import Asking, Compiler
from keras_transformer.serving.limits import (
    API_LIMITS,
    Gate,
    Limits,
    TooManyRequests,
)
from keras_transformer.serving.observing import Metrics, Observed
from keras_transformer.serving.openai_answers import (
    CHAT,
    COMPLETION,
    EndpointAnswer,
    Logprobs,
    embeddings,
)
from keras_transformer.serving.openai_errors import ApiError
from keras_transformer.serving.openai_fields import Prompts
from keras_transformer.serving.openai_responses import ResponseAnswer, read_response
from keras_transformer.serving.openai_texts import Model, Written, while_listened
from keras_transformer.serving.openapi import described_api
from keras_transformer.serving.verbs import ServedTask, Verb
from keras_transformer.serving.worker import Worker
from keras_transformer.tasks.images.row_images import prepared

# Verbs that the API serves under OpenAI's paths.
_OWN_VERBS = ("chat", "complete", "embed")
# Texts embedded in one turn. Between turns other requests run, and a client's leaving is noticed.
_INPUTS = 256


def make_api(
    tasks: Mapping[str, ServedTask],
    limits: Limits = API_LIMITS,
    key: str | None = None,
    hosts: tuple[str, ...] = (),
) -> Starlette:
    """Make an ASGI application that serves OpenAI's API for tasks.

    It needs a server that runs its lifespan, which starts and stops the decoding threads.

    Args:
        tasks: dict from the names that requests give as `model` to `ServedTask`s.
        limits: `Limits` of the server.
        key: API key that requests must send as `Authorization: Bearer KEY`. None requires no key.
        hosts: tuple of further host names under which requests may reach the server, see
            `make_app`.

    Returns:
        A Starlette application: `/v1/completions`, `/v1/chat/completions`, `/v1/responses`,
        `/v1/embeddings`, `/v1/models`, the verbs of the tasks (`/classify`, `/translate`, ...),
        `/openapi.json`, which describes them, `/health`, `/ready`, `/metrics`, and `/`, which lists
        the models and paths.

    Raises:
        ValueError: if a task has no verb that can be served, or the key is empty.

    Example:
    ```python
    import keras_transformer as kt
    from keras_transformer.serving import ServedTask, make_api
    from starlette.testclient import TestClient

    task = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
    with TestClient(make_api({"gpt": ServedTask(task)}), base_url="http://127.0.0.1") as client:
        asked = {"model": "gpt", "prompt": "ROMEO:", "max_tokens": 4, "temperature": 0}
        (choice,) = client.post("/v1/completions", json=asked).json()["choices"]
    assert choice["text"] == task.generate("ROMEO:", max_new_tokens=4, sampler="greedy")
    ```
    """
    for name, served in tasks.items():
        if not served.verbs:
            kind = type(served.task).__name__
            raise ValueError(f"{name!r} is a {kind}, which cannot be served.")
        if served.task.generates and served.task.tokenizer is None:
            raise ValueError(f"{name!r} has no tokenizer, which is needed to serve its texts.")
    if key is not None and not key.strip():
        raise ValueError("The API key is empty: give a key, or leave it out to require no key.")
    api = _Api(tasks, limits, has_key=key is not None)
    trusted = [*LOOPBACK, *hosts]
    return Starlette(
        routes=api.routes(),
        middleware=[
            Middleware(Guarded, bodies=api.bodies, error_body=error_body),
            Middleware(Observed, metrics=api.metrics, key=key),
            Middleware(TrustedHostMiddleware, allowed_hosts=trusted),
        ],
        exception_handlers={
            ApiError: _told,
            HTTPException: _refused,
            RefusedRequest: _unread,
            ClientDisconnect: gone,
            Exception: _failed,
        },
        lifespan=api.lifespan,
    )


class _Api:
    """State shared by all requests: models, limits, metrics."""

    def __init__(self, tasks: Mapping[str, ServedTask], limits: Limits, has_key: bool):
        self.has_key = has_key
        self.limits, self.gate, self.metrics = limits, Gate(limits), Metrics()
        self.bodies = Bodies(limits)
        # Limits the passes that compute log-probabilities outside of the running batches.
        self.scoring = anyio.Semaphore(limits.running)
        self.models: dict[str, Model] = {}
        for name, served in tasks.items():
            worker = logprobs = None
            if served.writes:
                worker = Worker(served.task, limits.batch_size, limits.waiting)
                logprobs = Logprobs(served.task.tokenizer)
                self.metrics.watch(name, worker)
            self.models[name] = Model(served, worker, logprobs)
        writing = [model.served.task for model in self.models.values() if model.worker]
        self.compilers = [Compiler(task) for task in writing]
        tokenizers = {name: served.task.tokenizer for name, served in tasks.items()}
        self.tokenizers = {name: found for name, found in tokenizers.items() if found is not None}
        self.workers = [model.worker for model in self.models.values() if model.worker]

    def routes(self) -> list[Route]:
        verbs = {verb.name for model in self.models.values() for verb in model.served.verbs}
        return [
            Route("/", self.root),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/responses", self.responses, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/v1/models", self.all_models),
            Route("/v1/models/{model:path}", self.one_model),
            *(
                Route(f"/{name}", self.verb, methods=["POST"], name=name)
                for name in sorted(verbs.difference(_OWN_VERBS))
            ),
            Route("/openapi.json", self.openapi),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/metrics", self.metrics.answer),
        ]

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        for compiler in self.compilers:
            compiler.start()
        for worker in self.workers:
            worker.start()
        try:
            yield
        finally:
            for worker in self.workers:
                await in_thread(worker.stop, abandon_on_cancel=True)
            for compiler in self.compilers:
                compiler.close()

    async def openapi(self, request: Request) -> Response:
        verbs = {name: model.served.verbs for name, model in self.models.items()}
        return JSONResponse(described_api(verbs, self.has_key))

    async def root(self, request: Request) -> Response:
        """List the models and the paths of the server."""
        paths = sorted({route.path for route in request.app.routes if isinstance(route, Route)})
        about = {"name": "keras_transformer", "version": kt.__version__}
        return JSONResponse({**about, "models": list(self.models), "paths": paths})

    async def health(self, request: Request) -> Response:
        """Report that the process is alive."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Report whether every generating model has generated something."""
        ready = all(worker.ready for worker in self.workers)
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def all_models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": list(map(_described, self.models))})

    async def one_model(self, request: Request) -> Response:
        name = request.path_params["model"]
        self._model(name)
        return JSONResponse(_described(name))

    async def completions(self, request: Request) -> Response:
        read = functools.partial(fields.read_completion, tokenizers=self.tokenizers)
        answer = functools.partial(EndpointAnswer, COMPLETION)
        return await self._write(request, answer, read, "complete")

    async def chat(self, request: Request) -> Response:
        return await self._write(request, functools.partial(EndpointAnswer, CHAT), fields.read_chat)

    async def responses(self, request: Request) -> Response:
        return await self._write(request, ResponseAnswer, read_response)

    async def embeddings(self, request: Request) -> Response:
        given, name, model = await self._given(request)
        task = self._able(name, model, "embed", "/v1/embeddings").served.task
        if task.interaction is not None:
            raise fields.wrong(f"{name!r} has a vector for each token, none for a text.", "model")

        def encoded(texts: list[Any], are_ids: bool) -> tuple[np.ndarray, int]:
            if are_ids:
                return task.encode_ids(texts), sum(map(len, texts))
            return task.encode_counted(texts)

        async def vectors() -> Response:
            read = fields.read_embedding
            asked = await self._computed(read, task, given, self.limits, self.tokenizers)
            found, tokens = [], 0
            for first in range(0, len(asked.texts), _INPUTS):
                texts = asked.texts[first : first + _INPUTS]
                rows, count = await self._computed(encoded, texts, asked.are_ids)
                found, tokens = [*found, *rows], tokens + count
                if asked.dimensions not in (None, len(rows[0])):
                    raise fields.wrong(f"{name!r} has {len(rows[0])} `dimensions`.", "dimensions")
            request.scope["facts"]["prompt_tokens"] = tokens
            return JSONResponse(embeddings(found, name, tokens, asked.as_base64))

        return await while_listened(request, vectors, lambda: None)

    async def verb(self, request: Request) -> Response:
        """Run one of the page's verbs on a model that has it."""
        wanted = request.url.path[1:]
        given, name, model = await self._given(request, wanted)
        verb = self._verb(model, wanted)
        if verb is None:
            raise _cannot(name, wanted, self._names_with(wanted))
        fields_given = {key: value for key, value in given.items() if key != "model"}

        def answer() -> dict[str, Any]:
            values = verb.read(fields_given, self.limits.characters)
            verb.check(model.served, values, self.limits)
            return {"model": name, **verb.answer(model.served, values)}

        return JSONResponse(await self._computed(answer))

    async def _computed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await self.gate.run(function, *arguments)
        except TooManyRequests:
            raise _too_many() from None
        except (ValueError, OSError) as error:
            raise fields.wrong(str(error)) from None

    async def _write(
        self,
        request: Request,
        answer: Callable[..., Any],
        read: Callable[..., Prompts],
        verb: str | None = None,
    ) -> Response:
        """Generate texts, returned whole or as a stream.

        Chats need no `verb`: a model of images and texts takes them, but completes no texts.
        """
        given, name, model = await self._given(request)
        if verb is not None:
            self._able(name, model, verb, request.url.path)
        elif model.worker is None:
            able = [name for name, each in self.models.items() if each.worker is not None]
            raise _cannot(name, request.url.path, able)
        asking = Asking()  # ends the compilation of a constraint when the client leaves
        task = model.served.task

        async def read_all() -> Prompts:
            asked = await in_thread(asking.run, read, task, given, self.limits)
            if asked.images is None or not asked.images.images:
                return asked
            # Here, so that an image that cannot be read fails no other request.
            images = await self._computed(prepared, asked.images, task.processor.source)
            self.bodies.hold(request, sum(image.pixels.nbytes for image in images.images))
            return asked._replace(images=images)

        try:
            asked = await while_listened(request, read_all, asking.leave)
        except TooManyRequests:
            raise _too_many() from None
        if isinstance(asked, Response):  # the client left
            return asked
        if shared_by() > 1 and (asked.top_k is not None or asked.best_of is not None):
            raise fields.wrong(
                "Log-probabilities and `best_of` are not served by processes that share the work "
                "of a model (--model-parallel): leave them out.", "logprobs",
            )  # fmt: skip
        request.scope["facts"]["prompt_tokens"] = sum(map(len, asked.prompts))
        facts = request.scope["facts"]
        written = Written(model, asked, answer(name, given), facts, self.scoring)
        try:
            await self.bodies.in_thread(written.make_jobs, self.limits)
            written.worker.submit(written.jobs)
        except TooManyRequests:
            raise _too_many() from None
        except ValueError as error:
            raise fields.wrong(str(error)) from None
        if asked.stream:
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            return StreamingResponse(written.events(), 200, headers, "text/event-stream")
        return await while_listened(request, written.full_response, written.leave)

    async def _given(self, request: Request, verb: str = "") -> tuple[dict[str, Any], str, Model]:
        """Return a request's body, and the name and `Model` that it asks.

        The name may be missing if only one model has the verb.
        """
        given = await self.bodies.read(request)
        name, able = given.get("model"), self._names_with(verb)
        if name is None and verb and len(able) == 1:
            (name,) = able
        if not isinstance(name, str):
            raise fields.wrong(f"`model` is missing: give one of {', '.join(able)}.", "model")
        request.scope["facts"]["model"] = name if name in self.models else None
        return given, name, self._model(name)

    def _model(self, name: str) -> Model:
        if name not in self.models:
            known = ", ".join(map(repr, self.models))
            message = f"The model {name[:100]!r} does not exist. There are: {known}."
            raise ApiError(404, message, "model_not_found", "model")
        return self.models[name]

    def _able(self, name: str, model: Model, verb: str, path: str) -> Model:
        if self._verb(model, verb) is None:
            raise _cannot(name, path, self._names_with(verb))
        return model

    def _verb(self, model: Model, name: str) -> Verb | None:
        return next((verb for verb in model.served.verbs if verb.name == name), None)

    def _names_with(self, verb: str) -> list[str]:
        return [name for name, m in self.models.items() if not verb or self._verb(m, verb)]


def _described(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "keras_transformer"}


def _cannot(name: str, what: str, able: list[str]) -> ApiError:
    others = f" These can: {', '.join(able)}." if able else " No model here can."
    return ApiError(404, f"The model {name!r} has no {what}.{others}", "model_not_able", "model")


def _too_many() -> ApiError:
    return ApiError(429, "Too many requests wait. Try again in a moment.", "rate_limit_exceeded")


async def _told(request: Request, error: ApiError) -> Response:
    return JSONResponse(error.body, error.status, error.headers)


async def _refused(request: Request, error: HTTPException) -> Response:
    code = "not_found" if error.status_code == 404 else "invalid_request"
    told = error_body(error.status_code, str(error.detail), code)
    return JSONResponse(told, error.status_code, error.headers)


async def _unread(request: Request, error: RefusedRequest) -> Response:
    told = error_body(error.status, str(error), error.code)
    return JSONResponse(told, error.status, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """Answer an internal error: the traceback is logged, and not sent to the client."""
    told = error_body(500, f"{type(error).__name__}: see the log.", "internal_error")
    return JSONResponse(told, 500, NOSNIFF)


def error_body(status: int, message: str, code: str) -> dict[str, Any]:
    """Return the body of an error in OpenAI's format."""
    return ApiError(status, message, code).body
