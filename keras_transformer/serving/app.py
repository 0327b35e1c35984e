"""The application: a page, JSON endpoints for what it does, and their description."""

import contextlib
import dataclasses
import json
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from importlib import resources
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from keras_transformer.checking import shorten
from keras_transformer.serving.bodies import NOSNIFF, Bodies, Guarded, Refused, said
from keras_transformer.serving.limits import Gate, Limits, TooManyRequests
from keras_transformer.serving.openapi import described
from keras_transformer.serving.verbs import Served, Verb

_PAGE = {"": ("page.html", "text/html"), "page.js": ("page.js", "text/javascript"),
         "page.css": ("page.css", "text/css")}  # fmt: skip
# Nothing of the page is from elsewhere, and it is shown within no other one.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "blob: data:; media-src blob:; frame-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
# A view is a file with its script within, in a sandbox: it can reach nothing of the page.
_VIEW_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "sandbox allow-scripts; frame-ancestors 'self'"
)
# The names of this machine that requests may call it by.
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
_ERRORS = (ValueError, OSError, FloatingPointError)


def make_app(
    tasks: Mapping[str, Served], limits: Limits | None = None, hosts: tuple[str, ...] = ()
) -> Starlette:
    """The application of some tasks, for any ASGI server.

    Args:
        tasks: `Served`s by the names that requests give.
        limits: `Limits`, what it takes at a time.
        hosts: further names that requests may call this machine by, besides those of the loopback.
            Others are refused, so that no page of another site can reach the application through a
            name of its own.

    Returns:
        A Starlette application: the page at `/`, the endpoints `/api/PRESET/VERB`, their
        description at `/openapi.json`.

    Raises:
        ValueError: for a task of which nothing can be asked here.

    Example:
    ```python
    import keras_transformer as kt
    from keras_transformer.serving import Served, make_app
    from starlette.testclient import TestClient

    task = kt.SequenceClassifier.from_preset("splice_sites")
    app = make_app({"splice_sites": Served(task)})
    client = TestClient(app, base_url="http://127.0.0.1")
    found = client.post("/api/splice_sites/classify", json={"texts": ["ACGT" * 15]}).json()
    assert set(found["rows"][0][0]) == {"label", "score"}
    ```
    """
    for name, served in tasks.items():
        if not served.verbs:
            kind = type(served.task).__name__
            raise ValueError(f"{name!r} is a {kind}, of which nothing can be asked on a page.")
    server = _Server(tasks, limits or Limits())
    trusted = [*LOOPBACK, *hosts]
    return Starlette(
        routes=server.routes(),
        middleware=[
            Middleware(Guarded, bodies=server.bodies, error_body=error_body),
            Middleware(TrustedHostMiddleware, allowed_hosts=trusted),
        ],
        exception_handlers={
            HTTPException: _told,
            Refused: _refused,
            ClientDisconnect: gone,
            Exception: _failed,
        },
    )


