"""The value of a config that says what an encoder attends to, and what may not be beside it."""

import dataclasses
from typing import TYPE_CHECKING

from keras_transformer.checking import shorten
from keras_transformer.config_checks import PATTERN, option

if TYPE_CHECKING:
    from keras_transformer.config import TransformerConfig

# What blocks with cross-attention do not have.
_NOT_BESIDE = ("stem", "parallel_residual", "convolution_size", "disentangled", *PATTERN)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Further values of a `TransformerConfig`, as flat as its own."""

    source: dict | None = option(
        '`"seq2seq"` only: a further encoder, by the values that differ in it, to whose states the '
        "encoder attends: of an image, where the encoder reads a question about it (BLIP). None "
        "for no such side.",
        None,
        of="overrides",
    )


def check_source(config: "TransformerConfig") -> None:
    """ValueError for an encoder that cannot attend to a `source`."""
    if config.source is None:
        return
    if config.placeholder_id is not None:
        raise ValueError("`source` and `placeholder_id` do not go together.")
    if config.side("source").stem is None:
        raise ValueError("A `source` is of images or sound: give it a stem, `{'stem': ...}`.")
    encoder = config.side("encoder")
    for name in _NOT_BESIDE:
        if getattr(encoder, name) != getattr(type(config), name):
            raise ValueError(
                f"An encoder that attends to a `source` has no `{name}`, received "
                f"{shorten(getattr(encoder, name))}."
            )
