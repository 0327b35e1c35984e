"""Files that appear whole, under names that nobody can guess, and locks that end with a process."""

import os
import re
import resource
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.support import scratch
from keras_transformer.support.files import (
    SafetensorsFile,
    atomic_file,
    has_file,
    read_file,
    write_safetensors,
    write_text,
)
from keras_transformer.support.scratch import PathLock, one_at_a_time, scratch_folder, sweep

pytestmark = [
    pytest.mark.backend_independent,
    pytest.mark.skipif(os.name != "posix", reason="links, pipes and locks of POSIX"),
]
ROOT = Path(__file__).parents[1]


def make(kind, path):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(path.parent / "nowhere")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path may have a hundred characters
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path.name)
        finally:
            os.chdir(here)


KINDS = {
    "pipe": "is a pipe",
    "folder": "is a folder",
    "link": "is a link to .*nowhere, which does not exist",
    "device": "is a device",
    "socket": "is a socket",
}


@pytest.mark.parametrize("kind, message", KINDS.items())
def test_what_is_no_file_is_named(tmp_path, kind, message):
    make(kind, tmp_path / "x")
    for read in (has_file, lambda path: read_file(path, 10), SafetensorsFile):
        with pytest.raises(ValueError, match=f"{tmp_path}/x {message}"):
            read(tmp_path / "x")


def test_a_file_of_bounded_size(tmp_path):
    write_text(tmp_path / "x", "12345")
    assert read_file(tmp_path / "x", 5) == b"12345"
    with pytest.raises(ValueError, match="has 5 bytes; a file of this kind may have 4"):
        read_file(tmp_path / "x", 4)
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read_file(tmp_path / "y", 4)


def test_no_name_can_be_planted(tmp_path, monkeypatch):
    """Whatever name a link has that lies there: what it leads to is not written to."""
    names = iter(["0" * 16, "1" * 16])
    monkeypatch.setattr(scratch.secrets, "token_hex", lambda size: next(names))
    (tmp_path / "victim").mkdir()
    (tmp_path / ".notes.txt.0000000000000000.saving").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match=r"notes.txt could not be written: File exists"):
        write_text(tmp_path / "notes.txt", "mine")
    write_text(tmp_path / "notes.txt", "mine")
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not os.listdir(tmp_path / "victim")


def test_a_link_in_the_place_of_the_file_is_replaced(tmp_path):
    (tmp_path / "victim").write_text("as it was")
    (tmp_path / "x.json").symlink_to(tmp_path / "victim")
    write_text(tmp_path / "x.json", "new")
    assert (tmp_path / "victim").read_text() == "as it was"
    assert not (tmp_path / "x.json").is_symlink()


def test_others_cannot_enter_what_is_written(tmp_path):
    with atomic_file(tmp_path / "x") as path:
        assert path.parent.stat().st_mode & 0o777 == 0o700
        path.write_text("x")
    usual = tmp_path / "usual"
    usual.write_text("")
    assert (tmp_path / "x").stat().st_mode == usual.stat().st_mode
    (tmp_path / "x").chmod(0o604)
    write_safetensors(tmp_path / "x", {"a": np.ones(1)})
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o604


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError("x")])
def test_a_failure_leaves_the_file_before(tmp_path, error):
    write_text(tmp_path / "x", "old")
    with pytest.raises((KeyboardInterrupt, ValueError)), atomic_file(tmp_path / "x") as path:
        path.write_text("half")
        raise error
    assert (tmp_path / "x").read_text() == "old" and os.listdir(tmp_path) == ["x"]


def test_errors_name_the_path_of_the_user(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="folder cannot be written: it is a folder"):
        write_text(tmp_path / "folder", "x")
    write_text(tmp_path / "file", "x")
    with pytest.raises(OSError, match="file/x could not be written"):
        write_text(tmp_path / "file" / "x", "x")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    message = f"{re.escape(str(tmp_path))}/(large|file) could not be written: File too large.*Free"
    try:
        with pytest.raises(OSError, match=message) as info:
            write_safetensors(tmp_path / "large", {"a": np.zeros(10_000)})
        assert info.value.errno == 27
        with pytest.raises(OSError, match=message):
            write_text(tmp_path / "file", "y" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "x"


def test_a_foreign_safetensors_file(tmp_path):
    (tmp_path / "cut").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(ValueError, match="cut is not a usable safetensors file"):
        SafetensorsFile(tmp_path / "cut")
    header = b'{"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}'
    (tmp_path / "odd").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(ValueError, match="odd is not a usable safetensors file"):
        dict(SafetensorsFile(tmp_path / "odd"))


HOLD = """
import os, sys, time
from pathlib import Path
from keras_transformer.support.scratch import PathLock, scratch_folder

with scratch_folder(Path(sys.argv[1]), "x"):
    assert PathLock(Path(sys.argv[1], "state")).acquire()
    print("there", flush=True)
    time.sleep(600)
"""


def test_left_overs_go_when_their_process_is_gone_and_not_before(forks, tmp_path, tmp_path_factory):
    errors = tmp_path_factory.mktemp("errors") / "stderr.txt"
    holder = forks.start("-c", HOLD, tmp_path, cwd=tmp_path, stderr=errors)
    assert holder.stdout.readline() == "there\n"
    found = sorted(os.listdir(tmp_path))
    assert len(found) == 2 and found[0] == ".state.lock"
    sweep(tmp_path)
    lock = PathLock(tmp_path / "state")
    assert sorted(os.listdir(tmp_path)) == found and not lock.acquire()
    holder.kill()
    holder.wait()
    sweep(tmp_path)
    assert os.listdir(tmp_path) == [".state.lock"] and lock.acquire()
    lock.release()
    assert not os.listdir(tmp_path)


def test_without_locks_age_decides(tmp_path, monkeypatch):
    left = tmp_path / ".x.0123456789abcdef.saving"
    left.mkdir()
    (left / "part").write_text("")
    monkeypatch.setattr(scratch, "_lock", lambda opened: None)
    sweep(tmp_path)
    assert left.exists()
    for path in (left, left / "part"):
        os.utime(path, (0, time.time() - 2 * 86_400))
    sweep(tmp_path)
    assert not left.exists()


def test_only_scratch_folders_are_swept(tmp_path):
    others = [".x.saving", ".x.0123.saving", "x.0123456789abcdef.saving"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".y.0123456789abcdef.saving").write_text("a file")
    with scratch_folder(tmp_path, "a" * 300) as mine:
        sweep(tmp_path)
        assert mine.exists()
    assert sorted(os.listdir(tmp_path)) == sorted([*others, ".y.0123456789abcdef.saving"])


def test_waiting_ends(tmp_path):
    waiting = pytest.raises(OSError, match="keeps saving in")
    with one_at_a_time(tmp_path), waiting, one_at_a_time(tmp_path, seconds=0.05):
        pass


FORK = """
import os, sys, time
from keras_transformer.support.scratch import PathLock

lock = PathLock(sys.argv[1])
assert lock.acquire()
reading, writing = os.pipe()
child = os.fork()
if not child:
    os.write(writing, b"y" if lock.held else b"n")
    time.sleep(600)
assert os.read(reading, 1) == b"n"
lock.release()
free = PathLock(sys.argv[1]).acquire()  # although the other process lives
os.kill(child, 9)
assert free
"""


def test_a_forked_process_keeps_no_lock(forks, tmp_path):
    done = forks.run("-c", FORK, tmp_path / "state")
    assert done.returncode == 0, done.stderr
