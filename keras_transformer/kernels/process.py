"""Memory settings of the process, for faster steps on a CPU.

A training step temporarily needs some hundred megabytes. By default Linux's C library takes large
blocks from the system and returns them after each use, and the system clears each page again:
295,000 page faults in a step of the tiny translator on JAX, a quarter of its time.
"""

import ctypes
import functools
import logging
import os
import platform

import keras

from keras_transformer.kernels.device import on
from keras_transformer.support.checking import check_bool

# from malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8
_TUNED = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1}
# Blocks from a mebibyte on are taken from the system and returned to it one by one.
_SAVING = {_M_MMAP_THRESHOLD: 2**20, _M_MMAP_MAX: 2**16, _M_TRIM_THRESHOLD: 2**20}
# Environment variables with which a user makes the same settings. They take precedence.
_SETTINGS = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_MAX_",
    "MALLOC_TRIM_THRESHOLD_",
)

_forbidden = False
_tuned: bool | None = None  # None until it was tried


def tune_process(enabled: bool = True) -> bool:
    """Let the C library keep freed memory for later allocations, or forbid it.

    The first model, or optimizer of this library, does this automatically and logs a line at level
    INFO. Call `tune_process(False)` before it to prevent that; call `tune_process()` in programs
    that use only layers, or create a Keras optimizer before the model. Afterwards the process keeps
    its peak memory until it ends, or until a model is loaded as integers or gets adapters over
    integers: those are to take little memory, so that freed memory is returned from then on.

    Large freed blocks are kept only in the main thread. Therefore JAX then runs programs in the
    thread that calls them; on TensorFlow all threads share one memory arena, so that other threads,
    such as those that tokenize, may have to wait for it. Call it early: JAX fixes with its first
    array on a CPU how it runs programs, and a thread with its first allocation which arena it uses.
    (A JAX program that is given NumPy arrays of over 100 kB waits for them in another thread and
    does not benefit: the steps of this library's models convert them to JAX arrays first.)

    Args:
        enabled: bool. False prevents any change in this process. Defaults to True.

    Returns:
        bool, whether the process is tuned. It is not if the C library is not glibc, or if one of
        these environment variables is set: `GLIBC_TUNABLES`, `MALLOC_ARENA_MAX`,
        `MALLOC_MMAP_MAX_`, `MALLOC_TRIM_THRESHOLD_`.

    Raises:
        ValueError: if `enabled` is not a bool, or is False although the process is already tuned,
            which cannot be undone.

    Example:
    ```python
    import keras_transformer as kt

    assert kt.tune_process() in (True, False)
    ```
    """
    global _forbidden
    if not check_bool("enabled", enabled) and _tuned:
        raise ValueError(
            "The process is already tuned, by the first model or optimizer or an earlier call, and "
            "this cannot be undone: call `tune_process(False)` before the first model is made."
        )
    _forbidden = not enabled
    tune_once.cache_clear()
    return tune_once()


@functools.cache
def tune_once() -> bool:
    """Tune the process if it was not tried before and is allowed. Return whether it is tuned."""
    global _tuned
    if _tuned is None and not _forbidden:
        _tuned = _tune()
    return bool(_tuned)


def release_memory() -> None:
    """Return freed memory to the system, if the C library is glibc.

    Call it after rare operations that temporarily need much memory: loading weights, compiling,
    moving a cache. Memory that a step frees should stay in the process for the next step.
    """
    if _has_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def drop_replaced_tensors(model: keras.Model) -> None:
    """Drop the tensors that variables of a model had before they were replaced.

    On PyTorch each layer is a module, which also keeps the tensors of the layers within it.
    """
    if on("torch"):
        for layer in model._flatten_layers():
            layer._track_variables()


def save_memory() -> None:
    """Let the C library return large blocks as soon as they are freed, instead of keeping them.

    What large blocks leave between small ones does not fit the next large block, so that a process
    that keeps them takes about twice the memory that it uses. The same variables of the environment
    take precedence as for `tune_process`, whose settings this replaces.
    """
    global _tuned
    if not _has_glibc() or any(name in os.environ for name in _SETTINGS):
        return
    libc = ctypes.CDLL(None)
    for setting, value in _SAVING.items():
        libc.mallopt(setting, value)
    _tuned = False
    release_memory()


@functools.cache
def _has_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"


def _tune() -> bool:
    if not _has_glibc() or any(name in os.environ for name in _SETTINGS):
        return False
    libc = ctypes.CDLL(None)
    settings = _TUNED | ({_M_ARENA_MAX: 1} if on("tensorflow") else {})
    if not all(libc.mallopt(setting, value) for setting, value in settings.items()):
        return False
    how = ""
    if on("jax"):
        import jax

        jax.config.update("jax_cpu_enable_async_dispatch", False)
        how = ", and JAX runs programs on a CPU in the thread that calls them"
    logging.getLogger("keras_transformer").info(
        "The process keeps the memory that it frees%s, for faster steps on a CPU. To prevent "
        "this, call `keras_transformer.tune_process(False)` before the first model is made.",
        how,
    )
    return True
