"""OpenAI's API by its own client: each answer is what the task gives alone."""

import concurrent.futures
import dataclasses
import json
import socket
import time

import jsonschema
import keras
import numpy as np
import openai
import pytest

import keras_transformer as kt
from keras_transformer.serving import API_LIMITS, ServedTask, make_api
from keras_transformer.serving.openai_tools import call_form
from keras_transformer.serving.worker import Done, Failed, Job, Worker
from tests.cli.conftest import TEXTS, tiny_config
from tests.serving.conftest import ask, started

TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant"
TOOLS_TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    '[call] {"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "{% endfor %};{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
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
    tasks = {
        "writer": ServedTask(task),
        **{n: served[n] for n in ("classifier", "words", "embedder")},
    }
    with started(make_api(tasks)) as port:
        yield port


@pytest.fixture(scope="module")
def further_api(task):
    """Models for tests of one backend: each compiles programs of its own."""
    first = task.generate(task.tokenizer.encode("a man", special_tokens=False), 1, "greedy")
    tasks = {
        "writer": ServedTask(task),
        "ending": ServedTask(kt.CausalLM(task.backbone, task.tokenizer, end_ids=first)),
        "caller": ServedTask(kt.CausalLM(task.backbone, tools_tokenizer(task))),
    }
    with started(make_api(tasks)) as port:
        yield port


