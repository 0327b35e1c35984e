"""Reading and writing of the text config of families that put images among the tokens."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from keras_transformer.checkpoints.families.base.family import Conversion, Family, Values
from keras_transformer.checkpoints.heads import END_IDS, START_ID
from keras_transformer.checkpoints.weights.tables import WeightLine
from keras_transformer.config import TransformerConfig


def nested(values: Values, name: str) -> dict[str, Any]:
    """Return a nested published config. Raises ValueError if it is missing."""
    given = values.get(name) or {}
    if not isinstance(given, dict):
        raise ValueError(f"{name} must be an object, received {given!r}.")
    return given


def read_text(values: Values, *families: Family) -> TransformerConfig:
    """Return the decoder of a published `text_config` of one of these families.

    The first family is the default.
    """
    text = nested(values, "text_config")
    known = {family.model_type: family for family in families}
    kind = text.get("model_type", families[0].model_type)
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(
            f"The text model {kind!r} is not supported, only {', '.join(map(repr, known))}."
        )
    return known[kind].config(text)


def write_text(config: TransformerConfig, *families: Family) -> dict[str, Any]:
    """Return the published `text_config` for our decoder, by the first family that fits."""
    reasons = []
    for family in families:
        try:
            theirs = family.published_config(config.side("decoder"))
        except ValueError as error:
            reasons.append(str(error))
            continue
        return {name: value for name, value in theirs.items() if name != "architectures"}
    raise ValueError(" ".join(reasons))


def prefixed(lines: Iterable[WeightLine], prefix: str) -> tuple[WeightLine, ...]:
    """Return the lines of a text model inside another, without its output matrix."""

    def within(line: WeightLine) -> WeightLine:
        names = {
            name: tuple(prefix + each for each in getattr(line, name))
            for name in ("also", "copies")
        }
        return dataclasses.replace(line, theirs=prefix + line.theirs, **names)

    return tuple(within(line) for line in lines if not line.outside)


def _read_ends(values: Values) -> dict[str, Any]:
    ends = {"eos_token_id": nested(values, "text_config").get("eos_token_id")}
    return END_IDS.read({**ends, **{k: v for k, v in values.items() if v is not None}})


# The end token, which is read from the text config if the outer config has none.
TEXT_END = Conversion(_read_ends, lambda task: {})


def _read_start(values: Values) -> dict[str, Any]:
    text = nested(values, "text_config")
    start = values.get("bos_token_id", text.get("bos_token_id"))
    return START_ID.read({"decoder_start_token_id": start} | dict(values))


# The start token, for families in which the processor adds it instead of the tokenizer.
TEXT_START = Conversion(_read_start, lambda task: {})
