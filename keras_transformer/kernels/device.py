"""The device that computes, and the sizes that suit its memory and caches."""

import functools
from typing import NamedTuple

import keras

from keras_transformer.planning.activations import chunk_bytes_of

_GIB = 2**30


class Device(NamedTuple):
    """Device of the backend, and the sizes that are chosen for it.

    Fields:
        backend: `"jax"`, `"tensorflow"` or `"torch"`.
        kind: `"cpu"`, `"cuda"`, or the backend's name of another kind (`"tpu"`, `"mps"`).
        memory: int, bytes of its memory; None on a CPU, or if the backend does not report it.
    """

    backend: str
    kind: str
    memory: int | None = None

    def __str__(self) -> str:
        return f"{self.backend} on {self.kind}"

    @property
    def is_cpu(self) -> bool:
        """True on a CPU, where products must fit the caches."""
        return self.kind == "cpu"

    @property
    def compiles_shapes(self) -> bool:
        """True if a pass is compiled for each shape of a batch, so that shapes should be few."""
        return self.backend != "torch"

    @property
    def logits_bytes(self) -> int:
        """Bytes of logits that the loss over a vocabulary makes at a time."""
        return chunk_bytes_of(self.memory, is_cpu=self.is_cpu)

    @property
    def batch_tokens(self) -> int | None:
        """Number of tokens of a batch for inference. None where 32 rows are just as fast.

        A CPU is busy with a few hundred tokens, and its caches hold no more. On a GPU a batch needs
        the same number of launches however large it is, and with fewer than some thousand tokens
        the device would wait for the host that launches them. The number is one token for each 2
        MiB of memory, rounded to a power of two from 4,096 to 65,536: states and inner features of
        a layer then take a few percent of it. TensorFlow takes batches of 32 rows everywhere, since
        no others were measured.
        """
        if self.is_cpu or self.backend == "tensorflow":
            return None
        if self.memory is None:
            return 2**14
        return 2 ** min(16, max(12, (self.memory // 2**21).bit_length() - 1))

    @property
    def waiting_bytes(self) -> int:
        """Bytes of outputs that may stay on the device before they are copied together."""
        return 2**28

    @property
    def scores_bytes(self) -> int:
        """Bytes of attention scores of the rows that are processed at a time, if scores are kept.

        On a CPU they should stay in its caches; elsewhere they only have to fit.
        """
        return 3 * 2**20 if self.is_cpu else _GIB

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values up to which a cache is allocated at once for all steps.

        Attention reads the free slots too. A GPU reads 1 GiB in a quarter of a millisecond, and one
        cache size means one program. On a CPU caches grow.
        """
        return 0 if self.is_cpu else _GIB


@functools.cache
def device() -> Device:
    """Return the device that computes by default, ignoring any `keras.device` scope.

    Example:
    ```python
    from keras_transformer.kernels.device import device

    assert device().backend in ("jax", "tensorflow", "torch")
    assert device().logits_bytes >= 16 * 2**20
    ```
    """
    backend = keras.backend.backend()
    return Device(backend, *_READERS[backend]())


def device_names() -> list[str]:
    """Return the backend's names of the devices of this process, GPUs with their models."""
    return _NAMERS[keras.backend.backend()]()


@functools.cache
def on(backend: str) -> bool:
    """Return True if the backend, which no process changes, is this one."""
    return keras.backend.backend() == backend


def with_backend(name: str) -> str:
    """Return a name followed by the backend in use, such as `"minilm_l6_en on jax"`."""
    return f"{name} on {keras.backend.backend()}"


def makes_portable_programs(backend: str | None) -> bool:
    """Return whether programs of a backend, if any, that this process makes run on any machine.

    A PyTorch program names the device of its tensors, so that one from a GPU would need a GPU.
    """
    if backend is None:
        return True
    return on(backend) and (backend != "torch" or device().is_cpu)


def in_program(x) -> bool:
    """Return True if JAX traces an operation on `x`, with known sizes and for one device."""
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


def _names_of_jax() -> list[str]:
    import jax

    return [f"{found}: {found.device_kind}" for found in jax.local_devices()]


def _names_of_tensorflow() -> list[str]:
    import tensorflow as tf

    return [
        found.name.removeprefix("/physical_device:") for found in tf.config.list_physical_devices()
    ]


def _names_of_torch() -> list[str]:
    import torch

    count = torch.cuda.device_count()
    named = [f"cuda:{i}: {torch.cuda.get_device_name(i)}" for i in range(count)]
    return named or [str(keras.ops.zeros(()).device)]


_NAMERS = {"jax": _names_of_jax, "tensorflow": _names_of_tensorflow, "torch": _names_of_torch}
_READERS = {"jax": _of_jax, "tensorflow": _of_tensorflow, "torch": _of_torch}
