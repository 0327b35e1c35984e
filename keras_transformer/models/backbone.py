"""Base class of all backbones: config, token embedding, presets and checks of the input."""

import contextlib
import functools
import os
from collections.abc import Mapping
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_transformer.config import Learned, Side, TransformerConfig
from keras_transformer.distribution.layout import check_config, spread_batch
from keras_transformer.distribution.spread import MESHES
from keras_transformer.kernels.process import tune_once
from keras_transformer.kernels.products import onednn_matmul_scope
from keras_transformer.kernels.values import is_right_padded
from keras_transformer.layers.arguments import (
    agree,
    check_range,
    embedding_initializer,
    kernel_initializer,
    known_shape,
    show_shape,
)
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.embedding import TokenEmbedding, VocabularyBias
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.layers.stems import STEMS, Input, Stem, TokenStem
from keras_transformer.layers.vector import SideVector
from keras_transformer.models.runtime.quantized import refuse_quantized
from keras_transformer.models.runtime.read_write_lock import ReadWriteLock, copies
from keras_transformer.models.runtime.runtime import Runtime
from keras_transformer.models.stack import COLLECTED, OpaqueCache, Stack
from keras_transformer.support.checking import describe, nearest, shorten
from keras_transformer.support.foreign_names import check_options
from keras_transformer.support.notebook import model_table
from keras_transformer.support.registry import bound

_DTYPES = ("float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")
# Logit of a token that is left out: finite in float16, so that no loss is NaN.
_NEVER_WRITTEN = -6e4

# Transformers' names of the same arrays.
_PUBLISHED_NAMES = {
    "input_ids": "token_ids",
    "attention_mask": "padding_mask",
    "token_type_ids": "segment_ids",
}


def check_dtype(dtype: Any) -> None:
    """Raise ValueError unless `dtype` is None, a float dtype policy, or the name of a policy."""
    policy = None
    with contextlib.suppress(ValueError, TypeError, AttributeError):  # Keras's errors say less
        policy = dtype if dtype is None else keras.dtype_policies.get(dtype)
    if dtype is not None and (policy is None or "float" not in str(policy.compute_dtype)):
        raise ValueError(
            "`dtype` must be a dtype of floats, such as 'float32', or a dtype policy, such as "
            f"'mixed_bfloat16', received {describe(dtype)}.{nearest(dtype, _DTYPES)} `from_preset` "
            "also takes 'int8' and 'int4'."
        )


def published_name(name: Any) -> Any:
    """Return this package's name of an array that Transformers calls `name`, else `name`."""
    return _PUBLISHED_NAMES.get(name, name) if isinstance(name, str) else name


_HINT_FOR_TEXTS = (
    " Texts do not go into a dict: pass them as they are to the methods of a task, such as "
    "`fit(texts, labels)`, `predict(texts)` and, if the task generates, `generate(texts)`."
)


def named_inputs(
    inputs: Any, names: tuple[str, ...], needed: tuple[str, ...], taker: str
) -> dict[str, Any]:
    """Return the arrays under this package's names, without those that are None.

    Args:
        inputs: the argument that should be a dict of arrays. Transformers' names are accepted too.
        names: known names.
        needed: required names.
        taker: str, the class that takes the arrays, as errors call it.

    Raises:
        ValueError: if it is not a dict, or a name is unknown or missing.
        TypeError: if it is None.
    """
    if inputs is None:
        raise TypeError(
            f"{taker} takes one dict of arrays, such as {' and '.join(map(repr, needed))}: give "
            "`inputs`, and not `**inputs`."
        )
    if not isinstance(inputs, Mapping):
        raise ValueError(
            f"{taker} takes a dict of arrays, such as {' and '.join(map(repr, needed))}, received "
            f"{describe(inputs)}.{_HINT_FOR_TEXTS if _is_text(inputs) else ''}"
        )
    published = _published(names)
    named, unknown = {}, []
    for name, array in inputs.items():
        own = published.get(name, name) if isinstance(name, str) else name
        if own != name and own in inputs:
            raise ValueError(
                f"`{name}` and `{own}` are two names of one array, received both. Give one."
            )
        if own not in names:
            unknown.append(own)
        elif array is not None:
            named[own] = array
    missing = [name for name in needed if name not in named]
    if missing:
        raise ValueError(
            f"{taker} needs a dict with {' and '.join(map(repr, needed))}, received one with "
            f"{shorten(sorted(map(str, inputs)))}."
            + (_HINT_FOR_TEXTS if any(map(_is_text, inputs.values())) else "")
        )
    if unknown:
        labels = " Labels are `y`." if unknown[0] in ("label", "labels") else ""
        raise ValueError(
            f"{taker} takes no {shorten(unknown[0])}.{nearest(unknown[0], names)}{labels} It takes "
            f"a dict with {', '.join(map(repr, names))}. Leave out arrays for other purposes."
        )
    return named


