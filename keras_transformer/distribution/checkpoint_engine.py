"""Engines that write and read the checkpoints of many processes."""

import abc
from pathlib import Path

import numpy as np

# A file that each checkpoint of a backend has.
FILES = {"jax": "_CHECKPOINT_METADATA", "torch": "run.json"}
UNFINISHED = ".unfinished"  # end of the name of a checkpoint of PyTorch that is being written


class CheckpointEngine(abc.ABC):
    """How a backend writes tensors that are spread over processes."""

    @abc.abstractmethod
    def __init__(self, directory: Path, keep: int): ...

    @abc.abstractmethod
    def latest(self) -> int | None: ...

    @abc.abstractmethod
    def save(self, number: int, tensors: dict, described: dict) -> None: ...

    @abc.abstractmethod
    def wait(self) -> None: ...

    @abc.abstractmethod
    def described(self, number: int) -> dict: ...

    def shapes(self, number: int, described: dict) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors, given those that process 0 knew of."""
        return {name: tuple(shape) for name, shape in described.items()}

    @abc.abstractmethod
    def restore(self, number: int, like: dict) -> dict: ...

    @abc.abstractmethod
    def read(self, number: int, name: str, shape: tuple) -> np.ndarray: ...

    @abc.abstractmethod
    def close(self) -> None: ...
