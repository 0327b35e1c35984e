"""Schemes of quantized checkpoints, and checks of the values of their configs."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.quantized.matrix import Stored
from keras_transformer.checkpoints.weights.safetensors_io import QuantizedTensor, Tensors
from keras_transformer.support.checking import shorten

FLOAT_SCALES = ("F16", "BF16", "F32")


@dataclasses.dataclass(frozen=True)
class Scheme(abc.ABC):
    """How the matrices of a checkpoint are quantized.

    Args:
        skipped: names of modules, or the ends of them, that the config says are not quantized.
    """

    skipped: tuple[str, ...]

    @classmethod
    @abc.abstractmethod
    def read(cls, values: Mapping[str, Any], skipped: tuple[str, ...]) -> "Scheme":
        """Return the scheme of a `quantization_config`. Raises ValueError if it is not read."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Name of the scheme, with its bits."""

    @abc.abstractmethod
    def gather(self, tensors: Tensors) -> dict[str, Any]:
        """Return the tensors of a file with those of each quantized matrix as one entry.

        Raises ValueError if some do not fit each other or the config.
        """

    def combine(self, tensors: Tensors) -> dict[str, Any]:
        """Return the gathered tensors, after checking them against the config."""
        found = self.gather(tensors)
        skipped = frozenset(self.skipped)
        lengths = {each.count(".") + 1 for each in skipped}
        for matrix in found.values():
            if not isinstance(matrix, QuantizedTensor):
                continue
            # Configs list up to thousands of modules, and files have as many matrices.
            names = matrix.name.removesuffix(".weight").split(".")
            runs = (
                ".".join(names[i : i + length])
                for length in lengths
                for i in range(len(names) + 1 - length)
            )
            listed = next((each for each in runs if each in skipped), None)
            if listed is not None:
                raise matrix.numbers.refuse(
                    f"is quantized, but the config says that {listed!r} is not"
                )
        return found

    def check_present(self, tensors: Mapping[str, Any]) -> None:
        """Raise ValueError if gathered tensors have none of the scheme."""
        if tensors and not any(isinstance(info, QuantizedTensor) for info in tensors.values()):
            raise ValueError(
                f"{next(iter(tensors.values())).path} has no tensors of {self.name}, which its "
                "config names. Use the config that belongs to this file, or remove "
                "'quantization_config' from it if the weights are not quantized."
            )


def whole(
    values: Mapping[str, Any],
    name: str,
    known: tuple[int, ...] = (),
    default: int | None = None,
    least: int = 1,
) -> int:
    """Return a whole number of a config: one of `known`, or at least `least` and not 0."""
    value = values.get(name)
    value = default if value is None else value
    right = type(value) is int and (value in known if known else value >= least and value != 0)
    if not right:
        wanted = f"one of {', '.join(map(str, known))}" if known else "a positive whole number"
        raise ValueError(f"{name!r} must be {wanted}, received {shorten(value)}.")
    return value


def group_count(numbers: Stored, inputs: int, size: int) -> int:
    """Return the number of groups. Raises ValueError if they do not fit the inputs."""
    if size == -1:
        return 1
    if not inputs or inputs % size:
        raise numbers.refuse(f"has {inputs} inputs, which are not whole groups of {size}")
    return inputs // size
