"""The values of a config that say which tokens see which, beside causality and padding."""

import dataclasses

from keras_transformer.config_checks import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatternOptions:
    """Further values of a `TransformerConfig`, as flat as its own."""

    window: int | None = option(
        "attend at most to this many neighbouring tokens. None for all.", None, least=1
    )
    window_dilation: int = option(
        "the step between the places of a window, as many of them on each side.", 1, least=1
    )
    global_tokens: int = option(
        "so many first tokens see all others and are seen by all, whatever the `window`.",
        0,
        least=0,
    )
    global_projection: bool = option(
        "tokens that see all have queries, keys and values of their own (Longformer).", False
    )
    block_size: int | None = option(
        '`"encoder"` only, in place of a `window`: attend to the own block of so many tokens, to '
        "its neighbours, and to the first and the last, which attend to all (BigBird).",
        None,
        least=1,
    )
    random_blocks: int = option("as many further blocks, at random. With `block_size`.", 0, least=0)
    global_block_size: int | None = option(
        "beside the `window`, attend to the normalized sum of each so many tokens (LongT5). With "
        '`position="relative"` these have a bias of their own.',
        None,
        least=1,
    )
    attention_sinks: bool = option("each head has a score for nothing at all (gpt-oss).", False)

    @property
    def reach(self) -> int | None:
        """How many tokens back a decoder's layer sees, itself counted; None for all."""
        if self.window is None or self.global_tokens:
            return None
        return (self.window - 1) * self.window_dilation + 1
