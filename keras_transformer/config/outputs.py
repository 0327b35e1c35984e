"""Parts after the blocks: logits, pooled vectors, and links from the encoder to the decoder."""

import dataclasses

from keras_transformer.config.feed_forward import ACTIVATIONS
from keras_transformer.config.mixers import Attention
from keras_transformer.config.options import Part, option, part
from keras_transformer.config.weight import Weight, dense_of, norm_of, weight_of

__all__ = ["Logits", "Placeholders", "Projector", "Similarity", "Vector"]

POOLINGS = ("first", "end", "last", "attention", "mean")
PROJECTORS = (
    "none", "linear", "normalized", "pooled", "shuffled", "merged", "mlp", "shuffled_mlp",
    "merged_mlp", "merged_mean", "norm_between", "norm_around",
)  # fmt: skip
# Projectors of squares of patches.
OF_SQUARES = ("pooled", "shuffled", "merged", "shuffled_mlp", "merged_mlp", "merged_mean")
# Projectors of images of any size: the patches of a square follow each other.
OF_SEQUENCES = ("merged", "merged_mlp", "merged_mean", "mlp")
VISIBILITIES = ("causal", "states", "windows", "prompt")
# The numbers by which the states of a standardized projector are shifted and multiplied.
STANDARD = ("standard_mean", "standard_scale")


@part
class Logits(Part):
    """Vocabulary logits: how the states of the last block become a score for each token."""

    tie: bool = option(
        "the output projection is the token embedding, transposed.", True, of="model"
    )
    scale: float | str = option(
        'factor of the states before the output projection (Cohere). `"rsqrt"` is 1 over the root '
        "of their width (T5).",
        1.0,
        of="model",
        positive=True,
        choices=("rsqrt",),
    )
    bias: bool = option("a bias for each token in the logits.", False, of="model")
    soft_cap: float | None = option(
        "logits are capped softly: `cap * tanh(logits / cap)` (Gemma 2). None disables it.",
        None,
        of="model",
        positive=True,
    )
    transform: str | None = option(
        '`"decoder"` and `"seq2seq"` only. Activation of a dense layer between the states and '
        "the logits, followed by a norm (BERT as a decoder). None disables the layer.",
        None,
        of="model",
        choices=(None, *ACTIVATIONS),
    )

    transform_bias: bool = option("a bias in this layer.", True, of="model")
    left_out: int = option(
        "number of tokens at the end of the vocabulary, such as the start and the padding, that "
        "are never written: the output projection, which is then not the embedding, has no "
        "numbers for them (PARSeq).",
        0,
        least=0,
    )

    def check(self):
        if self.left_out and (self.tie or self.soft_cap is not None):
            raise ValueError(
                "`left_out` needs an output projection of its own, tie=False, and no `soft_cap`, "
                f"received {self}."
            )
        if self.transform is None and not self.transform_bias:
            raise ValueError("`output_transform_bias`=False needs an `output_transform`.")

    def factor(self, width: int) -> float:
        """Return the factor of states of this width."""
        return width**-0.5 if self.scale == "rsqrt" else self.scale


