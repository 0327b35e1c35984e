"""The dict of arrays that a model takes: names, shapes and values, before anything is computed.

Names are checked in every call. Values are checked of arrays of NumPy, which are in the memory of
the host: what a compiled step gets has none yet.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.checking import describe, nearest, shorten
from keras_transformer.config import TransformerConfig

# What Transformers calls the same arrays.
_PUBLISHED_NAMES = {
    "input_ids": "token_ids",
    "attention_mask": "padding_mask",
    "token_type_ids": "segment_ids",
}


def named_inputs(
    inputs: Any, names: tuple[str, ...], needed: tuple[str, ...], taker: str
) -> dict[str, Any]:
    """The arrays by the names that they have here. Those that are None are left out.

    Args:
        inputs: what was given for a dict of arrays. The names of Transformers are known too.
        names: those that are known.
        needed: those that must be there.
        taker: str, the class that takes them, as errors call it.

    Raises:
        ValueError: for what is no dict, a name that is not known, or one that is missing.
    """
    if not isinstance(inputs, Mapping):
        raise ValueError(f"{taker} takes a dict of arrays, received {describe(inputs)}.")
    published = _published(names)
    named, unknown = {}, []
    for name, array in inputs.items():
        own = published.get(name, name) if isinstance(name, str) else name
        if own != name and own in inputs:
            raise ValueError(f"`{name}` is `{own}` here, and both were given: give one.")
        if own not in names:
            unknown.append(own)
        elif array is not None:
            named[own] = array
    missing = [name for name in needed if name not in named]
    if missing:
        raise ValueError(
            f"{taker} needs a dict with {' and '.join(map(repr, needed))}, received one with "
            f"{shorten(sorted(map(str, inputs)))}."
        )
    if unknown:
        raise ValueError(
            f"{taker} takes no {shorten(unknown[0])}.{nearest(unknown[0], names)} It takes a dict "
            f"with {', '.join(map(repr, names))}. Leave out what is for something else."
        )
    return named


def check_inputs(inputs: Mapping[str, Any], config: TransformerConfig) -> None:
    """ValueError for arrays that a model would take, and compute nonsense of.

    Args:
        inputs: arrays or tensors by name, as `named_inputs` gives them.
        config: the model's.
    """
    for name, array in inputs.items():
        shape = _shape_of(name, array)
        side = name[: -len(kind)] if (kind := _kind(name)) else ""
        if name == "encoder_states":
            _check_states(name, array, shape, config)
        if shape is None or kind is None:
            continue
        if len(shape) != 2:
            raise ValueError(
                f"`{name}` must be of shape (batch, length), received {_shown(shape)}."
            )
        ids = inputs.get(f"{side}token_ids")
        like = None if ids is None or ids is array else _shape_of(f"{side}token_ids", ids)
        if like is not None and not _agree(shape, like, rows_may_be_one=kind == "position_ids"):
            raise ValueError(
                f"`{name}` must have the shape of `{side}token_ids`, {_shown(like)}, received "
                f"{_shown(shape)}."
            )
        if isinstance(array, np.ndarray):
            _check_values(name, kind, array, config)


def check_positions(name: str, positions: Any, ids: Any) -> None:
    """ValueError for `positions` that are not int `(batch, count)`, places in the rows of `ids`."""
    shape, like = _shape_of(name, positions), _shape_of("ids", ids)
    if shape is not None and (len(shape) != 2 or (like and not _agree(shape[:1], like[:1], False))):
        raise ValueError(
            f"`{name}` must be of shape (batch, count), with as many rows as the ids, received "
            f"{_shown(shape)}."
        )
    if isinstance(positions, np.ndarray) and like and isinstance(like[1], int):
        _check_range(name, positions, 0, like[1] - 1, "the rows have the places")


def _check_states(name: str, states: Any, shape: tuple | None, config) -> None:
    """ValueError for what is no float `(batch, length, hidden_dim)`."""
    fits = shape is None or (len(shape) == 3 and shape[2] in (None, config.hidden_dim))
    if not fits or (isinstance(states, np.ndarray) and states.dtype.kind not in "fV"):
        shown = "" if shape is None else f", shape {_shown(shape)}"
        raise ValueError(
            f"`{name}` must be float (batch, length, {config.hidden_dim}), received "
            f"{states.dtype}{shown}."
        )


def _published(names: tuple[str, ...]) -> dict[str, str]:
    """Transformers' names for those of `names`. Of two sides, those of the encoder are bare."""
    published = dict(_PUBLISHED_NAMES)
    if "decoder_token_ids" in names:
        published = {theirs: f"encoder_{own}" for theirs, own in _PUBLISHED_NAMES.items()}
        published |= {f"decoder_{t}": f"decoder_{own}" for t, own in _PUBLISHED_NAMES.items()}
    return {theirs: own for theirs, own in published.items() if own in names}


