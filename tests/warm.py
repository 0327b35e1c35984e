"""Programs in processes that have the package already: importing it takes longer than most of them.

`Warm` starts an interpreter that imports the package and computes nothing, and asks it for forks
of itself. As a program this file is that interpreter: on standard input a line of JSON for each
request, on standard output a line for each answer.
"""

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

SECONDS = 500  # what takes longer is ended


class Warm:
    """An interpreter that has the package, whose forks run programs."""

    def __init__(self, python, environment: dict[str, str]):
        self._folder = tempfile.TemporaryDirectory()
        self._count = 0
        self._server = subprocess.Popen(
            [str(python), "-u", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=self._folder.name,
            text=True,
        )
        assert self._answer() == "ready"

    def _answer(self):
        return json.loads(self._server.stdout.readline())

    def ask(self, **request):
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return self._answer()

    def start(self, *arguments, cwd, stderr, **environment) -> "Forked":
        """Runs a file, or `-c` and code, with arguments; `stderr` is a file that is written on."""
        self._count += 1
        stdout = Path(self._folder.name, str(self._count))
        os.mkfifo(stdout)
        given = {"cwd": str(cwd), "stdout": str(stdout), "stderr": str(stderr)}
        pid = self.ask(run=[str(x) for x in arguments], environment=environment, **given)
        return Forked(self, pid, stdout)

    def close(self) -> None:
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()
        self._folder.cleanup()


class Forked:
    """A process of `Warm`, with what of `subprocess.Popen` the tests use."""

    def __init__(self, warm: Warm, pid: int, stdout: Path):
        self._warm, self.pid, self.returncode = warm, pid, None
        self.stdout = stdout.open(encoding="utf-8")

    def poll(self):
        if self.returncode is None:
            self.returncode = self._warm.ask(poll=self.pid)
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = self._warm.ask(wait=self.pid)
        return self.returncode

    def communicate(self):
        """What it printed, when it has ended; its errors are in their file."""
        with self.stdout:
            printed = self.stdout.read()
        self.wait()
        return printed, None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _run(arguments, environment, cwd, stdout, stderr):
    """In the fork: the program, and its exit code."""
    signal.alarm(SECONDS)
    appended = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for place, target in ((0, os.open(os.devnull, os.O_RDONLY)), (1, os.open(stdout, os.O_WRONLY)),
                          (2, os.open(stderr, appended))):  # fmt: skip
        os.dup2(target, place)
    os.environ.update(environment)
    os.chdir(cwd)
    code = arguments[1] if arguments[0] == "-c" else None
    sys.argv = arguments if code is None else ["-c", *arguments[2:]]
    sys.path[0] = os.path.dirname(arguments[0]) if code is None else ""
    try:
        if code is None:
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main():
    """Imports the package, and answers until nothing more is asked."""
    gc.disable()
    import keras_transformer  # noqa: F401

    gc.freeze()
    gc.enable()
    print(json.dumps("ready"))
    for line in sys.stdin:
        asked = json.loads(line)
        if "run" in asked:
            answer = os.fork()
            if answer == 0:
                code = 1
                try:
                    code = _run(asked.pop("run"), **asked)
                    sys.stdout.flush()
                    sys.stderr.flush()
                finally:
                    os._exit(code)
        else:
            done, status = os.waitpid(
                *((asked["wait"], 0) if "wait" in asked else (asked["poll"], os.WNOHANG))
            )
            answer = os.waitstatus_to_exitcode(status) if done else None
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
