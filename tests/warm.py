"""Programs in processes that have the package already: importing it takes longer than most of them.

A server has imported the package and computes nothing, and is asked for forks of itself: a line of
JSON for each request, and one for each answer. `Warm` starts an interpreter for it, which is this
file as a program; `Forks` is a fork of the process that runs the tests, before it collects them.
"""

import gc
import io
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


class Server:
    """Client side of the server: `requests` and `answers` are its input and output."""

    def __init__(self, requests, answers):
        self._requests, self._answers = requests, answers
        self._folder = tempfile.TemporaryDirectory()
        self._count = 0
        self.seconds = 0.0  # of processor time, of the forks that ended

    def ask(self, **request):
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()
        return json.loads(self._answers.readline())

    def start(self, *arguments, cwd, stderr, **environment) -> "Forked":
        """Runs a file, or `-c` and code, with arguments; `stderr` is a file that is written on.

        A variable of the environment that is None is taken out of it.
        """
        self._count += 1
        stdout = Path(self._folder.name, str(self._count))
        os.mkfifo(stdout)
        given = {"cwd": str(cwd), "stdout": str(stdout), "stderr": str(stderr)}
        environment = {"TMPDIR": tempfile.gettempdir(), **environment}
        pid = self.ask(run=[str(x) for x in arguments], environment=environment, **given)
        return Forked(self, pid, stdout)

    def run(self, *arguments, cwd=".", **environment) -> subprocess.CompletedProcess:
        """Runs it to its end."""
        stderr = Path(self._folder.name, f"{self._count}.stderr")
        process = self.start(*arguments, cwd=Path(cwd).absolute(), stderr=stderr, **environment)
        printed, _ = process.communicate()
        return subprocess.CompletedProcess(
            arguments, process.returncode, printed, stderr.read_text()
        )

    def close(self) -> None:
        self._requests.close()
        self._answers.close()
        self._folder.cleanup()


class Warm(Server):
    """An interpreter that has the package, whose forks run programs."""

    def __init__(self, python, environment: dict[str, str]):
        self._process = subprocess.Popen(
            [str(python), "-u", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        super().__init__(self._process.stdin, self._process.stdout)
        assert json.loads(self._answers.readline()) == "ready"

    def close(self) -> None:
        super().close()
        self._process.wait()


class Forks(Server):
    """A fork of this process, made before anything is computed in it, and its forks.

    It ends with this process, which does not wait for it.
    """

    def __init__(self):
        its_requests, requests = os.pipe()
        answers, its_answers = os.pipe()
        if os.fork() == 0:
            try:
                for place in (requests, answers):
                    os.close(place)
                for place in range(3):
                    os.dup2(os.open(os.devnull, os.O_RDWR), place)
                gc.freeze()
                gc.enable()
                _serve(os.fdopen(its_requests), os.fdopen(its_answers, "w"))
            finally:
                os._exit(0)
        os.close(its_requests)
        os.close(its_answers)
        super().__init__(os.fdopen(requests, "w"), os.fdopen(answers))


class Forked:
    """A process of `Warm`, with what of `subprocess.Popen` the tests use."""

    def __init__(self, server: Server, pid: int, stdout: Path):
        self._server, self.pid, self.returncode = server, pid, None
        self.stdout = stdout.open(encoding="utf-8")

    def poll(self):
        if self.returncode is None:
            self._ended(self._server.ask(poll=self.pid))
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self._ended(self._server.ask(wait=self.pid))
        return self.returncode

    def _ended(self, answer):
        if answer is not None:
            self.returncode, seconds = answer
            self._server.seconds += seconds

    def communicate(self):
        """Return the output of the process once it has ended; its errors are in their file."""
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
    # The streams of the process that runs tests are pytest's.
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(place, "w", closefd=False), "utf-8", write_through=True)
        for place in (1, 2)
    )
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    tempfile.tempdir = None  # what the server found before is not of this environment
    os.chdir(cwd)
    code = arguments[1] if arguments[0] == "-c" else None
    sys.argv = arguments if code is None else ["-c", *arguments[2:]]
    sys.path.insert(0, os.path.dirname(arguments[0]) if code is None else "")
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


def _serve(requests, answers):
    """Answer requests until there are no more: exit code and seconds of each ended process."""
    for line in requests:
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
            waited = (asked["wait"], 0) if "wait" in asked else (asked["poll"], os.WNOHANG)
            done, status, used = os.wait4(*waited)
            seconds = used.ru_utime + used.ru_stime
            answer = [os.waitstatus_to_exitcode(status), seconds] if done else None
        print(json.dumps(answer), file=answers, flush=True)


def main():
    """Imports the package, and serves."""
    del sys.path[0]  # of this file
    gc.disable()
    import keras_transformer  # noqa: F401
    from tests.quicker import quicken  # of the checkout, which the environment leads to

    quicken(sys.modules["keras"].backend.backend())
    gc.freeze()
    gc.enable()
    print(json.dumps("ready"))
    _serve(sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
