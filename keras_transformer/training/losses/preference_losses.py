"""Losses of preferences, as values: what a better completion should be worth over a worse one."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

from keras import ops

from keras_transformer.support.checking import check_number


class Scores(NamedTuple):
    """Log-probabilities of completions by the trained model, float32, in nats.

    Each is `(pairs, 2)`, the chosen completion first, or `(rows,)` for labelled completions.
    """

    total: Any  # sum over the tokens of the completion
    length: Any  # number of tokens of the completion
    text: Any = None  # sum over all tokens of prompt and completion but the first
    text_length: Any = None  # number of these tokens


class Preferred(NamedTuple):
    """Losses and rewards of a batch, float32."""

    losses: Any  # (pairs,) or (rows,), whose mean is the loss
    rewards: Any  # of the shape of `Scores.total`, without gradients


@dataclass(frozen=True)
class PreferenceLoss:
    """Base class of losses of preferences; values are checked when an instance is made.

    A subclass is a frozen dataclass with its values as fields, and implements `__call__`.

    Example:
    ```python
    import dataclasses
    from keras_transformer.training import PreferenceLoss
    from keras import ops
    from keras_transformer.training.losses.preference_losses import Preferred

    @dataclasses.dataclass(frozen=True)
    class Squared(PreferenceLoss):
        beta: float = 0.1

        def __call__(self, scores, reference=None):
            rewards = self.beta * (scores.total - reference)
            losses = ops.square(1.0 - rewards[:, 0] + rewards[:, 1])
            return Preferred(losses, ops.stop_gradient(rewards))

    assert Squared(beta=0.2).reads_reference
    ```
    """

    reads_reference: ClassVar[bool] = True  # whether it compares with a frozen reference model
    learns_prompts: ClassVar[bool] = False  # whether it reads `Scores.text`
    paired: ClassVar[bool] = True  # False: completions with labels

    def __post_init__(self):
        bounds = {"label_smoothing": {"at_least": 0, "below": 0.5}, "beta": {"above": 0}}
        for field in fields(self):
            value = getattr(self, field.name)
            check_number(field.name, value, **bounds.get(field.name, {"at_least": 0}))

    def __call__(self, scores: Scores, reference=None) -> Preferred:
        """Return losses and rewards of pairs.

        Args:
            scores: `Scores`, each `(pairs, 2)`.
            reference: float `(pairs, 2)`, `Scores.total` of the reference model.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class DPO(PreferenceLoss):
    """Direct preference optimization: the log-odds that the chosen completion is preferred.

    The reward of a completion is `beta` times how much likelier the trained model finds it than the
    reference does, and the loss is `-log sigmoid` of the difference of the rewards.

    Args:
        beta: float above 0. The smaller, the further the model may move from the reference.
        label_smoothing: float from 0 to below 0.5, the share of pairs assumed to be the wrong way
            round.

    Example:
    ```python
    import keras_transformer as kt

    lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
    lm.enable_lora(rank=2)
    history = lm.fit_preferences(
        ["ROMEO:"] * 2, [" my love", " O"], [" what", " go"],
        loss=kt.training.DPO(beta=0.1), verbose=0,
    )
    assert abs(history.history["loss"][0] - 0.6931) < 1e-2
    ```

    Source: Rafailov et al. 2023, equation 7; Mitchell 2023, "A note on DPO with noisy preferences",
    for the smoothing.
    """

    beta: float = 0.1
    label_smoothing: float = 0.0

    def __call__(self, scores, reference=None):
        rewards = self.beta * (scores.total - reference)
        return _preferred(_log_odds_loss(_margin(rewards), self.label_smoothing), rewards)


@dataclass(frozen=True)
class SLiC(PreferenceLoss):
    """Hinge loss of the difference of the rewards of `DPO`, which is 0 from a difference of 1 on.

    Args:
        beta: float above 0, as for `DPO`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import SLiC
    from keras_transformer.training.losses.preference_losses import Scores

    scores = Scores(total=np.array([[-2.0, -4.0]]), length=np.array([[3.0, 3.0]]))
    losses, _ = SLiC(beta=0.1)(scores, reference=np.array([[-3.0, -3.0]]))
    assert abs(float(losses[0]) - 0.8) < 1e-6
    ```

    Source: Zhao et al. 2023, "SLiC-HF"; Liu et al. 2023, "RSO", equation 10, with the rewards of
    DPO.
    """

    beta: float = 0.1

    def __call__(self, scores, reference=None):
        rewards = self.beta * (scores.total - reference)
        return _preferred(ops.relu(1.0 - _margin(rewards)), rewards)


