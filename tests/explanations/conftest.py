"""An explanation whose numbers are known, for what shows them."""

import numpy as np
import pytest

from keras_transformer.explanations import Explanation

HOSTILE = ("</script><script>document.title='ran'</script>", "<img src=x onerror=alert(1)>", "a&b")


def made(tokens=("the", "cat", "sat"), layers=2, heads=3, dim=4, seed=0, **fields):
    """Random softmaxes, queries and keys."""
    random, count = np.random.default_rng(seed), len(tokens)
    scores = np.exp(random.normal(size=(layers, heads, count, count)))
    vectors = {
        name: random.normal(size=(layers, heads, count, dim)).astype("float32")
        for name in ("queries", "keys")
    }
    return Explanation(
        model="TextClassifier",
        tokens=tuple(tokens),
        outputs=np.zeros(2, "float32"),
        states=np.zeros((layers + 1, count, 8), "float32"),
        attention=(scores / scores.sum(-1, keepdims=True)).astype("float32"),
        vectors=vectors,
        **fields,
    )


@pytest.fixture
def explanation():
    lens = tuple(tuple((("a", 0.6), ("b", 0.2)) for _ in range(3)) for _ in range(3))
    return made(
        logit_lens=lens,
        saliency=np.array([0.5, -0.25, 0.0], "float32"),
        target="the logit of 'good'",
    )