@part
class Vector(Part):
    """The vector of a side, pooled from its states (CLIP, SigLIP)."""

    pooling: str = option(
        'how the vector of a side is pooled from its states, for a `"dual"` or a single side: '
        'the state at the `"first"` position, at the first `"end"` token, at the `"last"` '
        "position, padding or not (SigLIP's texts), or a trained query's `\"attention\"`, with "
        "a feed-forward layer (SigLIP's images), or the `\"mean\"` of the states (CLAP's sound).",
        of="side",
        choices=POOLINGS,
    )
    attention: Attention | None = option(
        "the attention of the trained query. Defaults to the heads of the blocks.", None
    )
    feed_forward: bool = option(
        "a feed-forward layer behind this attention; False leaves it out (VideoPrism).", True
    )
    end_id: int | None = option(
        'id of the `"end"` token. Defaults to the highest id in a row (CLIP).',
        None,
        of="side",
        least=0,
    )
    normalize: bool = option(
        "normalize the pooled state, if the final states are not normalized (CLIP's images).",
        False,
        of="side",
    )
    dim: int | None = option(
        "width of a linear layer after the pooling. None disables it.", None, of="side", least=1
    )
    bias: bool = option("a bias in this layer.", False, of="side")
    activation: str | None = option(
        "activation after this layer, which a second one of the same width then follows (CLAP). "
        "None disables both.",
        None,
        of="side",
        choices=(None, *ACTIVATIONS),
    )
    pooler: bool = option(
        "a dense layer with tanh between the pooling and these layers, as BERT's (CLAP's texts).",
        False,
        of="side",
    )

    def check(self):
        if self.activation is not None and self.dim is None:
            raise ValueError(
                "`vector_activation` is between two linear layers: it needs a `vector_dim`, "
                f"received {self.activation!r} without one."
            )
        own = self.attention
        if self.pooling != "attention" and (own is not None or not self.feed_forward):
            raise ValueError(
                "`attention` and `feed_forward` of a vector are for pooling='attention', received "
                f"pooling={self.pooling!r}."
            )
        if own is None:
            return
        plain = Attention(
            num_heads=own.num_heads,
            head_dim=own.head_dim,
            bias=own.bias,
            key_bias=own.key_bias,
            output_bias=own.output_bias,
            query_scale=own.query_scale,
            dropout=own.dropout,
        )
        if own.head_dim is None or own != plain:
            raise ValueError(
                "The attention of a vector has heads, their width `head_dim`, biases or none, and "
                f"perhaps a `query_scale` and a dropout, received {own}."
            )

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the axes of an attention of its own, by name."""
        own = {} if self.attention is None else self.attention.sizes(self.attention.num_heads)
        return {f"vector_{name}": size for name, size in own.items()}

    def _attention_weights(self, norm: str) -> tuple[Weight, ...]:
        name = "vector/attention"
        if self.attention is not None:
            found = self.attention.weights(name, norm)
            return tuple(
                dataclasses.replace(
                    each,
                    axes=tuple(a if a == "hidden_dim" else f"vector_{a}" for a in each.axes),
                )
                for each in found
            )
        weights: tuple[Weight, ...] = ()
        for part_ in ("query", "key", "value"):
            weights += dense_of(f"{name}/{part_}", "hidden_dim", "query_heads")
        return weights + dense_of(f"{name}/output", "query_heads", "hidden_dim")

    def weights(self, norm: str) -> tuple[Weight, ...]:
        """Return the weights of `layers.SideVector`; `norm` is the kind of its norms."""
        weights: tuple[Weight, ...] = ()
        if self.pooling == "attention":
            weights += weight_of("vector/probe", "hidden_dim") + self._attention_weights(norm)
        if self.pooling == "attention" and self.feed_forward:
            width = "intermediate_dim"
            weights += norm_of("vector/norm", norm)
            weights += dense_of("vector/feed_forward/intermediate", "hidden_dim", width)
            weights += dense_of("vector/feed_forward/output", width, "hidden_dim")
        if self.normalize:
            weights += norm_of("vector_norm", norm)
        if self.pooler:
            weights += dense_of("vector_pooler", "hidden_dim", "hidden_dim")
        if self.dim is not None:
            weights += dense_of("vector_projection", "hidden_dim", "vector_dim", self.bias)
        if self.activation is not None:
            weights += dense_of("vector_output", "vector_dim", "vector_dim", self.bias)
        return weights


@part
class Similarity(Part):
    """Similarities between the vectors of two sides; its presence makes a model `"dual"`."""

    bias: bool = option(
        '`"dual"` only. A trained number is added to each similarity, and each pair of image and '
        "text is scored on its own (SigLIP). False lets the texts of an image compete (CLIP).",
        False,
        of="model",
    )
    text_scale: bool = option(
        '`"dual"` only. The similarities have another scale where the images or recordings of a '
        "text compete than where the texts of an image or a recording do (CLAP).",
        False,
        of="model",
    )
    fixed_scale: float | None = option(
        "a factor of the cosines that is not trained, in place of the trained scale (VideoPrism).",
        None,
        positive=True,
    )

    def check(self):
        if self.fixed_scale is not None and (self.bias or self.text_scale):
            raise ValueError(
                "`fixed_scale` is in place of trained numbers: it cannot be combined with "
                f"`similarity_bias` or `similarity_text_scale`, received {self}."
            )
        if self.bias and self.text_scale:
            raise ValueError(
                "`similarity_text_scale` and `similarity_bias` cannot be combined: with a bias "
                "nothing competes."
            )

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Weights of the similarity: its scales, and its bias if there is one."""
        if self.fixed_scale is not None:
            return ()
        bias = weight_of("similarity_bias") if self.bias else ()
        of_texts = weight_of("similarity_text_scale") if self.text_scale else ()
        return weight_of("similarity_scale") + of_texts + bias


