"""Adversarial training of classifiers: where the step goes, and what is learned from it."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.training.adversarial import adversarial_loss
from tests.generation.common import on_one
from tests.layers.conftest import assert_close, numpy

LENGTHS = np.array([3, 6, 5, 2])
MASK = np.arange(6) < LENGTHS[:, None]
LABELS = np.array([0, 1, 1, 0])


def a_classifier(kind="encoder", dtype=None):
    keras.utils.set_random_seed(0)
    config = kt.TransformerConfig(
        kind=kind, vocabulary_size=30, hidden_dim=8, num_layers=1, num_heads=2,
        intermediate_dim=16, dropout=0.0,
    )  # fmt: skip
    classifier = kt.TextClassifier(
        kt.models.build_backbone(config, dtype=dtype), num_classes=2, pooling="mean"
    )
    for variable in classifier.trainable_variables:  # such that texts differ
        noise = np.random.default_rng(0).normal(size=variable.shape)
        variable.assign(np.array(numpy(variable)) + 0.3 * noise)
    return classifier


def a_batch(padded_to=6):
    ids = np.random.default_rng(1).integers(0, 30, (4, padded_to))
    ids[:, :6] = np.random.default_rng(2).integers(0, 30, (4, 6))
    mask = np.pad(MASK, ((0, 0), (0, padded_to - 6)))
    return {"token_ids": ids, "padding_mask": mask}


def loss_of(classifier, batch):
    def loss(x=batch):
        logits = classifier(x, training=True)
        return ops.mean(
            keras.losses.sparse_categorical_crossentropy(LABELS, logits, from_logits=True)
        )

    return loss


@pytest.mark.parametrize("kind", ["encoder", on_one("decoder")])
def test_no_step_of_that_length_has_a_higher_loss(kind):
    classifier, x, norm = a_classifier(kind), a_batch(), 0.1
    embedded = numpy(classifier.backbone.token_embedding(x["token_ids"])) * MASK[..., None]
    sizes = norm * _lengths(embedded)

    def beside(offsets):
        """The losses of the texts, `(steps, 4)`, for several steps `(steps, 4, 6, 8)` at once."""
        count = len(offsets)
        offsets = ops.convert_to_tensor(offsets.reshape(-1, 6, 8), "float32")
        tiled = {name: np.tile(array, (count, 1)) for name, array in x.items()}
        embedded = classifier.backbone.token_embedding(tiled["token_ids"])
        logits = classifier({**tiled, "token_embeddings": embedded + offsets})
        losses = keras.losses.sparse_categorical_crossentropy(
            np.tile(LABELS, count), logits, from_logits=True
        )
        return numpy(losses).reshape(count, 4)

    clean = float(loss_of(classifier, x)())
    highest = float(adversarial_loss(loss_of(classifier, x), classifier, x, norm))
    steps = np.random.default_rng(0).normal(size=(200, 4, 6, 8)) * MASK[..., None]
    others = beside(sizes * steps / _lengths(steps)).mean(axis=1)
    assert highest > clean and highest > others.max()

    # Along the gradient, by finite differences of every number.
    units = 1e-2 * np.eye(48).reshape(48, 1, 6, 8) * np.ones((4, 1, 1))
    gradient = (beside(units) - beside(-units)).T.reshape(4, 6, 8)
    expected = beside((sizes * gradient / _lengths(gradient))[None]).mean()
    assert highest == pytest.approx(expected, abs=abs(float(expected) - clean) / 100)


def _lengths(x):
    return np.sqrt((x**2).sum(axis=(-2, -1), keepdims=True))


def test_padding_changes_nothing():
    classifier = a_classifier()
    short, long = a_batch(), a_batch(padded_to=11)
    losses = [adversarial_loss(loss_of(classifier, x), classifier, x, 0.2) for x in (short, long)]
    assert_close(*losses)


def test_a_text_of_which_the_model_is_sure():
    """A gradient of 0 has no direction, and gives no NaN."""
    classifier, x = a_classifier(), a_batch()
    classifier.output_dense.kernel.assign(ops.zeros((8, 2)))
    loss = loss_of(classifier, x)
    assert_close(adversarial_loss(loss, classifier, x, 0.2), loss())


@functools.cache
def trained(adversarial_norm, dtype=None):
    classifier = a_classifier(dtype=dtype)
    classifier.compile(
        keras.optimizers.SGD(0.1), classifier.loss, adversarial_norm=adversarial_norm
    )
    logs = classifier.fit(a_batch(), LABELS, epochs=2, shuffle=False, verbose=0).history
    return [np.array(numpy(v)) for v in classifier.trainable_variables], logs["loss"]


def test_fit_learns_from_both():
    plain, losses = trained(0.0)
    near, near_losses = trained(1e-6)
    far, far_losses = trained(0.3)
    assert near_losses == pytest.approx(losses, abs=1e-5)
    for one, other in zip(plain, near, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert far_losses[0] > losses[0] + 1e-3
    assert max(np.abs(a - b).max() for a, b in zip(plain, far, strict=True)) > 1e-3


def test_the_gradient_is_that_of_the_mean():
    """One step of SGD goes down by the gradient of the two losses' mean, the step held fast."""
    classifier, x = a_classifier(), a_batch()
    loss = loss_of(classifier, x)
    clean, worst = float(loss()), float(adversarial_loss(loss, classifier, x, 0.2))
    before = [np.array(numpy(v)) for v in classifier.trainable_variables]
    rate = 1e-3
    classifier.compile(keras.optimizers.SGD(rate), classifier.loss, adversarial_norm=0.2)
    logs = classifier.fit(x, LABELS, verbose=0).history
    assert logs["loss"][0] == pytest.approx((clean + worst) / 2, abs=1e-5)
    moved = [
        np.array(numpy(v)) - b for v, b in zip(classifier.trainable_variables, before, strict=True)
    ]
    squared = sum(float((m.astype("float64") ** 2).sum()) for m in moved) / rate
    # Not the embeddings' own part of the gradient: they also move what the step starts from.
    after = (float(loss()) + float(adversarial_loss(loss, classifier, x, 0.2))) / 2
    assert (clean + worst) / 2 - after == pytest.approx(squared, rel=0.1)


