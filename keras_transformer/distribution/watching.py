"""Which process of a run died, hangs or is slow: each writes a line that the others read."""

import contextlib
import json
import logging
import os
import socket
import statistics
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import keras

from keras_transformer.distribution.processes import process_count, process_index
from keras_transformer.support.checking import check_number, check_path, printable

_logger = logging.getLogger(__name__)
_LONGEST = 300  # characters of an error that is passed on
_WARM = 3  # steps that do not count for speed
_SLOW = 2.0  # times the median of the others between two steps
_AT_LEAST = 0.2  # seconds between two steps that count as slow


class ProcessWatch(keras.callbacks.Callback):
    """Names the process that died, hangs or is slow, in all others.

    What one process waits for is often in another: a collective operation just does not return, or
    ends with the address of a connection. Each process therefore writes its step, and the line of
    the program that it is at, into a file of a shared folder, from a thread of its own, and reads
    those of the others. It warns, once for each case, of a process

    - that has been silent for `seconds`: it died, was stopped, or its host is unreachable;
    - that is behind while the others wait for it for `seconds`: it hangs, or compiles;
    - that needs twice as long between its steps as most, for data and callbacks.

    Use it around `fit`, and first among its callbacks. If `fit` fails, the error then says which
    process ended first, and how. It ends no process: PyTorch does after the `timeout` of
    `init_process_group`, and JAX after `heartbeat_timeout_seconds` of `jax.distributed.initialize`.

    Args:
        directory: folder that all hosts see, such as that of `training.ResumableRun`.
        seconds: float, after which a process is named. Defaults to 30.

    Raises:
        ValueError: if `seconds` is below 1.
        RuntimeError: from the block, in place of an error of `fit`, if another process ended.

    Example:
    ```python
    import tempfile
    import keras_transformer as kt

    classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
    with kt.distribution.ProcessWatch(tempfile.mkdtemp()) as watch:
        classifier.fit(["a warm film", "dull"], [1, 0], verbose=0, callbacks=[watch])
    ```
    """

    def __init__(self, directory: str | os.PathLike, seconds: float = 30.0):
        super().__init__()
        self.seconds = float(check_number("seconds", seconds, at_least=1))
        self.directory = Path(check_path("directory", directory)) / "processes"

    def __enter__(self) -> "ProcessWatch":
        self.directory.mkdir(parents=True, exist_ok=True)
        self._index, now = process_index(), time.monotonic()
        self._mine = {"host": socket.gethostname(), "pid": os.getpid(), "step": 0, "between": 0.0}
        self._main, self._step_ended = threading.get_ident(), None
        # What an earlier start left does not count: only what changes from now on.
        self._others = {
            index: _Other(self._read(index), now)
            for index in range(process_count())
            if index != self._index
        }
        self._named: set[tuple] = set()
        self._write()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace) -> None:
        of_others = isinstance(error, RuntimeError | OSError)  # errors of connections are such
        found = self._first_ended() if of_others and self._others else ""
        if error is None:
            self._mine["ended"] = "done"
        elif not found:  # its own, such as too little memory
            message = printable(f"{type(error).__name__}: {error}", one_line=True)
            self._mine["ended"] = message[:_LONGEST]
        with contextlib.suppress(OSError):
            self._write()
        self._ended.set()
        self._thread.join()
        if found:
            raise RuntimeError(f"{found} Start all processes again.") from error

    def on_epoch_begin(self, epoch, logs=None):
        self._step_ended = None

    def on_train_batch_begin(self, batch, logs=None):
        if self._step_ended is not None:
            between = time.monotonic() - self._step_ended
            self._mine["between"] = 0.8 * self._mine["between"] + 0.2 * between
        self._mine["step"] += 1

    def on_train_batch_end(self, batch, logs=None):
        self._step_ended = time.monotonic()

    def _loop(self) -> None:
        while not self._ended.wait(min(2.0, self.seconds / 10)):
            try:
                self._write()
                self._look()
            except OSError as error:  # a file system that is away for a while
                self._name("files", f"The watch of the processes fails: {error}.")

    def _write(self) -> None:
        frame = sys._current_frames().get(self._main)
        at = traceback.extract_stack(frame)[-1] if frame is not None else None
        at = f"{at.filename}:{at.lineno} in {at.name}" if at else "its end"
        content = {**self._mine, "at": at, "beat": time.time_ns()}
        # In place, not by a rename: network file systems show that to others sooner.
        (self.directory / f"{self._index}.json").write_text(json.dumps(content), encoding="utf-8")

    def _read(self, index: int) -> dict[str, Any]:
        try:
            found = json.loads((self.directory / f"{index}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not there yet, or half written
            return {}
        return found if isinstance(found, dict) else {}

    def _look(self) -> None:
        now = time.monotonic()
        for index, other in self._others.items():
            other.update(self._read(index), now)
        for index, other in self._others.items():
            if "ended" not in other.content:
                self._judge(index, other, now)

    def _judge(self, index: int, other: "_Other", now: float) -> None:
        """Warn of a process that is silent, behind or slow."""
        step, mine = other.content.get("step", 0), self._mine["step"]
        silent, standing = now - other.heard, now - other.moved
        if silent > self.seconds:
            self._name(
                (index, "silent"),
                f"{other.named(index)} has been silent for {silent:.0f} s: it died, was stopped, "
                "or its host is not reachable. See its log, end the processes that are left, and "
                "start all of them again.",
            )
        elif other.alive and step < mine and standing > self.seconds:
            self._name(
                (index, step),
                f"{other.named(index)} has been in step {step} for {standing:.0f} s, while this "
                f"process waits in step {mine}. It is at {other.content['at']}. If it does not "
                "compile or save there, end it (kill -9) and start all of them again.",
            )
        between = [each.content.get("between", 0.0) for each in self._others.values()]
        usual = statistics.median_low([*between, self._mine["between"]])
        own = other.content.get("between", 0.0)
        if other.alive and step > _WARM and own > max(_AT_LEAST, _SLOW * usual):
            self._name(
                (index, "slow"),
                f"{other.named(index)} needs {own:.2f} s between two steps, most need {usual:.2f} "
                "s: look at its data, its callbacks and the load of its host. It is at "
                f"{other.content['at']}.",
            )

    def _name(self, case: Any, message: str) -> None:
        if case not in self._named:
            self._named.add(case)
            _logger.warning("%s", message)

    def _first_ended(self) -> str:
        """Return which processes ended before this one, after waiting until it shows."""
        begun = time.monotonic()
        while (now := time.monotonic()) - begun < self.seconds:
            found = []
            for index, other in self._others.items():
                ended, silent = other.content.get("ended", "done"), now - other.heard
                if ended != "done":
                    found.append(f"{other.named(index)} ended with {ended}.")
                elif other.alive and "ended" not in other.content and silent > self.seconds / 3:
                    found.append(
                        f"{other.named(index)} has been silent for {silent:.0f} s, since step "
                        f"{other.content['step']}: it was killed, or its host is not reachable."
                    )
            if found:
                return " ".join(found)
            time.sleep(0.1)
        return ""


class _Other:
    """The last signs of life of another process."""

    def __init__(self, left: dict[str, Any], now: float):
        self.content, self._last, self.alive = {}, left, False
        self.heard = self.moved = now

    def update(self, found: dict[str, Any], now: float) -> None:
        """Note what the process has written, if it is new."""
        if not found or found == self._last:
            return
        if found.get("step") != self.content.get("step"):
            self.moved = now
        self.content, self._last, self.alive, self.heard = found, found, True, now

    def named(self, index: int) -> str:
        """Return the number of the process, and where it runs."""
        if not self.alive:
            return f"Process {index}, which has not begun,"
        return f"Process {index} (pid {self.content['pid']} on {self.content['host']})"
