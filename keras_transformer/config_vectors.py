"""The values of a config that say how the states of a side become one vector (CLIP, SigLIP)."""

import dataclasses
from typing import TYPE_CHECKING

from keras_transformer.config_checks import option
from keras_transformer.weight import dense_of, norm_of, weight_of

if TYPE_CHECKING:
    from keras_transformer.config import TransformerConfig

POOLINGS = ("first", "end", "last", "attention")
_OF_VECTORS = ("vector_normalization", "vector_dim", "vector_bias")

# `layers.SideVector` of a side, and what the similarities of a dual are made by.
_POOLING = {"vector_pooling": "attention"}
VECTOR = (
    *weight_of("vector/probe", "hidden_dim", **_POOLING),
    *dense_of("vector/attention/query", "hidden_dim", "query_heads", **_POOLING),
    *dense_of("vector/attention/key", "hidden_dim", "query_heads", **_POOLING),
    *dense_of("vector/attention/value", "hidden_dim", "query_heads", **_POOLING),
    *dense_of("vector/attention/output", "query_heads", "hidden_dim", **_POOLING),
    *norm_of("vector/norm", **_POOLING),
    *dense_of("vector/feed_forward/intermediate", "hidden_dim", "intermediate_dim", **_POOLING),
    *dense_of("vector/feed_forward/output", "intermediate_dim", "hidden_dim", **_POOLING),
    *norm_of("vector_norm", vector_normalization=True),
    *dense_of("vector_projection", "hidden_dim", "vector_dim", "vector_bias", vector_dim=True),
)
SIMILARITY = (
    *weight_of("similarity_scale", kind="dual"),
    *weight_of("similarity_bias", kind="dual", similarity_bias=True),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorOptions:
    """Further values of a `TransformerConfig`, as flat as its own."""

    vector_pooling: str | None = option(
        'The state that the vector of a side is made of, of a `"dual"` or of a side alone: that of '
        'the `"first"` place, of the first `"end"` token, of the `"last"` place, padding or not '
        '(SigLIP\'s texts), or what a trained query gathers by `"attention"`, with a feed-forward '
        "layer (SigLIP's images). None for a model without vectors.",
        None,
        of="side",
        choices=POOLINGS,
    )
    vector_end_id: int | None = option(
        'the id of the `"end"` token. None for the highest id of a row (CLIP).',
        None,
        of="side",
        least=0,
    )
    vector_normalization: bool = option(
        "normalize this state, where those behind the blocks are not (CLIP's images alone).",
        False,
        of="side",
    )
    vector_dim: int | None = option(
        "width of a linear layer behind it. None for none.", None, of="side", least=1
    )
    vector_bias: bool = option("a bias of this layer.", False, of="side")
    bidirectional: bool = option(
        'of the texts of a `"dual"`: a token sees those behind it too (SigLIP).', False, of="side"
    )
    similarity_bias: bool = option(
        '`"dual"` only. A trained number is added to each similarity, which is of an image and a '
        "text by themselves (SigLIP); without, texts compete for an image (CLIP).",
        False,
        of="model",
    )

    @property
    def vector_width(self) -> int:
        """Of a side's vector."""
        return self.vector_dim or self.hidden_dim


def refuse_vectors(config: "TransformerConfig") -> None:
    """ValueError for a model without two sides that has values of one, as the sides have."""
    names = ("bidirectional", "similarity_bias")
    names += ("vector_pooling",) if config.kind == "seq2seq" else ()
    given = [name for name in names if getattr(config, name)]
    if config.kind != "dual" and given:
        raise ValueError(f"`{given[0]}` needs kind='dual', received kind={config.kind!r}.")


def side_alone(config: "TransformerConfig", name: str) -> "TransformerConfig":
    """A side of a `"dual"` as a model of its own, by the same weights.

    It has no layer that makes its vectors those of a common space. Where these are of the first
    state, the norm behind the blocks is of that one alone, as in Transformers' towers.
    """
    side = config.side(name)
    alone = side.vector_pooling == "first" and side.final_normalization
    own = {"final_normalization": False, "vector_normalization": True} if alone else {}
    if side.stem is not None:  # The texts say how long a sequence may be.
        own["max_sequence_length"] = type(config).max_sequence_length
    return side.replace(vector_dim=None, vector_bias=False, **own)


def check_vectors(config: "TransformerConfig") -> None:
    """ValueError for vectors that a side cannot have, or that are not of one width."""
    if config.vector_pooling in ("end", "last") and config.stem is not None:
        raise ValueError(
            f"vector_pooling={config.vector_pooling!r} is of texts, not of the encoder of images."
        )
    if config.kind != "dual":
        given = [name for name in _OF_VECTORS if getattr(config, name)]
        if given and config.vector_pooling is None and config.kind != "seq2seq":
            raise ValueError(f"`{given[0]}` needs a `vector_pooling`.")
        return
    for name in ("encoder", "decoder"):
        if config.side(name).vector_pooling is None:
            raise ValueError(
                f"The {name} of kind='dual' needs a `vector_pooling`, one of "
                f"{', '.join(map(repr, POOLINGS))}."
            )
    images, texts = config.sides
    if images.stem is None:
        raise ValueError(
            "The encoder of kind='dual' is of images: give it a stem, `encoder={'stem': ...}`."
        )
    if images.vector_width != texts.vector_width:
        raise ValueError(
            f"Vectors of images have {images.vector_width} numbers and those of texts "
            f"{texts.vector_width}: give one of them a `vector_dim`."
        )
