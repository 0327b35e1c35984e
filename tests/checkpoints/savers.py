"""Savers that are killed at every instant, and a reader beside savers: run as a program.

`python -m tests.checkpoints.savers kill FOLDER CASE` forks a saver for each point at which it could
be killed: before each call of the system that Python reports to audit hooks.
`python -m tests.checkpoints.savers race FOLDER CASE` reads while two savers save.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from keras_transformer.checkpoints import publishing
from keras_transformer.checkpoints.presets import read_preset

# What differs between two presets: names and contents, of all libraries' files.
OLD = {
    "config.json": {"model_type": "bert", "version": 1},
    "model.safetensors.index.json": {"version": 1},
    "model-00001-of-00001.safetensors": {"version": 1},
    "model.weights.h5": {"version": 1},
    "task.json": {"version": 1},
    "tokenizer.json": {"version": 1},
    "chat_template.jinja": {"version": 1},
    "assets/tokenizer/vocabulary.txt": {"version": 1},
    "1_Pooling/config.json": {"version": 1},
}
NEW = {
    "config.json": {"format": "keras_transformer", "version": 2},
    "model.safetensors": {"version": 2},
    "README.md": {"version": 2, "mark": publishing.CARD_MARK},
    "1_Pooling/config.json": {"version": 2},
}
OTHERS = {"notes.txt": {"mine": 1}, "assets/picture.svg": {"mine": 2}, "runs/log/1.txt": {"mine": 3}}
CASES = ("new", "empty", "preset", "no exchange", "others", "current folder")


def write(folder, files):
    for name, value in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))


def files_in(folder):
    """The content of each file, with those that no reader looks at left out."""
    folder = Path(folder)
    return {
        str(path.relative_to(folder)): json.loads(path.read_text())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.endswith(".saving") for part in path.parts)
    }


def prepare(folder, case):
    """A folder as it is before a save, and what it holds of the preset and of others."""
    folder.parent.mkdir(parents=True)
    before, others = {}, {}
    if case != "new":
        folder.mkdir()
    if case not in ("new", "empty"):
        before = OLD
    if case == "others":
        others = OTHERS
    write(folder, {**before, **others})
    if case == "no exchange":
        publishing._exchanging = lambda: None
    if case == "current folder":
        os.chdir(folder)
    return before, others


def save(folder, files):
    with publishing.atomic_directory(folder) as scratch:
        write(scratch, files)


def killed_at(number, action):
    """Runs an action in a forked process that is killed before its call `number`.

    Returns whether it was killed, and not done before.
    """
    process = os.fork()
    if not process:
        calls = iter(range(10**9))
        watched = ("open", "os.", "shutil.", "fcntl.")

        def hook(event, arguments):
            if event.startswith(watched) and next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        action()
        os._exit(0)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFSIGNALED(status)


def check_kill(folder, case, number):
    """Kills one save and looks at what is there then, and after the next save."""
    before, others = prepare(folder, case)
    killed = killed_at(number, lambda: save(folder, NEW))
    if folder.exists():
        found = files_in(publishing.current_folder(folder))
        found = {name: value for name, value in found.items() if name not in others}
        assert found in (before, NEW), (number, found)
        assert killed or found == NEW, found
        inside = files_in(folder)
        assert others.items() <= inside.items(), (number, inside)
        if case == "preset":  # also for a reader that knows nothing of this library
            assert inside in (OLD, NEW), (number, inside)
    else:
        assert killed and case == "new"
    save(folder, {**NEW, "config.json": {"format": "keras_transformer", "version": 3}})
    inside = files_in(folder)
    assert inside.pop("config.json")["version"] == 3
    expected = {**{name: value for name, value in NEW.items() if name != "config.json"}, **others}
    assert inside == expected, (number, inside)
    for place in (folder.parent, folder):
        left = [name for name in os.listdir(place) if name.startswith(".")]
        assert not left, (number, place, left)
    return killed


def kill(root, case):
    number = 0
    while check_kill(root / str(number) / "preset", case, number):
        os.chdir(root)
        shutil.rmtree(root / str(number))
        number += 1
    print(number)


def race(root, case, seconds=2.0):
    """Reads as often as it can while two savers save: prints the loads and the saves."""
    folder = root / "race" / "preset"
    prepare(folder, case)
    names = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
    start, savers = time.monotonic(), []
    for saver in range(2):
        process = os.fork()
        if process:
            savers.append(process)
            continue
        count = 0
        while time.monotonic() - start < seconds:
            version = 10 * count + saver
            with publishing.atomic_directory(folder) as scratch:
                for name in names:
                    write(scratch, {name: {"format": "keras_transformer", "format_version": 1,
                                           "version": version}})
            count += 1
            time.sleep(0.02)
        os._exit(0 if count > 3 else 1)
    loads, saves = 0, set()

    def read(source):
        found = []
        for name in names:
            found.append(json.loads(source.file(name).read_text())["version"])
            time.sleep(0.001)
        return found

    while len(savers) > 0:
        if (folder / "tokenizer_config.json").exists() or publishing.current_folder(folder) != folder:
            versions = set(read_preset(folder, read))
            assert len(versions) == 1, versions
            saves |= versions
            loads += 1
        done, status = os.waitpid(-1, os.WNOHANG)
        if done:
            assert status == 0, status
            savers.remove(done)
    assert [name for name in os.listdir(folder.parent) if name != "preset"] == []
    print(loads, len(saves))


if __name__ == "__main__":
    {"kill": kill, "race": race}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
