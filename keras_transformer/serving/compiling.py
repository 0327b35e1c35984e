"""Compilation of constraints from requests, in child processes with limits.

A schema or a pattern of an untrusted client can be expensive to compile. A child process keeps that
from the model's process. The operating system ends it at its limits of time and memory, and it is
killed if the client leaves.
"""

import contextvars
import importlib.util
import io
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_transformer.generation import Constraints, TokenAutomaton
from keras_transformer.generation.constraints import compile_child
from keras_transformer.serving.limits import TooManyRequests
from keras_transformer.support.bounded_child import OUT_OF_MEMORY
from keras_transformer.support.bounded_process import BoundedProcess, Ended

SECONDS = 5.0  # of processor time for each constraint
PATIENCE = 30.0  # seconds of wall-clock time
MEMORY = 2**30  # bytes
# Constraints of each model: compiled at a time, waiting, and cached.
_AT_A_TIME, _WAITING, _KEPT = 2, 8, 16
# Most characters of a schema as JSON, and most numbers in an automaton.
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
    """Raised if the client leaves while its constraint is compiled."""


class Asking:
    """Compilation of one request's constraints, which ends when the client leaves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: BoundedProcess | None = None
        self.left = False

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a function that compiles constraints for this request."""
        token = _asking.set(self)
        try:
            return function(*arguments)
        finally:
            _asking.reset(token)

    def leave(self) -> None:
        """End the running compilation, from any thread."""
        with self._lock:
            self.left = True
            if self._process is not None:
                self._process.kill()

    def holds(self, process: BoundedProcess | None) -> None:
        """Register the running process, None if it is done. Raises `Left` if the client left."""
        with self._lock:
            self._process = process
            if self.left and process is not None:
                raise Left


class Compiler:
    """Compiles the constraints of requests to one task, in child processes.

    Args:
        task: a `CausalLM` with a tokenizer. Between `start` and `close`, its method `constraint`
            uses this compiler.

    Example: see `make_api`, which makes a compiler for each task.
    """

    def __init__(self, task: Any):
        self.task = task
        self._idle: list[BoundedProcess] = []
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(_AT_A_TIME)
        self._room = _AT_A_TIME + _WAITING

    def start(self) -> None:
        """Make the task use this compiler."""
        self.task.generator._constraints = Constraints.from_tokenizer(
            self.task.tokenizer,
            self.task.generator.continues_prompts,
            size=_KEPT,
            compile=self.compile,
        )

    def close(self) -> None:
        """End the processes, and let the task compile its constraints in its own process again."""
        self.task.generator._constraints = None
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def compile(
        self, kind: str, value: Any, options: Sequence[bool],
        token_bytes: Sequence[bytes | None], never_first: Sequence[int],
    ) -> TokenAutomaton:  # fmt: skip
        """Compile a constraint. Raises ValueError if it cannot be compiled within the limits.

        Raises `TooManyRequests` if too many wait, and `Left` if the client has left.
        """
        asked = {"kind": kind, "value": value, "options": list(options), "most": _MOST_NUMBERS,
                 "never_first": [int(token) for token in never_first]}  # fmt: skip
        request = json.dumps(asked).encode() + b"\n"
        if len(request) > _MOST_CHARACTERS:
            raise ValueError(
                f"The constraint has {len(request):,} characters as JSON, and may have at "
                f"most {_MOST_CHARACTERS:,}: shorten it."
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
                    f"The constraint takes more than {SECONDS:g} seconds to compile. {_LESS}"
                )
            if process.status == OUT_OF_MEMORY:
                raise ValueError(
                    f"The constraint takes more than {MEMORY // 2**20:,} MB to compile. {_LESS}"
                )
            # Killed from outside, perhaps while idle: try once more.
        raise ValueError(
            f"The process that compiled the constraint ended with status {process.status}. {_LESS}"
        )

    def _process(self, token_bytes: Sequence[bytes | None]) -> BoundedProcess:
        """Return an idle process, or start one and send it the vocabulary."""
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
