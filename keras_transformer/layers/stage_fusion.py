"""The decoder of dense predictions on a backbone with stages: their states become one map."""

from collections.abc import Sequence

import keras
from keras import ops

from keras_transformer.config.stage_fusion import StageFusion
from keras_transformer.layers.fusion import interpolate
from keras_transformer.layers.merging import as_map
from keras_transformer.layers.remat import no_inner_remat


@keras.saving.register_keras_serializable(package="keras_transformer")
class StageFusionDecoder(keras.layers.Layer):
    """Project the states of each stage, interpolate them to the first grid, and concatenate.

    Args:
        values: `StageFusion`.
        widths: ints, the features of the states of each stage.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        states: list of float arrays `(batch, rows * columns, width)`, one for each stage.
        grids: rows and columns of each.

    Returns:
        Float `(batch, rows, columns, stages * features)`, with the rows and columns of the first
        grid, and the features of the last stage first.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import StageFusion, StageFusionDecoder

    decoder = StageFusionDecoder(StageFusion(features=6), widths=(4, 8))
    states = [np.zeros((2, 4 * 6, 4), "float32"), np.zeros((2, 2 * 3, 8), "float32")]
    assert decoder(states, grids=((4, 6), (2, 3))).shape == (2, 4, 6, 12)
    ```

    Source: Xie et al. 2021, "SegFormer", section 3.2.
    """

    def __init__(self, values: StageFusion, widths: Sequence[int], **kwargs):
        super().__init__(**kwargs)
        self.values, self.widths = values, tuple(widths)
        with no_inner_remat():
            self.projections = [
                keras.layers.Dense(values.features, name=f"project_{i}", dtype=self.dtype_policy)
                for i in range(len(self.widths))
            ]

    def build(self, states_shape=None):
        for layer, width in zip(self.projections, self.widths, strict=True):
            layer.build((None, None, width))
        self.built = True

    def call(self, states, grids: Sequence[tuple[int, int]], training: bool = False):
        maps = [
            interpolate(as_map(layer(each), grid), grids[0], kept="edges")
            for layer, each, grid in zip(self.projections, states, grids, strict=True)
        ]
        return ops.concatenate(maps[::-1], axis=-1)
