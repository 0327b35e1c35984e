"""Where the state of a run is kept: in one file, or in checkpoints that all processes write."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer.distribution.checkpoints import ShardedCheckpoints
from keras_transformer.distribution.processes import process_count, process_index
from keras_transformer.kernels.random_state import GENERATORS
from keras_transformer.support.files import SafetensorsFile, has_file, write_safetensors
from keras_transformer.training.averaging import to_numpy


class StateFile:
    """The state of a run in one safetensors file, which one process writes."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def exists(self) -> bool:
        """Whether there is a state."""
        return has_file(self.path)

    def values(self) -> dict[str, Any]:
        """Return the JSON values of the state."""
        return json.loads(SafetensorsFile(self.path).metadata.get("run", "null"))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors by place."""
        return {place_of(name): tensor.shape for name, tensor in SafetensorsFile(self.path).items()}

    def restore(self, variables: Mapping[str, keras.Variable]) -> None:
        """Assign variables, given by place."""
        file = SafetensorsFile(self.path)
        names = {place_of(name): name for name in file}
        for place, variable in variables.items():
            variable.assign(file[names[place]])

    def read(self, place: str) -> np.ndarray:
        """Read one tensor."""
        file = SafetensorsFile(self.path)
        return file[next(name for name in file if place_of(name) == place)]

    def own(self) -> dict[str, np.ndarray]:
        """Return the arrays that belong to the process and not to the model."""
        file = SafetensorsFile(self.path)
        return {name: file[name] for name in file if name.startswith(GENERATORS)}

    def save(self, number: int, variables: Mapping, own: Mapping, values: Mapping) -> None:
        """Replace the file. Raises OSError, with the number of bytes, if it cannot be written."""
        tensors = {name: to_numpy(variable) for name, variable in variables.items()}
        write_safetensors(self.path, {**tensors, **own}, {"run": json.dumps(values)})

    def wait(self) -> None:
        """Do nothing: `save` has written the file."""

    close = wait


class StateShards:
    """The state of a run in `ShardedCheckpoints`, of which each process writes its part."""

    def __init__(self, path: Path):
        self.path = path
        self._checkpoints = ShardedCheckpoints(path)
        self._number = self._checkpoints.latest

    @property
    def exists(self) -> bool:
        """Whether there is a state."""
        return self._number is not None

    def values(self) -> dict[str, Any]:
        """Return the JSON values of the state."""
        return self._checkpoints.values(self._number)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors by place."""
        return self._checkpoints.shapes(self._number)

    def restore(self, variables: Mapping[str, keras.Variable]) -> None:
        """Assign variables, given by place, each to the devices that hold it."""
        like = {place: variable.value for place, variable in variables.items()}
        restored = self._checkpoints.restore(self._number, like)
        for place, variable in variables.items():
            variable.assign(restored[place])

    def read(self, place: str) -> np.ndarray:
        """Read one whole tensor, in a program of one process."""
        return self._checkpoints.read(self._number, place)

    def own(self) -> dict[str, np.ndarray]:
        """Return the arrays of this process; one that is new has those of process 0."""
        shapes = self.shapes()
        like = {}
        for name, shape in shapes.items():
            group, _, part = name.rpartition("/")
            if not name.startswith(GENERATORS) or part != "0":
                continue
            mine = f"{group}/{process_index()}"
            mine = mine if shapes.get(mine) == shape else name
            like[mine] = _on_host(np.zeros(shape, "uint8"))
        restored = self._checkpoints.restore(self._number, like) if like else {}
        return {name.rpartition("/")[0]: to_numpy(tensor) for name, tensor in restored.items()}

    def save(self, number: int, variables: Mapping, own: Mapping, values: Mapping) -> None:
        """Begin to write a checkpoint. Raises OSError if it or the one before fails."""
        tensors = {place_of(name): variable.value for name, variable in variables.items()}
        tensors |= {f"{name}/{process_index()}": _on_host(array) for name, array in own.items()}
        self._checkpoints.save(number, tensors, values)
        self._number = number

    def wait(self) -> None:
        """Wait until the checkpoint is there."""
        self._checkpoints.wait()

    def close(self) -> None:
        """Wait until the checkpoint is there, and end the threads."""
        self._checkpoints.close()


def _on_host(array: np.ndarray):
    with keras.device("cpu"):
        return keras.ops.convert_to_tensor(array)


def place_of(name: str) -> str:
    """Return the key of a tensor of a state, such as `model/0` for `model/0/dense_1/kernel`.

    The rest of the name is for people: names of the optimizer's variables, and names in older
    files, contain the numbers that Keras gave the layers in the process that wrote them.
    """
    group, *further = name.split("/")
    return f"{group}/{further[0]}" if further and group in ("model", "optimizer") else name


def latest(states: list, position: Callable):
    """Return the state that is the furthest in its run, or None."""
    return max((state for state in states if state.exists), key=position, default=None)


def splits(model: keras.Model) -> bool:
    """Return whether processes or devices share the state of a model."""
    if process_count() > 1:
        return True
    layouts = (getattr(variable.value, "sharding", None) for variable in model.variables)
    return any(layout is not None and not layout.is_fully_replicated for layout in layouts)
