"""Checks of the arguments of `fit`, `evaluate` and `predict`: arrays, weights, options."""

import contextlib
import io
import itertools
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer.data import Records
from keras_transformer.data.dataset import check_batch
from keras_transformer.generation.scoring import pad_rows
from keras_transformer.processors.media import advice
from keras_transformer.support.checking import (
    check_choice,
    check_flag,
    check_int,
    check_number,
    describe,
    is_int,
    shorten,
)
from keras_transformer.support.columns import is_column, plain
from keras_transformer.support.foreign_names import check_options
from keras_transformer.support.sizes import round_rows
from keras_transformer.support.warned import warn_once
from keras_transformer.tasks.data.labels import check_probabilities, check_weights, on_host

# The smallest allowed values of integer options of Keras's methods.
_LEAST = {
    "validation_batch_size": 1, "epochs": 0, "initial_epoch": 0, "steps_per_epoch": 1,
    "validation_steps": 1, "steps": 1,
}  # fmt: skip
_NEVER_NONE = ("epochs", "initial_epoch")
_MOST = 2**31 - 1
# Losses of integer targets, which would silently truncate fractions.
_OF_TOKENS, _OF_SPANS = "TokenCrossEntropy", "SpanCrossEntropy"
OF_CLASSES = (
    "ClassCrossEntropy", "SparseCategoricalCrossentropy", "sparse_categorical_crossentropy",
)  # fmt: skip
_OF_NUMBERS = (_OF_TOKENS, _OF_SPANS, *OF_CLASSES)


def listed(values: Any, name: str = "y") -> Any:
    """Convert a NumPy array or a data frame column to a list; return other values as they are."""
    if not isinstance(values, (list, tuple)) and is_column(values):
        return list(plain(values, f"`{name}`"))
    return values.tolist() if isinstance(values, np.ndarray) else values


def padded_places(name: str, places: Any, rows: list[list[int]], of: str) -> np.ndarray:
    """Return token positions as int32 `(rows, count)`, padded with -1.

    `places` is one list of positions for all rows, or a list of lists, one for each row. Raises
    ValueError if it is neither, or if a position is beyond its row; `of` names the argument that
    the rows belong to.
    """
    given = listed(places, name)
    if not isinstance(given, (list, tuple)):
        raise ValueError(
            f"`{name}` must be a list of token positions, or a list of them for each row, received "
            f"{describe(given)}."
        )
    if all(map(is_int, given)):
        given = [given] * len(rows)
    if len(given) != len(rows):
        raise ValueError(
            f"`{name}` must be one list of token positions for all rows, or one for each of "
            f"{len(rows)} `{of}`, received {len(given)} lists."
        )
    given = [listed(chosen, f"{name}[{i}]") for i, chosen in enumerate(given)]
    for i, (chosen, row) in enumerate(zip(given, rows, strict=True)):
        if not isinstance(chosen, (list, tuple)):
            raise ValueError(
                f"`{name}[{i}]` must be a list of token positions, received {shorten(chosen)}."
            )
        hint = f"`{of}[{i}]` has {len(row)} tokens; -1 is ignored."
        for place in chosen:
            check_int(f"{name}[{i}]", place, -1, len(row) - 1, hint=hint)
    return pad_rows(given, -1, round_rows(max(1, *map(len, given))))[0]


def checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """Check options of Keras's methods, and convert numbers to Python's.

    Raises ValueError if an option is invalid.
    """
    checked = dict(options)
    for name in options.keys() & _LEAST.keys():
        checked[name] = check_int(
            name, options[name], _LEAST[name], _MOST, none=name not in _NEVER_NONE
        )
    check_choice("verbose", options.get("verbose", 0), ("auto", 0, 1, 2, True, False))
    check_number("validation_split", options.get("validation_split", 0), at_least=0, below=1)
    _check_callbacks(options.get("callbacks"))
    check_flag("return_dict", options.get("return_dict", False))
    frequency = options.get("validation_freq", 1)
    several = isinstance(frequency, (list, tuple, set))
    for epochs in frequency if several else [frequency]:
        check_int("validation_freq", epochs, at_least=1)
    return checked


