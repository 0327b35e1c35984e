"""OpenAI's API by its own client: each answer is what the task gives alone."""

import concurrent.futures
import dataclasses
import json
import socket
import time

import keras
import numpy as np
import openai
import pytest

import keras_transformer as kt
from keras_transformer.serving import API_LIMITS, Served, make_api
from keras_transformer.serving.worker import Done, Failed, Job, Worker
from tests.cli.conftest import TEXTS, tiny_config
from tests.serving.conftest import ask, started

TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
}


def writer(fails_at=None):
    """A language model that knows nothing; `fails_at` is a token that makes it give no numbers."""
    keras.utils.set_random_seed(3)
    tokenizer = kt.Tokenizer.train(TEXTS, vocabulary_size=300)
    tokenizer.chat_template = TEMPLATE
    config = tiny_config("decoder", tokenizer)
    backbone = kt.models.Decoder(config.replace(tie_embeddings=False, position="rotary"))
    for weight in backbone.weights:  # so large that one token is far likelier than the others
        if weight.path.endswith(("embeddings", "kernel")):
            weight.assign(3 * keras.ops.convert_to_numpy(weight))
    if fails_at is not None:
        table = next(w for w in backbone.weights if "embeddings" in w.path)
        values = np.array(keras.ops.convert_to_numpy(table))
        values[tokenizer.encode(fails_at, special_tokens=False)[-1]] = 3e38  # overflows
        table.assign(values)
    return kt.CausalLM(backbone, tokenizer)


@pytest.fixture(scope="module")
def task():
    return writer()


@pytest.fixture(scope="module")
def api(task, served):
    tasks = {"writer": Served(task), **{n: served[n] for n in ("classifier", "words", "embedder")}}
    with started(make_api(tasks)) as port:
        yield port


@pytest.fixture(scope="module")
def client(api):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{api}/v1", api_key="none", max_retries=0)


def drawn(task, prompt, most, temperature, top_p, seed, n=1):
    sampler = "greedy" if temperature == 0 else kt.generation.Random(temperature, top_p=top_p)
    return task.generate(prompt, most, sampler, seed=seed, num_samples=n)


def test_texts_of_many_clients_are_those_of_one(client, task):
    """Whatever batch a text is in, and however the others are drawn."""
    rng = np.random.default_rng(0)
    asked = [
        ("two dogs " * int(rng.integers(1, 12)) + "a" * i, int(rng.integers(1, 30)), *how, i)
        for i in range(8)
        for how in ((0, 1), (0.7, 1), (1.3, 0.8))
    ]

    def complete(prompt, most, temperature, top_p, seed):
        found = client.completions.create(
            model="writer", prompt=prompt, max_tokens=most, temperature=temperature, top_p=top_p,
            seed=seed,
        )  # fmt: skip
        return found.choices[0].text

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda values: complete(*values), asked))
    assert found == [drawn(task, *values) for values in asked]


def test_samples_and_streams_of_a_seed(client, task):
    options = {"model": "writer", "prompt": "a man", "max_tokens": 12, "seed": 7, "n": 3}
    expected = drawn(task, "a man", 12, 1.0, 1.0, 7, n=3)
    found = client.completions.create(**options)
    assert [choice.text for choice in found.choices] == expected
    assert found.usage.completion_tokens == 36 and found.usage.prompt_tokens > 0
    texts, reasons, usage = [""] * 3, {}, None
    stream = client.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    assert texts == expected and set(reasons.values()) == {"length"}
    assert usage.completion_tokens == 36


@pytest.mark.one_backend
def test_a_stop_string_ends_a_text(client, task):
    whole = task.generate("a man", 24, "greedy")
    stop = whole[4:7]
    options = {"model": "writer", "prompt": "a man", "max_tokens": 24, "temperature": 0}
    found = client.completions.create(**options, stop=[stop, "never"]).choices[0]
    assert (found.text, found.finish_reason) == (whole[: whole.index(stop)], "stop")
    pieces = client.completions.create(**options, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in pieces) == found.text


@pytest.mark.one_backend
def test_chats(client, task):
    messages = [{"role": "user", "content": "two dogs"}]
    options = {"model": "writer", "messages": messages, "temperature": 0, "max_tokens": 10}
    expected = task.chat(messages, max_new_tokens=10, sampler="greedy")
    found = client.chat.completions.create(**options, logprobs=True, top_logprobs=2).choices[0]
    assert (found.message.content, found.message.role) == (expected, "assistant")
    details = task.generate(
        task.tokenizer.encode("user two dogs assistant", special_tokens=False), 10, "greedy",
        return_details=True,
    )  # fmt: skip
    entries = found.logprobs.content
    scores = [entry.logprob for entry in entries]
    np.testing.assert_allclose(scores, details.log_probabilities, atol=1e-4)
    assert b"".join(bytes(entry.bytes) for entry in entries).decode(errors="replace") == expected
    for entry in entries:  # greedy: what was chosen is the likeliest
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob, abs=1e-4)
    parts = [{"role": "user", "content": [{"type": "text", "text": "two dogs"}]}]
    stream = client.chat.completions.create(**{**options, "messages": parts}, stream=True)
    chunks = [chunk.choices[0] for chunk in stream]
    assert chunks[0].delta.role == "assistant" and chunks[-1].finish_reason == "length"
    assert "".join(chunk.delta.content or "" for chunk in chunks) == expected


