"""A block of a model: a mixer such as attention, a feed-forward layer, and residuals.

`EncoderBlock` and `DecoderBlock` make one by keywords.
"""

from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.config import Block as BlockPart
from keras_transformer.config import Experts, Mixer
from keras_transformer.config.block import SPARSE_NORMS
from keras_transformer.config.flat import BLOCK_KEYWORDS, block_by_keywords
from keras_transformer.kernels.products import onednn_matmul_scope
from keras_transformer.layers.altup import AlternatingUpdates
from keras_transformer.layers.arguments import (
    FUNCTIONS,
    ChecksCall,
    SavesArguments,
    call_unchecked,
    check_has_keys,
    check_shapes,
    deserialized,
    known_shape,
    layer_of,
    named_arguments,
    own_layer,
    pack_outputs,
    part_of,
    refuse_unused,
)
from keras_transformer.layers.attention.masking import AttentionMask
from keras_transformer.layers.attention.merged import part_keys_of_encoder
from keras_transformer.layers.attention.multi_head_attention import check_mask_and_bias, heads_first
from keras_transformer.layers.attention.score_bias import LazyBias
from keras_transformer.layers.bottleneck import BottleneckResidual
from keras_transformer.layers.conformer import ConformerSublayers
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.feed_forward import activated, build_function
from keras_transformer.layers.laurel import AugmentedResidual
from keras_transformer.layers.layer_inputs import AddedLayerInput
from keras_transformer.layers.neighbours import with_neighbours
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import Rematerializable, no_inner_remat
from keras_transformer.support.checking import check_bool

# Layers of further parts of a block, by the name of the part.
_OF_PARTS = {
    "layer_input": AddedLayerInput,
    "laurel": AugmentedResidual,
    "altup": AlternatingUpdates,
    "bottleneck": BottleneckResidual,
}