def _check_callbacks(callbacks: Any) -> None:
    """Raise ValueError unless `callbacks` is None, a callback, or a list of callbacks."""
    kinds = (keras.callbacks.Callback, keras.callbacks.CallbackList)
    if callbacks is None or isinstance(callbacks, kinds):
        return
    if not isinstance(callbacks, (list, tuple)):
        raise ValueError(
            f"`callbacks` must be a list of keras.callbacks.Callback, received "
            f"{describe(callbacks)}."
        )
    for place, callback in enumerate(callbacks):
        if not isinstance(callback, keras.callbacks.Callback):
            hint = " Give an object, with ()." if isinstance(callback, type) else ""
            raise ValueError(
                f"`callbacks[{place}]` must be a keras.callbacks.Callback, received "
                f"{describe(callback)}.{hint}"
            )


def not_empty(data: Any) -> Any:
    """Return a data set as it is, or a generator with all its elements.

    Raises ValueError if the data is empty.
    """
    if hasattr(data, "__next__"):
        for first in data:
            return (element for element in itertools.chain([first], data))
        raise ValueError(
            "The data is empty: its generator yields nothing. A generator can only be used once: "
            "create a new one each time."
        )
    size = None
    if hasattr(data, "cardinality"):
        size = int(data.cardinality())
    elif hasattr(data, "__len__"):
        with contextlib.suppress(TypeError):  # a PyTorch loader of a data set without a length
            size = len(data)
    if size == 0:
        raise ValueError(f"The data is empty: the {type(data).__name__} has no batches.")
    return data


def parts_of(data: tuple, name: str) -> tuple:
    """Pad `(x,)` or `(x, y)` to `(x, y, sample_weight)` with None. Raises ValueError if longer."""
    if not 1 <= len(data) <= 3:
        raise ValueError(
            f"{name} must be (x,), (x, y) or (x, y, sample_weight), received {len(data)} parts."
        )
    return (*data, None, None)[:3]


def check_known(processing: dict[str, Any], known: tuple[str, ...]) -> None:
    """Raise ValueError if an option of `fit` is neither Keras's nor in `known`."""
    unknown = sorted(processing.keys() - set(known))
    if unknown:
        check_options("fit", unknown, known)
        raise ValueError(
            f"`fit` has no option {unknown[0]!r}. Besides Keras's options it has "
            f"{', '.join(sorted(known)) or 'none'}."
        )


def check_labels_given(task, x, y) -> None:
    """Raise ValueError if needed labels are missing, or `Records` come with a separate `y`."""
    if isinstance(x, Records):
        if y is not None:
            raise ValueError("`y` is a column of the data of `data.read`: name it there.")
        if x.y is None and task.head.needs_labels:
            raise ValueError(
                f"{type(task).__name__} learns from labels: name their column, y=, in read()."
            )
    elif y is None and task.head.needs_labels:
        refuse_folder(task, x)
        raise ValueError(
            f"{type(task).__name__} learns from labels: give `y`, one for each row. For a frame "
            "or rows of dicts: fit(data.read(rows, x=..., y=...)), with the names of columns."
        )


def refuse_folder(task, x) -> None:
    """Raise ValueError, with the function that lists its files, if `x` is the path of a folder."""
    lists_files = {
        "images": "image_folder", "recordings": "audio_folder", "videos": "video_folder",
    }  # fmt: skip
    raw = task.processor_class.raw
    if raw in lists_files and isinstance(x, (str, os.PathLike)) and os.path.isdir(x):
        function = f"kt.processors.{lists_files[raw]}"
        raise ValueError(
            f"{shorten(os.fspath(x))} is a folder. If it has a subfolder of {raw} for each class, "
            f"write `{raw}, labels = {function}({shorten(os.fspath(x))})`, and give both; "
            f"otherwise give a list of the paths of {raw}."
        )