class _Server:
    """What requests share: tasks, limits, and the latest views."""

    def __init__(self, tasks: Mapping[str, Served], limits: Limits):
        self.tasks, self.limits = dict(tasks), limits
        self.gate, self.bodies = Gate(limits), Bodies(limits)
        # One view of attention at a time: its memory is the square of a length.
        self.explaining = Gate(dataclasses.replace(limits, running=1))
        self.verbs = {
            (name, verb.name): verb for name, served in tasks.items() for verb in served.verbs
        }
        self.views: OrderedDict[str, str] = OrderedDict()

    def routes(self) -> list[Route]:
        files = [Route(f"/{path}", _file_of(*file)) for path, file in _PAGE.items()]
        return [
            *files,
            Route("/openapi.json", self.openapi),
            Route("/api", self.presets),
            Route("/api/{preset}/{verb}", self.answer, methods=["POST"]),
            Route("/api/{preset}/{verb}/stream", self.stream, methods=["POST"]),
            Route("/api/{preset}/{verb}/explain", self.explain, methods=["POST"]),
            Route("/views/{key}", self.view),
        ]

    async def presets(self, request: Request) -> Response:
        """What there is, as the page shows it."""
        found = [
            {
                "preset": preset,
                "task": type(self.tasks[preset].task).__name__,
                "verb": verb.name,
                "title": verb.title,
                "streams": verb.stream is not None,
                "explains": verb.explained is not None,
                "fields": [field._asdict() for field in verb.fields],
            }
            for (preset, _), verb in self.verbs.items()
        ]
        return JSONResponse(found)

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(described(self.verbs))

    async def answer(self, request: Request) -> Response:
        served, verb, values = await self._asked(request)
        return JSONResponse(await self._computed(verb.answer, served, values))

    async def explain(self, request: Request) -> Response:
        """Makes a view of the attention, and says where it is."""
        served, verb, values = await self._asked(request)
        if verb.explained is None:
            raise HTTPException(404, f"{verb.name!r} has no view of the attention.")

        def page(served: Served, values: Any) -> str:
            given = verb.explained(served, values)
            return served.task.explain(given, max_attention=self.limits.attention).to_html()

        key = secrets.token_urlsafe(12)
        async with self._turn(self.explaining):
            self.views[key] = await self._computed(page, served, values)
        while len(self.views) > self.limits.explanations or (
            len(self.views) > 1 and sum(map(len, self.views.values())) > self.limits.held_bytes
        ):
            self.views.popitem(last=False)
        return JSONResponse({"view": f"/views/{key}"})

    async def view(self, request: Request) -> Response:
        found = self.views.get(request.path_params["key"])
        if found is None:
            raise HTTPException(404, "This view is not kept any more: ask for it again.")
        return _answered(found, "text/html", _VIEW_POLICY)

    async def stream(self, request: Request) -> Response:
        """A line of JSON for each piece. Who stops to listen stops the model."""
        served, verb, values = await self._asked(request)
        if verb.stream is None:
            raise HTTPException(404, f"{verb.name!r} gives its answer as a whole.")
        lines = self._lines(verb.stream, served, values)
        try:
            first = await anext(lines)  # what is wrong with the values is said by the status
        except _ERRORS as error:
            raise HTTPException(422, str(error)) from None
        return StreamingResponse(_chained(first, lines), media_type="application/x-ndjson")

    async def _lines(self, stream: Callable, served: Served, values: Any) -> AsyncIterator[str]:
        async with self._turn(self.gate):
            pieces = await in_thread(stream, served, values)
            yield ""
            try:
                while (piece := await in_thread(next, pieces, None)) is not None:
                    yield json.dumps({"piece": piece}, ensure_ascii=False) + "\n"
                yield '{"done": true}\n'
            except _ERRORS as error:
                yield json.dumps({"error": said(error)}) + "\n"
            finally:
                with anyio.CancelScope(shield=True):
                    await in_thread(pieces.close)

    async def _asked(self, request: Request) -> tuple[Served, Verb, dict[str, Any]]:
        preset, name = (request.path_params[key] for key in ("preset", "verb"))
        verb = self.verbs.get((preset, name))
        if verb is None:
            known = ", ".join("/".join(key) for key in self.verbs)
            asked = shorten(f"{preset}/{name}")[1:-1]
            raise HTTPException(404, f"{asked} is not served. There are: {known}.")
        served, given = self.tasks[preset], await self.bodies.read(request)
        try:
            values = await self.bodies.in_turn(verb.read, given, self.limits.characters)
            await self.bodies.in_turn(verb.check, served, values, self.limits)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        return served, verb, values

    async def _computed(self, function: Callable, served: Served, values: Any) -> Any:
        try:
            return await self.gate.run(function, served, values)
        except TooManyRequests:
            raise _too_many() from None
        except _ERRORS as error:
            raise HTTPException(422, str(error)) from None

    @contextlib.asynccontextmanager
    async def _turn(self, gate: Gate) -> AsyncIterator[None]:
        try:
            async with gate.turn():
                yield
        except TooManyRequests:
            raise _too_many() from None


async def in_thread(function: Callable, *arguments: Any, abandon_on_cancel: bool = False) -> Any:
    """What a function gives, called in another thread.

    With `abandon_on_cancel` nobody waits for it once the server ends what runs.
    """
    return await anyio.to_thread.run_sync(function, *arguments, abandon_on_cancel=abandon_on_cancel)


async def _chained(first: str, lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async with contextlib.aclosing(lines):
        yield first
        async for line in lines:
            yield line


def _file_of(name: str, kind: str) -> Callable:
    """The answer with one file of the page: these are the only files that are read."""
    content = resources.files(__package__).joinpath("page", name).read_text("utf-8")

    async def answer(request: Request) -> Response:
        return _answered(content, kind, _POLICY)

    return answer


def _answered(content: str, kind: str, policy: str) -> Response:
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    return Response(content, media_type=kind, headers=headers)


def _too_many() -> HTTPException:
    message = "Too many requests wait. Try again in a moment."
    return HTTPException(429, message, {"Retry-After": "2"})


async def _told(request: Request, error: HTTPException) -> Response:
    status = error.status_code
    return JSONResponse(error_body(status, error.detail), status, error.headers)


async def _refused(request: Request, error: Refused) -> Response:
    status = 422 if error.status == 400 else error.status  # as for all other values here
    return JSONResponse(error_body(status, str(error)), status, error.headers)


async def gone(request: Request, error: ClientDisconnect) -> Response:
    """The client left before its request was here: nobody reads this."""
    return Response(status_code=499)


async def _failed(request: Request, error: Exception) -> Response:
    """A mistake of this package: the trace is on the console, and not on the page."""
    told = error_body(500, f"{type(error).__name__}: see the console.")
    return JSONResponse(told, 500, NOSNIFF)


def error_body(status: int, message: str, code: str = "") -> dict[str, Any]:
    """An error as the page reads it."""
    return {"error": said(message)}
