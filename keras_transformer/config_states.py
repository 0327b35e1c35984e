"""The values of a config that say what becomes of the states behind the blocks of a side."""

import dataclasses
from typing import TYPE_CHECKING

from keras_transformer.config_checks import option
from keras_transformer.config_feed_forward import ACTIVATIONS

if TYPE_CHECKING:
    from keras_transformer.config import TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateOptions:
    """Further values of a `TransformerConfig`, as flat as its own."""

    output_transform: str | None = option(
        '`"decoder"` and `"seq2seq"` only. The activation of a dense layer between the states and '
        "the logits, with a norm behind it (BERT as a decoder). None for no such layer.",
        None,
        of="model",
        choices=(None, *ACTIVATIONS),
    )


def check_states(config: "TransformerConfig") -> None:
    """ValueError for a layer before the logits of a model that has none."""
    if config.output_transform and config.kind not in ("decoder", "seq2seq"):
        raise ValueError(
            f"`output_transform` needs kind='decoder' or 'seq2seq', received kind={config.kind!r}."
        )
