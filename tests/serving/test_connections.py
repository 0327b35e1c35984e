"""Connections that ask nothing, ask slowly or do not listen, and how requests end."""

import asyncio
import contextlib
import json
import socket
import threading
import time

import anyio
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from keras_transformer.serving.app import error_body
from keras_transformer.serving.connections import Server
from keras_transformer.serving.limits import Gate, Limits, TooManyRequests
from tests.serving.conftest import ask, started

pytestmark = pytest.mark.backend_independent

GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"


def make_app():
    """It is well, streams for ever in either form of lines, and writes more than is taken."""

    async def health(request):
        return JSONResponse({"status": "ok"})

    async def other(request):
        return JSONResponse({})

    async def waits(request):
        await asyncio.sleep(60)

    def stream(kind, line):
        async def lines():
            while True:
                yield line
                await asyncio.sleep(0.02)

        async def answer(request):
            return StreamingResponse(lines(), media_type=kind)

        return answer

    async def much(request):
        return JSONResponse({"text": "a" * 2**26})

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/other", other, methods=["GET", "POST"]),
            Route("/waits", waits),
            Route("/events", stream("text/event-stream", "data: 1\n\n")),
            Route("/lines", stream("application/x-ndjson", "1\n")),
            Route("/much", much),
        ]
    )


@contextlib.contextmanager
def opened(port, count, sent=b""):
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", port), 30)
            connection.sendall(sent)
            made.append(stack.enter_context(connection))
        yield made


def is_closed(connection, seconds=0.0):
    """Return True if the server closes a connection within this many seconds."""
    connection.settimeout(max(seconds, 0.01))
    deadline = time.monotonic() + seconds
    try:
        while connection.recv(2**16):
            if time.monotonic() > deadline:
                return False
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def test_idle_connections_give_way_to_new_ones():
    """The oldest of them, whether they have sent nothing, half a head or had an answer."""
    with started(make_app(), Limits(connections=6)) as port:
        for sent in (b"", b"GET /other HT", GET % b"/other"):
            with opened(port, 20, sent) as many:
                assert ask(port, "/other")[0] == 200
                deadline = time.monotonic() + 10
                while sum(is_closed(connection) for connection in many) < 14:
                    assert time.monotonic() < deadline


def test_where_all_are_answered_a_reserve_is_left_for_who_watches():
    with (
        started(make_app(), Limits(connections=3)) as port,
        opened(port, 3, GET % b"/lines") as streams,
    ):
        assert all(connection.recv(100) for connection in streams)
        status, headers, found = ask(port, "/other")
        assert (status, headers["retry-after"]) == (503, "2")
        assert headers["x-content-type-options"] == "nosniff" and "connections" in found["error"]
        with opened(port, 20):  # idle ones give way there too
            assert ask(port, "/health")[::2] == (200, {"status": "ok"})


def test_a_request_must_arrive_in_time():
    """Nothing, half a head, one that comes byte by byte, and a body that nobody reads."""
    body = b"POST /other HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n"
    with started(make_app(), Limits(body_seconds=0.5)) as port:
        for sent in (b"", b"GET /other HTTP/1.1\r\nHost: local", body):
            with opened(port, 1, sent) as (connection,):
                began = time.monotonic()
                closed = False
                while not closed and time.monotonic() - began < 20:
                    with contextlib.suppress(OSError):
                        connection.sendall(b"a" if sent else b"")
                    closed = is_closed(connection, 0.05)
                assert closed and time.monotonic() - began < 10
        with opened(port, 1, GET % b"/lines") as (connection,):  # an answer may take longer
            assert not is_closed(connection, 1.0)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nCookie: " + b"a" * 70_000, 431),
        (b"no request\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    ],
)
def test_what_is_no_request_is_told_in_json(sent, status):
    with started(make_app(), Limits()) as port, opened(port, 1, sent) as (connection,):
        connection.settimeout(20)
        parts = iter(lambda: connection.recv(2**16), b"")
        head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d" % status) and b"application/json" in head
    assert set(json.loads(body)) == {"error"}


def test_who_takes_nothing_of_an_answer_is_left():
    with (
        started(make_app(), Limits(idle_seconds=0.3)) as port,
        opened(port, 1, GET % b"/much") as (connection,),
    ):
        connection.settimeout(30)
        read, cut = len(connection.recv(1)), False  # from here on nothing is taken
        time.sleep(1.5)
        try:
            while found := connection.recv(2**20):
                read += len(found)
        except ConnectionError:
            cut = True
        assert read < 2**26 or cut


@pytest.mark.parametrize(
    ("path", "start", "end"),
    [
        ("/events", b"data: 1\n\n", b"data: %s\n\n"),
        ("/lines", b"1\n", b"%s\n"),
        ("/waits", b"", b"%s"),
    ],
)
def test_what_is_cut_ends_with_an_error(path, start, end):
    """The server is stopped: what runs has half a second, and then its client is told."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    limits = Limits(stop_seconds=0.5)
    server = Server(make_app(), limits, error_body, log_level="critical")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    with opened(port, 1, GET % path.encode()) as (connection,):
        time.sleep(0.3)
        server.should_exit, began = True, time.monotonic()
        read = b""
        while found := connection.recv(2**16):
            read += found
        took = time.monotonic() - began
    thread.join(20)
    assert not thread.is_alive() and 0.4 < took < 3
    message = "The server is stopping: send the request again later, or to another server."
    told = json.dumps({"error": message}, separators=(", ", ": ")).encode()
    if start:
        assert read.startswith(b"HTTP/1.1 200") and start in read
        assert end % told in read and read.endswith(b"0\r\n\r\n")  # whole, as HTTP sees it
    else:
        assert read.startswith(b"HTTP/1.1 503") and message.encode() in read


def test_a_turn_lasts_until_its_function_ends():
    """Whoever asks and leaves, again and again, has no more computed at a time than others."""

    async def check():
        gate, go, ran = Gate(Limits(running=1, waiting=1)), threading.Event(), []
        with anyio.move_on_after(0.1):
            await gate.run(go.wait, 20)
        with anyio.move_on_after(0.1):  # it waits for its turn, and leaves before
            await gate.run(ran.append, 1)
        async with anyio.create_task_group() as group:
            group.start_soon(gate.run, ran.append, 2)
            await anyio.sleep(0.1)
            with pytest.raises(TooManyRequests):
                await gate.run(ran.append, 3)
            assert not ran
            go.set()
        assert ran == [2]
        assert await gate.run(lambda: 4) == 4
        with pytest.raises(ZeroDivisionError):
            await gate.run(lambda: 1 / 0)
        assert await gate.run(lambda: 5) == 5

    anyio.run(check)
