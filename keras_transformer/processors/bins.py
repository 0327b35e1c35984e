"""Values of series as tokens, and back."""

import dataclasses

import numpy as np

PAD_ID, END_ID = 0, 1


@dataclasses.dataclass(frozen=True)
class UniformBins:
    """The mean of absolute values as the scale of a series, and bins of equal width as its tokens.

    Token 0 stands for what is missing and 1 for the end.

    Args:
        low, high: float, the centers of the first and of the last bin, of scaled values.
        num_tokens: int, of the vocabulary.
        num_special: int, tokens in front of those of values.

    Example:
    ```python
    import numpy as np
    from keras_transformer.processors.bins import UniformBins

    bins = UniformBins(-15.0, 15.0, num_tokens=4096)
    series = np.array([[1.0, np.nan, 3.0, -2.0]], "float32")
    ids, known, scale = bins.encode(series)
    assert scale.tolist() == [2.0] and known[0].tolist() == [True, False, True, True]
    assert np.abs(bins.decode(ids, scale) - series)[known].max() < 0.01
    ```

    Source: Ansari et al. 2024, "Chronos: Learning the Language of Time Series", section 3.1.
    """

    low: float
    high: float
    num_tokens: int
    num_special: int = 2

    @property
    def centers(self) -> np.ndarray:
        """The value that each bin stands for, float32 `(num_tokens - num_special - 1,)`."""
        count = self.num_tokens - self.num_special - 1
        return np.linspace(self.low, self.high, count).astype("float32")

    def encode(
        self, values: np.ndarray, scale: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens of values.

        Args:
            values: float `(rows, length)`, NaN for what is missing.
            scale: float `(rows,)`. Defaults to that of the values.

        Returns:
            Ids, int32 `(rows, length)`; which are known, bool likewise; the scale, of the values'
            dtype `(rows,)`, 1 where all that is known is 0.
        """
        values = np.asarray(values)
        known = ~np.isnan(values)
        if scale is None:
            total = np.abs(np.where(known, values, 0)).sum(axis=1)
            scale = total / np.maximum(known.sum(axis=1), 1).astype(total.dtype)
            scale = np.where(scale > 0, scale, 1).astype(total.dtype)
        centers = self.centers
        inner = (centers[1:] + centers[:-1]) / np.float32(2)
        boundaries = np.concatenate([[-1e20], inner, [1e20]]).astype("float32")
        found = np.searchsorted(boundaries, values / scale[:, None], side="right")
        ids = np.clip(found + self.num_special, 0, self.num_tokens - 1)
        return np.where(known, ids, PAD_ID).astype("int32"), known, scale

    def decode(self, ids: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Return the values of ids `(rows, ...)`, scaled by row, in the scale's dtype."""
        ids = np.asarray(ids)
        centers = self.centers
        places = np.clip(ids - self.num_special - 1, 0, len(centers) - 1)
        return centers[places] * scale.reshape(-1, *[1] * (ids.ndim - 1))
