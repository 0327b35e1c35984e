"""Checks of a model's dict of input arrays: names, shapes and values, before computing anything.

Names are checked in every call. Values are checked in NumPy arrays only, which are in the host's
memory: the tensors of a compiled step have no values yet.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer.config import Learned, Side
from keras_transformer.layers.stems import Input
from keras_transformer.support.checking import (
    agree,
    check_range,
    describe,
    known_shape,
    nearest,
    shorten,
    show_shape,
)

_DTYPES = ("float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")

# Transformers' names of the same arrays.
_PUBLISHED_NAMES = {
    "input_ids": "token_ids",
    "attention_mask": "padding_mask",
    "token_type_ids": "segment_ids",
}


def check_dtype(dtype: Any) -> None:
    """Raise ValueError unless `dtype` is None, a float dtype policy, or the name of a policy."""
    policy = None
    with contextlib.suppress(ValueError, TypeError, AttributeError):  # Keras's errors say less
        policy = dtype if dtype is None else keras.dtype_policies.get(dtype)
    if dtype is not None and (policy is None or "float" not in str(policy.compute_dtype)):
        raise ValueError(
            "`dtype` must be a dtype of floats, such as 'float32', or a dtype policy, such as "
            f"'mixed_bfloat16', received {describe(dtype)}.{nearest(dtype, _DTYPES)} `from_preset` "
            "also takes 'int8' and 'int4'."
        )


def published_name(name: Any) -> Any:
    """Return this package's name of an array that Transformers calls `name`, else `name`."""
    return _PUBLISHED_NAMES.get(name, name) if isinstance(name, str) else name


_HINT_FOR_TEXTS = (
    " Texts do not go into a dict: pass them as they are to the methods of a task, such as "
    "`fit(texts, labels)`, `predict(texts)` and, if the task generates, `generate(texts)`."
)


def named_inputs(
    inputs: Any, names: tuple[str, ...], needed: tuple[str, ...], taker: str
) -> dict[str, Any]:
    """Return the arrays under this package's names, without those that are None.

    Args:
        inputs: the argument that should be a dict of arrays. Transformers' names are accepted too.
        names: known names.
        needed: required names.
        taker: str, the class that takes the arrays, as errors call it.

    Raises:
        ValueError: if it is not a dict, or a name is unknown or missing.
        TypeError: if it is None.
    """
    if inputs is None:
        raise TypeError(
            f"{taker} takes one dict of arrays, such as {' and '.join(map(repr, needed))}: give "
            "`inputs`, and not `**inputs`."
        )
    if not isinstance(inputs, Mapping):
        raise ValueError(
            f"{taker} takes a dict of arrays, such as {' and '.join(map(repr, needed))}, received "
            f"{describe(inputs)}.{_HINT_FOR_TEXTS if _is_text(inputs) else ''}"
        )
    published = _published(names)
    named, unknown = {}, []
    for name, array in inputs.items():
        own = published.get(name, name) if isinstance(name, str) else name
        if own != name and own in inputs:
            raise ValueError(
                f"`{name}` and `{own}` are two names of one array, received both. Give one."
            )
        if own not in names:
            unknown.append(own)
        elif array is not None:
            named[own] = array
    missing = [name for name in needed if name not in named]
    if missing:
        raise ValueError(
            f"{taker} needs a dict with {' and '.join(map(repr, needed))}, received one with "
            f"{shorten(sorted(map(str, inputs)))}."
            + (_HINT_FOR_TEXTS if any(map(_is_text, inputs.values())) else "")
        )
    if unknown:
        labels = " Labels are `y`." if unknown[0] in ("label", "labels") else ""
        raise ValueError(
            f"{taker} takes no {shorten(unknown[0])}.{nearest(unknown[0], names)}{labels} It takes "
            f"a dict with {', '.join(map(repr, names))}. Leave out arrays for other purposes."
        )
    return named


def _is_text(value: Any) -> bool:
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return isinstance(first, str)


def check_inputs(
    inputs: Mapping[str, Any], arrays: tuple[Input, ...], prefix: str, side: Side
) -> None:
    """Raise ValueError if the shape or the values of an array would give meaningless states.

    Args:
        inputs: arrays or tensors by name, as returned by `named_inputs`.
        arrays: the arrays that the stem of the side takes.
        prefix: prefix of their names, such as `"encoder_"`.
        side: the config of the side.
    """
    main = next((prefix + array.name for array in arrays if array.required), None)
    like = None if inputs.get(main) is None else _shape_of(main, inputs[main])
    for known in arrays:
        name = prefix + known.name
        if inputs.get(name) is None:
            continue
        array, shape = inputs[name], _shape_of(name, inputs[name])
        if shape is None:
            continue
        _check_shape(name, shape, known)
        rows_may_be_one = known.name in ("position_ids", "global_positions")
        axes = 2 if known.of_tokens else 1
        if like is not None and not agree(shape[:axes], like[:axes], rows_may_be_one):
            raise ValueError(
                f"`{name}` must have the shape of `{main}`, {show_shape(like)}, received "
                f"{show_shape(shape)}."
            )
        if isinstance(array, np.ndarray):
            positioned = inputs.get(f"{prefix}position_ids") is not None
            _check_values(name, known, array, side, positioned)
            of_places = known.name == "global_positions"
            if of_places and like is not None and isinstance(like[1], int):
                check_range(
                    name, array, -1, like[1] - 1, "-1 is an empty place, and rows have the places"
                )