@pytest.fixture(scope="module")
def caller(further_api):
    base = f"http://127.0.0.1:{further_api}/v1"
    return openai.OpenAI(base_url=base, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def client(api):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{api}/v1", api_key="none", max_retries=0)


def tools_tokenizer(task):
    """A tokenizer whose chat template knows tools, and writes calls behind a mark of its own."""
    tokenizer = kt.Tokenizer(task.tokenizer._backend, **task.tokenizer._roles)
    tokenizer.chat_template = TOOLS_TEMPLATE
    return tokenizer


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
def test_a_prompt_that_is_echoed_with_its_log_probabilities(client, task):
    ids = task.tokenizer.encode("a man rides", special_tokens=False)
    inputs = {"token_ids": np.array([ids]), "padding_mask": np.ones((1, len(ids)), bool)}
    states = task.backbone(inputs)
    logits = np.asarray(keras.ops.convert_to_numpy(task.backbone.logits(states)), "float64")[0]
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    options = {"model": "writer", "echo": True, "logprobs": 2}
    for prompt in "a man rides", ids:
        (found,) = client.completions.create(**options, prompt=prompt, max_tokens=0).choices
        scores = found.logprobs
        assert (found.text.strip(), found.finish_reason) == ("a man rides", "length")
        assert scores.token_logprobs[0] is scores.top_logprobs[0] is None
        np.testing.assert_allclose(
            scores.token_logprobs[1:], expected[range(len(ids) - 1), ids[1:]], atol=1e-4
        )
        for row, top in zip(expected, scores.top_logprobs[1:], strict=False):
            np.testing.assert_allclose(sorted(top.values()), np.sort(row)[-2:], atol=1e-4)
        assert "".join(scores.tokens) == found.text
        for offset, token in zip(scores.text_offset, scores.tokens, strict=True):
            assert found.text[offset:].startswith(token)
    stream = client.completions.create(
        model="writer", prompt="a man", echo=True, max_tokens=3, temperature=0, stream=True
    )
    text = "".join(chunk.choices[0].text for chunk in stream)
    assert text == "a man" + task.generate("a man", 3, "greedy")


@pytest.mark.one_backend
def test_the_end_of_a_text_has_a_log_probability_too(caller, task):
    """Harnesses take the last of the tokens away, which they asked for beside the prompt."""
    end = task.generate("a man", 1, "greedy", return_details=True)
    options = {"model": "ending", "prompt": "a man", "max_tokens": 1, "temperature": 0}
    found = caller.completions.create(**options, echo=True, logprobs=1).choices[0]
    assert (found.text, found.finish_reason) == ("a man", "stop")
    assert found.logprobs.token_logprobs[-1] == pytest.approx(end.log_probabilities[0], abs=1e-4)
    ids = task.tokenizer.encode("a man", special_tokens=False)
    assert len(found.logprobs.tokens) == len(found.logprobs.top_logprobs) == len(ids) + 1


@pytest.mark.one_backend
def test_the_best_of_several_texts(client, task):
    details = task.generate("a man", 6, "random", seed=5, num_samples=5, return_details=True)
    best = sorted(details, key=lambda one: -one.log_probabilities.mean())
    found = client.completions.create(
        model="writer", prompt="a man", max_tokens=6, seed=5, n=2, best_of=5
    )
    assert [choice.text for choice in found.choices] == [one.text for one in best[:2]]
    assert [choice.index for choice in found.choices] == [0, 1]
    assert found.usage.completion_tokens == 30  # all that were written


@pytest.mark.one_backend
def test_guidance(client, task, monkeypatch):
    prompts, given = ["a man", "two dogs run"], {"guidance_scale": 3, "negative_prompt": "two dogs"}
    asked = {"model": "writer", "prompt": prompts, "max_tokens": 8, "temperature": 0}
    plain = task.generate(prompts, 8, "greedy")
    guided = task.generate(prompts, 8, "greedy", guidance_scale=3, negative_prompts="two dogs")
    found = client.completions.create(**asked, extra_body=given)
    assert [choice.text for choice in found.choices] == guided != plain
    with pytest.raises(openai.BadRequestError, match="`negative_prompt` needs a `guidance_scale`"):
        client.completions.create(**asked, extra_body={"negative_prompt": "two dogs"})
    monkeypatch.setattr(task.backbone, "generation_config", {"guidance_scale": 3.0})
    found = client.completions.create(**asked)
    assert [choice.text for choice in found.choices] == task.generate(prompts, 8, "greedy")
    found = client.completions.create(**asked, extra_body={"guidance_scale": 1})
    assert [choice.text for choice in found.choices] == plain


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
    embedder = served["embedder"].task
    expected, count = embedder.encode_counted(texts)
    np.testing.assert_array_equal(embedder.encode(texts), expected)
    assert count == sum(map(len, embedder.tokenizer.encode_batch(texts)))
    for form in ("float", "base64"):  # the client asks for base64 where it is not told
        options = {"encoding_format": form} if form == "float" else {}
        found = client.embeddings.create(model="embedder", input=texts, **options)
        np.testing.assert_allclose([row.embedding for row in found.data], expected, atol=1e-5)
        assert found.usage.prompt_tokens == count
    with pytest.raises(openai.BadRequestError, match="characters, and its first .* are fewer"):
        client.embeddings.create(model="embedder", input=["two dogs", "a" * 150_000])  # one token


@pytest.mark.one_backend
def test_many_vectors_and_vectors_of_ids(client, served, task):
    embedder = served["embedder"].task
    texts = [f"two dogs and {i} bikes" for i in range(7)] * 300
    found = client.embeddings.create(model="embedder", input=texts[:2048])
    vectors = np.array([row.embedding for row in found.data])
    assert [row.index for row in found.data] == list(range(2048))
    np.testing.assert_allclose(vectors[2040:], embedder.encode(texts[2040:2048]), atol=1e-5)
    ids = [embedder.tokenizer.encode(text) for text in texts[:2]]
    found = client.embeddings.create(model="embedder", input=ids)
    np.testing.assert_allclose([row.embedding for row in found.data], vectors[:2], atol=1e-5)
    ids = task.tokenizer.encode("two dogs", special_tokens=False)  # of another tokenizer
    found = client.embeddings.create(
        model="embedder", input=ids, extra_body={"tokenizer": "writer"}
    )
    np.testing.assert_allclose(found.data[0].embedding, embedder.encode("two dogs"), atol=1e-5)


@pytest.mark.one_backend
def test_models_and_what_the_page_can(api, client, served):
    names = ["writer", "classifier", "words", "embedder"]
    assert [model.id for model in client.models.list()] == names
    status, _, root = ask(api, "/")
    assert status == 200 and root["models"] == names and "/v1/responses" in root["paths"]
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
        ("completions", {"prompt": "a" * 200_001}, 400, "200,001 characters"),
        ("completions", {"max_tokens": 10**6}, 400, "more than there is room for"),
        ("completions", {"max_tokens": 0}, 400, "`max_tokens` must be an integer from 1"),
        ("completions", {"n": 3, "best_of": 2}, 400, "`best_of` must be at least `n`, 3"),
        ("completions", {"best_of": 2, "stream": True}, 400, "`best_of` cannot be streamed"),
        ("completions", {"prompt": [1], "tokenizer": "cl100k_base"}, 400, "embedder, words"),
        ("completions", {"tools": [1]}, 400, "`tools` is not supported here"),
        ("completions", {"temperature": 3}, 400, "`temperature` must be a number from 0 to 2"),
        ("completions", {"top_p": 0}, 400, "`top_p`"),
        ("completions", {"n": 10**6}, 400, "`n` must be an integer from 1 to 32"),
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
        ("chat/completions", said_by("r" * 200_001, ""), 400, "roles"),
        ("chat/completions", said_by("user", "", 20_000), 400, "number of messages"),
        ("responses", {"input": []}, 400, "`input` must be a text, or a list of at least one"),
        ("responses", {"input": [{"type": "computer_call"}]}, 400, "`input[0]` must be a message"),
        ("responses", {"input": "a", "previous_response_id": "x"}, 400, "`previous_response_id`"),
        ("responses", {"input": "a", "max_output_tokens": 10**6}, 400, "room for"),
        ("embeddings", {"input": "a", "model": "writer"}, 404, "These can: embedder"),
        ("embeddings", {"input": ["a"] * 2049, "model": "embedder"}, 400, "1 to 2,048 texts"),
        ("embeddings", {"input": [9**9], "model": "embedder"}, 400, "send texts"),
        ("embeddings", {"input": [], "model": "embedder", "tools": 1}, 400, "`tools` is not"),
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
    code = "context_length_exceeded"  # the one that clients shorten a conversation for
    too_long = ("room for", "200,001", "roles", "number of messages")
    assert (error["code"] == code) is any(words in told for words in too_long)


@pytest.mark.one_backend
def test_errors_of_the_application_are_told_alike(api):
    for path, headers, status in (
        ("/v1/nothing", {}, 404),
        ("/v1/completions", {}, 405),
        ("/health", {"Host": "example.org"}, 400),
    ):
        found = ask(api, path, headers=headers)
        assert found[0] == status
        assert set(found[2]["error"]) == {"message", "type", "param", "code"}


@pytest.mark.one_backend
def test_errors_of_the_client(client):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="nobody", prompt="a")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="writer", prompt="a", temperature=9)


