"""Each drawn token against the cuts in NumPy, where whole programs are compiled.

A compiler may compute a number twice and round it otherwise the second time, which only a compiled
program shows: `Engine` draws here, in the pass over the prompts and in the loop.
"""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.generation import Random
from keras_transformer.generation.samplers.samplers import draw
from keras_transformer.kernels.programs import compile_function
from tests.generation.common import make_backbone, make_prompts, on_one
from tests.generation.nuclei import chances, draws, logits_of, outside, sharper

PROMPTS = make_prompts([3] * 24, 90)


@pytest.mark.parametrize(
    "sampler, factor, batch_size",
    [
        (Random(temperature=0.7, top_p=0.9), 2.0, 24),
        on_one(Random(temperature=1.3, top_p=0.6), 0.5, 8),
        (Random(temperature=0.5, top_k=4, top_p=0.5, min_p=0.5, typical_p=0.9), 1.0, 24),
        on_one(Random(temperature=1e-3, top_p=0.1), 1.0, 24),
    ],
    ids=["peaked", "flat", "all cuts", "cold"],
)
def test_no_token_outside_and_all_within_as_often_as_they_should(sampler, factor, batch_size):
    backbone = sharper(make_backbone("decoder", vocabulary_size=90), factor)
    drawn = draws(backbone, sampler, PROMPTS, 64, batch_size=batch_size)
    logits = logits_of(backbone, PROMPTS, drawn)
    assert outside(logits, drawn, sampler) == 0
    # The first tokens: a distribution for each prompt, 64 draws of each.
    expected = 64 * chances(logits[:, 0, 0], sampler)
    found = np.array([np.bincount(row, minlength=90) for row in drawn[:, :, 0]])
    statistic, freedom = chi_square(found, expected)
    assert statistic < freedom + 5 * np.sqrt(2 * freedom) + 5


def chi_square(found, expected, least=5):
    """The statistic over all rows, what is expected seldom put together, and its freedom."""
    statistic = freedom = 0
    for f, e in zip(found, expected, strict=True):
        often = e >= least
        f, e = np.append(f[often], f[~often].sum()), np.append(e[often], e[~often].sum())
        f, e = f[e > 1e-9], e[e > 1e-9]
        statistic += ((f - e) ** 2 / e).sum()
        freedom += len(e) - 1
    return statistic, freedom


def test_equals_what_is_banned_and_what_has_no_number():
    """Keep the right tokens in rows with ties, with minus infinity, and all but one banned."""
    low = -1e30
    rows = [
        [1.0, 3.0, 3.0, 2.0, 2.0, -np.inf],
        [low, low, low, -7.0, low, low],
        [0.0, -0.0, 0.0, -0.0, low, low],
        [40.0, -40.0, -40.0, -40.0, -40.0, -np.inf],
    ]
    samplers = {
        Random(top_k=1): ["12", "3", "0123", "0"],
        Random(top_k=3): ["1234", None, "0123", None],
        Random(top_p=0.3): ["12", "3", "0123", "0"],
        Random(top_p=1e-300): ["12", "3", "0123", "0"],
        Random(min_p=1.0): ["12", "3", "0123", "0"],
        Random(typical_p=0.1): ["12", "3", "0123", "0"],
        Random(temperature=1e-300): ["12", "3", "0123", "0"],
        Random(temperature=1e300): ["01234", "3", "0123", "01234"],
    }
    compiled = compile_function(lambda logits: [each.filtered(logits) for each in samplers])
    found = compiled(ops.convert_to_tensor(np.array(rows, "float32")))
    for (sampler, expected), logits in zip(samplers.items(), found, strict=True):
        for row, tokens in zip(ops.convert_to_numpy(logits), expected, strict=True):
            possible = "".join(map(str, np.flatnonzero(row > -1e29)))
            assert tokens in (None, possible), (sampler, possible)
            assert not np.isnan(row).any()


def test_a_draw_of_nothing():
    """No token has a chance: then the likeliest of what is given for that."""

    def nothing(scores, numbers):
        return draw(ops.zeros_like(scores), numbers, instead=scores)

    scores = np.random.default_rng(0).normal(size=(40, 700)).astype("float32")
    numbers = np.linspace(0, 0.9999, 40).astype("float32")
    found = compile_function(nothing)(*map(ops.convert_to_tensor, (scores, numbers)))
    assert ops.convert_to_numpy(found).tolist() == scores.argmax(axis=-1).tolist()


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch runs without XLA")
def test_with_all_of_the_optimization_that_a_user_has(forks):
    """In a process of its own: the tests tell XLA to optimize less."""
    result = forks.run(Path(__file__).with_name("nuclei.py"), XLA_FLAGS=None)
    assert result.returncode == 0, result.stderr[-2000:]
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["flags"] is None
    assert [count for count, _ in report["found"]] == [0] * len(report["found"])
    assert sum(total for _, total in report["found"]) > 1500
