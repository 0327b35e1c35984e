"""Templates of chats that ask for too much, and the process that renders them."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from keras_transformer.tokenizers import chat
from keras_transformer.tokenizers.chat import MAX_REQUEST, render_apart, render_chat

pytestmark = [
    pytest.mark.backend_independent,
    pytest.mark.skipif(sys.platform != "linux", reason="other systems bound less, see the docs"),
]

USER = {"role": "user", "content": "a"}
GIVEN = {"messages": [USER]}
TEXT_FILTERS = [
    *("upper", "lower", "title", "capitalize", "trim", "e", "forceescape", "safe", "striptags"),
    *("replace('a', 'b')", "join(',')", "string", "tojson", "pprint", "urlize"),
]
COMPARISONS = [
    "'c' in x",
    "x == y",
    "x < y",
    "x.count('ab')",
    "x.index('b', 1)",
    "x.find('c')",
    "x.replace('c', '')",
    "x.split('c')",
    "x.strip('b')",
    "x|length == x|upper|length",
    "y in [x, x]",
    "[x] == [y]",
    "'c' in x|list",
]


def compared(what):
    """A loop of few steps that each take long."""
    texts = "{% set x = 'a' * 9000000 ~ 'b' %}{% set y = 'a' * 9000000 ~ 'c' %}"
    return texts + "{% for i in range(99999) %}{% if " + what + " %}{% endif %}{% endfor %}"


def repeated(change, start="x='aaaaaaaa'"):
    loop = f"{{% for i in range(60) %}}{change}{{% endfor %}}"
    return f"{{% set ns = namespace({start}) %}}{loop}{{{{ ns.x }}}}"


HOSTILE = {
    "classes": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ self.__init__.__globals__ }}",
    "builtins": "{{ raise_exception.__globals__['__builtins__'].open('/etc/passwd').read() }}",
    "code": "{{ (strftime_now.__code__).co_consts[0] }}",
    "attr": "{{ (''|attr('__class__')).mro() }}",
    "map attr": "{{ ['']|map(attribute='__class__')|list|first|attr('mro')() }}",
    "format map": "{{ ['{0.__class__}']|map('format', '')|list }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os.system('true') }}",
    "extends": "{% extends '/etc/passwd' %}",
    "changing": "{{ messages.append(1) }}",
    "clearing": "{{ messages[0].clear() }}",
    "text bomb": "{{ 'a' * 10**9 }}",
    "list bomb": "{{ [1] * 10**9 }}",
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "written": "{% for i in range(99999) %}" + "a" * 10_000 + "{% endfor %}",
    "lists": "{% for i in range(99999) %}{{ range(99999)|list|length }}{% endfor %}",
    "doubled by ~": repeated("{% set ns.x = ns.x ~ ns.x %}"),
    "doubled by +": repeated("{% set ns.x = ns.x + ns.x %}"),
    "doubled by join": repeated("{% set ns.x = [ns.x, ns.x]|join %}"),
    "doubled by replace": repeated("{% set ns.x = ns.x.replace('a', 'aa') %}"),
    "doubled by the filter": repeated("{% set ns.x = ns.x|replace('a', 'aa') %}"),
    "doubled in a block": repeated("{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    "nested lists": repeated("{% set ns.x = [ns.x, ns.x] %}"),
    "nested tuples": repeated("{% set ns.x = (ns.x, ns.x) %}"),
    "nested dicts": repeated("{% set ns.x = {'a': ns.x, 'b': ns.x} %}"),
    "nested dict()": repeated("{% set ns.x = dict(a=ns.x, b=ns.x) %}"),
    "namespaces": repeated("{% set ns.x = namespace(a=ns.x, b=ns.x) %}"),
    "long lists": repeated("{% set ns.x = ns.x + ns.x %}", "x=[1]"),
    "width": "{{ 'a'|center(10**9) }}",
    "width by %": "{{ '%1000000000d' % 1 }}",
    "width by format": "{{ '{:1000000000}'.format(1) }}",
    "width by ljust": "{{ 'a'.ljust(10**9) }}",
    "bytes": "{{ (1).to_bytes(10**9) }}",
    "indent": "{{ messages|tojson(indent=10**9) }}",
    "batch": "{{ [1]|batch(10**9, 1)|list }}",
    "join": "{{ ('a' * 10**6).join(['']  * 10**6) }}",
    "join filter": "{{ (['a' * 10**6] * 10**5)|join }}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n-1) ~ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "deep": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "lipsum": "{{ lipsum(n=1000) }}",
    "syntax": "{% for %}",
    "unknown tag": "{% run %}",
    "not there": "{{ nothing.at.all }}",
    "division": "{{ 1 / 0 }}",
    "number bomb": "{{ 9 ** (9 ** 9) }}",
    "number to text": "{{ 9 ** 999999 }}",
    "width by %*d": "{{ '%*d' % (2**30, 1) }}",
    "width of a number": "{{ (1).__format__('1000000000') }}",
    **{
        f"text of a list: {name}": "{% set x = 'a' * 1000000 %}{{ ([x] * 100000)|"
        + name
        + "|length }}"
        for name in TEXT_FILTERS
    },
    "separators": "{{ ([1] * 100000)|tojson(separators=('a' * 10000000, ':'))|length }}",
    "slices": "{% set x = 'a' * 20000000 %}{% set ns = namespace(x=[]) %}{% for i in range(400) %}"
    "{% set ns.x = ns.x + [x[i:]] %}{% endfor %}{{ ns.x|length }}",
    **{f"compared: {what}": compared(what) for what in COMPARISONS},
    "sorting": "{{ ([('a' * 30000000) ~ 'b', ('a' * 30000000) ~ 'c'] * 50000)|sort|length }}",
    "unique": "{{ ([messages|string] * 99999)|map('upper')|map('trim')|unique|list|length * 0 }}"
    * 200,
    "loops": "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}",
    "loop over text": "{% set x = 'a' * 50000000 %}{% for c in x %}{% for d in x %}{% endfor %}"
    "{% endfor %}",
    "dicts": repeated("{% set ns.x = dict(ns.x, **{ns.x|string: ns.x}) %}", "x={'a': 1}"),
    "lists of lists": repeated("{% set ns.x = [ns.x] * 100 %}", "x=[1]"),
    "filtered block": "{% filter upper|replace('A', 'a' * 1000000) %}"
    + "a" * 10000
    + "{% endfilter %}",
    "groups": "{% for i in range(99999) %}{{ range(99999)|groupby('real')|length }}{% endfor %}",
    "regular expression": "{{ ('<' * 3000000)|striptags }}{{ ('a.' * 3000000)|urlize|length }}"
    * 40,
    "slow to read": "{{ " + "1 + " * 200000 + "1 }}",
    "deep to read": "{% if 1 %}" * 20000 + "{% endif %}" * 20000,
    "deep list": "{{ " + "[" * 90000 + "]" * 90000 + " }}",
    "deep calls": "{{ f" + "(f" * 50000 + ")" * 50000 + " }}",
    "many names": "{% set " + ", ".join(f"x{i}" for i in range(90000)) + " = 1 %}",
    "folded when read": "{{ 'a' * 10000000000 }}{{ 2 ** 10000000000 }}",
    "message": "{{ raise_exception('a' * 10**9) }}",
    "message of a list": "{{ raise_exception([[messages] * 9999] * 9999) }}",
    "too much text": "{{ 'a' * 17000000 }}",
}


def memory(pid="self", line="VmHWM"):
    """The highest use of memory of a process, in megabytes."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(each.split()[1]) // 1024 for each in file if each.startswith(line))


