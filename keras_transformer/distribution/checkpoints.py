"""Checkpoints of many processes: each writes what it holds, and a checkpoint is whole or absent."""

import abc
import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer.distribution.processes import process_count, process_index
from keras_transformer.support.checking import check_int, check_path, describe
from keras_transformer.support.files import synchronize, write_text
from keras_transformer.support.untrusted import read_json

_VALUES, _OF_ORBAX = "run.json", "_CHECKPOINT_METADATA"
_LIMIT = 2**28  # bytes of the values of a checkpoint
_UNFINISHED = ".unfinished"
_LEFT = (f"*{_UNFINISHED}", "*.orbax-checkpoint-tmp*")  # of processes that were killed


class ShardedCheckpoints:
    """Checkpoints in a folder that all processes of a run share, written by all of them.

    Each process writes the parts of tensors that it holds, in the background; a tensor that
    several processes hold is written by one. A checkpoint appears in one instant, after the last
    process has written its part: if any process is killed at any moment, the previous one is still
    there. It can be read by another number of processes or devices, or by one process, a tensor at
    a time.

    The files are those of Orbax on JAX (`pip install keras_transformer[distributed]`), and the
    safetensors files of `torch.distributed.checkpoint` on PyTorch. Neither is unpickled.

    Args:
        directory: folder of the checkpoints, on a file system that all hosts see; made if it does
            not exist. The checkpoint with number 12 is its folder `12`.
        keep: int, number of last checkpoints to keep. Defaults to 1.

    Raises:
        ValueError: if the backend is TensorFlow, which has no such engine, or `keep` is below 1.
        ImportError: if Orbax is needed and not installed.

    Example:
    ```python
    import tempfile
    import keras_transformer as kt
    import keras

    if keras.backend.backend() != "tensorflow":
        checkpoints = kt.distribution.ShardedCheckpoints(tempfile.mkdtemp())
        weights = {"kernel": keras.ops.ones((2, 3))}
        checkpoints.save(1, weights, {"epoch": 0})
        checkpoints.wait()
        assert checkpoints.latest == 1 and checkpoints.values(1) == {"epoch": 0}
        restored = checkpoints.restore(1, {"kernel": keras.ops.zeros((2, 3))})
        assert float(restored["kernel"].sum()) == 6
        assert checkpoints.read(1, "kernel").shape == (2, 3)
        checkpoints.close()
    ```
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 1):
        self.directory = Path(os.path.abspath(check_path("directory", directory)))
        keep = check_int("keep", keep, at_least=1)
        self._engine = _engine()(self.directory, keep)
        self._closed = False

    @property
    def latest(self) -> int | None:
        """The number of the last whole checkpoint, or None."""
        return self._engine.latest()

    def save(self, number: int, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Begin to write a checkpoint. All processes call it together, with the same names.

        The tensors are copied before it returns, so that training may go on; the rest happens in
        the background. It first waits for the checkpoint before.

        Args:
            number: int, above that of all earlier checkpoints.
            tensors: backend tensors of any shapes by name. A process may add tensors of its own,
                whose names no other process has, on PyTorch.
            values: JSON values, which process 0 writes.

        Raises:
            OSError: if this or the checkpoint before cannot be written.
            ValueError: if the number is not above the last one, or the checkpoints were closed.
        """
        self._check_open()
        number = check_int("number", number, at_least=0)
        self.wait()
        latest = self.latest
        if latest is not None and number <= latest:
            raise ValueError(f"`number` must be above {latest}, the last one, received {number}.")
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        if process_index() == 0:  # not when it is opened: another program may be writing then
            for pattern in _LEFT:
                for left in self.directory.glob(pattern):
                    shutil.rmtree(left)
        with self._naming():
            self._engine.save(number, dict(tensors), {"shapes": shapes, "values": dict(values)})

    def wait(self) -> None:
        """Wait until the checkpoint that was begun is there. Raises OSError if it failed."""
        with self._naming():
            self._engine.wait()

    def values(self, number: int) -> dict[str, Any]:
        """Return the JSON values of a checkpoint."""
        return self._described(number)["values"]

    def shapes(self, number: int) -> dict[str, tuple[int, ...]]:
        """Return the whole shapes of the tensors of a checkpoint, by name."""
        return self._engine.shapes(number, self._described(number)["shapes"])

    def restore(self, number: int, like: Mapping[str, Any]) -> dict[str, Any]:
        """Read tensors, each laid out over devices as the one in `like`.

        All processes call it together; each reads only what its devices hold.

        Args:
            number: int, of the checkpoint.
            like: backend tensors by name, with shape, dtype and layout. On PyTorch the values are
                read into these tensors.

        Returns:
            The tensors by name.

        Raises:
            ValueError: if a tensor is missing or has another shape, or after `close`.
        """
        self._check_open()
        shapes = self.shapes(number)
        for name, tensor in like.items():
            if shapes.get(name) != tuple(tensor.shape):
                raise ValueError(
                    f"The checkpoint {self.directory / str(number)} does not fit: {name!r} has the "
                    f"shape {shapes.get(name)} there and {tuple(tensor.shape)} here."
                )
        return self._engine.restore(number, dict(like))

    def read(self, number: int, name: str) -> np.ndarray:
        """Read one whole tensor, in a program of one process.

        Raises ValueError if there is no such tensor, or if there are several processes.
        """
        if process_count() > 1:
            raise ValueError("`read` is for a program of one process: `restore` is for several.")
        shape = self.shapes(number).get(name)
        if shape is None:
            raise ValueError(f"The checkpoint {self.directory / str(number)} has no {name!r}.")
        return self._engine.read(number, name, shape)

    def close(self) -> None:
        """Wait for the checkpoint that was begun, and end the threads and the group of processes.

        All processes call it. Only `latest`, `shapes`, `values` and `read` work afterwards.
        """
        with self._naming():
            self._engine.close()
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(
                f"The checkpoints in {self.directory} were closed: open them again with "
                "ShardedCheckpoints."
            )

    def _described(self, number: int) -> dict[str, Any]:
        number = check_int("number", number, at_least=0)
        folder, backend = self.directory / str(number), keras.backend.backend()
        for other, file in (("jax", _OF_ORBAX), ("torch", _VALUES)):
            if other != backend and (folder / file).exists():
                raise ValueError(
                    f"{folder} was written with KERAS_BACKEND={other}, and the backend is "
                    f"{backend}. Go on with that, or choose another directory."
                )
        found = self._engine.described(number)
        if not all(isinstance(found.get(name), dict) for name in ("shapes", "values")):
            raise ValueError(
                f"{folder} is not a checkpoint of this library. Remove it, or choose another "
                "directory."
            )
        return found

    @contextlib.contextmanager
    def _naming(self):
        """Name the folder in errors of the engines, which have classes of their own."""
        try:
            yield
        except (ImportError, OSError):
            raise
        except Exception as error:
            kept = self.latest
            still = "" if kept is None else f" The checkpoint {kept} is still there."
            raise OSError(
                f"A checkpoint could not be written to {self.directory}: {error}.{still} Every "
                "process needs the folder, room on it, and the other processes."
            ) from error


