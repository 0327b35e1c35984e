"""Processes and devices on JAX: one program computes on the devices of all of them."""

from pathlib import Path

import jax
import keras
import numpy as np

from keras_transformer.distribution.checkpoint_engine import CheckpointEngine
from keras_transformer.distribution.engine import Engine


class JaxEngine(Engine):
    """The processes that `keras.distribution.initialize` connects, and the devices of all."""

    name, packages = "jax", ("jax", "jaxlib")
    axes = ("data", "fsdp", "model", "sequence")
    is_one_program = True

    def process_count(self) -> int:
        return jax.process_count()

    def process_index(self) -> int:
        return jax.process_index()

    def device_count(self) -> int:
        return len(keras.distribution.list_devices())

    def share_of_data(self) -> tuple[int, int]:
        distribution = keras.distribution.distribution()
        if distribution is None:
            return 0, 1
        # Processes that hold parts of one model read the same rows.
        count = min(distribution.num_processes, distribution.num_model_replicas)
        return distribution.data_shard_id, count

    def gather(self, array: np.ndarray) -> list[np.ndarray]:
        from jax.experimental import multihost_utils

        return list(np.asarray(multihost_utils.process_allgather(array)))

    def check_lays_out(self) -> None:
        pass

    def checkpoints(self, directory: Path, keep: int) -> CheckpointEngine:
        from keras_transformer.distribution.orbax_checkpoints import OrbaxCheckpoints

        return OrbaxCheckpoints(directory, keep)
