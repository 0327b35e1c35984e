"""Learning-rate schedules of transformers."""

import keras
from keras import ops

from keras_transformer.support.checking import check_int, check_number

_MOST = 2**31 - 1  # steps are counted in 32 bits


@keras.saving.register_keras_serializable(package="keras_transformer")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warmup to a peak, then decay with the square root of the step.

    `peak * min(step / warmup_steps, sqrt(warmup_steps / step))`, with steps counted from 1.
    `for_width` gives the peak of the paper.

    Args:
        peak: float, the learning rate at step `warmup_steps`.
        warmup_steps: int, steps until the peak.

    Raises:
        ValueError: if an argument is not positive.

    Example:
    ```python
    from keras_transformer.training import InverseSquareRoot

    schedule = InverseSquareRoot(peak=1e-3, warmup_steps=100)
    assert abs(float(schedule(399)) - 5e-4) < 1e-9  # Keras calls the first step 0
    ```

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 5.3, equation 3.
    """

    def __init__(self, peak: float, warmup_steps: int):
        super().__init__()
        self.peak = float(check_number("peak", peak, above=0))
        self.warmup_steps = check_int("warmup_steps", warmup_steps, at_least=1, at_most=_MOST)

    @classmethod
    def for_width(cls, hidden_dim: int, warmup_steps: int = 4000) -> "InverseSquareRoot":
        """Make the paper's schedule for a model of width `hidden_dim`.

        The learning rate is `hidden_dim^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)`.
        """
        hidden_dim = check_int("hidden_dim", hidden_dim, at_least=1, at_most=_MOST)
        warmup_steps = check_int("warmup_steps", warmup_steps, at_least=1, at_most=_MOST)
        return cls((hidden_dim * warmup_steps) ** -0.5, warmup_steps)

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1.0
        return self.peak * ops.minimum(
            step / self.warmup_steps, ops.rsqrt(step / self.warmup_steps)
        )

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps}


@keras.saving.register_keras_serializable(package="keras_transformer")
class LinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warmup from 0 to a peak, then linear decay to 0: the schedule of fine-tuning.

    Args:
        peak: float, the highest learning rate.
        total_steps: int, the step at which the learning rate reaches 0.
        warmup_steps: int, the step at which the learning rate reaches `peak`.

    Raises:
        ValueError: if `peak` is not positive, or unless `0 <= warmup_steps < total_steps`.

    Example:
    ```python
    from keras_transformer.training import LinearDecay

    schedule = LinearDecay(peak=1e-3, total_steps=100, warmup_steps=20)
    assert abs(float(schedule(10)) - 5e-4) < 1e-9
    ```

    Source: Devlin et al. 2019, "BERT", appendix A.2; steps are counted from 0 as in its code.
    """

    def __init__(self, peak: float, total_steps: int, warmup_steps: int = 0):
        super().__init__()
        self.peak = float(check_number("peak", peak, above=0))
        self.total_steps = check_int("total_steps", total_steps, at_least=1, at_most=_MOST)
        self.warmup_steps = check_int(
            "warmup_steps", warmup_steps, at_least=0, at_most=self.total_steps - 1,
            hint="It must be below `total_steps`.",
        )  # fmt: skip

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rising = step / max(self.warmup_steps, 1)
        falling = (self.total_steps - step) / (self.total_steps - self.warmup_steps)
        factor = ops.where(step < self.warmup_steps, rising, ops.maximum(falling, 0.0))
        return self.peak * factor

    def get_config(self):
        return {
            "peak": self.peak,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
        }
