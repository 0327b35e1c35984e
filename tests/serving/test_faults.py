"""A real process under what clients do wrong, and what it does when it is stopped."""

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import socket
import time

import openai
import pytest

from tests.cli.conftest import ROOT
from tests.serving.conftest import ask
from tests.serving.test_api import writer

pytestmark = pytest.mark.one_backend


COMMAND = """
import resource, sys
from keras_transformer.cli import main
if descriptors := int(sys.argv.pop(1)):
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
sys.exit(main())
"""


class Process:
    """A server of its own, with what it says: a fork that has the package already."""

    def __init__(self, forks, folder, log, *options, descriptors=0, **environment):
        self.log = log
        self.process = forks.start(
            "-c", COMMAND, descriptors, "serve", "--api", folder, "--port", "0", *options,
            cwd=ROOT, stderr=log, **environment,
        )  # fmt: skip
        said = self.process.stdout.readline()
        self.port = int(re.search(r":(\d+) ", said)[1])
        while ask(self.port, "/ready")[0] != 200:
            time.sleep(0.02)

    def metric(self, name):
        content = ask(self.port, "/metrics")[2].decode()
        found = re.search(rf"^keras_transformer_{name}{{.*}} (.*)$", content, re.M)
        return float(found[1])

    def requests(self):
        """The lines of the log that are of requests."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["event"] == "request"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("writers") / "writer"
    writer(fails_at="z").save_to_preset(folder)
    return folder


@pytest.fixture(scope="module")
def server(forks, folder, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "log.jsonl"
    server = Process(forks, folder, log, "--batch-size", "4", "--body-bytes", "20000000")
    yield server
    server.process.kill()
    server.process.communicate()


GIVEN = {"model": "writer", "prompt": "two dogs", "max_tokens": 20, "temperature": 0}
LONG = {**GIVEN, "max_tokens": 4000, "stream": True}


def sent(port, given, length=None):
    """A connection that has sent a request, of a body that says to be longer than it is."""
    body = json.dumps(given).encode()
    connection = socket.create_connection(("127.0.0.1", port), 60)
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {length or len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def eventually(check):
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_clients_that_break_off_stay_silent_or_talk_nonsense(server):
    """Beside all of them others get what they get alone."""
    expected = ask(server.port, "/v1/completions", GIVEN)[2]["choices"][0]["text"]
    slow = sent(server.port, {**LONG, "max_tokens": 300})  # reads nothing
    leaving = [sent(server.port, LONG) for _ in range(3)]
    leaving.append(sent(server.port, {**LONG, "stream": False}))
    half = sent(server.port, GIVEN, length=10_000)
    for connection in leaving[:3]:
        assert b"200" in connection.recv(4096)
    for connection in leaving:
        connection.close()
    half.close()
    with socket.create_connection(("127.0.0.1", server.port), 60) as garbage:
        garbage.sendall(b"\x00\xff nonsense\r\n\r\n")
        assert b"400" in garbage.recv(4096)
    for body in (b"{", b"\xff\xfe", b"[" * 100_000, b"[]"):
        status, _, found = ask(server.port, "/v1/completions", body=body)
        assert (status, found["error"]["code"]) == (400, "invalid_json")
    huge = {**GIVEN, "prompt": "a" * 10_000_000}
    status, _, found = ask(server.port, "/v1/completions", huge)
    assert status == 400 and "10,000,000 characters" in found["error"]["message"]
    assert ask(server.port, "/v1/completions", body=b" " * 20_000_001)[0] == 413
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ask(server.port, "/v1/completions", GIVEN), range(8)))
    assert [x[2]["choices"][0]["text"] for x in found] == [expected] * 8
    # The places of those who left are free, long before their texts would have ended.
    eventually(lambda: server.metric("running_texts") + server.metric("waiting_texts") <= 1)
    slow.settimeout(60)
    read = b""
    while b"[DONE]" not in read:
        read += slow.recv(65536)
    assert read.count(b'"finish_reason": "length"') == 1
    slow.close()
    eventually(lambda: server.metric("running_texts") == 0)
    told = server.requests()
    assert {400, 401, 413} & {line["status"] for line in told} == {400, 413}
    assert all("two dogs" not in json.dumps(line) for line in told)
    counted = [line for line in told if line.get("completion_tokens") == 20]
    assert counted and all(0 < x["first_token_seconds"] <= x["seconds"] for x in counted)


def test_a_text_that_the_model_fails_for(server):
    """Its row gives no numbers in the batch of all: it alone is an error, whole or in pieces."""
    expected = ask(server.port, "/v1/completions", GIVEN)[2]["choices"][0]["text"]
    bad = {**GIVEN, "prompt": "two dogs z"}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [GIVEN, bad, GIVEN, GIVEN, bad, GIVEN]
        found = list(pool.map(lambda x: ask(server.port, "/v1/completions", x), asked))
    for given, (status, _, content) in zip(asked, found, strict=True):
        if given is bad:
            assert status == 500 and "NaN" in content["error"]["message"]
        else:
            assert content["choices"][0]["text"] == expected
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="-")
    with pytest.raises(openai.APIError, match="NaN"):
        list(client.completions.create(**bad, stream=True))
    assert server.metric("model_failures") >= 2


def test_a_server_that_is_terminated_finishes_what_runs(forks, folder, tmp_path):
    options = ["--batch-size", "4", "--stop-seconds", "300"]
    server = Process(forks, folder, tmp_path / "log.jsonl", *options)
    asked = {**GIVEN, "max_tokens": 400}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = [pool.submit(ask, server.port, "/v1/completions", asked) for _ in range(6)]
        eventually(lambda: server.metric("running_texts") == 4)
        os.kill(server.process.pid, signal.SIGTERM)
        texts = {x.result()[2]["choices"][0]["text"] for x in found}
    assert len(texts) == 1
    assert server.process.wait() == 0
    with pytest.raises(ConnectionRefusedError):
        ask(server.port, "/health")
    assert [line["status"] for line in server.requests() if "completion_tokens" in line] == [
        200
    ] * 6


def test_what_takes_too_long_is_given_up_when_it_is_terminated(forks, folder, tmp_path):
    options = ["--stop-seconds", "1", "--api-key", "KEY_OF_TEST"]
    log = tmp_path / "log.jsonl"
    server = Process(forks, folder, log, *options, descriptors=128, KEY_OF_TEST="secret")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="secret")
    # More connections than there are descriptors, none of which has the key.
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
    with contextlib.ExitStack() as stack:
        for sent in (b"", head, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            for _ in range(130):
                connection = socket.create_connection(("127.0.0.1", server.port), 60)
                stack.enter_context(connection).sendall(sent)
            assert ask(server.port, "/health")[0] == 200
    stream = client.completions.create(**LONG)
    next(stream)
    assert ask(server.port, "/v1/models")[0] == 401
    started = time.monotonic()
    os.kill(server.process.pid, signal.SIGTERM)
    with pytest.raises(openai.APIError, match="The server is stopping"):
        list(stream)
    assert 0.9 < time.monotonic() - started < 5
    assert server.process.wait() == 0 and time.monotonic() - started < 20