@keras.saving.register_keras_serializable(package="keras_transformer")
class Block(ChecksCall, SavesArguments, Rematerializable, keras.layers.Layer):
    """One layer of a model: a mixer, optional cross-attention, and usually a feed-forward layer.

    Args:
        config: `config.Block`, the mixer, the feed-forward layer, the norms and the residual order.
        causal: bool, whether a token sees only itself and the tokens before it.
        cross_attention: bool, whether to attend to encoder states, as in a seq2seq model.
        kernel_initializer: initializer of the kernels.
        seed: int, seed of the dropout.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`; with the part's `altup` `(batch, length,
            copies, hidden_dim)`, and so are the results.
        encoder_states: float `(batch, encoder_length, encoder_dim)`. May be left out if the
            cache already holds their keys and values.
        mask: bool `(batch, length)`, True for real tokens. Keras passes a propagated mask here,
            or as `inputs_mask` when other tensors are given too.
        encoder_states_mask: bool `(batch, encoder_length)`, True for real encoder states.
        visibility: `AttentionMask` of the mixer, see `MultiHeadAttention`.
        cross_visibility: `AttentionMask` of the encoder states.
        bias: float `(batch or 1, heads or 1, length, keys)`, added to the self-attention scores.
        cache: dict `{"self": KeyValueCache, "cross": KeyValueCache}`; `"self"` is a `MixerStates`
            for a recurrent mixer, `"cross"` is None before the first call and without
            cross-attention.
        return_attention_scores, return_projections: bool, as in `MultiHeadAttention`.
        relative: `RelativeStates`, see `MultiHeadAttention`.
        first_only: bool, whether to compute only the state of the first token.
        layer_input: float `(batch, length, dim)`, for the part's `layer_input`.
        queries: float `(batch, length, hidden_dim)`, the stream of queries, for the part's
            `query_stream`: its states are returned. Without it those of the inputs are.
        grid: ints, rows and columns of the grid of patches that the inputs form, for a part that
            needs it (`Block.on_grid`).
        earlier: what an earlier block returned for later ones, if the mixer takes it: keys and
            values, or values.
        return_for_later: bool, whether to return that.

    Returns:
        Float `(batch, length, hidden_dim)`, of the merged patches if the part has a `merging`; with
        `first_only` `(batch, 1, hidden_dim)`. In a tuple
        with it, if asked for, a dict of attention weights and a dict of projections, each with the
        keys `"self"` and `"cross"`; a dict with what is for later blocks under `"self"`; and the
        updated cache, if a cache was given.

    Raises:
        ValueError: if the width of the states does not fit the part, encoder states are missing, or
            given without `cross_attention`, or if another argument has no effect.

    Example:
    ```python
    import numpy as np
    from keras_transformer import config
    from keras_transformer.layers import Block

    part = config.Block(
        mixer=config.Attention(num_heads=4, position=config.Rotary()),
        feed_forward=config.Dense(dim=64, activation="silu", gated=True),
        norm=config.Norm(type="rms_norm"),
        residual=config.Residual(order="pre"),
    )
    assert Block(part, causal=True)(np.random.rand(2, 7, 32)).shape == (2, 7, 32)
    ```

    Source: Vaswani et al. 2017, section 3.1; the residual orders: see `config.Residual`.
    """

    option_rules: ClassVar = {"causal": check_bool, "cross_attention": check_bool}
    axes: ClassVar = {
        "inputs": ("batch", "length", "dim"),
        "queries": ("batch", "length", "dim"),
        "encoder_states": ("batch or 1", "encoder_length", "encoder_dim"),
    }

    def __init__(
        self,
        config: BlockPart,
        causal: bool = False,
        cross_attention: bool = False,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.config = part = part_of("config", config, BlockPart)
        if part.altup is not None:
            self.axes = {**self.axes, "inputs": ("batch", "length", "copies", "dim")}
        self.causal = causal
        if part.convolution is not None and (causal or cross_attention):
            raise ValueError(
                "`convolution_size` is for an encoder's block, whose tokens see those behind them, "
                f"received {part.convolution.size} for a {type(self).__name__}."
            )
        if part.conformer is not None and (causal or cross_attention):
            raise ValueError(
                "`conformer` is for an encoder's block, which keeps no cache, received "
                f"causal={causal}, cross_attention={cross_attention}."
            )
        if cross_attention and part.residual.is_parallel:
            raise ValueError("`parallel_residual` has no place for `cross_attention`.")
        if part.merged_attention and not cross_attention:
            raise ValueError(
                "`merged_attention` attends to encoder states: it needs `cross_attention=True`, as "
                "in the decoder of a seq2seq model."
            )
        self.cross_attention_enabled = cross_attention
        self._sizes_of_slots: dict[str, tuple] = {}
        self._norms_batches = part.norm.type == "batch_norm"
        self.normalizes_first = part.residual.is_first
        self.is_parallel = part.residual.is_parallel
        self.pattern = getattr(part.mixer, "pattern", None)
        self.rotary = getattr(part.mixer, "position", None)
        self.has_experts = isinstance(part.feed_forward, Experts) or part.sparse is not None
        self.has_cache = part.mixer.has_cache
        self.supports_masking = True
        self._initializer = keras.initializers.get(kernel_initializer)
        self._seed = seed
        self.on_grid, self.mixer_on_grid = part.on_grid, part.mixer.on_grid
        if self.on_grid and (causal or cross_attention):
            raise ValueError(
                "A block on a grid of patches is for an encoder of images, received one with "
                "`causal` or `cross_attention`."
            )
        if part.merging is not None:
            with no_inner_remat():
                self.merging = layer_of(part.merging)(
                    part.merging,
                    part.norm,
                    kernel_initializer=self._initializer.clone(),
                    name="merging",
                    dtype=self.dtype_policy,
                )
        # The order of creation matters: saved optimizer states follow the order of the layers.
        self._make_norms(part.mixer.name)
        if part.feed_forward is not None:
            self._make_norms("feed_forward")
            with no_inner_remat():
                self.feed_forward = layer_of(part.feed_forward).from_part(
                    part.feed_forward,
                    kernel_initializer=self._initializer,
                    name="feed_forward",
                    dtype=self.dtype_policy,
                )
        if part.conformer is not None:
            self.conformer = ConformerSublayers(
                part.conformer,
                part.feed_forward,
                norm=part.norm,
                dropout=part.dropout,
                norms_outputs=part.residual.norms_outputs,
                kernel_initializer=self._initializer.clone(),
                seed=seed,
                name="conformer",
                dtype=self.dtype_policy,
            )
        if part.global_norm:
            self.global_norm = self._make_norm("global_norm")
        if part.query_stream:
            self.query_norm = self._make_norm("query_norm")
        if part.sparse is not None:
            self._make_sparse(part.sparse)
        if part.convolution is not None:
            self.convolution_activation = own_layer(part.convolution.activation)
            self._make_norms("convolution")
        with no_inner_remat():
            self.dropout_layer = Dropout(part.dropout, seed=seed, dtype=self.dtype_policy)
        if self._attends_apart:
            self._make_norms("cross_attention")
        for name, kind in _OF_PARTS.items():
            if getattr(part, name) is not None:
                with no_inner_remat():
                    layer = kind(
                        getattr(part, name),
                        norm=part.norm,
                        kernel_initializer=self._initializer.clone(),
                        name=name,
                        dtype=self.dtype_policy,
                    )
                setattr(self, name, layer)

    @property
    def _attends_apart(self) -> bool:
        """Whether the block attends to encoder states in a sub-layer of its own."""
        return self.cross_attention_enabled and not self.config.merged_attention

    def _make_norms(self, sublayer: str):
        """Make a sub-layer's norm, before it or after the sum, and the norm of its output."""
        wanted = self.config.residual.norms(sublayer)
        for name in (f"{sublayer}_norm", f"{sublayer}_output_norm"):
            setattr(self, name, self._make_norm(name) if name in wanted else None)

    def _make_norm(self, name: str):
        kind = self.config.norm
        with no_inner_remat():
            return make_normalization(kind.type, kind.epsilon, name=name, dtype=self.dtype_policy)

    def _normalized(self, norm: keras.layers.Layer, x, training: bool):
        # A block that is recomputed in the backward pass is not in a call that sets `training`.
        return norm(x, training=training) if self._norms_batches else norm(x)

    def _make_sparse(self, part: Experts):
        """Make the experts beside the feed-forward layer, and the norms of both."""
        with no_inner_remat():
            self.sparse = layer_of(part).from_part(
                part, kernel_initializer=self._initializer, name="sparse", dtype=self.dtype_policy
            )
        for name in SPARSE_NORMS:
            setattr(self, name, self._make_norm(name))

    def _with_sparse(self, dense, states, mask, training: bool):
        """Return the outputs of the feed-forward layer, with those of the experts beside it."""
        given = self._normalized(self.sparse_norm, states, training)
        options = {"mask": mask, "training": training, "routed_by": states}
        sparse = call_unchecked(self.sparse, given, **options)
        dense = self._normalized(self.dense_output_norm, dense, training)
        return dense + self._normalized(self.sparse_output_norm, sparse, training)

    def _norms(self, sublayer: str) -> list[keras.layers.Layer | None]:
        return [getattr(self, f"{sublayer}_{name}") for name in ("norm", "output_norm")]

    def _build_norms(self, sublayer: str, input_shape):
        for norm in self._norms(sublayer):
            if norm is not None:
                norm.build(input_shape)
        if self.config.residual.trained_scale:
            name = f"{sublayer}_scale"
            setattr(self, name, self.add_weight(input_shape[-1:], "ones", name=name))

    def _mixer(self, part: Mixer, hidden_dim: int, **options) -> keras.layers.Layer:
        """Make a mixer, whose sizes may depend on the width of the states."""
        part = part.for_width(hidden_dim)
        options |= {"seed": self._seed, "dtype": self.dtype_policy}
        with no_inner_remat():
            return layer_of(part)(
                part, norm=self.config.norm, kernel_initializer=self._initializer, **options
            )

    @property
    def mixer_layer(self) -> keras.layers.Layer:
        """The mixer's layer once the block is built, for attention `self_attention`."""
        return getattr(self, self.config.mixer.name)

    def build(self, inputs_shape, encoder_states_shape=None):
        self.check_rank(inputs_shape)
        part, hidden_dim = self.config, inputs_shape[-1]
        self.fixed = {"dim": hidden_dim}
        if part.merging is not None:
            self.merging.build(inputs_shape)
            hidden_dim = part.merging.hidden_dim
            inputs_shape = (*inputs_shape[:-2], None, hidden_dim)
        if part.altup is not None:
            self.altup.build(inputs_shape)
            inputs_shape = (*inputs_shape[:-2], hidden_dim)
        name = part.mixer.name
        setattr(self, name, self._mixer(part.mixer, hidden_dim, name=name, causal=self.causal))
        self.mixer_layer.build(inputs_shape)
        self._build_norms(name, inputs_shape)
        for own in ("global_norm", "query_norm"):
            if hasattr(self, own):
                getattr(self, own).build(inputs_shape)
        if part.feed_forward is not None:
            self.feed_forward.build(inputs_shape)
            self._build_norms("feed_forward", inputs_shape)
        if part.sparse is not None:
            for name in ("sparse", *SPARSE_NORMS):
                getattr(self, name).build(inputs_shape)
        if part.convolution is not None:
            self._build_convolution(part.convolution.size, inputs_shape)
        for name in ("layer_input", "laurel", "conformer", "bottleneck"):
            if getattr(part, name) is not None:
                getattr(self, name).build(inputs_shape)
        if part.output_scale:
            self.output_scale = self.add_weight((1,), "ones", trainable=False, name="output_scale")
        if self.cross_attention_enabled:
            source_shape = encoder_states_shape or inputs_shape
            self.fixed = {**self.fixed, "encoder_dim": source_shape[-1]}
        if self._attends_apart:
            self.cross_attention = self._mixer(
                part.cross_attention, hidden_dim, name="cross_attention"
            )
            self.cross_attention.build(inputs_shape, source_shape)
            self._build_norms("cross_attention", inputs_shape)

    def _build_convolution(self, size: int, input_shape):
        with no_inner_remat():
            self.convolution = Dense(
                input_shape[-1],
                kernel_initializer=self._initializer.clone(),
                name="convolution",
                dtype=self.dtype_policy,
            )
        build_function(self.convolution_activation, input_shape)
        self.convolution.build((*input_shape[:-1], size * input_shape[-1]))
        self._build_norms("convolution", input_shape)

    def check_call(self, given):
        inputs, cache = given.get("inputs"), given.get("cache")
        shape = known_shape(inputs)
        if shape is not None:
            self.check_rank(shape)
        super().check_call(given)
        if self.on_grid and given.get("grid") is None:
            raise ValueError("This block needs the `grid` of its patches: give rows and columns.")
        if cache is not None and not self.causal:
            raise ValueError("A block with causal=False sees later tokens: it takes no `cache`.")
        keys = inputs if cache is None else None
        check_mask_and_bias(self.config.mixer, self.causal, inputs, keys, given, own_keys=True)
        self._check_source(inputs, given)
        if not self.config.query_stream:
            refuse_unused("the block has no `query_stream`.", queries=given.get("queries"))
        if self.config.merged_attention and self.cross_attention_enabled:
            prefix = AttentionMask.given(given.get("visibility")).prefix
            reason = "the encoder's states are seen before the tokens, without a bias."
            refuse_unused(reason, bias=given.get("bias"), prefix=prefix)
        if cache is not None and shape is not None:
            mixers = {"self": self.config.mixer}
            if cache["cross"] is not None:
                mixers["cross"] = self.config.cross_attention
            for side, mixer in mixers.items():
                sizes = self._slot_sizes(side, mixer, shape[-1])
                if sizes:  # otherwise the cache is an earlier layer's
                    cache[side].check_fit(shape, *sizes)

    def _slot_sizes(self, side: str, mixer: Mixer, dim: int) -> tuple:
        """Return the sizes of the slots of a mixer's cache, which are the same in each call."""
        if side not in self._sizes_of_slots:
            heads, width, _, *states = mixer.for_width(dim).cached(dim)
            self._sizes_of_slots[side] = (*((heads, width) if heads else ()), *states)
        return self._sizes_of_slots[side]

    def check_rank(self, shape):
        """Raise ValueError if a shape is not `(batch, length, dim)`, with copies one more."""
        if self.config.altup is not None:
            copies = self.config.altup.copies
            if len(shape) != 4 or shape[2] != copies:
                raise ValueError(
                    f"A {type(self).__name__} with `altup` takes states of shape (batch, length, "
                    f"{copies}, dim), received {tuple(shape)}."
                )
        elif len(shape) != 3:
            raise ValueError(
                f"{type(self).__name__} takes states of shape (batch, length, dim), received "
                f"{tuple(shape)}. A `TokenEmbedding` makes them from token ids."
            )

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
        relative=None,
        first_only: bool = False,
        layer_input=None,
        earlier=None,
        return_for_later: bool = False,
        grid=None,
        attention_positions=None,
        encoder_positions=None,
        queries=None,
    ):
        if self.config.merging is not None:
            inputs = self.merging(inputs, grid=grid)
            grid = self.config.merging.grid(grid)
        mask = inputs_mask if mask is None else mask
        self._check_masks(inputs, encoder_states, cache, mask, encoder_states_mask)
        visibility = AttentionMask.given(visibility, mask)
        asked, extra = output_flags(return_attention_scores, return_projections, return_for_later)
        options = {"training": training}
        attends = self.config.mixer.attends
        updated = {"cross": None}
        rest = extra if cache is None else [*extra, updated]
        of_mixer, asked_of_mixer = rest, asked
        if not attends:  # Other mixers have neither attention weights nor projections.
            of_mixer = rest[return_attention_scores + return_projections :]
            asked_of_mixer = {"return_for_later": True} if return_for_later else {}
        # A cache's padding covers its slots.
        real = visibility.padding if cache is None else None

        def mix(x):
            own = {"visibility": visibility, **options, **asked_of_mixer}
            own |= {} if bias is None else {"bias": bias}
            own |= {} if relative is None else {"relative": relative}
            own |= {} if cache is None else {"cache": cache["self"]}
            own |= {} if earlier is None else {"earlier": earlier}
            own |= {"grid": grid} if self.mixer_on_grid else {}
            if self.cross_attention_enabled and self.config.merged_attention:
                beside, slots = self._of_encoder(encoder_states, cache)
                own["beside"] = (*beside, seen_of_encoder())
                x = split_outputs(call_unchecked(self.mixer_layer, x, **own), "self", rest)
                updated["cross"] = slots
                for each in rest[: return_attention_scores + return_projections]:
                    part_keys_of_encoder(each, ops.shape(beside[0])[2])
                return x
            alone = first_only and getattr(self.mixer_layer, "sees_first_alone", False)
            if alone:
                own |= _of_first(x, visibility, bias, relative)
            if attention_positions is not None:
                own["value"], x = x, x + attention_positions
                own["key"] = x
            if queries is not None:
                own["query_stream"] = self._normalized(self.query_norm, queries, training)
            x = x[:, :1] if alone else x
            x = split_outputs(call_unchecked(self.mixer_layer, x, **own), "self", of_mixer)
            return x[:, :1] if first_only and not alone else x

        def seen_of_encoder():
            return AttentionMask.given(cross_visibility, encoder_states_mask)

        def attend_to_encoder(x):
            slots = _slots_of_encoder(encoder_states, cache)
            seen = seen_of_encoder()
            own = {"value": encoder_states, "visibility": seen, "cache": slots, **options, **asked}
            if attention_positions is not None:
                x = x + attention_positions
            if encoder_positions is not None:
                own["key"] = encoder_states + encoder_positions
            return split_outputs(call_unchecked(self.cross_attention, x, **own), "cross", rest)

        def convolve(x):
            size = self.config.convolution.size
            x = self.convolution(with_neighbours(x, size, visibility))
            x = self.dropout_layer(x[:, :1] if first_only else x, training=training)
            return activated(self.convolution_activation, x)

        def feed_forward(x):
            if self.config.feed_forward.on_grid:
                return call_unchecked(self.feed_forward, x, grid=grid)
            if not self.has_experts:
                return call_unchecked(self.feed_forward, x)
            counted = real[:, :1] if first_only and real is not None else real
            if self.config.sparse is not None:
                dense = call_unchecked(self.feed_forward, x)
                return self._with_sparse(dense, given, counted, training)
            return call_unchecked(self.feed_forward, x, mask=counted, training=training)

        residual, name = self.config.residual, self.config.mixer.name
        has_conformer, first_alone = self.config.conformer is not None, first_only
        if has_conformer:
            first_only = False  # the convolution reads the states of all tokens
            if visibility.query_pack is not None:
                raise ValueError("The convolution of a `conformer` would mix packed documents.")
        with onednn_matmul_scope(inputs):
            if self.config.altup is not None:
                copies = self.altup(inputs, training=training)
                inputs = copies[:, :, 0]
            if has_conformer:
                inputs = self.conformer(inputs, which="feed_forward", **options)
            kept = inputs[:, :1] if first_only else inputs
            kept = kept if queries is None else queries
            shared = residual.order == "parallel_shared"
            first = self.config.global_tokens if self.config.global_norm else 0
            normed = shared or self.config.laurel is not None or first > 0
            if normed:
                norm, of_all = getattr(self, f"{name}_norm"), inputs[:, :first]
                inputs = self._normalized(norm, inputs[:, first:], training)
                if first:
                    of_all = self._normalized(self.global_norm, of_all, training)
                    inputs = ops.concatenate([of_all, inputs], axis=1)
            x = self._sublayer(name, mix, inputs, kept, training, normed=normed)
            if self.config.laurel is not None:
                x = (x + self.laurel(inputs)) * 2**-0.5
            if self._attends_apart:
                x = self._sublayer("cross_attention", attend_to_encoder, x, x, training)
            if has_conformer:
                x = self.conformer(x, mask=real, which="convolution", **options)
            given = x
            if self.is_parallel:
                given = inputs[:, :1] if first_only else inputs
            if self.config.feed_forward is not None:
                own = {"normed": shared, "factor": 0.5 if has_conformer else 1.0}
                x = self._sublayer("feed_forward", feed_forward, given, x, training, **own)
            if has_conformer:
                x = self.conformer(x, which="norm", **options)
                x = x[:, :1] if first_alone else x
            if self.config.convolution is not None:
                x = self._sublayer("convolution", convolve, inputs, x, training, dropped=True)
            if self.config.altup is not None:
                copies = self.altup(copies, first=x, training=training)
                x = self.altup.scaled(copies)
            added = None
            if self.config.layer_input is not None:
                added = self.layer_input(x, vectors=layer_input)
                added = self.dropout_layer(added, training=training)
            if self.config.altup is not None:
                x = copies if added is None else _added_behind_first(copies, added)
            elif added is not None:
                x = x + added
            if self.config.output_scale:
                x = x * ops.cast(self.output_scale, x.dtype)
            if self.config.bottleneck is not None:
                x = self.bottleneck(x, grid=grid)
        return pack_outputs(x, *rest)

    def _of_encoder(self, encoder_states, cache: dict | None):
        """Return the encoder's keys and values for merged attention, and the slots that hold them.

        Keys and values are `(batch, heads, length, head_dim)`.
        """
        slots = _slots_of_encoder(encoder_states, cache)
        if encoder_states is None:
            return slots.read(self.compute_dtype), slots
        projected = self.mixer_layer.keys_and_values(encoder_states)
        slots = slots and slots.write(*projected).full()
        return tuple(map(heads_first, projected)), slots

    def _sublayer(
        self,
        name,
        function,
        inputs,
        skipped,
        training,
        dropped: bool = False,
        normed: bool = False,
        factor: float = 1.0,
    ):
        """Apply a sub-layer, its norms, its residual and dropout, unless `dropped` or `normed`."""
        residual, (norm, output_norm) = self.config.residual, self._norms(name)
        before = self.normalizes_first and norm is not None and not normed
        output = function(self._normalized(norm, inputs, training) if before else inputs)
        output = output if output_norm is None else self._normalized(output_norm, output, training)
        factor *= residual.scale
        output = output if factor == 1 else output * factor
        if residual.trained_scale:
            output = output * getattr(self, f"{name}_scale")
        if training and not dropped:
            output = self.dropout_layer(output, training=True)
        x = skipped + output
        return x if self.normalizes_first or norm is None else self._normalized(norm, x, training)

    def _check_masks(self, inputs, encoder_states, cache, mask, encoder_states_mask):
        """Raise ValueError if a mask does not fit; Keras gives propagated ones only to `call`."""
        if mask is not None:
            check_shapes(inputs, inputs if cache is None else None, mask=mask)
        if encoder_states_mask is not None:
            check_shapes(inputs, encoder_states, encoder_states_mask=encoder_states_mask)

    def _check_source(self, inputs, given):
        """Raise ValueError if encoder states are missing, unused, or do not fit."""
        names = ("encoder_states", "encoder_states_mask", "cross_visibility", "cache")
        encoder_states, encoder_states_mask, cross_visibility, cache = map(given.get, names)
        if not self.cross_attention_enabled:
            refuse_unused(
                "this block has no cross-attention. Make it with `cross_attention=True`.",
                encoder_states=encoder_states,
                encoder_states_mask=encoder_states_mask,
                cross_visibility=cross_visibility,
            )
        elif encoder_states is None and (cache is None or cache["cross"] is None):
            raise ValueError(
                "This block has cross-attention: give `encoder_states`, or a `cache` "
                "that holds their keys and values."
            )
        else:
            check_has_keys(type(self).__name__, encoder_states=encoder_states)
            attention, seen = self.config.cross_attention, {"visibility": cross_visibility}
            seen["cache"] = cache
            check_mask_and_bias(attention, False, inputs, encoder_states, seen, own_keys=False)

    def compute_mask(self, inputs, mask=None, **kwargs):
        return mask

    def compute_output_shape(self, inputs_shape, encoder_states_shape=None):
        return tuple(inputs_shape)

    def compute_output_spec(self, *args, **kwargs):
        given = {"cache": None, **named_arguments(self.call, args, kwargs)}
        inputs, cache = given["inputs"], given["cache"]
        mask = given["inputs_mask"] if given["mask"] is None else given["mask"]
        names = ("encoder_states", "encoder_states_mask")
        encoder_states, encoder_states_mask = map(given.get, names)
        self._check_masks(inputs, encoder_states, cache, mask, encoder_states_mask)
        asked = given["return_attention_scores"]
        further = ("return_projections", "return_for_later")
        if any(given.get(name) for name in further) or (asked and self.cross_attention_enabled):
            return keras.layers.Layer.compute_output_spec(self, *args, **kwargs)
        if self.on_grid:
            return keras.layers.Layer.compute_output_spec(self, *args, **kwargs)
        batch, length, *dims = inputs.shape
        queries, weights = 1 if given["first_only"] else length, None
        output = keras.KerasTensor((batch, queries, *dims), self.compute_dtype)
        if asked:
            if cache is not None or not self.config.mixer.attends:
                return keras.layers.Layer.compute_output_spec(self, *args, **kwargs)
            shape = (batch, self.config.mixer.num_heads, queries, length)
            weights = {"self": keras.KerasTensor(shape, "float32")}
        return pack_outputs(output, weights, cache)


