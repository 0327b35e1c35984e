"""The losses of vectors of texts, with the names and the formulas of sentence-transformers."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.checking import check_int, check_number, describe, nearest, shorten
from keras_transformer.distribution.replicas import share_of_weight

_HIDDEN = -1e9


class EmbeddingLoss(keras.losses.Loss):
    """A loss of the vectors of a row's texts, `(batch, texts, width)`, computed in float32.

    Rows of weight 0 are as if they were not there. With `matryoshka_dims` it is the sum of the
    losses of the first so many numbers of each vector, by their `matryoshka_weights`.
    """

    takes_scores = False
    most_texts: int | None = None

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
        """ValueError for `matryoshka_dims` above the width of the vectors."""
        most = max(self.matryoshka_dims or [0])
        if most > width:
            raise ValueError(
                f"`matryoshka_dims` has {most}, and the vectors are {width} numbers long."
            )

    def __call__(self, y_true, y_pred, sample_weight=None):
        vectors = ops.convert_to_tensor(y_pred, dtype="float32")
        texts = vectors.shape[1] if len(vectors.shape) == 3 else 1
        if texts < 2 or texts > (self.most_texts or texts):
            count = "2" if self.most_texts == 2 else "2 or more"
            raise ValueError(
                f"{type(self).__name__} takes the vectors of {count} texts a row, of shape (batch, "
                f"texts, width), received shape {tuple(vectors.shape)}. Fit on a tuple of lists: "
                "fit((anchors, positives))."
            )
        width = vectors.shape[-1]
        self.check_width(width)
        scores = ops.reshape(ops.convert_to_tensor(y_true, dtype="float32"), (-1,))
        rows = vectors[:, 0, 0]
        weights = ops.ones_like(rows) if sample_weight is None else sample_weight
        weights = ops.reshape(ops.convert_to_tensor(weights, dtype="float32"), (-1,))
        dims = self.matryoshka_dims or [width]
        shares = self.matryoshka_weights or [1.0] * len(dims)
        total = sum(
            share * self.of_units(ops.normalize(vectors[..., :dim], axis=-1), scores, weights)
            for share, dim in zip(shares, dims, strict=True)
        )
        return total * share_of_weight(ops.sum(weights))

    def of_units(self, units, scores, weights):
        """The loss, a scalar, of vectors of length 1, and of scores and weights `(batch,)`."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        names = ("name", "matryoshka_dims", "matryoshka_weights")
        return {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultipleNegativesRankingLoss(EmbeddingLoss):
    """Each anchor is to be nearer to its positive than to any other text of the batch.

    The cross-entropy of its positive among all positives and negatives of the batch, by their
    cosine to the anchor times `scale`; a row is an anchor, a positive and any number of negatives.
    As in sentence-transformers a text that is in a batch twice is also a negative of its own: let
    anchors and positives differ from row to row. More rows in a batch are more negatives.

    Args:
        scale: float, the cosine is multiplied by it.
        matryoshka_dims: ints, sizes to which vectors may be truncated: the loss is the sum of those
            of the first numbers of each vector. Name the whole width too. Defaults to the width.
        matryoshka_weights: floats, the weight of each of these losses. Defaults to 1.
        name: as in `keras.losses.Loss`.

    Raises:
        ValueError: for a `scale` that is not positive, or dims beyond the vectors.

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
        texts, width = units.shape[1:]
        candidates = ops.reshape(ops.swapaxes(units[:, 1:], 0, 1), (-1, width))
        cosines = ops.matmul(units[:, 0], ops.transpose(candidates))
        there = ops.tile(weights > 0, texts - 1)
        own = ops.sum(units[:, 0] * units[:, 1], axis=-1)
        logits = ops.where(there, self.scale * cosines, _HIDDEN)
        largest = ops.stop_gradient(ops.max(logits, axis=-1))
        above = ops.log(ops.sum(ops.exp(logits - largest[:, None]), axis=-1))
        return _mean(above + (largest - self.scale * own), weights)

    def get_config(self):
        return {**super().get_config(), "scale": self.scale}


@keras.saving.register_keras_serializable(package="keras_transformer")
class CosineSimilarityLoss(EmbeddingLoss):
    """The squared difference of the cosine of two texts and their score.

    Args:
        matryoshka_dims, matryoshka_weights, name: as in `MultipleNegativesRankingLoss`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import CosineSimilarityLoss

    vectors = np.array([[[1.0, 0.0], [0.0, 1.0]]])  # of two texts that have nothing in common
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
    """Pairs of a higher score are to have a higher cosine than those of a lower one.

    `log(1 + sum exp(scale * (cosine of the lower - cosine of the higher)))`, over all two pairs of
    the batch whose scores differ. Only the order of the scores counts.

    Args:
        scale: float, the cosine is multiplied by it.
        matryoshka_dims, matryoshka_weights, name: as in `MultipleNegativesRankingLoss`.

    Raises:
        ValueError: for a `scale` that is not positive.

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


_LOSSES = {
    "multiple_negatives_ranking": MultipleNegativesRankingLoss,
    "cosine_similarity": CosineSimilarityLoss,
    "cosent": CoSENTLoss,
}


def embedding_loss(given: Any) -> Any:
    """The loss that a name stands for; what is no name as it is. ValueError for others."""
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
