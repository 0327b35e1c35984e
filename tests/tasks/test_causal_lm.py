"""CausalLM: targets, texts that go on with their spaces, presets."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.tasks.common import ENGLISH, language_model


@pytest.fixture(scope="module")
def task():
    return language_model(position="learned", max_sequence_length=40)


def test_the_target_is_the_next_token(task):
    words = task.tokenizer
    inputs, targets, weights = task.make_dataset(ENGLISH[1:2])[0]
    expected = words.encode(ENGLISH[1])
    assert expected[-1] == words.end_id
    length = len(expected) - 1
    assert inputs["token_ids"][0, :length].tolist() == expected[:-1]
    assert targets[0, :length].tolist() == expected[1:]
    assert weights[0].tolist() == [1.0] * length + [0.0] * (targets.shape[1] - length)
    assert (inputs["padding_mask"] == (weights > 0)).all()


@pytest.mark.one_backend
def test_a_continuation_keeps_its_first_space():
    """The tokenizer takes away the space before a text's first word: not here."""
    task = language_model(template="start_end", normalize_first=True, hidden_dim=32)
    for variable in task.weights:
        if variable.name in ("kernel", "embeddings"):
            variable.assign(variable * 0.5)
    task.compile(
        keras.optimizers.Adam(1e-2), kt.training.TokenCrossEntropy(), weighted_metrics=["accuracy"]
    )
    task.fit(
        ENGLISH[2:] * 4,
        validation_data=ENGLISH[2:],
        epochs=60,
        validation_freq=60,
        batch_size=8,
        verbose=0,
    )
    prompts = ["a man", "two dogs"]
    assert task.generate(prompts, 16) == [" rides a bike .", " run on the grass ."]
    assert task.generate("a man", 16) == " rides a bike ."
    assert task.generate(prompts, 16, return_prompt=True) == ENGLISH[2:]
    ids = [row[:-1] for row in task.tokenizer.encode_batch(prompts)]
    new = task.generate(ids, 16)
    assert task.tokenizer.decode(new[0]) == "rides a bike ."
    assert task.generate(ids, 16, return_prompt=True)[0] == ids[0] + new[0]


def test_predict_and_evaluate(task):
    texts = np.array(ENGLISH)
    logits = task.predict(texts, batch_size=2, verbose=0)
    row = np.array([task.tokenizer.encode(ENGLISH[1])[:-1]])
    alone = keras.ops.convert_to_numpy(task({"token_ids": row}))[0]
    np.testing.assert_allclose(logits[1, : len(alone)], alone, atol=1e-4)
    found = task.evaluate(ENGLISH, verbose=0, return_dict=True)
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]), rel=1e-4)


@pytest.mark.one_backend
def test_preset_round_trip(tmp_path, task):
    task.save_to_preset(tmp_path)
    loaded = kt.Task.from_preset(tmp_path)
    assert type(loaded) is kt.CausalLM
    expected, found = (model.predict(ENGLISH, verbose=0) for model in (task, loaded))
    np.testing.assert_array_equal(found, expected)
    assert loaded.generate("a man", 8) == task.generate("a man", 8)


def test_long_texts_are_cut_and_long_prompts_refused(task):
    inputs, targets, _ = task.make_dataset(["a man " * 60])[0]
    assert inputs["token_ids"].shape == targets.shape == (1, 40)
    with pytest.raises(ValueError, match="with 39 new ones needs more positions than.*has, 40"):
        task.generate([[5, 6]], 39)
    with pytest.raises(ValueError, match=r"`prompts\[0\]` has 41 tokens a row.*positions for 40"):
        task.generate([[5] * 41])
    assert len(task.generate([[5] * 30], 10)[0]) <= 10


def test_targets_come_from_the_texts(task):
    with pytest.raises(ValueError, match=r"`y\[0\]` must be a string or a list of messages.*wit"):
        task.fit(ENGLISH, [0] * len(ENGLISH))
    with pytest.raises(ValueError, match=r"`x\[1\]` is too short: there is no next token"):
        task.fit(["a man", ""])
