"""Checkpoints of many processes on JAX, written by Orbax."""

from pathlib import Path

import jax
import numpy as np

from keras_transformer.distribution.checkpoint_engine import CheckpointEngine


class OrbaxCheckpoints(CheckpointEngine):
    """Orbax's manager, which writes beside a checkpoint's place and renames it."""

    def __init__(self, directory: Path, keep: int):
        try:
            import orbax.checkpoint as orbax
        except ImportError as error:
            raise ImportError(
                "Checkpoints of several devices need Orbax on JAX, which is not installed. Run "
                '`pip install "keras_transformer[distributed]"`.'
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
