"""Run the recipe of a published result of the project, and compare the score.

    python examples/reproduce.py transformer_tiny_en_de
    make reproduce PRESET=transformer_tiny_en_de

A recipe is a JSON file in examples/recipes with the example to run, its flags for each stage of the
training, and the score it reached. If it is killed and started again, it resumes.
"""

import json
import os
import pathlib
import subprocess
import sys

EXAMPLES = pathlib.Path(__file__).parent


def main(arguments):
    recipes = {path.stem: path for path in sorted((EXAMPLES / "recipes").glob("*.json"))}
    if len(arguments) != 1 or arguments[0] not in recipes:
        given = f"There is no recipe {arguments[0]!r}. " if arguments else ""
        sys.exit(f"{__doc__}\n{given}The recipes:\n  " + "\n  ".join(recipes))
    name = arguments[0]
    recipe = json.loads(recipes[name].read_text(encoding="utf-8"))
    environment = {"KERAS_BACKEND": recipe["backend"], **os.environ}
    print(f"Where it was done it took {recipe['took']}, and reached:", flush=True)
    for measure, value in recipe["scores"].items():
        print(f"  {measure}: {value}", flush=True)
    for stage in recipe["stages"]:
        flags = [f"--{flag}={value}" for flag, value in stage.items()]
        command = [sys.executable, str(EXAMPLES / f"{recipe['example']}.py"), *flags]
        print(f"KERAS_BACKEND={environment['KERAS_BACKEND']}", " ".join(command), flush=True)
        code = subprocess.run(command, env=environment).returncode
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
