"""Chronos: Ansari et al. 2024, https://arxiv.org/abs/2403.07815.

A T5 that models the values of time series as tokens, as defined by its config's `chronos_config`.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import Conversion, PublishedHead, Values
from keras_transformer.checkpoints.families.base.shared import number

NAME = "chronos_config"
_FIXED = {
    "tokenizer_class": "MeanScaleUniformBins",
    "pad_token_id": 0,
    "eos_token_id": 1,
    "use_eos_token": True,
    "model_type": "seq2seq",
}
# Our name, the published name, and the type.
_NUMBERS = (
    ("horizon", "prediction_length", int),
    ("context_length", "context_length", int),
    ("num_tokens", "n_tokens", int),
    ("num_special", "n_special_tokens", int),
    ("num_samples", "num_samples", int),
    ("temperature", "temperature", float),
    ("top_k", "top_k", int),
    ("top_p", "top_p", float),
)
_LIMITS = (("low", "low_limit"), ("high", "high_limit"))


def _read(values: Values) -> dict[str, Any]:
    given = values.get(NAME)
    if given is None:
        return {}
    limits = given.get("tokenizer_kwargs") if isinstance(given, dict) else None
    if not isinstance(limits, dict):
        raise ValueError(f"{NAME} must be an object with tokenizer_kwargs, received {given!r}.")
    for name, supported in _FIXED.items():
        if given.get(name, supported) != supported:
            raise ValueError(
                f"{name}={given[name]!r} in {NAME} is not supported, only {supported!r}."
            )
    ours = {mine: number(given, its, None, kind) for mine, its, kind in _NUMBERS}
    return ours | {mine: number(limits, its, None, float) for mine, its in _LIMITS}


def _write(task: Values) -> dict[str, Any]:
    if "num_special" not in task:  # another task
        return {}
    limits = {its: task[mine] for mine, its in _LIMITS}
    own = {its: task[mine] for mine, its, _ in _NUMBERS}
    ids = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    return {NAME: {**_FIXED, "tokenizer_kwargs": limits, **own}, **ids}


HEAD = PublishedHead(
    architectures=("T5ForConditionalGeneration",),
    options=(Conversion(_read, _write),),
    shown_by=NAME,
    prefix="",
)
