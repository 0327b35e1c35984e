"""Processes on PyTorch, each of which has one device."""

import functools
import os
from pathlib import Path

import numpy as np
import torch
from torch import distributed

from keras_transformer.distribution.checkpoint_engine import CheckpointEngine
from keras_transformer.distribution.engine import Engine
from keras_transformer.distribution.spread import rows_group, with_same_rows


class TorchEngine(Engine):
    """The processes of `torch.distributed`."""

    name, packages = "torch", ("torch",)
    axes = ("data", "fsdp", "model", "sequence")
    averages_replicas = True
    spreads_batches_by = "keras_transformer.distribution.data_parallel, with torch.distributed"

    def connect(self) -> None:
        if distributed.is_initialized() or int(os.environ.get("WORLD_SIZE", 1)) == 1:
            return
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")

    def process_count(self) -> int:
        return distributed.get_world_size() if _are_connected() else 1

    def process_index(self) -> int:
        return distributed.get_rank() if _are_connected() else 0

    def share_of_data(self) -> tuple[int, int]:
        together = with_same_rows()
        return self.process_index() // together, self.process_count() // together

    def gather(self, array: np.ndarray) -> list[np.ndarray]:
        mine = torch.from_numpy(array.copy())
        every = [torch.empty_like(mine) for _ in range(self.process_count())]
        distributed.all_gather(every, mine, group=_side_group(distributed.group.WORLD))
        return [each.numpy() for each in every]

    def over_replicas(self, weight, processes: int):
        if processes == 1:
            return 1, weight
        total = weight.detach().clone()
        distributed.all_reduce(total, group=rows_group())
        return processes, total

    def check_connected(self, name: str) -> None:
        if not _are_connected():
            raise ValueError(
                f"`{name}` needs a group of processes: call "
                "torch.distributed.init_process_group first, in each process."
            )

    def checkpoints(self, directory: Path, keep: int) -> CheckpointEngine:
        from keras_transformer.distribution.torch_checkpoints import TorchCheckpoints

        return TorchCheckpoints(directory, keep, self.process_index(), self.process_count())


def _are_connected() -> bool:
    return distributed.is_available() and distributed.is_initialized()


@functools.cache
def _side_group(world):
    """Return a group of all processes for arrays on the CPU, apart from training's."""
    return distributed.new_group(backend="gloo")
