"""The decoder block: causal self-attention, optional cross-attention, feed-forward."""

import keras

from keras_transformer.layers.arguments import (
    check_positions,
    check_shapes,
    named_arguments,
    refuse_unused,
)
from keras_transformer.layers.encoder import EncoderBlock


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(EncoderBlock):
    """One decoder layer: causal self-attention, cross-attention if asked for, feed-forward.

    Args:
        num_heads, intermediate_dim, ...: all of `EncoderBlock`'s.
        cross_attention: bool, attend to encoder states (seq2seq) or not (GPT-like).

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`.
        encoder_states: float `(batch, encoder_length, encoder_dim)`. May be left out when the
            cache already holds its keys and values.
        mask: bool `(batch, length)`, True for real tokens. Keras passes a propagated mask here,
            or as `inputs_mask` when there are encoder states.
        encoder_states_mask: bool `(batch, encoder_length)`.
        attention_mask: bool `(batch, length, slots)`, with a cache, the slots that a token sees.
        bias: float `(batch or 1, heads or 1, length, keys)`, added to the self-attention scores.
        positions: int `(batch, length)`; `key_positions`: int `(batch, slots)`, with a cache.
        pack_ids: int `(batch, length)`, which packed document a token is of.
        encoder_states_pack_ids: int `(batch, source_length)`, which one an encoder state is of.
        cache: dict `{"self": Slots, "cross": Slots}`, see `layers.slots`; `"cross"` is None before
            the first call and without cross-attention.
        cache_index: int scalar, the first slot to write.
        return_attention_scores: bool.

    Returns:
        Float `(batch, length, hidden_dim)`; then, if asked for, the attention weights by `"self"`
        and `"cross"`; then, when one was given, the updated cache.

    Raises:
        ValueError: for encoder states that are missing, or given without `cross_attention`; for
            another argument that has no effect beside the others.

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

    def __init__(
        self, num_heads: int, intermediate_dim: int, cross_attention: bool = False, **kwargs
    ):
        super().__init__(num_heads, intermediate_dim, **kwargs)
        if cross_attention and self.parallel_residual:
            raise ValueError("`parallel_residual` has no place for `cross_attention`.")
        self.cross_attention_enabled = cross_attention
        self.cross_attention_norm = self._norm("cross_attention_norm") if cross_attention else None

    def build(self, inputs_shape, encoder_states_shape=None):
        super().build(inputs_shape)
        if self.cross_attention_enabled:
            self.cross_attention = self._attention(inputs_shape[-1], name="cross_attention")
            self.cross_attention.build(inputs_shape, encoder_states_shape or inputs_shape)
            self.cross_attention_norm.build(inputs_shape)

    def call(
        self,
        inputs,
        encoder_states=None,
        mask=None,
        inputs_mask=None,
        encoder_states_mask=None,
        attention_mask=None,
        bias=None,
        positions=None,
        key_positions=None,
        pack_ids=None,
        encoder_states_pack_ids=None,
        cache=None,
        cache_index=None,
        return_attention_scores: bool = False,
        training: bool = False,
    ):
        self._check_used(
            inputs, encoder_states, mask, inputs_mask, encoder_states_mask, attention_mask, bias,
            positions, key_positions, pack_ids, encoder_states_pack_ids, cache, cache_index,
        )  # fmt: skip
        updated, scores = {"cross": None}, {}

        def kept(name, result):
            """The states of what an attention returned; the rest is put aside."""
            if cache is not None:
                *result, updated[name] = result
            if return_attention_scores:
                *result, scores[name] = result
            return result[0] if isinstance(result, (tuple, list)) else result

        def attend(x):
            result = self.self_attention(
                x,
                mask=inputs_mask if mask is None else mask,
                attention_mask=attention_mask,
                bias=bias,
                positions=positions,
                key_positions=key_positions,
                pack_ids=pack_ids,
                cache=None if cache is None else cache["self"],
                cache_index=cache_index,
                return_attention_scores=return_attention_scores,
                training=training,
            )
            return kept("self", result)

        def attend_to_encoder(x):
            slots = None if cache is None else cache["cross"]
            if cache is not None and encoder_states is not None:
                slots = cache["self"].like(encoder_states.shape[1])
            result = self.cross_attention(
                x,
                value=encoder_states,
                value_mask=encoder_states_mask,
                pack_ids=None if encoder_states_pack_ids is None else pack_ids,
                value_pack_ids=encoder_states_pack_ids,
                cache=slots,
                return_attention_scores=return_attention_scores,
                training=training,
            )
            return kept("cross", result)

        across = attend_to_encoder if self.cross_attention_enabled else None
        x = self._sublayers(attend, inputs, training, across)
        result = (x, *([scores] * return_attention_scores), *([updated] * (cache is not None)))
        return result if len(result) > 1 else x

    def _check_used(
        self, inputs, encoder_states, mask, inputs_mask, encoder_states_mask, attention_mask, bias,
        positions, key_positions, pack_ids, encoder_states_pack_ids, cache, cache_index, **_,
    ):  # fmt: skip
        """ValueError for arguments that are missing, would change nothing, or do not fit."""
        if not self.cross_attention_enabled:
            refuse_unused(
                "this decoder block has no cross-attention. Make it with `cross_attention=True`.",
                encoder_states=encoder_states,
                encoder_states_mask=encoder_states_mask,
                encoder_states_pack_ids=encoder_states_pack_ids,
            )
        elif encoder_states is None and (cache is None or cache["cross"] is None):
            raise ValueError(
                "This decoder block has cross-attention: give `encoder_states`, or a `cache` "
                "that holds their keys and values."
            )
        if (cache is None) != (cache_index is None):
            raise ValueError("`cache` and `cache_index`, its first slot to write, go together.")
        if pack_ids is None:
            reason = "`pack_ids`, the documents of `inputs`, are not given."
            refuse_unused(reason, encoder_states_pack_ids=encoder_states_pack_ids)
        if cache is None:
            check_positions(self, positions, key_positions, self_attention=True)
        check_shapes(
            inputs, inputs if cache is None else None, mask=mask, inputs_mask=inputs_mask,
            attention_mask=attention_mask, bias=bias, positions=positions,
            key_positions=key_positions, pack_ids=pack_ids,
        )  # fmt: skip
        check_shapes(
            inputs, encoder_states, encoder_states_mask=encoder_states_mask,
            encoder_states_pack_ids=encoder_states_pack_ids,
        )  # fmt: skip

    def compute_mask(self, inputs, mask=None, **kwargs):
        return mask

    def compute_output_spec(self, *args, **kwargs):
        given = named_arguments(self.call, args, kwargs)
        self._check_used(**given)
        if given["return_attention_scores"]:
            return keras.layers.Layer.compute_output_spec(self, *args, **kwargs)
        output = keras.KerasTensor(given["inputs"].shape, dtype=self.compute_dtype)
        return output if given["cache"] is None else (output, given["cache"])
