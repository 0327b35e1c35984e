"""Cache of token ids on disk, into which `Records` are tokenized once.

A store is a file with one Arrow stream, which has a column of lists for each kind of ids, and a
column of label indices. It ends with an empty batch, whose metadata are the number of rows and the
labels: a store without it is incomplete.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from keras_transformer.data.records import Chunk, Records, check_texts
from keras_transformer.data.token_rows import TokenRows
from keras_transformer.distribution.processes import check_processes, gather_values
from keras_transformer.distribution.together import agreed, workers
from keras_transformer.support.checking import describe, is_int, is_number
from keras_transformer.support.progress import SECONDS_UNTIL_BAR, shows_bars
from keras_transformer.support.scratch import scratch_folder

_VERSION = 3  # version of the file layout
_MAX_LABELS = 10_000_000  # many, since in a regression each row may have its own label


class Stored(NamedTuple):
    """Token ids of rows by name, the distinct labels, and the index of each row's label."""

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
    check: Callable = check_texts,
) -> Stored:
    """Return the token ids of records, from the cache if they are there.

    Processes that share the work, and see the same cache, tokenize a part of the chunks each, and
    the first of them writes the store.

    Args:
        records: `Records` to tokenize.
        encode: function from the lists of texts of a chunk, and a function that names a row in
            errors, to a dict of lists of ids.
        recipe: JSON values on which the ids depend besides the texts, such as the tokenizer's hash.
        dtypes: dtype of each kind of ids, such as `"uint16"`, by name.
        with_labels: whether the last column holds labels. Defaults to False.
        check_label: function that raises ValueError if a label is invalid. Defaults to no check.
        check: function of a column's values, its name and a function that names a row, which raises
            ValueError if a value is invalid. Defaults to `check_texts`.

    Raises:
        ValueError: if a text or a label is invalid, or there are no rows; the message has the row.
        OSError: if the cache cannot be written.
    """
    cache = records.cache
    made = {**recipe, "columns": list(map(str, records.columns)), "labels": with_labels}
    made = _digest({**made, "dtypes": dtypes, "version": _VERSION})
    fingerprint, content = agreed(lambda: _content(records))
    path = cache / f"{made}-{content[:24]}.arrow"

    def make_labels() -> _Labels | None:
        return _Labels(records.y, check_label) if with_labels else None

    found = _load(path, dtypes, with_labels)
    if workers()[1] > 1:
        check_processes(data={"recipe": made, "content": content})
        if not all(gather_values(found is not None)):
            _write_together(path, records, encode, dtypes, make_labels, check)
            found = _load(path, dtypes, with_labels)
    if found is None:
        with _scratch(cache, made) as scratch:
            labels = make_labels()
            digest = None if fingerprint else hashlib.sha256()
            _write(scratch / "rows", records, encode, dtypes, labels, check, digest)
            if digest is not None and (rows := digest.hexdigest()) != content:
                warnings.warn(
                    f"{records} gives different rows each time it is read, so each run tokenizes "
                    "them again. Turn off its shuffling: `fit` shuffles.",
                    stacklevel=2,
                )
                content = rows
            with contextlib.suppress(PermissionError):  # Windows, if a process has it mapped.
                os.replace(scratch / "rows", cache / f"{made}-{content[:24]}.arrow")
        found = _load(cache / f"{made}-{content[:24]}.arrow", dtypes, with_labels)
    if found is None:
        raise OSError(
            f"Files written to {cache} disappear or change. Name another folder with "
            "read(..., cache=...)."
        )
    stored, places = found
    for label, place in zip(stored.labels or (), places, strict=True):
        _check_label(check_label, label, place)
    return stored


