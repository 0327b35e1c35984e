"""What the verbs of a task are given, checked before any work: arrays, weights, options."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer.checking import (
    check_choice,
    check_flag,
    check_int,
    check_number,
    describe,
    is_int,
    shorten,
)
from keras_transformer.columns import is_column, plain
from keras_transformer.data import Records
from keras_transformer.generation.scoring import pad_rows
from keras_transformer.kerashub_names import check_options
from keras_transformer.sizes import round_up
from keras_transformer.tasks.labels import check_probabilities, check_weights, on_host

# The least that counts among the options of Keras's verbs can be.
_LEAST = {
    "validation_batch_size": 1, "epochs": 0, "initial_epoch": 0, "steps_per_epoch": 1,
    "validation_steps": 1, "steps": 1,
}  # fmt: skip
_NEVER_NONE = ("epochs", "initial_epoch")
_MOST = 2**31 - 1
# Losses that take the number of a class, and cut what is no whole number.
_OF_TOKENS, _OF_SPANS = "TokenCrossEntropy", "SpanCrossEntropy"
OF_CLASSES = (
    "ClassCrossEntropy", "SparseCategoricalCrossentropy", "sparse_categorical_crossentropy",
)  # fmt: skip
_OF_NUMBERS = (_OF_TOKENS, _OF_SPANS, *OF_CLASSES)


def listed(values: Any, name: str = "y") -> Any:
    """An array of NumPy or a column of a data frame as a list; anything else as it is."""
    if is_column(values):
        return list(plain(values, f"`{name}`"))
    return values.tolist() if isinstance(values, np.ndarray) else values


def padded_places(name: str, places: Any, rows: list[list[int]], of: str) -> np.ndarray:
    """Places of tokens, the same for all rows or a list for each: int32 `(rows, count)`, -1 none.

    ValueError for other values, and for places that a row of the argument `of` has not.
    """
    given = listed(places, name)
    if not isinstance(given, (list, tuple)):
        raise ValueError(
            f"`{name}` must be a list of places, or one for each row, received {describe(given)}."
        )
    if all(map(is_int, given)):
        given = [given] * len(rows)
    if len(given) != len(rows):
        raise ValueError(
            f"`{name}` must be one list of places for all rows, or one for each of {len(rows)} "
            f"`{of}`, received {len(given)} lists."
        )
    given = [listed(chosen, f"{name}[{i}]") for i, chosen in enumerate(given)]
    for i, (chosen, row) in enumerate(zip(given, rows, strict=True)):
        if not isinstance(chosen, (list, tuple)):
            raise ValueError(f"`{name}[{i}]` must be a list of places, received {shorten(chosen)}.")
        hint = f"`{of}[{i}]` has {len(row)} tokens; -1 is none."
        for place in chosen:
            check_int(f"{name}[{i}]", place, -1, len(row) - 1, hint=hint)
    return pad_rows(given, -1, round_up(max(1, *map(len, given))))[0]


def checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options of Keras's verbs, numbers as Python's. ValueError for those that are out of range."""
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
    """Raise ValueError unless it is None, a callback, or a list of callbacks."""
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
    """Return a data set as it is, or a generator from its beginning. Raises ValueError if empty."""
    if hasattr(data, "__next__"):
        for first in data:
            return (element for element in itertools.chain([first], data))
        raise ValueError("The data is empty: its generator gives nothing. Make it anew each time.")
    size = None
    if hasattr(data, "cardinality"):
        size = int(data.cardinality())
    elif hasattr(data, "__len__"):
        with contextlib.suppress(TypeError):  # a loader of a PyTorch data set without a length
            size = len(data)
    if size == 0:
        raise ValueError(f"The data is empty: the {type(data).__name__} has no batches.")
    return data


def parts_of(data: tuple, name: str) -> tuple:
    """Return `(x, y, sample_weight)`, None where a part is missing. Raises ValueError for more."""
    if not 1 <= len(data) <= 3:
        raise ValueError(
            f"{name} must be (x,), (x, y) or (x, y, sample_weight), received {len(data)} parts."
        )
    return (*data, None, None)[:3]


