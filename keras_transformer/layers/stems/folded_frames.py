"""The stem of spectrograms that are folded to images."""

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.config.stems import GATES
from keras_transformer.layers.arguments import kernel_initializer
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.normalization import make_normalization, normalized
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.layers.stems.images import PatchStem
from keras_transformer.layers.stems.stem import Input

# Added to the variance of a batch norm, whatever the epsilon of other norms.
_EPSILON = 1e-5


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
            the stem; with `fusion` optionally of `pieces`, float `(batch, 3, length, num_bins)`,
            and `is_longer`, bool `(batch, 1)`, True for the recordings whose pieces are fused with
            their `frames`, the shrunk whole.

    Returns:
        `Embedded`: a state for each patch of the image, row by row.

    Raises:
        ValueError: if there are more frames, or one of `pieces` and `is_longer` is missing.

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
    Language-Audio Pretraining with Feature Fusion and Keyword-to-Caption Augmentation"; the gates:
    Dai et al. 2020, "Attentional Feature Fusion", section 3.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        with no_inner_remat():
            self.input_norm = make_normalization(
                "batch_norm", _EPSILON, name="input_norm", dtype=self.dtype_policy
            )
            self.pieces, self.gates = None, ()
            stem = config.stem
            if stem.fusion is not None:
                self.pieces = keras.layers.Conv2D(
                    config.embedding_dim,
                    (stem.patch_size, 3 * stem.patch_size),
                    strides=(stem.stride, 3 * stem.stride),
                    data_format="channels_last",
                    kernel_initializer=kernel_initializer(config, initializer),
                    name="input_pieces",
                    dtype=self.dtype_policy,
                )
                self.gates = tuple(
                    Gate(
                        config.embedding_dim,
                        config.embedding_dim // stem.fusion,
                        kernel_initializer=kernel_initializer(config, initializer),
                        name=f"input_{name}_gate",
                        dtype=self.dtype_policy,
                    )
                    for name in GATES
                )

    @property
    def inputs(self):
        bins = self.config.stem.num_bins
        frames = Input("frames", "float32", (None, bins), required=True)
        if self.config.stem.fusion is None:
            return (frames,)
        return (
            frames,
            Input("pieces", "float32", (3, None, bins), of_tokens=False),
            Input("is_longer", "bool", (1,), of_tokens=False),
        )

    def build(self, input_shape=None):
        stem = self.config.stem
        self.input_norm.build((None, None, stem.num_bins))
        super().build(input_shape)
        if self.pieces is not None:
            self.pieces.build((None, None, None, 1))
            for gate in self.gates:
                gate.build()

    def call(self, inputs, training=False):
        pieces, longer = inputs.get("pieces"), inputs.get("is_longer")
        if (pieces is None) != (longer is None):
            raise ValueError("`pieces` and `is_longer` go together: give both or neither.")
        x = ops.cast(inputs["frames"], self.compute_dtype)[:, None]
        if pieces is not None:
            x = ops.concatenate([x, ops.cast(pieces, x.dtype)], axis=1)
        count, bins = x.shape[1], x.shape[-1]
        x = ops.reshape(x, (-1, ops.shape(x)[2], bins))
        images = self._folded(normalized(self.input_norm, x, training))
        given = {"images": images}
        if pieces is not None:
            images = ops.reshape(images, (-1, count, *images.shape[1:]))
            given = {"images": images[:, 0], "pieces": images[:, 1:], "is_longer": longer}
        return super().call(given, training=training)

    def patch_states(self, images, size, inputs, training=False):
        x = super().patch_states(images, size, inputs, training)
        if "pieces" not in inputs:
            return x
        rows, columns = self.config.stem.grid(size)
        around = (self.config.stem.padding,) * 2
        pieces = inputs["pieces"]
        count = pieces.shape[1]
        flat = ops.reshape(pieces, (-1, *pieces.shape[2:]))
        found = self.pieces(ops.pad(flat, ((0, 0), around, around, (0, 0))))
        found = ops.reshape(found, (-1, count, *found.shape[1:]))
        # The pieces side by side, and zeros where they end.
        found = ops.transpose(found, (0, 2, 1, 3, 4))
        found = ops.reshape(found, (-1, rows, count * found.shape[3], found.shape[4]))
        missing = columns - found.shape[2]
        found = ops.pad(found, ((0, 0), (0, 0), (0, missing), (0, 0)))
        found = ops.reshape(found, (-1, rows * columns, found.shape[3]))
        longer = ops.cast(inputs["is_longer"], "bool")
        both = x + found
        local, of_all = self.gates
        everywhere = ops.broadcast_to(longer, ops.shape(both)[:2])
        scores = local(both, mask=everywhere, training=training)
        mean = ops.mean(both, axis=1, keepdims=True)
        share = ops.sigmoid(scores + of_all(mean, mask=longer, training=training))
        return ops.where(longer[..., None], 2 * x * share + 2 * found * (1 - share), x)

    def _folded(self, x):
        """Return spectrograms `(rows, length, num_bins)` as images of one channel."""
        stem = self.config.stem
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
        return ops.reshape(ops.transpose(x, (0, 1, 3, 2)), (-1, height, width, 1))


class Gate(keras.layers.Layer):
    """Two linear layers, each followed by a batch norm, with a ReLU between them.

    Args:
        width: int, features of the inputs and of the outputs.
        hidden: int, features between the layers.
        kernel_initializer: initializer of the kernels.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, places, width)`.
        mask: bool `(batch, places)`, places that count in the averages of a training step.

    Source: Dai et al. 2020, "Attentional Feature Fusion", section 3.1.
    """

    def __init__(self, width: int, hidden: int, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        own = {"kernel_initializer": kernel_initializer, "dtype": self.dtype_policy}
        self.width, self.inner = width, hidden
        self.supports_masking = True
        with no_inner_remat():
            self.hidden = Dense(hidden, name="hidden", **own)
            self.output_dense = Dense(width, name="output", **own)
            self.hidden_norm, self.output_norm = (
                make_normalization(
                    "batch_norm", _EPSILON, name=f"{name}_norm", dtype=self.dtype_policy
                )
                for name in ("hidden", "output")
            )

    def build(self, input_shape=None):
        self.hidden.build((None, None, self.width))
        self.hidden_norm.build((None, None, self.inner))
        self.output_dense.build((None, None, self.inner))
        self.output_norm.build((None, None, self.width))
        self.built = True

    def call(self, inputs, mask=None, training=False):
        x = normalized(self.hidden_norm, self.hidden(inputs), training, mask)
        return normalized(self.output_norm, self.output_dense(ops.relu(x)), training, mask)


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
