"""Several mixers side by side."""

from typing import ClassVar

import keras

from keras_transformer.config import Norm, Parallel
from keras_transformer.layers.arguments import (
    ChecksCall,
    SavesArguments,
    call_unchecked,
    layer_of,
    pack_outputs,
    part_of,
)
from keras_transformer.layers.attention.masking import AttentionMask
from keras_transformer.layers.mixers.states import JointCache
from keras_transformer.layers.normalization import make_normalization, normalized
from keras_transformer.layers.remat import Rematerializable, no_inner_remat
from keras_transformer.support.checking import check_bool


@keras.saving.register_keras_serializable(package="keras_transformer")
class ParallelMixers(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """Add the outputs of several mixers of the same states.

    Args:
        part: `config.Parallel`.
        norm: `config.Norm` of the block, for the members and the norm of their sum.
        causal: bool, whether a token sees only itself and the tokens before it.
        kernel_initializer: initializer of the kernels.
        seed: int, seed of the members' dropout.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, dim)`.
        mask: bool `(batch, length)`, True for real tokens.
        visibility: `AttentionMask`, see the members.
        cache: `JointCache` of the members, or what the only member with a cache takes.
        return_attention_scores, return_projections: bool, as in `MultiHeadAttention`, of the member
            that attends.

    Returns:
        Float `(batch, length, dim)`; in a tuple with it, what was asked for, and the updated cache
        if one was given.

    Example:
    ```python
    import numpy as np
    from keras_transformer.config import Attention, Parallel, StateSpace
    from keras_transformer.layers.mixers.parallel import ParallelMixers

    members = (Attention(num_heads=2, head_dim=4), StateSpace(num_heads=4, head_dim=8))
    assert ParallelMixers(Parallel(members=members))(np.random.rand(2, 7, 16)).shape == (2, 7, 16)
    ```

    Source: Zuo et al. 2025, "Falcon-H1", section 2; with `norm_output`: Transformers'
    `PatchTSMixerConfig.self_attn`.
    """

    option_rules: ClassVar = {"causal": check_bool}
    axes: ClassVar = {"inputs": ("batch", "length", "dim")}

    def __init__(
        self,
        part,
        norm=None,
        causal: bool = True,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.part = part_of("part", part, Parallel)
        self.norm = part_of("norm", norm or Norm(), Norm)
        self.causal, self.seed = causal, seed
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def build(self, inputs_shape):
        self.part = self.part.for_width(inputs_shape[-1])
        self.members = []
        for member, name in zip(self.part.members, self.part.names(""), strict=True):
            with no_inner_remat():
                layer = layer_of(member)(
                    member,
                    norm=self.norm,
                    causal=self.causal,
                    kernel_initializer=self.kernel_initializer.clone(),
                    seed=self.seed,
                    name=name,
                    dtype=self.dtype_policy,
                )
            layer.build(inputs_shape)
            self.members.append(layer)
        if self.part.norm_output:
            with no_inner_remat():
                self.output_norm = make_normalization(
                    self.norm.type, self.norm.epsilon, name="output_norm", dtype=self.dtype_policy
                )
            self.output_norm.build(inputs_shape)
        self.fixed = {"dim": inputs_shape[-1]}

    def call(
        self,
        inputs,
        mask=None,
        visibility=None,
        cache=None,
        return_attention_scores: bool = False,
        return_projections: bool = False,
        training: bool = False,
    ):
        visibility = AttentionMask.given(visibility, mask)
        asked = {
            "return_attention_scores": return_attention_scores,
            "return_projections": return_projections,
        }
        ones = (1.0,) * len(self.members)
        before, after = (x or ones for x in (self.part.input_scales, self.part.output_scales))
        kept = JointCache.of(cache)
        output, found = None, []
        for i, layer in enumerate(self.members):
            given = {"visibility": visibility, "training": training}
            own = None
            if cache is not None:
                sizes = self.part.members[i].cached(inputs.shape[-1])
                own = kept.for_member(sizes)
                given["cache"] = own
            given |= asked if self.part.members[i].attends else {}
            x = inputs if before[i] == 1 else inputs * before[i]
            mixed = call_unchecked(layer, x, **given)
            mixed, *returned = mixed if isinstance(mixed, tuple) else (mixed,)
            if own is not None:
                *returned, own = returned
                kept = kept.updated(own, sizes)
            found += returned
            mixed = mixed if after[i] == 1 else mixed * after[i]
            output = mixed if output is None else output + mixed
        if self.part.norm_output:
            output = normalized(self.output_norm, output, training)
        return pack_outputs(output, *found, None if cache is None else kept.single)

    def compute_mask(self, inputs, mask=None, **kwargs):
        return mask

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)
