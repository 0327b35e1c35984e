"""Files that are not trusted: JSON of bounded size, paths that stay inside."""

import json
import os
from pathlib import Path, PurePosixPath

from keras_transformer.files import has_file, read_file, write_text

JSON_LIMIT = 4 * 2**20
# Lists and objects in one file. Python needs 30 times the size of a text such as "[[],[],[]]".
_PARTS_LIMIT = 100_000


def read_json(path: str | os.PathLike, limit: int = JSON_LIMIT) -> dict:
    """Reads a JSON object from a file that is not trusted.

    Args:
        path: The file.
        limit: The largest size in bytes that is read.

    Returns:
        The object as a dict.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is too large, is not strict JSON in UTF-8, nests too deeply, has too
            many parts, repeats a key in one object, or does not hold an object. The message names
            the file.

    Example:
    ```python
    import pathlib, tempfile
    from keras_transformer.checkpoints.files import read_json

    path = pathlib.Path(tempfile.mkdtemp(), "config.json")
    path.write_text('{"hidden_dim": 8}')
    assert read_json(path) == {"hidden_dim": 8}
    ```
    """
    path = Path(path)
    content = read_file(path, limit)
    if content.count(b"[") + content.count(b"{") > _PARTS_LIMIT:
        raise ValueError(f"{path} has more than {_PARTS_LIMIT:,} lists and objects.")
    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_no_constant,
        )
    except RecursionError:
        raise ValueError(f"{path} is not usable: its JSON nests too deeply.") from None
    except ValueError as error:  # syntax, encoding, and what the two hooks raise
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, not {_json_type(value)}.")
    return value


def write_json(path: str | os.PathLike, values: dict) -> None:
    """Writes a dict as indented JSON with a final newline, whole or not at all."""
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def path_inside(folder: str | os.PathLike, name: str, is_folder: bool = False) -> Path:
    """Returns the path of a file of a preset, which must stay inside the preset's folder.

    What is there is a file that can be read, see `keras_transformer.files.has_file`.

    Links are followed before the check. A snapshot of the hub's cache is made of links to the
    `blobs` beside it, so these are inside too.

    Args:
        folder: The preset's folder.
        name: The file's name relative to it, with `/` between its parts.
        is_folder: Whether it is a folder of the preset, and not a file.

    Returns:
        `folder / name`; the file need not exist.

    Raises:
        ValueError: If the name is absolute or climbs, if a link leads out of the folder or to
            nothing, or if it is something else than a file, such as a pipe.
        PermissionError: If it may not be read.

    Example:
    ```python
    import tempfile
    from keras_transformer.checkpoints.files import path_inside

    folder = tempfile.mkdtemp()
    assert path_inside(folder, "config.json").name == "config.json"
    ```
    """
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
        raise ValueError(f"the key {repeated!r} appears twice in one object")
    return values


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _json_type(value: object) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
