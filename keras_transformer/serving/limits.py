"""What a server takes at a time."""

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
    """What a server takes, so that no request can take all of the machine.

    Args:
        body_bytes: the largest request.
        characters: of one text.
        running: so many requests are computed at a time.
        waiting: so many more wait; others are told to come again.
        explanations: so many views of attention are kept, the latest.
        tokens: of a prompt and what is written behind it, of the API; and of each text that a model
            reads whole, fewer where several of them are sent together (`Verb.check`).
        batch_size: so many texts are written together for each model, of the API.
        body_seconds: a request that takes longer to arrive, its headers or its body, is given up.
        stop_seconds: when the server is stopped, what runs has so long to be finished.
        connections: so many at a time, or fewer where the process may not open so many files. Idle
            ones give way to new ones.
        idle_seconds: a client that takes nothing of its answer for so long is left.
        held_bytes: of all requests together that are read or computed.
        parts: lists, objects and values in the JSON of one request.
        samples: of a recording, of all channels at its own rate and of one channel at the model's.
        attention: numbers of one view of attention, over all layers and heads.
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
    attention: int = 2**26


# Whoever watches a server asks these, without its key and when nobody else is answered.
WATCHED = ("/health", "/ready")
# Of the API: longer texts, and many clients at once.
API_LIMITS = Limits(characters=200_000, waiting=256)


class TooManyRequests(Exception):
    """As many requests wait as may."""


class Gate:
    """So many at a time, so many wait, and the next one is refused."""

    def __init__(self, limits: Limits):
        self._running = anyio.Semaphore(limits.running)
        self._room = limits.running + limits.waiting

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The time of a request. TooManyRequests where too many wait."""
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    async def run(self, function: Callable, *arguments: Any) -> Any:
        """What a function gives that is called in another thread, in its turn.

        The turn lasts until the function ends, even where nobody waits for it any more: its client
        has left, or the server stops. TooManyRequests where too many wait.
        """
        await self._enter()
        in_loop = asyncio.get_running_loop().call_soon_threadsafe
        leave = functools.partial(in_loop, self._leave)
        begun = threading.Lock()  # taken by the thread, or by whoever has it not begin

        def work() -> Any:
            if begun.acquire(blocking=False):
                try:
                    return function(*arguments)
                finally:
                    with contextlib.suppress(RuntimeError):  # the loop has ended
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
