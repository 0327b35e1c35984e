"""Conversion of the values of series to tokens and back."""

import dataclasses

import numpy as np

PAD_ID, END_ID = 0, 1


@dataclasses.dataclass(frozen=True)
class UniformBins:
    """Tokens for series: values are divided by their mean absolute value and put in uniform bins.

    Token 0 stands for a missing value, and token 1 for the end.

    Args:
        low, high: float, the centers of the first and the last bin, for scaled values.
        num_tokens: int, size of the vocabulary.
        num_special: int, number of tokens before the value tokens.

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
        """Value of each bin, float32 `(num_tokens - num_special - 1,)`."""
        count = self.num_tokens - self.num_special - 1
        return np.linspace(self.low, self.high, count).astype("float32")

    def encode(
        self, values: np.ndarray, scale: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Convert values to tokens.

        Args:
            values: float `(rows, length)`, NaN if missing.
            scale: float `(rows,)`, by which values are divided. Defaults to the mean absolute
                value of each row.

        Returns:
            Ids, int32 `(rows, length)`; a mask of known values, bool `(rows, length)`; and the
            scale `(rows,)`, in the dtype of the values, 1 if all known values are 0.
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
        """Convert ids `(rows, ...)` to values, multiplied by the scale of each row `(rows,)`."""
        ids = np.asarray(ids)
        centers = self.centers
        places = np.clip(ids - self.num_special - 1, 0, len(centers) - 1)
        return centers[places] * scale.reshape(-1, *[1] * (ids.ndim - 1))