@pytest.mark.one_backend
def test_evaluation_is_plain():
    classifier = a_classifier()
    expected = classifier.evaluate(a_batch(), LABELS, verbose=0)[0]
    classifier.compile(loss=classifier.loss, metrics=["accuracy"], adversarial_norm=0.5)
    assert classifier.evaluate(a_batch(), LABELS, verbose=0)[0] == pytest.approx(expected)


def test_mixed_precision():
    _, losses = trained(0.2)
    for dtype in ("mixed_bfloat16", "mixed_float16"):
        assert trained(0.2, dtype=dtype)[1] == pytest.approx(losses, rel=0.05)


def test_rematerialized():
    weights, losses = trained(0.2)
    with keras.RematScope(mode="full"):
        others, other_losses = trained.__wrapped__(0.2)
    assert other_losses == pytest.approx(losses, abs=1e-5)
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.one_backend
def test_token_classifier_on_strings():
    texts = ["the cat sat", "a dog ran home", "the dog sat"] * 4
    words = [text.split() for text in texts]
    labels = [[int(word in ("cat", "dog")) for word in row] for row in words]
    tokenizer = kt.Tokenizer.train(texts, kind="bpe", vocabulary_size=270)
    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=tokenizer.vocabulary_size, hidden_dim=8, num_layers=1,
        num_heads=2, intermediate_dim=16,
    )  # fmt: skip
    tagger = kt.TokenClassifier(kt.models.Encoder(config), tokenizer, num_classes=2)
    tagger.compile(keras.optimizers.Adam(0.01), tagger.loss, adversarial_norm=0.1)
    losses = tagger.fit(words, labels, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("norm", [-0.1, float("nan"), float("inf"), "0.1"])
def test_bad_norm(norm):
    with pytest.raises(ValueError, match="`adversarial_norm` must be a number of at least 0"):
        a_classifier().compile(adversarial_norm=norm)
