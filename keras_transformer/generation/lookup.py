"""Prompt lookup: what a text goes on with is guessed from the text itself."""

from keras import ops


def look_up(texts, lengths, count: int, max_ngram: int):
    """What followed the last tokens of each text when they stood in it before.

    Of the places where the last n tokens stood before, `n` as large as possible, the last one
    counts. A copy that reaches the end of the text goes on with itself: a text that repeats a
    part of it is taken to go on repeating.

    Args:
        texts: int `(rows, size)`, padded on the right.
        lengths: int `(rows,)`, at least 1.
        count: int, tokens to guess.
        max_ngram: int, the largest `n`.

    Returns:
        Int32 `(rows, count)`; -1 in rows whose last token did not stand in the text before.

    Example:
    ```python
    import numpy as np
    from keras_transformer.generation.lookup import look_up

    texts = np.array([[5, 6, 7, 8, 5, 6, 0], [1, 2, 3, 0, 0, 0, 0]])
    found = look_up(texts, np.array([6, 3]), count=3, max_ngram=2)
    assert np.array(found).tolist() == [[7, 8, 5], [-1, -1, -1]]
    ```

    Source: Saxena 2023, "Prompt Lookup Decoding".
    """
    texts = ops.cast(ops.convert_to_tensor(texts), "int32")
    lengths = ops.cast(ops.convert_to_tensor(lengths), "int32")[:, None]
    size = texts.shape[1]
    places = ops.arange(size, dtype="int32")[None]
    # How many tokens up to each place equal those up to the last one.
    same = ops.logical_and(places < lengths - 1, places >= 0)
    matched = ops.zeros_like(texts)
    for back in range(min(max_ngram, size)):
        last = ops.take_along_axis(texts, ops.maximum(lengths - 1 - back, 0), axis=1)
        shifted = ops.pad(texts[:, : size - back], ((0, 0), (back, 0)), constant_values=-1)
        same = ops.logical_and(same, shifted == last)
        matched = matched + ops.cast(same, "int32")
    # The longest match, and of those the last: both in one number.
    best = ops.max(matched * size + places, axis=1, keepdims=True)
    found, start = best >= size, best % size + 1
    period = ops.maximum(lengths - start, 1)
    steps = ops.arange(count, dtype="int32")[None] % period
    guessed = ops.take_along_axis(texts, ops.minimum(start + steps, size - 1), axis=1)
    return ops.where(found, guessed, -1)