def check_states(name: str, states: Any, width: int) -> None:
    """Raise ValueError unless the states are float `(batch, length, width)`."""
    shape = _shape_of(name, states)
    fits = shape is None or (len(shape) == 3 and shape[2] in (None, width))
    if not fits or (isinstance(states, np.ndarray) and states.dtype.kind not in "fV"):
        shown = "" if shape is None else f", shape {show_shape(shape)}"
        raise ValueError(
            f"`{name}` must be float (batch, length, {width}), received {states.dtype}{shown}."
        )


def check_ids(name: str, array: np.ndarray, side: Side, positioned: bool = False) -> None:
    """Raise ValueError unless ids are integers of the vocabulary and the rows are not too long.

    Rows that are `positioned` have given positions, such as those of several documents in a row.
    """
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"`{name}` must hold token ids, which are integers, received {array.dtype}."
        )
    size = side.input.vocabulary_size
    if array.size and not (int(array.min()) >= 0 and int(array.max()) < size):
        raise ValueError(
            f"`{name}` holds ids from {int(array.min())} to {int(array.max())}, but the "
            f"vocabulary has the ids 0 to {size - 1}. Were they made by the tokenizer of another "
            "model?"
        )
    limit = side.max_sequence_length
    if isinstance(side.position, Learned) and not positioned and array.shape[-1] > limit:
        raise ValueError(
            f"`{name}` has {array.shape[-1]} tokens a row, but the model has learned positions "
            f"for {limit} only. Truncate the input."
        )


def check_positions(name: str, positions: Any, ids: Any) -> None:
    """Raise ValueError unless `positions` are int `(batch, count)`, places in rows of `ids`.

    They may also be a mask, bool `(batch, length)`.
    """
    shape, like = _shape_of(name, positions), _shape_of("ids", ids)
    if shape is not None and (len(shape) != 2 or (like and not agree(shape[:1], like[:1]))):
        raise ValueError(
            f"`{name}` must be of shape (batch, count), with as many rows as the ids, received "
            f"{show_shape(shape)}."
        )
    numbers = isinstance(positions, np.ndarray) and positions.dtype.kind != "b"
    if numbers and like and isinstance(like[1], int):
        check_range(name, positions, 0, like[1] - 1, "the rows have the places")


def _published(names: tuple[str, ...]) -> dict[str, str]:
    """Map Transformers' names to the ones in `names`; names without prefix are the encoder's."""
    published = dict(_PUBLISHED_NAMES)
    if "decoder_token_ids" in names:
        published = {theirs: f"encoder_{own}" for theirs, own in _PUBLISHED_NAMES.items()}
        published |= {f"decoder_{t}": f"decoder_{own}" for t, own in _PUBLISHED_NAMES.items()}
    return {theirs: own for theirs, own in published.items() if own in names}


def _check_shape(name: str, shape: tuple, known: Input) -> None:
    sizes = ("batch", *("length" if i == 0 else "dim" for i in range(len(known.shape))))
    wanted = tuple(
        n if size is None else size for n, size in zip(sizes, (None, *known.shape), strict=True)
    )
    if len(shape) != len(wanted) or not agree(shape, wanted):
        raise ValueError(
            f"`{name}` must be of shape {show_shape(wanted)}, received {show_shape(shape)}."
        )


def _shape_of(name: str, array: Any) -> tuple | None:
    """Return the shape of an array or tensor; None if TensorFlow does not know it yet."""
    if isinstance(array, (list, tuple)) or not hasattr(array, "shape"):
        raise ValueError(
            f"`{name}` must be an array, received a {type(array).__name__}. Pad the rows to one "
            "length and make them a NumPy array, or give strings."
        )
    return known_shape(array)


def _check_values(name: str, known: Input, array: np.ndarray, side: Side, positioned: bool) -> None:
    """Raise ValueError if values are out of range, in one pass over the array."""
    kind = known.name
    if kind == "token_ids":
        check_ids(name, array, side, positioned)
    elif known.dtype == "bool":
        _check_mask(name, array, kind == "padding_mask")
    elif known.below is not None:
        check_range(name, array, 0, known.below - 1, "the model takes the numbers")
    elif kind == "segment_ids":
        most = max(side.input.segments, 1) - 1
        check_range(name, array, 0, most, "the model has the segments")
    elif kind == "position_ids":
        # RoBERTa counts real tokens from 0, and padding is one before that.
        learned = isinstance(side.position, Learned)
        least = -1 if learned and side.position.padding_id is not None else 0
        most = side.max_sequence_length - 1 if learned else np.iinfo("int32").max
        check_range(name, array, least, most, "the model has the positions")
    elif known.dtype.startswith("float"):
        if array.dtype.kind not in "fV" or not np.isfinite(array.astype("float32")).all():
            numbers = array.dtype.kind in "fV"
            held = "some that are NaN, infinite or too large" if numbers else str(array.dtype)
            raise ValueError(f"`{name}` must hold finite floats, received {held}.")
    elif kind in ("pack_ids", "global_positions"):
        most = np.iinfo("int32").max
        check_range(name, array, -1, most, "padding is -1, and packed rows have the numbers")
    else:
        limits = np.iinfo("int32")
        check_range(name, array, limits.min, limits.max, "int32 has the numbers")


def _check_mask(name: str, array: np.ndarray, of_padding: bool) -> None:
    if array.dtype.kind == "b":
        return
    meant = (
        "True, or 1, for a token and False, or 0, for padding" if of_padding else "True or False"
    )
    if array.dtype.kind not in "iuf" or not ((array == 0) | (array == 1)).all():
        held = shorten(np.unique(array)[:5].tolist()) if array.dtype.kind in "iuf" else "others"
        raise ValueError(f"`{name}` must be {meant}; received {array.dtype} values such as {held}.")
