"""Which backend Keras takes, decided before Keras is imported."""

import importlib.util
import json
import logging
import os
import pathlib

_BACKENDS = ("tensorflow", "jax", "torch")


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


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _configured() -> bool:
    """Whether keras.json names a backend that is installed. Keras reads the file itself."""
    # Keras also writes it, with TensorFlow in it, on its first import: one that names what is not
    # there was no choice of the user's.
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    try:
        values = json.loads(pathlib.Path(home, "keras.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    backend = values.get("backend") if isinstance(values, dict) else None
    return backend in _BACKENDS and _installed(backend)
