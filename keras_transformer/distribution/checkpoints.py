"""Checkpoints of many processes: each writes what it holds, and a checkpoint is whole or absent."""

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.distribution.checkpoint_engine import FILES, UNFINISHED
from keras_transformer.distribution.engines import ENGINE
from keras_transformer.distribution.processes import process_count, process_index
from keras_transformer.support.checking import check_int, check_path

_LEFT = (f"*{UNFINISHED}", "*.orbax-checkpoint-tmp*")  # of processes that were killed


class ShardedCheckpoints:
    """Checkpoints in a folder that all processes of a run share, written by all of them.

    Each process writes the parts of tensors that it holds, in the background; a tensor that
    several processes hold is written by one. A checkpoint appears in one instant, after the last
    process has written its part: if any process is killed at any moment, the previous one is still
    there. It can be read by another number of processes or devices, or by one process, a tensor at
    a time.

    The files are those of Orbax on JAX (`pip install "keras_transformer[distributed]"`), and the
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

    if keras.config.backend() != "tensorflow":
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
        self._engine = ENGINE.checkpoints(self.directory, keep)
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
        folder, backend = self.directory / str(number), ENGINE.name
        for other, file in FILES.items():
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
