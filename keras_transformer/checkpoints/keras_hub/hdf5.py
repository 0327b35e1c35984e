"""KerasHub's weights: HDF5 files as Keras writes them, checked and read one tensor at a time.

HDF5 has features that weights do not need: links to other files, declared sizes without data,
filters. Only what Keras writes is read: groups that hold groups and plain contiguous arrays. The
library provides names, shapes and positions; the bytes are read by offset.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

from keras_transformer.checkpoints.keras_hub.family import TASK_PREFIX
from keras_transformer.checkpoints.weights.safetensors_io import (
    Checkpoint,
    TensorInfo,
    read_sharded,
)
from keras_transformer.support.files import path_inside

WEIGHTS_FILE = "model.weights.h5"
INDEX_FILE = "model.weights.json"
TASK_WEIGHTS_FILE = "task.weights.h5"
_MOST_OBJECTS = 200_000  # in a file; the deepest published model has some thousand


class KerasHubCheckpoint(Checkpoint):
    """Weights of a KerasHub preset: a mapping from path to `TensorInfo`, data still on disk."""

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        single, index, task = (
            path_inside(folder, name) for name in (WEIGHTS_FILE, INDEX_FILE, TASK_WEIGHTS_FILE)
        )
        if single.is_file():
            self._tensors = read_hdf5(single)
        elif index.is_file():
            self._tensors = read_sharded(self.folder, index, read_hdf5)
        else:
            raise FileNotFoundError(
                f"{folder} has no weights: neither {WEIGHTS_FILE} nor {INDEX_FILE}."
            )
        if task.is_file():
            head = read_hdf5(task)
            # Without the training state.
            head = {name: info for name, info in head.items() if not name.startswith("optimizer/")}
            self._tensors |= {TASK_PREFIX + name: info for name, info in head.items()}


def read_hdf5(path: str | os.PathLike) -> dict[str, TensorInfo]:
    """Read the header of an HDF5 weights file, and check that it is complete."""
    import h5py  # a dependency of Keras, which imports it only for saving

    path = Path(path)
    size = path.stat().st_size
    tensors: dict[str, TensorInfo] = {}
    total = 0
    try:
        with h5py.File(path, "r") as file:
            for name, dataset in _datasets(file):
                tensors[name] = _tensor_info(name, dataset, path, size)
                total += math.prod(tensors[name].shape) * dataset.id.get_type().get_size()
        if total > size:  # no single array is too large, so several overlap
            raise ValueError(f"it declares {total:,} bytes of arrays, but has {size:,} in all")
    except Exception as error:  # the library raises a dozen types for a corrupt file
        raise ValueError(
            f"{path} is not a weights file as Keras writes it: {error}. Download or save it again."
        ) from error
    return tensors


def _datasets(file) -> Iterator[tuple[str, object]]:
    """Yield all arrays of a file with their paths. Raises ValueError if a link leads elsewhere."""
    import h5py

    root = h5py.h5o.get_info(file.id)
    seen = {(root.fileno, root.addr)}
    groups = [("", file)]
    while groups:
        prefix, group = groups.pop()
        for key in group:
            name = prefix + key
            link = group.get(key, getlink=True)
            if not isinstance(link, h5py.HardLink):
                where = getattr(link, "filename", None) or getattr(link, "path", None)
                raise ValueError(f"{name!r} is a link to {where!r}, but links are not followed")
            item = group[key]
            info = h5py.h5o.get_info(item.id)
            if (info.fileno, info.addr) in seen:
                raise ValueError(f"{name!r} also occurs under another name")
            seen.add((info.fileno, info.addr))
            if len(seen) > _MOST_OBJECTS:
                raise ValueError(f"it has more than {_MOST_OBJECTS:,} groups and arrays")
            if isinstance(item, h5py.Group):
                groups.append((f"{name}/", item))
            elif isinstance(item, h5py.Dataset):
                yield name, item
            else:
                raise ValueError(f"{name!r} is neither a group nor an array")


def _tensor_info(name: str, dataset, path: Path, size: int) -> TensorInfo:
    """Return an array's header. Raises ValueError unless its bytes are contiguous in the file."""
    import h5py

    layout, shape = dataset.id.get_create_plist(), dataset.shape
    if layout.get_layout() != h5py.h5d.CONTIGUOUS or layout.get_nfilters():
        raise ValueError(
            f"{name!r} is chunked, compressed or virtual; only contiguous arrays are read"
        )
    if layout.get_external_count():
        other = layout.get_external(0)[0]
        raise ValueError(f"{name!r} has its data in another file, {other!r}")
    if shape is None:
        raise ValueError(f"{name!r} is empty")
    needed = math.prod(shape) * dataset.id.get_type().get_size()
    offset = dataset.id.get_offset()
    if needed and offset is None:
        raise ValueError(f"{name!r} of shape {shape} was never written")
    if needed and offset + needed > size:
        raise ValueError(f"{name!r} of shape {shape} does not fit in the file's {size:,} bytes")
    return TensorInfo(tuple(shape), _dtype(name, dataset), path, offset or 0)


def _dtype(name: str, dataset) -> str:
    """Return the stored dtype; floating point types have their names in safetensors."""
    import h5py

    stored = dataset.id.get_type()
    for dtype in ("F64", "F32", "F16"):
        if stored.equal(getattr(h5py.h5t, f"IEEE_{dtype}LE")):
            return dtype
    # HDF5 has no bfloat16: Keras stores its two bytes, with the type in an attribute.
    two_bytes = stored.get_class() == h5py.h5t.OPAQUE and stored.get_size() == 2
    if two_bytes and dataset.attrs.get("dtype") == "bfloat16":
        return "BF16"
    if stored.get_class() == h5py.h5t.INTEGER:  # a counter, or quantized: not read
        return str(dataset.dtype)
    raise ValueError(f"{name!r} is stored as {dataset.dtype}, which is not a number type")
