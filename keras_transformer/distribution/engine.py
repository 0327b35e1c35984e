"""The processes and devices of a backend: the base class of its engine."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.distribution.checkpoint_engine import CheckpointEngine


class Engine:
    """The processes and devices of a backend.

    The methods of this class are for a backend that cannot connect processes.

    Fields:
        name: str, the backend.
        packages: the packages whose versions must be the same in all processes.
        axes: the axes of the meshes that `setup` makes.
        is_one_program: bool, whether one program computes on all devices, laid out by
            `keras.distribution`; otherwise each process has one device.
        averages_replicas: bool, whether the gradients of replicas are averaged, and not summed.
        exchanges_within_layers: bool, whether replicas can exchange numbers in the call of a layer,
            and not only behind the forward pass.
        spreads_batches_by: str, what spreads batches where `keras.distribution` cannot.
    """

    name: str
    packages: tuple[str, ...]
    axes: tuple[str, ...] = ()
    is_one_program = False
    averages_replicas = False
    exchanges_within_layers = True
    spreads_batches_by: str

    def connect(self) -> None:
        """Connect the processes that a launcher has started, if they are not connected yet."""

    def process_count(self) -> int:
        """Return the number of processes that train together."""
        return 1

    def process_index(self) -> int:
        """Return the number of this process, from 0."""
        return 0

    def device_count(self) -> int:
        """Return the number of devices that `setup` arranges."""
        return self.process_count()

    def share_of_data(self) -> tuple[int, int]:
        """Return the number of this process's share of a batch, from 0, and of all shares."""
        return self.process_index(), self.process_count()

    def gather(self, array: np.ndarray) -> list[np.ndarray]:
        """Return the arrays of all processes, which have one shape."""
        return [array]

    def over_replicas(self, weight, processes: int) -> tuple[int, Any]:
        """Return the number of replicas within a step, and the sum of their weights.

        Args:
            weight: float scalar.
            processes: int, number of processes whose gradients will be averaged.
        """
        return 1, weight

    def check_lays_out(self) -> None:
        """Raise ValueError if `keras.distribution` cannot lay out weights over devices."""
        raise ValueError(
            "Keras distributes weights over devices only on JAX, but the backend is "
            f"{self.name}. On this backend, spread batches with {self.spreads_batches_by}."
        )

    def check_connected(self, name: str) -> None:
        """Raise ValueError if the function of this name has no processes to train in."""
        raise ValueError(
            f"`{name}` is for PyTorch, but the backend is {self.name}. On JAX use "
            "`keras_transformer.distribution.ModelParallel`, on TensorFlow make the model in the "
            "scope of a tf.distribute.MirroredStrategy."
        )

    def checkpoints(self, directory: Path, keep: int) -> CheckpointEngine:
        """Return what writes the checkpoints of all processes.

        Raises:
            ValueError: if the backend has no such engine.
        """
        raise ValueError(
            "Checkpoints of several processes need JAX (Orbax) or PyTorch "
            f"(torch.distributed.checkpoint), but the backend is {self.name!r}. One process "
            "saves a model with `save_to_preset`, and a run with `training.ResumableRun`."
        )
