"""What a model saw: attention, states, likeliest tokens by layer, attributions; pictures of them.

`explain` of a task gives an `Explanation`.
"""

from keras_transformer.explanations.explanation import Explanation, View
from keras_transformer.explanations.flow import entropy, rollout
from keras_transformer.explanations.tokens import readable_tokens

__all__ = ["Explanation", "View", "entropy", "readable_tokens", "rollout"]


def __dir__() -> list[str]:
    return __all__
