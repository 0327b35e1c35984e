"""Requests that are made to reach other machines and files, and any that the description allows."""

import base64
import contextlib
import copy
import dataclasses
import functools
import io
import json
import sys
import sysconfig
from pathlib import Path

import hypothesis
import pytest
import schemathesis
import soundfile
from PIL import Image
from schemathesis.specs.openapi import checks
from starlette.testclient import TestClient

import keras_transformer as kt
from keras_transformer.serving import API_LIMITS, VERBS, ServedTask, make_api, make_app
from tests.serving.test_api import writer
from tests.tasks import audio, duals, images
from tests.tasks.test_media_tables import captioner
from tests.tasks.test_speech_to_text import task as speech_task
from tests.thorough import THOROUGH

pytestmark = pytest.mark.one_backend

# A name that must never be asked for, and files that must never be opened.
ADDRESS, FILE = "http://127.0.0.1:18799/inside", "/etc/passwd"
TARGETS = (ADDRESS, f"file://{FILE}", FILE, "//127.0.0.1/inside", "../../etc/passwd", "inside.json")
# Where modules are read from when they are imported first.
_ROOTS = [Path(p) for p in (*sysconfig.get_paths().values(), sys.base_prefix, kt.__path__[0])]
_CODE = tuple({str(path) for root in _ROOTS for path in (root, root.resolve())})
_WATCHED = ("open", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "os.system",
            "subprocess.Popen", "urllib.Request", "ctypes.dlopen")  # fmt: skip


class Refusing:
    """Refuses, while it is on, whatever opens a file or a connection or starts a program."""

    def __init__(self):
        self.on, self.refused, self.allowed = False, [], ()
        sys.addaudithook(self._see)

    def _see(self, event, arguments):
        if not self.on or event not in _WATCHED:
            return
        if event == "open" and str(arguments[0]).startswith(self.allowed):
            return
        if event == "ctypes.dlopen" or (event == "open" and isinstance(arguments[0], int)):
            return
        self.refused.append((event, str(arguments)[:200]))
        raise PermissionError(f"refused: {event}")

    @contextlib.contextmanager
    def __call__(self, *allowed):
        self.refused.clear()
        self.allowed = (*_CODE, "/dev/fd", *map(str, allowed))
        self.on = True
        try:
            yield
        finally:
            self.on = False
        assert not self.refused


@pytest.fixture(scope="module")
def refusing():
    """It does nothing while it is off: such a hook cannot be taken out of a process."""
    return Refusing()


@pytest.fixture(scope="module")
def tasks(served):
    made = {"writer": writer(), "pictures": images.classifier(), "sounds": audio.classifier()}
    made |= {"both": duals.embedder(), "captions": captioner(), "speech": speech_task()}
    return {**{name: ServedTask(task) for name, task in made.items()}, **served}


