"""Memory of the process, kept between steps.

A training step on a CPU needs some hundred megabytes for a moment. The C library of Linux takes
blocks of that size from the system and gives them back each time, and the system clears each page
again: 295,000 page faults a step of the tiny translator on JAX, a quarter of its time.
"""

import ctypes
import os
import platform

import keras

# From malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
# What a user can say of the same. Then that holds.
_SETTINGS = ("GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_")


def keep_freed_memory() -> bool:
    """Makes the C library keep what is freed for what is asked for next.

    The most memory that the process ever had is then what it has until its end. To be called
    before JAX computes anything: on a CPU its programs then run in the thread that calls them,
    since of large blocks only those of the main thread are kept. (A program that gets arrays of
    over 100 kB as NumPy arrays waits for them in another thread, and so is not served.)

    Returns:
        Whether it was done: not where the C library is another one than glibc, and not where the
        environment says how it should be (`GLIBC_TUNABLES`, `MALLOC_MMAP_MAX_`,
        `MALLOC_TRIM_THRESHOLD_`).

    Example:
    ```python
    from keras_transformer.memory import keep_freed_memory

    assert keep_freed_memory() in (True, False)
    ```
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _SETTINGS):
        return False
    libc = ctypes.CDLL(None)
    kept = libc.mallopt(_M_MMAP_MAX, 0) and libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    if kept and keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_cpu_enable_async_dispatch", False)
    return bool(kept)
