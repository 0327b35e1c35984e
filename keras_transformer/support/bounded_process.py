"""Child process for untrusted computations, limited in time and memory."""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from keras_transformer.support import bounded_child

# Environment variables kept: only what Python may need to start, and the time zone.
_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TZ")
# Keep numeric libraries from starting threads, which the child process is not allowed to.
_ONE_THREAD = {
    f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "VECLIB", "NUMEXPR")
}


class Ended(Exception):
    """The process ended without an answer."""


class BoundedProcess:
    """Child process that answers requests within limits of time and memory.

    Its pipes are unbuffered, so a fork of the parent copies no pending data and no held lock.

    Args:
        what: str, what the process does, for messages such as "The process that {what} ...".
        path: path of a Python file whose function `prepare` returns the answering function: from
            bytes to a kind, a string of at most 16 characters, and bytes.
        memory: int, bytes that it may allocate beyond its size at the start.
        packages: names of the packages that it imports. Nothing else can be imported.
        patience: float, wall-clock seconds that it may take to start.
        most: int, maximum number of bytes in an answer.

    Raises:
        ImportError: if one of the packages is not installed.
        RuntimeError: if the process does not start.
    """

    def __init__(
        self, what: str, path: str, memory: int, packages: Iterable[str], patience: float, most: int
    ):
        self.most, self.timed_out = most, False
        child = str(bounded_child.__file__)
        command = [sys.executable, "-I", "-S", "-B", child, str(memory), path, *_folders(packages)]
        try:
            self._popen = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**_ONE_THREAD, **{x: os.environ[x] for x in _VARIABLES if x in os.environ}},
                # Ctrl-C in a terminal is meant for the parent process.
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
            self._timed(patience, self._answer)
        except (OSError, Ended) as error:
            if not isinstance(error, OSError):
                self.end()
                error = f"it ended with the status {self.status}"
            raise RuntimeError(
                f"The process that {what} does not start: {error}. Its command is: "
                f"{' '.join(command)}"
            ) from None

    @property
    def status(self) -> int | None:
        """Exit status of the process: a negative number is the signal that ended it."""
        return self._popen.returncode

    @property
    def took_too_long(self) -> bool:
        """Whether the process was ended because it exceeded its computing time."""
        return self.status == -getattr(signal, "SIGPROF", 0)

    def ask(self, request: bytes, seconds: float, patience: float) -> tuple[str, bool, bytes]:
        """Send a request and wait for its answer.

        Args:
            request: bytes.
            seconds: float, computing time allowed on the processor.
            patience: float, wall-clock time allowed: more, since other programs use the cores too.

        Returns:
            `(kind, last, data)`: the kind of the answer, whether the process ends after it, and the
            answer's bytes.

        Raises:
            Ended: if the process ended without an answer.
        """
        return self._timed(patience, self._exchange, request, seconds)

    def _timed(self, patience: float, function: Callable, *args: Any) -> tuple[str, bool, bytes]:
        timer = threading.Timer(patience, self._time_out)
        timer.daemon = True
        self.timed_out = False
        timer.start()
        try:
            return function(*args)
        finally:
            timer.cancel()

    def _time_out(self) -> None:
        self.timed_out = True
        self._popen.kill()

    def _exchange(self, request: bytes, seconds: float) -> tuple[str, bool, bytes]:
        data = memoryview(bounded_child.REQUEST.pack(seconds, len(request)) + request)
        try:
            while data:
                data = data[self._popen.stdin.write(data) :]
        except BrokenPipeError:
            raise Ended from None
        return self._answer()

    def _answer(self) -> tuple[str, bool, bytes]:
        kind, last, length = bounded_child.ANSWER.unpack(self._read(bounded_child.ANSWER.size))
        if length > self.most:
            raise Ended
        return kind.rstrip(b"\0").decode(), last, self._read(length)

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            part = self._popen.stdout.read(min(length - len(data), 2**20))
            if not part:
                raise Ended
            data += part
        return bytes(data)

    def kill(self) -> None:
        """Kill the process, from any thread; a thread that waits in `ask` gets `Ended`."""
        self._popen.kill()

    def end(self) -> None:
        """Kill the process, and wait until it has ended."""
        self._popen.kill()
        self._popen.wait()
        self._close()

    def leave(self) -> None:
        """Forget the process without killing it: called in a fork, whose parent still uses it."""
        self._popen.returncode = 0  # not a child of this process: nothing to wait for
        self._close()

    def _close(self) -> None:
        self._popen.stdin.close()
        self._popen.stdout.close()


def _folders(packages: Iterable[str]) -> list[str]:
    """Return the folders that contain the packages."""
    folders = {}
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ImportError(f"No module named {name!r}")
        folder = Path(spec.origin).parent
        is_package = spec.submodule_search_locations is not None
        folders[str((folder.parent if is_package else folder).absolute())] = None
    return list(folders)
