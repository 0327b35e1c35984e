"""Connections of a server: limits on their number and time, and their end when it stops."""

import asyncio
import functools
import json
import os
import socket
import sys
from typing import Any

import anyio
import h11
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from keras_transformer.serving.bodies import NOSNIFF, ErrorBody
from keras_transformer.serving.limits import WATCHED, Limits

# Additional connections, on which only `WATCHED` paths are answered.
_RESERVE = 8
# File descriptors kept for files and pipes; connections accepted together, before the first of them
# is examined; and length of the queue of connections to accept.
_SPARE, _AT_ONCE, _BACKLOG = 64, 8, 1024
# Seconds for errors to reach the clients of requests that were ended, and as many again for the
# application to end: a model may be in the middle of a long step.
_GRACE = 0.5


class Connections:
    """The open connections of a server; of the idle ones, the longest idle is first.

    At the limit a new connection replaces the one that is idle the longest: a client that holds
    many idle connections mostly loses its own. If all are busy, a few more are accepted, on which
    only `WATCHED` paths are answered and all other requests get the status 503.

    Args:
        limits: `Limits`. Used are `connections`, `body_seconds` and `idle_seconds`.
        error_body: `ErrorBody` of the application.
    """

    def __init__(self, limits: Limits, error_body: ErrorBody):
        self.limits, self.most = limits, _bound(limits.connections)
        self.error_body = error_body
        self._open: dict[Connection, None] = {}

    def enter(self, new: "Connection") -> bool:
        """Add a new connection if there is room, and return whether it is accepted."""
        if len(self._open) >= self.most:
            full = len(self._open) >= self.most + _RESERVE
            idle = (c for c in self._open if not c.is_busy and (full or not c.in_reserve))
            if (oldest := next(idle, None)) is not None:
                self.leave(oldest)
                oldest.transport.abort()
        if len(self._open) >= self.most + _RESERVE:
            return False
        new.in_reserve = len(self._open) >= self.most
        self._open[new] = None
        return True

    def rest(self, connection: "Connection") -> None:
        """Move a connection that has become idle to the end."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def leave(self, connection: "Connection") -> None:
        """Remove a connection."""
        self._open.pop(connection, None)


class Connection(H11Protocol):
    """One connection, closed if a request or the reading of its answer takes too long."""

    in_reserve = False

    def __init__(self, *arguments: Any, among: Connections, **options: Any):
        super().__init__(*arguments, **options)
        self._among, self._limits = among, among.limits
        self._arrival: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a request whose headers have all arrived is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if not self._among.enter(self):
            transport.abort()
        if self.in_reserve:
            self.app = _watched_alone(self.app, self._among.error_body)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._among.leave(self)
        for timer in (self._arrival, self._stall):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not valid HTTP, or has too long a head, with a JSON error."""
        # The exception being handled by uvicorn knows the status: 431 for a head of over 64 KiB.
        status = getattr(sys.exc_info()[1], "error_status_hint", 400)
        message = "The head of the request is too long." if status == 431 else msg
        told = json.dumps(self._among.error_body(status, message, "invalid_request")).encode()
        headers = {"content-type": "application/json", "connection": "close", **NOSNIFF}
        headers["content-length"] = str(len(told))
        answer = (
            h11.Response(status_code=status, headers=list(headers.items())),
            h11.Data(data=told),
            h11.EndOfMessage(),
        )
        for event in answer:
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._among.rest(self)
        self._watch()

    def _watch(self) -> None:
        """Limit the time in which the headers of the next request must arrive."""
        if self.is_busy:
            if self._arrival is not None:
                self._arrival.cancel()
            self._arrival = None
        elif self._arrival is None:
            seconds = self._limits.body_seconds
            self._arrival = self.loop.call_later(seconds, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(self._limits.idle_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()


class Cuttable:
    """Wraps an application so that all its requests can be ended, each with an error.

    The error is an answer with the status 503, or the last event or line of a stream.

    Args:
        app: the application.
        error_body: `ErrorBody` of the application.
    """

    def __init__(self, app: ASGIApp, error_body: ErrorBody):
        self.app = app
        message = "The server is stopping: send the request again later, or to another server."
        self._error = error_body(503, message, "server_stopping")
        self._open: set[anyio.CancelScope] = set()

    def cut(self) -> None:
        """End all requests."""
        for scope in tuple(self._open):
            scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        kind, is_whole = None, False

        async def noted(message: Message) -> None:
            nonlocal kind, is_whole
            if message["type"] == "http.response.start":
                kind = dict(message["headers"]).get(b"content-type", b"").partition(b";")[0]
            elif message["type"] == "http.response.body":
                is_whole = not message.get("more_body", False)
            await send(message)

        with anyio.CancelScope() as cutting:
            self._open.add(cutting)
            try:
                await self.app(scope, receive, noted)
            finally:
                self._open.discard(cutting)
        if not cutting.cancelled_caught or is_whole:
            return
        if kind is None:
            headers = {"Retry-After": "2", "Connection": "close", **NOSNIFF}
            await JSONResponse(self._error, 503, headers)(scope, receive, send)
            return
        told = json.dumps(self._error)
        ends = {b"text/event-stream": f"data: {told}\n\n", b"application/x-ndjson": f"{told}\n"}
        body = ends.get(kind, "").encode()
        await send({"type": "http.response.body", "body": body, "more_body": False})


class Server(uvicorn.Server):
    """A uvicorn server with limits on connections and on the time to stop.

    Args:
        app: the application.
        limits: `Limits`. Used are `connections`, `body_seconds`, `idle_seconds` and
            `stop_seconds`.
        error_body: `ErrorBody` of the application.
        **options: options of `uvicorn.Config`.
    """

    def __init__(self, app: ASGIApp, limits: Limits, error_body: ErrorBody, **options: Any):
        self._cuttable, self._stop_seconds = Cuttable(app, error_body), limits.stop_seconds
        among = Connections(limits, error_body)
        options |= {
            "http": functools.partial(Connection, among=among),
            "ws": "none",
            "backlog": _AT_ONCE,
            "timeout_graceful_shutdown": limits.stop_seconds + _GRACE,
        }
        super().__init__(uvicorn.Config(self._cuttable, **options))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # Many connections may wait to be accepted, but only a few are accepted together.
        for listener in sockets or []:
            listener.listen(_BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(self._stop_seconds, self._cuttable.cut)
        with anyio.move_on_after(self._stop_seconds + 2 * _GRACE):
            await super().shutdown(sockets)


def _bound(wanted: int) -> int:
    """Return how many connections, at most `wanted`, the process has file descriptors for."""
    try:
        import resource
    except ImportError:  # not available on Windows, which has no such limit
        return wanted
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        return wanted
    try:
        left = most - len(os.listdir("/dev/fd"))
    except OSError:  # some containers do not show open files
        left = most - _SPARE
    return max(1, min(wanted, left - min(_SPARE, left // 2)))


def _watched_alone(app: ASGIApp, error_body: ErrorBody) -> ASGIApp:
    """Return an application that answers requests to all but `WATCHED` paths with status 503."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        if scope["path"] in WATCHED:
            await app(scope, receive, closing)
            return
        error = error_body(503, "Too many connections. Try again in a moment.", "overloaded")
        answered = JSONResponse(error, 503, {"Retry-After": "2", **NOSNIFF})
        await answered(scope, receive, closing)

    return answer
