"""Programs that speak OpenAI's API, by their own packages: each gets what the task gives alone."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import presets_folder
from keras_transformer.serving import ServedTask, make_api
from tests.serving.conftest import started
from tests.serving.test_api import TOOLS_TEMPLATE, writer

pytestmark = pytest.mark.one_backend

PROMPT = "two dogs"
CHAT = f"<user>{PROMPT};<assistant>"


@pytest.fixture(scope="module")
def task():
    task = writer()
    task.tokenizer.chat_template = TOOLS_TEMPLATE
    return task


@pytest.fixture(scope="module")
def base(task, served):
    with started(make_api({"writer": ServedTask(task), "embedder": served["embedder"]})) as port:
        yield f"http://127.0.0.1:{port}/v1"


def said(task, most):
    """The task's answer in a chat."""
    ids = task.tokenizer.encode(CHAT, special_tokens=False)
    return task.tokenizer.decode(task.generate(ids, most, "greedy"))


@pytest.mark.thorough
def test_langchain(base, task, served):
    openai = pytest.importorskip("langchain_openai", reason="needs langchain-openai")
    from langchain_core.exceptions import ContextOverflowError
    from pydantic import BaseModel, Field

    class City(BaseModel):
        """A city."""

        name: str = Field(max_length=5)
        size: int = Field(ge=0, le=9)

    where = {"base_url": base, "api_key": "none"}
    for responses in False, True:
        options = {"use_responses_api": responses, "temperature": 0, **where}
        chat = openai.ChatOpenAI(model="writer", max_tokens=8, **options)
        assert chat.invoke(PROMPT).text == said(task, 8)
        assert "".join(chunk.text for chunk in chat.stream(PROMPT)) == said(task, 8)
        chat = openai.ChatOpenAI(model="writer", **options)
        (call,) = chat.bind_tools([City], tool_choice="any").invoke(PROMPT).tool_calls
        assert call["name"] == "City" and City(**call["args"])
        for method in "json_schema", "function_calling":
            assert isinstance(chat.with_structured_output(City, method=method).invoke(PROMPT), City)
    text = openai.OpenAI(model="writer", max_tokens=8, temperature=0, **where).invoke(PROMPT)
    assert text == task.generate(PROMPT, 8, "greedy")
    with pytest.raises(ContextOverflowError):
        openai.ChatOpenAI(model="writer", max_tokens=10**6, **where).invoke(PROMPT)
    # By default it sends ids of a tokenizer of OpenAI's, which it looks for in the network.
    vectors = openai.OpenAIEmbeddings(model="embedder", check_embedding_ctx_length=False, **where)
    expected = served["embedder"].task.encode([PROMPT])
    np.testing.assert_allclose(vectors.embed_documents([PROMPT]), expected, atol=1e-5)


def test_litellm(base, task, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # not from the network
    litellm = pytest.importorskip("litellm", reason="needs litellm, of the extra `clients`")
    where = {"api_base": base, "api_key": "none"}
    asked = {"model": "openai/writer", "messages": [{"role": "user", "content": PROMPT}], **where}
    found = litellm.completion(**asked, max_tokens=8, temperature=0)
    assert found.choices[0].message.content == said(task, 8)
    stream = litellm.completion(**asked, max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == said(task, 8)
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}},
              "required": ["city"], "additionalProperties": False}  # fmt: skip
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    found = litellm.completion(**asked, tools=tools, tool_choice="required")
    (call,) = found.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**asked, max_tokens=10**6)
    found = litellm.text_completion(
        model="text-completion-openai/writer", prompt=PROMPT, max_tokens=5, temperature=0,
        echo=True, **where,
    )  # fmt: skip
    assert found.choices[0].text == PROMPT + task.generate(PROMPT, 5, "greedy")
    assert len(litellm.embedding(model="openai/embedder", input=["a", "b"], **where).data) == 2


@pytest.mark.thorough
def test_llm(base, task, tmp_path):
    pytest.importorskip("llm", reason="needs llm")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- {{model_id: chat, model_name: writer, api_base: '{base}', supports_schema: true}}\n"
        f"- {{model_id: plain, model_name: writer, api_base: '{base}', completion: true}}\n"
    )
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}

    def llm(*arguments):
        command = [sys.executable, "-m", "llm", "-m", *arguments]
        done = subprocess.run(command, capture_output=True, env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().removesuffix("\n")

    options = ("-o", "max_tokens", "6", "-o", "temperature", "0")
    assert llm("plain", PROMPT, *options) == task.generate(PROMPT, 6, "greedy")
    assert llm("chat", PROMPT, *options) == said(task, 6)
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    assert json.loads(llm("chat", PROMPT, "--schema", json.dumps(schema)))["n"] in (1, 2)


def test_lm_eval(base, task, tmp_path):
    reason = "needs lm-eval[api]"
    models = pytest.importorskip("lm_eval.models.openai_completions", reason=reason)
    from lm_eval.api.instance import Instance

    task.tokenizer.save(tmp_path)
    model = models.LocalCompletionsAPI(
        base_url=f"{base}/completions", model="writer", tokenizer=str(tmp_path), max_retries=1,
        tokenizer_backend="huggingface", num_concurrent=1, max_length=512,
    )  # fmt: skip
    pairs = [("two dogs", " are playing"), ("a man", " rides a bike .")]
    asked = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    found = model.loglikelihood(asked, disable_tqdm=True)
    for (before, after), (likelihood, is_greedy) in zip(pairs, found, strict=True):
        whole = task.tokenizer.encode(before + after, special_tokens=False)
        split = len(task.tokenizer.encode(before, special_tokens=False))
        expected = task.score(whole, per_token=True)[split - 1 :]
        assert likelihood == pytest.approx(expected.sum(), abs=1e-3)
        assert is_greedy is (task.generate(whole[:split], len(expected)) == whole[split:])
    until = {"until": ["\n\n"], "max_gen_toks": 5, "temperature": 0}
    asked = [Instance("generate_until", {}, (PROMPT, until), 0)]
    assert model.generate_until(asked, disable_tqdm=True) == [task.generate(PROMPT, 5, "greedy")]


def test_lm_eval_of_a_local_task(base, task, tmp_path):
    """Its client of the server gets the scores that the model gets in process."""
    reason = "needs lm-eval[api]"
    models = pytest.importorskip("lm_eval.models.openai_completions", reason=reason)
    from lm_eval.evaluator import simple_evaluate

    from keras_transformer.evaluating.task_folders import task_manager

    names, folder = ["sonnet_lines", "sonnets", "play_words"], "examples/evaluation_tasks"
    folder = presets_folder().parent / folder
    task.tokenizer.save(tmp_path)
    model = models.LocalCompletionsAPI(
        base_url=f"{base}/completions", model="writer", tokenizer=str(tmp_path), max_retries=1,
        tokenizer_backend="huggingface", num_concurrent=1, batch_size=8, max_length=512,
    )  # fmt: skip
    found = simple_evaluate(
        model, tasks=names, task_manager=task_manager([folder], names, trusted=False), limit=6,
        torch_random_seed=None,
    )["results"]  # fmt: skip
    scores = kt.evaluate(task, names, include_path=folder, limit=6, max_length=511, verbose=False)
    assert len(scores.rows) == 6
    for row in scores.rows:
        key = row.metric if "," in row.metric else f"{row.metric},none"
        assert found[row.task][key] == pytest.approx(row.value, rel=1e-4)
