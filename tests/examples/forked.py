"""Runs examples with flags, each in a process of its own that has the package already.

On standard input a list of [path, *flags]; on the last line of standard output for each its exit
code and what it printed. Importing the package takes longer than what is asked of the examples.
"""

import json
import os
import runpy
import sys
import traceback


def outcome(path: str, *flags: str) -> tuple[int, str]:
    """The exit code of a program, and all that it printed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        sys.argv = [path, *flags]
        sys.path.insert(0, os.path.dirname(path))
        code = 1
        try:
            runpy.run_path(path, run_name="__main__")
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            if isinstance(stop.code, str):
                print(stop.code)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as stream:
        printed = stream.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), printed


if __name__ == "__main__":
    import keras_transformer  # noqa: F401

    print("\n" + json.dumps([outcome(*call) for call in json.load(sys.stdin)]))