@dataclass(frozen=True)
class IPO(PreferenceLoss):
    """Identity preference optimization: a difference of log-ratios of `1 / (2 beta)` is enough.

    Log-ratios are means over the tokens of a completion, as the authors computed their results.

    Args:
        beta: float above 0, tau in the paper.

    Example: see `DPO`, with `loss=kt.training.IPO(beta=0.1)`.

    Source: Azar et al. 2023, "A General Theoretical Paradigm to Understand Learning from Human
    Preferences", equation 17.
    """

    beta: float = 0.1

    def __call__(self, scores, reference=None):
        ratios = scores.total - reference
        means = ratios / _at_least_one(scores.length)
        losses = ops.square(_margin(means) - 1.0 / (2.0 * self.beta))
        return _preferred(losses, self.beta * ratios)


@dataclass(frozen=True)
class CPO(PreferenceLoss):
    """Contrastive preference optimization: `DPO` without a reference, and the chosen text's loss.

    Args:
        beta: float above 0, as for `DPO`.
        alpha: float, at least 0, the weight of the cross-entropy of the chosen completions.
        label_smoothing: float, as for `DPO`.

    Example: see `DPO`, with `loss=kt.training.CPO(beta=0.1)`.

    Source: Xu et al. 2024, "Contrastive Preference Optimization", equation 6.
    """

    reads_reference: ClassVar[bool] = False
    beta: float = 0.1
    alpha: float = 1.0
    label_smoothing: float = 0.0

    def __call__(self, scores, reference=None):
        rewards = self.beta * scores.total
        losses = _log_odds_loss(_margin(rewards), self.label_smoothing)
        return _preferred(losses + self.alpha * _cross_entropy(scores), rewards)


@dataclass(frozen=True)
class SimPO(PreferenceLoss):
    """Simple preference optimization: mean log-probabilities, a target margin, no reference.

    Args:
        beta: float above 0. The paper takes 2 to 2.5, and 10 for some models.
        gamma: float, at least 0, the difference of rewards to reach; half of `beta` in the paper.
        alpha: float, at least 0, the weight of the cross-entropy of the chosen completions, which
            the paper does without.

    Example: see `DPO`, with `loss=kt.training.SimPO()`.

    Source: Meng et al. 2024, "SimPO", equation 6.
    """

    reads_reference: ClassVar[bool] = False
    beta: float = 2.0
    gamma: float = 1.0
    alpha: float = 0.0

    def __call__(self, scores, reference=None):
        rewards = self.beta * scores.total / _at_least_one(scores.length)
        losses = _log_odds_loss(_margin(rewards) - self.gamma)
        if self.alpha:
            losses = losses + self.alpha * _cross_entropy(scores)
        return _preferred(losses, rewards)


@dataclass(frozen=True)
class ORPO(PreferenceLoss):
    """Odds ratio preference optimization: fine-tuning on chosen texts, and their odds, in one.

    The loss is the cross-entropy of the chosen prompts and completions, minus `beta` times the log
    sigmoid of the log of the ratio of both completions' odds. There is no reference.

    Args:
        beta: float above 0, the weight of the odds ratio, lambda in the paper.

    Example: see `DPO`, with `loss=kt.training.ORPO(beta=0.1)`.

    Source: Hong et al. 2024, "ORPO", equations 6 and 7.
    """

    reads_reference: ClassVar[bool] = False
    learns_prompts: ClassVar[bool] = True
    beta: float = 0.1

    def __call__(self, scores, reference=None):
        means = scores.total / _at_least_one(scores.length)
        log_odds = _margin(means - _log_one_minus_exp(means))
        chosen = ops.sum(scores.text[:, 0]) / ops.sum(scores.text_length[:, 0])
        return _preferred(-chosen - self.beta * ops.log_sigmoid(log_odds), self.beta * means)