def fingerprint(tokenizer) -> str:
    """Return a hash of everything that a tokenizer's ids depend on."""
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)  # These files suffice to recreate it.
        for path in sorted(Path(folder).iterdir()):
            files[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return _digest({"files": files, "library": tokenizers.__version__})


def _content(records: Records) -> tuple[str | None, str]:
    """Return the fingerprint of records, or None, and a hash of their content."""
    fingerprint = records.fingerprint()
    if fingerprint is not None:
        return fingerprint, fingerprint
    rows = hashlib.sha256()
    for part in records.chunks():
        _add_rows(rows, part)
    return None, rows.hexdigest()


def _write_together(
    path: Path,
    records: Records,
    encode: Callable,
    dtypes: dict,
    make_labels: Callable,
    check: Callable,
) -> None:
    """Write a store by all processes: of those that see the same folder, each tokenizes a part."""
    index, _ = workers()
    with contextlib.ExitStack() as stack:
        scratch = agreed(lambda: stack.enter_context(_scratch(path.parent, path.name[:24])))
        folders = [path.parent / name for name in gather_values(scratch.name)]
        seen = [other for other, folder in enumerate(folders) if folder.exists()]
        place, folder = seen.index(index), folders[seen[0]]
        agreed(lambda: _write(folder / str(place), records, encode, dtypes, make_labels(), check,
                              share=(place, len(seen))))  # fmt: skip

        def join() -> None:
            if place == 0:
                _join([folder / str(number) for number in range(len(seen))], folder / "rows")
                with contextlib.suppress(PermissionError):  # Windows, if a process has it mapped.
                    os.replace(folder / "rows", path)

        agreed(join)


def _join(paths: list[Path], target: Path) -> None:
    """Join stores with every n-th chunk each into one with all chunks, a chunk at a time."""
    import pyarrow as pa

    with contextlib.ExitStack() as stack:
        readers = [
            stack.enter_context(pa.ipc.open_stream(stack.enter_context(open(path, "rb"))))
            for path in paths
        ]
        file = stack.enter_context(open(target, "wb"))
        with pa.ipc.new_stream(file, readers[0].schema) as writer:
            for reader in itertools.cycle(readers):
                batch, metadata = reader.read_next_batch_with_custom_metadata()
                writer.write_batch(batch, custom_metadata=metadata)
                if metadata is not None:  # the end, which all parts have
                    break
        file.flush()
        os.fsync(file.fileno())


def _write(
    path: Path,
    records: Records,
    encode: Callable,
    dtypes: dict,
    labels: "_Labels | None",
    check: Callable,
    digest=None,
    share: tuple[int, int] = (0, 1),
) -> None:
    """Tokenize records into a store at `path`, and update the hash `digest` with their rows.

    `share` are two numbers `(i, n)`: the store gets every n-th chunk, from chunk i on. All rows
    are read, since only reading tells where a row begins, and which label occurs first.
    """
    import pyarrow as pa
    from tqdm.auto import tqdm

    fields = {name: pa.list_(pa.from_numpy_dtype(dtype)) for name, dtype in dtypes.items()}
    schema = pa.schema(fields | ({} if labels is None else {"label": pa.int32()}))
    rows, size = 0, records.size
    bar = tqdm(desc="Tokenizing, once", total=size or None, unit="B" if size else "row",
               unit_scale=True, delay=SECONDS_UNTIL_BAR, leave=False,
               disable=not shows_bars())  # fmt: skip
    with bar, open(path, "wb") as file:
        with pa.ipc.new_stream(file, schema) as writer:
            for number, part in enumerate(records.chunks()):
                if digest is not None:
                    _add_rows(digest, part)
                numbers = [] if labels is None else [labels.indices(part)]
                if number % share[1] == share[0]:
                    arrays = _arrays(part, records.columns, encode, dtypes, numbers, check)
                    writer.write_batch(pa.record_batch(arrays, schema=schema))
                rows += len(part.columns[0])
                bar.update((part.done if size else rows) - bar.n)
            known = [] if labels is None else labels.known()
            end = {"store": json.dumps({"rows": rows, "labels": known})}
            writer.write_batch(pa.RecordBatch.from_pylist([], schema), custom_metadata=end)
        file.flush()
        os.fsync(file.fileno())
    if not rows:
        raise ValueError(f"{records} has no rows: there is nothing to learn from.")


def _arrays(
    part: Chunk, columns: tuple, encode: Callable, dtypes: dict, numbers: list, check: Callable
) -> list:
    """Return the columns of a chunk as Arrow arrays; `numbers` are those of the labels, if any."""
    import pyarrow as pa

    texts = part.columns[:-1] if numbers else part.columns
    for column, values in zip(columns, texts, strict=False):
        check(values, column, part.place)
    encoded = encode(texts, part.place)
    arrays = []
    for name, dtype in dtypes.items():
        lengths = np.fromiter(map(len, encoded[name]), "int32")
        if not lengths.all():
            place = part.place(int(lengths.argmin()))
            raise ValueError(f"{place}: the tokenizer finds no token in this text. Remove the row.")
        ends = np.cumsum(np.append(0, lengths), dtype="int32")
        ids = np.fromiter(itertools.chain.from_iterable(encoded[name]), dtype, ends[-1])
        arrays.append(pa.ListArray.from_arrays(ends, ids))
    return [*arrays, *numbers]


class _Labels:
    """The distinct labels of a column, numbered in order of first occurrence."""

    def __init__(self, column, check: Callable | None):
        self.column, self.check = column, check
        self.numbers: dict[tuple, int] = {}  # by type and value
        self.places: list[str] = []  # where each label first occurs

    def indices(self, part: Chunk) -> np.ndarray:
        """Return the label indices of a chunk's rows."""
        return np.fromiter(
            (self._number(value, part, index) for index, value in enumerate(part.columns[-1])),
            "int32",
        )

    def known(self) -> list[tuple]:
        """Return the labels, each with the place of its first occurrence."""
        return [(label, place) for (_, label), place in zip(self.numbers, self.places, strict=True)]

    def _number(self, value, part: Chunk, index: int) -> int:
        label = _plain_label(value)
        key = (type(label), label)  # as dict keys, True, 1 and 1.0 are equal
        if key in self.numbers:
            return self.numbers[key]
        place = part.place(index)
        if label is None:
            raise ValueError(
                f"{place}: a label must be a string, a number or a list of them, received "
                f"{describe(value)}."
            )
        _check_label(self.check, label, place)
        if len(self.numbers) == _MAX_LABELS:
            raise ValueError(
                f"{place}: the column {self.column!r} has more than {_MAX_LABELS:,} different "
                "labels. Is it a column of labels?"
            )
        self.places.append(place)
        return self.numbers.setdefault(key, len(self.numbers))


def _load(path: Path, dtypes: dict[str, str], with_labels: bool) -> tuple[Stored, list] | None:
    """Return a memory-mapped store and the places of its labels, or None if it is incomplete."""
    import pyarrow as pa

    batches, metadata = [], None
    try:
        with pa.memory_map(str(path)) as file:
            buffer = file.read_buffer()
        with pa.ipc.open_stream(buffer) as reader, contextlib.suppress(StopIteration):
            while True:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
                batch.validate(full=True)
                batches.append(batch)
        end = json.loads(metadata["store"])
        if sum(batch.num_rows for batch in batches) != end["rows"]:
            return None
        rows = {
            name: _mapped([batch.column(name) for batch in batches[:-1]], buffer, dtype)
            for name, dtype in dtypes.items()
        }
        if not with_labels:
            return Stored(rows, None, None), []
        numbers = np.concatenate([batch.column("label").to_numpy() for batch in batches])
        labels = [_plain_label(label) for label, _ in end["labels"]]
        if numbers.max() >= len(labels) or numbers.min() < 0:
            return None
        return Stored(rows, labels, numbers), [place for _, place in end["labels"]]
    except (OSError, ValueError, KeyError, TypeError):  # missing or corrupt
        return None


def _mapped(lists: list, buffer, dtype: str) -> TokenRows:
    """Return the rows of a column, whose ids are parts of the memory-mapped file `buffer`."""
    ids = np.frombuffer(buffer, dtype, buffer.size // np.dtype(dtype).itemsize)
    ends, blocks = [], []
    for part in lists:
        begin = (part.values.buffers()[1].address - buffer.address) // ids.itemsize
        ends.append(begin + part.offsets.to_numpy().astype("int64"))
        blocks.append(ids[begin : begin + len(part.values)])
    lengths = np.concatenate([np.diff(places) for places in ends])
    return TokenRows(ids, lengths, np.concatenate([places[:-1] for places in ends]), blocks)


@contextlib.contextmanager
def _scratch(cache: Path, prefix: str) -> Iterator[Path]:
    """Yield a temporary folder in the cache; also delete those that killed processes left."""
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


def _check_label(check: Callable | None, label, place: str) -> None:
    try:
        if check is not None:
            check(label)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _plain_label(value):
    """Return the label as a JSON value (lists become tuples), or None if it is invalid."""
    if isinstance(value, (list, tuple)):
        parts = tuple(map(_plain_label, value))
        return None if None in parts else parts
    if isinstance(value, bool):
        return value
    if is_int(value):
        return int(value)
    if is_number(value):
        return float(value) if math.isfinite(value) else None
    return value if isinstance(value, str) else None


def _add_rows(digest, part: Chunk) -> None:
    digest.update(json.dumps(part.columns, default=str).encode())


def _digest(values: dict) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:24]