@part
class Placeholders(Part):
    """States of images or sound that replace placeholder tokens of another side (LLaVA)."""

    token_id: int = option(
        '`"seq2seq"` only. The encoder\'s states replace the tokens with this id, and the '
        "decoder has no cross-attention (LLaVA).",
        of="model",
        least=0,
    )
    side: str = option(
        'with `placeholder_id`. The side whose tokens they are: the `"decoder"`, or the '
        '`"encoder"`, whose states the decoder attends to; the `source` then reads the images '
        "(T5Gemma 2).",
        "decoder",
        of="model",
        choices=("encoder", "decoder"),
    )
    counted: bool = option(
        "with `placeholder_id`. Positions that are added to states, such as learned ones, count "
        "the placeholders too (BLIP-2), and not only the other tokens (GIT).",
        False,
        of="model",
    )
    visibility: str = option(
        "with `placeholder_id`. Which states a merged state sees: the states before it, "
        '`"causal"`; also the merged states behind it, `"states"` (GIT), or these only in layers '
        'with a window, `"windows"` (Gemma 4); or, like every token of the prompt, the whole '
        'prompt, `"prompt"` (PaliGemma).',
        "causal",
        of="model",
        choices=VISIBILITIES,
    )
    class_token: bool = option(
        "with `placeholder_id`. States that do not belong to a patch, such as the class "
        "token's, are merged too.",
        True,
        of="model",
    )
    stacked_layers: tuple | list = option(
        'with `projector="merged"`. Layers of the encoder, counted from 0, whose states are merged '
        "too, each by layers of its own, and added to the merged states behind the first layers of "
        "the decoder, one each (Qwen3-VL).",
        (),
        of="model",
    )


