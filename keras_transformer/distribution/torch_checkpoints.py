"""Checkpoints of many processes on PyTorch, written by `torch.distributed.checkpoint`."""

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import distributed
from torch.distributed import checkpoint

from keras_transformer.distribution.checkpoint_engine import FILES, UNFINISHED, CheckpointEngine
from keras_transformer.support.files import read_json, synchronize, write_text

_LIMIT = 2**28  # bytes of the values of a checkpoint


class TorchCheckpoints(CheckpointEngine):
    """`torch.distributed.checkpoint` in safetensors files, in a folder that is renamed at last."""

    def __init__(self, directory: Path, keep: int, index: int, count: int):
        self._directory, self._keep = directory, keep
        self._first = index == 0
        # A group of its own, since it is used in the background.
        self._group = distributed.new_group(backend="gloo") if count > 1 else None
        self._begun: Any = None
        if self._first:
            directory.mkdir(parents=True, exist_ok=True)
        self._meet()

    def latest(self) -> int | None:
        return max(self._numbers(), default=None)

    def save(self, number: int, tensors: dict, described: dict) -> None:
        folder = self._directory / f"{number}{UNFINISHED}"
        if self._first:
            folder.mkdir()
            write_text(folder / FILES["torch"], json.dumps(described))
        self._meet()

        class Writer(checkpoint.HuggingFaceStorageWriter):
            def finish(_, **written):  # in process 0, when all have written
                super().finish(**written)
                self._publish(folder, number)

        writer = Writer(str(folder), save_distributed=True)
        state = {name: tensor.detach() for name, tensor in tensors.items()}
        self._begun = checkpoint.async_save(
            state, storage_writer=writer, process_group=self._group, no_dist=self._group is None
        )

    def _publish(self, folder: Path, number: int) -> None:
        synchronize(folder)
        os.rename(folder, self._directory / str(number))
        synchronize(self._directory)
        for old in sorted(self._numbers())[: -self._keep]:
            shutil.rmtree(self._directory / str(old))

    def wait(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.result()

    def described(self, number: int) -> dict:
        return read_json(self._directory / str(number) / FILES["torch"], _LIMIT)

    def shapes(self, number: int, described: dict) -> dict[str, tuple[int, ...]]:
        found = self._reader(number).read_metadata().state_dict_metadata
        return {name: tuple(tensor.size) for name, tensor in found.items()}

    def restore(self, number: int, like: dict) -> dict:
        state = {name: tensor.detach() for name, tensor in like.items()}
        alone = self._group is None
        reader = self._reader(number)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            checkpoint.load(state, storage_reader=reader, process_group=self._group, no_dist=alone)
        return state

    def _reader(self, number: int):
        return checkpoint.HuggingFaceStorageReader(str(self._directory / str(number)))

    def read(self, number: int, name: str, shape: tuple) -> np.ndarray:
        whole = None
        for file in sorted((self._directory / str(number)).glob("*.safetensors")):
            with safe_open(file, "pt") as opened:
                if name not in set(opened.keys()):
                    continue
                offsets = json.loads(opened.metadata()["DCP_SHARDING_INFO"])[name]["saved_offsets"]
                part = opened.get_tensor(name)
                if tuple(part.shape) == shape:
                    return _as_numpy(part)
                whole = part.new_empty(shape) if whole is None else whole
                whole[tuple(map(slice, offsets, np.add(offsets, part.shape)))] = part
        return _as_numpy(whole)

    def close(self) -> None:
        self.wait()
        group, self._group = self._group, None
        if group is not None and distributed.is_initialized():
            distributed.destroy_process_group(group)

    def _numbers(self) -> list[int]:
        if not self._directory.is_dir():
            return []
        return [int(path.name) for path in self._directory.iterdir() if path.name.isdecimal()]

    def _meet(self) -> None:
        if self._group is not None:
            distributed.barrier(group=self._group)


def _as_numpy(tensor) -> np.ndarray:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
