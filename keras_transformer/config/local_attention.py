"""Attention to a few states before each state, whose scores depend on the distance."""

from keras_transformer.config.mixers import Mixer
from keras_transformer.config.options import option, part
from keras_transformer.config.weight import dense_of, weight_of

__all__ = ["LocalAttention"]


@part
class LocalAttention(Mixer, kind="local_attention"):
    """`layers.mixers.local_attention.LocalAttentionMixer`: attention to the last few states.

    Each feature of a head's queries has a trained factor, `softplus(w) / ln 2`, and keys may be
    multiplied by `softplus(1) / ln 2`. To the product with a key that with a projected sinusoid of
    its distance is added. For encoders.

    Source: Zhang et al. 2023, "Google USM", section 2.2, https://arxiv.org/abs/2303.01037, in the
    published code of Gemma 3n and Gemma 4.
    """

    layer = "keras_transformer.layers.mixers.local_attention:LocalAttentionMixer"
    bidirectional = True

    num_heads: int = option("number of heads.", least=1)
    size: int = option(
        "number of states that a state sees: itself and those before it.", 12, least=1, most=2**12
    )
    soft_cap: float = option(
        "scores are capped softly: `cap * tanh(scores / cap)`.", 50.0, positive=True
    )
    scale_keys: bool = option(
        "multiply the keys by `softplus(1) / ln 2` (Gemma 4, not Gemma 3n).", True
    )
    clipped: bool = option(
        "clip the inputs and the outputs of each projection to ranges that no gradient trains.",
        False,
    )

    def for_width(self, hidden_dim):
        if hidden_dim % self.num_heads or hidden_dim % 2:
            raise ValueError(
                "`hidden_dim` must be even and divisible by `num_heads`, received hidden_dim="
                f"{hidden_dim} and num_heads={self.num_heads}."
            )
        return self

    def weights(self, name, norm, inputs="hidden_dim"):
        found = weight_of(f"{name}/query_scale", "head_dim")
        found += dense_of(f"{name}/position_key", "hidden_dim", "all_heads", bias=False)
        for each in ("query", "key", "value"):
            found += dense_of(f"{name}/{each}", inputs, "all_heads", False, self.clipped)
        return found + dense_of(f"{name}/output", "all_heads", "hidden_dim", False, self.clipped)

    def sizes(self, hidden_dim):
        # Not named `query_heads`, since each device holds these axes whole.
        return {"head_dim": hidden_dim // self.num_heads, "all_heads": hidden_dim}

    def num_seen(self, keys):
        return 2 * self.size  # of its block, and of the block before

    def pair_products(self, queries, keys, hidden_dim):
        return 3 * queries * self.num_seen(keys) * hidden_dim

    def kept_numbers(self, hidden_dim):
        heads = self.num_heads * self.num_seen(0)  # scores, before and behind the cap, and weights
        return 5 * hidden_dim + 3 * heads

    def cached(self, hidden_dim):
        raise ValueError("Local attention is for encoders, so it has no cache.")
