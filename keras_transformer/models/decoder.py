"""The decoder-only backbone (GPT-like)."""

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.models.backbone import Backbone, as_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Backbone):
    """A token attends to itself and to the tokens before it.

    Args:
        config: `TransformerConfig` of kind `"decoder"`.
        dtype: dtype or dtype policy.
        name: str.

    Call arguments:
        inputs: dict of `token_ids` int `(batch, length)`, `padding_mask` bool
            `(batch, length)`, and optionally `segment_ids`, `position_ids`, `pack_ids`, int
            `(batch, length)`.
        cache: optional `generation.Cache` that the tokens continue.
        part: str, which computation: `"states"`, or of given states `"logits"`.

    Returns:
        The last hidden state, float `(batch, length, hidden_dim)`, and the updated cache when
        one was given.

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

    kind = "decoder"
    id_inputs = ("token_ids",)

    def __init__(self, config: TransformerConfig, dtype=None, name: str | None = None, **kwargs):
        super().__init__(config, dtype=dtype, name=name, **kwargs)
        self.decoder = self._stack("decoder", True, False, config.num_layers)
        self.build()

    @property
    def stacks(self) -> list:
        return [self.decoder]

    def call(self, inputs, cache=None, part: str = "states", training: bool = False):
        if part != "states":
            return {"logits": self.logits}[part](inputs)
        return self.decoder(
            self.token_embedding(inputs["token_ids"]),
            padding_mask=inputs.get("padding_mask"),
            segment_ids=inputs.get("segment_ids"),
            position_ids=inputs.get("position_ids"),
            pack_ids=inputs.get("pack_ids"),
            cache=cache,
            training=training,
        )

    def prompt_tokens(self, inputs):
        """The ids and the mask that generation starts from."""
        return inputs["token_ids"], as_mask(inputs["token_ids"], inputs.get("padding_mask"))

    def step_inputs(self, tokens) -> dict:
        """The inputs of one further step, with `tokens` int `(rows, 1 or branches)`."""
        return {"token_ids": tokens}