class _Engine(abc.ABC):
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


class _Orbax(_Engine):
    """Orbax's manager, which writes beside a checkpoint's place and renames it."""

    def __init__(self, directory: Path, keep: int):
        try:
            import orbax.checkpoint as orbax
        except ImportError as error:
            raise ImportError(
                "Checkpoints of several devices need Orbax on JAX: "
                "pip install keras_transformer[distributed]."
            ) from error
        self._orbax, self._directory = orbax, directory
        options = orbax.CheckpointManagerOptions(max_to_keep=keep, create=True)
        self._manager = orbax.CheckpointManager(directory, options=options)

    def latest(self) -> int | None:
        self._manager.reload()
        return self._manager.latest_step()

    def save(self, number: int, tensors: dict, described: dict) -> None:
        # Orbax refuses arrays without elements, which need no file.
        state = {_key(name): tensor for name, tensor in tensors.items() if tensor.size}
        parts = self._orbax.args
        both = parts.Composite(state=parts.PyTreeSave(state), run=parts.JsonSave(described))
        self._manager.save(number, args=both)

    def wait(self) -> None:
        self._manager.wait_until_finished()

    def described(self, number: int) -> dict:
        parts = self._orbax.args
        return self._manager.restore(number, args=parts.Composite(run=parts.JsonRestore())).run

    def restore(self, number: int, like: dict) -> dict:
        import jax

        wanted = {
            _key(name): jax.ShapeDtypeStruct(tensor.shape, tensor.dtype, sharding=tensor.sharding)
            for name, tensor in like.items()
            if tensor.size
        }
        layouts = self._orbax.checkpoint_utils.construct_restore_args(wanted)
        state = self._state(number, wanted, layouts)
        return {name: state.get(_key(name), tensor) for name, tensor in like.items()}

    def read(self, number: int, name: str, shape: tuple) -> np.ndarray:
        if 0 in shape:
            return np.zeros(shape, "float32")
        one = {_key(name): np.zeros(())}
        layouts = {_key(name): self._orbax.RestoreArgs(restore_type=np.ndarray)}
        return self._state(number, one, layouts)[_key(name)]

    def close(self) -> None:
        self._manager.close()

    def _state(self, number: int, wanted: dict, layouts: dict) -> dict:
        args = self._orbax.args
        state = args.PyTreeRestore(wanted, restore_args=layouts, partial_restore=True)
        return self._manager.restore(number, args=args.Composite(state=state)).state


