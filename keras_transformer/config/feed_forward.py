"""The feed-forward layer of a block: dense, or a mixture of experts."""

from collections.abc import Callable
from typing import ClassVar

from keras_transformer.config.norm import Norm
from keras_transformer.config.options import Part, option, part
from keras_transformer.config.weight import Weight, dense_of, norm_of, weight_of

__all__ = ["Dense", "Experts", "FeedForward", "MixFeedForward", "Router"]

ACTIVATIONS = (
    "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "mish", "quick_gelu", "relu_squared",
)  # fmt: skip


@part
class FeedForward(Part):
    """Base class of feed-forward layers: two projections with an activation in between."""

    activation: str | Callable = option(
        "one of `config.ACTIVATIONS`, see `layers.FeedForward`.",
        "relu",
        choices=ACTIVATIONS,
        function=True,
    )
    gated: bool = option("multiply the activation by a linear gate (GLU variants).", False)
    gate_limit: float | None = option(
        "`gated` only. Limits the activation's input from above, and the linear branch on "
        "both sides; the latter is increased by one (gpt-oss). None disables it.",
        None,
        positive=True,
    )
    bias: bool = option("biases of the projections.", True)

    on_grid: ClassVar[bool] = False  # whether the layer needs the grid that the states form

    def check(self):
        if self.gate_limit is not None and not self.gated:
            raise ValueError(
                f"`gate_limit` needs `gated`, received gate_limit={self.gate_limit} with "
                "gated=False."
            )

    @property
    def dense_dim(self) -> int:
        """Inner width of dense feed-forward layers outside the blocks, such as in pooling."""
        raise NotImplementedError

    def weights(self, name: str = "feed_forward") -> tuple[Weight, ...]:
        """Return the weights of the layer, with axes named after `sizes` and `hidden_dim`."""
        raise NotImplementedError

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the weight axes that the side does not define, by name."""
        raise NotImplementedError

    def _projections(
        self, name: str, width: str, output_bias: bool | None = None, clipped: bool = False
    ) -> tuple[Weight, ...]:
        last = self.bias if output_bias is None else output_bias
        first = ("intermediate", "gate") if self.gated else ("intermediate",)
        inner = (
            dense_of(f"{name}/{each}", "hidden_dim", width, self.bias, clipped) for each in first
        )
        output = dense_of(f"{name}/output", width, "hidden_dim", last, clipped)
        return sum((*inner, output), ())


@part
class Dense(FeedForward, kind="dense"):
    """`layers.FeedForward`: one feed-forward layer for all tokens."""

    layer = "keras_transformer.layers.feed_forward:FeedForward"

    dim: int = option("width of the feed-forward layer, d_ff in the paper.", least=1)
    output_bias: bool | None = option(
        "bias of the last projection (GTE has no other). Defaults to `bias`.", None
    )
    softmax_gate: bool = option(
        "multiply the output by a softmax, over its features, of a projection of it (TSMixer).",
        False,
    )
    softmax_gate_first: bool = option(
        "`softmax_gate` only. Multiply the input instead of the output (TSMixer's mixing of "
        "channels).",
        False,
    )
    sparsity: float = option(
        "`gated` only. Share of the gate's values that become zero before its activation, if they "
        "are normally distributed: those below a quantile, which the others are lowered by "
        "(Gemma 3n).",
        0.0,
        rate=True,
    )
    gate_scale: float = option(
        "factor of what the activation of the gate is applied to (Falcon-H1).", 1.0, positive=True
    )
    output_scale: float = option("factor of the output (Falcon-H1).", 1.0, positive=True)
    clipped: bool = option(
        "clip the inputs and the outputs of each projection to ranges that no gradient trains "
        "(Gemma 4's image tower).",
        False,
    )

    def check(self):
        super().check()
        if self.clipped and self.softmax_gate:
            raise ValueError("`clipped` and `softmax_gate` cannot be combined.")
        if self.gate_scale != 1 and not self.gated:
            raise ValueError(f"`gate_scale` needs `gated`, received {self.gate_scale}.")
        if self.softmax_gate_first and not self.softmax_gate:
            raise ValueError("`softmax_gate_first` needs `softmax_gate`, received False.")
        if self.sparsity and not self.gated:
            raise ValueError(f"`sparsity` needs `gated`, received {self.sparsity}.")
        if self.output_bias is None:
            object.__setattr__(self, "output_bias", self.bias)

    @property
    def dense_dim(self):
        return self.dim

    def weights(self, name="feed_forward"):
        weights = self._projections(name, "intermediate_dim", self.output_bias, self.clipped)
        if self.softmax_gate:
            weights += dense_of(f"{name}/softmax_gate", "hidden_dim", "hidden_dim")
        return weights

    @property
    def sizes(self):
        return {"intermediate_dim": self.dim}


@part
class MixFeedForward(FeedForward, kind="mix"):
    """`layers.mix_feed_forward.MixFeedForward`: with a convolution over a grid (SegFormer).

    Between the two projections, each feature is convolved by itself over the grid of patches.
    """

    layer = "keras_transformer.layers.mix_feed_forward:MixFeedForward"
    on_grid = True

    dim: int = option("width between the projections.", least=1)
    kernel_size: int = option(
        "rows and columns of the patches that the convolution sees, an odd number.",
        3,
        least=1,
        most=2**7,
    )

    def check(self):
        super().check()
        if self.gated:
            raise ValueError("A feed-forward layer with a convolution has no gate: gated=False.")
        if self.kernel_size % 2 == 0:
            raise ValueError(f"`kernel_size` must be odd, received {self.kernel_size}.")

    @property
    def dense_dim(self):
        return self.dim

    def weights(self, name="feed_forward"):
        size = ("mixing_size", "mixing_size")
        return (
            *self._projections(name, "intermediate_dim"),
            *weight_of(f"{name}/convolution/kernel", *size, "intermediate_dim"),
            *weight_of(f"{name}/convolution/bias", "intermediate_dim"),
        )

    @property
    def sizes(self):
        return {"intermediate_dim": self.dim, "mixing_size": self.kernel_size}


@part
class Router(Part):
    """How the experts of a token are chosen and weighted, from the scores of all experts."""

    activation: str = option(
        'function from scores to the weights of experts: `"softmax"` over all experts, `"sigmoid"` '
        'of each (DeepSeek-V3), or `"sparse_mixer"`: one expert after the other, each by a softmax '
        "over those left whose score is near the best (Phi-3.5-MoE).",
        "softmax",
        choices=("softmax", "sigmoid", "sparse_mixer"),
    )
    tolerance: float = option(
        '`"sparse_mixer"`: a score is near the best if their difference, divided by the larger of '
        "the best and the score's magnitude, is at most twice this.",
        0.01,
        rate=True,
    )
    correction_bias: bool = option(
        "a bias on the weights of experts for the choice of a token's experts alone, which "
        "balances their load and is not trained by gradients (DeepSeek-V3).",
        False,
    )
    groups: int = option("number of groups of consecutive experts.", 1, least=1)
    group_limit: int | None = option(
        "number of groups that the experts of a token are from, those with the highest score. "
        "Defaults to all.",
        None,
        least=1,
    )
    group_score: str = option(
        'score of a group: the `"max"` over its experts\' weights for the choice (DeepSeek-V2), '
        'or the sum of the `"top_two"` (DeepSeek-V3).',
        "max",
        choices=("max", "top_two"),
    )
    weight_scale: float = option(
        "factor of the weights of a token's experts (DeepSeek's routed scaling factor).",
        1.0,
        positive=True,
    )
    weighted: str = option(
        'what the weights of a token\'s experts multiply: the `"outputs"` of the experts, or their '
        '`"inputs"` (Llama 4).',
        "outputs",
        choices=("outputs", "inputs"),
    )
    norm: Norm | None = option(
        "norm of the states that the scores are computed from (Gemma 4). None leaves them as they "
        "are.",
        None,
    )
    score_scale: float = option("factor of the scores.", 1.0, positive=True)
    expert_scales: bool = option(
        "a trained factor of the weights of each expert, which then do not sum to 1 (Gemma 4).",
        False,
    )
    epsilon: float = option(
        "added to the sum of the weights of a token's experts, by which they are divided so that "
        "they sum to 1 (1e-6 in LFM2).",
        1e-20,
        positive=True,
    )

    def check(self):
        if self.activation == "sparse_mixer" and (self.correction_bias or self.groups > 1):
            raise ValueError(
                "activation='sparse_mixer' of a router has no `correction_bias` and no `groups`, "
                f"received {self.correction_bias} and {self.groups}."
            )
        limit = self.group_limit
        if limit is not None and limit > self.groups:
            raise ValueError(f"group_limit={limit} of a router is more than groups={self.groups}.")

    @property
    def seen_groups(self) -> int:
        """Number of groups that the experts of a token are from."""
        return self.groups if self.group_limit is None else self.group_limit

    def check_experts(self, number: int, per_token: int) -> None:
        """Raise ValueError if the experts of a token cannot be chosen.

        Args:
            number: int, number of experts.
            per_token: int, number of experts of a token.
        """
        if number % self.groups:
            raise ValueError(
                f"groups={self.groups} of a router must divide num_experts={number}, so that all "
                "groups are of one size."
            )
        size = number // self.groups
        if per_token > self.seen_groups * size:
            raise ValueError(
                f"experts_per_token={per_token} is more than the {self.seen_groups * size} experts "
                f"of group_limit={self.seen_groups} groups."
            )
        if self.groups > 1 and self.group_score == "top_two" and size < 2:
            raise ValueError(
                f"group_score='top_two' of a router needs groups of 2 experts or more, received "
                f"{number} experts in {self.groups} groups."
            )

    def weights(self, name: str) -> tuple[Weight, ...]:
        """Return the weights besides the projection of the scores; `name` is that of the layer."""
        weights = () if self.norm is None else norm_of(f"{name}/router_norm", self.norm.type)
        weights += weight_of(f"{name}/expert_scales", "all_experts") if self.expert_scales else ()
        if self.correction_bias:
            weights += weight_of(f"{name}/correction_bias", "all_experts")
        return weights


@part
class Experts(FeedForward, kind="experts"):
    """`layers.MixtureOfExperts`: several feed-forward layers, of which each token uses a few."""

    layer = "keras_transformer.layers.experts:MixtureOfExperts"

    number: int = option("number of experts, see `layers.MixtureOfExperts`.", least=1)
    per_token: int = option("number of experts used for each token.", 2, least=1)
    dim: int = option("width of an expert.", least=1)
    intermediate_dim: int | None = option(
        "width of dense feed-forward layers outside the blocks. Defaults to `dim`.", None, least=1
    )
    shared_dim: int = option(
        "width of an additional expert for all tokens. 0 disables it.", 0, least=0
    )
    shared_gate: bool = option(
        "the output of the shared expert is multiplied by a gate of its own; otherwise it is added "
        "as it is (DeepSeek).",
        True,
    )
    normalize_weights: bool = option(
        "the weights of a token's experts sum to 1; otherwise they are probabilities over all "
        "experts.",
        True,
    )
    router_bias: bool = option("a bias on the router's scores.", False)
    router: Router | None = option(
        "how the experts of a token are chosen and weighted: a `config.Router`, or a dict of its "
        'values such as `{"activation": "sigmoid"}`. Defaults to a softmax over all experts.',
        None,
    )
    capacity_factor: float | None = option(
        "in training, an expert takes at most this multiple of its equal share of a batch's "
        "tokens. None disables the limit.",
        None,
        positive=True,
        changeable=True,
    )
    load_balancing: float = option(
        "factor of the load balancing loss that each layer with experts adds.",
        0.0,
        rate=True,
        changeable=True,
    )
    z_loss: float = option(
        "factor of the z-loss on router scores that each layer with experts adds.",
        0.0,
        rate=True,
        changeable=True,
    )

    def check(self):
        super().check()
        if self.per_token > self.number:
            raise ValueError(
                f"experts_per_token={self.per_token} is more than num_experts={self.number}."
            )
        if self.router == Router():
            object.__setattr__(self, "router", None)
        if self.router is not None:
            self.router.check_experts(self.number, self.per_token)

    @property
    def dense_dim(self):
        return self.dim if self.intermediate_dim is None else self.intermediate_dim

    def weights(self, name="feed_forward"):
        def of_experts(each: str, inputs: str, outputs: str):
            bias = ("num_experts", outputs)
            return (
                *weight_of(f"{name}/expert_{each}/kernel", "num_experts", inputs, outputs),
                *(weight_of(f"{name}/expert_{each}/bias", *bias) if self.bias else ()),
            )

        shared = ()
        if self.shared_dim:
            shared = self._projections(f"{name}/shared", "shared_expert_dim")
            if self.shared_gate:
                shared += weight_of(f"{name}/shared_score/kernel", "hidden_dim", "one")
        return (
            *weight_of(f"{name}/router/kernel", "hidden_dim", "all_experts"),
            *(weight_of(f"{name}/router/bias", "all_experts") if self.router_bias else ()),
            *(() if self.router is None else self.router.weights(name)),
            *of_experts("intermediate", "hidden_dim", "expert_dim"),
            *(of_experts("gate", "hidden_dim", "expert_dim") if self.gated else ()),
            *of_experts("output", "expert_dim", "hidden_dim"),
            *shared,
        )

    @property
    def sizes(self):
        return {
            "num_experts": self.number,
            "all_experts": self.number,
            "expert_dim": self.dim,
            "shared_expert_dim": self.shared_dim,
            "one": 1,
        }
