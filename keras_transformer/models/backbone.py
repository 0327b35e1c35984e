"""What every backbone shares: the config, the token embedding, presets, checks of the input."""

import os
from collections.abc import Mapping
from typing import Any, Self

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.config_vectors import refuse_vectors
from keras_transformer.distribution.layout import check_config
from keras_transformer.kerashub_names import ForeignNames, check_options
from keras_transformer.kernels.products import quick_products
from keras_transformer.kernels.values import is_behind
from keras_transformer.layers.embedding import TokenEmbedding, VocabularyBias
from keras_transformer.layers.initializers import embedding_initializer
from keras_transformer.layers.stems import STEMS, Input, Stem, TokenStem
from keras_transformer.models.before_logits import output_transform, state_projection
from keras_transformer.models.block_run import COLLECTED, OpaqueCache
from keras_transformer.models.inputs import check_dtype, check_ids, check_inputs, named_inputs
from keras_transformer.models.quantized import refuse_quantized
from keras_transformer.models.stack import Stack
from keras_transformer.models.state import KeepsState
from keras_transformer.models.turns import ThreadSafe, Turns, reads
from keras_transformer.notebook import model_table
from keras_transformer.process import tune_once
from keras_transformer.registry import bound


class Backbone(ForeignNames, ThreadSafe, KeepsState, keras.Model):
    """Token ids to hidden states. `Encoder`, `Decoder`, `Seq2Seq` and `DualEncoder` are the kinds.

    All weights exist after construction. `Backbone.from_preset` picks the kind by the config.

    In a functional model a backbone and its methods `logits`, `pool` and `encode` are one layer:
    each method is a call of the backbone with another `part`. So a file of the model has its
    weights once. (Its sub-layers, called by themselves, would be further layers there.)

    Args:
        config: `TransformerConfig`.
        dtype: dtype or dtype policy, e.g. `"mixed_bfloat16"`. Defaults to Keras's.
        name: str.
        initializer: initializer of all kernels and embeddings. Defaults to those of the config.
        tokens: bool, whether the model has a token embedding.
    """

    kind: str  # The `config.kind` that a subclass serves.

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
        refuse_vectors(config)
        check_config(config)
        check_dtype(dtype)
        tune_once()  # Before the first array: JAX asks no later.
        super().__init__(dtype=dtype, name=name or self.kind, autocast=False, **kwargs)
        self.config = config
        self.turns = Turns()
        self.family: str | None = None  # The published family that the weights came from.
        self.generation_config: dict | None = None  # What Transformers generates by with them.
        self.initializer = initializer
        # The last side is the one whose states become logits.
        self.token_embedding = self.output_bias = None
        if tokens:
            self.token_embedding = self._token_embedding(
                config.sides[-1], "token_embedding", config.tie_embeddings
            )
        options = {"initializer": initializer, "dtype": self.dtype_policy}
        self.output_transform = output_transform(config.sides[-1], **options)
        self.state_projection = state_projection(config, **options)
        if config.output_bias:
            self.output_bias = VocabularyBias(
                config.sides[-1].vocabulary_size, name="output_bias", dtype=self.dtype_policy
            )

    def _token_embedding(self, side: TransformerConfig, name: str, tied: bool) -> TokenEmbedding:
        if side.vocabulary_size < 1:
            raise ValueError(
                "`vocabulary_size` must be at least 1 for a model of tokens, received "
                f"{side.vocabulary_size}. It is that of the tokenizer."
            )
        return TokenEmbedding(
            side.vocabulary_size,
            side.embedding_dim,
            scale=side.embedding_scale,
            tie_weights=tied,
            embeddings_initializer=embedding_initializer(side, self.initializer),
            name=name,
            dtype=self.dtype_policy,
        )

    def _side(
        self, config: TransformerConfig, token_embedding, cross_dim: int | None = None, name=None
    ) -> tuple[Stem | None, Stack]:
        """Stem and stack of a side. They share the name that weight files have for the side."""
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
        if self.output_bias is not None:
            self.output_bias.build((None, None, self.config.sides[-1].vocabulary_size))
        for stem, stack in self.sides.values():
            if not stem.built:  # One of a saved model is.
                stem.build((None, None))
            stack.build((None, None, stack.config.hidden_dim))

    def __call__(self, inputs=None, *args, **kwargs):
        if "part" in kwargs:
            return super().__call__(inputs, *args, **kwargs)
        cache = kwargs.get("cache")
        inputs = self.checked_inputs(inputs, continues=cache is not None)
        if cache is not None:
            kwargs["cache"] = OpaqueCache(cache)
        check_options(type(self).__name__, kwargs, ())
        collect = kwargs.get("collect", ())
        wrong = collect if isinstance(collect, str) else sorted({*collect} - {*COLLECTED})
        if wrong:
            raise ValueError(
                "`collect` is a tuple, which may hold 'states' and 'attention', and 'queries' and "
                f"'keys' of it, received {wrong!r}."
            )
        return super().__call__(inputs, *args, **kwargs)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # The whole model recomputed saves nothing: its blocks are by themselves.

    def compute_output_spec(
        self, inputs, cache=None, first_only=False, collect=(), part="states", training=None
    ):
        # Stated, not traced: a length that is not known yet has no place among learned positions.
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
        """The inputs without the mask of padding that causality hides from all real tokens.

        The kernel of causal attention then needs no mask. Only the states of padding differ, so it
        is for callers that use those of real tokens alone, as `weights`, one a position, show.
        """
        causal = [
            prefix
            for prefix, (_, stack) in self.sides.items()
            # Experts count the tokens that are real.
            if stack.blocks[0].causal and not any(block.has_experts for block in stack.blocks)
        ]
        names = {f"{prefix}padding_mask" for prefix in causal}
        unseen = {name for name in names if is_behind(inputs.get(name), weights)}
        return {name: array for name, array in inputs.items() if name not in unseen}

    @property
    def sides(self) -> dict[str, tuple[Stem, Stack]]:
        """Stem and stack of each side by the prefix of its inputs, in the order of the pass."""
        return {}

    @property
    def stacks(self) -> list[Stack]:
        """The stacks of blocks, in the order of the forward pass."""
        return [stack for _, stack in self.sides.values()]

    def _inputs_of_sides(self) -> list[tuple[str, tuple[Input, ...], TransformerConfig]]:
        return [(prefix, stem.inputs, s.config) for prefix, (stem, s) in self.sides.items()]

    @property
    def input_arrays(self) -> tuple[Input, ...]:
        """The arrays that the model takes: names, dtypes and shapes, as its stems say."""
        return tuple(
            each._replace(name=prefix + each.name)
            for prefix, arrays, _ in self._inputs_of_sides()
            for each in arrays
        )

    @property
    def id_inputs(self) -> tuple[str, ...]:
        """The names of the arrays that must be there: token ids, or what a stem takes for them."""
        return tuple(each.name for each in self.input_arrays if each.required)

    @property
    def cache_layers(self) -> list[tuple]:
        """Of each layer that a cache keeps: key and value heads, their width, and the window.

        A window of None, or none given, keeps everything.
        """
        layers = self.config.side("decoder").layers
        return [(layer.num_key_value_heads, layer.head_dim, layer.reach) for layer in layers]

    def prompt_tokens(self, inputs):
        """The ids and the mask that generation starts from."""
        name = self.id_inputs[-1]
        mask = inputs.get(name.replace("token_ids", "padding_mask"))
        return inputs[name], as_mask(inputs[name], mask)

    def step_inputs(self, tokens) -> dict:
        """The inputs of one further step, with `tokens` int `(rows, 1 or branches)`."""
        return {self.id_inputs[-1]: tokens}

    def _part_shape(self, part: str, inputs) -> tuple:
        """The shape of what the method of this name returns for symbolic inputs."""
        sides = self.config.sides
        if part == "encode":
            return (*inputs["token_ids"].shape, self.source_dim)
        if part == "pool":
            states = inputs["hidden_states"] if isinstance(inputs, Mapping) else inputs
            return (states.shape[0], sides[0].vector_width)
        return (*inputs.shape[:-1], sides[-1].vocabulary_size)

    def logits(self, hidden_states):
        """Vocabulary logits of states, `(..., embedding_dim)` to `(..., vocabulary_size)`.

        With `token_projection` the states are those of the blocks, `(..., hidden_dim)`.
        """
        if isinstance(hidden_states, keras.KerasTensor):
            return self(hidden_states, part="logits")
        hidden_states = self._before_logits(hidden_states)
        with quick_products(hidden_states):
            logits = self.token_embedding(hidden_states, reverse=True)
        logits = logits if self.output_bias is None else self.output_bias(logits)
        cap = self.config.logit_soft_cap
        return logits if cap is None else cap * ops.tanh(logits / cap)

    @property
    def logits_are_a_product(self) -> bool:
        """Whether logits are the product that `output_projection` gives, and a bias."""
        quantized = self.token_embedding.quantization_mode is not None
        capped = self.config.logit_soft_cap is not None
        return type(self).logits is Backbone.logits and not quantized and not capped

    def output_projection(self, hidden_states):
        """States and kernel `(vocabulary_size, embedding_dim)`: the logits are their product.

        The bias is to be added. For a loss that does not need all logits at once.
        """
        return self._before_logits(hidden_states), self.token_embedding.output_kernel()

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
        """A dict of arrays by their names here, see `models.inputs`.

        Args:
            inputs: dict of arrays or tensors; Transformers' names are known too.
            continues: bool, whether there is a cache: then an encoder's tokens may be missing.
            further: names that a task takes beside the backbone's.
            taker: str, the class that errors name. Defaults to the backbone's.

        Raises:
            ValueError: for unknown or missing names, shapes that do not agree, and values of NumPy
                arrays that are out of range.
        """
        names = (*(each.name for each in self.input_arrays), *further)
        encoded = isinstance(inputs, Mapping) and inputs.get("encoder_states") is not None
        needed = self.id_inputs[-1:] if continues or encoded else self.id_inputs
        needed = self.needed_inputs(inputs, needed)
        inputs = named_inputs(inputs, names, needed, taker or type(self).__name__)
        for prefix, arrays, config in self._inputs_of_sides():
            check_inputs(inputs, arrays, prefix, config)
        return inputs

    def needed_inputs(self, inputs, needed: tuple[str, ...]) -> tuple[str, ...]:
        return needed  # One of two sides may be enough, see `DualEncoder`.

    def check_ids(self, **ids) -> None:
        """ValueError if NumPy ids are no integers, not in the vocabulary, or too long a row."""
        most = max((x for *_, x in self._inputs_of_sides()), key=lambda x: x.vocabulary_size)
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
        """The backbone of a preset.

        Args:
            preset: a bundled name, a local directory, or `"hf://org/name[@revision]"`.
            load_weights: bool, False for fresh weights.
            dtype: dtype or dtype policy of the model, whatever the stored dtype.
            **config_overrides: values of the config to change, e.g. `dropout=0.0`. With weights
                only those that they do not depend on: `dropout`, `attention_dropout`,
                `initializer_range` and, except for learned positions, `max_sequence_length`.

        Returns:
            `Encoder`, `Decoder`, `Seq2Seq` or `DualEncoder`, as the preset's config says.

        Raises:
            ValueError: for an unknown preset (nearest names are suggested), a config or weights
                that do not fit, a value that is not that of the weights, or a preset of another
                kind than `cls`.

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

    @reads
    def save_to_preset(self, directory: str | os.PathLike, dtype: str | None = None) -> None:
        """Writes config and weights into `directory`, which `from_preset` then reads.

        Args:
            directory: path, made if missing. Nothing half-written stays after a failure.
            dtype: stored dtype, e.g. `"float16"`. Defaults to that of the weights.
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
    """The padding mask as bool, all True where none is given."""
    if padding_mask is None:
        return ops.ones(ops.shape(ids), dtype="bool")
    return ops.cast(padding_mask, "bool")
