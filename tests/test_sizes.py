"""Sizes of programs: what comes seldom is padded to what there is, what comes often is not."""

import math

import numpy as np
import pytest

from keras_transformer.support.sizes import ShapeBuckets, round_rows, round_size

pytestmark = pytest.mark.backend_independent


def test_few_steps():
    steps = {round_size(size) for size in range(1, 4097)}
    assert len(steps) <= 23 and max(steps) == 4096
    for size in range(17, 20_000, 7):
        assert size <= round_size(size) <= 1.5 * size


def test_a_mixed_load_has_few_sizes_and_little_waste():
    random, sizes, seen = np.random.default_rng(0), ShapeBuckets(), []
    for _ in range(2000):
        rows, tokens = random.integers(1, 17), random.integers(1, 200)
        wanted = round_rows(rows), round_size(tokens)
        size = sizes.choose(wanted, most=(16, 256))
        assert rows <= size[0] <= 16 and tokens <= size[1] <= 256
        assert math.prod(size) <= max(256, 4 * math.prod(wanted))
        seen.append(size)
    assert len(set(seen)) <= 12 and set(seen) == set(seen[:1000])  # what is made last is kept


def test_a_steady_load_gets_its_own_size_soon():
    sizes = ShapeBuckets()
    sizes.choose((32, 128))
    wanted = [(16, 64), (24, 96)] * 24
    found = [sizes.choose(size) for size in wanted]
    assert found[0] == (32, 128) and found[32:] == wanted[32:]
    assert sizes.choose((16, 96), times=5) == (16, 96)


def test_what_is_not_used_for_long_is_not_at_hand():
    sizes = ShapeBuckets()
    for tokens in [2**power for power in range(8, 44, 3)]:
        assert sizes.choose((tokens,)) == (tokens,)
    assert sizes.choose((8,)) == (256,)
    for power in range(44, 83, 3):
        sizes.choose((2**power,))
    assert sizes.choose((8,)) == (8,)


def test_groups_share_nothing():
    sizes = ShapeBuckets()
    assert sizes.choose((64,), group="a") == (64,)
    assert sizes.choose((32,), group="b") == (32,)
    assert sizes.choose((32,), group="a") == (64,)