def _is_text(value: Any) -> bool:
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return isinstance(first, str)


def check_inputs(
    inputs: Mapping[str, Any], arrays: tuple[Input, ...], prefix: str, side: Side
) -> None:
    """Raise ValueError if the shape or the values of an array would give meaningless states.

    Args:
        inputs: arrays or tensors by name, as returned by `named_inputs`.
        arrays: the arrays that the stem of the side takes.
        prefix: prefix of their names, such as `"encoder_"`.
        side: the config of the side.
    """
    main = next((prefix + array.name for array in arrays if array.required), None)
    like = None if inputs.get(main) is None else _shape_of(main, inputs[main])
    for known in arrays:
        name = prefix + known.name
        if inputs.get(name) is None:
            continue
        array, shape = inputs[name], _shape_of(name, inputs[name])
        if shape is None:
            continue
        _check_shape(name, shape, known)
        rows_may_be_one = known.name in ("position_ids", "global_positions")
        axes = 2 if known.of_tokens else 1
        if like is not None and not agree(shape[:axes], like[:axes], rows_may_be_one):
            raise ValueError(
                f"`{name}` must have the shape of `{main}`, {show_shape(like)}, received "
                f"{show_shape(shape)}."
            )
        if isinstance(array, np.ndarray):
            positioned = inputs.get(f"{prefix}position_ids") is not None
            _check_values(name, known, array, side, positioned)
            of_places = known.name == "global_positions"
            if of_places and like is not None and isinstance(like[1], int):
                check_range(
                    name, array, -1, like[1] - 1, "-1 is an empty place, and rows have the places"
                )


def check_states(name: str, states: Any, width: int) -> None:
    """Raise ValueError unless the states are float `(batch, length, width)`."""
    shape = _shape_of(name, states)
    fits = shape is None or (len(shape) == 3 and shape[2] in (None, width))
    if not fits or (isinstance(states, np.ndarray) and states.dtype.kind not in "fV"):
        shown = "" if shape is None else f", shape {show_shape(shape)}"
        raise ValueError(
            f"`{name}` must be float (batch, length, {width}), received {states.dtype}{shown}."
        )


def check_ids(name: str, array: np.ndarray, side: Side, positioned: bool = False) -> None:
    """Raise ValueError unless ids are integers of the vocabulary and the rows are not too long.

    Rows that are `positioned` have given positions, such as those of several documents in a row.
    """
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"`{name}` must hold token ids, which are integers, received {array.dtype}."
        )
    size = side.input.vocabulary_size
    if array.size and not (int(array.min()) >= 0 and int(array.max()) < size):
        raise ValueError(
            f"`{name}` holds ids from {int(array.min())} to {int(array.max())}, but the "
            f"vocabulary has the ids 0 to {size - 1}. Were they made by the tokenizer of another "
            "model?"
        )
    limit = side.max_sequence_length
    if isinstance(side.position, Learned) and not positioned and array.shape[-1] > limit:
        raise ValueError(
            f"`{name}` has {array.shape[-1]} tokens a row, but the model has learned positions "
            f"for {limit} only. Truncate the input."
        )


