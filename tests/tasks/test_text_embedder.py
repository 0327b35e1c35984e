"""TextEmbedder: the vectors that sentence-transformers gives."""

import logging

import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from tests.tasks.common import ENGLISH, classifier, config, predictions_alone, randomized, tokenizer

pytestmark = pytest.mark.one_backend


def embedder(**options):
    words = tokenizer(lowercase=True)
    backbone = kt.models.Encoder(config("encoder", words, position="rotary"))
    return randomized(kt.TextEmbedder(backbone, words, **options))


@pytest.mark.each_backend
def test_mean_and_first(tmp_path):
    mean, first = embedder(normalize=False), embedder(pooling="first", normalize=False)
    states = mean.backbone({"token_ids": np.array([mean.tokenizer.encode(ENGLISH[0])])})
    states = ops.convert_to_numpy(states)[0]
    outputs = mean.predict(ENGLISH, batch_size=2, verbose=0)
    np.testing.assert_allclose(outputs[0], states.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(first.predict(ENGLISH, verbose=0)[0], states[0], atol=1e-5)
    unit = embedder()
    np.testing.assert_allclose(
        unit.predict(ENGLISH, verbose=0), outputs / np.linalg.norm(outputs, axis=1)[:, None],
        atol=1e-5,
    )  # fmt: skip
    np.testing.assert_allclose(
        unit.predict(ENGLISH, verbose=0), predictions_alone(unit, ENGLISH), atol=1e-5
    )
    first.save_to_preset(tmp_path)
    loaded = kt.Task.from_preset(tmp_path)
    assert type(loaded) is kt.TextEmbedder
    assert (loaded.pooling, loaded.normalize) == ("first", False)
    np.testing.assert_array_equal(
        loaded.predict(ENGLISH, verbose=0), first.predict(ENGLISH, verbose=0)
    )


@pytest.mark.parametrize(
    "pooling, theirs",
    [
        ("mean", "mean"),
        ("first", "cls"),
        ("max", "max"),
        ("last", "lasttoken"),
        ("mean_sqrt_len", "mean_sqrt_len_tokens"),
        ("weighted_mean", "weightedmean"),
    ],
)
def test_poolings_of_sentence_transformers(pooling, theirs):
    modules = pytest.importorskip("sentence_transformers.models")
    torch = pytest.importorskip("torch")
    task = embedder(pooling=pooling, normalize=False)
    (inputs,) = task.make_dataset(ENGLISH)[0]
    mask = inputs["padding_mask"]
    assert not mask.all()
    states = ops.convert_to_numpy(task.backbone(inputs))
    features = {"token_embeddings": torch.tensor(states), "attention_mask": torch.tensor(mask)}
    expected = modules.Pooling(16, pooling_mode=theirs)(features)["sentence_embedding"].numpy()
    np.testing.assert_allclose(task.predict(inputs, verbose=0), expected, atol=1e-5)
    inputs["token_ids"] = np.where(mask, inputs["token_ids"], 9)
    np.testing.assert_allclose(task.predict(inputs, verbose=0), expected, atol=1e-5)
    np.testing.assert_allclose(
        task.predict(ENGLISH, verbose=0), predictions_alone(task, ENGLISH), atol=1e-5
    )


def test_the_last_token_of_a_decoder():
    words = tokenizer("bpe", add_prefix_space=True)
    backbone = kt.models.Decoder(config("decoder", words))
    task = randomized(kt.TextEmbedder(backbone, words, pooling="last"))
    found = task.predict(ENGLISH, verbose=0)
    np.testing.assert_allclose(found, predictions_alone(task, ENGLISH), atol=1e-5)


def test_longer_texts_are_cut(tmp_path):
    task = embedder(max_length=6)
    assert task.make_dataset(ENGLISH)[0][0]["padding_mask"].sum(axis=1).max() == 6
    cut = task.predict(ENGLISH[:1], verbose=0)
    ids = np.array(task.tokenizer.encode_batch(ENGLISH[:1], max_length=6))
    np.testing.assert_allclose(cut, task.predict({"token_ids": ids}, verbose=0), atol=1e-5)
    assert np.abs(cut - embedder().predict(ENGLISH[:1], verbose=0)).max() > 1e-3
    task.save_to_preset(tmp_path)
    loaded = kt.TextEmbedder.from_preset(tmp_path)
    assert loaded.max_length == 6
    np.testing.assert_allclose(loaded.predict(ENGLISH[:1], verbose=0), cut, atol=1e-6)


def test_minilm_equals_sentence_transformers_by_hand(minilm_folder):
    """Mean pooling over the mask, then length 1, of the states of Transformers' BertModel."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    texts = ["A cat sat on the mat.", "Dogs!", "It's the economy, isn't it? " * 5, "ein café"]
    words = transformers.AutoTokenizer.from_pretrained(minilm_folder)
    model = transformers.BertModel.from_pretrained(minilm_folder).eval()
    batch = words(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    expected = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    task = kt.Task.from_preset("minilm_l6_en")
    assert type(task) is kt.TextEmbedder
    found = task.predict(texts, batch_size=2, verbose=0)
    assert np.abs(found - expected.numpy()).max() <= 2e-6


def test_other_tasks_of_the_preset_have_a_fresh_head(tmp_path, caplog):
    embedder().save_to_preset(tmp_path)
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        kt.TextClassifier.from_preset(tmp_path, num_classes=2)
    assert (
        "no weights for this head of TextClassifier: it is newly initialized. Train it"
        in caplog.text
    )


def test_bad_values():
    with pytest.raises(ValueError, match="`pooling` must be one of 'mean', 'first'.*received 'm'"):
        embedder(pooling="m")
    for length in (0, 513, "5", 2.0):
        with pytest.raises(ValueError, match="`max_length` must be an integer from 1 to 512"):
            embedder(max_length=length)
    with pytest.raises(ValueError, match="has no labels of single texts: use `predict`"):
        embedder().make_dataset(ENGLISH, [0] * 4)
    with pytest.raises(ValueError, match="For vectors of texts call `predict`"):
        embedder().evaluate(ENGLISH, [0] * 4)
    assert classifier(num_classes=2).number_of_targets == 2
