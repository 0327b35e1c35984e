"""KerasHub's weights: HDF5 files as Keras writes them, read with care and one tensor at a time.

HDF5 can do much that weights need not: lead to other files, declare sizes that nobody stored,
call filters. Only what Keras writes is read here: groups that hold groups and plain arrays, each
array in one piece. The library gives the names, shapes and places; the bytes are read by offset.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

from keras_transformer.checkpoints.files import path_inside, read_json
from keras_transformer.checkpoints.keras_hub.lines import TASK_PREFIX
from keras_transformer.checkpoints.safetensors_io import Checkpoint, TensorInfo

WEIGHTS_FILE = "model.weights.h5"
INDEX_FILE = "model.weights.json"
TASK_WEIGHTS_FILE = "task.weights.h5"
_INDEX_LIMIT = 16 * 2**20
_MOST_OBJECTS = 200_000  # of a file; the deepest published model has some thousand


class KerasHubCheckpoint(Checkpoint):
    """The weights of a KerasHub preset: a mapping from path to `TensorInfo`, data still on disk.

    The path is that in the HDF5 file, such as `layers/dense/vars/0`. The tensors of a task's
    head, which are in a file of their own, are named `task/...`.

    Args:
        folder: A folder with `model.weights.h5`, or with `model.weights.json` and the shards it
            names; and with `task.weights.h5` if there is a head.

    Raises:
        FileNotFoundError: If the folder has no such weights, or a shard is missing.
        ValueError: If a file is truncated or corrupt, leads to other files, or has arrays that
            are not stored in one piece.

    Example:
    ```python
    import h5py, numpy as np, pathlib, tempfile
    from keras_transformer.checkpoints.keras_hub import KerasHubCheckpoint

    folder = pathlib.Path(tempfile.mkdtemp())
    with h5py.File(folder / "model.weights.h5", "w") as file:
        file["layers/dense/vars/0"] = np.eye(2, dtype="float32")
    checkpoint = KerasHubCheckpoint(folder)
    assert checkpoint["layers/dense/vars/0"].shape == (2, 2)
    assert checkpoint.read("layers/dense/vars/0").tolist() == [[1, 0], [0, 1]]
    ```
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        single, index, task = (
            path_inside(folder, name) for name in (WEIGHTS_FILE, INDEX_FILE, TASK_WEIGHTS_FILE)
        )
        if single.is_file():
            self._tensors = read_hdf5(single)
        elif index.is_file():
            self._tensors = _read_sharded(self.folder, index)
        else:
            raise FileNotFoundError(
                f"{folder} has no weights: neither {WEIGHTS_FILE} nor {INDEX_FILE}."
            )
        if task.is_file():
            head = read_hdf5(task)
            self._tensors |= {TASK_PREFIX + name: info for name, info in head.items()}


def read_hdf5(path: str | os.PathLike) -> dict[str, TensorInfo]:
    """Reads what an HDF5 file of weights says it holds, and checks that it is whole.

    Args:
        path: An HDF5 file as Keras writes it.

    Returns:
        A dict from the path inside the file, such as `"layers/dense/vars/0"`, to `TensorInfo`.

    Raises:
        ValueError: If the file is not HDF5, is truncated or corrupt, or holds something else than
            groups and arrays in one piece: links to other places or files, arrays that are
            virtual, compressed, never written, or larger than the file. The message names both.

    Example:
    ```python
    import h5py, numpy as np, pathlib, tempfile
    from keras_transformer.checkpoints.keras_hub import read_hdf5

    path = pathlib.Path(tempfile.mkdtemp(), "model.weights.h5")
    with h5py.File(path, "w") as file:
        file["vars/0"] = np.zeros((2, 3), "float16")
    assert read_hdf5(path)["vars/0"].dtype == "F16"
    ```
    """
    import h5py  # Keras depends on it, and imports it when it saves only.

    path = Path(path)
    size = path.stat().st_size
    tensors: dict[str, TensorInfo] = {}
    total = 0
    try:
        with h5py.File(path, "r") as file:
            for name, dataset in _datasets(file):
                tensors[name] = _tensor_info(name, dataset, path, size)
                total += math.prod(tensors[name].shape) * dataset.id.get_type().get_size()
        if total > size:  # although no single array is: several are in the same place
            raise ValueError(f"it declares {total:,} bytes of arrays, and has {size:,} in all")
    except Exception as error:  # the library raises a dozen kinds for a corrupt file
        raise ValueError(
            f"{path} is not a file of weights as Keras writes it: {error}. Download or save it "
            "again."
        ) from error
    return tensors


def _datasets(file) -> Iterator[tuple[str, object]]:
    """All arrays of a file with their paths. Raises ValueError for what is not in the file."""
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
                raise ValueError(f"{name!r} is a link to {where!r}, and links are not followed")
            item = group[key]
            info = h5py.h5o.get_info(item.id)
            if (info.fileno, info.addr) in seen:
                raise ValueError(f"{name!r} is there under another name too")
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
    """What an array's header says, if its bytes are plain numbers in one piece of this file."""
    import h5py

    layout, shape = dataset.id.get_create_plist(), dataset.shape
    if layout.get_layout() != h5py.h5d.CONTIGUOUS or layout.get_nfilters():
        raise ValueError(f"{name!r} is in chunks, compressed or virtual, and not in one piece")
    if layout.get_external_count():
        other = layout.get_external(0)[0]
        raise ValueError(f"{name!r} has its numbers in another file, {other!r}")
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
    """The stored type, floating ones by the names that safetensors has for them."""
    import h5py

    stored = dataset.id.get_type()
    for dtype in ("F64", "F32", "F16"):
        if stored.equal(getattr(h5py.h5t, f"IEEE_{dtype}LE")):
            return dtype
    # HDF5 has no bfloat16: Keras stores its two bytes, and says beside what they are.
    two_bytes = stored.get_class() == h5py.h5t.OPAQUE and stored.get_size() == 2
    if two_bytes and dataset.attrs.get("dtype") == "bfloat16":
        return "BF16"
    if stored.get_class() == h5py.h5t.INTEGER:  # a counter, or quantized: not to be read
        return str(dataset.dtype)
    raise ValueError(f"{name!r} is stored as {dataset.dtype}, and not as numbers")


def _read_sharded(folder: Path, index: Path) -> dict[str, TensorInfo]:
    """Reads the headers of the shards that an index names."""
    places = read_json(index, _INDEX_LIMIT).get("weight_map")
    places = list(places.values()) if isinstance(places, dict) else []
    # Of a layer whose variables are in two shards, both are named.
    shards = [name for place in places for name in (place if isinstance(place, list) else [place])]
    if not shards or not all(isinstance(name, str) for name in shards):
        raise ValueError(f"{index} has no 'weight_map' from layers to file names.")
    tensors: dict[str, TensorInfo] = {}
    for shard in sorted(set(shards)):
        path = path_inside(folder, shard)
        if not path.is_file():
            raise FileNotFoundError(f"{index} names the file {shard!r}, which is missing.")
        header = read_hdf5(path)
        twice = sorted(set(header) & set(tensors))
        if twice:
            raise ValueError(f"{path} holds {twice[0]!r}, and so does another shard.")
        tensors |= header
    return tensors
