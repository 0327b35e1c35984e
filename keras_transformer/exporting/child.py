"""Conversion in a child process, on the CPU and on the backend that a format needs."""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from keras_transformer.checkpoints import load_backbone, load_task, resolve_preset
from keras_transformer.exporting.formats import FORMATS, Format

_ERRORS = {error.__name__: error for error in (ValueError, ImportError, NotImplementedError)}


def convert_in_child(
    task: keras.Model, directory: Path, chosen: Format, options: Mapping[str, Any]
) -> None:
    """Call `chosen.write` in a child process on the backend of the format.

    The model is passed as a preset; the backend is installed (`Format.check_packages`).
    """
    with tempfile.TemporaryDirectory() as scratch:
        preset = Path(scratch, "preset")
        task.save_to_preset(preset)
        asked = {
            "preset": str(preset),
            "directory": str(directory),
            "format": chosen.name,
            "options": dict(options),
        }
        root = str(Path(__file__).parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, "-m", "keras_transformer.exporting.child"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "KERAS_BACKEND": chosen.backend,
                # An exported program names the device of its tensors: the CPU, which all machines
                # have.
                "CUDA_VISIBLE_DEVICES": "",
                "PYTHONPATH": os.pathsep.join(paths),
            },
        )
    try:
        said = json.loads(done.stdout.rpartition("\n")[2])
    except ValueError:
        raise RuntimeError(
            f"The process that converted to {chosen.name!r} on {chosen.backend} ended with status "
            f"{done.returncode}:\n{done.stderr[-2000:]}"
        ) from None
    if "error" in said:
        raise _ERRORS[said["error"]](said["message"])
    for message in said["warnings"]:
        warnings.warn(message, stacklevel=3)


def load_model(preset: str) -> keras.Model:
    """Load the task of a preset, or its backbone if it has no task."""
    opened = resolve_preset(preset)
    return load_backbone(opened) if opened.description[1] is None else load_task(None, opened)


def _convert() -> int:
    """Run the child process: read the request, convert, and report errors."""
    asked = json.load(sys.stdin)
    said: dict[str, Any] = {}
    try:
        task, chosen = load_model(asked["preset"]), FORMATS[asked["format"]]
        with warnings.catch_warnings(record=True, action="always") as found:
            chosen.write(task, Path(asked["directory"]), **asked["options"])
        said = {"warnings": [str(w.message) for w in found if w.category is UserWarning]}
    except tuple(_ERRORS.values()) as error:
        kind = next(name for name, known in _ERRORS.items() if isinstance(error, known))
        said = {"error": kind, "message": str(error)}
    print("\n" + json.dumps(said), end="")
    return int("error" in said)


if __name__ == "__main__":
    sys.exit(_convert())
