"""The work of the process that renders chat templates.

`bounded_child` imports it. It imports jinja2 and nothing of this package, and makes the text of
each chat, or says what went wrong.

Jinja's sandbox keeps a template from Python's internals. It keeps it neither from filling the
memory nor from running for days, and which filter, comparison or slice does so is a list without
an end. Here the operating system bounds whatever is computed, reading the template included.
"""

import datetime
import functools
import json

MAX_TEXT = 16 * 2**20  # characters
_MAX_MESSAGE = 2000  # characters
# Templates that stay compiled: compiling takes longer than rendering.
_KEPT_TEMPLATES = 4


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


def prepare():
    """Returns what answers requests, with all imported that rendering imports late."""
    environment = make_environment()
    compiled = functools.lru_cache(_KEPT_TEMPLATES)(environment.from_string)
    for source in ("{{ strftime_now('%c') }}{{ 1|pprint }}", "{{ 1 / 0 }}"):
        render(compiled, json.dumps([source, {}]))

    def answer(request):
        kind, text = render(compiled, request)
        return kind, text.encode("utf-8", "surrogatepass")

    return answer
