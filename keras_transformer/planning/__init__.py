"""Estimate what a model costs before anything is allocated, from its config alone."""

from keras_transformer.planning.flops import flops_per_sequence, flops_per_token
from keras_transformer.planning.memory import Memory, count_parameters
from keras_transformer.planning.plan import Plan, make_plan

__all__ = [
    "Memory",
    "Plan",
    "count_parameters",
    "flops_per_sequence",
    "flops_per_token",
    "make_plan",
]


def __dir__() -> list[str]:
    return __all__
