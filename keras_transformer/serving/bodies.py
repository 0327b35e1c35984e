"""The bodies of requests: bounded in bytes, time and parts, and JSON that says one thing."""

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

from keras_transformer.checking import shorten
from keras_transformer.checkpoints.untrusted import parse_json
from keras_transformer.serving.limits import Limits
from keras_transformer.tokenizers.beginnings import refusing_sparse_texts

# How an application writes an error: function of a status, a message and a code to what is JSON.
ErrorBody = Callable[[int, str, str], dict[str, Any]]
# No browser takes an answer for what it does not say it is.
NOSNIFF = {"X-Content-Type-Options": "nosniff"}
# All bytes but those between which values are, and the quotes of strings.
_PLAIN = bytes(set(range(256)).difference(b'"[]{},:'))
# A half of a surrogate pair, and how JSON in UTF-8 spells one.
_HALF, _ESCAPED = re.compile("[\ud800-\udfff]"), re.compile(rb"\\u[dD][89a-fA-F]")
# Lists and objects within each other; who reads them later may be recursive.
_DEPTH = 200
_LONGEST_MESSAGE = 2000
# Where an object lies in memory, which tells clients about this process.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Refused(Exception):
    """A request whose body is not read, or is no JSON object.

    Args:
        status: of HTTP.
        message: what is wrong with it.
        code: what OpenAI's clients read.
    """

    def __init__(self, status: int, message: str, code: str):
        super().__init__(message)
        self.status, self.code = status, code
        self.headers = {"Retry-After": "2"} if status == 429 else {}


class Bodies:
    """Reads the bodies of requests, which all together have no more bytes than are held at a time.

    What was read is held until the request is answered: `Guarded` frees it.

    Args:
        limits: `Limits`, of which `body_bytes`, `body_seconds`, `held_bytes` and `parts` are heeded
            here, and `running`: so many are parsed at a time.
    """

    def __init__(self, limits: Limits):
        self.limits, self.held = limits, 0
        # Parsing is in other threads, so that the loop answers meanwhile; but one thread at a time
        # has Python's lock, and many of them would take it from the loop.
        self.reading = anyio.Semaphore(limits.running)

    async def read(self, request: Request) -> dict[str, Any]:
        """The JSON object that the body of a request is. Refused for what is none."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # Such a type no page of another site may send without being allowed to.
            message = "Send JSON, with the content type application/json."
            raise Refused(415, message, "invalid_content_type")
        seconds = self.limits.body_seconds
        try:
            with anyio.fail_after(seconds):
                body = await self._bytes(request)
        except TimeoutError:
            message = f"The body did not come within {seconds:g} seconds."
            raise Refused(408, message, "timeout") from None
        return await self.in_turn(parsed, body, self.limits.parts)

    async def in_turn(self, function: Callable, *arguments: Any) -> Any:
        """What a function of what was read gives, in another thread, a few of them at a time."""
        async with self.reading:
            return await anyio.to_thread.run_sync(functools.partial(function, *arguments))

    async def _bytes(self, request: Request) -> bytes:
        body, scope, most = bytearray(), request.scope, self.limits.body_bytes
        scope["held_bytes"] = 0
        async for part in request.stream():
            scope["held_bytes"] += len(part)
            self.held += len(part)
            if scope["held_bytes"] > most:
                message = f"At most {most:,} bytes are read at a time."
                raise Refused(413, message, "request_too_large")
            if self.held > self.limits.held_bytes:
                message = "Too much is being read. Try again in a moment."
                raise Refused(429, message, "rate_limit_exceeded")
            body += part
        return bytes(body)


class Guarded:
    """Around all of an application: frees what is held, and has browsers take answers as they are.

    Texts that are cut are refused where nearly nothing of them is tokens.

    Errors that Starlette and its middleware write as plain text become JSON as the others are.

    Args:
        app: the application.
        bodies: its `Bodies`.
        error_body: `ErrorBody`.
    """

    def __init__(self, app: ASGIApp, bodies: Bodies, error_body: ErrorBody):
        self.app, self.bodies, self.error_body = app, bodies, error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        plain, text = None, b""  # an error that is not JSON: its status, and what it says

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
            with refusing_sparse_texts():  # in the threads of this request too
                await self.app(scope, receive, marked)
        finally:
            self.bodies.held -= scope.pop("held_bytes", 0)


def parsed(body: bytes, most: int) -> dict[str, Any]:
    """The JSON object that a body is. Refused for one that is none, or has more parts."""
    try:
        _check_parts(body, most)
        given = parse_json(body.removeprefix(b"\xef\xbb\xbf"), parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The body is no JSON: {said(error)}", "invalid_json") from None
    if not isinstance(given, dict):
        raise Refused(400, "The body must be a JSON object.", "invalid_json")
    if _ESCAPED.search(body):
        _check_characters(given)
    return given


def said(error: BaseException | str) -> str:
    """What an error says, for a client: not where objects lie in memory, and no whole book."""
    text = _ADDRESS.sub("", str(error))
    cut = len(text) > _LONGEST_MESSAGE
    return f"{text[:_LONGEST_MESSAGE]}..." if cut else text


def _check_parts(body: bytes, most: int) -> None:
    """ValueError for too many or too deep values, before they are made.

    Each of these calls takes about a millisecond for a MiB, in which nothing else can run.
    """
    rest = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _PLAIN)
    outside = rest.split(b'"', 2 * most)[::2]  # of strings
    signs = b"".join(outside)
    if len(signs) + len(outside) > most:
        raise ValueError(f"it has more than {most:,} values and signs between them")
    depth = 0
    for sign in signs:
        depth += (sign in b"[{") - (sign in b"]}")
        if depth > _DEPTH:
            raise ValueError(f"it nests deeper than {_DEPTH} lists and objects")


def _check_characters(given: dict[str, Any]) -> None:
    """Refused for half of a surrogate pair, which JSON can spell and no text can have."""
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
            message = f"`{place}` has {half[0]!r} at {half.start():,}, half of a surrogate pair: "
            raise Refused(400, f"{message}no text has that. Leave it out.", "invalid_value")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{shorten(text)} is larger than a number can be")
    return number
