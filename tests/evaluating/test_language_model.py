"""Answers that the harness gets, against those of its own model on the same weights."""

import string

import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.evaluator import simple_evaluate

import keras_transformer as kt
from keras_transformer.evaluating import HarnessModel
from keras_transformer.evaluating.task_folders import task_manager
from tests.evaluating.conftest import TASKS

PAIRS = [
    ("My mistress' eyes are", " nothing like the sun"),
    ("My mistress' eyes are ", "nothing"),
    ("", "Coral is far more red"),
    ("To be", "!"), ("To be", "?"), ("To be", ":"),
    ("<s>written with a start", " token"),
    ("a context that is far too long, " * 12, "and ends"),
]  # fmt: skip
NAMES = ["sonnet_lines", "sonnets", "play_words"]


def asked(kind, *arguments):
    return [Instance(kind, {}, each, i) for i, each in enumerate(arguments)]


def greedy_pairs(model):
    """Contexts with the likeliest token as text, if the two are read as the same tokens."""
    contexts = [*string.ascii_letters, "To be", "My mistress' eyes are"]
    rows = [model.tok_encode(context) for context in contexts]
    found = model.task.generate(rows, 1, "greedy")
    texts = map(model.tokenizer.decode, found)
    each = zip(contexts, texts, rows, found, strict=True)
    return [(a, b) for a, b, row, new in each if b and model.tok_encode(a + b) == row + new]


@pytest.fixture(scope="module", params=["plain", "begins"])
def both(writers, request):
    from lm_eval.models.huggingface import HFLM

    task, folder = writers[request.param]
    theirs = HFLM(str(folder), device="cpu", dtype="float32", batch_size=4, max_length=64)
    return HarnessModel(task, verbose=False), theirs


def test_continuations_as_the_harness_scores_them(both):
    ours, theirs = both
    pairs = [*PAIRS, *greedy_pairs(ours)]
    found = ours.loglikelihood(asked("loglikelihood", *pairs))
    expected = theirs.loglikelihood(asked("loglikelihood", *pairs), disable_tqdm=True)
    np.testing.assert_allclose([x for x, _ in found], [x for x, _ in expected], atol=1e-4)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert {greedy for _, greedy in found} == {True, False}


def test_texts_longer_than_the_model(both):
    ours, theirs = both
    texts = [("Shall I compare thee to a summer's day? " * 12,), ("short",), ("",)]
    found = ours.loglikelihood_rolling(asked("loglikelihood_rolling", *texts))
    expected = theirs.loglikelihood_rolling(asked("loglikelihood_rolling", *texts), True)
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-6)


def test_texts_that_are_generated(both):
    ours, theirs = both
    until = {"until": ["e", "\n"], "max_gen_toks": 12}
    contexts = ["To be", "a longer context of some words", "x", "words, " * 60]
    requests = [*((c, until) for c in contexts), ("To be", {"until": [], "max_gen_toks": 20})]
    found = ours.generate_until(asked("generate_until", *requests))
    assert found == theirs.generate_until(asked("generate_until", *requests), disable_tqdm=True)
    assert not any("e" in text for text in found[:4]) and any(found)


def test_whole_tasks(both):
    ours, theirs = both
    results = kt.evaluate(ours.task, NAMES, include_path=TASKS, limit=8, verbose=False)
    manager = task_manager([TASKS], NAMES, trusted=False)
    expected = simple_evaluate(
        theirs, tasks=NAMES, task_manager=manager, limit=8, torch_random_seed=None
    )["results"]
    for row in results.rows:
        key = row.metric if "," in row.metric else f"{row.metric},none"
        assert row.value == pytest.approx(expected[row.task][key], rel=1e-4)
    assert {row.metric for row in results.rows} > {"acc", "word_perplexity"}


def test_chats(both):
    ours, theirs = both
    chat = [{"role": "user", "content": "hello"}]
    for last in True, False:
        found = ours.apply_chat_template(chat, add_generation_prompt=last)
        assert found == theirs.apply_chat_template(chat, add_generation_prompt=last)
        assert ours.tok_encode(found) == theirs.tok_encode(found)


@pytest.mark.one_backend
def test_one_context_is_computed_once(writers, monkeypatch):
    task, _ = writers["plain"]
    read = []
    scores, next_scores = task.token_scores, task.next_scores
    monkeypatch.setattr(task, "token_scores", lambda p, **k: read.extend(p) or scores(p, **k))
    monkeypatch.setattr(task, "next_scores", lambda p: read.extend(p) or next_scores(p))
    ours = HarnessModel(task, verbose=False)
    ours.loglikelihood(asked("loglikelihood", *(("To be", letter) for letter in "!?:;")))
    assert len(read) == 1


@pytest.mark.one_backend
def test_sampling(writers):
    ours = HarnessModel(writers["plain"][0], verbose=False, seed=3)
    options = {"do_sample": True, "temperature": 1.0, "top_p": 0.9, "max_gen_toks": 8}
    requests = asked("generate_until", ("To be", options), ("To be", options))
    first, second = ours.generate_until(requests)
    assert [first, second] == ours.generate_until(requests)  # of the seed
    assert first != second


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("options", "told"),
    [({"max_gen_toks": 64}, "max_gen_toks"), ({"num_beams": 3, "max_gen_toks": 4}, "num_beams")],
)
def test_options_that_cannot_be_kept(writers, options, told):
    ours = HarnessModel(writers["plain"][0], verbose=False)
    with pytest.raises(ValueError, match=told):
        ours.generate_until(asked("generate_until", ("To be", options)))


@pytest.mark.one_backend
def test_models_that_cannot_be_asked(writers):
    task, _ = writers["plain"]
    for wrong, told in (
        (kt.CausalLM(task.backbone), "has no tokenizer"),
        (kt.TextEmbedder(task.backbone, task.tokenizer), "does not continue texts"),
    ):
        with pytest.raises(ValueError, match=told):
            HarnessModel(wrong)
    with pytest.raises(ValueError, match="`max_length`"):
        HarnessModel(task, max_length=65)
