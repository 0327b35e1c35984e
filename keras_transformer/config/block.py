"""A block: a mixer and a feed-forward layer, their norms and residual connections."""

from collections.abc import Callable

from keras_transformer.config.altup import AltUp
from keras_transformer.config.bottleneck import Bottleneck
from keras_transformer.config.conformer import Conformer
from keras_transformer.config.feed_forward import ACTIVATIONS, Dense, Experts, FeedForward
from keras_transformer.config.laurel import Laurel
from keras_transformer.config.layer_inputs import LayerInput
from keras_transformer.config.merging import Merging
from keras_transformer.config.mixers import Attention, Mixer
from keras_transformer.config.norm import Norm
from keras_transformer.config.options import Part, option, part
from keras_transformer.config.pattern import Window
from keras_transformer.config.weight import Weight, dense_of, norm_of, weight_of

__all__ = ["Block", "Convolution", "Residual"]

# Norms of experts beside a dense layer: before them, and behind each of both.
SPARSE_NORMS = ("sparse_norm", "sparse_output_norm", "dense_output_norm")
ORDERS = ("post", "pre", "sandwich", "output", "parallel", "parallel_shared")


@part
class Residual(Part):
    """Residual connection of a sub-layer `f` with its input `x`, and the place of the norms."""

    order: str = option(
        '`"post"`: `norm(x + f(x))` (the original); `"pre"`: `x + f(norm(x))`; `"sandwich"`: '
        '`x + norm(f(norm(x)))` (Gemma 2); `"output"`: `x + norm(f(x))` (OLMo 2); `"parallel"`: '
        "`x + f(norm_f(x)) + g(norm_g(x))`, with both sub-layers in parallel; "
        '`"parallel_shared"`: the same with one norm (GPT-J).',
        "post",
        choices=ORDERS,
    )
    mixer_norm: bool = option(
        "whether the mixer has its pre-norm or post-norm (ModernBERT's first layer has neither).",
        True,
    )
    scale: float = option(
        "factor on a sub-layer's output, before it is added to the residual (Granite).",
        1.0,
        positive=True,
    )
    trained_scale: bool = option(
        "an additional trained factor for each feature of a sub-layer's output (CaiT, DINOv2).",
        False,
    )

    def check(self):
        if self.order == "parallel_shared" and not self.mixer_norm:
            raise ValueError(
                "`share_normalization` needs `parallel_residual` and `attention_normalization`."
            )

    @property
    def is_first(self) -> bool:
        """Whether a sub-layer's input is normalized: pre-norm."""
        return self.order not in ("post", "output")

    @property
    def is_parallel(self) -> bool:
        """Whether both sub-layers read the same states."""
        return self.order.startswith("parallel")

    @property
    def norms_outputs(self) -> bool:
        """Whether a sub-layer's output is normalized before it is added."""
        return self.order in ("sandwich", "output")

    def norms(self, sublayer: str) -> tuple[str, ...]:
        """Return the names of the norms of a sub-layer."""
        around = self.order != "output"
        if sublayer in ("self_attention", "mixer"):
            around = around and self.mixer_norm
        elif sublayer == "feed_forward":
            around = around and self.order != "parallel_shared"
        names = (f"{sublayer}_norm",) if around else ()
        return names + ((f"{sublayer}_output_norm",) if self.norms_outputs else ())


@part
class Convolution(Part):
    """A convolution of a block's input, added to its output (DeBERTa v2). For encoders."""

    size: int = option(
        "number of neighbouring tokens that the convolution sees, an odd number.", least=1
    )
    activation: str | Callable = option(
        "activation of the convolution, one of `config.ACTIVATIONS`.",
        "gelu",
        choices=ACTIVATIONS,
        function=True,
    )

    def check(self):
        if self.size % 2 == 0:
            raise ValueError(
                f"`convolution_size` must be odd, so that it is centered on a token, received "
                f"{self.size}."
            )


