"""The family that is nearest to a published config that none reads, for an error."""

import difflib
import math
from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.families.base.family import Family
from keras_transformer.support.checking import printable

# Names of values that any config may have, and that say nothing of its layers.
_ANY = {
    "_name_or_path", "architectures", "auto_map", "bos_token_id", "chunk_size_feed_forward",
    "dtype", "eos_token_id", "id2label", "initializer_range", "is_encoder_decoder", "label2id",
    "model_type", "name_or_path", "output_attentions", "output_hidden_states", "pad_token_id",
    "problem_type", "return_dict", "sep_token_id", "torch_dtype", "transformers_version",
    "use_cache",
}  # fmt: skip
_LEAST = 0.6  # of the likeness of names and of values together
_MOST = 6  # values that are named
_LONGEST = 60  # characters of a name that are looked at


def nearest(values: Mapping[str, Any], families: Mapping[str, Family]) -> str:
    """Return a sentence that names the nearest family, and the values that it does not have.

    Args:
        values: the content of a `config.json` of a type that is not supported.
        families: families by their type.

    Returns:
        The sentence, with a space before it; empty if no family is near.
    """
    given = {name for name in values if isinstance(name, str)} - _ANY
    named = values.get("model_type")
    named = named[:_LONGEST] if isinstance(named, str) else ""
    own = {name: set(family.fields) - _ANY for name, family in families.items()}
    weights = {
        name: math.log(len(own) / sum(name in each for each in own.values()))
        for each in own.values()
        for name in each
    }

    def weight(names: set[str]) -> float:
        return sum(weights.get(name, 0.0) for name in names)

    def likeness(name: str) -> float:
        words = difflib.SequenceMatcher(a=named, b=name).ratio()
        every = weight(given | own[name])
        return words + (weight(given & own[name]) / every if every else 0.0)

    found = max(families, key=likeness)
    if likeness(found) < _LEAST:
        return ""
    family = families[found]
    known = own[found] | set(family.required) | set(family.published_config(family.config({})))
    further = sorted(given - known)
    sentence = f" The nearest of them is {found!r}"
    if not further:
        return f"{sentence}."
    names = (printable(name[:_LONGEST], one_line=True) for name in further[:_MOST])
    shown = ", ".join(names) + (", ..." if len(further) > _MOST else "")
    return f"{sentence}, whose config has no {shown}: a part is needed for what these say."
