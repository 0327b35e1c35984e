"""The endpoints: each answer is the task's own, and whatever is wrong is said."""

import base64
import io
import json
import socket
import threading
import time

import jsonschema
import numpy as np
import pytest
import soundfile
from PIL import Image
from starlette.testclient import TestClient

import keras_transformer as kt
from keras_transformer.serving import VERBS, Limits, ServedTask, make_api, make_app
from keras_transformer.serving.run import listen
from keras_transformer.tokenizers import moses_detokenize, moses_tokenize
from tests.serving.conftest import ask, started
from tests.serving.test_api import writer
from tests.tasks import audio, images
from tests.tasks.test_ctc_speech_to_text import task as letters

pytestmark = pytest.mark.one_backend

TEXTS = ["a man rides a bike .", "two dogs"]


def test_classes(port, served):
    status, _, found = ask(port, "/api/classifier/classify", {"texts": TEXTS})
    expected = served["classifier"].task.classify(TEXTS, top_k=3)
    assert status == 200
    for rows, each in zip(found["rows"], expected, strict=True):
        assert [row["label"] for row in rows] == [label for label, _ in each]
        assert [row["score"] for row in rows] == pytest.approx([x for _, x in each], abs=1e-6)


def test_fillings_entities_and_answers(port, served):
    given = {"texts": ["a [MASK] dog and a [MASK]"], "top_k": 2}
    (rows,) = ask(port, "/api/masked/fill-mask", given)[2]["rows"]
    (first, second) = served["masked"].task.fill_mask(given["texts"], top_k=2)[0]
    assert [row["token"] for row in rows] == [filling.token for filling in (*first, *second)]
    (rows,) = ask(port, "/api/tagger/recognize", {"texts": TEXTS[:1]})[2]["rows"]
    expected = served["tagger"].task.recognize(TEXTS[:1])[0]
    assert [row["text"] for row in rows] == [entity.text for entity in expected]
    given = {"question": "who ?", "context": TEXTS[0]}
    (rows,) = ask(port, "/api/answerer/answer", given)[2]["rows"]
    (expected,) = served["answerer"].task.answer(["who ?"], [TEXTS[0]], top_k=3)
    assert [row["text"] for row in rows] == [answer.text for answer in expected]


def test_vectors_and_how_near_they_are(port, served):
    found = ask(port, "/api/embedder/embed", {"texts": TEXTS})[2]
    vectors = np.asarray(served["embedder"].task.encode(TEXTS))
    np.testing.assert_allclose(found["vectors"], vectors, atol=1e-5)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(found["similarities"], units @ units.T, atol=1e-5)


def test_translations_of_ordinary_text(port, served):
    given = {"texts": ["A man, two dogs."], "beams": 2, "max_new_tokens": 5}
    found = ask(port, "/api/words/translate", given)[2]["texts"]
    sampler = kt.generation.BeamSearch(2)
    split = [moses_tokenize(text) for text in given["texts"]]
    expected = served["words"].task.generate(split, sampler=sampler, max_new_tokens=5)
    assert found == [moses_detokenize(text) for text in expected]


def test_a_stream_is_the_text_in_pieces(port, served):
    given = {"prompt": "two dogs", "max_new_tokens": 12, "temperature": 0}
    (whole,) = ask(port, "/api/lm/complete", given)[2]["texts"]
    task = served["lm"].task
    assert whole == task.generate("two dogs", max_new_tokens=12, sampler="greedy")
    status, headers, content = ask(port, "/api/lm/complete/stream", given)
    lines = [json.loads(line) for line in content.splitlines()]
    assert status == 200 and headers["content-type"] == "application/x-ndjson"
    assert lines[-1] == {"done": True}
    assert "".join(line["piece"] for line in lines[:-1]) == whole
    drawn = {**given, "temperature": 1.5, "seed": 5}
    assert ask(port, "/api/lm/complete", drawn)[2] == ask(port, "/api/lm/complete", drawn)[2]


@pytest.fixture(scope="module")
def talker():
    """The port of a page with a model that has a chat template, and its task."""
    task = writer()
    with started(make_app({"talker": ServedTask(task)})) as port:
        yield port, task


TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "two dogs"},
    {"role": "assistant", "content": "a man"},
    {"role": "user", "content": "rides <b>"},
]


