"""Losses of vectors against those of sentence-transformers, on the same numbers."""

import keras
import numpy as np
import pytest

from keras_transformer.training import (
    BatchAllTripletLoss,
    BatchHardTripletLoss,
    BatchSemiHardTripletLoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    MarginMSELoss,
    MultipleNegativesRankingLoss,
    TripletLoss,
)
from tests.training.gradients import value_and_gradients

RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.normal(size=(5, 4, 8)).astype("float32")
SCORES = np.array([0.1, 0.9, 0.5, 0.5, 0.0], "float32")


def theirs(name, vectors, scores=None, dims=None, weights=None, **options):
    """The loss of their class of this name, of vectors `(batch, texts, width)`."""
    torch = pytest.importorskip("torch")
    losses = pytest.importorskip("sentence_transformers.losses")
    loss = getattr(losses, name)(model=None, **options)
    labels = None if scores is None else torch.tensor(scores)
    dims = dims or [vectors.shape[-1]]
    total = 0.0
    for dim, weight in zip(dims, weights or [1.0] * len(dims), strict=True):
        texts = [torch.tensor(vectors[:, i, :dim]) for i in range(vectors.shape[1])]
        total += weight * float(loss.compute_loss_from_embeddings(texts, labels))
    return total


@pytest.mark.parametrize("texts", [2, 3, 4])
@pytest.mark.parametrize("options", [{}, {"scale": 3.0}])
def test_ranking_is_theirs(texts, options):
    found = MultipleNegativesRankingLoss(**options)(np.ones(5), VECTORS[:, :texts])
    expected = theirs("MultipleNegativesRankingLoss", VECTORS[:, :texts], **options)
    assert float(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("ours", [CosineSimilarityLoss, CoSENTLoss])
def test_losses_of_scores_are_theirs(ours):
    found = ours()(SCORES, VECTORS[:, :2])
    assert float(found) == pytest.approx(
        theirs(ours.__name__, VECTORS[:, :2], SCORES), rel=1e-5, abs=1e-6
    )


def test_matryoshka_is_theirs():
    nested = {"matryoshka_dims": [8, 4, 2], "matryoshka_weights": [1.0, 0.5, 2.0]}
    name = "MultipleNegativesRankingLoss"
    found = MultipleNegativesRankingLoss(**nested)(np.ones(5), VECTORS)
    expected = theirs(name, VECTORS, dims=[8, 4, 2], weights=[1.0, 0.5, 2.0])
    assert float(found) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="has 9, but the vectors have only 8 numbers"):
        MultipleNegativesRankingLoss(matryoshka_dims=[9])(np.ones(5), VECTORS)


@pytest.mark.parametrize("loss", [MultipleNegativesRankingLoss, CosineSimilarityLoss, CoSENTLoss])
def test_a_row_of_weight_zero_is_not_there(loss):
    weights = np.array([1, 0, 1, 1, 0], "float32")
    found = loss()(SCORES, VECTORS[:, :2], sample_weight=weights)
    there = weights > 0
    assert float(found) == pytest.approx(float(loss()(SCORES[there], VECTORS[there, :2])), rel=1e-5)
    assert float(found) != pytest.approx(float(loss()(SCORES, VECTORS[:, :2])), rel=1e-3)


@pytest.mark.one_backend
def test_a_duplicate_of_the_positive_is_a_negative_as_there():
    twice = VECTORS[[0, 0, 1]]
    found = MultipleNegativesRankingLoss()(np.ones(3), twice[:, :2])
    expected = theirs("MultipleNegativesRankingLoss", twice[:, :2])
    assert float(found) == pytest.approx(expected, rel=1e-5)
    assert float(found) > 2 / 3 * np.log(2)


@pytest.mark.one_backend
def test_what_a_loss_is_made_of_is_checked_and_kept():
    loss = CoSENTLoss(scale=7.0, matryoshka_dims=[4, 2])
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config() and again.scale == 7.0
    for wrong, message in (
        ({"scale": 0}, "`scale` must be a number above 0"),
        ({"matryoshka_dims": 8}, "`matryoshka_dims` must be a list"),
        ({"matryoshka_dims": [0]}, r"`matryoshka_dims\[0\]` must be an integer of at least 1"),
        ({"matryoshka_weights": [1.0]}, "one number for each of `matryoshka_dims`"),
    ):
        with pytest.raises(ValueError, match=message):
            MultipleNegativesRankingLoss(**wrong)
    for shape, loss in (((5, 8), MultipleNegativesRankingLoss), ((5, 3, 8), CosineSimilarityLoss)):
        with pytest.raises(ValueError, match=r"of shape \(batch, texts, width\), received shape"):
            loss()(np.ones(5), np.ones(shape))


