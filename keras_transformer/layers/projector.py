"""Projection of encoder states to the width of a decoder."""

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.config.outputs import STANDARD
from keras_transformer.layers.arguments import kernel_initializer
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat

_EPSILON = 1e-5  # of the norm of joined states, which no published config changes


class Projector(keras.layers.Layer):
    """Linear layers, up to three, applied to each state, as the config's `projector` says.

    With `"pooled"` the states of an image are first averaged over squares of patches, and
    normalized; with `"shuffled"` and `"shuffled_mlp"` the states of such a square are first joined
    to one, row by row, which `"shuffled_mlp"` normalizes. With `"merged"` and `"merged_mlp"` the
    states of a square follow each other, and are normalized before they are joined; `"merged_mlp"`
    joins them feature by feature, and has one more layer, which makes one state of their width.
    `"merged_mean"` averages them, multiplies the mean by the root of its width and, if the config
    says `standardized`, shifts and multiplies it by numbers of each feature, before the norm.
    `"norm_between"` is two layers and a norm without weights, which the second reads.
    `"norm_around"` is a norm, a layer and a norm without weights, of every `stride`-th state, which
    may be `scaled` by the root of its width, or of the embeddings of `hard_tokens`.

    The attribute `separator` is the trained state that is placed between rows of patches, or None.

    Args:
        config: `TransformerConfig` of kind `"seq2seq"` with a `placeholder_id`.
        initializer: initializer of all kernels. Defaults to the config's.
        normalized: str, what `"merged"` normalizes: the state of each of the `"patches"`, or those
            of whole `"squares"` side by side.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, encoder width)`.

    Returns:
        Float `(batch, length, decoder width)`; with `projector_pool` above 1 fewer states: one for
        each square of patches.

    Source: Liu et al. 2023, "Improved Baselines with Visual Instruction Tuning", section 3.2; one
    layer: Liu et al. 2023, "Visual Instruction Tuning", section 4.1; pooling: Kamath et al. 2025,
    "Gemma 3", section 2.1; joining: Shi et al. 2016, "Real-Time Single Image and Video
    Super-Resolution", section 3.2, the other way round; merging: Wang et al. 2024, "Qwen2-VL",
    section 2.1, and Mistral AI 2025, "Mistral Small 3.1", by its checkpoint; means of merged
    states, and a norm between layers: the published code of Gemma 4; norms around one layer: the
    published code of Gemma 3n.
    """

    def __init__(
        self, config: TransformerConfig, initializer=None, normalized: str = "patches", **kwargs
    ):
        super().__init__(**kwargs)
        self._normalizes_squares = normalized == "squares"
        encoder, decoder = map(config.side, config.projected_sides)
        self._widths = encoder.hidden_dim, decoder.hidden_dim
        options = {
            "use_bias": config.projector.bias,
            "kernel_initializer": kernel_initializer(decoder, initializer),
            "dtype": self.dtype_policy,
        }
        self.norm, self._pool, self._grid = None, config.projector.pool, None
        kind = config.projector.type
        self._merges, self.merge = kind.startswith("merged"), None
        if self._pool > 1 and not self._merges:
            self._grid = encoder.stem.grid(encoder.stem.image_size)
        self._averages = kind == "merged_mean"
        self._standardized = config.projector.standardized
        self._stride, self._hard_tokens = config.projector.stride, config.projector.hard_tokens
        self._scale = self._widths[0] ** 0.5 if config.projector.scaled else 1.0
        # The tokens of sound are behind those of images.
        of_sound = config.sound_projector
        behind = 0 if of_sound is None else of_sound.hard_tokens
        self._first_hard = decoder.vocabulary_size - behind - self._hard_tokens
        self._joins = kind.startswith("shuffled") or (self._merges and not self._averages)
        before = ("pooled", "shuffled_mlp", "merged_mean", "norm_around")
        self._norm_first = kind in before or self._normalizes_squares
        self._inner = self._widths[0] * (self._pool**2 if self._joins else 1)
        self.separator, self._separates = None, config.projector.separator
        self._initializer = options["kernel_initializer"]
        with no_inner_remat():
            unbiased, self.inner = {**options, "use_bias": False}, None
            if kind == "merged_mlp":
                self.merge = Dense(self._widths[0], name="merge", **unbiased)
            if kind == "norm_between":
                self.inner = Dense(config.projector.inner_dim, name="inner", **options)
            if kind == "merged" or kind.endswith("mlp"):
                self.dense = FeedForward(
                    self._inner if kind == "merged" else self._widths[1],
                    self._widths[1],
                    config.projector.activation,
                    name="mlp",
                    **options,
                )
            else:
                own = unbiased if self.inner is not None else options
                self.dense = Dense(self._widths[1], name="output", **own)
            names = ("normalized", "pooled", "shuffled_mlp", "norm_between", "norm_around")
            if kind in names or self._merges:
                norms = {
                    "pooled": decoder.normalization, "shuffled_mlp": "layer_norm",
                    "merged_mean": "rms_norm_no_weight", "norm_between": "rms_norm_no_weight",
                    "norm_around": "rms_norm",
                }  # fmt: skip
                epsilons = {
                    "shuffled_mlp": _EPSILON, "merged_mlp": decoder.normalization_epsilon,
                }  # fmt: skip
                self.norm = make_normalization(
                    norms.get(kind, encoder.normalization),
                    epsilons.get(kind, encoder.normalization_epsilon),
                    name="norm",
                    # Means times the root of their width may exceed float16.
                    dtype="float32" if self._averages else self.dtype_policy,
                )
            self.hard_norm = self.behind = None
            if kind == "norm_around":
                makes = {"behind": "rms_norm_no_weight"}
                makes |= {"hard_norm": "rms_norm"} if self._hard_tokens else {}
                for name, norm in makes.items():
                    epsilon = encoder.normalization_epsilon
                    made = make_normalization(norm, epsilon, name=name, dtype=self.dtype_policy)
                    setattr(self, name, made)

    def build(self, input_shape=None):
        if self._separates:
            self.separator = self.add_weight(
                (self._widths[1],), self._initializer, name="separator"
            )
        if self._standardized:
            for name, first in zip(STANDARD, ("zeros", "ones"), strict=True):
                options = {"trainable": False, "autocast": False, "name": name}
                setattr(self, name, self.add_weight(self._widths[:1], first, **options))
        if self._hard_tokens:
            shape = (self._hard_tokens, self._widths[0])
            self.hard_embeddings = self.add_weight(shape, self._initializer, name="hard_embeddings")
            self.hard_norm.build((None, self._widths[0]))
        if self.behind is not None:
            self.behind.build((None, None, self._widths[1]))
        if self.merge is not None:
            self.merge.build((None, None, self._inner))
        if self.inner is not None:
            self.inner.build((None, None, self._widths[0]))
            self.norm.build((None, None, self.inner.units))
            self.dense.build((None, None, self.inner.units))
            return
        self.dense.build((None, None, self._inner if self.merge is None else self._widths[0]))
        if self.norm is not None:
            of_patches = self._widths[0] if self._merges else self._widths[1]
            self.norm.build((None, None, self._inner if self._norm_first else of_patches))

    def call(self, inputs):
        if self.inner is not None:
            return self.dense(self.norm(self.inner(inputs)))
        if self._merges and not self._norm_first:
            x = self._squares(self.norm(inputs))
            return self.dense(x if self.merge is None else self.merge(x))
        if self.behind is not None:
            x = inputs[:, :: self._stride] * self._scale
            return self.behind(self.dense(self.norm(x)))
        x = self._squares(inputs)
        if self._norm_first:
            return self.dense(self.norm(x))
        x = self.dense(x)
        return x if self.norm is None else self.norm(x)

    @property
    def further_state(self):
        """The state that is placed beside those of images or sound, `(decoder width,)`, or None."""
        return self._hard_states()[-1] if self._hard_tokens else self.separator

    def with_hard_tokens(self, token_ids, states):
        """Return the states of tokens, with those of the projector's hard tokens from here.

        Args:
            token_ids: int `(batch, length)`.
            states: float `(batch, length, decoder width)`, the embeddings of all tokens.
        """
        if not self._hard_tokens:
            return states
        index = ops.cast(token_ids, "int32") - self._first_hard
        inside = ops.clip(index, 0, self._hard_tokens - 1)
        hard = ops.cast(ops.take(self._hard_states(), inside, axis=0), states.dtype)
        return ops.where(ops.equal(index, inside)[..., None], hard, states)

    def _hard_states(self):
        embeddings = ops.cast(self.hard_embeddings, self.compute_dtype)
        return self.behind(self.dense(self.hard_norm(embeddings)))

    def _squares(self, x):
        """Return the mean or the joined states of each square of patches, row by row."""
        if self._merges:  # the patches of a square follow each other
            count = self._pool**2
            length = x.shape[1] // count if isinstance(x.shape[1], int) else -1
            if self._averages:
                x = ops.reshape(ops.cast(x, "float32"), (-1, length, count, self._widths[0]))
                x = ops.mean(x, axis=2) * self._widths[0] ** 0.5
                if not self._standardized:
                    return x
                shift, factor = (ops.cast(getattr(self, name), "float32") for name in STANDARD)
                return (x - shift) * factor
            if self.merge is not None and count > 1:
                x = ops.reshape(x, (-1, length, count, self._widths[0]))
                x = ops.transpose(x, (0, 1, 3, 2))
            return ops.reshape(x, (-1, length, self._inner))
        if self._grid is None:
            return x
        size, (rows, columns) = self._pool, self._grid
        x = ops.reshape(x, (-1, rows // size, size, columns // size, size, x.shape[-1]))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5)) if self._joins else ops.mean(x, axis=(2, 4))
        return ops.reshape(x, (-1, rows * columns // size**2, self._inner))

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # Recomputing it would save little.
