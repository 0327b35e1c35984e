"""Configs drawn at random: what holds of the chosen ones holds of any. See `tests/thorough.py`."""

import numpy as np
import pytest

from keras_transformer.config import NORMALIZATIONS
from keras_transformer.generation import Engine, Greedy, Settings
from tests.generation.common import (
    END,
    PAD,
    engine_inputs,
    make_backbone,
    make_prompts,
    uncached_greedy,
    until,
)
from tests.thorough import seeds

pytestmark = pytest.mark.thorough
POSITIONS = ("sinusoidal", "learned", "rotary", "relative", "alibi")


def drawn(random):
    """Values of a config that go together."""
    values = {
        "position": str(random.choice(POSITIONS)),
        "num_layers": int(random.integers(1, 4)),
        "num_key_value_heads": int(random.choice([1, 2, 4])),
        "normalize_first": bool(random.integers(2)),
        "normalization": str(random.choice([n for n in NORMALIZATIONS if n != "batch_norm"])),
        "normalize_output": bool(random.integers(2)),
        "gated": bool(random.integers(2)),
        "use_bias": bool(random.integers(2)),
        "tie_embeddings": bool(random.integers(2)),
    }
    if values["position"] == "learned":
        values["max_sequence_length"] = 32
    return values


@pytest.mark.parametrize("seed", seeds(20))
@pytest.mark.parametrize("kind", ["decoder", "seq2seq"])
def test_cached_tokens_are_those_without_a_cache(kind, seed):
    random = np.random.default_rng(seed)
    backbone = make_backbone(kind, seed=seed, **drawn(random))
    prompts = make_prompts(random.integers(1, 12, size=3).tolist(), seed=seed)
    settings = Settings(Greedy(), None, (END,), PAD)
    found = Engine(backbone).generate(engine_inputs(backbone, prompts), settings, 12)
    expected = [until(row, 12, (END,)) for row in uncached_greedy(backbone, prompts, 12)]
    tokens = zip(found.tokens[:, 0], found.counts[:, 0], strict=True)
    assert [row[:count].tolist() for row, count in tokens] == expected
