"""Losses of text vectors, with the names and formulas of sentence-transformers."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.distribution.replicas import mean_over_replicas, share_of_weight
from keras_transformer.layers.max_sim import max_sim
from keras_transformer.layers.normalization import unit_vectors
from keras_transformer.support.checking import (
    check_bool,
    check_choice,
    check_int,
    check_number,
    describe,
    nearest,
    shorten,
)

_HIDDEN = -1e9


class EmbeddingLoss(keras.losses.Loss):
    """Base class of losses of text vectors, float `(batch, texts, width)`, computed in float32.

    Rows of weight 0 are ignored. With `matryoshka_dims` the loss is the sum, weighted by
    `matryoshka_weights`, of the losses of vectors truncated to each of these widths.
    """

    takes_scores = False
    takes_margins = False  # whether a row may have several scores
    takes_labels = False  # whether the targets are labels of single texts
    takes_tokens = False  # whether a text may have a vector for each of its tokens
    most_texts: int | None = None
    least_texts = 2
    # Number of rows whose texts are embedded at a time in training; None means all.
    mini_batch_size: int | None = None

    def __init__(
        self,
        matryoshka_dims: Sequence[int] | None = None,
        matryoshka_weights: Sequence[float] | None = None,
        name: str | None = None,
    ):
        super().__init__(name=name, reduction=None, dtype="float32")
        dims = _numbers("matryoshka_dims", matryoshka_dims, check_int, at_least=1)
        weights = _numbers("matryoshka_weights", matryoshka_weights, check_number, at_least=0)
        if weights is not None and (dims is None or len(weights) != len(dims)):
            raise ValueError(
                f"`matryoshka_weights` must be one number for each of `matryoshka_dims`, received "
                f"{shorten(weights)} for {shorten(dims)}."
            )
        self.matryoshka_dims, self.matryoshka_weights = dims, weights

    def check_width(self, width: int) -> None:
        """Raise ValueError if `matryoshka_dims` exceed the width of the vectors."""
        most = max(self.matryoshka_dims or [0])
        if most > width:
            raise ValueError(
                f"`matryoshka_dims` has {most}, but the vectors have only {width} numbers."
            )

    def __call__(self, y_true, y_pred, sample_weight=None):
        vectors = ops.convert_to_tensor(y_pred, dtype="float32")
        vectors = vectors[:, None] if len(vectors.shape) == 2 else vectors
        axes = (3, 4) if self.takes_tokens else (3,)
        texts = vectors.shape[1] if len(vectors.shape) in axes else 0
        if texts < self.least_texts or texts > (self.most_texts or texts):
            least = self.least_texts
            count = f"{least}" if self.most_texts == least else f"{least} or more"
            how = "texts and labels: fit(texts, labels)" if self.takes_labels else (
                "a tuple of lists: fit((anchors, positives))"
            )  # fmt: skip
            raise ValueError(
                f"{type(self).__name__} takes the vectors of {count} texts a row, of shape (batch, "
                f"texts, width), received shape {tuple(vectors.shape)}. Fit on {how}."
            )
        width = vectors.shape[-1]
        self.check_width(width)
        scores = ops.cast(y_true, "int32" if self.takes_labels else "float32")
        if not self.takes_margins:
            scores = ops.reshape(scores, (-1,))
        rows = ops.reshape(vectors, (ops.shape(vectors)[0], -1))[:, 0]
        weights = ops.ones_like(rows) if sample_weight is None else sample_weight
        weights = ops.reshape(ops.convert_to_tensor(weights, dtype="float32"), (-1,))
        dims = self.matryoshka_dims or [width]
        shares = self.matryoshka_weights or [1.0] * len(dims)
        total = sum(
            share * self.of_vectors(vectors[..., :dim], scores, weights)
            for share, dim in zip(shares, dims, strict=True)
        )
        return total * share_of_weight(ops.sum(weights))

    def of_vectors(self, vectors, scores, weights):
        """Return the loss, a scalar, of vectors `(batch, texts, dim)` of any norm."""
        return self.of_units(unit_vectors(vectors), scores, weights)

    def total_weight(self, y_true, sample_weight=None):
        """Return the weight of a batch, a float scalar: the sum of its rows' weights."""
        weights = ops.ones_like(y_true) if sample_weight is None else sample_weight
        return mean_over_replicas(ops.sum(ops.cast(weights, "float32")))

    def of_units(self, units, scores, weights):
        """Return the loss, a scalar, for unit vectors, and for scores and weights `(batch,)`."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        names = ("name", "matryoshka_dims", "matryoshka_weights")
        return {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultipleNegativesRankingLoss(EmbeddingLoss):
    """Cross-entropy that brings each anchor nearer to its positive than to other texts of a batch.

    The logits of an anchor are its cosines, times `scale`, to all positives and negatives of the
    batch; its own positive is the target. For texts with a vector for each token (`"multi_vector"`
    of a `TextEmbedder`, with zeros in other places) they are the MaxSim scores, times `scale`. A
    row is an anchor, a positive and any number of negatives. A positive that occurs twice in a
    batch is also a negative of its own anchor, as in sentence-transformers: let anchors and
    positives differ from row to row. Larger batches have more negatives.

    Args:
        scale: float, the cosine is multiplied by it.
        matryoshka_dims: ints, widths to which vectors may be truncated: the loss is the sum of the
            losses at these widths. Include the whole width too. Defaults to the whole width.
        matryoshka_weights: floats, the weight of each of these losses. Defaults to 1.
        name: see `keras.losses.Loss`.

    Raises:
        ValueError: if `scale` is not positive or a width exceeds the width of the vectors.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import MultipleNegativesRankingLoss

    vectors = np.array([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])  # two pairs
    loss = MultipleNegativesRankingLoss(scale=2.0)(np.ones(2), vectors)
    assert abs(float(loss) - np.log(1 + np.exp(-2))) < 1e-6
    ```

    Source: Henderson et al. 2017, "Efficient Natural Language Response Suggestion", section 4.4;
    Kusupati et al. 2022, "Matryoshka Representation Learning", equation 1.
    """

    takes_tokens = True

    def __init__(
        self,
        scale: float = 20.0,
        matryoshka_dims: Sequence[int] | None = None,
        matryoshka_weights: Sequence[float] | None = None,
        name: str = "multiple_negatives_ranking",
    ):
        super().__init__(matryoshka_dims, matryoshka_weights, name)
        self.scale = check_number("scale", scale, above=0)

    def of_units(self, units, scores, weights):
        texts, shape = units.shape[1], ops.shape(units)[2:]
        candidates = ops.reshape(ops.swapaxes(units[:, 1:], 0, 1), (-1, *shape))
        if len(shape) == 1:
            cosines = ops.matmul(units[:, 0], ops.transpose(candidates))
            own = ops.sum(units[:, 0] * units[:, 1], axis=-1)
        else:
            cosines = max_sim(units[:, 0], candidates)
            own = ops.diagonal(cosines)
        there = ops.tile(weights > 0, texts - 1)
        logits = ops.where(there, self.scale * cosines, _HIDDEN)
        largest = ops.stop_gradient(ops.max(logits, axis=-1))
        above = ops.log(ops.sum(ops.exp(logits - largest[:, None]), axis=-1))
        return _mean(above + (largest - self.scale * own), weights)

    def get_config(self):
        return {**super().get_config(), "scale": self.scale}


@keras.saving.register_keras_serializable(package="keras_transformer")
class CosineSimilarityLoss(EmbeddingLoss):
    """Squared difference between the cosine of two texts and their score, averaged over a batch.

    A row is a pair of texts; `y` holds the scores of the pairs, float `(batch,)`.

    Args:
        matryoshka_dims, matryoshka_weights, name: see `MultipleNegativesRankingLoss`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import CosineSimilarityLoss

    vectors = np.array([[[1.0, 0.0], [0.0, 1.0]]])  # two texts that have nothing in common
    assert float(CosineSimilarityLoss()(np.array([0.5]), vectors)) == 0.25
    ```

    Source: Reimers and Gurevych 2019, "Sentence-BERT", section 3 (the regression objective).
    """

    takes_scores = True
    most_texts = 2

    def __init__(
        self, matryoshka_dims=None, matryoshka_weights=None, name: str = "cosine_similarity"
    ):
        super().__init__(matryoshka_dims, matryoshka_weights, name)

    def of_units(self, units, scores, weights):
        return _mean(ops.square(_cosines(units) - scores), weights)


@keras.saving.register_keras_serializable(package="keras_transformer")
class CoSENTLoss(EmbeddingLoss):
    """Ranking loss that gives pairs with a higher score a higher cosine.

    `log(1 + sum exp(scale * (cosine of the lower - cosine of the higher)))`, summed over all
    combinations of two pairs of the batch with different scores. A row is a pair of texts; `y`
    holds the scores of the pairs, float `(batch,)`. Only the order of the scores matters.

    Args:
        scale: float, the cosine is multiplied by it.
        matryoshka_dims, matryoshka_weights, name: see `MultipleNegativesRankingLoss`.

    Raises:
        ValueError: if `scale` is not positive.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import CoSENTLoss

    same, other = [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]
    loss = CoSENTLoss(scale=2.0)(np.array([1.0, 0.0]), np.array([same, other]))
    assert abs(float(loss) - np.log(1 + np.exp(-2))) < 1e-6
    ```

    Source: Huang et al. 2024, "CoSENT: Consistent Sentence Embedding via Similarity Ranking".
    """

    takes_scores = True
    most_texts = 2

    def __init__(
        self,
        scale: float = 20.0,
        matryoshka_dims=None,
        matryoshka_weights=None,
        name: str = "cosent",
    ):
        super().__init__(matryoshka_dims, matryoshka_weights, name)
        self.scale = check_number("scale", scale, above=0)

    def of_units(self, units, scores, weights):
        cosines = self.scale * _cosines(units)
        there = weights > 0
        compared = (scores[:, None] < scores[None]) & there[:, None] & there[None]
        differences = ops.where(compared, cosines[:, None] - cosines[None], _HIDDEN)
        differences = ops.reshape(differences, (-1,))
        return ops.logsumexp(ops.concatenate([ops.zeros_like(differences[:1]), differences]))

    def get_config(self):
        return {**super().get_config(), "scale": self.scale}


@keras.saving.register_keras_serializable(package="keras_transformer")
class CachedMultipleNegativesRankingLoss(MultipleNegativesRankingLoss):
    """`MultipleNegativesRankingLoss` for large batches in the memory of small ones.

    The texts of a step are embedded `mini_batch_size` rows at a time. Only the vectors are kept,
    and each part is embedded a second time when its gradient is taken. Loss and gradients equal
    those of the whole batch; a step takes about a third longer.

    Args:
        scale, matryoshka_dims, matryoshka_weights, name: see `MultipleNegativesRankingLoss`.
        mini_batch_size: int, number of rows whose texts are embedded at a time.

    Raises:
        ValueError: if `mini_batch_size` is below 1.

    Example:
    ```python
    import keras_transformer as kt

    embedder = kt.TextEmbedder.from_preset("minilm_l6_en")
    embedder.compile(loss=kt.training.CachedMultipleNegativesRankingLoss(mini_batch_size=2))
    anchors = ["a cat", "a car", "a dog", "a house"]
    positives = ["a kitten", "a bus", "a puppy", "a home"]
    embedder.fit((anchors, positives), batch_size=4, verbose=0)
    ```

    Source: Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited
    Setup" (GradCache), section 3; recomputed as in Chen et al. 2016, "Training Deep Nets with
    Sublinear Memory Cost".
    """

    def __init__(
        self,
        scale: float = 20.0,
        matryoshka_dims: Sequence[int] | None = None,
        matryoshka_weights: Sequence[float] | None = None,
        name: str = "cached_multiple_negatives_ranking",
        mini_batch_size: int = 32,
    ):
        super().__init__(scale, matryoshka_dims, matryoshka_weights, name)
        self.mini_batch_size = check_int("mini_batch_size", mini_batch_size, at_least=1)

    def get_config(self):
        return {**super().get_config(), "mini_batch_size": self.mini_batch_size}


_DISTANCES = ("euclidean", "cosine", "manhattan")


@keras.saving.register_keras_serializable(package="keras_transformer")
class TripletLoss(EmbeddingLoss):
    """Margin loss that moves an anchor nearer to its positive than to its negative.

    `max(distance to the positive - distance to the negative + margin, 0)`. A row is an anchor, a
    positive and a negative. With `hard_negatives` the negative of a row is the nearest among all
    negatives of the batch and the positives of other rows; a row then needs no negative.

    Args:
        distance: "euclidean", "cosine" (1 minus the cosine) or "manhattan".
        margin: float above 0. Vectors of length 1 (`normalize=True`, the default of a
            `TextEmbedder`) are at most 2 apart: give a smaller margin than the default then.
        hard_negatives: bool, see above.
        name: see `keras.losses.Loss`.

    Raises:
        ValueError: if `distance` is not one of the three, or the margin is not above 0.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import TripletLoss

    row = [[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]]  # distances 1 and 3
    assert float(TripletLoss(margin=5.0)(np.ones(1), np.array([row]))) == 1 - 3 + 5
    ```

    Source: Schroff et al. 2015, "FaceNet", section 3.1; Hermans et al. 2017, "In Defense of the
    Triplet Loss for Person Re-Identification", equation 5 (the hardest negative of a batch).
    """

    least_texts = most_texts = 3

    def __init__(
        self,
        distance: str = "euclidean",
        margin: float = 5.0,
        hard_negatives: bool = False,
        name: str = "triplet",
    ):
        super().__init__(name=name)
        self.distance = check_choice("distance", distance, _DISTANCES)
        self.margin = check_number("margin", margin, above=0)
        self.hard_negatives = check_bool("hard_negatives", hard_negatives)
        if self.hard_negatives:
            self.least_texts, self.most_texts = 2, None

    def of_vectors(self, vectors, scores, weights):
        anchors, positives = vectors[:, 0], vectors[:, 1]
        near = self._distances(anchors, positives)
        if not self.hard_negatives:
            far = self._distances(anchors, vectors[:, 2])
            return _mean(ops.relu(near - far + self.margin), weights)
        rows, texts, width = ops.shape(vectors)[0], *vectors.shape[1:]
        others = ops.reshape(ops.swapaxes(vectors[:, 1:], 0, 1), (-1, width))
        distances = self._distances(anchors[:, None], others[None])
        # A row's own positive is excluded from its negatives; its own negatives are not.
        own = ops.eye(rows, dtype="bool")
        further = [ops.zeros_like(own)] * (texts - 2)
        hidden = ops.concatenate([own, *further], axis=1)
        hidden = ops.logical_or(hidden, ops.tile(weights <= 0, texts - 1)[None])
        far = ops.min(ops.where(hidden, -_HIDDEN, distances), axis=-1)
        return _mean(ops.relu(near - far + self.margin), weights)

    def _distances(self, first, second):
        """Return distances of vectors over the last axis."""
        if self.distance == "cosine":
            first, second = unit_vectors(first), unit_vectors(second)
            return 1 - ops.sum(first * second, axis=-1)
        difference = first - second
        if self.distance == "manhattan":
            return ops.sum(ops.abs(difference), axis=-1)
        # The gradient of the square root is infinite at 0, where two texts coincide.
        squares = ops.sum(ops.square(difference), axis=-1)
        apart = squares > 0
        return ops.where(apart, ops.sqrt(ops.where(apart, squares, 1.0)), 0.0)

    def get_config(self):
        names = ("name", "distance", "margin", "hard_negatives")
        return {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable(package="keras_transformer")
class MarginMSELoss(EmbeddingLoss):
    """Squared error between the margins of the vectors and the margins of a teacher model.

    A margin is the dot product of a query and its positive minus the dot product of the query and a
    negative. A row is a query, a positive and one or more negatives; `y` holds the teacher's
    margins, `(rows,)` for one negative or `(rows, negatives)`, or the teacher's scores of positive
    and negatives, `(rows, 1 + negatives)`.

    Args:
        name: see `keras.losses.Loss`.

    Raises:
        ValueError: if `y` has neither a column for each negative nor one more.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import MarginMSELoss

    row = [[1.0, 0.0], [0.5, 0.0], [0.2, 0.0]]  # a margin of 0.5 - 0.2
    loss = MarginMSELoss()(np.array([0.1]), np.array([row]))
    assert abs(float(loss) - 0.2**2) < 1e-6
    ```

    Source: Hofstätter et al. 2020, "Improving Efficient Neural Ranking Models with
    Cross-Architecture Knowledge Distillation", section 3.1.
    """

    takes_scores = takes_margins = True
    least_texts = 3

    def __init__(self, name: str = "margin_mse"):
        super().__init__(name=name)

    def of_vectors(self, vectors, scores, weights):
        found = ops.sum(vectors[:, :1] * vectors[:, 1:], axis=-1)
        found = found[:, :1] - found[:, 1:]
        negatives = found.shape[1]
        columns = scores.shape[1] if len(scores.shape) > 1 else 1
        if columns == negatives + 1:
            scores = scores[:, :1] - scores[:, 1:]
        elif columns != negatives:
            raise ValueError(
                f"MarginMSELoss takes the margins of {negatives} negatives a row, or the scores of "
                f"the positive and these negatives, received {columns} numbers a row."
            )
        errors = ops.square(found - ops.reshape(scores, (-1, negatives)))
        return _mean(ops.mean(errors, axis=-1), weights)

    def get_config(self):
        return {"name": self.name}


class _OfLabels(EmbeddingLoss):
    """Base class of losses of triplets, formed within a batch from the labels of single texts.

    Texts with the same label are positives of each other, texts with other labels are negatives.
    """

    takes_labels = True
    least_texts = most_texts = 1

    def __init__(self, distance: str, margin: float | None, name: str):
        super().__init__(name=name)
        self.distance = check_choice("distance", distance, ("euclidean", "cosine"))
        self.margin = margin

    def of_vectors(self, vectors, scores, weights):
        distances = self._distances(vectors[:, 0])
        there = (weights > 0)[:, None] & (weights > 0)[None]
        same = ops.equal(scores[:, None], scores[None])
        other = ops.logical_not(ops.eye(ops.shape(scores)[0], dtype="bool"))
        return self.of_triplets(distances, same & other & there, ~same & there, weights)

    def of_triplets(self, distances, positive, negative, weights):
        """Return the loss, a scalar.

        Args:
            distances: float `(anchors, texts)`.
            positive: bool `(anchors, texts)`, whether a text is a positive of an anchor.
            negative: bool `(anchors, texts)`, whether a text is a negative of an anchor.
            weights: float `(anchors,)`.
        """
        raise NotImplementedError

    def _distances(self, vectors):
        """Return the distances between all vectors `(batch, width)`, float `(batch, batch)`.

        The distance of a vector to itself is 0 and has no gradient.
        """
        if self.distance == "cosine":
            units = unit_vectors(vectors)
            return 1 - ops.matmul(units, ops.transpose(units))
        products = ops.matmul(vectors, ops.transpose(vectors))
        squares = ops.diagonal(products)
        squares = squares[:, None] - 2.0 * products + squares[None]
        # The gradient of the square root is infinite at 0.
        apart = squares > 0
        return ops.where(apart, ops.sqrt(ops.where(apart, squares, 1.0)), 0.0)

    def get_config(self):
        return {name: getattr(self, name) for name in ("name", "distance", "margin")}


@keras.saving.register_keras_serializable(package="keras_transformer")
class BatchHardTripletLoss(_OfLabels):
    """Triplet loss of each text's furthest positive and nearest negative in the batch.

    `max(distance to the furthest positive - distance to the nearest negative + margin, 0)`, the
    mean over the texts of a batch. It learns from single texts and their labels: `fit(texts,
    labels)`. A batch needs several labels, and several texts of each; a text without another one of
    its label is its own positive.

    Args:
        distance: "euclidean" or "cosine" (1 minus the cosine).
        margin: float above 0. None uses a soft margin, the softplus of the difference. Vectors of
            length 1 (`normalize=True`, the default of a `TextEmbedder`) are at most 2 apart: give a
            smaller margin than the default then.
        name: see `keras.losses.Loss`.

    Raises:
        ValueError: if `distance` is neither of the two, or the margin is not above 0.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import BatchHardTripletLoss

    vectors = np.array([[0.0], [1.0], [4.0]])  # two with one label, one with another
    loss = BatchHardTripletLoss(margin=5.0)(np.array([0, 0, 1]), vectors)
    assert abs(float(loss) - ((1 - 4 + 5) + (1 - 3 + 5) + (0 - 3 + 5)) / 3) < 1e-6
    ```

    Source: Hermans et al. 2017, "In Defense of the Triplet Loss for Person Re-Identification",
    equations 5 (batch hard) and, for the soft margin, section 2.
    """

    def __init__(
        self,
        distance: str = "euclidean",
        margin: float | None = 5.0,
        name: str = "batch_hard_triplet",
    ):
        margin = check_number("margin", margin, above=0, none=True)
        super().__init__(distance, margin, name)

    def of_triplets(self, distances, positive, negative, weights):
        there = positive | negative
        near = ops.max(ops.where(positive, distances, 0.0), axis=-1)
        # If there is no negative, the furthest text takes its place.
        furthest = ops.max(ops.where(there, distances, 0.0), axis=-1, keepdims=True)
        far = ops.min(ops.where(negative, distances, furthest), axis=-1)
        difference = near - far
        losses = (
            ops.softplus(difference) if self.margin is None
            else ops.relu(difference + self.margin)
        )  # fmt: skip
        return _mean(losses, weights)


@keras.saving.register_keras_serializable(package="keras_transformer")
class BatchAllTripletLoss(_OfLabels):
    """Triplet loss over all positives and negatives of each text in the batch.

    `max(distance to the positive - distance to the negative + margin, 0)`, the mean over the
    triplets of a batch for which it is above 0. Memory grows with the cube of the batch size.

    Args:
        distance, name: see `BatchHardTripletLoss`.
        margin: float above 0.

    Raises:
        ValueError: see `BatchHardTripletLoss`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import BatchAllTripletLoss

    vectors = np.array([[0.0], [1.0], [4.0]])  # triplets of the first and of the second text
    loss = BatchAllTripletLoss(margin=5.0)(np.array([0, 0, 1]), vectors)
    assert float(loss) == ((1 - 4 + 5) + (1 - 3 + 5)) / 2
    ```

    Source: Hermans et al. 2017, "In Defense of the Triplet Loss for Person Re-Identification",
    equation 6 and, for the mean over nonzero terms, section 2.
    """

    def __init__(
        self, distance: str = "euclidean", margin: float = 5.0, name: str = "batch_all_triplet"
    ):
        super().__init__(distance, check_number("margin", margin, above=0), name)

    def of_triplets(self, distances, positive, negative, weights):
        losses = distances[:, :, None] - distances[:, None, :] + self.margin
        counted = (losses > 1e-16) & positive[:, :, None] & negative[:, None, :]
        each = ops.sum(ops.where(counted, losses, 0.0), axis=(1, 2))
        numbers = ops.sum(ops.cast(counted, "float32"), axis=(1, 2))
        return ops.divide_no_nan(ops.sum(each * weights), ops.sum(numbers * weights))


@keras.saving.register_keras_serializable(package="keras_transformer")
class BatchSemiHardTripletLoss(_OfLabels):
    """Triplet loss of each positive pair and the nearest negative beyond the positive.

    `max(distance to the positive - distance to the negative + margin, 0)`, the mean over all pairs
    of texts with the same label. The negative is the nearest that is further away than the
    positive, or the furthest if all are nearer. Memory grows with the cube of the batch size.

    Args:
        distance, name: see `BatchHardTripletLoss`.
        margin: float above 0.

    Raises:
        ValueError: see `BatchHardTripletLoss`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import BatchSemiHardTripletLoss

    vectors = np.array([[0.0], [1.0], [4.0]])  # two with one label, one with another
    loss = BatchSemiHardTripletLoss(margin=5.0)(np.array([0, 0, 1]), vectors)
    assert float(loss) == ((1 - 4 + 5) + (1 - 3 + 5)) / 2
    ```

    Source: Schroff et al. 2015, "FaceNet", section 3.2.
    """

    def __init__(
        self,
        distance: str = "euclidean",
        margin: float = 5.0,
        name: str = "batch_semi_hard_triplet",
    ):
        super().__init__(distance, check_number("margin", margin, above=0), name)

    def of_triplets(self, distances, positive, negative, weights):
        far = -_HIDDEN
        behind = (distances[:, None, :] > distances[:, :, None]) & negative[:, None, :]
        next_one = ops.min(ops.where(behind, distances[:, None, :], far), axis=-1)
        furthest = ops.max(ops.where(negative, distances, 0.0), axis=-1, keepdims=True)
        chosen = ops.where(next_one < far, next_one, furthest)
        losses = ops.where(positive, ops.relu(distances - chosen + self.margin), 0.0)
        pairs = ops.sum(ops.cast(positive, "float32"), axis=-1)
        total = ops.sum(ops.sum(losses, axis=-1) * weights)
        return ops.divide_no_nan(total, ops.sum(pairs * weights))


_LOSSES = {
    "multiple_negatives_ranking": MultipleNegativesRankingLoss,
    "cached_multiple_negatives_ranking": CachedMultipleNegativesRankingLoss,
    "triplet": TripletLoss,
    "batch_hard_triplet": BatchHardTripletLoss,
    "batch_all_triplet": BatchAllTripletLoss,
    "batch_semi_hard_triplet": BatchSemiHardTripletLoss,
    "margin_mse": MarginMSELoss,
    "cosine_similarity": CosineSimilarityLoss,
    "cosent": CoSENTLoss,
}


def embedding_loss(given: Any) -> Any:
    """Return the loss with this name, or a given loss itself. Raises ValueError if unknown."""
    if not isinstance(given, str) or given == "auto":
        return given
    if given not in _LOSSES:
        raise ValueError(
            f"A TextEmbedder has no loss {shorten(given)}.{nearest(given, _LOSSES)} It has "
            f"{', '.join(map(repr, _LOSSES))}; or give a loss of `keras_transformer.training`."
        )
    return _LOSSES[given]()


def _cosines(units):
    return ops.sum(units[:, 0] * units[:, 1], axis=-1)


def _mean(losses, weights):
    return ops.divide_no_nan(ops.sum(losses * weights), ops.sum(weights))


def _numbers(name: str, values: Any, check, **bounds) -> list | None:
    if values is None:
        return None
    if not isinstance(values, (list, tuple)) or not values:
        raise ValueError(f"`{name}` must be a list of numbers, received {describe(values)}.")
    return [check(f"{name}[{i}]", value, **bounds) for i, value in enumerate(values)]