def test_a_conversation(talker):
    port, task = talker
    given = {"messages": TALK, "max_new_tokens": 9, "temperature": 0}
    (whole,) = ask(port, "/api/talker/chat", given)[2]["texts"]
    assert whole and whole == task.chat(TALK, max_new_tokens=9, sampler="greedy")
    _, _, content = ask(port, "/api/talker/chat/stream", given)
    lines = [json.loads(line) for line in content.splitlines()]
    assert "".join(line["piece"] for line in lines[:-1]) == whole and lines[-1] == {"done": True}
    drawn = {"messages": TALK, "max_new_tokens": 9, "seed": 3, "temperature": 2}
    (drawn,) = ask(port, "/api/talker/chat", drawn)[2]["texts"]
    sampler = kt.generation.Random(2, top_p=0.95)
    assert drawn == task.chat(TALK, max_new_tokens=9, seed=3, sampler=sampler)
    verbs = [verb["verb"] for verb in ask(port, "/api")[2]]
    assert verbs == ["chat", "complete"]  # the page shows the first


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "a list of 1 to 100 messages"),
        ("hello", "a list of 1 to 100 messages"),
        (TALK[1:2] * 101, "a list of 1 to 100 messages"),
        (["hello"], "must have objects with a `role`"),
        ([{"role": "user"}], "must have objects with a `role`"),
        ([{**TALK[0], "name": "x"}], "must have objects with a `role`"),
        ([{"role": "tool", "content": "a"}], "one of system, user, assistant"),
        ([{"role": ["user"], "content": "a"}], "one of system, user, assistant"),
        ([{"role": "user", "content": " "}], "not empty"),
        ([{"role": "user", "content": ["a"]}], "must be a text"),
        ([{"role": "user", "content": "a" * 7000}] * 3, "21,000 characters"),
        ([{"role": "user", "content": "ab " * 3000}], "start a new conversation"),
    ],
)
def test_conversations_that_are_refused(talker, messages, told):
    for form in ("", "/stream"):
        status, _, found = ask(talker[0], f"/api/talker/chat{form}", {"messages": messages})
        assert status == 422 and told in found["error"]


def test_a_model_without_a_chat_template_completes_only(port):
    given = {"messages": TALK[1:2]}
    assert ask(port, "/api/lm/chat", given)[0] == 404


def test_an_image_as_bytes():
    task = images.classifier()
    content = io.BytesIO()
    Image.new("RGB", (9, 7), "red").save(content, "png")
    with started(make_app({"pictures": ServedTask(task)})) as port:
        given = {"file": base64.b64encode(content.getvalue()).decode()}
        (rows,) = ask(port, "/api/pictures/classify", given)[2]["rows"]
        ((label, score),) = task.classify([content.getvalue()], top_k=1)[0]
        assert (rows[0]["label"], rows[0]["score"]) == (label, pytest.approx(score, abs=1e-6))
        slow = []  # to decode, which no other request would get through
        for form in ({}, {"no_jp2": True}):
            slow.append(io.BytesIO())
            Image.new("RGB", (9, 7)).save(slow[-1], "JPEG2000", **form)
        slow = [(each.getvalue(), "JPEG 2000") for each in slow]
        for wrong, told in ((b"no image", "cannot be read as an image"), (b"", "base64"), *slow):
            given = {"file": base64.b64encode(wrong).decode()}
            status, _, found = ask(port, "/api/pictures/classify", given)
            assert status == 422 and told in found["error"]


def test_a_view_of_the_attention(port):
    """It is a page of its own that may reach nothing; the oldest are forgotten."""
    status, _, found = ask(port, "/api/classifier/classify/explain", {"texts": TEXTS[:1]})
    assert status == 200
    status, headers, page = ask(port, found["view"])
    assert status == 200 and b"bike" in page
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "sandbox allow-scripts" in policy
    assert ask(port, "/views/nothing")[0] == 404


def test_the_latest_views_are_kept(served):
    only = {"classifier": served["classifier"]}
    with started(make_app(only, Limits(explanations=2))) as port:
        path = "/api/classifier/classify/explain"
        views = [ask(port, path, {"texts": ["a dog"]})[2]["view"] for _ in range(3)]
        assert [ask(port, view)[0] for view in views] == [404, 200, 200]