@part
class Projector(Part):
    """`layers.Projector`: layers that map the encoder's states to the decoder's width."""

    type: str = option(
        "`\"seq2seq\"` only. Layers that map the encoder's states to the decoder's width: "
        'one `"linear"` layer (PaliGemma, and models with cross-attention), a '
        '`"normalized"` one (GIT), one on a norm of the means of squares of patches, `"pooled"` '
        '(Gemma 3), one on the joined states of such squares, `"shuffled"` (Idefics 3), two, '
        '`"mlp"` (LLaVA), two on a norm of joined states, `"shuffled_mlp"` (InternVL), or on '
        'joined states that are normalized before, `"merged"` (Qwen2-VL), or three on these, of '
        'which the first joins them to one of the same width, `"merged_mlp"` (Mistral 3), one on a '
        'norm without weights of the means of such states, `"merged_mean"` (Gemma 4), two with '
        'such a norm between them, `"norm_between"` (Gemma 4\'s sound), or one with a norm before '
        'it and such a norm behind it, `"norm_around"` (Gemma 3n).',
        of="model",
        choices=PROJECTORS[1:],
    )
    activation: str = option(
        "activation between the two layers, one of `config.ACTIVATIONS`.",
        "gelu",
        of="model",
        choices=ACTIVATIONS,
    )
    bias: bool = option("biases in the projector.", True, of="model")
    inner_dim: int | None = option(
        'with the type `"norm_between"`. Width of the norm between the two layers, of which the '
        "second has no bias.",
        None,
        least=1,
    )
    pool: int = option(
        'with `projector="pooled"`, `"shuffled"`, `"merged"`, `"shuffled_mlp"`, `"merged_mlp"` or '
        '`"merged_mean"`. Rows and columns of the squares of patches that become one state.',
        1,
        of="model",
        least=1,
    )
    separator: bool = option(
        "with a `projector`. A trained state, which is placed behind each row of the patches of an "
        "image of several tiles (LLaVA-NeXT).",
        False,
        of="model",
    )
    standardized: bool = option(
        'with `projector="merged_mean"`. The means are shifted and multiplied by numbers of each '
        "feature that no gradient trains, before their norm (Gemma 4).",
        False,
        of="model",
    )

    stride: int = option(
        'with the type `"norm_around"`. Distance between the states that are projected (Gemma 3n).',
        1,
        least=1,
        most=1024,
    )
    hard_tokens: int = option(
        'with the type `"norm_around"`. Number of tokens at the end of the vocabulary whose '
        "embeddings have the encoder's width, and are normalized and projected too; those of a "
        "`sound_projector` are behind those of the images' projector. The last token of sound is "
        "also the state that is placed behind those of a short recording (Gemma 3n).",
        0,
        least=0,
        most=2**16,
    )

    scaled: bool = option(
        'with the type `"norm_around"`. The states are multiplied by the root of their width first '
        "(Gemma 3n's images).",
        False,
    )

    def check(self):
        around = self.type == "norm_around"
        if not around and (self.stride > 1 or self.hard_tokens or self.scaled):
            raise ValueError(
                "`stride`, `hard_tokens` and `scaled` need the type 'norm_around' of a projector, "
                f"received {self.type!r}."
            )
        if around and (self.bias or self.separator):
            raise ValueError(
                "A projector of the type 'norm_around' has neither biases nor a separator, "
                f"received bias={self.bias} and separator={self.separator}."
            )
        if (self.inner_dim is not None) != (self.type == "norm_between"):
            raise ValueError(
                "The type 'norm_between' of a projector needs an `inner_dim`, and no other has "
                f"one, received {self.type!r} and {self.inner_dim}."
            )
        if self.standardized and self.type != "merged_mean":
            raise ValueError(
                f"`standardized` needs the type 'merged_mean' of a projector, received "
                f"{self.type!r}."
            )
        if self.pool > 1 and self.type not in OF_SQUARES:
            raise ValueError(
                f"`projector_pool`={self.pool} needs a `projector` of squares of patches, one of "
                f"{', '.join(map(repr, OF_SQUARES))}, received {self.type!r}."
            )

    def stacked_weights(self, norm: str, i: int) -> tuple[Weight, ...]:
        """Return the weights of the projector of the stacked layer `i`, given the encoder's norm.

        It normalizes the states of a square together.
        """
        return (
            *norm_of(f"stacked_projector_{i}/norm", norm, "joined_dim"),
            *dense_of(
                f"stacked_projector_{i}/mlp/intermediate", "joined_dim", "joined_dim", self.bias
            ),
            *dense_of(f"stacked_projector_{i}/mlp/output", "joined_dim", "target_dim", self.bias),
        )

    def weights(self, norm: str, norm_of_target: str) -> tuple[Weight, ...]:
        """Return the projector's weights, given the kinds of norm of both sides."""
        found = weight_of("projector/separator", "target_dim") if self.separator else ()
        source = "joined_dim" if self.type.startswith("shuffled") else "source_dim"
        if self.type.endswith("mlp"):
            if self.type == "shuffled_mlp":
                found += norm_of("projector/norm", "layer_norm", source)
            elif self.type == "merged_mlp":
                found += norm_of("projector/norm", norm, source)
                found += dense_of("projector/merge", "joined_dim", source, bias=False)
            return (
                *found,
                *dense_of("projector/mlp/intermediate", source, "target_dim", self.bias),
                *dense_of("projector/mlp/output", "target_dim", "target_dim", self.bias),
            )
        if self.type == "merged":
            return (
                *found,
                *norm_of("projector/norm", norm, "source_dim"),
                *dense_of("projector/mlp/intermediate", "joined_dim", "joined_dim", self.bias),
                *dense_of("projector/mlp/output", "joined_dim", "target_dim", self.bias),
            )
        if self.type == "norm_between":
            return (
                *found,
                *dense_of("projector/inner", "source_dim", "inner_dim", self.bias),
                *dense_of("projector/output", "inner_dim", "target_dim", bias=False),
            )
        if self.type == "norm_around":
            found += norm_of("projector/norm", "rms_norm", source)
            if self.hard_tokens:
                found += weight_of("projector/hard_embeddings", "hard_tokens", source)
                found += norm_of("projector/hard_norm", "rms_norm", source)
        if self.standardized:
            for name in STANDARD:
                found += weight_of(f"projector/{name}", source)
        found += dense_of("projector/output", source, "target_dim", self.bias)
        if self.type == "pooled":
            return found + norm_of("projector/norm", norm_of_target, "source_dim")
        return found + (
            norm_of("projector/norm", norm, "target_dim") if self.type == "normalized" else ()
        )
