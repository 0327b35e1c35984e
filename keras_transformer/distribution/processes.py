"""The processes of a run: how many there are, and values that all of them have to share."""

import importlib.metadata
import json
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.distribution.engines import ENGINE
from keras_transformer.support.checking import describe, shorten

_SHOWN = 8  # differences that a message lists
_LONGEST = 120  # characters of a value in a message
_BLOCK = 2**22  # numbers of an array that are exchanged at a time: on JAX by way of the devices


def process_count() -> int:
    """Return the number of processes that train together: 1 unless they were connected."""
    return ENGINE.process_count()


def process_index() -> int:
    """Return the number of this process, from 0."""
    return ENGINE.process_index()


def gather_values(values: Any) -> list:
    """Return the JSON values of all processes, in their order. All processes call it together."""
    content = np.frombuffer(json.dumps(values).encode(), "uint8")
    if process_count() == 1:
        return [json.loads(content.tobytes())]
    sizes = [int(size[0]) for size in ENGINE.gather(np.array([content.size], "int32"))]
    padded = np.zeros(max(sizes), "uint8")
    padded[: content.size] = content
    rows = ENGINE.gather(padded)
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def gather_arrays(array: np.ndarray) -> list[np.ndarray]:
    """Return the int32 arrays `(numbers,)` of all processes, which may differ in length.

    All processes call it together. Only a block of each is on its way at a time.
    """
    array = np.ascontiguousarray(array, "int32")
    sizes = gather_values(len(array))
    parts: list[list[np.ndarray]] = [[] for _ in sizes]
    for start in range(0, max(sizes), _BLOCK):
        # Few lengths, since JAX compiles each.
        length = min(_BLOCK, 1 << (max(sizes) - start - 1).bit_length())
        block = np.zeros(length, "int32")
        mine = array[start : start + length]
        block[: len(mine)] = mine
        for part, other, size in zip(parts, ENGINE.gather(block), sizes, strict=True):
            part.append(other[: max(0, size - start)])
    return [np.concatenate([array[:0], *part]) for part in parts]


def check_processes(**values: Any) -> None:
    """Raise ValueError in every process unless all of them have the same values.

    Call it in all processes, before work that they do together: what differs, such as the number
    of batches, would otherwise make some processes wait for the others forever. The number of
    processes and the versions of Python's packages that compute are compared too.

    Args:
        **values: JSON values, or dicts of them, by name.

    Raises:
        ValueError: if a value differs between processes; the message names the processes, their
            hosts, and each value. If a value is not a JSON value.

    Example:
    ```python
    import keras_transformer as kt

    kt.distribution.check_processes(batches=10, data={"seed": 0})
    ```
    """
    mine = {"versions": _versions(), **values}
    try:
        json.dumps(mine)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Values to compare must be JSON values, received {describe(values)}."
        ) from (error)
    found = gather_values({"host": socket.gethostname(), "values": _flat(mine)})
    every = [each["values"] for each in found]
    names = list(dict.fromkeys(name for each in every for name in each))
    lines = []
    for name in names:
        kinds: dict[str, list[int]] = {}
        for number, each in enumerate(every):
            kinds.setdefault(json.dumps(each.get(name, "none")), []).append(number)
        if len(kinds) > 1:
            parts = (
                f"{shorten(json.loads(value), _LONGEST)} in {_named(numbers, found)}"
                for value, numbers in kinds.items()
            )
            lines.append(f"{name}: " + ", ".join(parts))
    if lines:
        more = f"\n  and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        raise ValueError(
            f"The {len(found)} processes of this run do not agree:\n  "
            + "\n  ".join(lines[:_SHOWN])
            + f"{more}\nStart all of them with the same program, packages and data."
        )


def _named(numbers: list[int], found: list[dict]) -> str:
    shown = ", ".join(f"{number} ({found[number]['host']})" for number in numbers[:4])
    more = f" and {len(numbers) - 4} more" if len(numbers) > 4 else ""
    return f"process{'' if len(numbers) == 1 else 'es'} {shown}{more}"


def _versions() -> dict[str, str]:
    """Return the versions of the packages on which numbers and files depend."""
    found = {"backend": ENGINE.name}
    for name in ("keras", "keras_transformer", "numpy", *ENGINE.packages):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def _flat(values: Mapping, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