@pytest.mark.one_backend
def test_a_key(task):
    with started(make_api({"writer": ServedTask(task)}, key="secret")) as port:
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
        make_api({"writer": ServedTask(task)}, key=" ")


def test_the_model_fails_for_one_text_and_the_others_go_on():
    """A token of one prompt makes the logits of its row NaN, in the batch of all."""
    task = writer(fails_at="z")
    worker, told = Worker(task, batch_size=8), {}
    prompts = [f"two dogs {'a ' * i}" for i in range(6)] + ["a z"]
    jobs = [
        Job(
            task, task.generator.format.encode([p])[0], 8, 0, 1, 0, 0, told.setdefault(i, []).append
        )
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
    with started(make_api({"writer": ServedTask(task)}, limits)) as port:
        given = {"model": "writer", "prompt": "a", "n": 3}
        status, headers, found = ask(port, "/v1/completions", given)
        assert (status, headers["retry-after"]) == (429, "2")
        assert found["error"]["code"] == "rate_limit_exceeded"
        assert ask(port, "/v1/completions", {**given, "n": 2})[0] == 200


@pytest.mark.one_backend
def test_a_body_that_does_not_come(task):
    limits = dataclasses.replace(API_LIMITS, body_seconds=0.2)
    with (
        started(make_api({"writer": ServedTask(task)}, limits)) as port,
        socket.create_connection(("127.0.0.1", port), 30) as connection,
    ):
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        assert b" 408 " in connection.recv(4096)


CITY = {
    "type": "object",
    "properties": {
        "city": {"$ref": "#/$defs/city"},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Rome", "Oslo"]}},
}


def tool(**function):
    return {"type": "function", "function": function}


TOOLS = [tool(name="weather", parameters=CITY), tool(name="weather_now")]
HELLO = [{"role": "user", "content": "two dogs"}]


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("call", "prompt", "expected"),
    [
        (
            '<call>\n{"name": "NAME", "arguments": {{ c.function.arguments | tojson }}}\n</call>',
            "[assistant]", ("<call>", '<call>\n{"name": "', '", "arguments": ', False),
        ),
        (
            '[CALLS] [{"name": "NAME", "arguments": {{ c.function.arguments | tojson }}, "id": 1}]',
            "[assistant]", ("[CALLS] [", '[CALLS] [{"name": "', '", "arguments": ', False),
        ),
        (
            '{"name": "NAME", "parameters": {{ c.function.arguments | tojson }}}',
            "[assistant]", ('{"name": "', '{"name": "', '", "parameters": ', False),
        ),
        (
            "<call>NAME\n{{ c.function.arguments }}</call>",  # the arguments are text already
            "[assistant]", ("<call>", "<call>", "\n", True),
        ),
        (
            "<call>NAME {{ c.function.arguments | tojson }}",  # a thought that the prompt begins
            "[assistant]\n<thought>\n", ("<call>", "<call>", " ", False),
        ),
        # A call that is not JSON, none at all, and one that is refused: JSON of our own.
        ("NAME({{ c.function.arguments | length }})", "[assistant]", None),
        ("", "[assistant]", None),
        ("{{ raise_exception('no calls') }}", "[assistant]", None),
    ],
)  # fmt: skip
def test_the_form_of_a_call_is_read_off_the_template(call, prompt, expected):
    tokenizer = kt.Tokenizer.train(TEXTS, vocabulary_size=300)
    called = call.replace("NAME", "{{ c.function.name }}")
    tokenizer.chat_template = (
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
        "{% for m in messages %}[{{ m.role }}]"
        + ("{% if m.role == 'assistant' %}{{ '\\n' }}{% endif %}" if "thought" in prompt else "")
        + "{{ m.content }}{% for c in m.tool_calls or [] %}" + called + "{% endfor %};{% endfor %}"
        "{% if add_generation_prompt %}" + prompt + "{% endif %}"
    )  # fmt: skip
    marker, *form = expected or ('{"name": "', '{"name": "', '", "arguments": ', False)
    found = call_form(tokenizer)
    assert (found.marker, tuple(found)) == (marker, tuple(form))
    tokenizer.chat_template = TEMPLATE
    assert call_form(tokenizer) is None


@pytest.mark.one_backend
def test_calls_of_tools(caller):
    options = {"model": "caller", "messages": HELLO, "tools": TOOLS, "n": 4, "seed": 3}
    named = {"type": "function", "function": {"name": "weather"}}
    allowed = {"mode": "required", "tools": TOOLS[1:]}
    seen = set()
    for choice, names in {
        "required": {"weather", "weather_now"},
        "weather": {"weather"},
        "allowed": {"weather_now"},
    }.items():
        given = {"weather": named, "allowed": {"type": "allowed_tools", "allowed_tools": allowed}}
        found = caller.chat.completions.create(**options, tool_choice=given.get(choice, choice))
        for one in found.choices:
            (call,) = one.message.tool_calls
            assert (one.finish_reason, one.message.content) == ("tool_calls", None)
            assert call.function.name in names
            schema = CITY if call.function.name == "weather" else {"maxProperties": 0}
            jsonschema.validate(json.loads(call.function.arguments), schema)
            seen.add(call.function.name)
    assert seen == {"weather", "weather_now"}
    whole = caller.chat.completions.create(**{**options, "n": 1}, tool_choice=named)
    stream = caller.chat.completions.create(**{**options, "n": 1}, tool_choice=named, stream=True)
    chunks = [chunk.choices[0] for chunk in stream]
    parts = [part for chunk in chunks for part in chunk.delta.tool_calls or []]
    assert (parts[0].function.name, parts[0].type, bool(parts[0].id)) == ("weather", "function", 1)
    assert len(parts) > 2 and {part.index for part in parts} == {0}
    arguments = "".join(part.function.arguments for part in parts)
    assert arguments == whole.choices[0].message.tool_calls[0].function.arguments
    assert chunks[-1].finish_reason == "tool_calls"


@pytest.mark.one_backend
def test_a_text_goes_on_until_it_calls(caller, task):
    """A call begins with the mark of the template wherever the model writes it."""
    options = {"model": "caller", "messages": HELLO, "tools": TOOLS, "temperature": 0}
    plain = caller.chat.completions.create(**options, max_tokens=20).choices[0]
    assert plain.message.tool_calls is None and plain.finish_reason == "length"
    prompt = "weather weather_now <user>two dogs;<assistant>"
    expected = task.generate(task.tokenizer.encode(prompt, special_tokens=False), 20, "greedy")
    whole = task.tokenizer.decode(expected)
    assert plain.message.content == whole
    mark = next(whole[i : i + 2] for i in range(2, 20) if whole[i : i + 2].isascii())
    tokenizer = tools_tokenizer(task)
    tokenizer.chat_template = TOOLS_TEMPLATE.replace("[call]", mark)
    with started(make_api({"caller": ServedTask(kt.CausalLM(task.backbone, tokenizer))})) as port:
        other = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
        found = other.chat.completions.create(**options).choices[0]
        assert found.message.content == whole[: whole.index(mark)]
        assert found.finish_reason == "tool_calls" and len(found.message.tool_calls) == 1
        # None of the tokens that were asked for is left for a call.
        for most in (1, 6):
            cut = other.chat.completions.create(**options, max_tokens=most).choices[0]
            assert cut.finish_reason == "length"
        stream = other.chat.completions.create(**options, stream=True)
        deltas = [chunk.choices[0].delta for chunk in stream]
        assert "".join(d.content or "" for d in deltas) == found.message.content
        calls = [part.function for d in deltas for part in d.tool_calls or []]
        called = found.message.tool_calls[0].function
        assert calls[0].name == called.name
        assert "".join(call.arguments for call in calls) == called.arguments
        none = other.chat.completions.create(**options, tool_choice="none", max_tokens=20)
        assert none.usage.prompt_tokens < found_tokens(other, options)


def found_tokens(client, options):
    return client.chat.completions.create(**options, max_tokens=1).usage.prompt_tokens


@pytest.mark.one_backend
def test_the_results_of_calls_are_in_the_prompt(caller, task):
    function = {"name": "weather", "arguments": '{"days": 2}'}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": "a", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
    ]  # fmt: skip
    prompt = (
        "weather weather_now <user>two dogs;"
        '<assistant>[call] {"name": "weather", "arguments": {"days": 2}};'
        "<tool>sunny;<assistant>"
    )
    ids = task.tokenizer.encode(prompt, special_tokens=False)
    options = {"model": "caller", "tools": TOOLS, "temperature": 0}
    found = caller.chat.completions.create(**options, messages=messages, max_tokens=5)
    assert found.usage.prompt_tokens == len(ids)
    expected = task.tokenizer.decode(task.generate(ids, 5, "greedy"))
    assert found.choices[0].message.content == expected
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "two dogs"}]},
        {"type": "function_call", "call_id": "a", **function},
        {"type": "function_call_output", "call_id": "a", "output": "sunny"},
    ]
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
    found = caller.responses.create(
        model="caller", input=items, tools=flat, temperature=0, max_output_tokens=5
    )
    assert (found.output_text, found.usage.input_tokens) == (expected, len(ids))


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"model": "writer"}, "`tools` is not supported by the chat template"),
        ({"tools": [1]}, "`tools[0]` must be an object with the `type`"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "other types are not supported"),
        ({"tools": [tool(name="a b")]}, "`tools[0].function.name`"),
        ({"tools": TOOLS * 2}, "no name may come twice"),
        ({"tools": [], "tool_choice": "required"}, "`tool_choice` needs `tools`"),
        ({"tool_choice": "always"}, "`tool_choice` must be 'none'"),
        ({"tool_choice": tool(name="x")}, "names 'x'. `tools` has"),
        ({"logprobs": True}, "`logprobs` does not go with `tools`"),
        ({"tool_choice": "required", "max_tokens": 1}, "The shortest text of `constraint`"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [tool(name="x", arguments="{")]}]},
            "arguments that are not JSON",
        ),
        ({"tools": [tool(name="a", parameters={"not": {}})]}, "not"),
        (
            {"tools": [tool(name="a", parameters={"type": "array"})]},
            "must be the JSON Schema of an object",
        ),
    ],
)
def test_tools_that_are_wrong(further_api, changed, told):
    given = {"model": "caller", "messages": HELLO, "tools": TOOLS, **changed}
    status, _, found = ask(further_api, "/v1/chat/completions", given)
    assert (status, told in found["error"]["message"]) == (400, True), found


