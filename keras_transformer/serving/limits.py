"""What a server takes at a time."""

import contextlib
import dataclasses
from collections.abc import AsyncIterator

import anyio


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a server takes, so that no request can take all of the machine.

    Args:
        body_bytes: the largest request.
        characters: of one text.
        running: so many requests are computed at a time.
        waiting: so many more wait; others are told to come again.
        explanations: so many views of attention are kept, the latest.
    """

    body_bytes: int = 16 * 2**20
    characters: int = 20_000
    running: int = 2
    waiting: int = 16
    explanations: int = 32


class TooManyRequests(Exception):
    """As many requests wait as may."""


class TooLarge(Exception):
    """A request has more bytes than are read."""


class Gate:
    """So many at a time, so many wait, and the next one is refused."""

    def __init__(self, limits: Limits):
        self._running = anyio.Semaphore(limits.running)
        self._room = limits.running + limits.waiting

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The time of a request. TooManyRequests where too many wait."""
        if self._room == 0:
            raise TooManyRequests
        self._room -= 1
        try:
            async with self._running:
                yield
        finally:
            self._room += 1
