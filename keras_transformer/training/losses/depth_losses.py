"""Losses and a metric of depth maps. Targets of 0 or below are unknown and do not count."""

import keras
from keras import ops

from keras_transformer.support.checking import check_bool, check_number


def _flat(targets, outputs) -> tuple:
    """Return both maps and the mask of known targets, float32 `(batch, pixels)`."""
    rows = ops.shape(targets)[0]
    targets, outputs = (ops.reshape(ops.cast(x, "float32"), (rows, -1)) for x in (targets, outputs))
    return targets, outputs, ops.cast(targets > 0, "float32")


def _mean(values, known):
    """Return the mean of the known values of each row; 0 without any."""
    return ops.sum(values * known, axis=1) / ops.maximum(ops.sum(known, axis=1), 1)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ScaleInvariantLogLoss(keras.losses.Loss):
    """Error of logarithms of depths, in part without the error of the scale of the whole image.

    With `d` the difference of the logarithms of output and target, it is the square root of
    `mean(d ** 2) - share * mean(d) ** 2`. Takes float targets and outputs `(batch, height, width)`.

    Args:
        share: float from 0 to 1, how much of the error of the common scale is left out.
        reduction, name: as in `keras.losses.Loss`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import ScaleInvariantLogLoss

    depth = np.array([[[1.0, 2.0], [4.0, 0.0]]], "float32")  # 0 is unknown
    assert float(ScaleInvariantLogLoss(share=1.0)(depth, 3 * depth + 1e-6)) < 1e-2
    ```

    Source: Eigen et al. 2014, "Depth Map Prediction from a Single Image using a Multi-Scale Deep
    Network", section 3.2.
    """

    def __init__(
        self,
        share: float = 0.5,
        reduction="sum_over_batch_size",
        name: str = "scale_invariant_log_loss",
    ):
        super().__init__(name=name, reduction=reduction, dtype="float32")
        self.share = check_number("share", share, at_least=0, at_most=1)

    def call(self, y_true, y_pred):
        targets, outputs, known = _flat(y_true, y_pred)
        logs = (ops.log(ops.maximum(x, 1e-6)) for x in (outputs, ops.where(known > 0, targets, 1)))
        outputs, targets = logs
        difference = outputs - targets
        mean = _mean(difference, known)
        square = _mean(ops.square(difference), known) - self.share * ops.square(mean)
        return ops.sqrt(ops.maximum(square, 1e-12))

    def get_config(self) -> dict:
        return {"share": self.share, "reduction": self.reduction, "name": self.name}


@keras.saving.register_keras_serializable(package="keras_transformer")
class AffineInvariantLoss(keras.losses.Loss):
    """Mean absolute difference of maps, each without its own shift and scale.

    From each map its mean over the known pixels is subtracted, and the result is divided by its
    mean absolute value. Takes float targets and outputs `(batch, height, width)`; a row without two
    different targets gives 0.

    Args:
        reduction, name: as in `keras.losses.Loss`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import AffineInvariantLoss

    nearness = np.array([[[1.0, 2.0], [4.0, 0.0]]], "float32")  # 0 is unknown
    assert float(AffineInvariantLoss()(nearness, 5 * nearness + 7)) < 1e-5
    ```

    Source: Ranftl et al. 2020, "Towards Robust Monocular Depth Estimation", section 5, with the
    mean in place of the median, whose gradient is that of few pixels.
    """

    def __init__(self, reduction="sum_over_batch_size", name: str = "affine_invariant_loss"):
        super().__init__(name=name, reduction=reduction, dtype="float32")

    def call(self, y_true, y_pred):
        targets, outputs, known = _flat(y_true, y_pred)
        targets, outputs = (self._normalized(x, known) for x in (targets, outputs))
        return _mean(ops.abs(targets - outputs), known)

    @staticmethod
    def _normalized(x, known):
        x = x - _mean(x, known)[:, None]
        return x / ops.maximum(_mean(ops.abs(x), known), 1e-6)[:, None]


@keras.saving.register_keras_serializable(package="keras_transformer")
class AbsoluteRelativeError(keras.metrics.MeanMetricWrapper):
    """Mean over images of the error of depths, relative to the known depths.

    Takes float targets and outputs `(batch, height, width)`.

    Args:
        aligned: bool, bring each output to the scale and shift of its target first, by least
            squares, as for relative depths.
        name, dtype: as in `keras.metrics.Metric`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import AbsoluteRelativeError

    metric = AbsoluteRelativeError()
    metric.update_state(np.array([[[1.0, 2.0]]]), np.array([[[1.5, 2.0]]]))
    assert abs(float(metric.result()) - 0.25) < 1e-6
    ```

    Source: Eigen et al. 2014, section 4; with `aligned`, Ranftl et al. 2020, section 6.
    """

    _direction = "down"

    def __init__(self, aligned: bool = False, name: str = "absolute_relative_error", dtype=None):
        self.aligned = check_bool("aligned", aligned)
        super().__init__(_relative_error, name=name, dtype=dtype, aligned=aligned)

    def get_config(self) -> dict:
        return {"aligned": self.aligned, "name": self.name, "dtype": self.dtype}


def _relative_error(y_true, y_pred, aligned: bool):
    targets, outputs, known = _flat(y_true, y_pred)
    if aligned:
        means = _mean(targets, known)[:, None], _mean(outputs, known)[:, None]
        centered = outputs - means[1]
        spread = ops.maximum(_mean(ops.square(centered), known), 1e-12)
        scale = _mean(centered * (targets - means[0]), known) / spread
        outputs = scale[:, None] * centered + means[0]
    return _mean(ops.abs(outputs - targets) / ops.where(known > 0, targets, 1), known)