@pytest.mark.parametrize(
    ("path", "given", "status", "told"),
    [
        ("classifier/classify", {}, 422, "`texts` is missing: give a list of texts"),
        ("classifier/classify", {"texts": []}, 422, "1 to 32 texts, not 0"),
        ("classifier/classify", {"texts": ["a"] * 33}, 422, "1 to 32 texts, not 33"),
        ("classifier/classify", {"texts": ["a", " "]}, 422, "not empty"),
        ("classifier/classify", {"texts": [3]}, 422, "must be a text"),
        ("classifier/classify", {"texts": ["a" * 20_001]}, 422, "20,001 characters"),
        ("classifier/classify", {"texts": ["a"], "top": 3}, 422, "`top` is not known here"),
        ("classifier/classify", {"k" * 10**6: 3}, 422, "kkk...kkk"),
        ("classifier/classify", {"texts": ["\ud800"]}, 422, "`texts[0]` has '\\ud800'"),
        ("classifier/classify", {"\udc00": 1}, 422, "half of a surrogate pair"),
        ("classifier/classify", ["a"], 422, "must be a JSON object"),
        ("masked/fill-mask", {"texts": ["no mask"]}, 422, "[MASK]"),
        ("masked/fill-mask", {"texts": ["[MASK]"], "top_k": 0}, 422, "from 1 to 20"),
        ("masked/fill-mask", {"texts": ["[MASK]"], "top_k": 2.5}, 422, "must be an integer"),
        ("masked/fill-mask", {"texts": ["[MASK]"], "top_k": True}, 422, "must be an integer"),
        ("lm/complete", {"prompt": "a", "temperature": float("nan")}, 422, "NaN is not a JSON"),
        ("lm/complete", {"prompt": "a", "temperature": 5}, 422, "from 0 to 4"),
        ("lm/complete", {"prompt": "a", "max_new_tokens": 10**9}, 422, "from 1 to 512"),
        ("lm/translate", {"texts": ["a"]}, 404, "lm/translate is not served"),
        ("nothing/classify", {"texts": ["a"]}, 404, "There are: classifier/classify"),
        ("words/translate/stream", {"texts": ["a"]}, 404, "cannot be streamed"),
    ],
)
def test_what_is_wrong_is_said(port, path, given, status, told):
    found = ask(port, f"/api/{path}", given)
    assert found[0] == status and told in found[2]["error"] and len(found[2]["error"]) < 1000


def test_bodies_that_are_no_json(port):
    for body in ("{", b"\xff\xfe", "[" * 100_000):
        status, _, found = ask(port, "/api/classifier/classify", body=body)
        assert status == 422 and found["error"]
    form = {"Content-Type": "text/plain"}
    assert ask(port, "/api/classifier/classify", body="{}", headers=form)[0] == 415
    assert ask(port, "/api/classifier/classify", method="GET")[0] == 405


