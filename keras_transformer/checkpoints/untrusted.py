"""Files that are not trusted: JSON of bounded size, paths that stay inside."""

import json
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from keras_transformer.checking import load_json, shorten
from keras_transformer.files import has_file, read_file, write_text

JSON_LIMIT = 4 * 2**20
# Lists and objects in one file. Python needs 30 times the size of a text such as "[[],[],[]]".
_PARTS_LIMIT = 100_000
_JSON_TYPES = {
    dict: "a JSON object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    type(None): "null",
}


def read_json(path: str | os.PathLike, limit: int = JSON_LIMIT, kind: type = dict) -> Any:
    """Reads a JSON object, or with `kind` a list, from a file that is not trusted."""
    path = Path(path)
    content = read_file(path, limit)
    if content.count(b"[") + content.count(b"{") > _PARTS_LIMIT:
        raise ValueError(f"{path} has more than {_PARTS_LIMIT:,} lists and objects.")
    try:
        value = parse_json(content)
    except RecursionError:
        raise ValueError(f"{path} is not usable: its JSON nests too deeply.") from None
    except ValueError as error:  # syntax, encoding, and what the two hooks raise
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, kind):
        wanted = _JSON_TYPES[kind]
        given = _JSON_TYPES.get(type(value), "a number")
        raise ValueError(f"{path} must hold {wanted}, not {given}.")
    return value


def parse_json(content: bytes, parse_float: Callable[[str], float] | None = None) -> Any:
    """The value that JSON in UTF-8 is, which has each key of an object once, and no NaN.

    Raises ValueError if it is not valid, as by an integer of more than 4,300 digits, and
    RecursionError if it nests too deeply.
    """
    return load_json(
        content.decode("utf-8"),
        object_pairs_hook=_unique_keys,
        parse_constant=_no_constant,
        parse_float=parse_float,
    )


def write_json(path: str | os.PathLike, values: dict) -> None:
    """Writes a dict as indented JSON with a final newline, whole or not at all."""
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def path_inside(folder: str | os.PathLike, name: str, is_folder: bool = False) -> Path:
    """Returns the path of a file of a preset, which must stay inside the preset's folder."""
    parts = PurePosixPath(name).parts if isinstance(name, str) else ()
    if (
        not parts
        or ".." in parts
        or any(bad in name for bad in (":", "\\", "\0"))
        or name[0] == "/"
    ):
        raise ValueError(
            f"The preset {folder} names the file {name!r}. A preset's files are inside its folder: "
            "the name must be relative, without '..'."
        )
    path = Path(folder, *parts)
    try:
        root, target = Path(folder).resolve(), path.resolve()
        path.is_file()  # fails, other than `resolve`, on a name that no file can have
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, no text
        raise ValueError(f"The preset {folder} names the file {name!r}: {error}.") from None
    allowed = [root]
    if root.parent.name == "snapshots" and root.parent.parent.name.startswith("models--"):
        # Not resolved again: were `blobs` itself a link, what is behind it would not be inside.
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