def _added_behind_first(copies, added):
    """Return copies of states with the same added to each but the first."""
    behind = copies[:, :, 1:] + added[:, :, None]
    return ops.concatenate([copies[:, :, :1], behind], axis=2)


def _of_first(x, visibility: AttentionMask, bias, relative) -> dict:
    """Return the arguments of attention for the first query alone."""
    of_first = bias.materialize(x, 1) if isinstance(bias, LazyBias) else bias
    arguments = {"value": x, "visibility": visibility.of_first_query()}
    arguments |= {} if of_first is None else {"bias": of_first[:, :, :1]}
    return arguments | ({} if relative is None else {"relative": relative.of_first_query()})


def _slots_of_encoder(encoder_states, cache: dict | None):
    """Return the slots with the encoder's keys, or empty ones for those of `encoder_states`."""
    if cache is None:
        return None
    # The keys of the encoder are appended to the empty slots.
    return cache["cross"] if encoder_states is None else cache["self"].like(0)


def output_flags(
    scores: bool, projections: bool, for_later: bool = False
) -> tuple[dict[str, bool], list[dict]]:
    """Return the flags of attention's optional outputs, and an empty dict for each True flag."""
    asked = {"return_attention_scores": scores, "return_projections": projections}
    asked |= {"return_for_later": True} if for_later else {}
    return asked, [{} for wanted in asked.values() if wanted]


