"""Files on disk, with care: JSON of bounded size, paths that stay inside, atomic folders."""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from keras_transformer.reading import read_bytes

JSON_LIMIT = 4 * 2**20
# Lists and objects in one file. Python needs 30 times the size of a text such as "[[],[],[]]".
_PARTS_LIMIT = 100_000
_PRESET_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


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
    content = read_bytes(path, limit)
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
    """Writes a dict as indented JSON with a final newline."""
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


def path_inside(folder: str | os.PathLike, name: str) -> Path:
    """Returns the path of a file of a preset, which must stay inside the preset's folder.

    Links are followed before the check. A snapshot of the hub's cache is made of links to the
    `blobs` beside it, so these are inside too.

    Args:
        folder: The preset's folder.
        name: The file's name relative to it, with `/` between its parts.

    Returns:
        `folder / name`; the file need not exist.

    Raises:
        ValueError: If the name is absolute or climbs, or if a link leads out of the folder.

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
    return path


@contextlib.contextmanager
def atomic_directory(target: str | os.PathLike) -> Iterator[Path]:
    """Fills a folder so that it appears complete or not at all.

    Yields a scratch folder. When the block ends without an exception, what was written there
    moves to `target` by renaming; otherwise nothing of it stays. Into an existing preset folder
    the new files replace those of the same name (`config.json` last) and all others stay.

    Args:
        target: The folder to write: new, empty, or that of a preset.

    Yields:
        The path of the scratch folder.

    Raises:
        ValueError: If `target` is a file, or a folder with files that is not a preset.

    Example:
    ```python
    import pathlib, tempfile
    from keras_transformer.checkpoints.files import atomic_directory

    target = pathlib.Path(tempfile.mkdtemp(), "preset")
    with atomic_directory(target) as scratch:
        (scratch / "config.json").write_text("{}")
        assert not target.exists()
    assert (target / "config.json").exists()
    ```
    """
    target = Path(target).expanduser().resolve()
    if target.exists() and not target.is_dir():
        raise ValueError(f"Cannot save to {target}: it is a file. Name a folder.")
    exists = target.is_dir()
    if exists and any(target.iterdir()) and not _holds_preset(target):
        raise ValueError(
            f"Cannot save to {target}: it holds files and is not a preset. Name a new or an empty "
            "folder, or the folder of a preset that is to be replaced."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # Inside an existing folder, because that one may be a mount point or have a parent that is
    # not writable; beside a new one, so that a single rename shows all of it.
    name = f".{target.name}.{secrets.token_hex(4)}.saving"
    scratch = (target if exists else target.parent) / name
    scratch.mkdir()
    try:
        yield scratch
        if not exists:
            os.rename(scratch, target)
        else:
            # The config goes last: it is what makes the rest readable.
            for path in sorted(scratch.iterdir(), key=lambda each: each.name == "config.json"):
                os.replace(path, target / path.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _holds_preset(folder: Path) -> bool:
    """Whether the folder has a config of ours or of Hugging Face, or a tokenizer's files."""
    if any((folder / name).is_file() for name in _PRESET_FILES[1:]):
        return True
    try:
        config = read_json(folder / _PRESET_FILES[0])
    except (ValueError, FileNotFoundError):
        return False
    return config.get("format") == "keras_transformer" or "model_type" in config


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
