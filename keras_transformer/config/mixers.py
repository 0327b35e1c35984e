"""Mixers: the layers of a block that exchange information between tokens, such as attention."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

from keras_transformer.config.feed_forward import ACTIVATIONS, Dense
from keras_transformer.config.norm import Norm
from keras_transformer.config.options import Part, option, part
from keras_transformer.config.pattern import GridWindows, Pattern, VideoAxis
from keras_transformer.config.positions import Rotation
from keras_transformer.config.score_bias import (
    DecomposedBias,
    Disentangled,
    GatedRelativeBias,
    RelativeKeys,
    RelativeSinusoids,
    ScoreBias,
    WindowBias,
)
from keras_transformer.config.weight import Weight, dense_of, norm_of, weight_of
from keras_transformer.support.checking import is_number, shorten

__all__ = [
    "Attention", "Fourier", "GatedDelta", "GeneralizedDelta", "LatentAttention", "LinearRecurrence",
    "Mixer", "ShiftedFeedForward", "ShortConvolution", "StateSpace", "TokenMixing",
]  # fmt: skip

GATE_VALUES = 8  # outputs of the projection of a gated relative bias, four for each of two gates
SCORES = ("scaled_dot", "dot", "general", "additive", "cosine", "scaled_cosine", "location")


@part
class Mixer(Part):
    """Base class of mixers.

    The layer takes the part, `norm`, `causal` and Keras's arguments. It is called with states
    `(batch, length, hidden_dim)`, a `visibility`, `training`, and a `cache` with the sizes that
    `cached` returns.

    Attributes:
        name: name of the layer in a block, and of its weights.
        bidirectional: whether a token always sees the tokens behind it, so that only an encoder can
            have the mixer.
        attends: whether the layer returns attention weights and projections if asked for.
    """

    name: ClassVar[str] = "mixer"
    bidirectional: ClassVar[bool] = False
    attends: ClassVar[bool] = False

    @property
    def on_grid(self) -> bool:
        """Whether the layer needs the grid that the states form."""
        return False

    @property
    def takes_earlier(self) -> bool:
        """Whether the layer is given what an earlier one returned `for_later` layers."""
        return False

    def num_keys(self, states: int) -> int:
        """Return the number of keys and values for a number of states."""
        return states

    def num_seen(self, keys: int) -> int:
        """Return the number of keys that each query is multiplied with, of all keys."""
        return keys

    def takes_from(self, earlier: "Mixer") -> bool:
        """Return whether an earlier layer with this mixer has what the layer takes."""
        return False

    @property
    def has_cache(self) -> bool:
        """Whether the layer has a cache of its own, instead of the earlier layer's."""
        return True

    def for_width(self, hidden_dim: int) -> "Mixer":
        """Return the mixer with the sizes that follow from the width of the states.

        Raises ValueError if it cannot mix states of this width.
        """
        return self

    def for_side(self, hidden_dim: int, max_length: int) -> "Mixer":
        """Return the mixer with all values that follow from the sizes of its side."""
        return self.for_width(hidden_dim)

    def weights(self, name: str, norm: str, inputs: str = "hidden_dim") -> tuple[Weight, ...]:
        """Return the layer's weights, with axes named after `sizes`, `hidden_dim` and `inputs`.

        Args:
            name: name of the layer.
            norm: kind of the norms of the block.
            inputs: name of the axis of the states that keys and values are computed from.
        """
        return ()

    def sizes(self, hidden_dim: int) -> dict[str, int]:
        """Return the sizes of the weight axes that the side does not define, by name."""
        return {}

    @property
    def every_mixer(self) -> "tuple[Mixer, ...]":
        """The mixer itself, or those that it consists of."""
        return (self,)

    @property
    def uses_positions(self) -> bool:
        """Whether the mixer itself needs the positions of tokens."""
        return False

    @property
    def divided(self) -> dict[str, int]:
        """Sizes that the number of devices must divide, by name."""
        return {}

    def pair_products(self, queries: int, keys: int, hidden_dim: int) -> int:
        """Return the number of multiplications of queries with keys, without the projections."""
        return 0

    def cached_products(self, keys: int, hidden_dim: int) -> int:
        """Return the number of multiplications of one query with keys from a cache."""
        return self.pair_products(1, keys, hidden_dim)

    def kept_numbers(self, hidden_dim: int) -> int:
        """Return about how many numbers per token are kept for the gradient of the mixer.

        The scores of a mixer that `attends` are not included.
        """
        return 4 * hidden_dim

    def cached(self, hidden_dim: int) -> tuple:
        """Return the sizes of a cache: key-value heads, head width, and number of tokens kept.

        None as the number of tokens means that all tokens are kept. A recurrent mixer keeps no
        tokens but states of fixed size: it returns 0 heads of width 0, 1 token, and as a fourth
        item the shapes of the states of one row.
        """
        raise NotImplementedError


