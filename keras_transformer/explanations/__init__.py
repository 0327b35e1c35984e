"""Explanations of a model's outputs: attention, states, logit lens, attributions, and plots.

`explain`, a method of tasks, returns an `Explanation`.
"""

from keras_transformer.explanations.explanation import Explanation
from keras_transformer.explanations.flow import entropy, rollout
from keras_transformer.explanations.tokens import readable_tokens
from keras_transformer.explanations.values import View

__all__ = ["Explanation", "View", "entropy", "readable_tokens", "rollout"]


def __dir__() -> list[str]:
    return __all__
