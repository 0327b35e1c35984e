"""Stems turn named inputs into states: their base classes, and the stem of text."""

from typing import Any, ClassVar, NamedTuple

import keras
from keras import ops

from keras_transformer.config import Learned, TransformerConfig
from keras_transformer.distribution.layout import spread_batch
from keras_transformer.kernels.products import by_rows, onednn_matmul_scope
from keras_transformer.kernels.values import drop_trivial_mask
from keras_transformer.layers.arguments import (
    SavesArguments,
    embedding_initializer,
    kernel_initializer,
    layer_of,
    refuse_unused,
)
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import SegmentEmbedding, TokenEmbedding
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.position import sequence_positions
from keras_transformer.layers.remat import no_inner_remat


class Input(NamedTuple):
    """Description of one array that a stem takes.

    Fields:
        name: str, its name in the dict of inputs.
        dtype: str, `"int32"`, `"bool"` or `"float32"`.
        shape: sizes of its axes after the batch. None allows any size.
        required: bool, whether it must be given.
        of_tokens: bool, whether it has as many columns as the required array.
        below: int, integers must be from 0 to `below - 1`. None means no bound.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    required: bool = False
    of_tokens: bool = True
    below: int | None = None


class Embedded(NamedTuple):
    """Output of a stem, the input of the blocks.

    Fields:
        states: float `(batch, length, hidden_dim)`.
        padding_mask: bool `(batch, length)`, True for real states, or None if all are real.
        position_ids: int `(batch, length)`, for positions with several axes `(batch, length,
            axes)`, or None, which means 0, 1, 2, ...
        pack_ids: int `(batch, length)`, the packed document of each state, or None.
        global_positions: int `(batch, count)`, the places of states that see all others and are
            seen by all, regardless of the window; -1 for unused entries. None uses the config's.
        grid: ints, the rows and columns of the grid that the last states form, row by row; for
            videos steps in time, rows and columns. None if the config does not need a grid.
        layer_inputs: float `(batch, length, num_layers, dim)`, what each token has for each layer,
            or None if the layers take nothing but states.
        segment_ids: int `(batch, length)`, token types for layers that compare them, or None.
        added: tuple of float `(1, length, hidden_dim)`, positions that are added to the states
            behind the first blocks.
        attention_positions: float `(batch or 1, length, hidden_dim)`, positions that each attention
            adds to its queries and keys, but not to its values; or None.
        queries: float `(batch, length, hidden_dim)`, positions of the tokens that come next, for
            blocks with a `query_stream`; or None.
        maps: tuple of float `(batch, rows, columns, features)`, the maps of the stages of a
            convolutional network before the one that the states are made of, for a head.
    """

    states: Any
    padding_mask: Any = None
    position_ids: Any = None
    pack_ids: Any = None
    global_positions: Any = None
    grid: tuple[int, ...] | None = None
    layer_inputs: Any = None
    segment_ids: Any = None
    added: tuple = ()
    attention_positions: Any = None
    queries: Any = None
    maps: tuple = ()


def patch_product(patches, convolution):
    """Return flat patches `(..., values)` as the convolution projects them, `(..., width)`.

    One product, for patches that do not overlap. A patch has its values in the order of the axes of
    the kernel.
    """
    kernel = ops.cast(convolution.kernel, patches.dtype)
    kernel = ops.reshape(kernel, (-1, kernel.shape[-1]))
    with onednn_matmul_scope(patches):
        x = by_rows(lambda rows: ops.matmul(rows, kernel), patches)
    bias = convolution.bias
    return x if bias is None else x + ops.cast(bias, x.dtype)


class Stem(SavesArguments, keras.layers.Layer):
    """Base class of stems: `call` turns a dict of arrays into `Embedded`.

    A subclass declares in `inputs` the arrays it takes, makes its layers in `__init__` and their
    weights in `build`, and defines `call(inputs, training=False)`. Its constructor arguments are
    saved. See docs/add_an_input.md.

    Args:
        **kwargs: as in `keras.layers.Layer`.
    """

    # Its inputs of this many dimensions or more have sizes that a trace must know: 4 for images.
    known_sizes_from: ClassVar[int | None] = None

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Arrays that the stem takes."""
        raise NotImplementedError

    def mask_of_states(self, padding_mask, length):
        """Turn the input `padding_mask` into the mask of the states, bool `(batch, length)`."""
        return padding_mask

    def mask_of(self, inputs, length):
        """Return the mask of the states of inputs, bool `(batch, length)`; None if all are real."""
        mask = inputs.get("padding_mask")
        return None if mask is None else self.mask_of_states(mask, length)

    def states_shape(self, inputs) -> tuple[int | None, ...] | None:
        """Return the shape of the states of symbolic inputs. None lets Keras find it by a call.

        Keras calls with lengths of its own choice, which may be too short for one state.
        """

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # Recomputing an embedding saves nothing.


