"""The stem of spectrograms that are folded to images."""

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.normalization import make_normalization, normalized
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.layers.stems.images import PatchStem
from keras_transformer.layers.stems.stem import Input


@keras.saving.register_keras_serializable(package="keras_transformer")
class FoldedFrameStem(PatchStem):
    """Spectrogram folded to an image, whose patches are projected linearly.

    A batch norm of each frequency band comes first. Fewer frames than the image has place for are
    then stretched to fill it.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `FoldedFrameStemConfig`.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `frames`, float `(batch, length, num_bins)`, of at most the `most_frames` of
            the stem.

    Returns:
        `Embedded`: a state for each patch of the image, row by row.

    Raises:
        ValueError: if there are more frames.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt
    from keras_transformer.layers.stems import FoldedFrameStem

    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=32, position="none",
        stem={"kind": "folded_frames", "num_bins": 8, "image_size": [16, 32], "patch_size": 4},
    )
    embedded = FoldedFrameStem(config)({"frames": np.ones((1, 60, 8), "float32")})
    assert embedded.states.shape == (1, 4 * 8, 16)
    ```

    Source: Chen et al. 2022, "HTS-AT: A Hierarchical Token-Semantic Audio Transformer for Sound
    Classification and Detection", section 2.1; Wu et al. 2022, "Large-scale Contrastive
    Language-Audio Pretraining with Feature Fusion and Keyword-to-Caption Augmentation".
    """

    # Added to the variance of a band, whatever the epsilon of other norms.
    _epsilon = 1e-5

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        with no_inner_remat():
            self.input_norm = make_normalization(
                "batch_norm", self._epsilon, name="input_norm", dtype=self.dtype_policy
            )

    @property
    def inputs(self):
        return (Input("frames", "float32", (None, self.config.stem.num_bins), required=True),)

    def build(self, input_shape=None):
        self.input_norm.build((None, None, self.config.stem.num_bins))
        super().build(input_shape)

    def call(self, inputs, training=False):
        stem = self.config.stem
        x = ops.cast(inputs["frames"], self.compute_dtype)
        x = normalized(self.input_norm, x, training)
        length = x.shape[1]  # None in a graph for any length
        if length is not None and length > stem.most_frames:
            raise ValueError(
                f"The stem folds at most {stem.most_frames:,} frames to an image of "
                f"{stem.image_size}, received {length:,}. Cut the recordings: an AudioProcessor "
                "has a `length`."
            )
        if length != stem.most_frames:
            x = stretched(x, stem.most_frames)
        pieces, (height, width) = stem.num_pieces, stem.image_size
        x = ops.reshape(x, (-1, pieces, width, stem.num_bins))
        x = ops.reshape(ops.transpose(x, (0, 1, 3, 2)), (-1, height, width, 1))
        return super().call({"images": x}, training=training)


def stretched(frames, after: int):
    """Return frames `(batch, length, bins)` as `(batch, after, bins)`, whose ends stay in place.

    Source: Keys 1981, "Cubic Convolution Interpolation for Digital Image Processing", with
    a = -0.75, computed in float32 as in PyTorch's `interpolate` with `align_corners`.
    """
    last, a = ops.shape(frames)[1] - 1, -0.75
    step = ops.cast(last, "float32") / max(after - 1, 1)
    centers = ops.arange(after, dtype="float32") * step
    first = ops.floor(centers)
    t = centers - first

    def near(t):
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t):
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    total = 0.0
    weights = (far(t + 1), near(t), near(1 - t), far(2 - t))
    for place, weight in enumerate(weights, start=-1):
        places = ops.clip(ops.cast(first, "int32") + place, 0, last)
        found = ops.take(frames, places, axis=1)
        total = total + found * ops.cast(weight[:, None], frames.dtype)
    return total
