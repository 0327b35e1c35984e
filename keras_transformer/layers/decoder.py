"""The decoder block: causal self-attention, optional cross-attention, feed-forward."""

from typing import ClassVar

import keras

from keras_transformer.checking import check_bool
from keras_transformer.layers.arguments import (
    asked_further,
    check_shapes,
    named_arguments,
    put_aside,
    refuse_unused,
    with_further,
)
from keras_transformer.layers.encoder import EncoderBlock
from keras_transformer.layers.masking import Visibility


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(EncoderBlock):
    """One decoder layer: causal self-attention, cross-attention if asked for, feed-forward.

    Args:
        num_heads, intermediate_dim, ...: all of `EncoderBlock`'s.
        cross_attention: bool, whether to attend to encoder states, as in a seq2seq.
        causal: bool, False for self-attention to all tokens, of an encoder that attends to another
            one. Not with a cache.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`.
        encoder_states: float `(batch, encoder_length, encoder_dim)`. May be left out when the
            cache already holds its keys and values.
        mask: bool `(batch, length)`, True for real tokens. Keras passes a propagated mask here,
            or as `inputs_mask` when there are encoder states.
        encoder_states_mask: bool `(batch, encoder_length)`.
        visibility: `Visibility` of the self-attention, see `MultiHeadAttention`.
        cross_visibility: `Visibility` of the encoder states.
        bias: float `(batch or 1, heads or 1, length, keys)`, added to the self-attention scores.
        cache: dict `{"self": Slots, "cross": Slots}`; `"cross"` is None before the first call and
            without cross-attention.
        return_attention_scores, return_projections: bool, as of `MultiHeadAttention`.

    Returns:
        Float `(batch, length, hidden_dim)`. In a tuple with it, if asked for, what the attentions
        give in dicts, `"self"` and `"cross"`: of weights, and of projections; and, if one was
        given, the updated cache.

    Raises:
        ValueError: for encoder states that are missing, or given without `cross_attention`, and
            for another argument that has no effect beside the others.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import DecoderBlock

    target, source = np.random.rand(2, 5, 32), np.random.rand(2, 7, 32)
    block = DecoderBlock(num_heads=4, intermediate_dim=64, cross_attention=True)
    assert block(target, encoder_states=source).shape == (2, 5, 32)
    ```

    Source: Vaswani et al. 2017, section 3.1; without cross-attention: Radford et al. 2018.
    """

    causal = True
    option_rules: ClassVar = {"causal": check_bool, "cross_attention": check_bool}
    axes: ClassVar = {
        **EncoderBlock.axes,
        "encoder_states": ("batch or 1", "encoder_length", "encoder_dim"),
    }

    def __init__(
        self,
        num_heads: int,
        intermediate_dim: int,
        cross_attention: bool = False,
        causal: bool = True,
        **kwargs,
    ):
        super().__init__(num_heads, intermediate_dim, **kwargs)
        self.causal = causal
        if cross_attention and self.parallel_residual:
            raise ValueError("`parallel_residual` has no place for `cross_attention`.")
        self.cross_attention_enabled = cross_attention
        if cross_attention:
            self._make_norms("cross_attention")

    def build(self, inputs_shape, encoder_states_shape=None):
        super().build(inputs_shape)
        if self.cross_attention_enabled:
            self.cross_attention = self._attention(inputs_shape[-1], name="cross_attention")
            self.cross_attention.build(inputs_shape, encoder_states_shape or inputs_shape)
            self._build_norms("cross_attention", inputs_shape)
            self.fixed = {**self.fixed, "encoder_dim": (encoder_states_shape or inputs_shape)[-1]}

    def call(
        self,
        inputs,
        encoder_states=None,
        mask=None,
        inputs_mask=None,
        encoder_states_mask=None,
        visibility=None,
        cross_visibility=None,
        bias=None,
        cache=None,
        return_attention_scores: bool = False,
        return_projections: bool = False,
        training: bool = False,
    ):
        mask = inputs_mask if mask is None else mask
        if cache is not None and not self.causal:
            raise ValueError("A block with causal=False sees what is behind a token: no `cache`.")
        self._check_used(inputs, mask, visibility, bias, cached=cache is not None)
        self._check_source(inputs, encoder_states, encoder_states_mask, cross_visibility, cache)
        visibility = Visibility.given(visibility, mask)
        cross_visibility = Visibility.given(cross_visibility, encoder_states_mask)
        asked, further = asked_further(return_attention_scores, return_projections)
        options = {**asked, "training": training}
        updated = {"cross": None}
        rest = further if cache is None else [*further, updated]

        def attend(x):
            slots = None if cache is None else cache["self"]
            result = self.self_attention(
                x, visibility=visibility, bias=bias, cache=slots, **options
            )
            return put_aside(result, "self", rest)

        def attend_to_encoder(x):
            slots = None if cache is None else cache["cross"]
            if cache is not None and encoder_states is not None:
                slots = cache["self"].like(0)  # Behind which those of the source are joined.
            result = self.cross_attention(
                x, value=encoder_states, visibility=cross_visibility, cache=slots, **options
            )
            return put_aside(result, "cross", rest)

        across = attend_to_encoder if self.cross_attention_enabled else None
        mask = visibility.padding if cache is None else None  # With one it is of its slots.
        x = self._sublayers(attend, inputs, training, across, mask=mask)
        return with_further(x, *rest)

    def _check_source(self, inputs, encoder_states, encoder_states_mask, cross_visibility, cache):
        """ValueError for states of an encoder that are missing, have no use, or do not fit."""
        if not self.cross_attention_enabled:
            refuse_unused(
                "this decoder block has no cross-attention. Make it with `cross_attention=True`.",
                encoder_states=encoder_states,
                encoder_states_mask=encoder_states_mask,
                cross_visibility=cross_visibility,
            )
        elif encoder_states is None and (cache is None or cache["cross"] is None):
            raise ValueError(
                "This decoder block has cross-attention: give `encoder_states`, or a `cache` "
                "that holds their keys and values."
            )
        else:
            visibility = Visibility.given(cross_visibility)
            visibility.check_used(self.cross_attention, own_keys=False, cached=cache is not None)
            masks = {"encoder_states_mask": encoder_states_mask}
            check_shapes(inputs, encoder_states, **masks, **visibility.tensors())

    def compute_mask(self, inputs, mask=None, **kwargs):
        return mask

    def compute_output_shape(self, inputs_shape, encoder_states_shape=None):
        return tuple(inputs_shape)

    def compute_output_spec(self, *args, **kwargs):
        given = named_arguments(self.call, args, kwargs)
        names = ("inputs", "mask", "inputs_mask", "visibility", "bias", "cache")
        inputs, mask, inputs_mask, visibility, bias, cache = map(given.get, names)
        mask = inputs_mask if mask is None else mask
        self._check_used(inputs, mask, visibility, bias, cached=cache is not None)
        names = ("encoder_states", "encoder_states_mask", "cross_visibility")
        self._check_source(inputs, *map(given.get, names), cache)
        if given["return_attention_scores"] or given["return_projections"]:
            return keras.layers.Layer.compute_output_spec(self, *args, **kwargs)
        output = keras.KerasTensor(given["inputs"].shape, dtype=self.compute_dtype)
        return output if given["cache"] is None else (output, given["cache"])
