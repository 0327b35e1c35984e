"""The process in which a `BoundedProcess` computes, a script of its own.

It imports nothing of this package but the one file that it is told of, takes one request after
another from its standard input, and gives back an answer to each. The operating system bounds
whatever is computed: no file or connection can be opened, and no process started.
"""

import functools
import importlib.util
import os
import signal
import struct
import sys

try:
    import resource
except ImportError:  # Windows: the process that waits for the answer bounds the time
    resource = None

# Before a request: the seconds that it may compute, and its length in bytes. Before an answer: its
# kind, whether the process ends after it, and its length.
REQUEST, ANSWER = struct.Struct("<dQ"), struct.Struct("<16s?Q")
# The status with which the process ends that has no memory left.
OUT_OF_MEMORY = 77
# A process that grew by more bytes ends after its answer: what it keeps is missing for the next.
_MAX_GROWTH = 64 * 2**20


def main(memory, path, *folders):
    """Answers requests until there are no more, with what the file's `prepare` returns."""
    sys.path += folders
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # printed text must not mix with answers
    spec = importlib.util.spec_from_file_location("worker", path)
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    answer = worker.prepare()  # imports what is imported late
    bound(int(memory))
    start_size = size_in_memory()
    kind, data, last = "ready", b"", False
    while True:
        answers.write(ANSWER.pack(kind.encode(), last, len(data)))
        answers.write(data)
        answers.flush()
        if last:
            return
        del data
        set_timer(0)
        seconds, length = REQUEST.unpack(read(requests, REQUEST.size))
        set_timer(seconds)
        kind, data = answer(read(requests, length))
        last = size_in_memory() > start_size + _MAX_GROWTH


def bound(memory):
    """Has the operating system bound what this process takes from now on."""
    if resource is None:
        return
    if sys.platform == "linux":  # other systems do not keep to it
        size = size_in_memory() + memory
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    for name in ("RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_CORE"):
        resource.setrlimit(getattr(resource, name), (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def set_timer(seconds):
    """Has the operating system kill this process when it has computed for so long; 0 for never."""
    if resource is not None:
        signal.setitimer(signal.ITIMER_PROF, seconds)


@functools.cache
def statistics():
    """Linux's account of this process, opened while a file can be."""
    return os.open("/proc/self/statm", os.O_RDONLY)


def size_in_memory():
    """The address space of this process in bytes; 0 where no limit holds for it."""
    if sys.platform != "linux":
        return 0
    return int(os.pread(statistics(), 100, 0).split()[0]) * resource.getpagesize()


def read(requests, length):
    """Bytes; ends this process where there are no more, since the one that asks has ended."""
    data = requests.read(length)
    if len(data) < length:
        os._exit(0)
    return data


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BrokenPipeError:
        os._exit(0)