def _key(name: str) -> str:
    """Return a name as Orbax takes it: a slash would be a folder."""
    return name.replace("%", "%25").replace("/", "%2F")


class _Torch(_Engine):
    """`torch.distributed.checkpoint` in safetensors files, in a folder that is renamed at last."""

    def __init__(self, directory: Path, keep: int):
        from torch import distributed

        self._directory, self._keep = directory, keep
        # A group of its own, since it is used in the background.
        self._group = distributed.new_group(backend="gloo") if process_count() > 1 else None
        self._begun: Any = None
        if process_index() == 0:
            directory.mkdir(parents=True, exist_ok=True)
        self._meet()

    def latest(self) -> int | None:
        return max(self._numbers(), default=None)

    def save(self, number: int, tensors: dict, described: dict) -> None:
        from torch.distributed import checkpoint

        folder = self._directory / f"{number}{_UNFINISHED}"
        if process_index() == 0:
            folder.mkdir()
            write_text(folder / _VALUES, json.dumps(described))
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
        return read_json(self._directory / str(number) / _VALUES, _LIMIT)

    def shapes(self, number: int, described: dict) -> dict[str, tuple[int, ...]]:
        found = self._reader(number).read_metadata().state_dict_metadata
        return {name: tuple(tensor.size) for name, tensor in found.items()}

    def restore(self, number: int, like: dict) -> dict:
        from torch.distributed import checkpoint

        state = {name: tensor.detach() for name, tensor in like.items()}
        alone = self._group is None
        reader = self._reader(number)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            checkpoint.load(state, storage_reader=reader, process_group=self._group, no_dist=alone)
        return state

    def _reader(self, number: int):
        from torch.distributed import checkpoint

        return checkpoint.HuggingFaceStorageReader(str(self._directory / str(number)))

    def read(self, number: int, name: str, shape: tuple) -> np.ndarray:
        from safetensors import safe_open

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
        if group is not None:
            from torch import distributed

            if distributed.is_initialized():
                distributed.destroy_process_group(group)

    def _numbers(self) -> list[int]:
        if not self._directory.is_dir():
            return []
        return [int(path.name) for path in self._directory.iterdir() if path.name.isdecimal()]

    def _meet(self) -> None:
        if self._group is not None:
            from torch import distributed

            distributed.barrier(group=self._group)


def _as_numpy(tensor) -> np.ndarray:
    import torch

    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _engine() -> Callable[[Path, int], _Engine]:
    backend = keras.backend.backend()
    engines = {"jax": _Orbax, "torch": _Torch}
    if backend not in engines:
        raise ValueError(
            "Checkpoints of several processes need JAX (Orbax) or PyTorch "
            f"(torch.distributed.checkpoint), but the backend is {describe(backend)}. One process "
            "saves a model with `save_to_preset`, and a run with `training.ResumableRun`."
        )
    return engines[backend]
