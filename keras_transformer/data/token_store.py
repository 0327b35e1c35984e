"""Token ids on disk: what `Records` are tokenized into, once.

A store is a folder with the ids of each column end to end, the lengths of the rows, the number of
each row's label, and `manifest.json`, which says what they are and how many bytes each file has.
It is written beside its place and renamed when it is whole. Its name is a hash of how the ids were
made, and one of what they were made of.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tokenizers

from keras_transformer.checking import describe, is_int, is_number
from keras_transformer.data.records import Records, check_texts
from keras_transformer.data.token_rows import TokenRows
from keras_transformer.files import write_text
from keras_transformer.scratch import open_to_others, scratch_folder

_VERSION = 1  # of the folder's layout
_MANIFEST = "manifest.json"
_MAX_LABELS = 10_000_000  # Of a regression each row may have its own.
_SECONDS_UNTIL_BAR = 2.0


class Stored(NamedTuple):
    """What `tokenize` gives.

    Fields:
        columns: dict of name to `TokenRows`, memory-mapped.
        labels: list of the different labels, or None.
        label_numbers: int32 array `(rows,)`, the place in `labels` of each row's; or None.
    """

    columns: dict[str, TokenRows]
    labels: list | None
    label_numbers: np.ndarray | None


def tokenize(
    records: Records,
    encode: Callable,
    recipe: dict[str, Any],
    dtypes: dict[str, str],
    with_labels: bool = False,
    check_label: Callable | None = None,
) -> Stored:
    """The token ids of records: those of the cache, or made now, in constant memory.

    Several processes may do this at once: each writes a folder of its own, the first one done
    gives its to all.

    Args:
        records: `Records`.
        encode: function of the lists of texts, one a column, and a function `place(row)` for
            errors, to a dict of name to lists of ids.
        recipe: values for JSON on which the ids depend beside the texts.
        dtypes: dict of name to the dtype of the ids, one for each that `encode` gives.
        with_labels: bool, whether the last column is that of labels and not of texts.
        check_label: function that raises ValueError for a label that is not known.

    Returns:
        `Stored`.

    Raises:
        ValueError: for what is wrong in a source, with its file and line; a source without rows; a
            file that changed while it was read.
        OSError: for a cache that cannot be written. What was written of the store is removed.

    Example:

    ```python
    import keras_transformer as kt
    from keras_transformer.data.token_store import tokenize

    records = kt.data.read([{"text": "ab"}, {"text": "c"}], cache="tokens")

    def encode(columns, place):
        return {"characters": [[ord(character) for character in text] for text in columns[0]]}

    stored = tokenize(records, encode, {"encode": "characters"}, {"characters": "uint8"})
    assert [row.tolist() for row in stored.columns["characters"]] == [[97, 98], [99]]
    ```
    """
    cache = records.cache
    made = {**recipe, "columns": list(map(str, records.columns)), "labels": with_labels}
    prefix = _digest({**made, "dtypes": dtypes, "version": _VERSION})
    content = records.digest()
    by_rows = content is None  # The rows themselves are the content.
    if by_rows and next(cache.glob(f"{prefix}-*"), None) is not None:
        # Only a pass over them can tell whether they are those of a store, where there is one.
        digest = hashlib.sha256()
        for part in records.chunks():
            _add_rows(digest, part)
        content = digest.hexdigest()
    for _ in range(3):
        if content is not None:
            store = cache / f"{prefix}-{content[:24]}"
            found = _load(store, dtypes, with_labels)
            if found is not None:
                _check_labels(store, check_label)
                return found
        with _scratch(cache, prefix) as scratch:
            builder = _Builder(scratch, records, encode, dtypes, with_labels, check_label)
            read = builder.build(by_rows)
            if by_rows and content not in (None, read):
                warnings.warn(
                    f"{records} gives other rows each time, so that they are tokenized anew in "
                    "each run. Let it not shuffle: `fit` does.",
                    stacklevel=2,
                )
            content = read if by_rows else content
            _place(scratch, cache / f"{prefix}-{content[:24]}", dtypes, with_labels)
    raise OSError(f"{cache} does not keep what is written: something removes or changes it.")


def fingerprint(tokenizer) -> str:
    """A hash of all that a tokenizer's ids depend on.

    Args:
        tokenizer: `Tokenizer`.

    Returns:
        A string of hexadecimal digits.
    """
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)  # What is enough to make it again.
        for path in sorted(Path(folder).iterdir()):
            files[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return _digest({"files": files, "library": tokenizers.__version__})


class _Builder:
    """Writes a store."""

    def __init__(self, folder, records, encode, dtypes, with_labels, check_label):
        self.folder = folder
        self.records = records
        self.encode = encode
        self.dtypes = dtypes
        self.with_labels = with_labels
        self.check_label = check_label
        self.labels: dict[Any, int] = {}
        self.first_places: list[str] = []

    def build(self, by_rows: bool) -> str:
        """Writes all; returns the hash of the rows if asked for."""
        names = [name for column in self.dtypes for name in _names(column)]
        names += ["labels"] * self.with_labels
        digest = hashlib.sha256()
        bar = _Bar(self.records.size)
        rows = 0
        with contextlib.ExitStack() as stack:
            files = {n: stack.enter_context(open(self.folder / n, "wb")) for n in names}
            for part in self.records.chunks():
                if by_rows:
                    _add_rows(digest, part)
                rows += len(part.columns[0])
                for name, array in self._arrays(part):
                    files[name].write(array.tobytes())
                bar.update(rows, part.done)
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
        bar.close(rows)
        if not rows:
            raise ValueError(f"{self.records} has no rows: there is nothing to learn from.")
        manifest = {
            "version": _VERSION,
            "rows": rows,
            "dtypes": self.dtypes,
            "bytes": {name: (self.folder / name).stat().st_size for name in names},
            "labels": list(zip(self.labels, self.first_places, strict=True)),
        }
        write_text(self.folder / _MANIFEST, json.dumps(manifest, indent=1))
        return digest.hexdigest()

    def _arrays(self, part) -> Iterator[tuple[str, np.ndarray]]:
        """What is added to each file."""
        texts = part.columns[:-1] if self.with_labels else part.columns
        for column, values in zip(self.records.columns, texts, strict=False):
            check_texts(values, column, part.place)
        if self.with_labels:  # Before the work of encoding.
            yield "labels", self._label_numbers(part)
        encoded = self.encode(texts, part.place)
        for column, dtype in self.dtypes.items():
            lengths = np.fromiter(map(len, encoded[column]), "int32")
            if not lengths.all():
                place = part.place(int(lengths.argmin()))
                raise ValueError(f"{place}: the tokenizer finds no token in this text.")
            ids = chain.from_iterable(encoded[column])
            count = int(lengths.sum(dtype="int64"))
            yield from zip(_names(column), (np.fromiter(ids, dtype, count), lengths), strict=True)

    def _label_numbers(self, part) -> np.ndarray:
        numbers = []
        for index, value in enumerate(part.columns[-1]):
            label = _plain_label(value)
            number = self.labels.get(label)
            if number is None:
                number = self._add_label(label, value, part.place(index))
            numbers.append(number)
        return np.asarray(numbers, "int32")

    def _add_label(self, label, value, place) -> int:
        if label is None:
            raise ValueError(
                f"{place}: a label must be a string, a number or a list of them, received "
                f"{describe(value)}."
            )
        if self.check_label is not None:
            _check_label(self.check_label, label, place)
        if len(self.labels) == _MAX_LABELS:
            raise ValueError(
                f"{place}: the column {self.records.y!r} has more than {_MAX_LABELS:,} different "
                "labels. Is it one of labels?"
            )
        self.labels[label] = len(self.labels)
        self.first_places.append(place)
        return self.labels[label]


class _Bar:
    """A progress bar that is there only for what takes long."""

    def __init__(self, size: int):
        self.size = size
        self.begin = time.monotonic()
        self.bar: keras.utils.Progbar | None = None

    def update(self, rows: int, done: int) -> None:
        if self.bar is None:
            if time.monotonic() - self.begin < _SECONDS_UNTIL_BAR:
                return
            print("Tokenizing, once:")
            self.bar = keras.utils.Progbar(
                _megabytes(self.size) or None, unit_name="MB" if self.size else "row"
            )
        self.bar.update(_megabytes(done) if self.size else rows, finalize=False)

    def close(self, rows: int) -> None:
        if self.bar is not None:
            self.bar.update(_megabytes(self.size) if self.size else rows, finalize=True)


def _load(folder: Path, dtypes: dict[str, str], with_labels: bool) -> Stored | None:
    """A store, memory-mapped; None for one that is not there or not whole."""
    manifest = _read_manifest(folder)
    if manifest is None:
        return None
    try:
        columns = {}
        for column, dtype in dtypes.items():
            ids, lengths = _names(column)
            lengths = np.fromfile(folder / lengths, "int32")
            ids = np.memmap(folder / ids, dtype, "r")
            if len(lengths) != manifest["rows"] or lengths.sum(dtype="int64") != len(ids):
                return None
            # Not as a memmap, whose views each keep a dict.
            columns[column] = TokenRows(np.asarray(ids), lengths)
        if not with_labels:
            return Stored(columns, None, None)
        numbers = np.fromfile(folder / "labels", "int32")
        labels = [_plain_label(label) for label, _ in manifest["labels"]]
        if len(numbers) != manifest["rows"] or numbers.max() >= len(labels) or numbers.min() < 0:
            return None
        return Stored(columns, labels, numbers)
    except (OSError, ValueError):  # Removed, or cut, since.
        return None


def _read_manifest(folder: Path) -> dict | None:
    """The manifest of a store whose files have the sizes that it says, else None."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in manifest["bytes"]}
        return manifest if sizes == manifest["bytes"] and manifest["rows"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _place(scratch: Path, store: Path, dtypes: dict[str, str], with_labels: bool) -> None:
    """Makes a scratch folder the store, unless another process did so already."""
    open_to_others(scratch)
    while True:
        try:
            os.rename(scratch, store)
            return
        except OSError:
            if not store.exists():
                raise
        if _load(store, dtypes, with_labels) is not None:
            return
        moved = contextlib.suppress(FileNotFoundError)  # Another process was as quick.
        with scratch_folder(store.parent, "broken") as broken, moved:
            os.rename(store, broken / "store")


@contextlib.contextmanager
def _scratch(cache: Path, prefix: str) -> Iterator[Path]:
    """A folder that is gone afterwards, and with it those that killed processes left."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with scratch_folder(cache, prefix) as scratch:
            yield scratch
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or str(error.filename or "").startswith(str(cache)):
            raise OSError(
                error.errno,
                f"{error.strerror}: the tokens are written into {cache}. Name another folder with "
                "read(..., cache=...)",
            ) from error
        raise


def _check_labels(store: Path, check_label: Callable | None) -> None:
    """Checks the labels of a store with those of the model that is to learn them."""
    manifest = _read_manifest(store) if check_label is not None else None
    for label, place in manifest["labels"] if manifest else ():
        _check_label(check_label, _plain_label(label), place)


def _check_label(check_label: Callable, label, place: str) -> None:
    try:
        check_label(label)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _plain_label(value):
    """A label as JSON has it, a tuple for a list, or None for what is none."""
    if isinstance(value, (list, tuple)):
        parts = tuple(map(_plain_label, value))
        return None if None in parts else parts
    if isinstance(value, bool) or is_int(value):
        return int(value)
    if is_number(value):
        return float(value) if math.isfinite(value) else None
    return value if isinstance(value, str) else None


def _add_rows(digest, part) -> None:
    digest.update(json.dumps(part.columns, default=str).encode())


def _megabytes(size: int) -> int:
    return -(-size // 1_000_000)  # A Progbar counts integers.


def _names(column: str) -> tuple[str, str]:
    """The files of a column."""
    return f"{column}.ids", f"{column}.lengths"


def _digest(values: dict) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:24]