def check_positions(name: str, positions: Any, ids: Any) -> None:
    """Raise ValueError unless `positions` are int `(batch, count)`, places in rows of `ids`.

    They may also be a mask, bool `(batch, length)`.
    """
    shape, like = _shape_of(name, positions), _shape_of("ids", ids)
    if shape is not None and (len(shape) != 2 or (like and not agree(shape[:1], like[:1]))):
        raise ValueError(
            f"`{name}` must be of shape (batch, count), with as many rows as the ids, received "
            f"{show_shape(shape)}."
        )
    numbers = isinstance(positions, np.ndarray) and positions.dtype.kind != "b"
    if numbers and like and isinstance(like[1], int):
        check_range(name, positions, 0, like[1] - 1, "the rows have the places")


def _published(names: tuple[str, ...]) -> dict[str, str]:
    """Map Transformers' names to the ones in `names`; names without prefix are the encoder's."""
    published = dict(_PUBLISHED_NAMES)
    if "decoder_token_ids" in names:
        published = {theirs: f"encoder_{own}" for theirs, own in _PUBLISHED_NAMES.items()}
        published |= {f"decoder_{t}": f"decoder_{own}" for t, own in _PUBLISHED_NAMES.items()}
    return {theirs: own for theirs, own in published.items() if own in names}


def _check_shape(name: str, shape: tuple, known: Input) -> None:
    sizes = ("batch", *("length" if i == 0 else "dim" for i in range(len(known.shape))))
    wanted = tuple(
        n if size is None else size for n, size in zip(sizes, (None, *known.shape), strict=True)
    )
    if len(shape) != len(wanted) or not agree(shape, wanted):
        raise ValueError(
            f"`{name}` must be of shape {show_shape(wanted)}, received {show_shape(shape)}."
        )


def _shape_of(name: str, array: Any) -> tuple | None:
    """Return the shape of an array or tensor; None if TensorFlow does not know it yet."""
    if isinstance(array, (list, tuple)) or not hasattr(array, "shape"):
        raise ValueError(
            f"`{name}` must be an array, received a {type(array).__name__}. Pad the rows to one "
            "length and make them a NumPy array, or give strings."
        )
    return known_shape(array)


def _check_values(name: str, known: Input, array: np.ndarray, side: Side, positioned: bool) -> None:
    """Raise ValueError if values are out of range, in one pass over the array."""
    kind = known.name
    if kind == "token_ids":
        check_ids(name, array, side, positioned)
    elif known.dtype == "bool":
        _check_mask(name, array, kind == "padding_mask")
    elif known.below is not None:
        check_range(name, array, 0, known.below - 1, "the model takes the numbers")
    elif kind == "segment_ids":
        most = max(side.input.segments, 1) - 1
        check_range(name, array, 0, most, "the model has the segments")
    elif kind == "position_ids":
        # RoBERTa counts real tokens from 0, and padding is one before that.
        learned = isinstance(side.position, Learned)
        least = -1 if learned and side.position.padding_id is not None else 0
        most = side.max_sequence_length - 1 if learned else np.iinfo("int32").max
        check_range(name, array, least, most, "the model has the positions")
    elif known.dtype.startswith("float"):
        if array.dtype.kind not in "fV" or not np.isfinite(array.astype("float32")).all():
            numbers = array.dtype.kind in "fV"
            held = "some that are NaN, infinite or too large" if numbers else str(array.dtype)
            raise ValueError(f"`{name}` must hold finite floats, received {held}.")
    elif kind in ("pack_ids", "global_positions"):
        most = np.iinfo("int32").max
        check_range(name, array, -1, most, "padding is -1, and packed rows have the numbers")
    else:
        limits = np.iinfo("int32")
        check_range(name, array, limits.min, limits.max, "int32 has the numbers")


def _check_mask(name: str, array: np.ndarray, of_padding: bool) -> None:
    if array.dtype.kind == "b":
        return
    meant = (
        "True, or 1, for a token and False, or 0, for padding" if of_padding else "True or False"
    )
    if array.dtype.kind not in "iuf" or not ((array == 0) | (array == 1)).all():
        held = shorten(np.unique(array)[:5].tolist()) if array.dtype.kind in "iuf" else "others"
        raise ValueError(f"`{name}` must be {meant}; received {array.dtype} values such as {held}.")


