"""The further sub-layers of a Conformer's block."""

from keras_transformer.config.feed_forward import FeedForward
from keras_transformer.config.options import Part, option, part
from keras_transformer.config.weight import Weight, dense_of, norm_of

__all__ = ["Conformer"]


@part
class Conformer(Part):
    """Further sub-layers of a block, each with its norm and its residual connection.

    A feed-forward layer like the block's precedes the mixer, and a convolution follows it: a gated
    linear unit, a convolution of each feature by itself, a norm, the activation of the feed-forward
    layers and a projection. Half of what each feed-forward layer gives is added, and a norm follows
    the last one. A block that normalizes the outputs of its sub-layers also normalizes the outputs
    of both feed-forward layers (Gemma 4). If their projections are clipped, so are the projections
    of the convolution.

    Source: Gulati et al. 2020, "Conformer: Convolution-augmented Transformer for Speech
    Recognition", https://arxiv.org/abs/2005.08100, section 2.
    """

    size: int = option("number of states that the convolution sees.", 31, least=1, most=1024)
    causal: bool = option(
        "the convolution sees a state and those before it (w2v-BERT 2.0), rather than as many "
        "before it as behind it.",
        False,
    )

    use_bias: bool = option("a bias in the convolution and in its projections.", False)
    norm: str = option(
        'norm behind the convolution of each feature: `"block"`, as the others of the block, or '
        '`"batch"`, a batch norm (Parakeet).',
        "block",
        choices=("block", "batch"),
    )

    def check(self):
        if not self.causal and self.size % 2 == 0:
            raise ValueError(
                "`size` of a Conformer's convolution must be odd, so that it is centered on a "
                f"state, received {self.size}. Or give causal=True."
            )

    def weights(
        self, norm: str, feed_forward: FeedForward, norms_outputs: bool = False
    ) -> tuple[Weight, ...]:
        """Return the weights of the sub-layers, with norms of this type.

        Args:
            norm: kind of the norms of the block.
            feed_forward: feed-forward layer of the block; that before the mixer is like it.
            norms_outputs: bool, whether the block normalizes the outputs of its sub-layers.
        """
        clipped = getattr(feed_forward, "clipped", False)
        behind = norm_of("conformer/first_output_norm", norm) if norms_outputs else ()
        return (
            *norm_of("conformer/first_norm", norm),
            *behind,
            *feed_forward.weights("conformer/first"),
            *norm_of("conformer/convolution_norm", norm),
            *dense_of(
                "conformer/expansion", "hidden_dim", "conformer_gated", self.use_bias, clipped
            ),
            *dense_of(
                "conformer/depthwise_convolution", "conformer_size", "hidden_dim", self.use_bias
            ),
            *norm_of("conformer/depthwise_norm", "batch_norm" if self.norm == "batch" else norm),
            *dense_of("conformer/output", "hidden_dim", "hidden_dim", self.use_bias, clipped),
            *norm_of("conformer/final_norm", norm),
        )

    def sizes(self, hidden_dim: int) -> dict[str, int]:
        """Return the sizes of the weight axes that the side does not define, by name."""
        return {"conformer_size": self.size, "conformer_gated": 2 * hidden_dim}
