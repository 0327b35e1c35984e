"""Request bodies: limited in bytes, time and parts, and parsed as unambiguous JSON."""

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keras_transformer.serving.limits import Limits
from keras_transformer.support.checking import shorten
from keras_transformer.support.files import parse_json
from keras_transformer.tokenizers.beginnings import refusing_sparse_texts

# Formats an application's error: function of a status, message and code to a JSON value.
ErrorBody = Callable[[int, str, str], dict[str, Any]]
# Keeps browsers from guessing another content type than the answer states.
NOSNIFF = {"X-Content-Type-Options": "nosniff"}
# All bytes except structural characters of JSON and the quotes of strings.
_PLAIN = bytes(set(range(256)).difference(b'"[]{},:'))
# Half of a surrogate pair, and its escape in JSON.
_HALF, _ESCAPED = re.compile("[\ud800-\udfff]"), re.compile(rb"\\u[dD][89a-fA-F]")
# Most nested lists and objects, since later code may be recursive.
_DEPTH = 200
_LONGEST_MESSAGE = 2000
# Memory addresses of objects, which would tell clients about this process.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class RefusedRequest(Exception):
    """Raised if the body of a request is too large, too late, or not a JSON object.

    Args:
        status: int, HTTP status.
        message: str, the reason.
        code: str, error code for OpenAI's clients.
    """

    def __init__(self, status: int, message: str, code: str):
        super().__init__(message)
        self.status, self.code = status, code
        self.headers = {"Retry-After": "2"} if status == 429 else {}


class Bodies:
    """Reads request bodies, and limits the bytes that all requests hold together.

    The bytes of a body count until its request is answered: then `Guarded` frees them.

    Args:
        limits: `Limits`. Used are `body_bytes`, `body_seconds`, `held_bytes`, `parts`, and
            `running` as the number of bodies parsed at a time.
    """

    def __init__(self, limits: Limits):
        self.limits, self.held = limits, 0
        # Parsing runs in threads, so that the event loop can answer meanwhile. Only a few run at a
        # time: each holds Python's GIL, and many would keep it from the event loop.
        self.reading = anyio.Semaphore(limits.running)

    async def read(self, request: Request) -> dict[str, Any]:
        """Read the body of a request as a JSON object. Raises `RefusedRequest` if it is not one."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # Browsers let pages of other sites send this type only with permission (CORS).
            message = "Send JSON, with the content type application/json."
            raise RefusedRequest(415, message, "invalid_content_type")
        seconds = self.limits.body_seconds
        try:
            with anyio.fail_after(seconds):
                body = await self._bytes(request)
        except TimeoutError:
            message = f"The body did not arrive within {seconds:g} seconds."
            raise RefusedRequest(408, message, "timeout") from None
        return await self.in_thread(parsed, body, self.limits.parts)

    async def in_thread(self, function: Callable, *arguments: Any) -> Any:
        """Call a function in another thread, a few at a time, and return its result."""
        async with self.reading:
            return await anyio.to_thread.run_sync(functools.partial(function, *arguments))

    async def _bytes(self, request: Request) -> bytes:
        body, most = bytearray(), self.limits.body_bytes
        async for part in request.stream():
            if len(body) + len(part) > most:
                message = f"The body is too large: at most {most:,} bytes are read."
                raise RefusedRequest(413, message, "request_too_large")
            self.hold(request, len(part))
            body += part
        return bytes(body)

    def hold(self, request: Request, count: int) -> None:
        """Count bytes that a request holds until it is answered.

        Raises `RefusedRequest` if all requests hold too many.
        """
        scope = request.scope
        scope["held_bytes"] = scope.get("held_bytes", 0) + count
        self.held += count
        if self.held > self.limits.held_bytes:
            message = "The requests being read are too large together. Try again in a moment."
            raise RefusedRequest(429, message, "rate_limit_exceeded")


class Guarded:
    """Middleware that frees bodies, adds protective headers, and formats all errors as JSON.

    While a request runs, a text that the task truncates is refused if its beginning has hardly any
    tokens (`refusing_sparse_texts`): otherwise all of the text would have to be encoded.

    Args:
        app: the application.
        bodies: the application's `Bodies`.
        error_body: `ErrorBody` of the application.
    """

    def __init__(self, app: ASGIApp, bodies: Bodies, error_body: ErrorBody):
        self.app, self.bodies, self.error_body = app, bodies, error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        plain, text = None, b""  # status and message of an error that is not JSON

        async def marked(message: Message) -> None:
            nonlocal plain, text
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(NOSNIFF)
                if message["status"] >= 400 and headers.get("content-type", "").startswith("text/"):
                    plain = message["status"]
            if plain is None:
                await send(message)
            elif message["type"] == "http.response.body":
                text += message.get("body", b"")
                if not message.get("more_body", False):
                    told = self.error_body(
                        plain, text.decode("utf-8", "replace"), "invalid_request"
                    )
                    await JSONResponse(told, plain, NOSNIFF)(scope, receive, send)

        try:
            with refusing_sparse_texts():  # also applies in the threads of this request
                await self.app(scope, receive, marked)
        finally:
            self.bodies.held -= scope.pop("held_bytes", 0)


def parsed(body: bytes, most: int) -> dict[str, Any]:
    """Parse a body as a JSON object. Raises `RefusedRequest` if it is not one or is too large."""
    try:
        _check_parts(body, most)
        given = parse_json(body.removeprefix(b"\xef\xbb\xbf"), parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise RefusedRequest(400, f"The body is not JSON: {said(error)}", "invalid_json") from None
    if not isinstance(given, dict):
        raise RefusedRequest(400, "The body must be a JSON object.", "invalid_json")
    if _ESCAPED.search(body):
        _check_characters(given)
    return given


def said(error: BaseException | str) -> str:
    """Return an error's message for a client, shortened and without memory addresses."""
    text = _ADDRESS.sub("", str(error))
    cut = len(text) > _LONGEST_MESSAGE
    return f"{text[:_LONGEST_MESSAGE]}..." if cut else text


def _check_parts(body: bytes, most: int) -> None:
    """Raise ValueError if a body has too many or too deeply nested values, before it is parsed.

    Each call on the whole body takes about a millisecond per MiB, in which nothing else can run.
    """
    rest = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _PLAIN)
    outside = rest.split(b'"', 2 * most)[::2]  # the parts outside of strings
    signs = b"".join(outside)
    if len(signs) + len(outside) > most:
        raise ValueError(f"it has more than {most:,} values and punctuation marks")
    depth = 0
    for sign in signs:
        depth += (sign in b"[{") - (sign in b"]}")
        if depth > _DEPTH:
            raise ValueError(f"it nests deeper than {_DEPTH} lists and objects")


def _check_characters(given: dict[str, Any]) -> None:
    """Raise `RefusedRequest` if a text has half of a surrogate pair, as JSON escapes allow."""
    found: list[tuple[str, Any]] = [("", given)]
    while found:
        place, value = found.pop()
        if isinstance(value, dict):
            for name, each in value.items():
                plain = name.isidentifier() and len(name) < 60
                inner = f"{place}.{name if plain else shorten(name)}".lstrip(".")
                found += [(inner, name), (inner, each)]
        elif isinstance(value, list):
            found += [(f"{place}[{i}]", each) for i, each in enumerate(value)]
        elif isinstance(value, str) and (half := _HALF.search(value)):
            message = f"`{place}` has {half[0]!r} at {half.start():,}, half of a surrogate pair, "
            raise RefusedRequest(
                400, f"{message}which is not a character. Leave it out.", "invalid_value"
            )


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{shorten(text)} is larger than a number can be")
    return number
