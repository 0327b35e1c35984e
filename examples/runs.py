"""Start an example with its flags, and resume a run only with the values it was started with."""

import json
import os
import pathlib
import sys
from collections.abc import Callable

from absl import app, flags

# Hide TensorFlow's messages about the machine between the lines of an example, but not its errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Let PyTorch's threads sleep while they wait: if other programs use the cores too, spinning threads
# take several times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def start(main: Callable) -> None:
    """Run like `app.run`, which treats a request for help as a failure."""
    app.run(main, flags_parser=_parse)


def _parse(arguments: list[str]) -> list[str]:
    try:
        return app.parse_flags_with_usage(arguments)
    except SystemExit as end:
        asked = {"help", "helpshort", "helpfull", "?"} & {x.lstrip("-") for x in arguments[1:]}
        sys.exit(0 if asked else end.code)


def read_text(path: str | pathlib.Path) -> str:
    """Return the text of a file named by a flag, with or without a byte order mark."""
    try:
        return pathlib.Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise app.UsageError(f"{path} is no text in UTF-8 that can be read: {error}") from error


def check_recipe(work_dir: pathlib.Path, recipe: dict) -> None:
    """Write the recipe of a run to its folder, or refuse to resume with a different one."""
    path = work_dir / "recipe.json"
    if not path.is_file():
        work_dir.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(recipe, indent=2), encoding="utf-8")
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    changed = [
        f"--{name}={before.get(name)}" for name in recipe if recipe[name] != before.get(name)
    ]
    if changed:
        raise app.UsageError(
            f"The run in {work_dir} was started with {' '.join(changed)}. Give the same again to "
            "go on with it, or another --work_dir to start anew."
        )


def values(names: str) -> dict:
    """Return the values of flags, by name."""
    return {name: flags.FLAGS[name].value for name in names.split()}
