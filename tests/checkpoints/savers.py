"""Savers that are killed at every instant, and savers beside a reader: run as a program.

`python tests/checkpoints/savers.py kill FOLDER CASE...` forks a saver for each point at which it
could be killed: before each call of the system that Python reports to audit hooks.
`python tests/checkpoints/savers.py save FOLDER CASE SECONDS NUMBER` saves again and again.

It imports the file layer alone: a process with the threads of a backend cannot be forked safely.
"""

import json
import os
import shutil
import signal
import sys
import time
import types
from pathlib import Path

if __name__ == "__main__":
    for package in ("", ".checkpoints", ".tokenizers"):
        bare = types.ModuleType("keras_transformer" + package)
        root = Path(__file__).parents[2] / "keras_transformer"
        bare.__path__ = [str(root / package.removeprefix("."))]
        sys.modules[bare.__name__] = bare

from keras_transformer.checkpoints.presets import publishing

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
OTHERS = {
    "notes.txt": {"mine": 1},
    "assets/picture.svg": {"mine": 2},
    "runs/log/1.txt": {"mine": 3},
}
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
        publishing.exchanging = lambda: None
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


def kill(root, *cases):
    for case in cases:
        number = 0
        while check_kill(root / case / str(number) / "preset", case, number):
            os.chdir(root)
            shutil.rmtree(root / case)
            number += 1
        print(number, flush=True)


RACE_NAMES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def save_again_and_again(folder, case, seconds, number):
    """Saves presets of files that all say which save they are of."""
    if case == "no exchange":
        publishing.exchanging = lambda: None
    start, count = time.monotonic(), 0
    while time.monotonic() - start < float(seconds) or count < 5:
        values = {"format": "keras_transformer", "format_version": 1}
        values["version"] = 10 * count + int(number)
        save(folder, dict.fromkeys(RACE_NAMES, values))
        count += 1
        time.sleep(0.01)


if __name__ == "__main__":
    assert "keras" not in sys.modules
    {"kill": kill, "save": save_again_and_again}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
