"""What is within attention, for who asks a pass for it: the projected queries and keys."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_SEEN: ContextVar[dict[str, Any] | None] = ContextVar("seen", default=None)


@contextlib.contextmanager
def observed(wanted: bool = True) -> Iterator[dict[str, Any]]:
    """Within it attention tells what it multiplies: `queries` and `keys` by the layer's name.

    Both are as the score function is given them, normalized and rotated, `(batch, heads, length,
    head_dim)`, and only where the weights are asked for too. The dict stays empty if not `wanted`.

    Args:
        wanted: bool.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import MultiHeadAttention
    from keras_transformer.layers.observing import observed

    attention, x = MultiHeadAttention(2, 4, name="self_attention"), np.random.rand(1, 3, 8)
    with observed() as seen:
        attention(x, return_attention_scores=True)
    queries, keys = seen["self_attention"]
    assert queries.shape == keys.shape == (1, 2, 3, 4)
    ```
    """
    seen: dict[str, Any] = {}
    token = _SEEN.set(seen if wanted else None)
    try:
        yield seen
    finally:
        _SEEN.reset(token)


def observe(name: str, queries, keys) -> None:
    """Tells of queries and keys, if somebody asks; of the first of each layer."""
    seen = _SEEN.get()
    if seen is not None:  # A second product of a layer is that of its global tokens.
        seen.setdefault(name, (queries, keys))