def check_known(processing: dict[str, Any], known: tuple[str, ...]) -> None:
    """ValueError for options of `fit` that are neither Keras's nor `known` to the processor."""
    check_options("fit", processing, known)
    unknown = sorted(processing.keys() - set(known))
    if unknown:
        raise ValueError(
            f"`fit` has no option {unknown[0]!r}. Beside those of Keras it has "
            f"{', '.join(sorted(known)) or 'none'}."
        )


def check_labels_given(task, x, y) -> None:
    """ValueError for a task that learns from labels and is given none, or those of files twice."""
    if isinstance(x, Records):
        if y is not None:
            raise ValueError("`y` is a column of what `data.read` reads: name it there.")
        if x.y is None and task.needs_labels:
            raise ValueError(
                f"{type(task).__name__} learns from labels: name their column, y=, in read()."
            )
    elif y is None and task.needs_labels:
        raise ValueError(
            f"{type(task).__name__} learns from labels: give `y`, one a text. Of a data frame or "
            "of rows that are dicts: fit(data.read(rows, x=..., y=...)), with the names of columns."
        )


@contextlib.contextmanager
def naming(argument: str) -> Iterator[None]:
    """Says in an error which argument of several data sets it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"`{argument}`: {error}") from error


def check_arrays(task, x, y=None, sample_weight=None, learns: bool = True) -> tuple:
    """Data other than texts, checked, as Keras takes it; `learns` says that targets are needed."""
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
                    f"`{name}` goes with lists and arrays. A {type(x).__name__} has its own: let "
                    "its elements be (x, y, sample_weight), or give its columns as lists, as in "
                    "x=list(data['...'])."
                )
        return not_empty(x), sample_weight
    x = task._named(x)
    held = {name: on_host(array) for name, array in x.items()}
    if any(held[name] is not x[name] for name in x):
        task._named(held)  # Values of tensors; Keras takes them from where they are.
    given = [name for name in task.intake.id_inputs if name in x]  # of two sides one may be enough
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
        weights = np.broadcast_to(weights[:, None], shape)  # Each token counts as its row.
    if learns:
        _check_padding(held, weights)
    return x, weights


def _check_padding(x: Mapping, weights: np.ndarray | None) -> None:
    """Raise ValueError for a row of nothing but padding, unless its weight is 0."""
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
    """The name of what a task was compiled with, or of its class."""
    return task.loss if isinstance(task.loss, str) else type(task.loss).__name__


def _check_targets(task, y, ids: tuple) -> None:
    """ValueError for `y` that the loss does not take, of predictions `ids`, `(batch, length)`."""
    rows, loss = ids[0], loss_name(task)
    if y is None or isinstance(y, Mapping):
        return
    if isinstance(y, (list, tuple, str, bytes)) or not hasattr(y, "shape"):
        raise ValueError(
            f"`y` must be an array beside arrays, as `x` is, received {describe(y)}. Make it a "
            "NumPy array."
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
    """The rows of texts in two parts, of which the second is `share` of them, as Keras splits."""
    if isinstance(x, Records):
        raise ValueError(
            "`validation_split` is for texts in memory. Of files, give others as `validation_data`."
        )
    count = len(x[0] if isinstance(x, tuple) else x)
    first = int(count * (1 - share))
    if not 0 < first < count:
        raise ValueError(
            f"validation_split={share} of {count} texts leaves no text for one of the two parts."
        )

    def part(rows, where: slice):
        columns = rows if isinstance(rows, tuple) else (rows,)
        # Images in one array stay one.
        parts = [(c if getattr(c, "ndim", 1) > 1 else listed(c))[where] for c in columns]
        return tuple(parts) if isinstance(rows, tuple) else parts[0]

    return tuple(
        tuple(None if rows is None else part(rows, where) for rows in (x, y, sample_weight))
        for where in (slice(first), slice(first, None))
    )