def split_outputs(result: Any, side: str, extra: list[dict]) -> Any:
    """Return the output of a `pack_outputs` result; store the rest in `extra`, under `side`."""
    if not extra:
        return result
    output, *rest = result
    for each, given in zip(extra, rest, strict=True):
        each[side] = given
    return output


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(Block):
    """Encoder layer: self-attention, then feed-forward.

    Each sub-layer `f` is wrapped as post-norm `norm(x + dropout(f(x)))`, as in the original, or
    pre-norm `x + dropout(f(norm(x)))`, or parallel `x + f(norm_f(x)) + g(norm_g(x))`, with both
    sub-layers on the same `x` and optionally one shared norm. With `normalize_output` the output
    of `f` is normalized: instead of the sum in post-norm, `x + dropout(norm(f(x)))`, and in
    addition to the first norm in pre-norm.

    Args:
        num_heads: int, number of query heads; or a `config.Block`, instead of all keywords.
        intermediate_dim: int, width inside the feed-forward layer.
        num_key_value_heads: int, see `MultiHeadAttention`. Defaults to `num_heads`.
        head_dim: int. Defaults to the input width divided by `num_heads`.
        activation: str, function or layer, see `FeedForward`.
        gated: bool, see `FeedForward`.
        gate_limit: float, see `FeedForward`.
        use_bias: bool, whether the feed-forward layer has biases.
        attention_bias: bool, biases of query, key and value. Defaults to `use_bias`.
        attention_output_bias: bool, bias of the attention's output. Defaults to `attention_bias`.
        query_key_norm: bool, whether to normalize each head's queries and keys.
        normalization: a name in `config.NORMALIZATIONS`, the kind of the norms.
        normalization_epsilon: float, epsilon of the norms.
        normalize_first: bool, True for pre-norm, False for post-norm.
        attention_normalization: bool, whether self-attention has a norm, before it (pre-norm) or
            after its sum (post-norm).
        normalize_output: bool, whether to normalize each sub-layer's output before it is added.
        parallel_residual: bool, whether both sub-layers get the same inputs. Requires
            `normalize_first`.
        share_normalization: bool, whether both sub-layers share one pre-norm. Requires
            `parallel_residual`.
        residual_scale: float, factor of each sub-layer's output.
        trained_residual_scale: bool, whether each feature of a sub-layer's output also has a
            trained factor.
        convolution_size: int, the odd kernel size of a convolution of the block's inputs, a
            sub-layer after the other two (DeBERTa v2). 0 disables it.
        convolution_activation: activation of the convolution, like `activation`.
        dropout: float, dropout rate of each sub-layer's output; the convolution applies it before
            its activation.
        attention_dropout: float, dropout rate of the attention weights.
        kernel_initializer: initializer of the kernels.
        seed: int, seed of the dropout.
        **kwargs: other arguments of `MultiHeadAttention`, such as `score`, `window` and `rotary`;
            with `num_experts` above 0 arguments of `MixtureOfExperts`, which then replaces the
            feed-forward layer (`expert_dim` defaults to `intermediate_dim`); and arguments of
            `keras.layers.Layer`.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`.
        mask: bool `(batch, length)`, True for real tokens. Layers that produce Keras masks supply
            it; Keras calls it `inputs_mask` if other tensors are given too.
        visibility: `AttentionMask`, see `MultiHeadAttention`.
        bias: float `(batch or 1, heads or 1, length, length)`, added to the attention scores.
        relative: `RelativeStates`, see `MultiHeadAttention`.
        attention_positions: float `(batch or 1, length, hidden_dim)`, added to the states for the
            queries and keys of the attention, but not for its values.
        first_only: bool, whether to compute only the state of the first token.
        grid: ints, see `Block`.
        return_attention_scores, return_projections: bool, as in `MultiHeadAttention`.

    Returns:
        Float `(batch, length, hidden_dim)`; with `first_only` `(batch, 1, hidden_dim)`. In a tuple
        with it, if asked for, a dict of attention weights `{"self": float (batch, num_heads,
        length, length)}`, and a dict of projections with the same key.

    Raises:
        ValueError: if the width is not a multiple of `num_heads` and `head_dim` is not given, an
            option is out of range, arrays do not fit each other, or an argument would be ignored.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import EncoderBlock

    block = EncoderBlock(num_heads=4, intermediate_dim=64, dropout=0.1)
    assert block(np.random.rand(2, 7, 32)).shape == (2, 7, 32)
    ```

    Source: Vaswani et al. 2017, section 3.1; pre-norm: Xiong et al. 2020; parallel: Wang and
    Komatsuzaki 2021, "GPT-J-6B"; normalized outputs: Riviere et al. 2024, "Gemma 2", section 2,
    and OLMo et al. 2024, "2 OLMo 2 Furious", section 3.
    """

    option_rules: ClassVar = {**Block.option_rules, "rotary": lambda name, value: value}

    def __init__(
        self,
        num_heads: int | BlockPart,
        intermediate_dim: int | None = None,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        given, kwargs = block_of(num_heads, intermediate_dim, kwargs)
        super().__init__(given, kernel_initializer=kernel_initializer, seed=seed, **kwargs)

    def build(self, inputs_shape):
        super().build(inputs_shape)

    def call(
        self,
        inputs,
        mask=None,
        inputs_mask=None,
        visibility=None,
        bias=None,
        relative=None,
        attention_positions=None,
        first_only: bool = False,
        return_attention_scores: bool = False,
        return_projections: bool = False,
        training: bool = False,
        grid=None,
    ):
        return super().call(
            inputs,
            mask=mask,
            inputs_mask=inputs_mask,
            visibility=visibility,
            bias=bias,
            relative=relative,
            attention_positions=attention_positions,
            first_only=first_only,
            return_attention_scores=return_attention_scores,
            return_projections=return_projections,
            training=training,
            grid=grid,
        )


def block_of(num_heads, intermediate_dim: int | None, kwargs: dict) -> tuple[BlockPart, dict]:
    """Return the `config.Block`, given as such or by keywords, and the keywords that are left."""
    if isinstance(num_heads, BlockPart | dict):
        return part_of("num_heads", num_heads, BlockPart), kwargs
    if intermediate_dim is None:
        raise ValueError(
            "A block needs the width of its feed-forward layer: give `intermediate_dim`."
        )
    given = {
        name: deserialized(value) if name in FUNCTIONS else value
        for name, value in kwargs.items()
        if name in BLOCK_KEYWORDS
    }
    kwargs = {name: value for name, value in kwargs.items() if name not in given}
    given |= {"num_heads": num_heads, "intermediate_dim": intermediate_dim}
    return block_by_keywords(given), kwargs


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(Block):
    """Decoder layer: causal self-attention, optional cross-attention, feed-forward.

    Args:
        num_heads, intermediate_dim, ...: all arguments of `EncoderBlock`.
        cross_attention: bool, whether to attend to encoder states, as in a seq2seq model.
        causal: bool, whether self-attention is causal. False makes it bidirectional, for an
            encoder that attends to another one; it then takes no cache.

    Call arguments:
        inputs: float `(batch, length, hidden_dim)`.
        encoder_states: float `(batch, encoder_length, encoder_dim)`. May be left out if the
            cache already holds their keys and values.
        mask: bool `(batch, length)`, True for real tokens. Keras passes a propagated mask here,
            or as `inputs_mask` when there are encoder states.
        encoder_states_mask: bool `(batch, encoder_length)`, True for real encoder states.
        visibility: `AttentionMask` of the self-attention, see `MultiHeadAttention`.
        cross_visibility: `AttentionMask` of the encoder states.
        bias: float `(batch or 1, heads or 1, length, keys)`, added to the self-attention scores.
        attention_positions, encoder_positions: float `(batch or 1, length, hidden_dim)` and
            `(batch or 1, encoder_length, encoder_dim)`, added to the states and to the encoder
            states for the queries and keys of each attention, but not for its values. Without a
            cache.
        cache: dict `{"self": KeyValueCache, "cross": KeyValueCache}`; `"cross"` is None before the
            first call and without cross-attention.
        return_attention_scores, return_projections: bool, as in `MultiHeadAttention`.

    Returns:
        Float `(batch, length, hidden_dim)`. In a tuple with it, if asked for, a dict of attention
        weights and a dict of projections, each with the keys `"self"` and `"cross"`; and the
        updated cache, if a cache was given.

    Raises:
        ValueError: if encoder states are missing, or given without `cross_attention`, or if
            another argument would be ignored.

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

    option_rules = EncoderBlock.option_rules

    def __init__(
        self,
        num_heads: int | BlockPart,
        intermediate_dim: int | None = None,
        cross_attention: bool = False,
        causal: bool = True,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        given, kwargs = block_of(num_heads, intermediate_dim, kwargs)
        super().__init__(given, causal, cross_attention, kernel_initializer, seed, **kwargs)
