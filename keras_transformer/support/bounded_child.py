"""Script of the child process in which a `BoundedProcess` computes.

It imports only the one file of this package that it is given, reads requests from standard input
one after another, and writes an answer to each. The operating system limits the computation: it
cannot open a file or a connection, nor start a process.
"""

import functools
import importlib.util
import os
import signal
import struct
import sys

try:
    import resource
except ImportError:  # Windows: the parent process limits the time instead
    resource = None

# Header of a request: the seconds it may compute, and its length in bytes. Header of an answer: its
# kind, whether the process ends after it, and its length in bytes.
REQUEST, ANSWER = struct.Struct("<dQ"), struct.Struct("<16s?Q")
# Exit status of a process that ran out of memory.
OUT_OF_MEMORY = 77
# A process that grew by more than this ends after its answer: the memory that it keeps is missing
# for the next request.
_MAX_GROWTH = 64 * 2**20


def main(memory, path, *folders):
    """Answer requests until the input ends, with the function that the file's `prepare` returns."""
    sys.path += folders
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # printed text must not mix with answers
    spec = importlib.util.spec_from_file_location("worker", path)
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    answer = worker.prepare()  # triggers late imports
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
    """Set the operating system's limits on this process from now on."""
    if resource is None:
        return
    if sys.platform == "linux":  # other systems do not enforce it
        size = size_in_memory() + memory
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    for name in ("RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_CORE"):
        resource.setrlimit(getattr(resource, name), (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def set_timer(seconds):
    """Let the operating system kill this process after this much computing time; 0 disables it."""
    if resource is not None:
        signal.setitimer(signal.ITIMER_PROF, seconds)


@functools.cache
def statistics():
    """Open Linux's memory statistics of this process, before opening files is forbidden."""
    return os.open("/proc/self/statm", os.O_RDONLY)


def size_in_memory():
    """Return the size of this process's address space in bytes; 0 if the system is not Linux."""
    if sys.platform != "linux":
        return 0
    return int(os.pread(statistics(), 100, 0).split()[0]) * resource.getpagesize()


def read(requests, length):
    """Read `length` bytes; end this process if the input ends, since the parent has then ended."""
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