def _kind(name: str) -> str | None:
    """What an array is, whichever side it is of; None for one that is not of a length."""
    kinds = ("token_ids", "padding_mask", "segment_ids", "position_ids", "pack_ids")
    return next((kind for kind in kinds if name.endswith(kind)), None)


def _shape_of(name: str, array: Any) -> tuple | None:
    """The shape of an array or a tensor; None where TensorFlow does not know it yet."""
    if isinstance(array, (list, tuple)) or not hasattr(array, "shape"):
        raise ValueError(
            f"`{name}` must be an array, received a {type(array).__name__}. Pad the rows to one "
            "length and make them a NumPy array, or give strings."
        )
    try:
        return tuple(array.shape)
    except ValueError:
        return None


def _shown(shape: tuple) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _agree(shape: tuple, like: tuple, rows_may_be_one: bool) -> bool:
    """Whether two shapes are one, as far as they are known."""
    if len(shape) != len(like):
        return False
    pairs = list(zip(shape, like, strict=True))
    if rows_may_be_one and shape[0] == 1:
        del pairs[0]
    return all(one == two for one, two in pairs if isinstance(one, int) and isinstance(two, int))


def _check_values(name: str, kind: str, array: np.ndarray, config: TransformerConfig) -> None:
    """ValueError for values out of range. One pass over the array."""
    if kind == "token_ids":
        return  # `Backbone.check_ids`
    if kind == "padding_mask":
        if array.dtype.kind == "b":
            return
        if array.dtype.kind not in "iuf" or not ((array == 0) | (array == 1)).all():
            held = shorten(np.unique(array)[:5].tolist()) if array.dtype.kind in "iuf" else "others"
            raise ValueError(
                f"`{name}` must be True, or 1, for a token and False, or 0, for padding; received "
                f"{array.dtype} values such as {held}."
            )
    elif kind == "segment_ids":
        most = max(config.segment_vocabulary_size, 1) - 1
        _check_range(name, array, 0, most, "the model has the segments")
    elif kind == "position_ids":
        # RoBERTa counts what is not padding from 0, and padding is one before that.
        least = 0 if config.position_padding_id is None else -1
        learned = config.position == "learned"
        most = config.max_sequence_length - 1 if learned else np.iinfo("int32").max
        _check_range(name, array, least, most, "the model has the positions")
    else:
        most = np.iinfo("int32").max
        _check_range(name, array, -1, most, "padding has -1, and the rows packed have numbers")


def _check_range(name: str, array: np.ndarray, least: int, most: int, known: str) -> None:
    if array.dtype.kind not in "iu":
        raise ValueError(f"`{name}` must hold integers, received {array.dtype}.")
    if array.size and not (int(array.min()) >= least and int(array.max()) <= most):
        raise ValueError(
            f"`{name}` holds numbers from {int(array.min())} to {int(array.max())}, but {known} "
            f"{least} to {most}."
        )