def refuse_open_file(task, x) -> None:
    """Raise ValueError if `x` is an open file, which Keras would read as a data set."""
    if isinstance(x, io.IOBase):
        instead = advice(x)
        if isinstance(x, io.TextIOBase):
            instead = " Give its lines as a list, `file.read().splitlines()`."
        raise ValueError(
            f"{type(task).__name__} takes {task.processor_class.raw}, received {describe(x)}."
            f"{instead}"
        )


def warn_of_repeats(texts: list[str], batch_size: int | None) -> None:
    """Log a warning, once, if each batch of pairs must have a text twice.

    Losses of pairs take all texts of a batch but its own to be wrong for a row, equal ones too.
    """
    rows = min(len(texts), check_batch(batch_size)["batch_size"] or 32)
    different = len(set(texts))
    if different < rows:
        warn_once(
            logging.getLogger("keras_transformer"),
            "Only %d of %d texts differ, fewer than the %d rows of a batch. A text that a batch "
            "has twice also counts as wrong for its own row, so little is learned: let the texts "
            "of a batch differ (a smaller `batch_size`, or more texts), or train a classifier.",
            different,
            len(texts),
            rows,
        )


@contextlib.contextmanager
def naming(argument: str) -> Iterator[None]:
    """Add the name of the argument to errors about one of several data sets."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"`{argument}`: {error}") from error


def check_arrays(task, x, y=None, sample_weight=None, learns: bool = True) -> tuple:
    """Check arrays or a dataset, and return them with their weights; `learns` requires targets."""
    if not isinstance(x, Mapping):
        known = x is None or isinstance(x, (str, bytes, list, tuple, set, np.ndarray))
        if known or not (hasattr(x, "__iter__") or hasattr(x, "__getitem__")):
            raise ValueError(
                f"{type(task).__name__} takes {task.processor_class.raw}, a dict of arrays or a "
                f"dataset, received {describe(x)}."
            )
        for name, given in (("y", y), ("sample_weight", sample_weight)):
            if given is not None:
                raise ValueError(
                    f"`{name}` is for lists and arrays. A {type(x).__name__} has its own: let "
                    "its elements be (x, y, sample_weight), or give its columns as lists, as in "
                    "x=list(data['...'])."
                )
        return not_empty(x), sample_weight
    x = task._named(x)
    held = {name: on_host(array) for name, array in x.items()}
    if any(held[name] is not x[name] for name in x):
        task._named(held)  # Check the values of tensors; Keras gets the tensors themselves.
    # A dual encoder may get the inputs of only one of its towers.
    given = [name for name in task.input_interface.id_inputs if name in x]
    for name in given:
        if 0 in x[name].shape:
            raise ValueError(f"`{name}` is empty: it has shape {tuple(x[name].shape)}.")
    ids = x.get("mask_positions", x[given[-1]])
    rows = ids.shape[0]
    y = on_host(y)
    if y is None and learns and task.loss is not None:
        raise ValueError("`y` is missing: give the targets of the arrays.")
    _check_targets(task, y, tuple(ids.shape))
    shape = getattr(y, "shape", ())
    weights = check_weights("sample_weight", sample_weight, rows, shape, unit="row")
    if weights is not None and weights.ndim < len(shape) and loss_name(task) == _OF_TOKENS:
        weights = np.broadcast_to(weights[:, None], shape)  # Each token has its row's weight.
    if learns:
        _check_padding(held, weights)
    return x, weights


def _check_padding(x: Mapping, weights: np.ndarray | None) -> None:
    """Raise ValueError if a row is all padding, unless its weight is 0."""
    for name, mask in x.items():
        if not name.endswith("padding_mask") or not isinstance(mask, np.ndarray):
            continue
        empty = ~mask.any(axis=-1)
        if weights is not None and empty.any():
            counts = weights.reshape(len(weights), -1).any(axis=1)
            empty &= counts.reshape(-1, *[1] * (empty.ndim - 1))
        if empty.any():
            row = int(np.argwhere(empty)[0][0])
            raise ValueError(
                f"`{name}[{row}]` is False everywhere: the row has nothing to learn from. Remove "
                "it, or give it a `sample_weight` of 0."
            )


def loss_name(task) -> str:
    """Return the name of the compiled loss, or of its class."""
    return task.loss if isinstance(task.loss, str) else type(task.loss).__name__


def _check_targets(task, y, ids: tuple) -> None:
    """Raise ValueError if the loss cannot take `y`; `ids` is the shape `(batch, length)`."""
    rows, loss = ids[0], loss_name(task)
    if y is None or isinstance(y, Mapping):
        return
    if isinstance(y, (list, tuple, str, bytes)) or not hasattr(y, "shape"):
        raise ValueError(
            f"`y` must be an array, as `x` is, received {describe(y)}. Make it a NumPy array."
        )
    if len(y.shape) == 0 or y.shape[0] != rows:
        raise ValueError(
            f"`y` must have as many rows as `x`, {rows}, received shape {tuple(y.shape)}."
        )
    expected = {_OF_TOKENS: ids, _OF_SPANS: (rows, 2)}.get(loss, y.shape)
    if tuple(y.shape) != expected:
        raise ValueError(f"`y` must have the shape {expected}, received {tuple(y.shape)}.")
    if not isinstance(y, np.ndarray) or loss not in _OF_NUMBERS:
        return
    if loss == "ClassCrossEntropy" and y.ndim == 2 and y.shape[1] == task.number_of_targets > 1:
        check_probabilities(y)
        return
    if y.dtype.kind not in "iubf" or (y.dtype.kind == "f" and not (y == np.floor(y)).all()):
        raise ValueError(
            f"`y` must hold numbers of classes or tokens, which are integers, received {y.dtype} "
            f"values such as {shorten(y.ravel()[:3].tolist())}."
        )
    count = ids[1] if loss == _OF_SPANS else task.number_of_targets
    if count is not None and y.size:
        ignored = getattr(task.loss, "ignore_class", None)
        outside = y[((y < 0) | (y >= count)) & (y != ignored)]
        if outside.size:
            raise ValueError(f"`y` must be from 0 to {count - 1}, but holds {outside[0]}.")


def split_rows(x, y, sample_weight, share: float) -> tuple[tuple, tuple]:
    """Split rows into two parts, the second with the last `share` of the rows, as Keras does."""
    if isinstance(x, Records):
        raise ValueError(
            "`validation_split` is for texts in memory. For files, give `validation_data`."
        )
    count = len(x[0] if isinstance(x, tuple) else x)
    first = int(count * (1 - share))
    if not 0 < first < count:
        raise ValueError(
            f"validation_split={share} of {count} texts leaves no text for one of the two parts."
        )

    def part(rows, where: slice):
        columns = rows if isinstance(rows, tuple) else (rows,)
        # Keep images that come in one array in one array.
        parts = [(c if getattr(c, "ndim", 1) > 1 else listed(c))[where] for c in columns]
        return tuple(parts) if isinstance(rows, tuple) else parts[0]

    _warn_if_sorted(y, first)
    return tuple(
        tuple(None if rows is None else part(rows, where) for rows in (x, y, sample_weight))
        for where in (slice(first), slice(first, None))
    )


def _warn_if_sorted(y, first: int) -> None:
    """Warn if rows are sorted by class, so that those from `first` on are of the last classes."""
    labels = listed(y)
    if not isinstance(labels, (list, tuple)) or not all(isinstance(v, (str, int)) for v in labels):
        return
    runs = [label for label, _ in itertools.groupby(labels)]
    held_out = set(labels[first:])
    if len(runs) == len(set(labels)) > len(held_out) and len(labels) > 2 * len(runs):
        warnings.warn(
            f"`validation_split` takes the last rows, and the rows are sorted by class: "
            f"{len(held_out)} of {len(runs)} classes are in the validation part. Shuffle the rows "
            "first (for folders of files by `seed=`), or give `validation_data`.",
            stacklevel=level_of_user(),
        )


def level_of_user() -> int:
    """Return the `stacklevel` of the first frame outside of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("keras_transformer"):
        frame, level = frame.f_back, level + 1
    return level