def child():
    """The number of the process that renders."""
    assert render_apart("x", {}) == ("text", "x")
    return chat._process._popen.pid


@pytest.mark.parametrize("template", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_templates_are_refused(template):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # forgets the highest use so far
    before = memory()
    kind, message = render_apart(template, GIVEN, seconds=0.05)
    assert kind in ("syntax", "forbidden", "refused", "failed", "size") and len(message) < 3000
    assert memory() - before < 50
    assert render_apart("{{ messages[0].content }}", GIVEN) == ("text", "a")
    assert memory(child(), "VmSize") < 256


def test_the_error_says_what_is_too_much():
    for template, message in (
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
         r"too much: it takes more than 2 seconds of computing"),
        ("{{ 'a' * 10**9 }}", "too much: it takes more than 256 MB"),
        ("{{ 'a' * (2**24 + 1) }}", "too much: it makes 16,777,217 characters, more than"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            render_chat(template, [USER])
    with pytest.raises(ValueError, match="with the chat it has 16,777,3.. bytes, more than"):
        render_chat("x", [{"role": "user", "content": "a" * MAX_REQUEST}])


def test_what_other_sandboxes_refuse_is_bounded_here():
    assert render_chat("{{ '%3d' % 5 }}{{ 'a'.center(3) }}{{ 2 ** 200 }}", [USER])[:6] == "  5 a "
    assert render_chat("{{ '{0.__class__}'.format('') }}", [USER]) == ""
    assert render_chat("{{ {'a': 1}|tojson(indent=20) }}", [USER]).count(" ") == 21


def test_limits_of_the_process():
    with open(f"/proc/{child()}/limits") as file:
        limits = {line[:25].strip(): line[25:].split()[:2] for line in file}
    start = memory(child(), "VmSize") * 2**20
    assert all(start < int(size) < start + 258 * 2**20 for size in limits["Max address space"])
    for name in ("Max processes", "Max open files", "Max file size", "Max core file size"):
        assert limits[name] == ["0", "0"]


def test_impatience():
    """A process that computes nothing, and does not answer either."""
    pid = child()
    os.kill(pid, signal.SIGSTOP)
    assert render_apart("x", {}, patience=0.2) == ("size", "it takes longer than 0.2 seconds")
    assert child() != pid


def test_killed_from_outside():
    for number in (signal.SIGKILL, signal.SIGTERM):
        pid = child()
        os.kill(pid, number)
        assert render_apart("{{ x }}", {"x": 1}) == ("text", "1")
        assert child() != pid


def test_what_templates_leave_behind_does_not_add_up():
    """Compiled templates stay in memory, which would be missing for the next ones."""
    for number in range(14):
        source = "🙂" * 1_000_000 + str(number)
        assert render_apart(source, {}, seconds=20) == ("text", source)
        process = chat._process
        assert process is None or memory(process._popen.pid, "VmSize") < 130


def test_threads():
    """Each gets its own text, whatever the others ask for."""
    wrong = []

    def work(number):
        for turn in range(10):
            if turn == number % 10:
                render_apart("{{ 'a' * 10**9 }}", {})
            got = render_apart("{{ x * n }}", {"x": f"<{number}>", "n": turn})
            if got != ("text", f"<{number}>" * turn):
                wrong.append(got)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def run(code, **options):
    """A Python of its own, whose warnings and errors count."""
    start = "import os, sys, time, types\n"
    for name in ("keras_transformer", "keras_transformer.tokenizers"):  # without a backend
        folder = os.path.join(os.getcwd(), *name.split("."))
        start += f"sys.modules[{name!r}] = package = types.ModuleType({name!r})\n"
        start += f"package.__path__ = [{folder!r}]\n"
    start += "from keras_transformer.tokenizers import chat\n"
    start += "from keras_transformer.tokenizers.chat import render_apart\n"
    command = [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", start + code]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def wait_until_gone(pid):
    for _ in range(600):
        if not os.path.exists(f"/proc/{pid}") or memory_state(pid) == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"{pid} is still there")


def memory_state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_a_fork_has_a_process_of_its_own_and_all_end():
    """A fork, also while a thread renders, neither waits for a lock nor reads another's answer."""
    code = (
        "import threading\n"
        "slow = '{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}'\n"
        "render_apart('x', {})\n"
        "first = chat._process._popen.pid\n"
        "thread = threading.Thread(target=render_apart, args=(slow, {}, 0.5))\n"
        "thread.start()\n"
        "time.sleep(0.2)\n"
        "fork = os.fork()\n"
        "got = render_apart('{{ x }}', {'x': os.getpid()})\n"
        "assert got == ('text', str(os.getpid())), got\n"
        "second = chat._process._popen.pid\n"
        "assert second != first\n"
        "print(second, flush=True)\n"
        "if not fork:\n"
        "    sys.exit()\n"
        "thread.join()\n"
        "assert os.waitpid(fork, 0)[1] == 0\n"
        "assert render_apart('x', {}) == ('text', 'x')\n"
    )
    done = run(code)
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0, err
    assert "ResourceWarning" not in err
    for pid in out.split():
        wait_until_gone(pid)


def test_the_end_of_the_process_that_asks_is_the_end_of_the_other():
    asking = run(
        "render_apart('x', {})\nprint(chat._process._popen.pid, flush=True)\ntime.sleep(600)\n"
    )
    pid = int(asking.stdout.readline())
    assert memory_state(pid) != "Z"
    asking.kill()
    asking.communicate(timeout=60)
    wait_until_gone(pid)


def test_an_interruption_reaches_only_the_one_that_asks():
    """Ctrl-C goes to all of a terminal's processes. No late answer comes to the next question."""
    asking = run(
        "render_apart('x', {})\n"
        "first = chat._process._popen.pid\n"
        "print(first, flush=True)\n"
        "try:\n"
        "    time.sleep(600)\n"
        "except KeyboardInterrupt:\n"
        "    assert render_apart('{{ x }}', {'x': 2}) == ('text', '2')\n"
        "    assert chat._process._popen.pid == first\n"
        "slow = '{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}'\n"
        "print(flush=True)\n"
        "try:\n"
        "    render_apart(slow + 'late', {}, 60)\n"
        "except KeyboardInterrupt:\n"
        "    assert render_apart('{{ x }}', {'x': 3}) == ('text', '3')\n"
        "    print('done', flush=True)\n",
        start_new_session=True,
    )
    assert int(asking.stdout.readline())
    time.sleep(0.3)
    os.killpg(asking.pid, signal.SIGINT)
    asking.stdout.readline()
    time.sleep(0.3)
    os.killpg(asking.pid, signal.SIGINT)
    out, err = asking.communicate(timeout=60)
    assert out == "done\n", err


def test_it_starts_with_nothing_of_the_environment(tmp_path, monkeypatch):
    """Not a module of the folder, of PYTHONPATH or of a user is imported in place of another."""
    for name in ("jinja2", "json", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(5)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    os.kill(child(), signal.SIGKILL)
    assert render_apart("x", {}) == ("text", "x")


def test_it_does_not_start(monkeypatch, tmp_path):
    os.kill(child(), signal.SIGKILL)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with pytest.raises(RuntimeError, match="does not start: .*No such file"):
        render_chat("x", [USER])
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="does not start: it ended with the status 1"):
        render_chat("x", [USER])