@pytest.mark.parametrize("distance", ["euclidean", "cosine", "manhattan"])
def test_triplets_are_theirs(distance):
    losses = pytest.importorskip("sentence_transformers.losses")
    metric = getattr(losses.TripletDistanceMetric, distance.upper())
    for margin in (5.0, 0.3):
        expected = theirs(
            "TripletLoss", VECTORS[:, :3], distance_metric=metric, triplet_margin=margin
        )
        found = TripletLoss(distance, margin)(np.ones(5), VECTORS[:, :3])
        assert float(found) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_the_hardest_negative_of_a_batch():
    """As the definition says, one row after the other, in NumPy."""
    weights = np.array([1, 1, 0, 2, 1], "float32")
    for texts in (2, 4):
        expected = []
        for i in range(5):
            near = np.linalg.norm(VECTORS[i, 0] - VECTORS[i, 1])
            others = [(j, t) for j in range(5) for t in range(1, texts) if (j, t) != (i, 1)]
            others = [VECTORS[j, t] for j, t in others if weights[j] > 0]
            far = min(np.linalg.norm(VECTORS[i, 0] - other) for other in others)
            expected.append(max(near - far + 1.0, 0))
        loss = TripletLoss(margin=1.0, hard_negatives=True)
        found = loss(np.ones(5), VECTORS[:, :texts], sample_weight=weights)
        assert float(found) == pytest.approx(np.average(expected, weights=weights), rel=1e-5)


@pytest.mark.parametrize("negatives, columns", [(1, 1), (1, 2), (2, 2), (2, 3)])
def test_margins_are_theirs(negatives, columns):
    scores = RANDOM.normal(size=(5, columns)).astype("float32")
    scores = scores[:, 0] if columns == 1 else scores
    found = MarginMSELoss()(scores, VECTORS[:, : negatives + 2])
    expected = theirs("MarginMSELoss", VECTORS[:, : negatives + 2], scores)
    assert float(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.one_backend
def test_what_triplets_and_margins_take():
    with pytest.raises(ValueError, match="takes the vectors of 3 texts a row"):
        TripletLoss()(np.ones(5), VECTORS[:, :2])
    with pytest.raises(ValueError, match="margins of 2 negatives a row.* received 5 numbers"):
        MarginMSELoss()(np.ones((5, 5)), VECTORS)
    with pytest.raises(ValueError, match="`distance` must be one of 'euclidean'"):
        TripletLoss("hamming")
    for loss in (TripletLoss("cosine", 0.2, True), MarginMSELoss()):
        again = keras.losses.deserialize(keras.losses.serialize(loss))
        assert again.get_config() == loss.get_config()


# Three of a label, two of another, and one alone.
LABELS = np.array([2, 0, 2, 1, 0, 2])
OF_LABELS = {
    "BatchHardTripletLoss": BatchHardTripletLoss,
    "BatchAllTripletLoss": BatchAllTripletLoss,
    "BatchSemiHardTripletLoss": BatchSemiHardTripletLoss,
    "BatchHardSoftMarginTripletLoss": lambda **how: BatchHardTripletLoss(margin=None, **how),
}


@pytest.mark.parametrize("name", OF_LABELS)
def test_losses_of_labels_are_theirs(name):
    torch = pytest.importorskip("torch")
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    soft = "Soft" in name
    for i, (distance, labels) in enumerate(
        [("euclidean", LABELS), ("cosine", LABELS), ("euclidean", np.zeros(6, int))]
    ):
        margin = {} if soft else {"margin": (5.0, 0.3, 1.0)[i]}
        vectors = RANDOM.normal(size=(6, 8)).astype("float32")
        function = getattr(losses.BatchHardTripletLossDistanceFunction, f"{distance}_distance")
        theirs = getattr(losses, name)(None, distance_metric=function, **margin)
        given = torch.tensor(vectors, requires_grad=True)
        expected = theirs.compute_loss_from_embeddings([given], torch.tensor(labels))
        expected.backward()
        ours = OF_LABELS[name](distance=distance, **margin)
        value, (gradient,) = value_and_gradients(lambda x: ours(labels, x), [vectors])  # noqa: B023
        assert float(value) == pytest.approx(expected.item(), rel=1e-5)
        np.testing.assert_allclose(gradient, given.grad.numpy(), atol=2e-6, rtol=1e-4)


@pytest.mark.one_backend
@pytest.mark.parametrize("name", OF_LABELS)
def test_texts_of_weight_zero_are_in_no_triplet(name):
    loss, weights = OF_LABELS[name](), np.array([1, 1, 0, 1, 1, 1], "float32")
    vectors = np.random.default_rng(0).normal(size=(6, 8)).astype("float32")
    there = weights > 0
    expected = float(loss(LABELS[there], vectors[there]))
    assert float(loss(LABELS, vectors, sample_weight=weights)) == pytest.approx(expected, rel=1e-5)
    assert float(loss(LABELS, vectors)) != pytest.approx(expected, rel=1e-3)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config()
