"""A column that is read once and accessed in any order; large values are kept on disk."""

import mmap
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class _Stored(NamedTuple):
    start: int
    end: int


class HeldColumn(Sequence):
    """Sequence that is filled with `append` and then indexed.

    Bytes are stored in a temporary file. Of a dict with a key `"bytes"`, as data sets hold images,
    only these bytes are kept.
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
            # A nameless file, which is deleted with the object.
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
