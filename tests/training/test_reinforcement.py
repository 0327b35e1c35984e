"""Losses of rewarded completions as TRL has them, what the sampler keeps, and whole runs."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.kernels.programs import PROGRAMS
from keras_transformer.tasks.text.generating import Completion, Sample
from keras_transformer.tasks.text.rewarded import RewardedRun
from keras_transformer.training import GRPO, RLOO, DrGRPO, PPOClip, ResumableRun
from tests.training import rewarding
from tests.training.rewarding import GROUP, LONGEST, LOSSES, PROMPTS, TEMPERATURE, make_lm, reward

OPTIONS = {
    "group_size": GROUP, "batch_size": 3, "steps": None, "passes": 1, "update_rows": None,
    "reward_weights": None, "reward_seconds": None, "reference": "auto", "seed": 1,
    "sampler": kt.generation.Random(TEMPERATURE), "max_new_tokens": LONGEST, "stop": None,
    "rules": None, "constraint": None, "cache_dtype": None,
}  # fmt: skip
TEXT_LENGTH = 24  # the longest prompt and what is drawn behind it fit
TABLE = {"prompt": PROMPTS, "equal": [False, False, True]}


def make_run(lm=None, loss=None, **options):
    lm = make_lm() if lm is None else lm
    return RewardedRun(lm, TABLE, reward, loss=loss, **{**OPTIONS, **options})


def values(lm):
    return [np.array(ops.convert_to_numpy(variable)) for variable in lm.weights]


@pytest.mark.parametrize("name", LOSSES)
def test_losses_advantages_and_gradients_are_those_of_trl(name):
    expected = rewarding.kept()[name]
    lm, loss = make_lm(), LOSSES[name][0]
    before = values(lm)
    lm.compile(keras.optimizers.SGD(1.0))
    run = make_run(lm, loss, reference=make_lm(3))
    kept = (expected["completions"], expected["sampled"], expected["own"], expected["reference"])
    completions, sampled, own, others = kept
    texts = lm.tokenizer.decode_batch([ids if ids[-1] != 2 else ids[:-1] for ids in completions])
    samples = [
        Sample(Completion(text, ids, "length"), ids, np.array(values), np.array(values))
        for text, ids, values in zip(texts, completions, sampled, strict=True)
    ]
    groups = [samples[i : i + GROUP] for i in range(0, len(samples), GROUP)]
    places = range(len(PROMPTS))
    rows = run._arrays(places, groups)
    # Not wider than the inputs of the longest text that could be sampled.
    assert rows.ids.shape[1] < max(map(len, PROMPTS)) + LONGEST
    reference = run._reference(rows) if loss.beta else None
    for i in range(len(samples) if loss.beta else 0):  # by the scoring program
        scores = reference[i][rows.counted[i] > 0]
        np.testing.assert_allclose(scores, others[i], atol=2e-5)
    rewards = run._rewarded(places, groups)[0]
    if loss.kl == "reward":  # TRL's is of the model itself, here not of the changed values
        divergence = [np.sum(np.subtract(*pair)) for pair in zip(own, others, strict=True)]
        rewards = rewards - loss.beta * np.reshape(divergence, rewards.shape)
    advantages = loss.advantages(rewards).reshape(-1)
    np.testing.assert_allclose(advantages, expected["advantages"], atol=1e-5)
    (batch,) = run.batches(rows, advantages, reference, step=0)
    # Groups without a difference are left out only where they change nothing.
    assert loss.kl == "reward" or len(np.unique(batch[0]["token_ids"], axis=0)) <= len(samples)
    found = run.trainer.train_on_batch(*batch, return_dict=True)
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    # Ours are means over the rows that are trained on.
    share = rows.counts.sum() / batch[2].sum()
    if loss.ratio == "sequence":
        share = len(samples) / batch[2].any(axis=1).sum()
    for key, value in expected["metrics"].items():
        if key in found:
            assert found[key] / share == pytest.approx(value, abs=1e-5)
    gradients = [old - new for old, new in zip(before, values(lm), strict=True)]
    gradients = rewarding.by_checkpoint_names(lm, gradients)
    for key, value in expected["gradients"].items():
        np.testing.assert_allclose(gradients[key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.one_backend("torch")
def test_the_kept_values_are_those_that_trl_computes():
    pytest.importorskip("trl")
    keras.utils.set_random_seed(0)
    found, expected = rewarding.by_trl("GRPO"), rewarding.kept()["GRPO"]
    assert found["completions"] == expected["completions"]
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6)


def whole_scores(lm, ids, temperature):
    """Return all log-probabilities of the next tokens, by one pass over one text.

    Padding behind it makes all texts equally long, so that nothing is compiled anew.
    """
    padded = np.zeros((1, TEXT_LENGTH), int)
    padded[0, : len(ids)] = ids
    inputs = {"token_ids": padded, "padding_mask": np.arange(TEXT_LENGTH)[None] < len(ids)}
    logits = ops.convert_to_numpy(lm(inputs))[0, : len(ids)].astype("float64") / temperature
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("how", ["temperature", "truncated", "constrained"])
def test_the_sampler_keeps_the_log_probabilities_of_the_trained_model(how):
    """On ragged batches, where rows end early and others join, at a temperature other than 1."""
    lm = make_lm()
    sampler = kt.generation.Random(0.6, top_p=0.8 if how == "truncated" else 1.0)
    constraint = lm.constraint(regex="[a-c]{1,4}") if how == "constrained" else None
    run = make_run(lm, sampler=sampler, constraint=constraint, max_new_tokens=9)
    samples = run.sample(range(3), step=0)
    rows = run._arrays(range(3), samples)
    assert len({len(sample.drawn_ids) for group in samples for sample in group}) > 1
    flat = [sample for group in samples for sample in group]
    for place, sample in enumerate(flat):
        prompt = run.ids[place // GROUP]
        scores = whole_scores(lm, prompt + sample.drawn_ids, 0.6)[len(prompt) - 1 : -1]
        chosen = scores[np.arange(len(sample.drawn_ids)), sample.drawn_ids]
        np.testing.assert_allclose(sample.log_probabilities, chosen, atol=2e-5)
        np.testing.assert_allclose(sample.entropies, -(np.exp(scores) * scores).sum(-1), atol=2e-5)
        ended = sample.completion.finish_reason == "end"
        assert sample.drawn_ids == [*sample.completion.token_ids, *[lm.end_ids[0]] * ended]
    found = kt.training.token_log_probabilities(
        lm, {"token_ids": rows.ids, "padding_mask": rows.mask}, rows.targets, rows.counted,
        temperature=0.6,
    )  # fmt: skip
    np.testing.assert_allclose(ops.convert_to_numpy(found), rows.sampled, atol=2e-5)
    texts = [sample.completion.text for sample in flat]
    assert how != "constrained" or all(set(text) <= set("abc") for text in texts)
    again = make_run(lm, sampler=sampler, constraint=constraint, max_new_tokens=9)
    assert [s.drawn_ids for g in again.sample(range(3), 0) for s in g] == [
        sample.drawn_ids for sample in flat
    ]
    assert run.sample(range(3), step=1) != samples


def fit(lm, folder=None, function=reward, steps=4, **options):
    lm.compile(keras.optimizers.Adam(1e-2))
    callbacks = [] if folder is None else [ResumableRun(folder)]
    return lm.fit_rewards(
        TABLE, function, GRPO(beta=0.02), group_size=4, batch_size=2, steps=steps, passes=2,
        update_rows=4, max_new_tokens=LONGEST, seed=7, verbose=0, callbacks=callbacks, **options,
    )  # fmt: skip


def test_a_run_that_is_ended_by_a_reward_is_resumed_bit_for_bit(tmp_path):
    calls = []

    def failing(prompt, completion, row):
        calls.append(completion)
        if len(calls) > 20:  # within the third step
            raise OSError("the checker is down")
        return reward(prompt, completion, row)

    whole = make_lm()
    history = fit(whole).history
    broken = make_lm()
    with pytest.raises(RuntimeError, match="'failing' raised OSError: the checker is down"):
        fit(broken, tmp_path, failing)
    resumed = make_lm()
    with pytest.raises(ValueError, match="group_size: 4 then, 8 now|seed"):
        lm = make_lm()
        lm.compile(keras.optimizers.Adam(1e-2))
        lm.fit_rewards(
            TABLE, failing, GRPO(beta=0.02), group_size=8, batch_size=2, max_new_tokens=LONGEST,
            seed=7, verbose=0, callbacks=[ResumableRun(tmp_path)],
        )  # fmt: skip
    calls.clear()
    later = fit(resumed, tmp_path, failing).history
    assert len(later["reward"]) == 2
    # Of several models in a process, TensorFlow compiles only the first few by XLA, and the last
    # bits of their results differ.
    exact = keras.backend.backend() != "tensorflow"
    close = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-4, "atol": 1e-5}
    for name, found in later.items():
        np.testing.assert_allclose(found, history[name][2:], **close)
    for mine, theirs in zip(values(resumed), values(whole), strict=True):
        np.testing.assert_allclose(mine, theirs, **close)


def test_rewards_rise_and_each_program_is_compiled_once():
    lm = make_lm()
    lm.compile(keras.optimizers.Adam(2e-2))
    made = []

    class Count(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            made.append(PROGRAMS.made)

    history = lm.fit_rewards(
        ["ab", "cd"] * 4, lambda prompt, completion, row: completion.count("a"), group_size=16,
        batch_size=4, steps=12, max_new_tokens=4, seed=0, verbose=0, callbacks=[Count()],
    ).history  # fmt: skip
    first, last = history["reward"][0], np.mean(history["reward"][-2:])
    assert last > first + 0.4
    assert len(set(made)) == 1
    assert history["entropy"][-1] < history["entropy"][0]
    assert max(history["log_ratio"]) < 1e-4  # one update of each sample: nothing has changed


@pytest.mark.backend_independent
def test_batches_leave_out_what_changes_nothing():
    rewards = np.array([[1.0, 0, 0, 0], [0.1, 0.1, 0.1, 0.1], [2, 2, 0, 0]])
    for loss in (GRPO(), DrGRPO(), PPOClip(), RLOO()):
        found = loss.advantages(rewards)
        assert (found[1] == 0).all() and (found[[0, 2]] != 0).all()
        np.testing.assert_allclose(found.sum(axis=1), 0, atol=1e-6)
        rounded = loss.advantages([[0.1 + 0.2, 0.3, 0.3], [0.3, 0.3 - 1e-9, 0.3]])
        assert (rounded[0] == 0).all() and (rounded[1] != 0).all()
    counts = np.array([1, 3, 4])
    np.testing.assert_allclose(GRPO().token_weights(counts, 5) * counts, 1 / 3)
    assert (GRPO().token_weights(counts, 5) * counts).sum() == pytest.approx(1)
    assert PPOClip().token_weights(counts, 5).tolist() == pytest.approx([1 / 8] * 3)
    assert DrGRPO().token_weights(counts, 5).tolist() == pytest.approx([1 / 15] * 3)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    "values",
    [{"clip": 0}, {"clip": 1}, {"clip_high": -1}, {"beta": -0.1}, {"kl": "both"}, {"scale": 1},
     {"baseline": "mean"}, {"ratio": "row"}, {"average": "rows"}],
)  # fmt: skip
def test_values_of_losses_are_checked(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        dataclasses.replace(GRPO(), **values)