def test_a_body_is_bounded_whatever_it_says_of_itself(served):
    app = make_app({"classifier": served["classifier"]}, Limits(body_bytes=2**16))
    with started(app) as port:
        status, _, found = ask(port, "/api/classifier/classify", {"texts": ["a" * 2**17]})
        assert status == 413 and "65,536 bytes" in found["error"]
        with socket.create_connection(("127.0.0.1", port), 30) as connection:
            connection.sendall(
                b"POST /api/classifier/classify HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            chunk = b"4000\r\n" + b"a" * 0x4000 + b"\r\n"
            connection.sendall(chunk * 5)
            assert b" 413 " in connection.recv(4096)


def test_bodies_that_do_not_come_and_more_than_is_held(served):
    """Half a body is given up, and what it has sent so far is free for others."""
    limits = Limits(body_seconds=1, held_bytes=10_000)
    head = (
        b"POST /api/classifier/classify HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 9999\r\n\r\n"
    )
    with (
        started(make_app({"classifier": served["classifier"]}, limits)) as port,
        socket.create_connection(("127.0.0.1", port), 30) as connection,
    ):
        connection.sendall(head + b"a" * 9000)
        time.sleep(0.2)
        given = {"texts": ["a dog"], "padding": "a" * 2000}
        status, _, found = ask(port, "/api/classifier/classify", given)
        assert status == 429 and "being read are too large" in found["error"]
        assert b" 408 " in connection.recv(4096)
        for _ in range(8):
            assert ask(port, "/api/classifier/classify", given)[0] == 422


def test_a_view_of_the_attention_is_bounded(served):
    """Its weights are counted before they are made: of 1 layer with 2 heads 2 of each pair."""
    size = served["classifier"].task.explained_inputs("a dog")[0][0]["token_ids"].shape[1]
    for most, expected in ((2 * size**2 - 1, 422), (2 * size**2, 200)):
        app = make_app({"classifier": served["classifier"]}, Limits(attention=most))
        with started(app) as port:
            path = "/api/classifier/classify/explain"
            assert ask(port, path, {"texts": ["a dog"]})[0] == expected
    with started(make_app({"lm": served["lm"]}, Limits(attention=10**6))) as port:
        began = time.monotonic()
        status, _, found = ask(port, "/api/lm/complete/explain", {"prompt": "a " * 9_999})
        assert status == 422 and "square of its length" in found["error"]
        assert time.monotonic() - began < 20


def flac(seconds, rate=audio.RATE):
    file = io.BytesIO()
    soundfile.write(file, np.zeros(round(seconds * rate)), rate, format="FLAC")
    return {"file": base64.b64encode(file.getvalue()).decode()}


def test_the_length_of_recordings_is_bounded_before_they_are_decoded():
    """For every verb, by what the file says of itself; silence is compressed 300 times."""
    tasks = {"sounds": ServedTask(audio.classifier()), "letters": ServedTask(letters())}
    limits = Limits(samples=8 * audio.RATE)
    api = TestClient(make_api(tasks, limits), base_url="http://127.0.0.1")
    with started(make_app(tasks, limits)) as port, api:
        for seconds, expected in ((8, 200), (8.001, 413)):
            given = flac(seconds)
            for path in ("sounds/classify", "sounds/classify/explain"):
                status, _, found = ask(port, f"/api/{path}", given)
                assert status == expected
            assert expected == 200 or "have 64,000. Cut it into pieces" in found["error"]
            assert api.post("/classify", json=given).status_code == expected
        assert ask(port, "/api/sounds/classify", flac(5, 16_000))[0] == 413  # its own rate counts
        assert ask(port, "/api/letters/transcribe", flac(9))[0] == 413
        assert api.post("/transcribe", json=flac(9)).status_code == 413
    # A waveform that is read whole has a state for each 100 samples, as many as a text has tokens.
    with started(make_app(tasks, Limits(tokens=100))) as port:
        assert ask(port, "/api/letters/transcribe", flac(1.25))[0] == 200
        status, _, found = ask(port, "/api/letters/transcribe", flac(1.27))
        assert status == 413 and "at most 1.2 at once" in found["error"]


@pytest.mark.parametrize(
    "preset, verb, name",
    [("lm", "complete", "prompt"), ("lm", "complete/stream", "prompt"),
     ("lm", "complete/explain", "prompt"), ("words", "translate", "texts"),
     ("masked", "fill-mask", "texts")],
)  # fmt: skip
def test_the_tokens_of_texts_that_are_read_whole_are_bounded(served, preset, verb, name):
    task, text = served[preset].task, "a [MASK] rides a bike ."
    (row,) = task.tokenizer.encode_batch([text])
    with started(make_app(served, Limits(tokens=len(row) - 1))) as port:
        status, _, told = ask(port, f"/api/{preset}/{verb}", {name: text})
        assert status == 422 and f"`{name}` has a text of {len(row)} tokens" in told["error"]
    if name == "texts":  # The square of the longest, for each: four take what one of twice has.
        with started(make_app(served, Limits(tokens=2 * len(row) - 1))) as port:
            assert ask(port, f"/api/{preset}/{verb}", {name: [text] * 4})[0] == 422
            assert ask(port, f"/api/{preset}/{verb}", {name: [text] * 3})[0] == 200
            assert ask(port, "/api/classifier/classify", {name: [text] * 4})[0] == 200  # are cut


def test_no_answer_is_taken_for_what_it_does_not_say(port):
    for path in ("/", "/api", "/openapi.json", "/views/x", "/none", "/page.js"):
        assert ask(port, path)[1]["x-content-type-options"] == "nosniff"
    for given in ({"texts": ["a"]}, {}):
        answered = ask(port, "/api/classifier/classify", given)
        assert answered[1]["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1", "0.0.0.0"])
def test_a_server_answers_to_the_name_that_it_is_given(host, served):
    try:
        listener, named, hosts = listen(host, 0)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    app = TestClient(make_app({"classifier": served["classifier"]}, hosts=hosts))
    with listener:
        port = listener.getsockname()[1]
        for name in (named, named.upper(), "127.0.0.1", "localhost"):
            assert app.get("/api", headers={"Host": f"{name}:{port}"}).status_code == 200
        foreign = app.get("/api", headers={"Host": "example.org"}).status_code
        assert foreign == (200 if host == "0.0.0.0" else 400)


def test_only_names_of_this_machine_are_answered(port):
    """A page of another site that has this address under its own name gets nothing."""
    status, headers, found = ask(port, "/api", headers={"Host": "example.org"})
    assert (status, found) == (400, {"error": "Invalid host header"})
    assert headers["x-content-type-options"] == "nosniff"
    assert ask(port, "/api", headers={"Host": "localhost"})[0] == 200


