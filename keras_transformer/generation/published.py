"""Sampler, rules and limits from the generation config of a published checkpoint.

It reads the values of Transformers' `generation_config.json`; missing values have its defaults.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from keras_transformer.generation.program import check_scale
from keras_transformer.generation.rules.rules import Rules
from keras_transformer.generation.samplers.beam_search import BeamSearch
from keras_transformer.generation.samplers.samplers import Greedy, Random, Sampler
from keras_transformer.support.checking import MOST_TOKENS, check_int

Values = Mapping[str, Any]

_OF_RANDOM = {
    name: name
    for name in ("temperature", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
}
_OF_BEAMS = {
    "num_beams": "num_beams",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "num_beam_groups": "num_groups",
    "diversity_penalty": "diversity_penalty",
}
_OF_RULES = {
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "min_new_tokens": "min_new_tokens",
    "renormalize_logits": "renormalize",
    "sequence_bias": "sequence_bias",
    "exponential_decay_length_penalty": "exponential_decay_length_penalty",
}
# Options that change a text in Transformers but are not implemented, with their neutral values.
_UNSUPPORTED_VALUES = {
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    **dict.fromkeys(
        (
            "constraints", "dola_layers", "force_words_ids", "max_time", "remove_invalid_values",
            "stop_strings", "token_healing", "top_h", "watermarking_config",
        ),
        (False,),
    ),
}  # fmt: skip


def sampler_of(values: Values | None) -> Sampler:
    """Return the sampler that a checkpoint asks for."""
    values = values or {}
    with _naming(values, (*_OF_BEAMS, *_OF_RANDOM, "top_k"), "sampler"):
        if check_int("num_beams", values.get("num_beams") or 1, 1) > 1:
            return BeamSearch(**_given(values, _OF_BEAMS))
        if not values.get("do_sample"):
            return Greedy()
        top_k = values.get("top_k")
        return Random(top_k=50 if top_k is None else top_k or None, **_given(values, _OF_RANDOM))


def rules_of(values: Values | None, continues: bool) -> Rules:
    """Return a checkpoint's rules; `continues` tells whether prompts are part of the texts."""
    values = values or {}
    with _naming(values, _RULED, "rules"):
        given = _given(values, _OF_RULES)
        bad_words = [*(values.get("bad_words_ids") or ())]
        bad_words += [[token] for token in values.get("suppress_tokens") or ()]
        given["bad_first"] = values.get("begin_suppress_tokens") or ()
        if not continues:
            # Transformers also counts the token from which the decoder starts.
            least = (values.get("min_length") or 0) - 1
            given = {"min_new_tokens": max(least, 0), **given}
            first = values.get("forced_bos_token_id")
            given["forced_prefix"] = [] if first is None else [first]
        last = values.get("forced_eos_token_id")
        last = last[0] if isinstance(last, list) and last else last
        return Rules(bad_words=bad_words, forced_end=last, **given)


_RULED = (
    *_OF_RULES, "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "min_length",
    "forced_bos_token_id", "forced_eos_token_id",
)  # fmt: skip


def limits_of(values: Values | None, continues: bool) -> tuple[int | None, int | None]:
    """Return the `max_new_tokens` and `max_length` of a checkpoint; at most one is not None."""
    values = values or {}
    with _naming(values, ("max_new_tokens", "max_length"), "max_new_tokens"):
        new = check_int("max_new_tokens", values.get("max_new_tokens"), 1, MOST_TOKENS, none=True)
        length = check_int("max_length", values.get("max_length"), 1, MOST_TOKENS, none=True)
    if new is not None or length is None:
        return new, None
    return None, length if continues else max(length - 1, 1)


def guidance_of(values: Values | None) -> float:
    """Return the `guidance_scale` that a checkpoint asks for. Defaults to 1, which disables it."""
    values = values or {}
    with _naming(values, ("guidance_scale",), "guidance_scale"):
        scale = values.get("guidance_scale")
        return check_scale("guidance_scale", 1.0 if scale is None else scale)


def unsupported_generation_values(
    values: Values | None, continues: bool, guided: bool = True
) -> dict[str, Any]:
    """Return the options and values that change a text in Transformers but not in this package.

    `continues`: whether prompts are part of the texts; `guided`: whether the task takes guidance.
    """
    values = values or {}
    ignored = _UNSUPPORTED_VALUES if guided else {**_UNSUPPORTED_VALUES, "guidance_scale": (1,)}
    found = {
        name: value
        for name, neutral in ignored.items()
        if (value := values.get(name)) is not None and value not in neutral
    }
    if (values.get("num_beams") or 1) != 1 and values.get("do_sample"):
        found["do_sample"] = True
    suppressed, ends = values.get("suppress_tokens"), values.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    if isinstance(suppressed, list) and any(end in suppressed for end in ends):
        found["suppress_tokens"] = suppressed  # `Rules` does not ban end ids as bad words.
    if continues and values.get("min_length") and values.get("min_new_tokens") is None:
        found["min_length"] = values["min_length"]
    return found


def _given(values: Values, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that are present, under the names of this package."""
    return {ours: values[name] for name, ours in names.items() if values.get(name) is not None}


@contextlib.contextmanager
def _naming(values: Values, names: tuple[str, ...], argument: str) -> Iterator[None]:
    """Say in errors that the values are from the checkpoint, and what to give instead."""
    try:
        yield
    except (ValueError, TypeError) as error:
        said = {name: values[name] for name in names if values.get(name) is not None}
        raise ValueError(
            f"The checkpoint's generation config has {said}, which is invalid: {error} Give "
            f"`generate` a `{argument}` of your own."
        ) from error
