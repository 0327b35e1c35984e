"""Choice of Keras's backend, made before Keras is imported."""

import ctypes
import importlib.util
import json
import logging
import os
import pathlib
import sys

_BACKENDS = ("tensorflow", "jax", "torch")
# Environment variables by which a user says how OpenMP threads wait. They take precedence.
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def choose_backend() -> None:
    """Set KERAS_BACKEND to an installed backend if the user has chosen none.

    A user chooses with the environment variable KERAS_BACKEND or with `keras.json`. Otherwise Keras
    falls back on TensorFlow; if TensorFlow is missing, the first installed of JAX and PyTorch is
    used, and a log line says so.

    Raises:
        ValueError: if KERAS_BACKEND is not one of Keras's three backends.
        ImportError: if the chosen backend is not installed, or no backend is.
    """
    named = os.environ.get("KERAS_BACKEND")
    if named and named not in _BACKENDS:
        raise ValueError(
            f"KERAS_BACKEND is {named!r}, but must be one of {', '.join(map(repr, _BACKENDS))}."
        )
    if named and not _installed(named):
        raise ImportError(
            f"KERAS_BACKEND is {named!r}, which is not installed. Run `pip install "
            f'"keras_transformer[{named}]"`, or name another backend.'
        )
    if named or _configured():
        return
    installed = list(filter(_installed, _BACKENDS))
    if not installed:
        raise ImportError(
            "keras_transformer needs one of JAX, TensorFlow or PyTorch. Install one with "
            'pip install "keras_transformer[jax]", "keras_transformer[tensorflow]" or '
            '"keras_transformer[torch]".'
        )
    if "tensorflow" not in installed:
        os.environ["KERAS_BACKEND"] = installed[0]
        logging.getLogger("keras_transformer").warning(
            "KERAS_BACKEND is not set and TensorFlow is not installed: %s is used.", installed[0]
        )


def let_threads_sleep() -> None:
    """Let PyTorch's threads sleep while they wait for each other, unless the user says otherwise.

    By default they spin, which makes a step many times slower if other programs need the cores too.
    GNU's OpenMP reads the environment once, when it is loaded with PyTorch; LLVM's and Intel's can
    also be told later.
    """
    named = os.environ.get("KERAS_BACKEND") or _configured_backend()
    if named != "torch" or set(WAITING) & set(os.environ):
        return
    if "torch" not in sys.modules:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    elif os.name == "posix" and hasattr(loaded := ctypes.CDLL(None), "kmp_set_blocktime"):
        loaded.kmp_set_blocktime(0)


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _configured() -> bool:
    """Return whether `keras.json`, which Keras itself reads, names an installed backend."""
    backend = _configured_backend()
    return backend in _BACKENDS and _installed(backend)


def _configured_backend() -> str | None:
    """Return the backend that keras.json names, if any."""
    # Keras also writes this file, with TensorFlow in it, on its first import: a backend in it that
    # is not installed was not chosen by the user.
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    try:
        values = json.loads(pathlib.Path(home, "keras.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values.get("backend") if isinstance(values, dict) else None
