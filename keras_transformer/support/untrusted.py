"""Reading of untrusted files: JSON of bounded size, and paths that stay inside a folder."""

import json
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from keras_transformer.support.checking import load_json, shorten
from keras_transformer.support.files import has_file, read_file, write_text

JSON_LIMIT = 4 * 2**20
# Maximum number of lists and objects in one file: in memory, "[[],[],[]]" takes 30 times its size.
_PARTS_LIMIT = 100_000
_JSON_TYPES = {
    dict: "a JSON object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    type(None): "null",
}


def read_json(path: str | os.PathLike, limit: int = JSON_LIMIT, kind: type = dict) -> Any:
    """Read a JSON object, or a list with `kind=list`, from an untrusted file."""
    path = Path(path)
    content = read_file(path, limit)
    if content.count(b"[") + content.count(b"{") > _PARTS_LIMIT:
        raise ValueError(f"{path} has more than {_PARTS_LIMIT:,} lists and objects.")
    try:
        value = parse_json(content)
    except RecursionError:
        raise ValueError(f"{path} is not usable: its JSON nests too deeply.") from None
    except ValueError as error:  # syntax, encoding, and errors of the two hooks
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, kind):
        wanted = _JSON_TYPES[kind]
        given = _JSON_TYPES.get(type(value), "a number")
        raise ValueError(f"{path} must hold {wanted}, not {given}.")
    return value


def parse_json(content: bytes, parse_float: Callable[[str], float] | None = None) -> Any:
    """Parse JSON in UTF-8, without duplicate keys in an object and without NaN.

    Raises ValueError if it is not valid, also for an integer of more than 4,300 digits, and
    RecursionError if it nests too deeply.
    """
    return load_json(
        content.decode("utf-8"),
        object_pairs_hook=_unique_keys,
        parse_constant=_no_constant,
        parse_float=parse_float,
    )


def write_json(path: str | os.PathLike, values: dict) -> None:
    """Write a dict as indented JSON with a final newline, whole or not at all."""
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def path_inside(folder: str | os.PathLike, name: str, is_folder: bool = False) -> Path:
    """Return the path of a preset's file, which must stay inside the preset's folder."""
    parts = PurePosixPath(name).parts if isinstance(name, str) else ()
    if (
        not parts
        or ".." in parts
        or any(bad in name for bad in (":", "\\", "\0"))
        or name[0] == "/"
    ):
        raise ValueError(
            f"The preset {folder} names the file {name!r}. A preset's files must be inside its "
            "folder: the name must be relative, without '..'."
        )
    path = Path(folder, *parts)
    try:
        root, target = Path(folder).resolve(), path.resolve()
        path.is_file()  # unlike `resolve`, fails on a name that no file can have
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, invalid text
        raise ValueError(f"The preset {folder} names the file {name!r}: {error}.") from None
    allowed = [root]
    if root.parent.name == "snapshots" and root.parent.parent.name.startswith("models--"):
        # Not resolved again: if `blobs` itself were a link, its target would not be inside.
        allowed.append(root.parent.parent / "blobs")
    if not any(target.is_relative_to(each) for each in allowed):
        raise ValueError(
            f"{path} is a link to {target}, outside the preset's folder. Copy the file itself into "
            "the folder."
        )
    if not is_folder:
        has_file(path)
    elif os.path.lexists(path) and not path.is_dir():
        raise ValueError(f"{path} must be a folder.")
    return path


def _unique_keys(pairs: list[tuple[str, object]]) -> dict:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {shorten(repeated)} appears twice in one object")
    return values


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")
