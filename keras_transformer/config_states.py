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

    encoder_projection: bool = option(
        '`"seq2seq"` only. A dense layer makes the states of the encoder as wide as those of the '
        "decoder, which attends to what it gives.",
        False,
        of="model",
    )
    output_transform: str | None = option(
        '`"decoder"` and `"seq2seq"` only. The activation of a dense layer between the states and '
        "the logits, with a norm behind it (BERT as a decoder). None for no such layer.",
        None,
        of="model",
        choices=(None, *ACTIVATIONS),
    )


def check_states(config: "TransformerConfig") -> None:
    """ValueError for layers behind the blocks of a model that has no place for them."""
    for name, kinds in (
        ("encoder_projection", ("seq2seq",)),
        ("output_transform", ("decoder", "seq2seq")),
    ):
        if getattr(config, name) and config.kind not in kinds:
            raise ValueError(
                f"`{name}` needs kind={' or '.join(map(repr, kinds))}, received "
                f"kind={config.kind!r}."
            )
