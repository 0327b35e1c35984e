"""The folder of an export, which is filled in a scratch folder and then moved to its place."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_transformer.support.files import (
    keep_permissions,
    naming,
    read_json,
    replace_folder,
    synchronize,
    write_json,
)
from keras_transformer.support.scratch import one_at_a_time, open_to_others, scratch_folder

# File with the description of an export and the list of its `files`: a later export may replace a
# folder that has only these.
EXPORT_FILE = "export.json"
_MADE_BY = "keras_transformer"


def check_place(directory: str | os.PathLike) -> Path:
    """Return the folder as a path. Raises ValueError if it is a file or has files of others."""
    target = Path(directory).expanduser().resolve()
    if not os.path.lexists(target):
        return target
    if not target.is_dir():
        raise ValueError(f"Cannot export to {target}: it is a file. Name a folder.")
    others = sorted(set(_files(target)) - set(_exported(target)))
    if others:
        raise ValueError(
            f"Cannot export to {target}: it holds files that no export wrote, such as "
            f"{others[0]!r}. Name a new or empty folder, or one with an earlier export."
        )
    return target


@contextlib.contextmanager
def exported_folder(target: Path, values: Mapping[str, Any]) -> Iterator[Path]:
    """Yield a scratch folder to fill; if no error occurs, it then replaces `target` at once.

    Args:
        target: path, the result of `check_place`.
        values: dict of values for `export.json`, without `files`.
    """
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(target.parent, target.name) as scratch:
            yield scratch
            files = [*_files(scratch), EXPORT_FILE]
            said = {"made_by": _MADE_BY, **values, "files": sorted(files)}
            write_json(scratch / EXPORT_FILE, said)
            for name in files:
                synchronize(scratch / name)
            with one_at_a_time(target.parent):
                check_place(target)
                _publish(scratch, target)


def _publish(scratch: Path, target: Path) -> None:
    open_to_others(scratch)
    synchronize(scratch)
    if os.path.lexists(target):
        keep_permissions(target, scratch)
        with scratch_folder(target.parent, "replaced") as before:
            replace_folder(scratch, target, before / "before")
    else:
        os.rename(scratch, target)
    synchronize(target.parent)


def _exported(folder: Path) -> list[str]:
    """Return the names of the files of an earlier export; an empty list if there is no export."""
    if not (folder / EXPORT_FILE).is_file():
        return []
    said = read_json(folder / EXPORT_FILE)
    files = said.get("files")
    return files if said.get("made_by") == _MADE_BY and isinstance(files, list) else []


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()]
