"""Scratch folders to write files in before they are moved to their place, and file locks.

A *scratch folder* lies beside its target, has a name that cannot be guessed, is made by `mkdir`,
which follows no link, and is closed to other users. The process that writes holds a lock on it,
which the system releases however the process ends. So a scratch folder without a lock is a
left-over, and the next writer removes it.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_SCRATCH = re.compile(r"\..*\.[0-9a-f]{16}\.saving", re.DOTALL)
_SECONDS_UNTIL_LEFT = 86_400  # age of a left-over on a file system without locks
_opened: set[int] = set()  # file descriptors of locks, held or waiting


@contextlib.contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Create a folder to write in, and remove it afterwards with everything left in it.

    Left-overs of dead processes in `parent` are removed first; folders of living ones are kept.
    """
    sweep(parent)
    folder, lock = _new_scratch(parent, name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _close(lock)


def sweep(parent: Path) -> None:
    """Remove the scratch folders that killed processes left, whoever owned them."""
    with os.scandir(parent) as entries:
        found = [Path(entry) for entry in entries if is_scratch(entry.name)]
    for folder in found:
        try:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                continue
            lock = _open(folder)
        except OSError:  # already removed, or not accessible to this user
            continue
        mine = _lock(lock)
        if mine or (mine is None and _is_old(folder)):
            shutil.rmtree(folder, ignore_errors=True)
        _close(lock)


def is_scratch(name: str) -> bool:
    """Return whether a file name has the form of a scratch folder's name."""
    return _SCRATCH.fullmatch(name) is not None


class PathLock:
    """Lock on a path, held by at most one writer among all processes of the machine.

    The lock is a file `.<name>.lock` beside the path, removed on release; the folder is made if
    needed. The lock of a killed process counts as free. Where the system does not support locks
    (Windows, some network file systems), every process acquires it.
    """

    def __init__(self, path: str | os.PathLike):
        path = Path(path)
        self.file = path.with_name(f".{path.name}.lock")
        self._opened: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object acquired the lock and has not released it."""
        return self._opened in _opened

    def acquire(self) -> bool:
        """Acquire the lock if it is free, without waiting. Return whether this object holds it."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        while True:
            opened = _open(self.file, os.O_RDWR | os.O_CREAT)
            if _lock(opened) is False:
                _close(opened)
                return False
            if opened is None or _is_same(opened, self.file):
                self._opened = opened
                return True
            _close(opened)  # of a holder that just released it and removed the file

    def release(self) -> None:
        """Release the lock. Do nothing if it is not held."""
        if self.held:
            with contextlib.suppress(OSError):
                self.file.unlink()
            _close(self._opened)
        self._opened = None


@contextlib.contextmanager
def one_at_a_time(folder: Path, seconds: float = 60.0) -> Iterator[None]:
    """Run a block in one process at a time, among those that name the same folder.

    Raises OSError if another process is still in its block after `seconds`.
    """
    opened = _open(folder)
    try:
        deadline = time.monotonic() + seconds
        while _lock(opened) is False:
            if time.monotonic() > deadline:
                raise OSError(
                    errno.EBUSY, f"Another process keeps saving in {folder}. Try again later."
                )
            time.sleep(0.01)
        yield
    finally:
        _close(opened)


def open_to_others(scratch: Path) -> None:
    """Give a scratch folder, closed to other users so far, the default mode of new folders."""
    probe = scratch / ".mode"
    probe.mkdir()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.rmdir()
    os.chmod(scratch, mode)


def _new_scratch(parent: Path, name: str) -> tuple[Path, int | None]:
    """Return a new scratch folder and the lock on it."""
    while True:
        folder = parent / f".{name[:40]}.{secrets.token_hex(8)}.saving"
        os.mkdir(folder, 0o700)
        # Until it is locked, another process that sweeps may take it for a left-over.
        try:
            lock = _open(folder)
        except FileNotFoundError:
            continue
        if lock is None or (_lock(lock) is not False and _is_same(lock, folder)):
            return folder, lock
        _close(lock)


def _open(path: Path, flags: int = os.O_RDONLY) -> int | None:
    """Open a path to lock it. Return its file descriptor, or None if locks are not supported."""
    if fcntl is None:
        return None
    opened = os.open(path, flags | os.O_NOFOLLOW, 0o666)
    _opened.add(opened)
    return opened


def _lock(opened: int | None) -> bool | None:
    """Lock an open file: False if another process has the lock, None if locks are unsupported."""
    if opened is None:
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _close(opened: int | None) -> None:
    if opened in _opened:  # otherwise a forked process has closed it already
        _opened.discard(opened)
        os.close(opened)


def _is_same(opened: int, path: Path) -> bool:
    """Return whether an open file is still at this path."""
    try:
        return os.path.samestat(os.fstat(opened), os.lstat(path))
    except FileNotFoundError:
        return False


def _is_old(folder: Path) -> bool:
    try:
        times = [path.stat().st_mtime for path in (folder, *folder.iterdir())]
    except OSError:
        return False
    return time.time() - max(times) > _SECONDS_UNTIL_LEFT


def _forget_locks() -> None:
    """Forget locks in a forked process: they belong to its parent and end with it."""
    while _opened:
        os.close(_opened.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
