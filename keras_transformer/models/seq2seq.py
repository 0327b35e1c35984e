"""The encoder-decoder backbone, the original Transformer."""

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.arguments import refuse_unused
from keras_transformer.models.backbone import Backbone, as_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class Seq2Seq(Backbone):
    """An encoder reads the source, a decoder attends to it and to its own past.

    Both share one token embedding.

    Args:
        config: `TransformerConfig` of kind `"seq2seq"`.
        dtype: dtype or dtype policy.
        name: str.

    Call arguments:
        inputs: dict of `encoder_token_ids` int `(batch, source_length)`,
            `encoder_padding_mask` bool likewise, `decoder_token_ids` int
            `(batch, target_length)`, `decoder_padding_mask` bool likewise. With a cache that
            was filled before, the encoder's two are not needed; `encoder_states` may be given in
            place of `encoder_token_ids`. For packed rows also `encoder_position_ids`,
            `encoder_pack_ids`, `decoder_position_ids`, `decoder_pack_ids`, int likewise: a
            target token sees the source tokens of its own document.
        cache: optional `generation.Cache` that the decoder tokens continue.
        part: str, which computation: `"states"`; of given states `"logits"`; or `"encode"`, of a
            dict of the arguments of that method.

    Returns:
        The decoder's last hidden state, float `(batch, target_length, hidden_dim)`, and the
        updated cache when one was given.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="seq2seq", vocabulary_size=100, hidden_dim=32, num_layers=2, num_heads=4,
        intermediate_dim=64,
    )
    source, target = np.array([[5, 6, 7]]), np.array([[1, 8]])
    backbone = kt.models.Seq2Seq(config)
    states = backbone({"encoder_token_ids": source, "decoder_token_ids": target})
    assert states.shape == (1, 2, 32)
    ```

    Source: Vaswani et al. 2017, section 3.
    """

    kind = "seq2seq"
    id_inputs = ("encoder_token_ids", "decoder_token_ids")
    input_names = (
        "encoder_token_ids", "encoder_padding_mask", "decoder_token_ids", "decoder_padding_mask",
        "encoder_states", "encoder_position_ids", "encoder_pack_ids", "decoder_position_ids",
        "decoder_pack_ids",
    )  # fmt: skip

    def __init__(self, config: TransformerConfig, dtype=None, name: str | None = None, **kwargs):
        super().__init__(config, dtype=dtype, name=name, **kwargs)
        self.encoder = self._stack("encoder", False, False, config.num_layers)
        self.decoder = self._stack("decoder", True, True, config.num_decoder_layers)
        self.build()

    @property
    def stacks(self) -> list:
        return [self.encoder, self.decoder]

    def encode(
        self, token_ids, padding_mask=None, training: bool = False, position_ids=None, pack_ids=None
    ):
        """The encoder states, float `(batch, source_length, hidden_dim)`."""
        if isinstance(token_ids, keras.KerasTensor):
            inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
            inputs |= {"position_ids": position_ids, "pack_ids": pack_ids}
            inputs = {name: value for name, value in inputs.items() if value is not None}
            return self(inputs, part="encode", training=training)
        return self.encoder(
            self.token_embedding(token_ids),
            padding_mask=padding_mask,
            position_ids=position_ids,
            pack_ids=pack_ids,
            training=training,
        )

    def call(self, inputs, cache=None, part: str = "states", training: bool = False):
        if part == "encode":
            return self.encode(**inputs, training=training)
        if part != "states":
            return {"logits": self.logits}[part](inputs)
        encoder_mask = inputs.get("encoder_padding_mask")
        encoder_states = inputs.get("encoder_states")
        if encoder_states is not None:
            source = inputs.get("encoder_token_ids")
            refuse_unused("its `encoder_states` are given.", encoder_token_ids=source)
        elif "encoder_token_ids" in inputs:
            encoder_states = self.encode(
                inputs["encoder_token_ids"],
                encoder_mask,
                training,
                inputs.get("encoder_position_ids"),
                inputs.get("encoder_pack_ids"),
            )
        return self.decoder(
            self.token_embedding(inputs["decoder_token_ids"]),
            padding_mask=inputs.get("decoder_padding_mask"),
            position_ids=inputs.get("decoder_position_ids"),
            pack_ids=inputs.get("decoder_pack_ids"),
            encoder_states=encoder_states,
            encoder_padding_mask=encoder_mask,
            encoder_pack_ids=inputs.get("encoder_pack_ids"),
            cache=cache,
            training=training,
        )

    def prompt_tokens(self, inputs):
        """The ids and the mask that generation starts from."""
        tokens = inputs["decoder_token_ids"]
        return tokens, as_mask(tokens, inputs.get("decoder_padding_mask"))

    def step_inputs(self, tokens) -> dict:
        """The inputs of one further step, with `tokens` int `(rows, 1 or branches)`."""
        return {"decoder_token_ids": tokens}
