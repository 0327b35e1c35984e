"""The application: a page, JSON endpoints for what it does, and their description."""

import contextlib
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
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from keras_transformer.serving.limits import Gate, Limits, TooLarge, TooManyRequests
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
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
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
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=trusted)],
        exception_handlers={HTTPException: _told, Exception: _failed},
    )


class _Server:
    """What requests share: tasks, limits, and the latest views."""

    def __init__(self, tasks: Mapping[str, Served], limits: Limits):
        self.tasks, self.limits, self.gate = dict(tasks), limits, Gate(limits)
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
            return served.task.explain(verb.explained(served, values)).to_html()

        key = secrets.token_urlsafe(12)
        self.views[key] = await self._computed(page, served, values)
        while len(self.views) > self.limits.explanations:
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
        async with self._turn():
            pieces = await in_thread(stream, served, values)
            yield ""
            try:
                while (piece := await in_thread(next, pieces, None)) is not None:
                    yield json.dumps({"piece": piece}, ensure_ascii=False) + "\n"
                yield '{"done": true}\n'
            except _ERRORS as error:
                yield json.dumps({"error": str(error)}) + "\n"
            finally:
                with anyio.CancelScope(shield=True):
                    await in_thread(pieces.close)

    async def _asked(self, request: Request) -> tuple[Served, Verb, dict[str, Any]]:
        preset, name = (request.path_params[key] for key in ("preset", "verb"))
        verb = self.verbs.get((preset, name))
        if verb is None:
            known = ", ".join("/".join(key) for key in self.verbs)
            raise HTTPException(404, f"{preset}/{name} is not served. There are: {known}.")
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != "application/json":
            # Such a type no page of another site may send without being allowed to.
            raise HTTPException(415, "Send JSON, with the content type application/json.")
        try:
            given = json.loads(await read_body(request, self.limits.body_bytes))
            return self.tasks[preset], verb, verb.read(given, self.limits.characters)
        except TooLarge:
            most = self.limits.body_bytes
            raise HTTPException(413, f"At most {most:,} bytes are read at a time.") from None
        except (ValueError, RecursionError) as error:
            is_json = not isinstance(error, (json.JSONDecodeError, UnicodeDecodeError))
            message = str(error) if is_json else f"The body is no JSON: {error}"
            raise HTTPException(422, message) from None

    async def _computed(self, function: Callable, served: Served, values: Any) -> Any:
        async with self._turn():
            try:
                return await in_thread(function, served, values)
            except _ERRORS as error:
                raise HTTPException(422, str(error)) from None

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            async with self.gate.turn():
                yield
        except TooManyRequests:
            raise HTTPException(
                429, "Too many requests wait. Try again in a moment.", {"Retry-After": "2"}
            ) from None


async def in_thread(function: Callable, *arguments: Any) -> Any:
    """What a function gives, called in another thread."""
    return await anyio.to_thread.run_sync(function, *arguments)


async def _chained(first: str, lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async with contextlib.aclosing(lines):
        yield first
        async for line in lines:
            yield line


async def read_body(request: Request, most: int) -> bytes:
    """The bytes of a request, of which no more are read than may be. TooLarge for more."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise TooLarge
        parts.append(part)
    return b"".join(parts)


def _file_of(name: str, kind: str) -> Callable:
    """The answer with one file of the page: these are the only files that are read."""
    content = resources.files(__package__).joinpath("page", name).read_text("utf-8")

    async def answer(request: Request) -> Response:
        return _answered(content, kind, _POLICY)

    return answer


def _answered(content: str, kind: str, policy: str) -> Response:
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    return Response(content, media_type=kind, headers=headers)


async def _told(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """A mistake of this package: the trace is on the console, and not on the page."""
    return JSONResponse({"error": f"{type(error).__name__}: see the console."}, 500)
