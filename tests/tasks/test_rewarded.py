"""Prompts of `fit_rewards` in every form, its arguments, and steps that teach nothing."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.tasks.data.prompts import prompt_rows
from keras_transformer.training import GRPO, RLOO
from tests.training.rewarding import make_lm

pytestmark = pytest.mark.one_backend


def test_tables_of_prompts():
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    columns = {"prompt": ["ab", "c"], "answer": [1, 2]}
    rows = [{"prompt": "ab", "answer": 1}, {"prompt": "c", "answer": 2}]
    for table in (columns, rows, pandas.DataFrame(columns), datasets.Dataset.from_dict(columns)):
        prompts, further = prompt_rows(table)
        assert prompts == ["ab", "c"] and further == [{"answer": 1}, {"answer": 2}]
    assert prompt_rows(np.array(["ab", "c"])) == (["ab", "c"], [{}, {}])
    for wrong, said in (
        ("ab", "list of prompts, received one"),
        ([], "is empty"),
        (3, "received 3 of type int"),
        ({"text": ["ab"]}, "none is named 'prompt'"),
        ({"prompt": ["ab"], "answer": [1, 2]}, "differ in length"),
        ([{"prompt": "ab"}, {"text": "c"}], r"`prompts\[1\]` must be a dict with the key 'prompt'"),
    ):
        with pytest.raises(ValueError, match=said):
            prompt_rows(wrong)


def seen(lm, prompts, **options):
    """Return what a reward gets in one step."""
    calls = []

    def reward(prompt, completion, row):
        calls.append((prompt, completion, row))
        return len(completion)

    options = {"group_size": 2, "max_new_tokens": 3, "steps": 1, "seed": 0, "verbose": 0, **options}
    history = lm.fit_rewards(prompts, reward, **options)
    return calls, history.history


def test_what_a_reward_gets():
    lm = make_lm()
    calls, _ = seen(lm, {"prompt": ["ab", "c"], "answer": [1, 2]})
    assert sorted({(p, r["answer"]) for p, _, r in calls}) == [("ab", 1), ("c", 2)]
    assert all(isinstance(completion, str) for _, completion, _ in calls) and len(calls) == 4
    calls, _ = seen(lm, [[5, 6], [7]])
    assert sorted(map(tuple, (p for p, _, _ in calls))) == [(5, 6), (5, 6), (7,), (7,)]
    calls, _ = seen(kt.CausalLM(lm.backbone), [[5, 6], [7]])  # without a tokenizer
    assert all(isinstance(completion, list) for _, completion, _ in calls)
    calls, _ = seen(lm, ["ab", "c"], stop="a", constraint=lm.constraint(regex="[b-d]{2}a"))
    assert all(len(completion) == 2 and "a" not in completion for _, completion, _ in calls)


def test_prompts_of_messages_and_several_rewards():
    lm = make_lm()
    lm.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    messages = [{"role": "user", "content": "ab"}]
    found = []

    def length(prompt, completion, row):
        found.append(prompt)
        return len(completion)

    history = lm.fit_rewards(
        [messages], [length, lambda *row: True], group_size=3, max_new_tokens=3, seed=0,
        reward_weights=[1, 0.5], verbose=0,
    ).history  # fmt: skip
    assert found == [messages] * 3
    mean = history["reward/length"][0] + 0.5 * history["reward/lambda"][0]
    assert history["reward/lambda"] == [1.0] and history["reward"][0] == pytest.approx(mean)
    with pytest.raises(ValueError, match=r"`prompts\[1\]` must be a list of messages"):
        lm.fit_rewards([messages, "ab"], length)


def test_a_step_that_teaches_nothing_changes_nothing():
    lm = make_lm()
    lm.compile(keras.optimizers.Adam(0.1))
    before = [np.array(ops.convert_to_numpy(v)) for v in lm.weights]
    history = lm.fit_rewards(
        ["ab", "c"], lambda *row: 1, group_size=2, max_new_tokens=3, seed=0, verbose=0
    ).history
    assert history["skipped_groups"] == [2.0] and history["loss"] == [0.0]
    for old, new in zip(before, lm.weights, strict=True):
        np.testing.assert_array_equal(old, ops.convert_to_numpy(new))
    assert int(lm.optimizer.iterations) == 0


def test_each_pass_over_the_prompts_has_them_all():
    calls, history = seen(make_lm(), ["a", "b", "c", "d", "e"], batch_size=2, steps=5)
    prompts = [prompt for prompt, _, _ in calls[::2]]
    assert len(history["reward"]) == 5
    assert sorted(prompts[:5]) == sorted(prompts[5:]) == ["a", "b", "c", "d", "e"]
    assert prompts[:5] != prompts[5:]


def test_adapters_keep_near_to_the_model_without_them():
    lm = make_lm()
    lm.enable_lora(rank=2)
    lm.compile(keras.optimizers.Adam(0.05))
    for loss in (GRPO(beta=0.1), RLOO(beta=0.1)):
        _, history = seen(lm, ["ab", "c"], loss=loss, steps=2, group_size=4)
        assert history["kl"][1] != 0
    assert lm.backbone.trainable_variables


@pytest.mark.parametrize(
    "options, said",
    [
        ({"loss": "grpo"}, "`loss` must be a PolicyLoss, such as kt.training.GRPO"),
        ({"group_size": 1}, "group_size"),
        ({"sampler": "greedy"}, "`sampler` must draw at random"),
        ({"sampler": kt.generation.BeamSearch(2)}, "`sampler` must draw at random"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"passes": 0}, "passes"),
        ({"reward_seconds": -1}, "reward_seconds"),
        ({"reference": "none"}, "reference"),
        ({"seed": -1}, "seed"),
    ],
)
def test_arguments_are_checked_before_any_work(options, said):
    def never(prompt, completion, row):
        raise AssertionError

    with pytest.raises(ValueError, match=said):
        make_lm().fit_rewards(["ab"], never, **{"loss": GRPO(beta=0.1), "verbose": 0, **options})
