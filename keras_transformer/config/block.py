"""A block: a mixer and a feed-forward layer, their norms and residual connections."""

from collections.abc import Callable

from keras_transformer.config.feed_forward import ACTIVATIONS, FeedForward
from keras_transformer.config.mixers import Attention, Mixer
from keras_transformer.config.options import Part, option, part
from keras_transformer.config.weight import NORMALIZATIONS, Weight, dense_of, norm_of, weight_of

__all__ = ["Block", "Convolution", "Norm", "Residual"]

ORDERS = ("post", "pre", "sandwich", "output", "parallel", "parallel_shared")


@part
class Norm(Part):
    """Normalization of a block or a side: its type and its epsilon."""

    type: str = option(
        '`"layer_norm"`, `"layer_norm_no_bias"`, `"rms_norm"`, `"layer_norm_plus_one"` and '
        '`"rms_norm_plus_one"`, which multiply by their weight plus one (Nemotron, Gemma), '
        '`"rms_norm_no_weight"`, which has no weight (nanochat), or `"batch_norm"`, with a `stem` '
        "only: over all positions of a batch, with moving averages outside of training (PatchTST).",
        "layer_norm",
        choices=tuple(NORMALIZATIONS),
    )
    epsilon: float = option("added to the variance.", 1e-6, positive=True)


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
    convolution: Convolution | None = option("a convolution parallel to both sub-layers.", None)
    dropout: float = option(
        "dropout rate on every sub-layer's output and on the sum of the embeddings.",
        0.0,
        rate=True,
        changeable=True,
    )

    def check(self):
        if getattr(self.mixer, "query_key_norm", None) == "per_head":
            self.check_head_norm(self.norm)
        if self.feed_forward is None and self.residual.is_parallel:
            raise ValueError(
                f"The residual order {self.residual.order!r} needs a feed-forward layer."
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
        """Cross-attention: the mixer without its positions, position bias and pattern."""
        if not isinstance(self.mixer, Attention):
            raise ValueError(
                f"Cross-attention needs a block with an `Attention` as its mixer, received the "
                f"mixer {self.mixer.kind!r}."
            )
        return self.mixer.of_another_side

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
        weights = self.mixer.weights(self.mixer.name, kind)
        sublayers = self.sublayers
        if cross_attention:
            attention = self.cross_attention
            weights += attention.weights("cross_attention", kind, "source_dim")
            sublayers = ("cross_attention", *sublayers)
        if self.feed_forward is not None:
            weights += self.feed_forward.weights("feed_forward")
        if self.convolution is not None:
            weights += dense_of("convolution", "neighbours", "hidden_dim")
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
        if self.convolution is not None:
            sizes["neighbours"] = self.convolution.size * hidden_dim
        return sizes
