"""Runs what test_alone.py gives it, in an environment with one backend, one after the other.

On standard input a list of [name, code], and of examples to be asked for --help; on the last line
of standard output the backend that was taken, and what went wrong, by name.
"""

import contextlib
import gc
import io
import json
import os
import runpy
import sys
import tempfile
import time
import traceback


def run_code(name: str, code: str) -> dict:
    """Runs a page's example in a namespace and a folder of its own."""
    import keras

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32")
    start, printed = time.perf_counter(), io.StringIO()
    error = ""
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            exec(compile(code, name, "exec"), {"__name__": "__main__"})
    except BaseException:
        error = traceback.format_exc() + printed.getvalue()[-2000:]
    return {"error": error, "seconds": round(time.perf_counter() - start, 1)}


def ask_for_help(path: str) -> dict:
    """Runs an example with --help in a process of its own, which has the package already."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        sys.argv = [path, "--help"]
        sys.path.insert(0, os.path.dirname(path))
        code = 2
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
            print(stop.code)  # which may be what there is to say
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0 if code in (0, 1) else 2)  # absl ends with 1 after its help
    os.close(writing)
    with os.fdopen(reading) as stream:
        printed = stream.read()
    _, status = os.waitpid(child, 0)
    fine = status == 0 and any(said in printed for said in ("flags:", "options:", "The recipes:"))
    return {"error": "" if fine else printed or "no output"}


def backend() -> str:
    """The backend that Keras has."""
    import keras

    return keras.backend.backend()


def main():
    """Reads what to run, runs it, prints the results."""
    given = json.loads(sys.stdin.read())
    assert "keras" not in sys.modules and "KERAS_BACKEND" not in os.environ
    gc.disable()
    import keras_transformer  # noqa: F401  the pages import it first too: test_alone.py looks
    from tests.quicker import quicken  # of the checkout, which the environment leads to

    quicken(backend())
    gc.freeze()  # what is imported is no garbage: looking at it again and again takes long
    gc.enable()
    results = {path: ask_for_help(path) for path in given["examples"]}
    results |= {name: run_code(name, code) for name, code in given["pages"]}
    slowest = sorted((result.get("seconds", 0), name) for name, result in results.items())[-8:]
    print("slowest:", *reversed(slowest), file=sys.stderr)
    print("\n" + json.dumps([backend(), results]))


if __name__ == "__main__":
    main()
