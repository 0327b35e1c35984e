"""The constraints of requests, compiled in processes that can be ended.

A schema or a pattern is a program by a stranger. Here it takes no time of the model's process, and
what takes too much of its own is ended by the operating system, or when the client leaves.
"""

import contextvars
import importlib.util
import io
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_transformer.bounded_child import OUT_OF_MEMORY
from keras_transformer.bounded_process import BoundedProcess, Ended
from keras_transformer.generation import Constraints, TokenAutomaton, compile_child
from keras_transformer.serving.limits import TooManyRequests

SECONDS = 5.0  # of computing, for each constraint
PATIENCE = 30.0  # seconds by the clock
MEMORY = 2**30  # bytes
# Constraints that are compiled at a time for each model, that wait, and that are kept.
_AT_A_TIME, _WAITING, _KEPT = 2, 8, 16
# Characters of a schema as JSON, and numbers in an automaton.
_MOST_CHARACTERS, _MOST_NUMBERS = 2**20, 2**22
_PACKAGES = (
    "numpy", "jsonschema", "jsonschema_specifications", "referencing", "rpds", "attr",
    "typing_extensions",
)  # fmt: skip
_LESS = (
    "Give it fewer optional properties, alternatives and levels, shorter strings and arrays, or "
    "simpler patterns."
)
_asking: contextvars.ContextVar["Asking | None"] = contextvars.ContextVar("asking", default=None)


class Left(Exception):
    """The client left while its constraint was compiled."""


class Asking:
    """The constraints of one request, which end when its client leaves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: BoundedProcess | None = None
        self.left = False

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function gives, whose constraints are compiled for this request."""
        token = _asking.set(self)
        try:
            return function(*arguments)
        finally:
            _asking.reset(token)

    def leave(self) -> None:
        """End what is compiled, from any thread."""
        with self._lock:
            self.left = True
            if self._process is not None:
                self._process.kill()

    def holds(self, process: BoundedProcess | None) -> None:
        """Say which process compiles, None for none. Raises `Left` if nobody waits for it."""
        with self._lock:
            self._process = process
            if self.left and process is not None:
                raise Left


class Compiler:
    """Compiles the constraints of a task's requests, as `compile_constraint` does.

    Args:
        task: a `CausalLM` with a tokenizer, whose `constraint` compiles here between `start` and
            `close`.

    Example: see `make_api`, whose tasks have one each.
    """

    def __init__(self, task: Any):
        self.task = task
        self._idle: list[BoundedProcess] = []
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(_AT_A_TIME)
        self._room = _AT_A_TIME + _WAITING

    def start(self) -> None:
        """Have the constraints of the task compiled here."""
        self.task._constraints = Constraints.of(
            self.task.tokenizer, self.task.continues_prompts, size=_KEPT, compile=self.compile
        )

    def close(self) -> None:
        """End the processes. The task compiles its constraints itself again."""
        self.task._constraints = None
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def compile(
        self, kind: str, value: Any, options: Sequence[bool],
        token_bytes: Sequence[bytes | None], never_first: Sequence[int],
    ) -> TokenAutomaton:  # fmt: skip
        """Return an automaton. Raises ValueError if it cannot be made within the bounds.

        Raises `TooManyRequests` if too many wait, and `Left` if the client leaves.
        """
        asked = {"kind": kind, "value": value, "options": list(options), "most": _MOST_NUMBERS,
                 "never_first": [int(token) for token in never_first]}  # fmt: skip
        request = json.dumps(asked).encode() + b"\n"
        if len(request) > _MOST_CHARACTERS:
            raise ValueError(
                f"The constraint has {len(request):,} characters, and may have "
                f"{_MOST_CHARACTERS:,}: shorten it."
            )
        with self._lock:
            if not self._room:
                raise TooManyRequests
            self._room -= 1
        try:
            with self._turns:
                return self._compiled(request, token_bytes)
        finally:
            with self._lock:
                self._room += 1

    def _compiled(self, request: bytes, token_bytes: Sequence[bytes | None]) -> TokenAutomaton:
        asking = _asking.get() or Asking()
        for _ in range(2):
            process = self._process(token_bytes)
            last = True
            try:
                asking.holds(process)
                kind, last, data = process.ask(request, SECONDS, PATIENCE)
            except Ended:
                if asking.left:
                    raise Left from None
            else:
                return _automaton(kind, data)
            finally:
                asking.holds(None)
                if last:
                    process.end()
                else:
                    with self._lock:
                        self._idle.append(process)
            if process.timed_out or process.took_too_long:
                raise ValueError(
                    f"The constraint takes more than {SECONDS:g} seconds to be compiled. {_LESS}"
                )
            if process.status == OUT_OF_MEMORY:
                raise ValueError(
                    f"The constraint takes more than {MEMORY // 2**20:,} MB to be compiled. {_LESS}"
                )
            # Killed from outside, perhaps while it waited: once more.
        raise ValueError(
            f"The constraint ends the process that compiles it (with the status {process.status}). "
            f"{_LESS}"
        )

    def _process(self, token_bytes: Sequence[bytes | None]) -> BoundedProcess:
        """Return a process that knows the vocabulary and waits."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        process = BoundedProcess(
            "compiles constraints",
            str(compile_child.__file__),
            MEMORY,
            [name for name in _PACKAGES if importlib.util.find_spec(name)],
            PATIENCE,
            8 * _MOST_NUMBERS,
        )
        lengths = [-1 if token is None else len(token) for token in token_bytes]
        head = json.dumps({"kind": "vocabulary", "lengths": lengths}).encode()
        data = b"".join([head, b"\n", *(token or b"" for token in token_bytes)])
        process.ask(data, SECONDS, PATIENCE)
        return process


def _automaton(kind: str, data: bytes) -> TokenAutomaton:
    if kind != "automaton":
        raise ValueError(data.decode())
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        transitions, token_classes, accepting = (arrays[name] for name in arrays.files)
    return TokenAutomaton(transitions, token_classes, accepting)
