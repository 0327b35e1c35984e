"""The encoder-only backbone (BERT-like)."""

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.arguments import kernel_initializer
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.layers.stems import Stem
from keras_transformer.models.backbone import Backbone, HasVector
from keras_transformer.models.stack import ForwardContext, positions_of


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(HasVector, Backbone):
    """An encoder-only model: every token attends to every token.

    Args:
        config: `TransformerConfig` of kind `"encoder"`.
        dtype: dtype or dtype policy.
        name: str.
        stem: `layers.stems.Stem`, which makes states from other inputs than token ids.

    Call arguments:
        inputs: dict of `token_ids` int `(batch, length)`, `padding_mask` bool
            `(batch, length)`, and optionally `segment_ids`, `position_ids`, `pack_ids`, int
            `(batch, length)`, and `token_embeddings` float `(batch, length, embedding_dim)`; or of
            the arrays that the stem takes.
        first_only: bool, for classifiers: return the state of the first token alone. The last
            block is then computed for that token only, which saves most of the block's work.
        part: str, what to compute: `"states"`, or from given states `"pool"` or `"logits"`, like
            the methods of these names.

    Returns:
        The last hidden state, float `(batch, length, hidden_dim)`; with `first_only`
        `(batch, 1, hidden_dim)`.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=100, hidden_dim=32, num_layers=2, num_heads=4,
        intermediate_dim=64,
    )
    backbone = kt.models.Encoder(config)
    ids = np.array([[5, 6, 7, 0]])
    assert backbone({"token_ids": ids, "padding_mask": ids != 0}).shape == (1, 4, 32)
    ```

    Source: Devlin et al. 2018, "BERT", section 3.
    """

    kind = "encoder"

    def __init__(
        self,
        config: TransformerConfig,
        dtype=None,
        name: str | None = None,
        stem: Stem | None = None,
        **kwargs,
    ):
        own = getattr(config, "stem", None)
        tokens = stem is None and own is None
        super().__init__(config, dtype=dtype, name=name, tokens=tokens, **kwargs)
        if stem is not None and own is not None:
            raise ValueError("The config has a `stem` of its own: give one of the two.")
        self.stem, self.encoder = self._side(config, self.token_embedding)
        self.stem = self.stem if stem is None else stem
        self.vector = self.make_vector()
        self.pooler = self.pooler_norm = None
        side = config.last_side
        if side.pooler == "mean":
            self.pooler_norm = make_normalization(
                side.block.norm.type,
                side.block.norm.epsilon,
                name="pooler_norm",
                dtype=self.dtype_policy,
            )
        if side.pooler == "tanh":
            with no_inner_remat():
                self.pooler = Dense(
                    side.hidden_dim,
                    activation="tanh",
                    kernel_initializer=kernel_initializer(config, self.initializer),
                    name="pooler",
                    dtype=self.dtype_policy,
                )
        self.build()

    @property
    def sides(self) -> dict:
        return {"": (self.stem, self.encoder)}

    def build(self, input_shape=None):
        super().build(input_shape)
        for layer in (self.pooler, self.pooler_norm):
            if layer is not None:
                layer.build((None, self.config.last_side.hidden_dim))
        if self.vector is not None:
            self.vector.build()

    def compute_output_spec(self, inputs, first_only=False, collect=(), part="states", **kwargs):
        given = {"first_only": first_only, "collect": collect, "part": part, **kwargs}
        stated = part == "states" and not (collect or first_only)
        shape = self.stem.states_shape(inputs) if stated else None
        if shape is None:
            return super().compute_output_spec(inputs, **given)
        return keras.KerasTensor((*shape[:-1], self.config.hidden_dim), dtype=self.compute_dtype)

    def call(
        self,
        inputs,
        first_only: bool = False,
        collect: tuple[str, ...] = (),
        part: str = "states",
        training: bool = False,
    ):
        if part != "states":
            return {"pool": self._pool_part, "logits": self.logits}[part](inputs)
        embedded = self.stem(inputs, training=training)
        run = ForwardContext(embedded.states, embedded._asdict(), collect=collect)
        options = {"first_only": first_only, "training": training, **positions_of(embedded)}
        return self.encoder(embedded.states, run=run, **options)

    def pool(self, hidden_states, token_ids=None, padding_mask=None):
        """Pool the states of each row to a vector, `(batch, hidden_dim)`.

        By default the vector is the state of the first token, after the `pooler` if the config has
        one. With `mean_pooler` it is the normalized mean of the states, without tokens of the stem;
        with `vector_pooling` it is the vector of this pooling, `(batch, vector_width)`.

        Args:
            hidden_states: float `(batch, length, hidden_dim)`, the states of the backbone.
            token_ids: int `(batch, length)`, for the pooling `"end"` only.
            padding_mask: bool `(batch, length)`, True for real states, for the pooling
                `"attention"` only. Defaults to all of them.

        Raises:
            ValueError: if the pooling is `"end"` and `token_ids` are missing.
        """
        if self.vector is not None or isinstance(hidden_states, keras.KerasTensor):
            return super().pool(hidden_states, token_ids, padding_mask)
        if self.pooler_norm is not None:
            tokens = getattr(self.config.stem, "num_tokens", 0)
            return self.pooler_norm(ops.mean(hidden_states[:, tokens:], axis=1))
        first = hidden_states[:, 0]
        return first if self.pooler is None else self.pooler(first)
