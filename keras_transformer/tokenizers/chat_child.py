"""Code of the child process that renders chat templates.

`bounded_child` imports this module, which imports jinja2 and nothing of this package. For each
request it returns the text of the chat, or a description of the failure.

Jinja's sandbox keeps a template from Python's internals, but not from filling the memory or running
for days, and the filters, comparisons and slices that can do so cannot be listed completely.
Therefore the operating system limits the whole computation, including the parsing of the template.
"""

import datetime
import functools
import json

MAX_TEXT = 16 * 2**20  # characters
_MAX_MESSAGE = 2000  # characters
# Variables with the characters that are put before and after what the assistant writes.
GENERATION_MARKS = ("generation_begin_mark", "generation_end_mark")
# Number of templates that stay compiled, since compiling takes longer than rendering.
_KEPT_TEMPLATES = 4


def make_environment():
    """Return Jinja's sandbox with the settings of Transformers, so that the texts are the same."""
    import jinja2.debug  # needed for failing templates, when files can no longer be opened
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(jinja2.ext.Extension):
        """Jinja extension for `{% generation %}`, which marks what the assistant writes.

        The text within it is rendered as it is, between the two `GENERATION_MARKS`.
        """

        tags = frozenset({"generation"})

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            # Both variables are undefined, and print nothing, unless the marks are asked for.
            around = [
                jinja2.nodes.Output([jinja2.nodes.Name(name, "load")]).set_lineno(line)
                for name in GENERATION_MARKS
            ]
            return jinja2.nodes.Scope([around[0], *body, around[1]]).set_lineno(line)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        # Not Jinja's own filter, which escapes HTML characters.
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


def render(compiled, source, given, most=MAX_TEXT):
    """Return the kind of a result, and the text, of at most `most` characters, or the message."""
    import jinja2

    try:
        text = compiled(source).render(given)
        if len(text) <= most:
            return "text", text
        kind, message = "size", f"it makes {len(text):,} characters, more than {most:,}"
    except jinja2.TemplateSyntaxError as error:
        kind, message = "syntax", f"{error.lineno}: {error.message}"
    except jinja2.exceptions.SecurityError as error:
        kind, message = "forbidden", str(error)
    except jinja2.TemplateError as error:
        kind, message = "refused", str(error)
    except MemoryError:
        raise
    except Exception as error:  # any failure of a template: a division by zero, a sum of lists
        kind, message = "failed", f"{type(error).__name__}: {error}"
    return kind, message[:_MAX_MESSAGE]


def prepare():
    """Return the function that answers requests, once all modules it needs are imported."""
    environment = make_environment()
    compiled = functools.lru_cache(_KEPT_TEMPLATES)(environment.from_string)
    # Formatting a date, printing and failing import modules late, when files may be out of reach.
    for source in ("{{ strftime_now('%c') }}{{ 1|pprint }}", "{{ 1 / 0 }}"):
        render(compiled, source, {})

    def answer(request):
        source, chats = json.loads(request)
        results, most = [], MAX_TEXT
        for given in chats:
            results.append(render(compiled, source, given, most))
            most -= len(results[-1][1])
        return "texts", json.dumps(results, ensure_ascii=False).encode("utf-8", "surrogatepass")

    return answer
