"""Which backend Keras takes, decided before Keras is imported."""

import ctypes
import importlib.util
import json
import logging
import os
import pathlib
import sys

_BACKENDS = ("tensorflow", "jax", "torch")
# What a user can say of how threads of OpenMP wait. Then that holds.
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def choose_backend() -> None:
    """Sets KERAS_BACKEND where neither it nor keras.json says one and TensorFlow is missing.

    Keras alone would fall back on TensorFlow. Here the first installed of JAX and PyTorch is
    taken then, and said in one log line.
    """
    named = os.environ.get("KERAS_BACKEND")
    if named and named not in _BACKENDS:
        raise ValueError(
            f"KERAS_BACKEND is {named!r}, and must be one of {', '.join(map(repr, _BACKENDS))}."
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
            "KERAS_BACKEND is not set and TensorFlow is not installed: using %s.", installed[0]
        )


def let_threads_sleep() -> None:
    """Lets PyTorch's threads sleep while they wait for each other, unless the user says how.

    By themselves they spin, and where other programs want the cores too a step then takes many
    times as long. The OpenMP of GNU reads the environment once, when it is loaded with PyTorch;
    the libraries of LLVM and Intel can be told later too.
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
    """Whether keras.json names a backend that is installed. Keras reads the file itself."""
    backend = _configured_backend()
    return backend in _BACKENDS and _installed(backend)


def _configured_backend() -> str | None:
    """The backend that keras.json names, if any."""
    # Keras also writes it, with TensorFlow in it, on its first import: one that names what is not
    # there was no choice of the user's.
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    try:
        values = json.loads(pathlib.Path(home, "keras.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values.get("backend") if isinstance(values, dict) else None
