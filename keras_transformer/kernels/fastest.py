"""The fastest of several ways to compute one thing, measured once for each processor."""

import contextlib
import functools
import hashlib
import json
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from keras_transformer.support.files import read_file, write_text

# A way replaces the first one only if it takes at most this share of its time.
_GAIN = 0.95
# Calls are repeated at least and at most so often, and not once more after some seconds. The least
# time of many calls says what they take while other programs leave the processor alone.
_FEWEST, _MOST, _PATIENCE = 3, 50, 0.05
# Settings by which the libraries are told to use fewer instructions than the processor has.
_SETTINGS = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
_LARGEST_FILE = 2**22

_CHOSEN: dict[str, str] = {}
_MEASURING = threading.RLock()


def fastest(
    key: str,
    ways: Mapping[str, Callable[[], Sequence[Callable[[], object]]]],
    scope: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> str:
    """Return the name of the fastest way.

    It is measured when a key is used for the first time, and then kept: in the process, and for
    later processes in `keras_transformer/fastest.json` in `$XDG_CACHE_HOME` or `~/.cache`. If that
    file cannot be read or written, each process measures. Nearly equal ways are not exchanged for
    each other: the first one stays unless another takes at most 95 % of its time, in the geometric
    mean over all calls.

    Args:
        key: str, what is computed: the library and its version, the number of threads, the shape.
        ways: dict of a name to a function that prepares and returns calls without arguments. All
            ways return as many calls, which compute the same in the same order. Nothing is prepared
            if the choice is known.
        scope: function that returns the scope in which the ways are prepared and called.
    """
    key = f"{_processor()}, {key}"
    chosen = _CHOSEN.get(key)
    if chosen in ways:
        return chosen
    with _MEASURING:
        chosen = _read().get(key)
        if chosen not in ways:
            with scope():
                chosen = _measured(ways)
            _write(key, chosen)
        _CHOSEN[key] = chosen
    return chosen


def _measured(ways: Mapping[str, Callable]) -> str:
    prepared = [prepare() for prepare in ways.values()]
    of_first = dict.fromkeys(ways, 1.0)
    for calls in zip(*prepared, strict=True):
        seconds = _least_seconds(calls)
        for name, value in zip(ways, seconds, strict=True):
            of_first[name] *= math.pow(value / seconds[0], 1 / len(prepared[0]))
    best = min(of_first, key=lambda name: of_first[name])
    return best if of_first[best] <= _GAIN else next(iter(ways))


def _least_seconds(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Return the least time of each call, measured in turns after a first one."""
    for call in calls:
        call()
    least, start = [math.inf] * len(calls), time.perf_counter()
    for done in range(1, _MOST + 1):
        for i, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            # Not 0, by which others are divided: a clock may be too coarse.
            least[i] = min(least[i], max(time.perf_counter() - begin, 1e-9))
        if done >= _FEWEST and time.perf_counter() - start > _PATIENCE:
            break
    return least


@functools.cache
def _processor() -> str:
    """Return a name of the processor, with its instructions and the settings that limit them."""
    lines = {}
    with contextlib.suppress(OSError):  # Linux only
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            name, _, value = line.partition(":")
            lines.setdefault(name.strip(), value.strip())
    name = lines.get("model name") or platform.processor() or platform.machine()
    known = [lines.get("flags", ""), *(os.environ.get(setting, "") for setting in _SETTINGS)]
    return f"{name} {hashlib.sha256(repr(known).encode()).hexdigest()[:8]}"


def _file() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "keras_transformer", "fastest.json")


def _read() -> dict[str, str]:
    try:
        found = json.loads(read_file(_file(), _LARGEST_FILE))
    except (OSError, RuntimeError, ValueError):  # RuntimeError: there is no home
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: way for key, way in found.items() if isinstance(way, str)}


def _write(key: str, chosen: str) -> None:
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        # Read again: another process may have written meanwhile.
        write_text(_file(), json.dumps({**_read(), key: chosen}, indent=0, sort_keys=True) + "\n")
