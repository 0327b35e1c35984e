"""Constraints of requests are compiled apart: strangers take their own time, and no more."""

import json
import os
import signal
import socket
import statistics
import threading
import time
import types

import numpy as np
import pytest

from keras_transformer.generation.constraints.token_automaton import compile_constraint
from keras_transformer.serving import ServedTask, compiling, make_api
from tests.serving.conftest import ask, started
from tests.serving.test_api import SCHEMA, writer

BYTES = [bytes([byte]) for byte in range(256)]
pure = pytest.mark.backend_independent


def endless():
    """A schema of few characters that takes more seconds than anybody waits for."""
    return {"type": "string", "pattern": "((a|b)*a(a|b){14}c){40}"}


def asked(schema):
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    return {"model": "writer", "prompt": "a", "max_tokens": 20, "response_format": form}


@pytest.fixture
def compiler():
    compiler = compiling.Compiler(types.SimpleNamespace(generator=types.SimpleNamespace()))
    yield compiler
    compiler.close()


@pure
def test_the_automaton_is_that_of_the_same_process(compiler):
    tokens = [*BYTES, b"true", None, "é".encode()]
    for kind, value, options in (
        ("json_schema", json.dumps({"type": ["boolean", "null"]}), [True]),
        ("regex", "(true|é)+", [False]),
        ("choices", ["true", "é"], []),
    ):
        found = compiler.compile(kind, value, options, tokens, [5])
        for name, expected in vars(compile_constraint(kind, value, options, tokens, [5])).items():
            np.testing.assert_array_equal(getattr(found, name), expected)
    with pytest.raises(ValueError, match="at schema.'not'. has the keyword 'not'"):
        compiler.compile("json_schema", '{"not": {}}', [False], BYTES, [])
    assert len(compiler._idle) == 1


@pure
def test_time_memory_and_size_are_bounded(compiler, monkeypatch):
    monkeypatch.setattr(compiling, "SECONDS", 0.5)
    with pytest.raises(ValueError, match="takes more than 0.5 seconds .* fewer optional"):
        compiler.compile("json_schema", json.dumps(endless()), [False], BYTES, [])
    monkeypatch.setattr(compiling, "SECONDS", 30.0)
    monkeypatch.setattr(compiling, "MEMORY", 2**24)
    with pytest.raises(ValueError, match="takes more than 16 MB"):
        compiler.compile("regex", "a{90000}", [False], BYTES, [])
    monkeypatch.setattr(compiling, "_MOST_NUMBERS", 10)
    with pytest.raises(
        ValueError, match="7 states with 2 kinds of tokens, more than the server allows"
    ):
        compiler.compile("regex", "a{6}", [False], BYTES, [])
    with pytest.raises(ValueError, match="may have at most 1,048,576: shorten it"):
        compiler.compile("regex", "a" * 2**20, [False], BYTES, [])


@pure
def test_a_process_that_is_killed_is_replaced(compiler):
    for _ in range(2):
        assert compiler.compile("regex", "a", [False], BYTES, []).shortest == 1
        (process,) = compiler._idle
        os.kill(process._popen.pid, signal.SIGKILL)


@pytest.mark.one_backend
def test_others_do_not_wait_for_a_schema_that_takes_long(monkeypatch):
    monkeypatch.setattr(compiling, "SECONDS", 2.0)
    with started(make_api({"writer": ServedTask(writer())})) as port:
        assert ask(port, "/v1/completions", asked(SCHEMA))[0] == 200  # all is compiled
        answers = []

        def attack():
            answers.append(ask(port, "/v1/completions", asked(endless())))

        attacks = [threading.Thread(target=attack) for _ in range(2)]
        for each in attacks:
            each.start()
        waits = []
        while any(each.is_alive() for each in attacks):
            begin = time.perf_counter()
            assert ask(port, "/v1/completions", {**asked(SCHEMA), "max_tokens": 12})[0] == 200
            waits.append(time.perf_counter() - begin)
            time.sleep(0.05)
        # One may wait for another reason where many processes share a machine.
        assert len(waits) > 5 and statistics.median(waits) < 1, waits
        for status, _, told in answers:
            assert status == 400 and "takes more than 2 seconds" in told["error"]["message"]


@pytest.mark.one_backend
def test_what_a_client_asked_for_ends_when_it_leaves(monkeypatch):
    monkeypatch.setattr(compiling, "SECONDS", 60.0)
    monkeypatch.setattr(compiling, "PATIENCE", 60.0)
    begun, ended = threading.Event(), threading.Event()
    asking = compiling.BoundedProcess.ask

    def watched(process, request, *limits):
        if b"(a|b)" not in request:
            return asking(process, request, *limits)
        begun.set()
        try:
            return asking(process, request, *limits)
        finally:
            ended.set()

    monkeypatch.setattr(compiling.BoundedProcess, "ask", watched)
    with started(make_api({"writer": ServedTask(writer())})) as port:
        body = json.dumps(asked(endless())).encode()
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
                b"application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            assert begun.wait(60) and not ended.is_set()
        assert ended.wait(3)
