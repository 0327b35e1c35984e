"""Application of the page: the page itself, its JSON endpoints, and their OpenAPI description."""

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

from keras_transformer.serving.bodies import NOSNIFF, Bodies, Guarded, RefusedRequest, said
from keras_transformer.serving.limits import Gate, Limits, TooManyRequests
from keras_transformer.serving.openapi import described
from keras_transformer.serving.verbs import ServedTask, Verb
from keras_transformer.support.checking import shorten

_PAGE = {"": ("page.html", "text/html"), "page.js": ("page.js", "text/javascript"),
         "page.css": ("page.css", "text/css")}  # fmt: skip
# The page may load content from this server alone, and other pages may not embed it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "blob: data:; media-src blob:; frame-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
# A view is an HTML file with an inline script. The sandbox keeps it from reaching the page.
_VIEW_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "sandbox allow-scripts; frame-ancestors 'self'"
)
# Host names of this machine under which requests may reach the server.
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
_ERRORS = (ValueError, OSError, FloatingPointError)


def make_app(
    tasks: Mapping[str, ServedTask], limits: Limits | None = None, hosts: tuple[str, ...] = ()
) -> Starlette:
    """Make an ASGI application with a page and JSON endpoints for tasks.

    Args:
        tasks: dict from the names that requests use to `ServedTask`s.
        limits: `Limits` of the server.
        hosts: tuple of further host names under which requests may reach the server, besides those
            of the loopback. Requests to other names are refused, so that another site's page
            cannot reach the application through its own domain (DNS rebinding).

    Returns:
        A Starlette application: the page at `/`, the endpoints `/api/PRESET/VERB`, their
        description at `/openapi.json`.

    Raises:
        ValueError: if a task has no verb that can be served.

    Example:
    ```python
    import keras_transformer as kt
    from keras_transformer.serving import ServedTask, make_app
    from starlette.testclient import TestClient

    task = kt.SequenceClassifier.from_preset("splice_sites")
    app = make_app({"splice_sites": ServedTask(task)})
    client = TestClient(app, base_url="http://127.0.0.1")
    found = client.post("/api/splice_sites/classify", json={"texts": ["ACGT" * 15]}).json()
    assert set(found["rows"][0][0]) == {"label", "score"}
    ```
    """
    for name, served in tasks.items():
        if not served.verbs:
            kind = type(served.task).__name__
            raise ValueError(f"{name!r} is a {kind}, which cannot be served on a page.")
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
            RefusedRequest: _refused,
            ClientDisconnect: gone,
            Exception: _failed,
        },
    )


class _Server:
    """State shared by all requests: tasks, limits, and the latest views."""

    def __init__(self, tasks: Mapping[str, ServedTask], limits: Limits):
        self.tasks, self.limits = dict(tasks), limits
        self.gate, self.bodies = Gate(limits), Bodies(limits)
        # Only one view of attention is made at a time: its memory grows with the square of the
        # length.
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
        """List the presets, verbs and fields for the page."""
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
        """Make a view of the attention, and return its path."""
        served, verb, values = await self._asked(request)
        if verb.explained is None:
            raise HTTPException(404, f"{verb.name!r} has no view of the attention.")

        def page(served: ServedTask, values: Any) -> str:
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
            raise HTTPException(404, "This view is no longer kept: request it again.")
        return _answered(found, "text/html", _VIEW_POLICY)

    async def stream(self, request: Request) -> Response:
        """Stream a line of JSON for each piece of text. Decoding ends if the client disconnects."""
        served, verb, values = await self._asked(request)
        if verb.stream is None:
            raise HTTPException(404, f"{verb.name!r} cannot be streamed: leave out `/stream`.")
        lines = self._lines(verb.stream, served, values)
        try:
            first = await anext(lines)  # an error in the values can still set the status
        except _ERRORS as error:
            raise HTTPException(422, str(error)) from None
        return StreamingResponse(_chained(first, lines), media_type="application/x-ndjson")

    async def _lines(self, stream: Callable, served: ServedTask, values: Any) -> AsyncIterator[str]:
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

    async def _asked(self, request: Request) -> tuple[ServedTask, Verb, dict[str, Any]]:
        preset, name = (request.path_params[key] for key in ("preset", "verb"))
        verb = self.verbs.get((preset, name))
        if verb is None:
            known = ", ".join("/".join(key) for key in self.verbs)
            asked = shorten(f"{preset}/{name}")[1:-1]
            raise HTTPException(404, f"{asked} is not served. There are: {known}.")
        served, given = self.tasks[preset], await self.bodies.read(request)
        try:
            values = await self.bodies.in_thread(verb.read, given, self.limits.characters)
            await self.bodies.in_thread(verb.check, served, values, self.limits)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        return served, verb, values

    async def _computed(self, function: Callable, served: ServedTask, values: Any) -> Any:
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
    """Call a function in another thread and return its result.

    With `abandon_on_cancel` a cancelled request does not wait for the function to return.
    """
    return await anyio.to_thread.run_sync(function, *arguments, abandon_on_cancel=abandon_on_cancel)


async def _chained(first: str, lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async with contextlib.aclosing(lines):
        yield first
        async for line in lines:
            yield line


def _file_of(name: str, kind: str) -> Callable:
    """Return a handler that answers with one file of the page, which is read here, once."""
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


async def _refused(request: Request, error: RefusedRequest) -> Response:
    status = 422 if error.status == 400 else error.status  # the page's status for invalid values
    return JSONResponse(error_body(status, str(error)), status, error.headers)


async def gone(request: Request, error: ClientDisconnect) -> Response:
    """Answer a client that disconnected before its request arrived: nobody reads the answer."""
    return Response(status_code=499)


async def _failed(request: Request, error: Exception) -> Response:
    """Answer an internal error: the traceback is on the console, and not sent to the client."""
    told = error_body(500, f"{type(error).__name__}: see the console.")
    return JSONResponse(told, 500, NOSNIFF)


def error_body(status: int, message: str, code: str = "") -> dict[str, Any]:
    """Return the body of an error in the page's format."""
    return {"error": said(message)}