class PositionedStem(Stem):
    """Base class of the stems that a config describes.

    A subclass makes the layers for the content of its states, then calls `make_rest`, and calls
    `positioned` to add the rest to the content.

    Args:
        config: `TransformerConfig` of a side.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self._width = config.only_side.added_dim
        # One initializer for all tables: each draws its own seed when it is made.
        self._embeddings = embedding_initializer(config, initializer)

    def make_rest(self, initializer) -> None:
        """Make the layers that follow the content."""
        config = self.config
        self.position_embedding = self.embedding_norm = self.embedding_projection = None
        side = config.only_side
        if side.position is not None:
            self.position_embedding = layer_of(side.position).from_part(
                side.position,
                side,
                embeddings_initializer=self._embeddings,
                dtype=self.dtype_policy,
            )
        if side.embedding_norm:
            self.embedding_norm = make_normalization(
                side.block.norm.type,
                side.block.norm.epsilon,
                name="embedding_norm",
                dtype=self.dtype_policy,
            )
        with no_inner_remat():
            self.dropout_layer = Dropout(side.block.dropout, dtype=self.dtype_policy)
        if side.embedding_projection == "sum":
            self.embedding_projection = Dense(
                side.hidden_dim,
                kernel_initializer=kernel_initializer(config, initializer),
                name="embedding_projection",
                dtype=self.dtype_policy,
            )

    def build(self, input_shape=None):
        for layer in (self.position_embedding, self.embedding_norm, self.embedding_projection):
            if layer is not None:
                layer.build((None, None, self._width))

    def positioned(self, x, positions=None, training: bool = False):
        """Return the states for the blocks, from their content `(batch, length, embedding_dim)`."""
        return self.finished(self.with_positions(x, positions), training)

    def with_positions(self, x, positions=None):
        """Add the positions to the content of the states, if the config has any."""
        if self.position_embedding is None:
            return x
        return x + self.position_embedding(x, positions=positions)

    def finished(self, x, training: bool = False):
        """Return the states for the blocks, from content that already has its positions."""
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = spread_batch(x) if keras.distribution.distribution() else x
        x = self.dropout_layer(x, training=True) if training else x
        return x if self.embedding_projection is None else self.embedding_projection(x)


# Share of the tokens that are not masked in training (Lin et al. 2022): 15% of them are predicted,
# of which 80% are masked.
_KEPT_IN_TRAINING = 1 - 0.15 * 0.8
_GLOBAL = Input("global_positions", "int32", (None,), of_tokens=False)
_SEEN_TOO = (Input("prefix", "int32", (None,)), Input("prefix_start", "int32", (None,)))


class TokenStem(PositionedStem):
    """Sum of token, segment and position embeddings, normalized and projected for the blocks.

    Args:
        config: `TransformerConfig` of a side.
        token_embedding: the `TokenEmbedding`, which the logits and another side may share.
        initializer: initializer of all weights. Defaults to the config's initializers.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `token_ids` int `(batch, length)`, and optionally `padding_mask` bool,
            `segment_ids`, `position_ids` and `pack_ids` int, all `(batch, length)`, and
            `token_embeddings` float `(batch, length, embedding_dim)`, which replace the embeddings
            of the ids. An encoder with a window takes `global_positions` int `(batch, count)`, see
            `Embedded`. A decoder with a `query_stream` takes `prefix` and `prefix_start`, int
            `(batch, length)`, tokens that a query sees beside those before it, see `AttentionMask`;
            its `position_ids` are those of the tokens that come next.
        cache_positions: int `(batch, length)`, positions counted by a cache.
        layer_inputs: bool, whether to make what each token has for each layer, if the config says
            so. False leaves it to the caller, who changes the states first.

    Returns:
        `Embedded`.

    Source: Vaswani et al. 2017, section 3.4; segments and normalization: Devlin et al. 2018,
    "BERT", section 3.
    """

    inputs = (
        Input("token_ids", "int32", (None,), required=True),
        Input("padding_mask", "bool", (None,)),
        Input("segment_ids", "int32", (None,)),
        Input("position_ids", "int32", (None,)),
        Input("pack_ids", "int32", (None,)),
        Input("token_embeddings", "float32", (None, None)),
    )

    def __init__(
        self, config: TransformerConfig, token_embedding: TokenEmbedding, initializer=None, **kwargs
    ):
        super().__init__(config, initializer, **kwargs)
        self.token_embedding = token_embedding
        side = config.only_side
        mixers = [block.mixer for block in side.every_block]
        self._has_positions = side.position is not None or any(x.uses_positions for x in mixers)
        learned = isinstance(side.position, Learned)
        self._num_learned = side.max_sequence_length if learned else None
        self._uncounted_id = side.position.padding_id if learned else None
        self._dropped_id = side.input.dropped_id
        self._has_query_stream = side.has_query_stream
        self.class_token = None
        patterns = [getattr(mixer, "pattern", None) for mixer in mixers]
        if config.kind == "encoder" and any(x and x.takes_global_positions for x in patterns):
            self.inputs = (*self.inputs, _GLOBAL)
        if self._has_query_stream:
            self.inputs = (*self.inputs, *_SEEN_TOO)
        self.token_projection = self.segment_embedding = None
        if side.embedding_projection == "tokens":
            self.token_projection = Dense(
                side.hidden_dim,
                use_bias=False,
                kernel_initializer=kernel_initializer(config, initializer),
                name="token_projection",
                dtype=self.dtype_policy,
            )
        self.compares_segments = side.input.segment_use == "compared"
        if side.input.has_segment_embedding:
            self.segment_embedding = SegmentEmbedding(
                side.input.segments,
                self._width,
                name="segment_embedding",
                embeddings_initializer=self._embeddings,
                dtype=self.dtype_policy,
            )
        self.layer_inputs = None
        if side.layer_inputs is not None:
            self.layer_inputs = layer_of(side.layer_inputs)(
                side.layer_inputs,
                side.num_layers,
                norm=side.block.norm,
                embeddings_initializer=self._embeddings,
                kernel_initializer=kernel_initializer(config, initializer),
                name="layer_inputs",
                dtype=self.dtype_policy,
            )
        self.make_rest(initializer)

    def build(self, input_shape=None):
        if self.token_projection is not None:
            self.token_projection.build((None, None, self.config.embedding_dim))
        if self.segment_embedding is not None:
            self.segment_embedding.build((None, None, self._width))
        if self.layer_inputs is not None:
            self.layer_inputs.build((None, None), (None, None, self.config.hidden_dim))
        if self.config.only_side.input.class_token:
            shape = (self._width,)
            self.class_token = self.add_weight(shape, self._embeddings, name="input_class_token")
        super().build(input_shape)

    def call(self, inputs, cache_positions=None, layer_inputs: bool = True, training: bool = False):
        segment_ids, positions = inputs.get("segment_ids"), inputs.get("position_ids")
        if self.segment_embedding is None and not self.compares_segments:
            refuse_unused("the model has no segments.", segment_ids=segment_ids)
        if not self._has_positions and inputs.get("pack_ids") is None:
            # Packed rows have positions of their own with any model.
            refuse_unused("the model has no positions.", position_ids=positions)
        if cache_positions is not None:
            refuse_unused("the cache counts the positions.", position_ids=positions)
            positions = cache_positions
            if self._num_learned is not None:
                # Drafts and tokens of finished rows, which are discarded, may lie past the end.
                positions = ops.minimum(positions, self._num_learned - 1)
        elif positions is None:
            positions = self._counted_positions(inputs["token_ids"])
        x = inputs.get("token_embeddings")
        x = self.token_embedding(inputs["token_ids"]) if x is None else x
        if self._dropped_id is not None:
            x = x * ops.cast(self._dropout_factors(inputs), x.dtype)
        x = x if self.token_projection is None else self.token_projection(x)
        vectors = None
        if self.layer_inputs is not None and layer_inputs:
            vectors = self.layer_inputs(inputs["token_ids"], embedded=x)
        if self.segment_embedding is not None:
            if segment_ids is None:
                segment_ids = ops.zeros(ops.shape(x)[:2], dtype="int32")
            x = x + self.segment_embedding(segment_ids)
        queries = None
        if self._has_query_stream:
            queries = self.finished(self.position_embedding(x, positions=positions), training)
            x = self.finished(self._behind(x, positions, inputs), training)
        elif self.class_token is not None:
            return self._with_class_token(self.with_positions(x, positions), inputs, training)
        else:
            x = self.positioned(x, positions, training)
        further = (inputs.get(name) for name in ("pack_ids", "global_positions"))
        padding = drop_trivial_mask(inputs.get("padding_mask"))
        compared = segment_ids if self.compares_segments else None
        options = {"layer_inputs": vectors, "segment_ids": compared, "queries": queries}
        return Embedded(x, padding, positions, *further, **options)

    def _with_class_token(self, x, inputs, training: bool):
        """Return the input of the blocks, with the class token behind the tokens of each text."""
        refuse_unused("a `class_token` is of one text.", pack_ids=inputs.get("pack_ids"))
        side, padding = self.config.only_side, drop_trivial_mask(inputs.get("padding_mask"))
        token = ops.cast(self.class_token, x.dtype) * side.input.factor(self._width)
        token = ops.broadcast_to(token, (ops.shape(x)[0], 1, self._width))
        if padding is not None:
            padding = ops.pad(ops.cast(padding, "bool"), ((0, 0), (0, 1)), constant_values=True)
        x = self.finished(ops.concatenate([x, token], axis=1), training)
        return Embedded(x, padding)

    def _behind(self, x, positions, inputs):
        """Add to each token the position that the token before it asked for, to the first none."""
        if positions is None:
            positions = sequence_positions(x)
        if inputs.get("position_ids") is None:
            before = positions - 1
        else:
            positions = ops.cast(positions, "int32")
            before = ops.pad(positions[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
            packs = inputs.get("pack_ids")
            if packs is not None:
                packs = ops.cast(packs, "int32")
                same = ops.equal(packs[:, 1:], packs[:, :-1])
                same = ops.pad(same, ((0, 0), (1, 0)), constant_values=False)
                before = ops.where(same, before, -1)
        added = self.position_embedding(x, positions=ops.maximum(before, 0))
        return x + ops.where(before[..., None] < 0, ops.zeros((), added.dtype), added)

    def _dropout_factors(self, inputs):
        """Return the factor of each embedding if masks count as dropped, `(batch, length, 1)`.

        Source: Lin et al. 2022, "Language models of protein sequences at the scale of evolution
        enable accurate structure prediction", whose published code calls it token dropout.
        """
        ids, padding_mask, packs = map(inputs.get, ("token_ids", "padding_mask", "pack_ids"))
        kept = ops.not_equal(ids, self._dropped_id)
        real = ops.ones_like(kept) if padding_mask is None else ops.cast(padding_mask, "bool")
        tokens, counted = (ops.cast(each, "float32") for each in (real, real & kept))
        if packs is None:
            tokens, counted = (ops.sum(each, axis=1, keepdims=True) for each in (tokens, counted))
        else:
            same = ops.cast(ops.equal(packs[:, :, None], packs[:, None, :]), "float32")
            tokens, counted = (ops.einsum("bij,bj->bi", same, each) for each in (tokens, counted))
        factors = _KEPT_IN_TRAINING * tokens / ops.maximum(counted, 1.0)
        return ops.expand_dims(ops.where(kept, factors, 0.0), -1)

    def _counted_positions(self, token_ids):
        """Return positions that leave out padding, int `(batch, length)`; None means 0, 1, 2, ...

        Source: RoBERTa's published embeddings, which count from the token ids.
        """
        if self._uncounted_id is None:
            return None
        counted = ops.cast(ops.not_equal(token_ids, self._uncounted_id), "int32")
        return ops.cumsum(counted, axis=1) * counted - 1