@pytest.mark.one_backend
def test_responses(caller):
    chat = caller.chat.completions.create(
        model="writer", messages=[{"role": "system", "content": "be brief"}, *HELLO],
        max_tokens=8, temperature=0,
    )  # fmt: skip
    options = {"model": "writer", "input": "two dogs", "instructions": "be brief"}
    options |= {"max_output_tokens": 8, "temperature": 0}
    found = caller.responses.create(**options)
    assert found.output_text == chat.choices[0].message.content
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (found.usage.input_tokens, found.usage.output_tokens) == (chat.usage.prompt_tokens, 8)
    events = list(caller.responses.create(**options, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == events[-1].response.output_text == found.output_text
    kinds = list(dict.fromkeys(event.type.removeprefix("response.") for event in events))
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "incomplete",
    ]  # fmt: skip
    form = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
    found = caller.responses.create(model="writer", input="a number", text=form)
    assert found.status == "completed" and 0 <= json.loads(found.output_text)["n"] <= 9
    tools = [{"type": "function", "name": "weather", "parameters": CITY}]
    options = {"model": "caller", "input": "two dogs", "tools": tools, "tool_choice": "required"}
    (call,) = caller.responses.create(**options).output
    assert (call.type, call.name, call.status) == ("function_call", "weather", "completed")
    jsonschema.validate(json.loads(call.arguments), CITY)
    with caller.responses.stream(**options) as stream:  # the client puts the events together
        (call,) = stream.get_final_response().output
    jsonschema.validate(json.loads(call.arguments), CITY)