@dataclass(frozen=True)
class KTO(PreferenceLoss):
    """Kahneman-Tversky optimization: completions that are desirable or not, without pairs.

    The value of a completion is how far its reward is above a reference point, for an undesirable
    one below it. The point is `beta` times an estimate of the divergence from the reference model:
    the mean log-ratio of completions that follow other prompts of the batch, at least 0, without a
    gradient. A batch therefore needs more than one row.

    Args:
        beta: float above 0, as for `DPO`.
        desirable_weight: float, at least 0, the weight of desirable completions.
        undesirable_weight: float, at least 0, the weight of the others. With unequal numbers the
            paper has the products of number and weight between 1 and 4/3 of each other.

    Example:
    ```python
    import keras_transformer as kt

    lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
    lm.enable_lora(rank=2)
    history = lm.fit_preferences(
        ["ROMEO:", "JULIET:"], [" my love", " go"], [True, False], loss=kt.training.KTO(), verbose=0
    )
    assert abs(history.history["loss"][0] - 0.5) < 1e-2
    ```

    Source: Ethayarajh et al. 2024, "KTO", equations 7 and 8.
    """

    paired: ClassVar[bool] = False
    beta: float = 0.1
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0

    def __call__(self, scores, reference=None, labels=None, divergence=0.0):
        """Return losses and rewards of rows.

        Args:
            scores: `Scores`, each `(rows,)`.
            reference: float `(rows,)`, `Scores.total` of the reference model.
            labels: bool `(rows,)`, whether a completion is desirable.
            divergence: float scalar, the estimate of the divergence.
        """
        ratios, labels = scores.total - reference, ops.cast(labels, "bool")
        above = self.beta * (ratios - ops.stop_gradient(divergence))
        signs = ops.where(labels, 1.0, -1.0)
        weights = ops.where(labels, self.desirable_weight, self.undesirable_weight)
        losses = ops.cast(weights, "float32") * (1.0 - ops.sigmoid(signs * above))
        return _preferred(losses, self.beta * ratios)


@dataclass(frozen=True)
class BradleyTerry(PreferenceLoss):
    """The loss of a reward model: `-log sigmoid` of the difference of two texts' numbers.

    Args:
        center: float, at least 0, the weight of the square of the sum of both numbers, which keeps
            rewards around 0.

    Example: see `TextClassifier.fit_preferences`.

    Source: Ouyang et al. 2022, "InstructGPT", equation 1; Eisenstein et al. 2023, "Helping or
    Herding", for the centering.
    """

    reads_reference: ClassVar[bool] = False
    center: float = 0.0

    def __call__(self, rewards):
        """Return losses and rewards of pairs, from rewards, float `(pairs, 2)`."""
        losses = _log_odds_loss(_margin(rewards))
        if self.center:
            losses = losses + self.center * ops.square(ops.sum(rewards, axis=1))
        return _preferred(losses, rewards)


def _preferred(losses, rewards) -> Preferred:
    return Preferred(losses, ops.stop_gradient(ops.convert_to_tensor(rewards)))


def _margin(values):
    """Return the values of chosen completions minus those of rejected ones, `(pairs,)`."""
    values = ops.convert_to_tensor(values)
    return values[:, 0] - values[:, 1]


def _log_odds_loss(margins, label_smoothing: float = 0.0):
    losses = -ops.log_sigmoid(margins)
    if not label_smoothing:
        return losses
    return (1.0 - label_smoothing) * losses - label_smoothing * ops.log_sigmoid(-margins)


def _cross_entropy(scores: Scores):
    """Return the mean over the tokens of all chosen completions, a scalar."""
    return -ops.sum(scores.total[:, 0]) / ops.sum(scores.length[:, 0])


def _at_least_one(lengths):
    return ops.maximum(ops.cast(lengths, "float32"), 1.0)


def _log_one_minus_exp(values):
    """Return `log(1 - exp(values))` of values below 0, without a loss of digits near 0."""
    small = values < -0.6931472
    # Each function gets values that suit it, since a gradient of NaN would pass through `where`.
    below = ops.log1p(-ops.exp(ops.where(small, values, -1.0)))
    above = ops.log(-ops.expm1(ops.where(small, -0.5, values)))
    return ops.where(small, below, above)
