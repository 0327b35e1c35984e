"""Seq2SeqLM: teacher forcing, loss and metrics, generation, presets."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.training import Perplexity, TokenAccuracy, TokenCrossEntropy
from tests.tasks.common import ENGLISH, GERMAN, translator

pytestmark = pytest.mark.one_backend

SOURCES, TARGETS = ENGLISH[2:] * 4, GERMAN[:2] * 4


@pytest.fixture(scope="module")
def task():
    return translator()


def test_the_target_is_shifted_by_one(task):
    words = task.tokenizer
    inputs, targets, weights = task.make_dataset(SOURCES[:2], TARGETS[:2], batch_size=2)[0]
    for row in range(2):
        order = inputs["encoder_token_ids"][row, : inputs["encoder_padding_mask"][row].sum()]
        place = SOURCES[:2].index(words.decode(order))
        expected = words.encode(TARGETS[place], special_tokens=False)
        length = len(expected) + 1
        assert inputs["decoder_token_ids"][row, :length].tolist() == [words.start_id, *expected]
        assert targets[row, :length].tolist() == [*expected, words.end_id]
        assert (inputs["decoder_token_ids"][row, length:] == words.pad_id).all()
        assert (targets[row, length:] == words.pad_id).all()
        assert weights[row].tolist() == [1.0] * length + [0.0] * (targets.shape[1] - length)
        assert (inputs["decoder_padding_mask"][row] == (weights[row] > 0)).all()
    assert weights.min() == 0.0  # there was padding to look at


def test_long_targets_end(task):
    _, targets, weights = task.make_dataset(["a"], ["ein mann " * 50], max_length=9)[0]
    assert targets[0, 8] == task.tokenizer.end_id
    assert weights.sum() == 9


@pytest.mark.each_backend
def test_loss_and_metrics_equal_torch(task):
    torch = pytest.importorskip("torch")
    inputs, targets, weights = task.make_dataset(SOURCES[:2], TARGETS[:2], batch_size=2)[0]
    logits = torch.tensor(task.predict(inputs, verbose=0)).flatten(0, 1)
    expected = torch.tensor(np.where(weights > 0, targets, -100)).flatten().long()
    smoothed, plain = (
        torch.nn.functional.cross_entropy(logits, expected, label_smoothing=smoothing).item()
        for smoothing in (0.1, 0.0)
    )
    right = (logits.argmax(-1) == expected)[expected >= 0].float().mean().item()
    task.compile("sgd", TokenCrossEntropy(0.1), weighted_metrics=[Perplexity(), TokenAccuracy()])
    for data in ((SOURCES[:2], TARGETS[:2]), ((SOURCES[:2], TARGETS[:2]), None)):
        found = task.evaluate(*data, verbose=0, return_dict=True)
        assert found["loss"] == pytest.approx(smoothed, rel=1e-5)
        assert found["perplexity"] == pytest.approx(np.exp(plain), rel=1e-4)
        assert found["accuracy"] == pytest.approx(right, abs=1e-6)


@pytest.mark.each_backend
def test_predict_gives_logits_in_order(task):
    sources, targets = [*SOURCES[:2], "dull"], [*TARGETS[:2], "nie"]
    logits = task.predict((sources, targets), batch_size=2, verbose=0)
    assert logits.shape[0] == 3 and logits.shape[2] == task.tokenizer.vocabulary_size
    words = task.tokenizer
    for place in (0, 2):
        target = words.encode(targets[place], special_tokens=False)
        alone = task(
            {
                "encoder_token_ids": np.array([words.encode(sources[place])]),
                "decoder_token_ids": np.array([[words.start_id, *target]]),
            }
        )
        alone = keras.ops.convert_to_numpy(alone)[0]
        np.testing.assert_allclose(logits[place, : len(alone)], alone, atol=1e-4)
    arrays = task.predict((np.array(sources), np.array(targets)), batch_size=2, verbose=0)
    np.testing.assert_array_equal(arrays, logits)


@pytest.mark.each_backend
def test_fit_then_translate():
    """Learnt by heart; the same from a preset, also one stored in half precision."""
    keras.utils.set_random_seed(1)
    task = translator(hidden_dim=32, normalize_first=True)
    for variable in task.weights:
        if variable.name in ("kernel", "embeddings"):
            variable.assign(variable * 0.5)
    task.compile(
        keras.optimizers.Adam(1e-2), TokenCrossEntropy(), weighted_metrics=[TokenAccuracy()],
        sampler="beam",
    )  # fmt: skip
    assert task.sampler == kt.generation.BeamSearch()
    seen = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: (
            seen.append(task.generate(SOURCES[0], 16, "greedy")) if epoch == 59 else None
        )
    )
    history = task.fit(
        SOURCES, TARGETS, batch_size=8, epochs=60,
        validation_freq=60, verbose=0, callbacks=[watch],
        validation_data=(SOURCES[:2], TARGETS[:2]),
    ).history  # fmt: skip
    assert history["val_accuracy"][-1] == 1.0
    assert task.generate(SOURCES[:2], 16, "greedy") == TARGETS[:2]
    assert seen == TARGETS[:1]  # within `fit` the weights are as new


def test_generate_takes_and_gives_what_it_says(task):
    words = task.tokenizer
    ids = [words.encode(text) for text in SOURCES[:2]]
    new = task.generate(ids, 8)
    assert [[type(token) for token in row] for row in new] == [[int] * len(row) for row in new]
    texts = task.generate(SOURCES[:2], 8)
    assert texts == [words.decode(row) for row in new]
    assert task.generate(SOURCES[0], 8) == texts[0]
    assert task.generate(np.array(SOURCES[:2]), 8) == texts
    assert task.generate(tuple(SOURCES[:2]), 8, batch_size=1) == texts
    assert task.generate(ids[0], 8) == new[0]
    assert task.generate([np.array(row) for row in ids], np.int64(8)) == new
    assert task.generate(ids, 8, return_prompt=True) == [
        row + more for row, more in zip(ids, new, strict=True)
    ]
    assert task.generate(SOURCES[0], 8, return_prompt=True) == words.decode(ids[0] + new[0])


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_preset_round_trip(tmp_path, task, dtype):
    task.save_to_preset(tmp_path, dtype=dtype)
    loaded = kt.Task.from_preset(tmp_path)
    assert type(loaded) is kt.Seq2SeqLM and loaded.start_id == task.start_id
    pair = (SOURCES[:2], TARGETS[:2])
    expected, found = (model.predict(pair, verbose=0) for model in (task, loaded))
    atol = 0 if dtype is None else 0.02 * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)
    if dtype is None:
        assert loaded.generate(SOURCES[:2], 8) == task.generate(SOURCES[:2], 8)


def test_without_a_tokenizer():
    made = translator()
    task = kt.Seq2SeqLM(made.backbone, start_id=1)
    ids = [made.tokenizer.encode(SOURCES[0])]
    free = task.generate(ids, 8)[0]
    assert len(free) == 8  # no id ends it
    with pytest.raises(ValueError, match="has no tokenizer and takes ids only"):
        task.generate("a man")


@pytest.mark.parametrize("objective", [kt.training.SpanCorruption(0.3), kt.training.Denoising()])
def test_texts_alone(objective):
    """Drawn anew in every epoch, the same for a seed, in few shapes, and learnable."""
    specials = ["<mask>", *(f"<extra_id_{i}>" for i in range(9))]
    words = kt.Tokenizer.train(ENGLISH * 4, vocabulary_size=400, special_tokens=specials)
    sizes = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 24}
    config = kt.TransformerConfig(kind="seq2seq", vocabulary_size=words.vocabulary_size, **sizes)
    task = kt.Seq2SeqLM(kt.models.Seq2Seq(config), words)
    texts = ENGLISH * 8

    def sources(seed, epoch, shuffle=True):
        dataset = task.make_dataset(texts, objective=objective, shuffle=shuffle, seed=seed)
        dataset.epoch = epoch
        assert len({dataset[i][0]["encoder_token_ids"].shape for i in range(len(dataset))}) <= 2
        return dataset[0][0]["encoder_token_ids"].tolist()

    assert sources(1, 0) == sources(1, 0)
    assert sources(1, 0) != sources(1, 1) and sources(1, 0) != sources(2, 0)
    assert sources(1, 0, shuffle=False) == sources(1, 1, shuffle=False)

    task.compile(keras.optimizers.Adam(0.02), TokenCrossEntropy())
    dataset = task.make_dataset(texts, objective=objective, shuffle=True, max_buckets=1)
    losses = task.fit(dataset, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]


def test_texts_alone_need_an_objective(task):
    with pytest.raises(ValueError, match="`training.SpanCorruption\\(\\)` or `training.Denoising"):
        task.fit(SOURCES)
    with pytest.raises(ValueError, match="must be a training.SpanCorruption or training.Denoising"):
        task.make_dataset(SOURCES, objective=kt.training.MaskedTokens())
    with pytest.raises(ValueError, match="makes its targets from the texts: give `x` alone"):
        task.make_dataset(SOURCES, TARGETS, objective=kt.training.Denoising())
    with pytest.raises(ValueError, match="The tokenizer has no mask token"):
        task.make_dataset(SOURCES, objective=kt.training.Denoising())