@part
class Attention(Mixer, kind="attention"):
    """`layers.MultiHeadAttention`: attention of every query to every visible key."""

    layer = "keras_transformer.layers.attention.multi_head_attention:MultiHeadAttention"
    name = "self_attention"
    attends = True

    num_heads: int = option("number of query heads.", least=1)
    num_key_value_heads: int | None = option(
        "number of key and value heads, fewer than `num_heads` for grouped-query attention. "
        "Defaults to `num_heads`.",
        None,
        least=1,
    )
    head_dim: int | None = option(
        "width of one head. Defaults to `hidden_dim // num_heads`.", None, least=1
    )
    bias: bool = option("biases of query, key and value.", True)
    key_bias: bool | None = option(
        "bias of the key, which changes no attention weight (Whisper leaves it out). Defaults to "
        "`bias`.",
        None,
    )
    output_bias: bool | None = option("bias of the output projection. Defaults to `bias`.", None)
    query_key_norm: str | None = option(
        'normalization of queries and keys: `"head"` normalizes each head, with one weight for '
        'all heads; `"rotated"` does so after the rotation (Hunyuan); `"across"` normalizes all '
        'heads together (OLMo 2); `"per_head"` normalizes each head, with a weight of its own and '
        "no bias (Cohere). None disables it.",
        None,
        choices=(None, "head", "rotated", "across", "per_head"),
    )
    head_norm: Norm | None = option(
        "the norms of `query_key_norm`. Defaults to norms like the block's.", None
    )
    value_norm: Norm | None = option(
        "the norm of each head's values (Gemma 4). None leaves them as they are.", None
    )
    value_source: str = option(
        'what values are: `"own"` projections of the states, or the projected `"keys"`, before '
        "their norm and rotation (Gemma 4).",
        "own",
        choices=("own", "keys"),
    )
    key_source: str = option(
        'whose keys and values are attended to: those of the `"own"` layer, or of the last '
        '`"earlier"` layer that has its own ones and the same pattern (Gemma 4). For decoders.',
        "own",
        choices=("own", "earlier"),
    )
    scale: float | None = option(
        "factor of the scores. Defaults to `head_dim ** -0.5`; T5 uses 1.", None, positive=True
    )
    soft_cap: float | None = option(
        "scores are capped softly: `cap * tanh(scores / cap)` (Gemma 2). None disables it.",
        None,
        positive=True,
    )
    sinks: bool = option("each head has a trained score for attending to nothing (gpt-oss).", False)
    output_gate: bool = option(
        "multiply the heads' outputs by the sigmoid of a projection of the queries' states, "
        "feature by feature, before the output projection (Qiu et al. 2025).",
        False,
    )
    clipped: bool = option(
        "clip the inputs and the outputs of each projection to ranges that no gradient trains "
        "(Gemma 4's image tower).",
        False,
    )
    query_scale: bool = option(
        "each feature of a head's queries has a trained factor, `softplus(w) / ln 2`, the same for "
        "all heads (TimesFM).",
        False,
    )
    dropout: float = option(
        "dropout rate on the attention weights.", 0.0, rate=True, changeable=True
    )
    score: str | Callable = option(
        "score function of the attention, see `layers.MultiHeadAttention`.",
        "scaled_dot",
        choices=SCORES,
        function=True,
    )
    slots: int | None = option(
        'number of keys that the score `"location"` has weights for. Defaults to the longest '
        "sequence.",
        None,
        least=1,
    )
    sequence_reduction: int = option(
        "rows and columns of the squares of a grid of patches that become one key and value, by a "
        "convolution and a norm (PVT, SegFormer). 1 keeps all. For encoders.",
        1,
        least=1,
        most=2**10,
    )
    position: Rotation | None = option("rotation of queries and keys.", None)
    score_bias: ScoreBias | None = option("position bias of the scores.", None)
    pattern: Pattern | None = option("which tokens see which.", None)

    def check(self):
        values = {
            "num_key_value_heads": self.num_heads,
            "key_bias": self.bias,
            "output_bias": self.bias,
        }
        for name, value in values.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(
                "`num_heads` must be a multiple of `num_key_value_heads`, received "
                f"{self.num_heads} and {self.num_key_value_heads}."
            )
        if self.head_norm is not None and self.query_key_norm is None:
            raise ValueError("`head_norm` needs a `query_key_norm`, received None.")
        if self.key_source == "earlier":
            own = {"score_bias": self.score_bias, "value_norm": self.value_norm}
            own["value_source"] = None if self.value_source == "own" else self.value_source
            found = next((name for name, value in own.items() if value is not None), None)
            if found is not None:
                raise ValueError(f"key_source='earlier' and `{found}` cannot be combined.")
        if self.clipped and (self.output_gate or self.score_bias or self.pattern):
            raise ValueError(
                "`clipped` projections need plain attention, without an `output_gate`, a "
                f"`score_bias` or a `pattern`, received {self}."
            )
        if self.score != "scaled_dot" and self.scale is not None:
            raise ValueError(f"`score_scale` needs score='scaled_dot', received {self.score!r}.")
        if isinstance(self.score_bias, Disentangled) and self.score != "scaled_dot":
            raise ValueError(f"`disentangled` needs score='scaled_dot', received {self.score!r}.")
        if isinstance(self.score_bias, RelativeSinusoids):
            plain = self.score == "scaled_dot" and self.pattern is None
            if not plain or self.num_key_value_heads != self.num_heads:
                raise ValueError(
                    "`RelativeSinusoids` need score='scaled_dot', no pattern and as many heads of "
                    f"keys as of queries, received {self}."
                )
        if isinstance(self.score_bias, RelativeKeys) and not (
            self.score == "scaled_dot" and self.pattern is None
        ):
            raise ValueError(
                f"`RelativeKeys` need score='scaled_dot' and no pattern, received {self}."
            )
        of_grid = isinstance(self.score_bias, (DecomposedBias, WindowBias))
        if of_grid or isinstance(self.pattern, GridWindows):
            self._check_on_grid()
        plain = self.score_bias is None and self.position is None and self.has_values
        if isinstance(self.pattern, VideoAxis) and not plain:
            raise ValueError(
                f"{self.pattern} needs keys and values of the layer's own, without rotations and "
                f"position biases, received {self}."
            )
        plain = self.has_values or self.pattern is None
        if not plain and (self.pattern.weights("", True, True)):
            raise ValueError(
                f"{self.pattern} needs projections of keys and of values of the layer's own, "
                f"received key_source={self.key_source!r}, value_source={self.value_source!r}."
            )
        if self.sequence_reduction > 1:
            self._check_reduction()
        if isinstance(self.score_bias, GatedRelativeBias) and self.pattern is not None:
            raise ValueError(f"A gated relative bias and {self.pattern} cannot be combined.")
        if self.position is not None and getattr(self.pattern, "global_projection", False):
            raise ValueError("`global_projection` and rotary positions cannot be combined.")

    def _check_reduction(self):
        """Raise ValueError if attention to fewer keys has values that it cannot have."""
        fits = self.has_values and self.score_bias is None and self.position is None
        if not fits or self.pattern is not None or self.score != "scaled_dot":
            raise ValueError(
                "`sequence_reduction` needs score='scaled_dot', keys and values of the layer's "
                "own, and neither a pattern, a bias of the scores nor a rotation, received "
                f"{self}."
            )

    @property
    def on_grid(self):
        windows = isinstance(self.pattern, GridWindows) and self.pattern.grid is None
        return windows or isinstance(self.pattern, VideoAxis) or self.sequence_reduction > 1

    def num_keys(self, states):
        return states // self.sequence_reduction**2  # of whole squares

    def num_seen(self, keys):
        if isinstance(self.pattern, VideoAxis):
            return self.pattern.num_seen(keys)
        return self.pattern.size**2 if isinstance(self.pattern, GridWindows) else keys

    def _check_on_grid(self):
        """Raise ValueError if attention over a grid of patches has values that it cannot have."""
        bias, pattern = self.score_bias, self.pattern
        windows = isinstance(pattern, GridWindows)
        fits = bias is None or (isinstance(bias, DecomposedBias) and not (windows or pattern))
        if windows and isinstance(bias, DecomposedBias):
            fits = bias.grid == pattern.grid and not pattern.shift
        elif windows and isinstance(bias, WindowBias):
            fits = True
        scores = ("scaled_dot",)
        if windows and not self.key_bias:  # else the cosine would need the padding's own length
            scores += ("scaled_cosine",)
        plain = self.score in scores and self.num_key_value_heads == self.num_heads
        plain = plain and self.soft_cap is None and not self.sinks
        if windows:  # whose padding has keys and values that are biases alone
            plain = plain and self.position is None and self.query_key_norm is None
            plain = plain and self.value_norm is None and self.has_values
        if not (fits and plain):
            raise ValueError(
                "Attention over a grid, with `DecomposedBias`, `WindowBias` or `GridWindows`, "
                "needs one grid and no shift for `DecomposedBias` in windows, windows for "
                "`WindowBias`, no other pattern or bias of the scores, score='scaled_dot' or, in "
                "windows and with key_bias=False, 'scaled_cosine', as many "
                "heads of keys as of queries, and neither a cap, sinks nor, in windows, rotations "
                f"and norms of heads. Received {self}."
            )

    @property
    def scored_grid(self) -> tuple[int, int] | None:
        """Rows and columns of the places whose distances have scores of their own, or None."""
        if not isinstance(self.score_bias, (DecomposedBias, WindowBias)):
            return None
        windows = isinstance(self.pattern, GridWindows)
        return (self.pattern.size,) * 2 if windows else self.score_bias.grid

    def for_width(self, hidden_dim):
        if self.head_dim is not None:
            return self
        if hidden_dim % self.num_heads:
            raise ValueError(
                "`hidden_dim` must be divisible by `num_heads`, received hidden_dim="
                f"{hidden_dim} and num_heads={self.num_heads}. Change one of them, or give "
                "`head_dim`."
            )
        return self.replace(head_dim=hidden_dim // self.num_heads)

    def for_side(self, hidden_dim, max_length):
        if isinstance(self.score_bias, GatedRelativeBias) and hidden_dim % self.num_heads:
            raise ValueError(
                "A gated relative bias divides the states by heads: `hidden_dim` must be a "
                f"multiple of `num_heads`, received {hidden_dim} and {self.num_heads}."
            )
        mixer, rotary = self.for_width(hidden_dim), self.position
        if self.score == "location" and self.slots is None:
            mixer = mixer.replace(slots=max_length)
        if rotary is not None:
            mixer = mixer.replace(position=rotary.for_side(mixer.head_dim, max_length))
        return mixer

    def weights(self, name, norm, inputs="hidden_dim"):
        biases = {"query": self.bias, "value": self.bias, "key": self.key_bias}
        shape = {
            "general": ("head_dim", "head_dim"),
            "additive": ("head_dim",),
            "location": ("head_dim", "slots"),
        }
        clip = self.clipped
        weights = dense_of(f"{name}/query", "hidden_dim", "query_heads", biases["query"], clip)
        if self.has_keys:
            weights += dense_of(f"{name}/key", inputs, "key_heads", biases["key"], clip)
        if self.has_values:
            weights += dense_of(f"{name}/value", inputs, "key_heads", biases["value"], clip)
        weights += dense_of(f"{name}/output", "query_heads", "hidden_dim", self.output_bias, clip)
        if self.sequence_reduction > 1:
            square = ("reduction", "reduction")
            path = f"{name}/reduction"
            weights += weight_of(f"{path}/convolution/kernel", *square, inputs, "hidden_dim")
            weights += weight_of(f"{path}/convolution/bias", "hidden_dim")
            weights += norm_of(f"{path}/norm", norm)
        if self.value_norm is not None:
            weights += norm_of(f"{name}/value_norm", self.value_norm.type, "head_dim")
        if self.output_gate:
            weights += dense_of(f"{name}/gate", "hidden_dim", "query_heads", self.bias)
        if self.pattern is not None:
            weights += self.pattern.weights(name, self.bias, self.key_bias)
        if isinstance(self.score_bias, Disentangled) and self.score_bias.projections == "own":
            weights += dense_of(f"{name}/position_query", "hidden_dim", "query_heads", self.bias)
            weights += dense_of(f"{name}/position_key", "hidden_dim", "key_heads", self.bias)
        of_mixer = (DecomposedBias, RelativeKeys, RelativeSinusoids, WindowBias)
        if isinstance(self.score_bias, of_mixer):
            weights += self.score_bias.of_mixer(name)
        if isinstance(self.score_bias, GatedRelativeBias):
            weights += dense_of(f"{name}/bias_gate", "states_of_head", "gate_values")
            weights += weight_of(f"{name}/bias_gate_scale", "num_heads")
        if self.query_key_norm == "per_head":
            weights += weight_of(f"{name}/query_norm/gamma", "each_head", "head_dim")
            if self.has_keys:
                weights += weight_of(f"{name}/key_norm/gamma", "each_key_head", "head_dim")
        elif self.query_key_norm is not None:
            across = self.query_key_norm == "across"
            norm = norm if self.head_norm is None else self.head_norm.type
            weights += norm_of(f"{name}/query_norm", norm, "all_queries" if across else "head_dim")
            if self.has_keys:
                weights += norm_of(f"{name}/key_norm", norm, "all_keys" if across else "head_dim")
        if self.query_scale:
            weights += weight_of(f"{name}/query_scale", "head_dim")
        if self.score in shape:
            weights += weight_of(f"{name}/score/kernel", "num_heads", *shape[self.score])
        elif self.score == "cosine":
            weights += weight_of(f"{name}/score/strength", "num_heads")
        elif self.score == "scaled_cosine":
            weights += weight_of(f"{name}/score/log_strength", "num_heads")
        return weights + (weight_of(f"{name}/sinks", "num_heads") if self.sinks else ())

    def sizes(self, hidden_dim):
        heads, key_heads, width = self.num_heads, self.num_key_value_heads, self.head_dim
        rows, columns = self.scored_grid or (0, 0)
        return {
            "num_heads": heads,
            "head_dim": width,
            "slots": self.slots or 0,
            "reduction": self.sequence_reduction,
            "query_heads": heads * width,
            "key_heads": key_heads * width,
            # Named apart from `query_heads`, since each device holds these axes whole.
            "all_queries": heads * width,
            "all_keys": key_heads * width,
            "states_of_head": hidden_dim // heads,
            "gate_values": GATE_VALUES,
            "one": 1,
            "each_head": heads,
            "each_key_head": key_heads,
            "both": 2,
            "row_distances": 2 * rows - 1,
            "column_distances": 2 * columns - 1,
            "window_distances": (2 * rows - 1) * (2 * columns - 1),
            "key_distances": getattr(self.score_bias, "number", 0),
            "bias_dim": getattr(self.score_bias, "inner_dim", 0),
        }

    @property
    def uses_positions(self):
        return self.position is not None or self.score_bias is not None

    @property
    def divided(self):
        return {"num_heads": self.num_heads, "num_key_value_heads": self.num_key_value_heads}

    @property
    def has_keys(self) -> bool:
        """Whether the layer has keys and values of its own."""
        return self.key_source == "own"

    @property
    def takes_earlier(self):
        return not self.has_keys

    def takes_from(self, earlier):
        sizes = ("pattern", "num_key_value_heads", "head_dim")
        alike = all(getattr(self, name) == getattr(earlier, name, None) for name in sizes)
        return isinstance(earlier, Attention) and earlier.has_keys and alike

    @property
    def has_cache(self):
        return self.has_keys

    @property
    def has_values(self) -> bool:
        """Whether the layer projects its values apart from its keys."""
        return self.has_keys and self.value_source == "own"

    @property
    def of_another_side(self) -> "Attention":
        """The same attention as cross-attention: without positions, position bias and pattern."""
        return self.replace(position=None, score_bias=None, pattern=None, sequence_reduction=1)

    def pair_products(self, queries, keys, hidden_dim):
        keys = self.num_seen(self.num_keys(keys))
        total = 2 * queries * keys * self.num_heads * self.head_dim
        if isinstance(
            self.score_bias, DecomposedBias
        ):  # with each distance in rows, and in columns
            total += queries * sum(self.scored_grid) * self.num_heads * self.head_dim
        if isinstance(self.score_bias, Disentangled):  # with each relative position
            states = self.score_bias.num_buckets * self.num_heads * self.head_dim
            total += (queries + keys) * states
        if isinstance(self.score_bias, RelativeKeys):  # with each distance
            total += queries * self.score_bias.number * self.num_heads * self.head_dim
        if isinstance(self.score_bias, RelativeSinusoids):  # with each distance
            total += queries * 2 * keys * self.num_heads * self.head_dim
        return total

    def cached(self, hidden_dim):
        receptive_field = None if self.pattern is None else self.pattern.receptive_field
        if not self.has_keys:
            return 0, 0, receptive_field
        return self.num_key_value_heads, self.head_dim, receptive_field


@part
class Fourier(Mixer, kind="fourier"):
    """`layers.mixers.fourier.FourierMixer`: Fourier transforms, without weights (FNet)."""

    layer = "keras_transformer.layers.mixers.fourier:FourierMixer"
    bidirectional = True

    def pair_products(self, queries, keys, hidden_dim):
        # Cosines and sines, first over the features of all tokens, then over the tokens.
        return 2 * keys * hidden_dim * (hidden_dim + queries)

    def cached(self, hidden_dim):
        raise ValueError("A Fourier transform reads whole texts, so it has no cache.")


@part
class TokenMixing(Mixer, kind="token_mixing"):
    """`layers.mixers.token_mixing.TokenMixer`: a feed-forward layer over the tokens (MLP-Mixer)."""

    layer = "keras_transformer.layers.mixers.token_mixing:TokenMixer"
    bidirectional = True

    length: int = option("number of tokens that are mixed, the same for all inputs.", least=1)
    groups: int = option(
        "number of groups of `length` tokens that an input consists of. Each is mixed by itself, "
        "with the same weights.",
        1,
        least=1,
    )
    interleaved: bool = option(
        "the tokens of a group are `groups` places apart, instead of beside each other (TSMixer's "
        "mixing of channels).",
        False,
    )
    dim: int = option("width of the feed-forward layer.", least=1)
    activation: str = option("one of `config.ACTIVATIONS`.", "gelu", choices=ACTIVATIONS)
    softmax_gate: bool = option(
        "multiply the output by a softmax, over the tokens, of a projection of it (TSMixer).", False
    )

    softmax_gate_first: bool = option(
        "`softmax_gate` only. Multiply the input instead of the output.", False
    )

    @property
    def feed_forward(self) -> Dense:
        """The feed-forward layer, which all features share."""
        names = ("dim", "activation", "softmax_gate", "softmax_gate_first")
        return Dense(**{name: getattr(self, name) for name in names})

    @property
    def num_tokens(self) -> int:
        """Number of tokens of an input."""
        return self.length * self.groups

    def check(self):
        self.feed_forward  # noqa: B018

    def weights(self, name, norm, inputs="hidden_dim"):
        axes = {"hidden_dim": "mixed_tokens", "intermediate_dim": "mixing_dim"}
        return tuple(
            dataclasses.replace(each, axes=tuple(axes[axis] for axis in each.axes))
            for each in self.feed_forward.weights(f"{name}/tokens")
        )

    def sizes(self, hidden_dim):
        return {"mixed_tokens": self.length, "mixing_dim": self.dim}

    def pair_products(self, queries, keys, hidden_dim):
        # The kernels multiply each feature of the states, and not each token.
        kernels = 2 * self.dim + self.softmax_gate * self.length
        return kernels * self.length * (self.groups * hidden_dim - queries)

    def cached(self, hidden_dim):
        raise ValueError(
            "A feed-forward layer over the tokens reads whole inputs: it has no cache."
        )


@part
class LatentAttention(Mixer, kind="latent_attention"):
    """`layers.mixers.latent_attention.MultiHeadLatentAttention`: one compressed vector a token.

    The keys and values of all heads are projected from one narrow latent vector for each token, and
    all heads share one rotated key beside it. A cache keeps only these two. The names of the sizes
    are those of DeepSeek-V2, which introduced it.
    """

    layer = "keras_transformer.layers.mixers.latent_attention:MultiHeadLatentAttention"
    name = "self_attention"
    attends = True

    num_heads: int = option("number of query heads.", least=1)
    kv_lora_rank: int = option(
        "width of the latent vector that keys and values are projected from, an even number.",
        least=2,
    )
    q_lora_rank: int | None = option(
        "width of the latent vector that queries are projected from. None projects them from the "
        "states themselves.",
        None,
        least=1,
    )
    qk_nope_head_dim: int = option(
        "width of a head's queries and keys without the rotated features.", 128, least=1
    )
    qk_rope_head_dim: int = option(
        "number of rotated features of each query, and of the key that all heads share; an even "
        "number.",
        64,
        least=2,
    )
    v_head_dim: int = option("width of a head's values.", 128, least=1)
    bias: bool = option(
        "biases of the projections from the states to latent vectors, and of the output.", False
    )
    norm_epsilon: float = option(
        "epsilon of the norms of the latent vectors, which are of the type of the block's norms.",
        1e-6,
        positive=True,
    )
    scale: float | None = option(
        "factor of the scores. Defaults to `(qk_nope_head_dim + qk_rope_head_dim) ** -0.5`.",
        None,
        positive=True,
    )
    dropout: float = option(
        "dropout rate on the attention weights.", 0.0, rate=True, changeable=True
    )
    position: Rotation | None = option(
        "rotation of the last features of queries and of the shared key.", None
    )

    def check(self):
        for name in ("kv_lora_rank", "qk_rope_head_dim"):
            if getattr(self, name) % 2:
                raise ValueError(f"`{name}` must be even, received {getattr(self, name)}.")

    @property
    def qk_head_dim(self) -> int:
        """Width of a head's queries and keys."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def for_side(self, hidden_dim, max_length):
        if self.position is None:
            return self
        position = self.position.for_side(self.qk_rope_head_dim, max_length)
        return self.replace(position=position)

    def weights(self, name, norm, inputs="hidden_dim"):
        queries = "hidden_dim"
        weights: tuple[Weight, ...] = ()
        if self.q_lora_rank is not None:
            queries = "query_latent"
            weights += dense_of(f"{name}/query_down", "hidden_dim", queries, self.bias)
            weights += norm_of(f"{name}/query_norm", norm, queries)
        return (
            *weights,
            *dense_of(f"{name}/query", queries, "query_heads", bias=False),
            *dense_of(f"{name}/latent", inputs, "latent_and_key", self.bias),
            *norm_of(f"{name}/latent_norm", norm, "latent"),
            *dense_of(f"{name}/key", "latent", "key_heads", bias=False),
            *dense_of(f"{name}/value", "latent", "value_heads", bias=False),
            *dense_of(f"{name}/output", "value_heads", "hidden_dim", self.bias),
        )

    def sizes(self, hidden_dim):
        heads, rank = self.num_heads, self.kv_lora_rank
        return {
            "query_latent": self.q_lora_rank or 0,
            "latent": rank,
            "latent_and_key": rank + self.qk_rope_head_dim,
            "query_heads": heads * self.qk_head_dim,
            "key_heads": heads * self.qk_nope_head_dim,
            "value_heads": heads * self.v_head_dim,
        }

    @property
    def uses_positions(self):
        return self.position is not None

    @property
    def divided(self):
        return {"num_heads": self.num_heads}

    def pair_products(self, queries, keys, hidden_dim):
        # Heads of one width, to which the narrower ones are padded.
        return 2 * queries * keys * self.num_heads * max(self.qk_head_dim, self.v_head_dim)

    def cached_products(self, keys, hidden_dim):
        # Queries meet the latent vectors and rotated keys themselves, and so do the weights.
        return 2 * keys * self.num_heads * (self.kv_lora_rank + self.qk_rope_head_dim)

    def kept_numbers(self, hidden_dim):
        # Heads of queries, keys and values and of the sum, and the latent vectors with their norms.
        heads = self.num_heads * (
            2 * self.qk_head_dim + self.qk_nope_head_dim + 3 * self.v_head_dim
        )
        return heads + 3 * (self.kv_lora_rank + (self.q_lora_rank or 0)) + self.qk_rope_head_dim

    def cached(self, hidden_dim):
        # Each latent vector and its rotated key are kept in two halves, as the key and the value of
        # one head.
        return 1, (self.kv_lora_rank + self.qk_rope_head_dim) // 2, None


@part
class ShortConvolution(Mixer, kind="short_convolution"):
    """`layers.mixers.short_convolution.GatedShortConvolution`: a gated causal convolution."""

    layer = "keras_transformer.layers.mixers.short_convolution:GatedShortConvolution"

    size: int = option(
        "number of tokens that the convolution sees: the token itself and the tokens before it.",
        3,
        least=1,
        most=1024,
    )
    bias: bool = option("biases of the projections and of the convolution.", False)

    def for_width(self, hidden_dim):
        if hidden_dim % 2:
            raise ValueError(
                f"A mixer of kind {self.kind!r} needs an even `hidden_dim`, received {hidden_dim}."
            )
        return self

    def weights(self, name, norm, inputs="hidden_dim"):
        # Not "convolution", the name of the layer of an encoder's block, whose kernel is a matrix.
        convolution = f"{name}/short_convolution"
        bias = weight_of(f"{convolution}/bias", "hidden_dim") if self.bias else ()
        return (
            *dense_of(f"{name}/input", "hidden_dim", "gated_dim", self.bias),
            *weight_of(f"{convolution}/kernel", "kernel_size", "hidden_dim"),
            *bias,
            *dense_of(f"{name}/output", "hidden_dim", "hidden_dim", self.bias),
        )

    def sizes(self, hidden_dim):
        return {"gated_dim": 3 * hidden_dim, "kernel_size": self.size}

    def kept_numbers(self, hidden_dim):
        return (5 + self.size) * hidden_dim

    def cached(self, hidden_dim):
        # Each gated state is kept in two halves, as the key and the value of one head.
        return 1, hidden_dim // 2, self.size


@part
class StateSpace(Mixer, kind="state_space"):
    """`layers.mixers.state_space.SelectiveStateSpace`: a selective state space (Mamba 2).

    Each head keeps a matrix, which fades by a factor and takes up the outer product of two
    projections of each token.
    """

    layer = "keras_transformer.layers.mixers.state_space:SelectiveStateSpace"

    num_heads: int = option("number of heads, each with one factor of decay.", least=1)
    head_dim: int = option("width of one head.", least=1)
    state_dim: int = option("number of states for each feature of a head.", 128, least=1)
    num_groups: int = option(
        "number of groups of heads that share the projections into and out of the states.",
        1,
        least=1,
    )
    convolution_size: int = option(
        "number of tokens that the convolution before the recurrence sees.", 4, least=2, most=1024
    )
    convolution_bias: bool = option("bias of the convolution.", True)
    bias: bool = option("biases of the projections.", False)
    gated_norm: str = option(
        'the norm of the outputs: `"after_gate"`, `"before_gate"`, or `"none"` beside the gate '
        "(Falcon-H1).",
        "after_gate",
        choices=("after_gate", "before_gate", "none"),
    )
    projection_scales: tuple | list | None = option(
        "factors of the projected gates, of the features, of the projections into and out of the "
        "states, and of the steps: five positive numbers (Falcon-H1). None for factors of 1.",
        None,
    )
    least_step: float | None = option(
        "smallest step of a token, to which smaller ones are raised (Nemotron-H).",
        None,
        positive=True,
    )
    chunk_size: int = option(
        "number of tokens whose pairs are computed at once; no output depends on it.",
        256,
        least=1,
        most=2**16,
        changeable=True,
    )

    def check(self):
        if self.num_heads % self.num_groups:
            raise ValueError(
                "`num_heads` of a state space must be a multiple of `num_groups`, received "
                f"{self.num_heads} and {self.num_groups}."
            )
        scales = self.projection_scales
        positive = all(is_number(each) and 0 < each < 1e30 for each in scales or ())
        if scales is not None and (len(scales) != 5 or not positive):
            raise ValueError(
                f"`projection_scales` must be five positive numbers, received {shorten(scales)}."
            )

    @property
    def inner_dim(self) -> int:
        """Width of all heads together."""
        return self.num_heads * self.head_dim

    @property
    def mixed_dim(self) -> int:
        """Number of features that the convolution reads: of the heads and of both projections."""
        return self.inner_dim + 2 * self.num_groups * self.state_dim

    def weights(self, name, norm, inputs="hidden_dim"):
        each = (f"{name}/{weight}" for weight in ("decay", "skip", "step_bias"))
        convolution = f"{name}/short_convolution"
        bias = weight_of(f"{convolution}/bias", "mixed_dim") if self.convolution_bias else ()
        return (
            *dense_of(f"{name}/input", "hidden_dim", "projected_dim", self.bias),
            *weight_of(f"{convolution}/kernel", "kernel_size", "mixed_dim"),
            *bias,
            *(weight for path in each for weight in weight_of(path, "state_heads")),
            *(() if self.gated_norm == "none" else weight_of(f"{name}/norm/scale", "inner_dim")),
            *dense_of(f"{name}/output", "inner_dim", "hidden_dim", self.bias),
        )

    def sizes(self, hidden_dim):
        return {
            "projected_dim": self.inner_dim + self.mixed_dim + self.num_heads,
            "kernel_size": self.convolution_size,
            "mixed_dim": self.mixed_dim,
            "inner_dim": self.inner_dim,
            "state_heads": self.num_heads,
        }

    def pair_products(self, queries, keys, hidden_dim):
        # Of the states; and if there are several tokens, of the pairs in each chunk.
        of_states = 2 * self.inner_dim * self.state_dim
        chunk = 0 if queries == 1 else min(self.chunk_size, keys)
        return queries * (of_states + chunk * (self.num_groups * self.state_dim + self.inner_dim))

    def kept_numbers(self, hidden_dim):
        chunk = 3 * self.num_heads * self.chunk_size  # decays and scores of a token's pairs
        return chunk + 7 * self.inner_dim + (self.convolution_size + 4) * self.mixed_dim

    def cached(self, hidden_dim):
        last = (self.convolution_size - 1, self.mixed_dim)
        return 0, 0, 1, (last, (self.num_heads, self.head_dim, self.state_dim))


@part
class GatedDelta(Mixer, kind="gated_delta"):
    """`layers.mixers.gated_delta.GatedDeltaRule`: an associative memory of keys and values.

    Each head keeps a matrix, which fades by a factor, or by one for each feature of keys. A token
    replaces a share of what the matrix returns for the token's key by the token's value, and reads
    with its query.
    """

    layer = "keras_transformer.layers.mixers.gated_delta:GatedDeltaRule"

    num_key_heads: int = option("number of heads of queries and keys.", least=1)
    num_value_heads: int = option(
        "number of heads of values, each with a matrix; a multiple of `num_key_heads`.", least=1
    )
    key_dim: int = option("width of one head of queries and keys.", least=1)
    value_dim: int = option("width of one head of values.", least=1)
    convolution_size: int = option(
        "number of tokens that the convolutions of queries, keys and values see.",
        4,
        least=2,
        most=1024,
    )
    activation: str = option("activation behind the convolutions.", "silu", choices=ACTIVATIONS)
    strength: float = option(
        "largest share of an old value that a token replaces. Beyond 1, up to 2, the new value "
        "overshoots, which gives the matrix negative eigenvalues (Grazzi et al. 2024).",
        1.0,
        positive=True,
    )
    decay: str = option(
        'what fades by a factor of its own: the matrix of each `"head"`, or its rows, for each '
        '`"feature"` of keys (Kimi Delta Attention).',
        "head",
        choices=("head", "feature"),
    )
    rank: int | None = option(
        "width of two narrow projections of the states, from which the factors and the gate are "
        "projected (Kimi Delta Attention). None projects both from the states themselves.",
        None,
        least=1,
    )
    gate_activation: str = option(
        "activation of the gate of the output.", "silu", choices=("silu", "sigmoid")
    )
    epsilon: float | None = option(
        "epsilon of the norm of each head's output. Defaults to that of the block's norm.",
        None,
        positive=True,
    )
    chunk_size: int = option(
        "number of tokens whose pairs are computed at once; no output depends on it. With "
        '`decay="feature"` each pair takes `key_dim` numbers of memory, and 16 is a good size.',
        64,
        least=1,
        most=2**16,
        changeable=True,
    )

    def check(self):
        if self.num_value_heads % self.num_key_heads:
            raise ValueError(
                "`num_value_heads` must be a multiple of `num_key_heads`, received "
                f"{self.num_value_heads} and {self.num_key_heads}."
            )
        if self.strength > 2:
            raise ValueError(
                f"`strength` must be at most 2, beyond which states grow, received {self.strength}."
            )

    @property
    def mixed_dim(self) -> int:
        """Number of features of queries, keys and values, which the convolutions read."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def num_decays(self) -> int:
        """Number of factors of a token: one for each head, or for each feature of its keys."""
        return self.num_value_heads * (self.key_dim if self.decay == "feature" else 1)

    def weights(self, name, norm, inputs="hidden_dim"):
        dims = {"query": "state_keys", "key": "state_keys", "value": "state_values"}
        narrow = {"gate": "state_values", "step": "state_decays"}
        inputs_of = "hidden_dim" if self.rank is None else "state_rank"
        denses = {part: ("hidden_dim", dim) for part, dim in dims.items()}
        denses |= {part: (inputs_of, dim) for part, dim in narrow.items()}
        denses["strength"] = ("hidden_dim", "state_heads")
        if self.rank is not None:
            denses |= {f"{part}_down": ("hidden_dim", "state_rank") for part in narrow}
        return (
            *(
                weight
                for part, (before, after) in denses.items()
                for weight in dense_of(f"{name}/{part}", before, after, False)
            ),
            *(
                weight
                for part, dim in dims.items()
                for weight in weight_of(f"{name}/{part}_convolution/kernel", "kernel_size", dim)
            ),
            *weight_of(f"{name}/decay", "state_heads"),
            *weight_of(f"{name}/step_bias", "state_decays"),
            *weight_of(f"{name}/norm/scale", "state_value"),
            *dense_of(f"{name}/output", "state_values", "hidden_dim", False),
        )

    def sizes(self, hidden_dim):
        return {
            "kernel_size": self.convolution_size,
            "state_heads": self.num_value_heads,
            "state_decays": self.num_decays,
            "state_rank": self.rank or 0,
            "state_keys": self.num_key_heads * self.key_dim,
            "state_values": self.num_value_heads * self.value_dim,
            "state_value": self.value_dim,
        }

    def pair_products(self, queries, keys, hidden_dim):
        # What a matrix returns for the key, the change, and what it returns for the query.
        matrix = self.key_dim * self.value_dim
        if queries == 1:
            return 3 * self.num_value_heads * matrix
        # In chunks: two triangular systems, scores of keys and of queries, and outputs; from chunk
        # to chunk a product of matrices as wide as the keys.
        chunk = min(self.chunk_size, keys)
        pairs = chunk * (3 * self.key_dim + 2 * self.value_dim)
        pairs += 2 * chunk * self.key_dim if self.decay == "feature" else 0
        passed = (self.key_dim + self.value_dim) * self.key_dim
        passed += self.key_dim * self.key_dim * self.value_dim // chunk + 2 * matrix
        return queries * self.num_value_heads * (pairs + passed)

    def kept_numbers(self, hidden_dim):
        each = 3 + (self.key_dim if self.decay == "feature" else 1)
        chunk = each * self.num_value_heads * self.chunk_size  # decays, scores and systems
        heads = self.num_value_heads * (5 * self.key_dim + 6 * self.value_dim)
        return chunk + heads + (self.convolution_size + 3) * self.mixed_dim

    def cached(self, hidden_dim):
        last = (self.convolution_size - 1, self.mixed_dim)
        return 0, 0, 1, (last, (self.num_value_heads, self.key_dim, self.value_dim))


@part
class LinearRecurrence(Mixer, kind="linear_recurrence"):
    """`layers.mixers.linear_recurrence.GatedLinearRecurrence`: states of one number each (RG-LRU).

    Each feature is a state by itself, which fades by a factor of its own. Gates that depend on the
    token slow the fading and weaken what the token adds.
    """

    layer = "keras_transformer.layers.mixers.linear_recurrence:GatedLinearRecurrence"

    state_dim: int = option("number of states, the width within the mixer.", least=1)
    num_heads: int = option(
        "number of equal parts of the states; the gates of each depend on its own features alone.",
        least=1,
    )
    convolution_size: int = option(
        "number of tokens that the convolution before the recurrence sees.", 4, least=2, most=1024
    )
    activation: str = option(
        "activation of the branch that the states are multiplied by.",
        "gelu_tanh",
        choices=ACTIVATIONS,
    )
    chunk_size: int = option(
        "number of tokens whose states are computed at once; no output depends on it.",
        64,
        least=1,
        most=2**16,
        changeable=True,
    )

    def check(self):
        if self.state_dim % self.num_heads:
            raise ValueError(
                "`state_dim` of a linear recurrence must be a multiple of `num_heads`, received "
                f"{self.state_dim} and {self.num_heads}."
            )

    def weights(self, name, norm, inputs="hidden_dim"):
        convolution = f"{name}/short_convolution"
        gates = (f"{name}/{gate}" for gate in ("input_gate", "recurrence_gate"))
        return (
            *dense_of(f"{name}/input", "hidden_dim", "state_dim"),
            *dense_of(f"{name}/gate", "hidden_dim", "state_dim"),
            *weight_of(f"{convolution}/kernel", "kernel_size", "state_dim"),
            *weight_of(f"{convolution}/bias", "state_dim"),
            *(
                weight
                for gate in gates
                for weight in (
                    *weight_of(f"{gate}/kernel", "each_state_head", "state_head", "state_head"),
                    *weight_of(f"{gate}/bias", "each_state_head", "state_head"),
                )
            ),
            *weight_of(f"{name}/decay", "state_dim"),
            *dense_of(f"{name}/output", "state_dim", "hidden_dim"),
        )

    def sizes(self, hidden_dim):
        return {
            "state_dim": self.state_dim,
            "each_state_head": self.num_heads,
            "state_head": self.state_dim // self.num_heads,
            "kernel_size": self.convolution_size,
        }

    def pair_products(self, queries, keys, hidden_dim):
        # Each doubling multiplies states and factors.
        doublings = 0 if queries == 1 else (min(self.chunk_size, keys) - 1).bit_length()
        return queries * self.state_dim * (1 + 2 * doublings)

    def kept_numbers(self, hidden_dim):
        doublings = (self.chunk_size - 1).bit_length()
        return self.state_dim * (self.convolution_size + 10 + 2 * doublings)

    def cached(self, hidden_dim):
        # The last number is 1 behind the first token, which enters the states whole.
        last = (self.convolution_size - 1, self.state_dim)
        return 0, 0, 1, (last, (self.state_dim,), (1,))


@part
class GeneralizedDelta(Mixer, kind="generalized_delta"):
    """`layers.mixers.generalized_delta.GeneralizedDeltaRule`: RWKV-7's associative memory.

    Each head keeps a matrix, whose rows fade by a factor each. A token takes from the matrix a
    share of what it returns for one key, with a share of its own for each row, adds its value under
    another key, and reads. Every projection reads a mixture of the token and the one before. From
    the second such layer on, the values are mixed with those of the first.
    """

    layer = "keras_transformer.layers.mixers.generalized_delta:GeneralizedDeltaRule"

    head_dim: int = option("width of one head of queries, keys and values.", 64, least=1)
    decay_rank: int = option("width of the projection for the factors of the rows.", 64, least=1)
    rate_rank: int = option(
        "width of the projection for the shares of the rows that a token takes.", 64, least=1
    )
    gate_rank: int = option("width of the projection for the gate.", 128, least=1)
    value_rank: int | None = option(
        "width of the projection for how much of the values is those of the first layer. None in "
        "the first layer, whose values the later ones take.",
        None,
        least=1,
    )
    epsilon: float = option("epsilon of the norm of each head's output.", 64e-5, positive=True)
    chunk_size: int = option(
        "number of tokens whose pairs are computed at once; no output depends on it. Each pair "
        "takes `head_dim` numbers of memory.",
        16,
        least=1,
        most=2**16,
        changeable=True,
    )

    # What a projection reads: the token, and a trained share of the difference to the one before.
    shifted: ClassVar[tuple[str, ...]] = ("query", "decay", "key", "value", "rate", "gate")
    # The vectors beside the projections.
    vectors: ClassVar[tuple[str, ...]] = ("decay", "rate", "removal_scale", "rate_scale")

    def for_width(self, hidden_dim):
        if hidden_dim % self.head_dim:
            raise ValueError(
                f"head_dim={self.head_dim} of a generalized delta rule must divide "
                f"hidden_dim={hidden_dim}."
            )
        return self

    @property
    def takes_earlier(self):
        return self.value_rank is not None

    def takes_from(self, earlier):
        return isinstance(earlier, GeneralizedDelta) and not earlier.takes_earlier

    @property
    def ranks(self) -> dict[str, int]:
        """Widths of the narrow projections, by name."""
        given = {"decay": self.decay_rank, "rate": self.rate_rank, "gate": self.gate_rank}
        return given if self.value_rank is None else {**given, "mixing": self.value_rank}

    def weights(self, name, norm, inputs="hidden_dim"):
        width = "hidden_dim"
        vectors = [*(f"{each}_share" for each in self.shifted), *self.vectors]
        vectors += [] if self.value_rank is None else ["mixing"]
        denses = [(each, width, width) for each in ("query", "key", "value", "output")]
        for each in self.ranks:
            rank = f"{each}_rank"
            denses += [(f"{each}_down", width, rank), (f"{each}_up", rank, width)]
        return (
            *(weight for each in vectors for weight in weight_of(f"{name}/{each}", width)),
            *(
                weight
                for each in denses
                for weight in dense_of(f"{name}/{each[0]}", *each[1:], False)
            ),
            *weight_of(f"{name}/bonus", "each_head", "state_head"),
            *weight_of(f"{name}/norm/gamma", width),
            *weight_of(f"{name}/norm/beta", width),
        )

    def sizes(self, hidden_dim):
        return {
            "each_head": hidden_dim // self.head_dim,
            "state_head": self.head_dim,
            **{f"{name}_rank": rank for name, rank in self.ranks.items()},
        }

    def pair_products(self, queries, keys, hidden_dim):
        if queries == 1:  # what a matrix returns for two keys, and two changes of it
            return 4 * hidden_dim * self.head_dim
        # In chunks: four tables of scores, the solution of two systems, outputs, and a matrix from
        # chunk to chunk.
        chunk = min(self.chunk_size, keys)
        passed = self.head_dim * (4 + self.head_dim // chunk)
        return queries * hidden_dim * (12 * chunk + passed)

    def kept_numbers(self, hidden_dim):
        heads = hidden_dim // self.head_dim
        pairs = heads * self.chunk_size * (self.head_dim + 6)
        return pairs + 24 * hidden_dim + 2 * sum(self.ranks.values())

    def cached(self, hidden_dim):
        heads = hidden_dim // self.head_dim
        return 0, 0, 1, ((1, hidden_dim), (heads, self.head_dim, self.head_dim))


@part
class ShiftedFeedForward(Mixer, kind="shifted_feed_forward"):
    """`layers.mixers.shifted_feed_forward.ShiftedFeedForward`: reads the token before, too (RWKV).

    A feed-forward layer of a mixture of each token and the one before. It is a mixer, so a layer of
    RWKV is two blocks without other feed-forward layers.
    """

    layer = "keras_transformer.layers.mixers.shifted_feed_forward:ShiftedFeedForward"

    dim: int = option("width between the projections.", least=1)
    activation: str = option(
        "activation between the projections.", "relu_squared", choices=ACTIVATIONS
    )

    def weights(self, name, norm, inputs="hidden_dim"):
        return (
            *weight_of(f"{name}/share", "hidden_dim"),
            *dense_of(f"{name}/intermediate", "hidden_dim", "shifted_dim", False),
            *dense_of(f"{name}/output", "shifted_dim", "hidden_dim", False),
        )

    def sizes(self, hidden_dim):
        return {"shifted_dim": self.dim}

    def kept_numbers(self, hidden_dim):
        return 3 * hidden_dim + 2 * self.dim

    def cached(self, hidden_dim):
        return 0, 0, 1, ((1, hidden_dim),)
