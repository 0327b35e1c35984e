"""The backbone for images or recordings and texts side by side (CLIP-like)."""

import math
from collections.abc import Mapping

import keras
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.layers.normalization import unit_vectors
from keras_transformer.layers.vector import SideVector
from keras_transformer.models.backbone import Backbone, published_name
from keras_transformer.models.stack import ForwardContext, positions_of

# Initial log scale of similarities without a bias, log scale with a bias, and bias:
# Radford et al. 2021, section 2.5, and Zhai et al. 2023, section 3.
_SCALE, _SCALE_WITH_BIAS, _BIAS = math.log(1 / 0.07), math.log(10), -10.0
_MOST = math.log(100)


class AtMost(keras.constraints.Constraint):
    """Constrain a weight to be at most a given number."""

    def __init__(self, most: float):
        self.most = most

    def __call__(self, value):
        return ops.minimum(value, self.most)

    def get_config(self):
        return {"most": self.most}


@keras.saving.register_keras_serializable(package="keras_transformer")
class DualEncoder(Backbone):
    """An encoder of images, videos or recordings, and a text encoder: vectors of a common space.

    The first is the config's `encoder`, the text side its `decoder`, whose tokens see earlier
    tokens, or all tokens with `bidirectional`.

    Args:
        config: `TransformerConfig` of kind `"dual"`.
        dtype: dtype or dtype policy.
        name: str.

    Call arguments:
        inputs: dict of `images`, float `(batch, height, width, channels)`, or of `token_ids`, int
            `(rows, length)`, and optionally `padding_mask`, bool, and `position_ids`, int, of the
            same shape; or of both, whose numbers of rows may differ. A stem of sound takes `frames`
            or other arrays in place of images, a stem of tubes `videos`.

    Returns:
        A dict of float `(rows, vector_width)`, `"images"`, `"videos"` or `"recordings"`, `"texts"`
        or both, as given. The vectors are not normalized; `similarity` normalizes them.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="dual", vocabulary_size=100, hidden_dim=32, num_layers=2, num_heads=4,
        intermediate_dim=64, position="learned", max_sequence_length=16, normalize_first=True,
        vector_dim=24,
        encoder={
            "vocabulary_size": 0, "vector_pooling": "first",
            "stem": {"kind": "patches", "image_size": [32, 32], "patch_size": 8},
        },
        decoder={"vector_pooling": "end", "vector_end_id": 99},
    )
    backbone = kt.models.DualEncoder(config)
    images, ids = np.zeros((3, 32, 32, 3), "float32"), np.array([[5, 6, 99], [7, 99, 0]])
    vectors = backbone({"images": images, "token_ids": ids})
    assert vectors["images"].shape == (3, 24) and vectors["texts"].shape == (2, 24)
    assert backbone.similarity(vectors["images"], vectors["texts"]).shape == (3, 2)
    ```

    Source: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
    Supervision"; with a bias: Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training";
    with sound: Wu et al. 2022, "Large-scale Contrastive Language-Audio Pretraining with Feature
    Fusion and Keyword-to-Caption Augmentation".
    """

    kind = "dual"

    def __init__(self, config: TransformerConfig, dtype=None, name: str | None = None, **kwargs):
        super().__init__(config, dtype=dtype, name=name, **kwargs)
        images, texts = config.sides
        self.encoder_stem, self.encoder = self._side(images, None)
        self.decoder_stem, self.decoder = self._side(texts, self.token_embedding)
        self.encoder_vector, self.decoder_vector = (
            SideVector(side, self.initializer, name=side.kind, dtype=self.dtype_policy)
            for side in (images, texts)
        )
        self.similarity_scale = self.similarity_text_scale = self.similarity_bias = None
        self.build()

    def build(self, input_shape=None):
        super().build(input_shape)
        for layer in (self.encoder_vector, self.decoder_vector):
            layer.build()
        biased = self.config.similarity_bias

        def scale(name):
            initial = keras.initializers.Constant(_SCALE_WITH_BIAS if biased else _SCALE)
            return self.add_weight(
                (), initial, constraint=None if biased else AtMost(_MOST), name=name
            )

        if self.config.similarity.fixed_scale is None:
            self.similarity_scale = scale("similarity_scale")
        if self.config.similarity_text_scale:
            self.similarity_text_scale = scale("similarity_text_scale")
        if biased:
            self.similarity_bias = self.add_weight(
                (), keras.initializers.Constant(_BIAS), name="similarity_bias"
            )

    @property
    def source(self) -> str:
        """Name of what the model compares with texts, `"images"`, `"videos"` or `"recordings"`."""
        required = required_of(self.encoder_stem)
        return {"frames": "recordings", "videos": "videos"}.get(required, "images")

    @property
    def sides(self) -> dict:
        return {
            self.source: (self.encoder_stem, self.encoder),
            "texts": (self.decoder_stem, self.decoder),
        }

    def _inputs_of_sides(self) -> list:
        return [("", stem.inputs, stack.side) for stem, stack in self.sides.values()]

    def needed_inputs(self, inputs, needed):
        """Return the required inputs: images or recordings, or texts, or both."""
        if not isinstance(inputs, Mapping):
            return needed
        given = {published_name(name) for name, each in inputs.items() if each is not None}
        return tuple(name for name in needed if name in given) or needed

    def compute_output_spec(self, inputs, collect=(), training=None, **kwargs):
        if collect:
            return keras.Model.compute_output_spec(
                self, inputs, collect=collect, training=training, **kwargs
            )
        width, given = self.config.sides[0].vector_width, {}
        for side, (stem, _) in self.sides.items():
            name = required_of(stem)
            if name in inputs:
                shape = (inputs[name].shape[0], width)
                given[side] = keras.KerasTensor(shape, dtype=self.compute_dtype)
        return given

    def call(self, inputs, collect: tuple[str, ...] = (), training: bool = False):
        vectors, collected = {}, {}
        parts = {
            self.source: (self.encoder_vector, "encoder_"),
            "texts": (self.decoder_vector, ""),
        }
        for side, (vector, prefix) in parts.items():
            stem, stack = self.sides[side]
            if required_of(stem) not in inputs:
                continue
            embedded = stem(inputs, training=training)
            run = ForwardContext(embedded.states, embedded._asdict(), collect=collect)
            alone = side != "texts" and stack.config.vector_pooling == "first" and not collect
            options = {**positions_of(embedded), **({"first_only": True} if alone else {})}
            states = stack(embedded.states, run=run, training=training, **options)
            if collect:
                states, found = states
                collected |= {f"{prefix}{name}": each for name, each in found.items()}
            mask = None if side == "texts" else embedded.padding_mask
            vectors[side] = vector(states, token_ids=inputs.get("token_ids"), padding_mask=mask)
        return (vectors, collected) if collect else vectors

    def similarity(self, vectors, text_vectors):
        """Compute the similarity of each input and each text, float32 `(rows, texts)`.

        It is the cosine of a pair times the trained scale, or the `fixed_scale` of the config's
        `similarity`, plus a trained bias if the config has `similarity_bias`. The contrastive
        losses take these numbers as their logits.

        Args:
            vectors: float `(rows, vector_width)`, of images or recordings.
            text_vectors: float `(texts, vector_width)`.
        """
        cosines = _cosines(vectors, text_vectors)
        if self.similarity_scale is None:
            return cosines * self.config.similarity.fixed_scale
        logits = cosines * _exp(self.similarity_scale)
        if self.similarity_bias is None:
            return logits
        return logits + ops.cast(self.similarity_bias, "float32")

    def both_similarities(self, vectors, text_vectors):
        """Compute the logits of the losses: similarities of a row and of a column of a batch.

        Args:
            vectors: as for `similarity`.
            text_vectors: as for `similarity`.

        Returns:
            The `similarity`; with `similarity_text_scale` in the config float32 `(rows, texts, 2)`,
            with the scale of images or recordings, whose texts compete, and with that of texts.
        """
        if self.similarity_text_scale is None:
            return self.similarity(vectors, text_vectors)
        scales = ops.stack([_exp(self.similarity_scale), _exp(self.similarity_text_scale)])
        return _cosines(vectors, text_vectors)[..., None] * scales


def _cosines(vectors, text_vectors):
    both = (unit_vectors(ops.cast(each, "float32")) for each in (vectors, text_vectors))
    first, second = both
    return ops.matmul(first, ops.transpose(second))


def _exp(weight):
    return ops.exp(ops.cast(weight, "float32"))


def required_of(stem) -> str:
    """Return the name of the first array that a stem needs."""
    return next(each.name for each in stem.inputs if each.required)
