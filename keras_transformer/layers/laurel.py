"""A narrow residual beside the mixer of a block."""

import keras

from keras_transformer.config import Laurel, Norm
from keras_transformer.layers.arguments import SavesArguments, part_of
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat


@keras.saving.register_keras_serializable(package="keras_transformer")
class AugmentedResidual(SavesArguments, keras.layers.Layer):
    """Add a normalized projection of low rank to states.

    Args:
        part: `config.Laurel`.
        norm: `config.Norm`, of the projection.
        kernel_initializer: initializer of the kernels.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        states: float `(batch, length, hidden_dim)`.

    Returns:
        Float `(batch, length, hidden_dim)`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import Laurel
    from keras_transformer.layers.laurel import AugmentedResidual

    assert AugmentedResidual(Laurel(rank=2))(np.ones((1, 3, 8))).shape == (1, 3, 8)
    ```

    Source: Menghani et al. 2024, "LAuReL: Learned Augmented Residual Layer", section 2.
    """

    def __init__(
        self,
        part: Laurel | dict,
        norm: Norm | dict | None = None,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.part = part_of("part", part, Laurel)
        self.kind = part_of("norm", norm or Norm(type="rms_norm"), Norm)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def _dense(self, units: int, name: str) -> Dense:
        return Dense(
            units,
            use_bias=False,
            kernel_initializer=self.kernel_initializer.clone(),
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, states_shape):
        with no_inner_remat():
            self.down = self._dense(self.part.rank, "down")
            self.up = self._dense(states_shape[-1], "up")
            self.norm = make_normalization(
                self.kind.type, self.kind.epsilon, name="norm", dtype=self.dtype_policy
            )
        self.down.build(states_shape)
        self.up.build((*states_shape[:-1], self.part.rank))
        self.norm.build(states_shape)
        self.built = True

    def call(self, states):
        return states + self.norm(self.up(self.down(states)))

    def compute_output_shape(self, states_shape):
        return tuple(states_shape)
