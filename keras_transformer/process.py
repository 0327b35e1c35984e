"""What the library changes in the process: how memory is kept between steps on a CPU.

A training step needs some hundred megabytes for a moment. The C library of Linux takes blocks of
that size from the system and gives them back each time, and the system clears each page again:
295,000 page faults a step of the tiny translator on JAX, a quarter of its time.
"""

import ctypes
import functools
import logging
import os
import platform

import keras

from keras_transformer.backend import WAITING
from keras_transformer.checking import check_bool

# From malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8
_TUNED = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1}
# What a user can say of the same. Then that holds.
_SETTINGS = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_MAX_",
    "MALLOC_TRIM_THRESHOLD_",
)

# Steps of one size that take so many times as long as the quickest, and of how many it is said.
_SLOW, _OFTEN = 5, 3

_forbidden = False
_tuned: bool | None = None  # None before it was tried.


def tune_process(enabled: bool = True) -> bool:
    """Makes the C library keep what is freed for what is asked for next, or forbids it.

    The first model, or optimizer of this library, does it by itself, and says so in a line of the
    log, at the level INFO: `tune_process(False)` comes before it, and `tune_process()` is for
    programs that have layers alone, or an optimizer of Keras before the model. The most memory
    that the process ever had is then what it has until its end.

    Of large blocks only those of the main thread are kept. So on JAX programs then run in the
    thread that calls them, and on TensorFlow all threads share one memory, for which other ones,
    such as those that tokenize, wait for each other. JAX decides how programs run, and a thread
    where it takes memory from, with the first array on a CPU: what comes later has less effect. (A
    program of JAX that gets arrays of over 100 kB as NumPy arrays waits for them in another
    thread, and so is not served: the steps of this library's models make arrays of JAX of them.)

    Args:
        enabled: bool, False to change nothing in this process.

    Returns:
        Whether the process is tuned: not where the C library is another one than glibc, and not
        where the environment says how it should be (`GLIBC_TUNABLES`, `MALLOC_ARENA_MAX`,
        `MALLOC_MMAP_MAX_`, `MALLOC_TRIM_THRESHOLD_`).

    Raises:
        ValueError: for False once the process is tuned, which cannot be taken back.

    Example:
    ```python
    import keras_transformer as kt

    assert kt.tune_process() in (True, False)
    ```
    """
    global _forbidden
    if not check_bool("enabled", enabled) and _tuned:
        raise ValueError(
            "The process is tuned already, by the first model or optimizer, or a call before: "
            "call `tune_process(False)` before the first model is made."
        )
    _forbidden = not enabled
    return tune_once()


def tune_once() -> bool:
    """Tunes the process if that was not tried before, and is not forbidden."""
    global _tuned
    if _tuned is None and not _forbidden:
        _tuned = _tune()
    return bool(_tuned)


def release_memory() -> None:
    """Gives the system back what is free now, where the C library is glibc.

    It is called behind what is done seldom and needs much for a moment: loading weights, compiling,
    moving a cache. What a step frees stays in the process for the next one.
    """
    if _has_glibc():
        ctypes.CDLL(None).malloc_trim(0)


class SlowSteps:
    """Says once that steps of one size differ much in time, as they do where threads spin.

    Of use on PyTorch on a CPU, whose OpenMP was loaded before anything was said about it.
    """

    def __init__(self):
        self._quickest: dict = {}
        self._count = 0

    def note(self, size, seconds: float) -> None:
        """Hear that a step of a size, which may be any key, took so many seconds."""
        quickest = self._quickest[size] = min(seconds, self._quickest.get(size, seconds))
        if seconds < _SLOW * quickest:
            return
        self._count += 1
        if self._count == _OFTEN and not set(WAITING) & set(os.environ):
            logging.getLogger("keras_transformer").warning(
                "Steps of one size take from %.2g to %.2g seconds: other programs want the cores, "
                "for which PyTorch's threads spin. OMP_WAIT_POLICY=PASSIVE in the environment, or "
                "`import keras_transformer` before `import torch`, lets them sleep.",
                quickest,
                seconds,
            )


SLOW_STEPS = SlowSteps()


@functools.cache
def _has_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"


def _tune() -> bool:
    if not _has_glibc() or any(name in os.environ for name in _SETTINGS):
        return False
    libc = ctypes.CDLL(None)
    backend = keras.backend.backend()
    settings = _TUNED | ({_M_ARENA_MAX: 1} if backend == "tensorflow" else {})
    if not all(libc.mallopt(setting, value) for setting, value in settings.items()):
        return False
    how = ""
    if backend == "jax":
        import jax

        jax.config.update("jax_cpu_enable_async_dispatch", False)
        how = ", and JAX runs programs on a CPU in the thread that calls them"
    logging.getLogger("keras_transformer").info(
        "The process keeps the memory that it frees%s, for faster steps on a CPU. To change "
        "nothing call `keras_transformer.tune_process(False)` before the first model is made.",
        how,
    )
    return True
