"""Values of a column that is read once and asked for in any order; large ones are on the disk."""

import mmap
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class _Stored(NamedTuple):
    start: int
    end: int


class HeldColumn(Sequence):
    """Values that are appended, all of them before one is asked for.

    Bytes, also those of a dict as files of images have them, lie in a temporary file.
    """

    def __init__(self):
        self._values: list[Any] = []
        self._file = self._map = None

    def append(self, value: Any) -> None:
        content = value.get("bytes") if isinstance(value, Mapping) else value
        if not isinstance(content, bytes) or not content:
            self._values.append(value)
            return
        if self._file is None:
            # Without a name: it ends with the object.
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        start = self._file.tell()
        self._file.write(content)
        self._values.append(_Stored(start, start + len(content)))

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place):
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        value = self._values[place]
        if not isinstance(value, _Stored):
            return value
        if self._map is None:
            self._file.flush()
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map[value.start : value.end]