def test_no_file_of_the_machine_is_served(port):
    for path in ("/../app.py", "/%2e%2e/app.py", "/page/page.html", "//etc/passwd", "/app.py"):
        assert ask(port, path)[0] == 404
    for path, part in (("/", b"<h1>"), ("/page.js", b"fetch"), ("/page.css", b":root")):
        status, headers, content = ask(port, path)
        assert status == 200 and part in content
        assert "default-src 'none'" in headers["content-security-policy"]


class Slow:
    """A language model that writes until it is stopped, a piece whenever it is let."""

    def __init__(self):
        self.go, self.closed, self.written = threading.Event(), threading.Event(), 0

    def generate(self, prompt, stream=False, **options):
        try:
            while True:
                self.go.wait(0.05)
                self.written += 1
                yield "word "
        finally:
            self.closed.set()


Slow.__name__ = "CausalLM"


def test_who_stops_to_listen_stops_the_model(served):
    slow = Slow()
    app = make_app(
        {"slow": ServedTask(slow), "classifier": served["classifier"]}, Limits(running=2)
    )
    with started(app) as port, socket.create_connection(("127.0.0.1", port), 30) as reader:
        body = b'{"prompt": "a"}'
        reader.sendall(
            b"POST /api/slow/complete/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
            b"application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        assert b"200" in reader.recv(4096)
        # Another one is answered meanwhile.
        assert ask(port, "/api/classifier/classify", {"texts": ["a dog"]})[0] == 200
        assert not slow.closed.is_set()
        reader.close()
        assert slow.closed.wait(20)
        count = slow.written
        time.sleep(0.3)
        assert slow.written == count


def test_too_many_are_told_to_come_again():
    slow = Slow()
    app = make_app({"slow": ServedTask(slow)}, Limits(running=1, waiting=0))
    with started(app) as port, socket.create_connection(("127.0.0.1", port), 30) as reader:
        reader.sendall(
            b"POST /api/slow/complete/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
            b'application/json\r\nContent-Length: 15\r\n\r\n{"prompt": "a"}'
        )
        assert b"200" in reader.recv(4096)
        status, headers, found = ask(port, "/api/slow/complete/stream", {"prompt": "b"})
        assert status == 429 and headers["retry-after"] == "2" and "wait" in found["error"]
        reader.close()
        assert slow.closed.wait(20)
        slow.closed.clear()
        deadline = time.monotonic() + 20
        while True:  # its place is free again
            with socket.create_connection(("127.0.0.1", port), 30) as again:
                again.sendall(
                    b"POST /api/slow/complete/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                    b'application/json\r\nContent-Length: 15\r\n\r\n{"prompt": "a"}'
                )
                if b" 200 " in again.recv(4096):
                    break
            assert time.monotonic() < deadline
        assert slow.closed.wait(20)


def test_texts_of_many_at_once_are_those_of_one(port, served):
    texts = [f"two dogs {'a ' * n}." for n in range(8)]
    expected = [served["lm"].task.generate(t, max_new_tokens=8, sampler="greedy") for t in texts]
    found = [None] * len(texts)

    def complete(i):
        given = {"prompt": texts[i], "max_new_tokens": 8, "temperature": 0}
        found[i] = ask(port, "/api/lm/complete", given)[2]["texts"][0]

    threads = [threading.Thread(target=complete, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_the_description_is_of_what_there_is(port, served):
    """Each endpoint is described, and what the description allows is answered."""
    described = ask(port, "/openapi.json")[2]
    assert described["openapi"].startswith("3.1")
    listed = ask(port, "/api")[2]
    assert {f"/api/{each['preset']}/{each['verb']}" for each in listed} <= set(described["paths"])
    for path, operations in described["paths"].items():
        body = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator.check_schema(body)
        found = operations["post"]["responses"]["200"]["content"]
        assert set(found) <= {"application/json", "application/x-ndjson"}, path
    schema = described["paths"]["/api/masked/fill-mask"]["post"]["requestBody"]["content"]
    schema = schema["application/json"]["schema"]
    jsonschema.validate({"texts": ["[MASK]"]}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"texts": ["[MASK]"], "top_k": 0}, schema)


def test_a_task_that_has_no_form_is_refused():
    with pytest.raises(ValueError, match="'x' is a dict, which cannot be served"):
        make_app({"x": ServedTask({})})


def test_each_verb_names_tasks_that_there_are():
    for verb in VERBS:
        for name in verb.tasks:
            assert issubclass(getattr(kt, name), kt.Task)
