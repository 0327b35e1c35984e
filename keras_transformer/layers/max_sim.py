"""MaxSim, the score of late interaction."""

from keras import ops

_NONE = -1e9  # the similarity with a place that holds no token


def max_sim(queries, documents):
    """Return the score of each query with each document, float `(queries, documents)`.

    For each token of a query the largest product with a token of the document, summed over the
    tokens of the query.

    Args:
        queries: float `(queries, query_length, width)`, a vector for each token. Vectors of zeros
            are no tokens.
        documents: float `(documents, length, width)`, with the same meaning.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers.max_sim import max_sim

    query = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    documents = np.array([[[1.0, 0.0], [0.0, 0.0]], [[0.6, 0.8], [1.0, 0.0]]])
    assert np.allclose(max_sim(query, documents), [[1.0, 1.8]])
    ```

    Source: Khattab and Zaharia 2020, "ColBERT", section 3.3.
    """
    queries, documents = (ops.cast(x, "float32") for x in (queries, documents))
    asked, said = (ops.any(ops.not_equal(x, 0), axis=-1) for x in (queries, documents))
    products = ops.einsum("qiw,djw->qdij", queries, documents)
    best = ops.max(ops.where(said[None, :, None], products, _NONE), axis=-1)
    counts = asked[:, None] & ops.any(said, axis=-1)[None, :, None]
    return ops.sum(ops.where(counts, best, ops.zeros_like(best)), axis=-1)