@part
class Block(Part):
    """One layer of a model: a mixer, such as attention, and a feed-forward layer."""

    mixer: Mixer = option(
        "the layer that exchanges information between tokens: an `Attention`, or another `Mixer`."
    )
    feed_forward: FeedForward | None = option(
        "a `Dense` feed-forward layer, or `Experts`. None for a block with a mixer alone (Mamba).",
        None,
    )
    norm: Norm = option("the norms of the block.", Norm())
    residual: Residual = option("the residual connections of the sub-layers.", Residual())
    merging: Merging | None = option(
        "the patches of the layer before are merged first, to fewer and usually wider states: a "
        "stage of an image encoder begins (SegFormer, Swin).",
        None,
    )
    merged_attention: bool = option(
        "the mixer attends to the states of the encoder as well, with the same projections and in "
        "one softmax with the block's own tokens, in place of a cross-attention (T5Gemma 2). The "
        "keys of the encoder are not rotated, and every token sees all of them. For the decoder of "
        "a seq2seq model.",
        False,
    )
    attends_to_source: bool = option(
        "the block attends to the states of another side, in a side that does. False for some of "
        "the blocks of `queries` (BLIP-2, in every second).",
        True,
    )
    convolution: Convolution | None = option("a convolution parallel to both sub-layers.", None)
    global_norm: bool = option(
        "the `global_tokens` of the mixer's pattern have a norm of their own before the mixer "
        "(Pegasus-X).",
        False,
    )
    sparse: Experts | None = option(
        "experts beside a `Dense` feed-forward layer, which read the same states with a norm of "
        "their own. The outputs of both are normalized, each by itself, and added (Gemma 4).",
        None,
    )
    layer_input: LayerInput | None = option(
        "a last sub-layer that adds what the token has for this layer, see `Side.layer_inputs`.",
        None,
    )
    laurel: Laurel | None = option(
        "a narrow residual beside the mixer, which reads the same normalized states (Gemma 3n).",
        None,
    )
    altup: AltUp | None = option(
        "several copies of the states, of which the sub-layers compute the first. A `layer_input` "
        "is then added to the others (Gemma 3n).",
        None,
    )
    conformer: Conformer | None = option(
        "a second feed-forward layer, before the mixer, and a convolution behind it (Conformer). "
        "For encoders.",
        None,
    )
    bottleneck: Bottleneck | None = option(
        "a residual of convolutions over the grid of patches, behind all sub-layers (ViTDet).", None
    )
    query_stream: bool = option(
        "the queries of the mixer, and the residual, are the side's learned positions of the "
        "tokens that come next, with a norm of their own; the keys and values are the tokens "
        "(XLNet, PARSeq). For decoders.",
        False,
    )
    output_scale: bool = option(
        "multiply the states behind all sub-layers by a number that no gradient trains (Gemma 4).",
        False,
    )
    dropout: float = option(
        "dropout rate on every sub-layer's output and on the sum of the embeddings.",
        0.0,
        rate=True,
        changeable=True,
    )

    def check(self):
        if getattr(self.mixer, "query_key_norm", None) == "per_head":
            self.check_head_norm(self.mixer.head_norm or self.norm)
        if self.global_norm and not (
            self.global_tokens
            and self.residual.order in ("pre", "sandwich")
            and self.residual.mixer_norm
            and (self.laurel, self.altup, self.convolution) == (None, None, None)
        ):
            raise ValueError(
                "`global_norm` needs a mixer whose pattern has `global_tokens`, the residual order "
                "'pre' or 'sandwich' with `mixer_norm`, and neither `laurel`, `altup` nor a "
                f"`convolution`, received {self}."
            )
        if self.sparse is not None and not isinstance(self.feed_forward, Dense):
            raise ValueError("`sparse` needs a `Dense` feed-forward layer beside the experts.")
        if self.laurel is not None and (
            self.residual.order not in ("pre", "sandwich")
            or not self.residual.mixer_norm
            or self.convolution is not None
        ):
            raise ValueError(
                "`laurel` reads what the mixer reads, behind a norm: it needs the residual order "
                f"'pre' or 'sandwich' with `mixer_norm`, and no `convolution`, received {self}."
            )
        if self.merging is not None and (self.altup or self.global_norm or self.merged_attention):
            raise ValueError(
                "`merging` cannot be combined with `altup`, `global_norm` or `merged_attention`."
            )
        if self.altup is not None and (self.output_scale or self.convolution is not None):
            raise ValueError("`altup` cannot be combined with `output_scale` or `convolution`.")
        beside = (self.laurel, self.altup, self.convolution, self.sparse)
        if self.conformer is not None and not (
            self.residual in (Residual(order="pre"), Residual(order="sandwich"))
            and isinstance(self.feed_forward, Dense)
            and beside == (None,) * 4
            and not (self.merged_attention or self.global_norm)
        ):
            raise ValueError(
                "`conformer` needs a `Dense` feed-forward layer, the residual order 'pre' or "
                "'sandwich' without scales, and neither `laurel`, `altup`, `convolution`, "
                "`sparse`, `global_norm` nor "
                f"`merged_attention`, received {self}."
            )
        if self.bottleneck is not None and (
            self.norm.type != "layer_norm"
            or self.altup is not None
            or self.global_norm
            or self.merged_attention
        ):
            raise ValueError(
                "`bottleneck` needs norms of the type 'layer_norm', and neither `altup`, "
                f"`global_norm` nor `merged_attention`, received {self}."
            )
        if self.merged_attention:
            self._check_merged()
        if self.query_stream:
            self._check_query_stream()
        if self.feed_forward is None and self.residual.is_parallel:
            raise ValueError(
                f"The residual order {self.residual.order!r} needs a feed-forward layer."
            )

    def _check_merged(self):
        """Raise ValueError if the mixer cannot attend to the encoder's states as well."""
        mixer = self.mixer
        fits = isinstance(mixer, Attention) and mixer.score == "scaled_dot" and mixer.has_keys
        fits = fits and mixer.score_bias is None
        pattern = mixer.pattern if fits else None
        windows = isinstance(pattern, Window) and not (
            pattern.bidirectional or pattern.global_tokens
        )
        if not fits or not (pattern is None or windows):
            raise ValueError(
                "`merged_attention` needs an `Attention` with score='scaled_dot', keys of its own, "
                "no `score_bias`, and no pattern other than a `Window` without global tokens, "
                f"received {mixer}."
            )

    def _check_query_stream(self):
        """Raise ValueError if a part of the block reads the tokens, whose stream it cannot keep."""
        mixer = self.mixer
        plain = isinstance(mixer, Attention) and mixer.has_keys and not mixer.output_gate
        plain = plain and (mixer.position, mixer.score_bias, mixer.pattern) == (None, None, None)
        beside = (self.merging, self.convolution, self.laurel, self.altup, self.layer_input)
        beside += (self.conformer, self.sparse, self.bottleneck)
        further = self.merged_attention or self.global_norm or self.output_scale
        usual = self.residual.order in ("pre", "sandwich") and self.residual.mixer_norm
        if not (plain and usual) or further or any(part is not None for part in beside):
            raise ValueError(
                "`query_stream` needs an `Attention` with keys of its own, without positions, a "
                "`score_bias`, a pattern or an `output_gate`, the residual order 'pre' or "
                "'sandwich' with `mixer_norm`, and no further part in the block, received "
                f"{self}."
            )

    @staticmethod
    def check_head_norm(norm: Norm) -> None:
        """Raise ValueError if this norm cannot have a weight for each head."""
        if norm.type not in ("layer_norm", "layer_norm_no_bias"):
            raise ValueError(
                "`query_key_norm_per_head` needs `query_key_norm` and a LayerNorm, 'layer_norm' or "
                f"'layer_norm_no_bias', received {norm.type!r}."
            )

    @property
    def cross_attention(self) -> Attention:
        """Cross-attention: the mixer without its positions, position bias and pattern.

        With `merged_attention` it has no weights of its own.
        """
        if not isinstance(self.mixer, Attention):
            raise ValueError(
                f"Cross-attention needs a block with an `Attention` as its mixer, received the "
                f"mixer {self.mixer.kind!r}."
            )
        return self.mixer.of_another_side

    @property
    def global_tokens(self) -> int:
        """Number of first tokens that the mixer's pattern lets see all others."""
        return getattr(getattr(self.mixer, "pattern", None), "global_tokens", 0)

    @property
    def on_grid(self) -> bool:
        """Whether the block needs the grid that the states form."""
        layers, own = (self.mixer, self.feed_forward), (self.merging, self.bottleneck)
        return own != (None, None) or any(getattr(each, "on_grid", False) for each in layers)

    @property
    def sublayers(self) -> tuple[str, ...]:
        """Names of the sub-layers that read the block's states."""
        further = {"feed_forward": self.feed_forward, "convolution": self.convolution}
        return (self.mixer.name, *(name for name, part in further.items() if part is not None))

    @property
    def dense_dim(self) -> int:
        """Inner width of dense feed-forward layers outside the blocks; 0 without such layers."""
        return 0 if self.feed_forward is None else self.feed_forward.dense_dim

    def weights(self, cross_attention: bool = False) -> tuple[Weight, ...]:
        """Return the weights of the block, with axes named after `sizes` and `hidden_dim`.

        Args:
            cross_attention: bool, whether the block attends to encoder states of the width
                `source_dim`.
        """
        kind = self.norm.type
        weights = () if self.merging is None else self.merging.weights(kind)
        weights += self.mixer.weights(self.mixer.name, kind)
        sublayers = self.sublayers
        if cross_attention and self.attends_to_source and not self.merged_attention:
            attention = self.cross_attention
            weights += attention.weights("cross_attention", kind, "source_dim")
            sublayers = ("cross_attention", *sublayers)
        if self.feed_forward is not None:
            weights += self.feed_forward.weights("feed_forward")
        if self.convolution is not None:
            weights += dense_of("convolution", "neighbours", "hidden_dim")
        if self.sparse is not None:
            weights += self.sparse.weights("sparse")
            for name in SPARSE_NORMS:
                weights += norm_of(name, kind)
        if self.global_norm:
            weights += norm_of("global_norm", kind)
        if self.query_stream:
            weights += norm_of("query_norm", kind)
        if self.output_scale:
            weights += weight_of("output_scale", "one")
        for own in (self.layer_input, self.laurel, self.altup, self.bottleneck):
            weights += () if own is None else own.weights(kind)
        if self.conformer is not None:
            own = self.residual.norms_outputs
            weights += self.conformer.weights(kind, self.feed_forward, own)
        for sublayer in sublayers:
            for name in self.residual.norms(sublayer):
                weights += norm_of(name, kind)
            if self.residual.trained_scale:
                weights += weight_of(f"{sublayer}_scale", "hidden_dim")
        return weights

    def sizes(self, hidden_dim: int) -> dict[str, int]:
        """Return the sizes of the axes of the block's weights, for states of this width."""
        sizes = {
            **self.mixer.sizes(hidden_dim),
            **({} if self.feed_forward is None else self.feed_forward.sizes),
            "hidden_dim": hidden_dim,
        }
        if self.merging is not None:
            sizes |= self.merging.sizes
        if self.sparse is not None:
            sizes |= self.sparse.sizes
        if self.output_scale:
            sizes["one"] = 1
        if self.layer_input is not None:
            sizes["layer_input_dim"] = self.layer_input.dim
        if self.laurel is not None:
            sizes["laurel_rank"] = self.laurel.rank
        if self.altup is not None:
            sizes |= self.altup.sizes
        if self.bottleneck is not None:
            sizes |= self.bottleneck.sizes
        if self.conformer is not None:
            sizes |= self.conformer.sizes(hidden_dim)
        if self.convolution is not None:
            sizes["neighbours"] = self.convolution.size * hidden_dim
        return sizes
