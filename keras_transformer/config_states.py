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

    scale_logits: bool = option(
        "divide the states by `sqrt(hidden_dim)` before the output projection (T5).",
        False,
        of="model",
    )
    logit_scale: float | None = option(
        "factor of the states before the output projection (Cohere). Defaults to that of "
        "`scale_logits`, or 1.",
        None,
        of="model",
        positive=True,
    )
    output_bias: bool = option("a bias for each token of the output.", False, of="model")
    logit_soft_cap: float | None = option(
        "logits stay below it, likewise. None for no cap.", None, of="model", positive=True
    )
    mean_pooler: bool = option(
        '`"encoder"` only. `pool` gives the normalized mean of the states that are of no token of '
        "the stem (BEiT).",
        False,
        of="model",
    )
    pooler: bool = option(
        '`"encoder"` only. A dense tanh layer on the first state (BERT).', False, of="model"
    )
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