@pytest.mark.one_backend
def test_log_probabilities_of_a_completion(client, task):
    found = client.completions.create(model="writer", prompt="a", max_tokens=6, seed=1, logprobs=3)
    details = task.generate("a", 6, "random", seed=1, return_details=True)
    given = found.choices[0].logprobs
    np.testing.assert_allclose(given.token_logprobs, details.log_probabilities, atol=1e-4)
    assert [len(row) for row in given.top_logprobs] == [3] * 6
    assert given.text_offset[0] == 0 and len(given.tokens) == 6


@pytest.mark.one_backend
def test_an_answer_that_is_json_by_a_schema(client):
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    messages = [{"role": "user", "content": "a number"}]
    for seed in range(3):
        found = client.chat.completions.create(
            model="writer", messages=messages, max_tokens=20, seed=seed, response_format=form
        )
        assert 0 <= json.loads(found.choices[0].message.content)["n"] <= 9


@pytest.mark.one_backend
def test_vectors(client, served):
    texts = ["a man rides a bike .", "two dogs"]
    expected = np.asarray(served["embedder"].task.encode(texts))
    for form in ("float", "base64"):  # the client asks for base64 where it is not told
        options = {"encoding_format": form} if form == "float" else {}
        found = client.embeddings.create(model="embedder", input=texts, **options)
        np.testing.assert_allclose([row.embedding for row in found.data], expected, atol=1e-5)
        assert found.usage.prompt_tokens > 4


@pytest.mark.one_backend
def test_models_and_what_the_page_can(api, client, served):
    names = ["writer", "classifier", "words", "embedder"]
    assert [model.id for model in client.models.list()] == names
    assert client.models.retrieve("words").id == "words"
    status, _, found = ask(api, "/classify", {"texts": ["two dogs"]})  # one model alone has it
    label, score = served["classifier"].task.classify(["two dogs"])[0]
    assert status == 200 and found["model"] == "classifier"
    assert found["rows"][0][0] == {"label": label, "score": pytest.approx(score, abs=1e-6)}
    given = {"model": "words", "texts": ["a dog"], "beams": 1, "max_new_tokens": 5}
    expected = served["words"].task.generate(["a dog"], max_new_tokens=5, sampler="greedy")
    assert len(ask(api, "/translate", given)[2]["texts"]) == len(expected) == 1


