"""Shared fixtures of server tests: tiny models behind a real server on the loopback."""

import contextlib
import dataclasses
import http.client
import json
import socket
import threading

import pytest

from keras_transformer.serving.app import error_body, make_app
from keras_transformer.serving.connections import Server
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.run import load_served
from tests.cli.conftest import folder  # noqa: F401


@contextlib.contextmanager
def started(app, limits=None):
    """The port of a server of an application, which runs in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    limits = dataclasses.replace(limits or Limits(), stop_seconds=0.2)
    server = Server(app, limits, error_body, log_level="critical")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


def ask(port, path, given=None, body=None, headers=(), method=None):
    """The status, headers and content of an answer, JSON where it is."""
    body = json.dumps(given) if given is not None else body
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    sent = {"Content-Type": "application/json", **dict(headers)}
    connection.request(method or ("GET" if body is None else "POST"), path, body, sent)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.getheader("content-type", "").startswith("application/json"):
        content = json.loads(content)
    return answer.status, answer.headers, content


@pytest.fixture(scope="session")
def served(folder):  # noqa: F811
    """Tiny tasks by their names."""
    names = ("classifier", "tagger", "answerer", "masked", "embedder", "words", "lm")
    return load_served([str(folder / name) for name in names])


@pytest.fixture(scope="session")
def port(served):
    with started(make_app(served)) as port:
        yield port
