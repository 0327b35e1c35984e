"""The process in which the templates of chats are rendered, a script of its own.

`chat` starts it. It imports jinja2 and nothing of this package, takes one chat after
another from its standard input, and gives back the text of each, or what went wrong.

Jinja's sandbox keeps a template from Python's internals. It keeps it neither from filling the
memory nor from running for days, and which filter, comparison or slice does so is a list without
an end. Here the operating system bounds whatever is computed, reading the template included.
"""

import datetime
import functools
import json
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
MAX_TEXT = 16 * 2**20  # characters
_MAX_MESSAGE = 2000  # characters
# Templates that stay compiled: compiling takes longer than rendering.
_KEPT_TEMPLATES = 4
# A process that grew by more bytes ends after its answer: what it keeps is missing for the next.
_MAX_GROWTH = 64 * 2**20


def make_environment():
    """Jinja's sandbox as Transformers sets it up, so that the texts are the same."""
    import jinja2.debug  # needed where a template fails, when no file can be opened any more
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(jinja2.ext.Extension):
        """`{% generation %}` marks what the assistant wrote. It is rendered like all else."""

        tags = frozenset({"generation"})

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        # Not Jinja's own, which escapes what has a meaning in HTML.
        layout = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
        return json.dumps(value, ensure_ascii=ensure_ascii, **layout)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    del environment.globals["lipsum"]  # random text
    return environment


def render(compiled, request):
    """The kind of what came out of a request, and the text or the message."""
    import jinja2

    try:
        source, given = json.loads(request)
        text = compiled(source).render(given)
        if len(text) <= MAX_TEXT:
            return "text", text
        kind, message = "size", f"it makes {len(text):,} characters, and may make {MAX_TEXT:,}"
    except jinja2.TemplateSyntaxError as error:
        kind, message = "syntax", f"{error.lineno}: {error.message}"
    except jinja2.exceptions.SecurityError as error:
        kind, message = "forbidden", str(error)
    except jinja2.TemplateError as error:
        kind, message = "refused", str(error)
    except MemoryError:
        raise
    except Exception as error:  # whatever a template does wrong: a division by zero, a sum of lists
        kind, message = "failed", f"{type(error).__name__}: {error}"
    return kind, message[:_MAX_MESSAGE]


def main(memory, *folders):
    """Answers requests until there are no more."""
    sys.path += folders
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is printed is no answer
    environment = make_environment()
    compiled = functools.lru_cache(_KEPT_TEMPLATES)(environment.from_string)
    for source in ("{{ strftime_now('%c') }}{{ 1|pprint }}", "{{ 1 / 0 }}"):
        render(compiled, json.dumps([source, {}]))  # imports what is imported late
    bound(int(memory))
    start_size = size_in_memory()
    kind, text, last = "ready", "", False
    while True:
        data = text.encode("utf-8", "surrogatepass")
        answers.write(ANSWER.pack(kind.encode(), last, len(data)) + data)
        answers.flush()
        if last:
            return
        del text, data
        set_timer(0)
        seconds, length = REQUEST.unpack(read(requests, REQUEST.size))
        set_timer(seconds)
        kind, text = render(compiled, read(requests, length))
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
