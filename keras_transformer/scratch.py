"""Scratch folders, and locks that end with their process.

Whatever is written goes through a *scratch folder* first: beside its target, with a name that
nobody can guess, made by `mkdir`, which follows no link, and closed to other users. Its process
holds a lock on it. The system takes the lock away when the process is gone, however it ended and
whatever its number was, so that a folder without one is a left-over, which the next writer removes.
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
_SECONDS_UNTIL_LEFT = 86_400  # where a file system has no locks: nothing was written for so long
_opened: set[int] = set()  # the file descriptors of locks, held or asked for


@contextlib.contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """A folder to write in, which is gone afterwards with all that was not moved out of it.

    Left-overs in `parent` of processes that are gone are removed first, those of living ones not.
    """
    sweep(parent)
    folder, lock = _new_scratch(parent, name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _close(lock)


def sweep(parent: Path) -> None:
    """Removes the scratch folders that killed processes left, whoever's they were."""
    with os.scandir(parent) as entries:
        found = [Path(entry) for entry in entries if is_scratch(entry.name)]
    for folder in found:
        try:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                continue
            lock = _open(folder)
        except OSError:  # gone meanwhile, or of a user who lets nobody in
            continue
        mine = _lock(lock)
        if mine or (mine is None and _is_old(folder)):
            shutil.rmtree(folder, ignore_errors=True)
        _close(lock)


def is_scratch(name: str) -> bool:
    """Whether a name is that of a scratch folder."""
    return _SCRATCH.fullmatch(name) is not None


class PathLock:
    """Says who may write a path for a while: one at a time, in all processes of the machine.

    A file `.<name>.lock` beside the path, whose folder is made if need be; it is gone when it is
    released. One that a killed process left is taken over. Where there are no locks (Windows, some
    network file systems) everybody gets it.
    """

    def __init__(self, path: str | os.PathLike):
        path = Path(path)
        self.file = path.with_name(f".{path.name}.lock")
        self._opened: int | None = None

    @property
    def held(self) -> bool:
        """Whether it was acquired here and not released since."""
        return self._opened in _opened

    def acquire(self) -> bool:
        """Whether it is held now: False if somebody else has it. It is not waited for."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        while True:
            opened = _open(self.file, os.O_RDWR | os.O_CREAT)
            if _lock(opened) is False:
                _close(opened)
                return False
            if opened is None or _is_same(opened, self.file):
                self._opened = opened
                return True
            _close(opened)  # of one who released it just now, and removed the file

    def release(self) -> None:
        """Lets others have it. Does nothing if it is not held."""
        if self.held:
            with contextlib.suppress(OSError):
                self.file.unlink()
            _close(self._opened)
        self._opened = None


@contextlib.contextmanager
def one_at_a_time(folder: Path, seconds: float = 60.0) -> Iterator[None]:
    """Waits until nobody else is in this block with the same folder."""
    opened = _open(folder)
    try:
        deadline = time.monotonic() + seconds
        while _lock(opened) is False:
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, f"Another process is saving in {folder} all the time.")
            time.sleep(0.01)
        yield
    finally:
        _close(opened)


def open_to_others(scratch: Path) -> None:
    """Gives a scratch folder, which is its owner's alone, the mode of any new folder."""
    probe = scratch / ".mode"
    probe.mkdir()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.rmdir()
    os.chmod(scratch, mode)


def _new_scratch(parent: Path, name: str) -> tuple[Path, int | None]:
    """A scratch folder and the lock on it."""
    while True:
        folder = parent / f".{name[:40]}.{secrets.token_hex(8)}.saving"
        os.mkdir(folder, 0o700)
        # Until it has the lock, another process that sweeps may take it for a left-over.
        try:
            lock = _open(folder)
        except FileNotFoundError:
            continue
        if lock is None or (_lock(lock) is not False and _is_same(lock, folder)):
            return folder, lock
        _close(lock)


def _open(path: Path, flags: int = os.O_RDONLY) -> int | None:
    """Opens what is to be locked, None where there are no locks."""
    if fcntl is None:
        return None
    opened = os.open(path, flags | os.O_NOFOLLOW, 0o666)
    _opened.add(opened)
    return opened


def _lock(opened: int | None) -> bool | None:
    """Locks what is opened: False if somebody else has the lock, None where there are none."""
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
    if opened in _opened:  # else a forked process has closed it already
        _opened.discard(opened)
        os.close(opened)


def _is_same(opened: int, path: Path) -> bool:
    """Whether what is opened still has this path."""
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
    """In a forked process: the locks are its parent's, and shall end with that one."""
    while _opened:
        os.close(_opened.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
