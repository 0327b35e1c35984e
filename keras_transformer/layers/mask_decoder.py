"""Masks from the states of an image and of prompts: a transformer that attends both ways."""

import keras
from keras import ops

from keras_transformer.config.prompted import NARROWING, PromptedMasks, names_of_linear
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat

# Epsilons that published models do not state.
_LAST_EPSILON, _UPSCALE_EPSILON = 1e-5, 1e-6


def _attention(values: PromptedMasks, inner: int, name: str, dtype) -> MultiHeadAttention:
    with no_inner_remat():
        return MultiHeadAttention(
            num_heads=values.num_heads,
            head_dim=inner // values.num_heads,
            output_dim=values.width,
            name=name,
            dtype=dtype,
        )


def _norm(epsilon: float, name: str, dtype) -> keras.layers.Layer:
    with no_inner_remat():
        return make_normalization("layer_norm", epsilon, name=name, dtype=dtype)


class HeadLayer(keras.layers.Layer):
    """Base class of the layers of a decoder, which are not recomputed one by one."""

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call


class LinearLayers(HeadLayer):
    """Linear layers with ReLU between them.

    Args:
        widths: ints, the width of the input and of each layer's output.
        last: str, initializer of the kernel of the last layer.
        names: list of str, their names. Defaults to those of `names_of_linear`.
        **kwargs: as in `keras.layers.Layer`.
    """

    def __init__(
        self,
        widths: list[int],
        last: str = "glorot_uniform",
        names: list[str] | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.widths = widths
        initializers = ["glorot_uniform"] * (len(widths) - 2) + [last]
        names = names or names_of_linear(len(widths) - 1)
        with no_inner_remat():
            self.denses = [
                Dense(width, name=name, kernel_initializer=initial, dtype=self.dtype_policy)
                for name, width, initial in zip(names, widths[1:], initializers, strict=True)
            ]

    def build(self, shape=None):
        for dense, width in zip(self.denses, self.widths, strict=False):
            dense.build((None, width))
        self.built = True

    def call(self, x):
        for dense in self.denses[:-1]:
            x = ops.relu(dense(x))
        return self.denses[-1](x)

    def compute_output_shape(self, shape):
        return (*shape[:-1], self.widths[-1])


class TwoWayBlock(HeadLayer):
    """Attention among tokens, of tokens to an image, and of the image to the tokens.

    Args:
        values: `PromptedMasks`.
        first: bool, whether it is the first block: the attention among tokens has no residual.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        tokens, image: float `(batch, count, width)` and `(batch, places, width)`, states.
        token_positions, image_positions: float, of the same shapes or one row, what is added to
            queries and keys.
        seen: bool `(batch, count)`, False for tokens that are padding.

    Returns:
        The states of tokens and image.

    Source: Kirillov et al. 2023, "Segment Anything", appendix A, figure 14.
    """

    def __init__(self, values: PromptedMasks, first: bool, **kwargs):
        super().__init__(**kwargs)
        self.first, self.values, dtype = first, values, self.dtype_policy
        narrow = values.width // values.downsampling
        self.self_attention = _attention(values, values.width, "self_attention", dtype)
        self.tokens_to_image = _attention(values, narrow, "tokens_to_image", dtype)
        self.image_to_tokens = _attention(values, narrow, "image_to_tokens", dtype)
        self.activation = get_activation(values.activation)
        with no_inner_remat():
            self.intermediate = Dense(values.intermediate_dim, name="intermediate", dtype=dtype)
            self.output_dense = Dense(values.width, name="output", dtype=dtype)
        names = ("self_attention", "tokens_to_image", "feed_forward", "image_to_tokens")
        self.norms = [_norm(values.epsilon, f"{name}_norm", dtype) for name in names]

    def build(self, *shapes, **named):
        shape = (None, None, self.values.width)
        for layer in (self.self_attention, self.tokens_to_image, self.image_to_tokens):
            layer.build(shape, shape, shape)
        self.intermediate.build(shape)
        self.output_dense.build((None, None, self.values.intermediate_dim))
        for norm in self.norms:
            norm.build(shape)
        self.built = True

    def call(self, tokens, image, token_positions, image_positions, seen):
        if self.first:
            tokens = self.self_attention(tokens, mask=seen)
        else:
            query = tokens + token_positions
            tokens = tokens + self.self_attention(query, value=tokens, key=query, value_mask=seen)
        tokens = self.norms[0](tokens)
        placed = image + image_positions
        tokens = tokens + self.tokens_to_image(tokens + token_positions, value=image, key=placed)
        tokens = self.norms[1](tokens)
        hidden = self.activation(self.intermediate(tokens))
        tokens = self.norms[2](tokens + self.output_dense(hidden))
        key = tokens + token_positions
        image = image + self.image_to_tokens(placed, value=tokens, key=key, value_mask=seen)
        return tokens, self.norms[3](image)


class MaskDecoder(HeadLayer):
    """Masks, and a score of each, from the states of an image and of a prompt.

    Trained tokens stand beside those of the prompt: one for the scores, and one for each mask.
    Their states become the scores, and vectors whose products with the upscaled states of the
    image are the logits of pixels.

    Args:
        values: `PromptedMasks`.
        grid: ints, rows and columns of the image's states.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        image: float `(batch, rows * columns, width)`.
        image_positions: float `(1, rows * columns, width)`.
        prompts: float `(batch, count, width)`.
        seen: bool `(batch, count)`, False for padding.

    Returns:
        Logits, float `(batch, masks, 4 * rows, 4 * columns)`, and scores, float `(batch, masks)`,
        of the mask of an unambiguous prompt and then those of an ambiguous one.

    Source: Kirillov et al. 2023, "Segment Anything", section 3 and appendix A.
    """

    def __init__(self, values: PromptedMasks, grid: tuple[int, int], **kwargs):
        super().__init__(**kwargs)
        self.values, self.grid, dtype = values, grid, self.dtype_policy
        width, count = values.width, values.num_masks + 1
        self.blocks = [
            TwoWayBlock(values, first=not i, name=f"layer_{i}", dtype=dtype)
            for i in range(values.num_layers)
        ]
        narrow = width // values.downsampling
        self.tokens_to_image = _attention(values, narrow, "tokens_to_image", dtype)
        self.norm = _norm(_LAST_EPSILON, "tokens_to_image_norm", dtype)
        self.upscale_norm = _norm(_UPSCALE_EPSILON, "upscale_norm", dtype)
        self.gelu = get_activation("gelu")
        with no_inner_remat():
            self.upscales = [
                keras.layers.Conv2DTranspose(
                    width // parts, 2, 2, data_format="channels_last", name=name, dtype=dtype
                )
                for name, parts in (("upscale_1", 4), ("upscale_2", NARROWING))
            ]
        last = width // NARROWING
        self.of_masks = [
            LinearLayers([width, width, width, last], name=f"mask_{i}", dtype=dtype)
            for i in range(count)
        ]
        inner = [values.score_dim] * (values.score_layers - 1)
        self.of_scores = LinearLayers([width, *inner, count], name="scores", dtype=dtype)

    def build(self, *shapes, **named):
        width = self.values.width
        small = keras.initializers.RandomNormal(stddev=0.02)
        self.score_token = self.add_weight((1, width), small, name="score_token")
        count = self.values.num_masks + 1
        self.tokens = self.add_weight((count, width), small.clone(), name="tokens")
        shape = (None, None, width)
        self.tokens_to_image.build(shape, shape, shape)
        for layer in (*self.blocks, self.norm, *self.of_masks, self.of_scores):
            layer.build(shape)
        self.upscale_norm.build((None, None, None, width // 4))
        for layer, features in zip(self.upscales, (width, width // 4), strict=True):
            layer.build((None, None, None, features))
        self.built = True

    def call(self, image, image_positions, prompts, seen):
        width, count = self.values.width, self.values.num_masks + 1
        own = ops.concatenate([self.score_token, self.tokens])
        own = ops.cast(own, self.compute_dtype)[None]
        rows = ops.shape(prompts)[0]
        own = ops.broadcast_to(own, (rows, count + 1, width))
        positions = ops.concatenate([own, prompts], axis=1)
        seen = ops.concatenate(
            [ops.ones((rows, count + 1), "bool"), ops.cast(seen, "bool")], axis=1
        )
        tokens = positions
        for block in self.blocks:
            tokens, image = block(tokens, image, positions, image_positions, seen)
        tokens = tokens + self.tokens_to_image(
            tokens + positions, value=image, key=image + image_positions
        )
        tokens = self.norm(tokens)
        x = ops.reshape(image, (-1, *self.grid, width))
        x = self.gelu(self.upscale_norm(self.upscales[0](x)))
        x = self.gelu(self.upscales[1](x))
        vectors = [layer(tokens[:, i + 1]) for i, layer in enumerate(self.of_masks)]
        masks = ops.einsum("nmk,nijk->nmij", ops.stack(vectors, axis=1), x)
        return masks, self.of_scores(tokens[:, 0])
