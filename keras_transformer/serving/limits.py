"""Limits on the load of a server."""

import asyncio
import contextlib
import dataclasses
import functools
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.to_thread


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a server, so that a request cannot take up the whole machine.

    Args:
        body_bytes: int, most bytes of the body of one request.
        characters: int, most characters of one text.
        running: int, requests computed at a time.
        waiting: int, further requests that may wait; more are refused with status 429.
        explanations: int, number of attention views that are kept, the latest ones.
        tokens: int, most tokens of a prompt and its continuation, in the API. Also the most tokens
            of a text that a model reads whole; fewer if a request has several (`Verb.check`).
        batch_size: int, texts generated together for each model, in the API.
        body_seconds: float, seconds in which the headers or the body of a request must arrive.
        stop_seconds: float, seconds in which running requests may finish when the server stops.
        connections: int, connections at a time; fewer if the process may open fewer files. At the
            limit a new connection replaces an idle one.
        idle_seconds: float, seconds after which a client that does not read is disconnected.
        held_bytes: int, bytes of the bodies of all requests that are being answered, together, and
            of the images of their chats as the model reads them.
        parts: int, values and punctuation marks in the JSON of one request.
        samples: int, most samples of a recording: over all channels at the rate of the file, and
            of the one channel at the rate of the model.
        pixels: int, most pixels of the images of one request, together.
        attention: int, most numbers in one view of attention, over all layers and heads.
    """

    body_bytes: int = 16 * 2**20
    characters: int = 20_000
    running: int = 2
    waiting: int = 16
    explanations: int = 32
    tokens: int = 4096
    batch_size: int = 32
    body_seconds: float = 30
    stop_seconds: float = 60
    connections: int = 1024
    idle_seconds: float = 60
    held_bytes: int = 256 * 2**20
    parts: int = 300_000
    samples: int = 2**24  # 17 minutes at 16 kHz, 3 of stereo at 48 kHz
    pixels: int = 2**26  # a photo of a phone with 50 megapixels
    attention: int = 2**26


# Paths for monitoring: answered without the API key, and even if the server is full.
WATCHED = ("/health", "/ready")
# Limits of the API: longer texts than on the page, and many clients at once.
API_LIMITS = Limits(characters=200_000, waiting=256)


class TooManyRequests(Exception):
    """Raised if the number of waiting requests is at its limit."""


class Gate:
    """Lets a limited number of requests run and a limited number wait, and refuses others."""

    def __init__(self, limits: Limits):
        self._running = anyio.Semaphore(limits.running)
        self._room = limits.running + limits.waiting

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn and hold it. Raises TooManyRequests if too many requests wait."""
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    async def run(self, function: Callable, *arguments: Any) -> Any:
        """Call a function in another thread, in its turn, and return its result.

        The turn lasts until the function ends, even if nobody waits for its result any more since
        the client has left or the server stops. Raises TooManyRequests if too many requests wait.
        """
        await self._enter()
        in_loop = asyncio.get_running_loop().call_soon_threadsafe
        leave = functools.partial(in_loop, self._leave)
        begun = threading.Lock()  # taken by the thread, or by a cancelled caller before its start

        def work() -> Any:
            if begun.acquire(blocking=False):
                try:
                    return function(*arguments)
                finally:
                    with contextlib.suppress(RuntimeError):  # if the loop has ended
                        leave()
            return None

        try:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        except BaseException:
            if begun.acquire(blocking=False):
                self._leave()
            raise

    async def _enter(self) -> None:
        if self._room == 0:
            raise TooManyRequests
        self._room -= 1
        try:
            await self._running.acquire()
        except BaseException:
            self._room += 1
            raise

    def _leave(self) -> None:
        self._running.release()
        self._room += 1
