"""Statistics of attention: how spread it is, and where it leads through the layers."""

import numpy as np


def entropy(attention: np.ndarray) -> np.ndarray:
    """Measure how spread the attention of each head is, in nats: the mean over the queries.

    It is 0 for a head that attends to one key, and `log(keys)` for a head that attends to all keys
    equally. A head that a layer does not have is NaN.

    Args:
        attention: float `(layers, heads, queries, keys)`.

    Returns:
        Float64 `(layers, heads)`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.explanations import entropy

    alike = np.full((1, 1, 3, 4), 0.25)
    assert np.isclose(entropy(alike)[0, 0], np.log(4))
    ```

    Source: Clark et al. 2019, "What Does BERT Look At?", section 3.3.
    """
    shares = np.asarray(attention, "float64")
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return -(shares * logs).sum(axis=-1).mean(axis=-1)


def rollout(attention: np.ndarray, residual: float = 0.5) -> np.ndarray:
    """Estimate how much of each token is in each state, as if layers did nothing but attention.

    The attention of each layer, averaged over heads and mixed with the residual connection, is a
    matrix; the matrices of the layers are multiplied.

    Args:
        attention: float `(layers, heads, tokens, tokens)`, of self-attention.
        residual: float, the share of the residual connection that bypasses attention.

    Returns:
        Float64 `(layers, tokens, tokens)`, whose rows sum to 1.

    Raises:
        ValueError: if there are not as many keys as queries, as in cross-attention.

    Example:
    ```python
    import numpy as np
    from keras_transformer.explanations import rollout

    causal = np.array([[[[1.0, 0.0], [0.5, 0.5]]]])
    assert rollout(causal)[0].tolist() == [[1.0, 0.0], [0.25, 0.75]]
    ```

    Source: Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.
    """
    shares = np.asarray(attention, "float64")
    if shares.ndim != 4 or shares.shape[2] != shares.shape[3]:
        raise ValueError(
            "Rollout needs self-attention, (layers, heads, tokens, tokens), received shape "
            f"{shares.shape}."
        )
    mean = np.nanmean(shares, axis=1)  # heads that a layer does not have are NaN
    mixed = residual * np.eye(shares.shape[-1]) + (1 - residual) * mean
    mixed /= mixed.sum(axis=-1, keepdims=True)  # an attention sink takes a part of a row
    found = [mixed[0]]
    for layer in mixed[1:]:
        found.append(layer @ found[-1])
    return np.stack(found)
