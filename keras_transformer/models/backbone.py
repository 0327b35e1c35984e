"""What every backbone shares: the config, the token embedding, presets, checks of the input."""

import contextlib
import contextvars
import os
from collections.abc import Iterator, Mapping
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.distribution.layout import check_config
from keras_transformer.layers.embedding import TokenEmbedding, VocabularyBias
from keras_transformer.layers.products import quick_products
from keras_transformer.models.inputs import check_inputs, named_inputs
from keras_transformer.models.stack import Stack, embedding_initializer
from keras_transformer.models.state import KeepsState
from keras_transformer.models.turns import TakesTurns, Turns, reads

_watched = contextvars.ContextVar("watched", default=(None, None))


@contextlib.contextmanager
def watch_states(backbone: "Backbone") -> Iterator[list]:
    """Within, what `backbone` returns is put in the list too: a task's call gives its logits.

    All of its states, also where the task needs only the first.
    """
    found = []
    token = _watched.set((backbone, found))
    try:
        yield found
    finally:
        _watched.reset(token)


class Backbone(TakesTurns, KeepsState, keras.Model):
    """Token ids to hidden states. `Encoder`, `Decoder` and `Seq2Seq` are the three kinds.

    All weights exist once the object does. `Backbone.from_preset` picks the kind by the config.

    In a functional model a backbone is one layer, and so are its methods `logits`, `pool` and
    `encode`: each is a call of the backbone that says which `part` of it is meant. So a file of
    the model has its weights once. (Its sub-layers, called by themselves beside it, would be layers
    of their own there.)

    Args:
        config: `TransformerConfig`.
        dtype: dtype or dtype policy, e.g. `"mixed_bfloat16"`. Defaults to Keras's.
        name: str.
    """

    kind: str  # The `config.kind` that a subclass serves.
    id_inputs: tuple[str, ...]  # Its inputs that hold token ids.
    input_names: tuple[str, ...] = (
        "token_ids", "padding_mask", "segment_ids", "position_ids", "pack_ids",
    )  # fmt: skip

    def __init__(self, config: TransformerConfig, dtype=None, name: str | None = None, **kwargs):
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
        check_config(config)
        super().__init__(dtype=dtype, name=name or self.kind, autocast=False, **kwargs)
        self.config = config
        self.turns = Turns()
        self.family: str | None = None  # The published family that the weights came from.
        self.generation_config: dict | None = None  # What Transformers generates by with them.
        self.token_embedding = TokenEmbedding(
            config.vocabulary_size,
            config.embedding_dim,
            scale=config.scale_embedding,
            tie_weights=config.tie_embeddings,
            embeddings_initializer=embedding_initializer(config),
            name="token_embedding",
            dtype=self.dtype_policy,
        )
        self.output_bias = None
        if config.output_bias:
            self.output_bias = VocabularyBias(
                config.vocabulary_size, name="output_bias", dtype=self.dtype_policy
            )

    def _stack(self, name: str, causal: bool, cross_attention: bool, num_layers: int) -> Stack:
        return Stack(
            self.config,
            causal=causal,
            cross_attention=cross_attention,
            num_layers=num_layers,
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, input_shape=None):
        states = (None, None, self.config.embedding_dim)
        self.token_embedding.build((None, None))
        if self.output_bias is not None:
            self.output_bias.build((None, None, self.config.vocabulary_size))
        for stack in self.stacks:
            stack.build(states)

    def __call__(self, inputs, *args, **kwargs):
        if "part" in kwargs:
            return super().__call__(inputs, *args, **kwargs)
        inputs = self.checked_inputs(inputs, continues=kwargs.get("cache") is not None)
        watched, found = _watched.get()
        if watched is not self:
            return super().__call__(inputs, *args, **kwargs)
        kwargs.pop("first_only", None)
        outputs = super().__call__(inputs, *args, **kwargs)
        found.append(outputs)
        return outputs

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call  # The whole model recomputed saves nothing: its blocks are by themselves.

    def compute_output_spec(
        self, inputs, cache=None, first_only=False, part="states", training=None
    ):
        # Stated, not traced: a length that is not known yet has no place among learned positions.
        if cache is not None:
            return super().compute_output_spec(inputs, cache=cache, training=training)
        if part != "states":
            return keras.KerasTensor(self._part_shape(part, inputs), dtype=self.compute_dtype)
        batch, length = inputs[self.id_inputs[-1]].shape
        shape = (batch, 1 if first_only else length, self.config.hidden_dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    @property
    def stacks(self) -> list[Stack]:
        """The stacks of blocks, in the order of the forward pass."""
        raise NotImplementedError

    @property
    def cache_layers(self) -> list[tuple[int, int]]:
        """Of each layer that a cache keeps keys and values of, how many heads, and their width."""
        config = self.config
        layers = config.num_decoder_layers or config.num_layers
        return [(config.num_key_value_heads, config.head_dim)] * layers

    def _part_shape(self, part: str, inputs) -> tuple:
        """The shape of what the method of this name returns for symbolic inputs."""
        if part == "encode":
            return (*inputs["token_ids"].shape, self.config.hidden_dim)
        if part == "pool":
            return (inputs.shape[0], self.config.hidden_dim)
        return (*inputs.shape[:-1], self.config.vocabulary_size)

    def logits(self, hidden_states):
        """Vocabulary logits of states, `(..., embedding_dim)` to `(..., vocabulary_size)`."""
        if isinstance(hidden_states, keras.KerasTensor):
            return self(hidden_states, part="logits")
        if self.config.scale_logits:
            hidden_states = hidden_states * self.config.hidden_dim**-0.5
        with quick_products(hidden_states):
            logits = self.token_embedding(hidden_states, reverse=True)
        return logits if self.output_bias is None else self.output_bias(logits)

    def output_projection(self, hidden_states):
        """States and kernel `(vocabulary_size, embedding_dim)`: their product are the logits.

        But for the bias. For a loss that does not need all logits at once.
        """
        if self.config.scale_logits:
            hidden_states = hidden_states * self.config.hidden_dim**-0.5
        return hidden_states, self.token_embedding.output_kernel()

    def positions_of(self, token_ids):
        """Positions that leave out padding, int `(batch, length)`; None for 0, 1, 2, ...

        Source: RoBERTa's embeddings as published, which count from the token ids.
        """
        padding_id = self.config.position_padding_id
        if padding_id is None:
            return None
        counted = ops.cast(ops.not_equal(token_ids, padding_id), "int32")
        return ops.cumsum(counted, axis=1) * counted - 1

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
        names = (*self.input_names, *further)
        encoded = isinstance(inputs, Mapping) and inputs.get("encoder_states") is not None
        needed = self.id_inputs[-1:] if continues or encoded else self.id_inputs
        inputs = named_inputs(inputs, names, needed, taker or type(self).__name__)
        check_inputs(inputs, self.config)
        ids = {name: inputs.get(name) for name in self.id_inputs}
        self.check_ids(**{n: array for n, array in ids.items() if isinstance(array, np.ndarray)})
        return inputs

    def check_ids(self, **ids) -> None:
        """ValueError if NumPy ids are no integers, not in the vocabulary, or too long a row."""
        for name, array in ids.items():
            if array.dtype.kind not in "iu":
                raise ValueError(
                    f"`{name}` must hold token ids, which are integers, received {array.dtype}."
                )
            if array.size and not (
                int(array.min()) >= 0 and int(array.max()) < self.config.vocabulary_size
            ):
                raise ValueError(
                    f"`{name}` holds ids from {int(array.min())} to {int(array.max())}, but the "
                    f"vocabulary has the ids 0 to {self.config.vocabulary_size - 1}. Were they "
                    "made by the tokenizer of another model?"
                )
            if self.config.position == "learned":
                limit = self.config.max_sequence_length
                if array.shape[-1] > limit:
                    raise ValueError(
                        f"`{name}` has {array.shape[-1]} tokens a row, but the model has learned "
                        f"positions for {limit} only. Truncate the input."
                    )

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
                `initializer_range` and, but for learned positions, `max_sequence_length`.

        Returns:
            `Encoder`, `Decoder` or `Seq2Seq`, as the preset's config says.

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
        from keras_transformer.checkpoints import load_backbone

        return load_backbone(
            preset, backbone_class=cls, load_weights=load_weights, dtype=dtype, **config_overrides
        )

    @reads
    def save_to_preset(self, directory: str | os.PathLike, dtype: str | None = None) -> None:
        """Writes config and weights into `directory`, which `from_preset` then reads.

        Args:
            directory: path, made if missing. Nothing half-written stays after a failure.
            dtype: stored dtype, e.g. `"float16"`. Defaults to that of the weights.
        """
        from keras_transformer.checkpoints import save_preset

        save_preset(directory, backbone=self, dtype=dtype)

    def _repr_html_(self) -> str:
        from keras_transformer.checkpoints.card import model_table

        return model_table(self, self.config)

    def get_config(self) -> dict:
        return {
            "config": self.config.to_dict(),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "name": self.name,
            "family": self.family,
        }

    @classmethod
    def from_config(cls, config: dict, custom_objects=None) -> Self:
        values = dict(config)
        values["config"] = TransformerConfig.from_dict(values["config"])
        if isinstance(values.get("dtype"), dict):
            values["dtype"] = keras.dtype_policies.deserialize(values["dtype"])
        family = values.pop("family", None)
        backbone = cls(**values)
        backbone.family = family
        return backbone


def as_mask(ids, padding_mask):
    """The padding mask as bool, all True where none is given."""
    if padding_mask is None:
        return ops.ones(ops.shape(ids), dtype="bool")
    return ops.cast(padding_mask, "bool")
