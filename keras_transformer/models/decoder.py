"""The decoder-only backbone (GPT-like)."""

import inspect

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.stems import TokenStem
from keras_transformer.models.backbone import Backbone, HasVector
from keras_transformer.models.stack import ForwardContext


class DecoderBase(Backbone):
    """Base class for a decoder of your own, which works with any task for decoders.

    A subclass makes its layers in `__init__`, ends it with `self.build()`, and has a `call` that
    takes inputs and an optional cache and calls the blocks through `ForwardContext`. The config
    determines the token embedding, the logits (from states of width `hidden_dim`), the limit of
    learned positions and the contents of a cache: `num_layers` times `num_key_value_heads` of
    `head_dim`, with the `window` of each layer, unless the subclass has its own property
    `cache_layers`. The subclass may use the config's other values.

    Keras's file formats can save such a model. A preset cannot, since it holds no code.

    Args:
        config: `TransformerConfig` of kind `"decoder"`.
        dtype: dtype or dtype policy.
        name: str.

    Example:
    ```python
    import keras_transformer as kt
    from keras_transformer.layers import DecoderBlock
    import keras

    @keras.saving.register_keras_serializable()
    class Alternating(kt.models.DecoderBase):  # every second block sees eight tokens
        def __init__(self, config, **kwargs):
            super().__init__(config, **kwargs)
            self.blocks = [
                DecoderBlock(
                    config.num_heads, config.intermediate_dim, rotary={}, normalize_first=True,
                    window=8 if i % 2 else None, name=f"layer_{i}", dtype=self.dtype_policy,
                )
                for i in range(config.num_layers)
            ]
            self.norm = keras.layers.LayerNormalization(dtype=self.dtype_policy)
            self.build()

        def call(self, inputs, cache=None, training=False):
            x = self.token_embedding(inputs["token_ids"])
            run = kt.models.ForwardContext(x, inputs, cache)
            for block in self.blocks:
                x = run(block, x, training=training)
            return run.outputs(self.norm(x))

    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=50, hidden_dim=32, num_layers=2, num_heads=4,
        intermediate_dim=64,
    )
    lm = kt.CausalLM(Alternating(config))
    assert len(lm.generate([3, 4, 5], max_new_tokens=6)) == 6
    ```
    """

    kind = "decoder"

    def build(self, input_shape=None):
        super().build(input_shape)
        if not self.sides:
            # A symbolic call builds the layers of a subclass.
            ids = keras.KerasTensor((1, 2), "int32")
            keras.Model.compute_output_spec(self, {"token_ids": ids})

    def __call__(self, inputs=None, *args, **kwargs):
        name = type(self).__name__
        cached = kwargs.get("cache") is not None
        if cached and "cache" not in inspect.signature(self.call).parameters:
            raise ValueError(
                f"{name} cannot generate: its `call` takes no `cache`. Write it as `call(self, "
                "inputs, cache=None, training=False)`, and pass the cache to "
                "`models.ForwardContext`."
            )
        result = super().__call__(inputs, *args, **kwargs)
        if cached and not isinstance(result, tuple):
            raise ValueError(
                f"{name} cannot generate: with a cache its `call` must return the updated cache "
                "beside the states. End it with `return run.outputs(states)` of "
                "`models.ForwardContext`."
            )
        return result

    def _inputs_of_sides(self) -> list:
        if self.sides:
            return super()._inputs_of_sides()
        own = ("token_ids", "padding_mask", "position_ids", "pack_ids")
        return [("", tuple(x for x in TokenStem.inputs if x.name in own), self.config.only_side)]


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(HasVector, DecoderBase):
    """A decoder-only model: a token attends to itself and to the tokens before it.

    Args:
        config: `TransformerConfig` of kind `"decoder"`.
        dtype: dtype or dtype policy.
        name: str.

    Call arguments:
        inputs: dict of `token_ids` int `(batch, length)`, `padding_mask` bool
            `(batch, length)`, and optionally `segment_ids`, `position_ids`, `pack_ids`, int
            `(batch, length)`.
        cache: optional `generation.Cache` that the tokens continue.
        part: str, what to compute: `"states"`, or from given states `"logits"` or, with a
            `vector_pooling` in the config, `"pool"`, like the methods of these names.

    Returns:
        The last hidden state, float `(batch, length, hidden_dim)`, and with a cache also the
        updated cache.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=100, hidden_dim=32, num_layers=2, num_heads=4,
        intermediate_dim=64,
    )
    backbone = kt.models.Decoder(config)
    states = backbone({"token_ids": np.array([[5, 6, 7]])})
    assert backbone.logits(states).shape == (1, 3, 100)
    ```

    Source: Radford et al. 2018 and 2019 (GPT, GPT-2), sections 3.1 and 2.3.
    """

    def __init__(self, config: TransformerConfig, dtype=None, name: str | None = None, **kwargs):
        super().__init__(config, dtype=dtype, name=name, **kwargs)
        self.stem, self.decoder = self._side(config, self.token_embedding)
        self.vector = self.make_vector()
        self.build()

    def build(self, input_shape=None):
        super().build(input_shape)
        if self.vector is not None:
            self.vector.build()

    @property
    def sides(self) -> dict:
        return {"": (self.stem, self.decoder)}

    def call(
        self,
        inputs,
        cache=None,
        collect: tuple[str, ...] = (),
        part: str = "states",
        training: bool = False,
    ):
        if part != "states":
            return {"pool": self._pool_part, "logits": self.logits}[part](inputs)
        run = ForwardContext(inputs["token_ids"], inputs, cache, collect)
        embedded = self.stem(inputs, cache_positions=run.cache_positions, training=training)
        further = {"layer_inputs": embedded.layer_inputs, "queries": embedded.queries}
        further = {name: value for name, value in further.items() if value is not None}
        return self.decoder(embedded.states, run=run, training=training, **further)