def said_by(role, content, times=1):
    return {"messages": [{"role": role, "content": content}] * times}


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("path", "changed", "status", "told"),
    [
        ("completions", {"model": "nobody"}, 404, "'nobody' does not exist. There are: 'writer'"),
        ("completions", {"model": None}, 400, "`model` is missing"),
        ("completions", {"model": "words"}, 404, "'words' has no /v1/completions. These can: wri"),
        ("completions", {"prompt": None}, 400, "`prompt` is missing"),
        ("completions", {"prompt": ""}, 400, "empty"),
        ("completions", {"prompt": [10**6]}, 400, "10"),
        ("completions", {"prompt": "a" * 200_001}, 413, "200,001 characters"),
        ("completions", {"max_tokens": 10**6}, 413, "more than there is room for"),
        ("completions", {"max_tokens": 0}, 400, "`max_tokens` must be a number from 1"),
        ("completions", {"temperature": 3}, 400, "`temperature` must be a number from 0 to 2"),
        ("completions", {"top_p": 0}, 400, "`top_p`"),
        ("completions", {"n": 10**6}, 400, "`n` must be a number from 1 to 32"),
        ("completions", {"stream": "yes"}, 400, "`stream` must be true or false"),
        ("completions", {"stop": [1]}, 400, "`stop` must be"),
        ("completions", {"suffix": "end"}, 400, "`suffix` is not supported"),
        ("completions", {"response_format": {"type": "x"}}, 400, "`response_format.type`"),
        (
            "completions",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            400, "not",
        ),
        ("chat/completions", {"messages": "hello"}, 400, "`messages` must be a list"),
        ("chat/completions", {"messages": [{"role": "user"}]}, 400, "`messages[0].content`"),
        ("chat/completions", {"messages": [], "tools": [1]}, 400, "`tools` is not supported"),
        ("completions", {"\ud800": 1}, 400, "`'\\ud800'` has '\\ud800' at 0, half of a surrogate"),
        ("completions", {"stop": "\udfff"}, 400, "`stop` has '\\udfff'"),
        ("completions", {"model": "\udfff"}, 400, "`model` has '\\udfff'"),
        ("completions", {"k" * 10**6: 1}, 400, "kkk...kkk"),
        ("completions", {"k" * 10**6 + "\ud800": 1}, 400, "kkk...kkk"),
        ("completions", {"model": "m" * 10**6}, 404, "does not exist"),
        ("chat/completions", said_by("\ud800", ""), 400, "`messages[0].role` has"),
        ("chat/completions", said_by("user", "\ud800"), 400, "`messages[0].content` has"),
        ("chat/completions", said_by("r" * 200_001, ""), 413, "roles"),
        ("chat/completions", said_by("user", "", 20_000), 413, "number of messages"),
        ("embeddings", {"input": "a", "model": "writer"}, 404, "These can: embedder"),
        ("embeddings", {"input": [], "model": "embedder"}, 400, "`input` must be"),
        ("embeddings", {"input": "a", "model": "embedder", "dimensions": 3}, 400, "16"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_as_openai_does(api, path, changed, status, told):
    given = {"model": "writer"}
    given |= {"prompt": "a"} if path == "completions" else {}
    found = ask(api, f"/v1/{path}", {**given, **changed})
    error = found[2]["error"]
    assert (found[0], set(error)) == (status, {"message", "type", "param", "code"})
    assert told in error["message"] and len(json.dumps(error)) < 1000


@pytest.mark.one_backend
def test_errors_of_the_client(client):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="nobody", prompt="a")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="writer", prompt="a", temperature=9)


@pytest.mark.one_backend
def test_a_key(task):
    with started(make_api({"writer": Served(task)}, key="secret")) as port:
        for given, status in (
            ({}, 401),
            ({"Authorization": "Bearer other"}, 401),
            (
                {"Authorization": "Bearer secret"},
                200,
            ),
            ({"Authorization": "bearer secret"}, 200),
            ({"Authorization": "BEARER  secret"}, 200),
            (
                {"Authorization": "Basic secret"},
                401,
            ),
            ({"Authorization": "secret"}, 401),
            ({"Authorization": "Bearer secret x"}, 401),
        ):
            assert ask(port, "/v1/models", headers=given)[0] == status
            assert ask(port, "/metrics", headers=given)[0] == status
        assert ask(port, "/health")[0] == 200
    with pytest.raises(ValueError, match="key is empty"):
        make_api({"writer": Served(task)}, key=" ")


def test_the_model_fails_for_one_text_and_the_others_go_on():
    """A token of one prompt makes the logits of its row NaN, in the batch of all."""
    task = writer(fails_at="z")
    worker, told = Worker(task, batch_size=8), {}
    prompts = [f"two dogs {'a ' * i}" for i in range(6)] + ["a z"]
    jobs = [
        Job(task, task._encode_prompts([p])[0], 8, 0, 1, 0, 0, told.setdefault(i, []).append)
        for i, p in enumerate(prompts)
    ]
    worker.submit(jobs)  # before it starts: all are in the first batch
    worker.start()
    while not all(events and isinstance(events[-1], (Done, Failed)) for events in told.values()):
        time.sleep(0.01)
    worker.stop()
    assert isinstance(told[6][-1], Failed)
    assert isinstance(told[6][-1].error, FloatingPointError) and worker.failures > 1
    for i, prompt in enumerate(prompts[:6]):
        text = "".join(event.text for event in told[i])
        assert text == task.generate(prompt, 8, "greedy")


@pytest.mark.one_backend
def test_who_comes_when_all_is_full_is_told_so(task):
    limits = dataclasses.replace(API_LIMITS, batch_size=1, waiting=1)
    with started(make_api({"writer": Served(task)}, limits)) as port:
        given = {"model": "writer", "prompt": "a", "n": 3}
        status, headers, found = ask(port, "/v1/completions", given)
        assert (status, headers["retry-after"]) == (429, "2")
        assert found["error"]["code"] == "rate_limit_exceeded"
        assert ask(port, "/v1/completions", {**given, "n": 2})[0] == 200


@pytest.mark.one_backend
def test_a_body_that_does_not_come(task):
    limits = dataclasses.replace(API_LIMITS, body_seconds=0.2)
    with (
        started(make_api({"writer": Served(task)}, limits)) as port,
        socket.create_connection(("127.0.0.1", port), 30) as connection,
    ):
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        assert b" 408 " in connection.recv(4096)