@pytest.fixture(scope="module")
def api(tasks):
    app = make_api(tasks)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        chat = {"model": "writer", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        assert client.post("/v1/chat/completions", json=chat).status_code == 200  # starts its child
        schema = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
        asked = {**chat, "max_tokens": 20, "response_format": schema}
        assert client.post("/v1/chat/completions", json=asked).status_code == 200
        yield client


@pytest.fixture(scope="module")
def page(tasks):
    app = make_app(tasks)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


def files():
    """Files that name others, or are such a name."""
    svg = f'<svg xmlns:x="http://www.w3.org/1999/xlink"><image x:href="{ADDRESS}"/></svg>'
    yield from (
        *(target.encode() for target in TARGETS[:3]),
        svg.encode(),
        f"#EXTM3U\n{ADDRESS}\n".encode(),
        f"push graphic-context\nimage over 0,0 0,0 'url({ADDRESS})'\n".encode(),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n",
        b"%PDF-1.4\n",
        b"v4l2:/dev/video0",
    )
    picture, sound = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (9, 7)).save(picture, "png")
    soundfile.write(sound, [0.0] * 100, 8000, format="wav")
    for content in (picture.getvalue(), sound.getvalue()):
        yield from (content[: len(content) // 2], content)


def schemas():
    """JSON Schemas that refer to elsewhere, at the top, within, and where words are beside it."""
    for target in TARGETS[:2]:
        for key in ("$ref", "$dynamicRef", "$id"):
            far = {key: target}
            yield far
            yield {"properties": {"a": far}, "enum": [{"a": 1}]}
            yield {"items": far, "const": [1]}
            yield {"oneOf": [far, {"type": "string"}]}
            yield {"propertyNames": far, "additionalProperties": far, "type": "object"}
            yield {"$defs": {"b": far}, "$ref": "#/$defs/b"}


def values(kind, encoded):
    """Values of a field of a kind that name files and addresses."""
    if kind in ("text", "file"):
        yield from TARGETS[:2]
    elif kind == "messages":
        yield from ([{"role": "user", "content": target}] for target in TARGETS[:2])
    elif kind == "texts":
        yield from ([target, f"[MASK] {target}"] for target in TARGETS[:2])
    if kind == "file":
        yield from encoded


def test_no_request_opens_a_file_or_a_connection(api, page, tasks, refusing):
    """Each verb with each of its fields, of the page and of the API."""
    encoded = [base64.b64encode(content).decode() for content in files()]
    usual = {"text": "a [MASK]", "texts": ["a [MASK]"], "file": encoded[-1]}
    usual["messages"] = [{"role": "user", "content": "a"}]
    with refusing():
        statuses, asked_verbs = set(), set()
        for name, served in tasks.items():
            for verb in served.verbs:
                given = {f.name: usual[f.kind] for f in verb.fields if f.kind in usual}
                given |= {f.name: 2 for f in verb.fields if f.name == "max_new_tokens"}
                asked_verbs.add(verb.name)
                for field in verb.fields:
                    hostile = list(values(field.kind, encoded))
                    for value in hostile:
                        asked = {**given, field.name: value}
                        for end in ("", "/explain") if value == hostile[0] else ("",):
                            path = f"/api/{name}/{verb.name}{end}"
                            statuses.add(page.post(path, json=asked).status_code)
                        # The same functions: some values are enough.
                        if value in hostile[::4] and verb.name not in ("complete", "embed"):
                            found = api.post(f"/{verb.name}", json={"model": name, **asked})
                            statuses.add(found.status_code)
        for target in TARGETS:
            for path in (f"/{target}", f"/views/{target}", f"/v1/models/{target}"):
                statuses.add(page.get(path).status_code)
                statuses.add(api.get(path).status_code)
    assert statuses <= {200, 400, 404, 422}
    assert asked_verbs == {verb.name for verb in VERBS}


def test_no_prompt_and_no_schema_opens_a_file_or_a_connection(api, refusing):
    asked = {"model": "writer", "max_tokens": 4, "temperature": 0}
    with refusing():
        statuses = []
        for schema in schemas():
            form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
            given = {**asked, "prompt": "a", "response_format": form}
            statuses.append(api.post("/v1/completions", json=given).status_code)
        for target in TARGETS[:3]:
            for field in ("prompt", "model", "stop", "user", "suffix", "response_format"):
                given = {**asked, "prompt": "a", field: target}
                statuses.append(api.post("/v1/completions", json=given).status_code)
            parts = [{"type": "image_url", "image_url": {"url": target}}]
            for content in (target, parts, [{"type": "text", "text": target}]):
                messages = [{"role": "user", "content": content}]
                given = {**asked, "messages": messages}
                statuses.append(api.post("/v1/chat/completions", json=given).status_code)
            given = {"model": "embedder", "input": target}
            statuses.append(api.post("/v1/embeddings", json=given).status_code)
    assert set(statuses) <= {200, 400, 404}


TEMPLATES = (
    "{%% include '%s' %%}", "{%% import '%s' as x %%}", "{%% extends '%s' %%}",
    "{{ self.__init__.__globals__.__builtins__.open('%s').read() }}",
    "{{ cycler.__init__.__globals__.os.popen('cat %s').read() }}",
    "{{ lipsum.__globals__['os'].system('cat %s') }}",
    "{{ messages.__class__.__base__.__subclasses__() }}%s",
)  # fmt: skip


def test_no_template_opens_a_file_or_a_connection(refusing):
    tokenizer = writer().tokenizer
    messages = [{"role": "user", "content": "a"}]
    tokenizer.encode_chat(messages)
    with refusing():
        for target in TARGETS:
            for template in TEMPLATES:
                tokenizer.chat_template = template % target
                with pytest.raises(ValueError, match="The chat template"):
                    tokenizer.encode_chat(messages)


def places(value, path=()):
    """The paths to all strings of JSON."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, (dict, list)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*path, key))


def test_no_file_of_a_model_opens_one_beyond_its_folder(refusing, tmp_path):
    """A file or an address in the place of each text of its config and its tokenizer."""
    folder = tmp_path / "writer"
    writer().save_to_preset(folder)
    kt.CausalLM.from_preset(folder)
    for name in ("config.json", "tokenizer_config.json"):
        path = next(folder.rglob(name))
        whole = json.loads(path.read_text("utf-8"))
        for place in places(whole):
            for target in (f"file://{FILE}", "../../etc/passwd"):
                changed = copy.deepcopy(whole)
                within = functools.reduce(lambda found, key: found[key], place[:-1], changed)
                within[place[-1]] = target
                path.write_text(json.dumps(changed), "utf-8")
                with refusing(tmp_path), contextlib.suppress(ValueError, OSError):
                    kt.CausalLM.from_preset(folder)
        path.write_text(json.dumps(whole), "utf-8")


# Without shrinking: a request that fails is short enough.
PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (make_app, ("classifier", "lm", "pictures")),
        (make_api, ("classifier", "writer", "embedder")),
    ],
)
def test_whatever_the_description_allows_is_no_mistake_of_the_server(make, names, tasks):
    """Schemathesis makes requests of the description, right ones and wrong ones."""
    wanted = [
        schemathesis.checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    settings = hypothesis.settings(
        max_examples=20 if THOROUGH else 4, deadline=None, database=None, phases=PHASES,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    # An answer to a chat may take all of the room that there is.
    app = make({name: tasks[name] for name in names}, dataclasses.replace(API_LIMITS, tokens=32))
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
        schema.config.generation.update(modes=list(schemathesis.GenerationMode))
        for operation in schema.get_all_operations():

            @settings
            @hypothesis.given(case=operation.ok().as_strategy())
            def ask(case):
                for name in ("max_tokens", "max_new_tokens", "max_completion_tokens", "n"):
                    if isinstance(case.body, dict) and isinstance(case.body.get(name), int):
                        case.body[name] = min(case.body[name], 2)  # how fast it is does not matter
                sent = case.as_transport_kwargs(base_url="http://127.0.0.1")
                case.validate_response(client.request(**sent), checks=wanted)

            ask()