class Backbone(Runtime):
    """Base class of `Encoder`, `Decoder`, `Seq2Seq` and `DualEncoder`: inputs to hidden states.

    All weights exist after construction. `Backbone.from_preset` picks the class by the config.

    In a functional model a backbone and its methods `logits`, `pool` and `encode` are one layer:
    each method is a call of the backbone with another `part`, so that a file of the model has its
    weights once. (Sub-layers that are called directly would be further layers there.)

    Args:
        config: `TransformerConfig`.
        dtype: dtype or dtype policy, e.g. `"mixed_bfloat16"`. Defaults to Keras's.
        name: str.
        initializer: initializer of all kernels and embeddings. Defaults to the config's.
        tokens: bool, whether the model has a token embedding.
    """

    kind: str  # The `config.kind` that a subclass serves.
    shared_by: int = 1  # processes that share the heads, while they compute together

    def __init__(
        self,
        config: TransformerConfig,
        dtype=None,
        name: str | None = None,
        initializer=None,
        tokens: bool = True,
        **kwargs,
    ):
        if not isinstance(config, TransformerConfig):
            raise ValueError(
                f"`config` must be a TransformerConfig, received {type(config).__name__}. Make "
                "one with `TransformerConfig(...)` or `TransformerConfig.from_dict(...)`."
            )
        if config.kind != self.kind:
            raise ValueError(
                f"{type(self).__name__} needs a config of kind={self.kind!r}, received "
                f"{config.kind!r}. `keras_transformer.models.build_backbone` picks the class."
            )
        if config.kind != "dual" and any(s.only_side.bidirectional for s in config.sides):
            raise ValueError(f"`bidirectional` needs kind='dual', received kind={config.kind!r}.")
        if MESHES or keras.distribution.distribution():
            check_config(config)
        check_dtype(dtype)
        tune_once()  # before the first array, since JAX reads these settings only once
        super().__init__(dtype=dtype, name=name or self.kind, autocast=False, **kwargs)
        self.config = config
        self.weights_lock = ReadWriteLock()
        self.family: str | None = None  # The published family that the weights come from.
        self.quantized_by: str | None = None  # The scheme of the file, if matrices stay as stored.
        self.generation_config: dict | None = None  # Options of Transformers for generation.
        self.initializer = initializer
        # The states of the last side become logits.
        self.token_embedding = self.output_bias = self.written_logits = None
        if tokens:
            self.token_embedding = self._token_embedding(
                config.sides[-1],
                "token_embedding",
                config.logits.tie or config.logits.left_out > 0,
            )
        options = {"initializer": initializer, "dtype": self.dtype_policy}
        self.output_transform = output_transform(config.sides[-1], **options)
        self.state_projection = state_projection(config, **options)
        if config.logits.left_out:
            written = config.last_side.input.vocabulary_size - config.logits.left_out
            bias = {"use_bias": config.logits.bias}
            self.written_logits = dense("written_logits", written, config, **options, **bias)
        elif config.logits.bias:
            self.output_bias = VocabularyBias(
                config.last_side.input.vocabulary_size, name="output_bias", dtype=self.dtype_policy
            )

    def _token_embedding(self, side: TransformerConfig, name: str, tied: bool) -> TokenEmbedding:
        tokens, width = side.only_side.input, side.only_side.embedding_dim
        size = getattr(tokens, "vocabulary_size", 0)
        if size < 1:
            raise ValueError(
                "`vocabulary_size` must be at least 1 for a model of tokens, received "
                f"{size}. It is the size of the tokenizer's vocabulary."
            )
        return TokenEmbedding(
            size,
            width,
            scale=tokens.factor(width),
            tie_weights=tied,
            replaced_id=tokens.replaced_id,
            embeddings_initializer=embedding_initializer(side, self.initializer),
            name=name,
            dtype=self.dtype_policy,
        )

    def _side(
        self, config: TransformerConfig, token_embedding, cross_dim: int | None = None, name=None
    ) -> tuple[Stem | None, Stack]:
        """Make the stem and the stack of a side. Both have the side's name in weight files."""
        options = {"initializer": self.initializer, "dtype": self.dtype_policy}
        options["name"] = name or config.kind
        if config.stem is not None:
            stem = STEMS[config.stem.kind](config, **options)
        else:
            stem = (
                None if token_embedding is None else TokenStem(config, token_embedding, **options)
            )
        return stem, Stack(config, cross_dim, **options)

    def build(self, input_shape=None):
        if self.token_embedding is not None:
            self.token_embedding.build((None, None))
        for layer in (*self.output_transform, self.state_projection):
            if layer is not None:
                layer.build((None, None, self.config.sides[-1].hidden_dim))
        if self.written_logits is not None:
            self.written_logits.build((None, None, self.config.sides[-1].embedding_dim))
        if self.output_bias is not None:
            self.output_bias.build((None, None, self.config.sides[-1].vocabulary_size))
        for stem, stack in self.sides.values():
            if not stem.built:  # a saved model's stem is built already
                stem.build((None, None))
            stack.build((None, None, stack.side.width(0)))

    def __call__(self, inputs=None, *args, **kwargs):
        if "part" in kwargs:
            return super().__call__(inputs, *args, **kwargs)
        cache = kwargs.get("cache")
        inputs = self.checked_inputs(inputs, continues=cache is not None)
        if cache is not None:
            kwargs["cache"] = OpaqueCache(cache)
        if further := kwargs.keys() - {"cache", "collect", "first_only", "training"}:
            check_options(type(self).__name__, further, ())
        collect = kwargs.get("collect", ())
        wrong = collect if isinstance(collect, str) else sorted({*collect} - {*COLLECTED})
        if wrong:
            raise ValueError(
                "`collect` must be a tuple of 'states', 'attention', 'queries' and "
                f"'keys', received {wrong!r}."
            )
        if self.shared_by > 1 and {*collect} - {"states"}:
            raise ValueError(
                f"Each of the {self.shared_by} processes that share the work of this model has "
                f"some of its heads: `collect` can be 'states', received {collect!r}."
            )
        return super().__call__(inputs, *args, **kwargs)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # Recomputing the whole model saves nothing: its blocks do it themselves.

    def compute_output_spec(
        self, inputs, cache=None, first_only=False, collect=(), part="states", training=None
    ):
        # Computed here, since learned positions cannot be traced with an unknown length.
        untold = self.token_embedding is None and part == "states"
        if cache is not None or collect or untold:
            given = {"cache": cache} if cache is not None else {}
            given |= {"collect": collect} if collect else {}
            return super().compute_output_spec(inputs, **given, training=training)
        if part != "states":
            return keras.KerasTensor(self._part_shape(part, inputs), dtype=self.compute_dtype)
        batch, length = inputs[self.id_inputs[-1]].shape[:2]
        shape = (batch, 1 if first_only else length, self.config.sides[-1].hidden_dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def without_unseen_padding(self, inputs: dict, weights=None) -> dict:
        """Drop masks whose padding is hidden from all real tokens by causality.

        The kernel of causal attention then needs no mask. This changes the states of padding, so
        the mask stays if `weights`, one per position, show that the caller uses such a state.
        """
        causal = [
            prefix
            for prefix, (_, stack) in self.sides.items()
            # Experts count the real tokens.
            if stack.blocks[0].causal and not any(block.has_experts for block in stack.blocks)
        ]
        names = {f"{prefix}padding_mask" for prefix in causal}
        unseen = {name for name in names if is_right_padded(inputs.get(name), weights)}
        return {name: array for name, array in inputs.items() if name not in unseen}

    @property
    def sides(self) -> dict[str, tuple[Stem, Stack]]:
        """Stem and stack of each side, by the prefix of its inputs, in the order they are run."""
        return {}

    @property
    def known_sizes_from(self) -> int | None:
        """Number of dimensions from which a trace must know the sizes of inputs, if there is one.

        Such inputs are images, videos or series. The number of rows may stay open.
        """
        found = [stem.known_sizes_from for stem, _ in self.sides.values()]
        return min((rank for rank in found if rank is not None), default=None)

    @property
    def stacks(self) -> list[Stack]:
        """The stacks of blocks, in the order of the forward pass."""
        return [stack for _, stack in self.sides.values()]

    def _inputs_of_sides(self) -> list[tuple[str, tuple[Input, ...], Side]]:
        return [(prefix, stem.inputs, s.side) for prefix, (stem, s) in self.sides.items()]

    @property
    def input_arrays(self) -> tuple[Input, ...]:
        """Names, dtypes and shapes of the arrays that the model takes, from its stems."""
        return tuple(
            each._replace(name=prefix + each.name)
            for prefix, arrays, _ in self._inputs_of_sides()
            for each in arrays
        )

    @property
    def id_inputs(self) -> tuple[str, ...]:
        """Names of the required arrays: token ids, or the arrays that a stem takes instead."""
        return tuple(each.name for each in self.input_arrays if each.required)

    @property
    def cache_layers(self) -> list[tuple]:
        """Tuples `(key_value_heads, head_dim, window)`, one for each cached layer.

        With a window of None, or without one, the cache keeps all tokens. A recurrent mixer has a
        fourth item, the shapes of its states, see `config.Mixer.cached`.
        """
        return [(heads // self.shared_by, *rest) for heads, *rest in self._cached_sizes]

    @functools.cached_property
    def _cached_sizes(self) -> list[tuple]:
        side = self.config.decoder
        return [block.mixer.cached(side.hidden_dim) for block in side.blocks]

    def prompt_tokens(self, inputs):
        """Return the ids and the mask that generation starts from."""
        name = self.id_inputs[-1]
        mask = inputs.get(name.replace("token_ids", "padding_mask"))
        return inputs[name], as_mask(inputs[name], mask)

    def step_inputs(self, tokens) -> dict:
        """Return the inputs of one more step for `tokens`, int `(rows, 1 or branches)`."""
        return {self.id_inputs[-1]: tokens}

    def _part_shape(self, part: str, inputs) -> tuple:
        """Return the output shape of the method with this name for symbolic inputs."""
        sides = self.config.sides
        if part == "encode":
            return (*inputs["token_ids"].shape, self.source_dim)
        if part == "pool":
            states = inputs["hidden_states"] if isinstance(inputs, Mapping) else inputs
            return (states.shape[0], sides[0].vector_width)
        return (*inputs.shape[:-1], sides[-1].vocabulary_size)

    def logits(self, hidden_states):
        """Compute vocabulary logits, `(..., embedding_dim)` to `(..., vocabulary_size)`.

        With `token_projection` the blocks' states, `(..., hidden_dim)`, are projected first.
        """
        if isinstance(hidden_states, keras.KerasTensor):
            return self(hidden_states, part="logits")
        hidden_states = self._before_logits(hidden_states)
        if self.written_logits is not None:
            logits = self.written_logits(hidden_states)
            behind = [(0, 0)] * (len(logits.shape) - 1) + [(0, self.config.logits.left_out)]
            return ops.pad(logits, behind, constant_values=_NEVER_WRITTEN)
        with onednn_matmul_scope(hidden_states):
            logits = self.token_embedding(hidden_states, reverse=True)
        logits = logits if self.output_bias is None else self.output_bias(logits)
        cap = self.config.logit_soft_cap
        return logits if cap is None else cap * ops.tanh(logits / cap)

    @property
    def logits_are_a_product(self) -> bool:
        """Whether logits are the product of `output_projection`, plus a bias."""
        embedding = self.token_embedding
        quantized = embedding.quantization_mode is not None and not embedding.float_states
        own = self.config.logit_soft_cap is not None or self.written_logits is not None
        return type(self).logits is Backbone.logits and not quantized and not own

    def output_projection(self, hidden_states, joined: bool = True):
        """Return states and the kernel `(vocabulary_size, embedding_dim)` that maps them to logits.

        The bias is not included. Useful for a loss that does not need all logits at once. Without
        `joined`, processes that share the vocabulary get their own words of the kernel alone.
        """
        states = spread_batch(self._before_logits(hidden_states))
        return states, self.token_embedding.output_kernel(joined)

    def _before_logits(self, hidden_states):
        for layer in (*self.output_transform, self.state_projection):
            hidden_states = hidden_states if layer is None else layer(hidden_states)
        scale = self.config.sides[-1].logit_scale
        return hidden_states if scale == 1 else hidden_states * scale

    def checked_inputs(
        self,
        inputs,
        continues: bool = False,
        further: tuple[str, ...] = (),
        taker: str | None = None,
    ) -> dict[str, Any]:
        """Check the inputs and return a dict of arrays under this package's names.

        Args:
            inputs: dict of arrays or tensors; Transformers' names are accepted too.
            continues: bool, whether there is a cache: then an encoder's tokens may be missing.
            further: names that a task takes beside the backbone's.
            taker: str, the class that errors name. Defaults to the backbone's.

        Raises:
            ValueError: if names are unknown or missing, shapes do not agree, or values of NumPy
                arrays are out of range.
        """
        names = (*(each.name for each in self.input_arrays), *further)
        encoded = isinstance(inputs, Mapping) and inputs.get("encoder_states") is not None
        needed = self.id_inputs[-1:] if continues or encoded else self.id_inputs
        needed = self.needed_inputs(inputs, needed)
        inputs = named_inputs(inputs, names, needed, taker or type(self).__name__)
        for prefix, arrays, side in self._inputs_of_sides():
            check_inputs(inputs, arrays, prefix, side)
        return inputs

    def needed_inputs(self, inputs, needed: tuple[str, ...]) -> tuple[str, ...]:
        return needed  # one of two sides may be enough, see `DualEncoder`

    def check_ids(self, **ids) -> None:
        """Raise ValueError if NumPy ids are not integers of the vocabulary or too long."""
        sides = [side for *_, side in self._inputs_of_sides()]
        most = max(sides, key=lambda side: getattr(side.input, "vocabulary_size", 0))
        for name, array in ids.items():
            check_ids(name, array, most)

    @classmethod
    def from_preset(
        cls,
        preset: str | os.PathLike,
        load_weights: bool = True,
        dtype=None,
        **config_overrides: Any,
    ) -> Self:
        """Load the backbone of a preset.

        Args:
            preset: a bundled name, a local directory, or `"hf://org/name[@revision]"`.
            load_weights: bool, False for fresh weights.
            dtype: dtype or dtype policy of the model, whatever the stored dtype; or of integer
                weights, `"int8"`, `"int4"`, `"int4/64"` (groups of 64), `"int4_from_bfloat16"`:
                each layer is then quantized as soon as it is loaded.
                Without one, quantized matrices that layers of int4 and int8 can hold stay
                as they are stored; with one, all are unpacked to it.
            **config_overrides: config values to change, e.g. `dropout=0.0`. With weights only
                values that they do not depend on: `dropout`, `attention_dropout`,
                `initializer_range` and, except with learned positions, `max_sequence_length`.

        Returns:
            `Encoder`, `Decoder`, `Seq2Seq` or `DualEncoder`, as the preset's config says.

        Raises:
            ValueError: if the preset is unknown (the nearest names are suggested) or of another
                kind than `cls`, or if the config, the weights or an override do not fit.

        Example:
        ```python
        import keras_transformer as kt

        backbone = kt.Backbone.from_preset("minilm_l6_en", dropout=0.0)
        assert backbone.config.hidden_dim == 384
        ```
        """
        return bound("load_backbone")(
            preset, backbone_class=cls, load_weights=load_weights, dtype=dtype, **config_overrides
        )

    @copies
    def save_to_preset(self, directory: str | os.PathLike, dtype: str | None = None) -> None:
        """Write config and weights to `directory`, which `from_preset` can then read.

        Args:
            directory: path, made if missing. A failure leaves nothing half-written.
            dtype: stored dtype, e.g. `"float16"`. Defaults to the dtype of the weights.
        """
        bound("save_preset")(directory, backbone=self, dtype=dtype)

    def _repr_html_(self) -> str:
        return model_table(self, self.config)

    def get_config(self) -> dict:
        refuse_quantized(self)
        own = {}
        if self.token_embedding is None and self.config.stem is None:
            own["stem"] = keras.saving.serialize_keras_object(self.stem)
        return {
            "config": self.config.to_dict(),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "name": self.name,
            "family": self.family,
            "generation_config": self.generation_config,
            **own,
        }

    @classmethod
    def from_config(cls, config: dict, custom_objects=None) -> Self:
        values = dict(config)
        values["config"] = TransformerConfig.from_dict(values["config"])
        if isinstance(values.get("dtype"), dict):
            values["dtype"] = keras.dtype_policies.deserialize(values["dtype"])
        if isinstance(values.get("stem"), dict):
            values["stem"] = keras.saving.deserialize_keras_object(values["stem"])
        origin = {name: values.pop(name, None) for name in ("family", "generation_config")}
        backbone = cls(**values)
        for name, known in origin.items():
            setattr(backbone, name, known)
        return backbone


def as_mask(ids, padding_mask):
    """Return the padding mask as bool, all True if it is None."""
    if padding_mask is None:
        return ops.ones(ops.shape(ids), dtype="bool")
    return ops.cast(padding_mask, "bool")


def dense(name: str, units: int, config: TransformerConfig, initializer, dtype, **options) -> Dense:
    """Make a dense layer with the initial weights of a config."""
    initial = kernel_initializer(config, initializer)
    return Dense(units, kernel_initializer=initial, name=name, dtype=dtype, **options)


def state_projection(config: TransformerConfig, initializer, dtype) -> Dense | None:
    """Make the projection of states to the embedding's width, None without `token_projection`."""
    side = config.last_side
    if side.embedding_projection != "tokens":
        return None
    units = side.embedding_dim
    return dense("state_projection", units, config, initializer, dtype, use_bias=False)


def output_transform(config: TransformerConfig, initializer, dtype) -> list[keras.layers.Layer]:
    """Make the layers of `output_transform`, an empty list if the config has none.

    Source: Devlin et al. 2018, "BERT", the head of masked language models as published.
    """
    logits, side = config.logits, config.last_side
    if logits.transform is None:
        return []
    activation = get_activation(logits.transform)
    with no_inner_remat():
        norm = make_normalization(
            side.block.norm.type,
            side.block.norm.epsilon,
            name="output_transform_norm",
            dtype=dtype,
        )
        transform = dense(
            "output_transform",
            side.hidden_dim,
            config,
            initializer,
            dtype,
            activation=activation,
            use_bias=logits.transform_bias,
        )
    return [transform, norm]


class HasVector:
    """Mixin for a backbone with one side: `pool` makes one vector from the states of a row."""

    def make_vector(self) -> SideVector | None:
        """Make the vector layer, named after the side; None if the config has no pooling."""
        if self.config.last_side.vector is None:
            return None
        options = {"name": self.config.kind, "dtype": self.dtype_policy}
        return SideVector(self.config, self.initializer, **options)

    def pool(self, hidden_states, token_ids=None, padding_mask=None):
        """Pool the states of each row to a vector, `(batch, vector_width)`, as the config says.

        Args:
            hidden_states: float `(batch, length, hidden_dim)`, the states of the backbone.
            token_ids: int `(batch, length)`, for the pooling `"end"`.
            padding_mask: bool `(batch, length)`, True for real states, for the pooling
                `"attention"`. Defaults to all of them.

        Raises:
            ValueError: if the backbone has no vectors, or `"end"` lacks the ids.
        """
        if isinstance(hidden_states, keras.KerasTensor):
            given = {"token_ids": token_ids, "padding_mask": padding_mask}
            given = {name: each for name, each in given.items() if each is not None}
            return self(
                {"hidden_states": hidden_states, **given} if given else hidden_states, part="pool"
            )
        if self.vector is None:
            raise ValueError(
                f"This {type(self).__name__} has no vectors: its config has no `vector_pooling`."
            )
        if token_ids is None and self.config.vector_pooling == "end":
            raise ValueError("vector_pooling='end' needs the `token_ids` of the states.")
        return self.vector(hidden_states, token_ids=token_ids, padding_mask=padding_mask)

    def _pool_part(self, inputs):
        """Run `pool` as a part of `call`."""
        return self.pool(**inputs) if isinstance(inputs, Mapping) else self.pool(inputs)
