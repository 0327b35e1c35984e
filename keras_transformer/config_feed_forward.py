"""The values of a config that are of the feed-forward layer, of one or of several experts."""

import dataclasses

from keras_transformer.config_checks import option

ACTIVATIONS = (
    "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "mish", "quick_gelu", "relu_squared",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedForwardOptions:
    """Further values of a `TransformerConfig`, as flat as its own."""

    activation: str = option(
        "one of `config.ACTIVATIONS`, see `layers.FeedForward`.", "relu", choices=ACTIVATIONS
    )
    gated: bool = option("multiply the activation with a linear gate (GLU variants).", False)
    gate_limit: float | None = option(
        "`gated` only. What is activated stays below it, the linear branch within it on both sides "
        "and is one more (gpt-oss).",
        None,
        positive=True,
    )
    num_experts: int = option(
        "feed-forward layers to choose from, see `layers.MixtureOfExperts`. 0 for one that all "
        "tokens go through.",
        0,
        least=0,
    )
    experts_per_token: int = option("how many of them a token goes through.", 2, least=1)
    expert_dim: int | None = option(
        "width of an expert. Defaults to `intermediate_dim`.", None, least=1
    )
    shared_expert_dim: int = option(
        "width of a further expert, of all tokens, with a gate of its own. 0 for none.", 0, least=0
    )
    normalize_expert_weights: bool = option(
        "the weights of a token's experts sum to 1; else they are shares of all experts.", True
    )
    router_bias: bool = option("a bias of the scores that experts are chosen by.", False)
    expert_capacity_factor: float | None = option(
        "in training an expert takes at most so many times its equal share of the tokens of a "
        "batch. None for no limit.",
        None,
        positive=True,
        changeable=True,
    )
    load_balancing_factor: float = option(
        "of the loss that each layer with experts adds for a balanced load.",
        0.0,
        rate=True,
        changeable=True,
    )
    router_z_loss_factor: float = option(
        "of the loss that each adds for small scores of experts.", 0.0, rate=True, changeable=True
    )
