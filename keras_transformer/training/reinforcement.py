"""Losses of reinforcement learning from rewards of sampled completions: GRPO and its relatives."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.support.checking import check_choice, check_fields, check_number

# As in TRL: a group whose rewards hardly differ does not get huge advantages.
_EPSILON = 1e-4
# Equal rewards that were added up in another order differ by less, relative to the largest.
_ROUNDING = 1e-12


class PolicyTerms(NamedTuple):
    """Results of a `PolicyLoss` for a batch, float32 scalars. Only `loss` has a gradient.

    Fields:
        loss: the loss.
        kl: mean over the tokens of the KL divergence from the reference; 0 if it is no part of the
            loss.
        clip_low: share of the tokens whose ratio is below the range, where that stops the gradient;
            share of the completions if each has one ratio.
        clip_high: share of them whose ratio is above the range, where that stops the gradient.
        log_ratio: mean over the tokens of the absolute difference of log-probabilities between the
            trained model and the sampler.
    """

    loss: Any
    kl: Any
    clip_low: Any
    clip_high: Any
    log_ratio: Any


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """Clipped policy gradient of groups of completions, sampled for the same prompt.

    The loss of a token is `-min(r * A, clip(r, 1 - clip, 1 + clip_high) * A) + beta * KL`. `A` is
    the advantage of its completion, and `r` the ratio of its probabilities under the trained model
    and when it was sampled. `GRPO`, `DrGRPO`, `RLOO` and `PPOClip` are this loss with the values of
    their papers; every value of them can be changed.

    Args:
        clip: float in (0, 1), how far the ratio may fall below 1.
        clip_high: float above 0, how far it may rise above 1. Defaults to `clip`.
        beta: float, at least 0, weight of the KL divergence from the reference model. 0 needs no
            reference.
        kl: `"loss"`, the divergence is a term of each token's loss, with the estimate
            `r * (exp(q - p) - (q - p) - 1)` of the log-probabilities `p` of the model and `q` of
            the reference, whose gradient is without bias; or `"reward"`, the sum of `p - q` over a
            completion is subtracted from its reward.
        baseline: what is subtracted from a reward: `"group"`, the mean of its group, or
            `"others"`, the mean of the others in its group.
        scale: divide by the standard deviation of the rewards of the `"group"`, or of the whole
            `"batch"`, plus 1e-4; or None.
        ratio: `"token"`, the ratio of each token; `"sequence"`, the product over a completion; or
            `"sequence_mean"`, its geometric mean.
        average: `"sequences"`, the mean over completions of the mean over their tokens;
            `"tokens"`, the mean over all tokens; or `"length"`, the sum over all tokens, divided by
            the number of completions and the longest length that was allowed.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import GRPO, RLOO

    rewards = np.array([[1.0, 0.0, 0.0, 1.0]])
    assert np.allclose(GRPO(scale=None).advantages(rewards), [[0.5, -0.5, -0.5, 0.5]])
    assert np.allclose(RLOO().advantages(rewards), [[2 / 3, -2 / 3, -2 / 3, 2 / 3]])
    ```

    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", equation 7; the
    estimate of the divergence: Schulman 2020, "Approximating KL Divergence", and DeepSeek-AI 2025,
    "DeepSeek-V3.2", section 3.1.
    """

    clip: float = 0.2
    clip_high: float | None = None
    beta: float = 0.0
    kl: str = "loss"
    baseline: str = "group"
    scale: str | None = "group"
    ratio: str = "token"
    average: str = "sequences"

    def __post_init__(self):
        check_fields(self, check_number, "clip", above=0, below=1)
        check_fields(self, check_number, "clip_high", above=0, none=True)
        check_fields(self, check_number, "beta", at_least=0)
        check_choice("kl", self.kl, ("loss", "reward"))
        check_choice("baseline", self.baseline, ("group", "others"))
        check_choice("scale", self.scale, ("group", "batch"), none=True)
        check_choice("ratio", self.ratio, ("token", "sequence", "sequence_mean"))
        check_choice("average", self.average, ("sequences", "tokens", "length"))

    @property
    def kl_in_loss(self) -> bool:
        """Whether the divergence from the reference is a term of the loss, bool."""
        return self.beta > 0 and self.kl == "loss"

    def advantages(self, rewards: np.ndarray) -> np.ndarray:
        """Compute advantages of rewards, float `(groups, group_size)`, as float32 of this shape.

        In a group whose rewards are equal, up to rounding, they are 0.
        """
        rewards = np.asarray(rewards, "float64")
        size = rewards.shape[1]
        centered = rewards - rewards.mean(axis=1, keepdims=True)
        if self.baseline == "others":
            centered = centered * size / (size - 1)
        if self.scale == "group":
            centered = centered / (rewards.std(axis=1, ddof=1, keepdims=True) + _EPSILON)
        elif self.scale == "batch":
            centered = centered / (rewards.std(ddof=1) + _EPSILON)
        largest = np.abs(rewards).max(axis=1, keepdims=True)
        equal = np.ptp(rewards, axis=1, keepdims=True) <= _ROUNDING * largest
        return np.where(equal, 0.0, centered).astype("float32")

    def token_weights(self, counts: np.ndarray, longest: int) -> np.ndarray:
        """Return the weight of a token of each completion in the loss, float32 `(completions,)`.

        `counts` are the numbers of tokens of all completions of a batch, int `(completions,)`, and
        `longest` is the largest number that was allowed.
        """
        counts = np.asarray(counts)
        if self.average == "sequences":
            each = 1.0 / np.maximum(counts, 1) / len(counts)
        elif self.average == "tokens":
            each = np.full(len(counts), 1.0 / max(int(counts.sum()), 1))
        else:
            each = np.full(len(counts), 1.0 / (len(counts) * longest))
        return each.astype("float32")

    def __call__(
        self, log_probabilities, sampled, reference, advantages, mask, weights
    ) -> PolicyTerms:
        """Compute the loss of a batch.

        Args:
            log_probabilities: float32 `(rows, length)`, of the trained model.
            sampled: float32 `(rows, length)`, the log-probabilities when the tokens were sampled.
            reference: float32 `(rows, length)`, of the reference; None if it is not needed.
            advantages: float32 `(rows,)`.
            mask: float32 `(rows, length)`, 1 for tokens of completions, else 0.
            weights: float32 `(rows,)`, of a token of each row, see `token_weights`.

        Returns:
            `PolicyTerms`.
        """
        advantages = advantages[:, None]
        log_ratio = (log_probabilities - sampled) * mask
        log_r, counted = log_ratio, mask
        if self.ratio != "token":
            log_r = ops.sum(log_ratio, axis=1, keepdims=True)
            if self.ratio == "sequence_mean":
                log_r = log_r / ops.maximum(ops.sum(mask, axis=1, keepdims=True), 1.0)
            counted = ops.max(mask, axis=1, keepdims=True)
        low, high = 1.0 - self.clip, 1.0 + (self.clip if self.clip_high is None else self.clip_high)
        ratio = ops.exp(log_r)
        losses = -ops.minimum(ratio * advantages, ops.clip(ratio, low, high) * advantages)
        divergence = ops.zeros_like(mask)
        if self.kl_in_loss:
            above = (reference - log_probabilities) * mask
            divergence = (ops.exp(above) - above - 1.0) * ratio
            losses = losses + self.beta * divergence

        def mean(values, counted=mask):
            total = ops.sum(ops.cast(values, "float32") * counted)
            return ops.stop_gradient(total / ops.maximum(ops.sum(counted), 1.0))

        return PolicyTerms(
            ops.sum(losses * mask * weights[:, None]),
            mean(divergence),
            mean(ops.logical_and(ratio < low, advantages < 0), counted),
            mean(ops.logical_and(ratio > high, advantages > 0), counted),
            mean(ops.abs(log_ratio)),
        )


@dataclasses.dataclass(frozen=True)
class GRPO(PolicyLoss):
    """Group relative policy optimization, a `PolicyLoss` with its usual values.

    Rewards are standardized within their group, and completions count the same whatever their
    length. `GRPO(clip_high=0.28, average="tokens")` has the clipping and averaging of DAPO,
    `GRPO(ratio="sequence_mean", clip=3e-4, clip_high=4e-4)` is GSPO.

    Args, Raises: see `PolicyLoss`.

    Example: see `keras_transformer.CausalLM.fit_rewards`.

    Source: Shao et al. 2024, "DeepSeekMath", section 4.1; Yu et al. 2025, "DAPO"; Zheng et al.
    2025, "Group Sequence Policy Optimization".
    """


@dataclasses.dataclass(frozen=True)
class DrGRPO(PolicyLoss):
    """GRPO without its biases to short correct and long wrong completions, a `PolicyLoss`.

    Rewards are not divided by their standard deviation, and losses of tokens not by the length of
    their completion.

    Args, Raises: see `PolicyLoss`.

    Example: see `PolicyLoss`.

    Source: Liu et al. 2025, "Understanding R1-Zero-Like Training: A Critical Perspective", section
    3.2.
    """

    scale: str | None = None
    average: str = "length"


@dataclasses.dataclass(frozen=True)
class RLOO(PolicyLoss):
    """REINFORCE with a leave-one-out baseline, a `PolicyLoss`.

    A completion is one action: its ratio is the product over its tokens, and the divergence from
    the reference is part of its reward.

    Args, Raises: see `PolicyLoss`.

    Example: see `PolicyLoss`.

    Source: Ahmadian et al. 2024, "Back to Basics: Revisiting REINFORCE Style Optimization", section
    3.
    """

    beta: float = 0.05
    kl: str = "reward"
    baseline: str = "others"
    scale: str | None = None
    ratio: str = "sequence"


@dataclasses.dataclass(frozen=True)
class PPOClip(PolicyLoss):
    """PPO's clipped loss with the mean of the group in place of a critic, a `PolicyLoss`.

    Advantages are divided by the standard deviation of the whole batch, and all tokens count the
    same.

    Args, Raises: see `PolicyLoss`.

    Example: see `PolicyLoss`.

    Source: Schulman et al. 2017, equation 7.
    """

    scale: str | None = "batch"
    average: str = "tokens"
