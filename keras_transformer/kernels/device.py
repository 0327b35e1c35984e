"""The device that computes, and what its memory and caches ask for."""

import functools
from typing import NamedTuple

import keras

from keras_transformer.planning.activations import chunk_bytes_of

_GIB = 2**30


class Device(NamedTuple):
    """Where the backend computes, and the sizes that are chosen by it.

    Fields:
        backend: `"jax"`, `"tensorflow"` or `"torch"`.
        kind: `"cpu"`, `"cuda"`, or what the backend calls another one (`"tpu"`, `"mps"`).
        memory: int, its size in bytes; None if it is a CPU, or the backend does not say.
    """

    backend: str
    kind: str
    memory: int | None = None

    @property
    def is_cpu(self) -> bool:
        """Whether it is a CPU, whose caches are what products must fit."""
        return self.kind == "cpu"

    @property
    def logits_bytes(self) -> int:
        """Bytes of the logits that the loss of a vocabulary makes at a time."""
        return chunk_bytes_of(self.memory, is_cpu=self.is_cpu)

    @property
    def scores_bytes(self) -> int:
        """Bytes of the scores of the rows that go through attention at a time, where it keeps any.

        On a CPU they are to stay in its caches; elsewhere they must only fit.
        """
        return 3 * 2**20 if self.is_cpu else _GIB


@functools.cache
def device() -> Device:
    """Return the device that computes by default. What a `keras.device` scope says is not seen.

    Example:
    ```python
    from keras_transformer.kernels.device import device

    assert device().backend in ("jax", "tensorflow", "torch")
    assert device().logits_bytes >= 16 * 2**20
    ```
    """
    backend = keras.backend.backend()
    return Device(backend, *_READERS[backend]())


def on(backend: str) -> bool:
    """Return whether the backend is this one."""
    return keras.backend.backend() == backend


def in_program(x) -> bool:
    """Return whether JAX traces an operation on `x`, of known sizes and for one device."""
    import jax

    if keras.distribution.distribution() is not None or not isinstance(x, jax.core.Tracer):
        return False
    return all(isinstance(size, int) for size in x.shape)


def _of_jax() -> tuple[str, int | None]:
    import jax

    first = jax.local_devices()[0]
    kind = "cuda" if first.platform == "gpu" else first.platform
    said = None if kind == "cpu" else first.memory_stats()
    return kind, (said or {}).get("bytes_limit")


def _of_tensorflow() -> tuple[str, None]:
    import tensorflow as tf

    return "cuda" if tf.config.list_physical_devices("GPU") else "cpu", None


def _of_torch() -> tuple[str, int | None]:
    import torch

    found = keras.ops.zeros(()).device
    if found.type != "cuda":
        return found.type, None
    return "cuda", torch.cuda.get_device_properties(found).total_memory


_READERS = {"jax": _of_jax, "tensorflow": _of_tensorflow, "torch": _of_torch}
