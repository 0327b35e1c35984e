import itertools
import time

import numpy as np
import pytest

from keras_transformer.data import bucket_of, choose_buckets

pytestmark = pytest.mark.backend_independent


def padded_positions(lengths, buckets):
    return int(np.asarray(buckets)[bucket_of(lengths, buckets)].sum())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("max_buckets", [1, 2, 3, 5])
def test_no_other_choice_pads_less(seed, max_buckets):
    lengths = np.random.default_rng(seed).geometric(0.06, size=200)
    buckets = choose_buckets(lengths, max_buckets, multiple=8)
    ends = range(8, lengths.max() + 8, 8)
    best = min(
        padded_positions(lengths, (*chosen, ends[-1]))
        for count in range(max_buckets)
        for chosen in itertools.combinations(ends[:-1], count)
    )
    assert len(buckets) <= max_buckets
    assert all(bucket % 8 == 0 for bucket in buckets)
    assert padded_positions(lengths, buckets) == best


@pytest.mark.parametrize("seed", range(3))
def test_no_other_chain_of_pairs_pads_less(seed):
    rng = np.random.default_rng(seed)
    source = rng.integers(1, 25, size=60)
    pairs = np.stack([source, np.clip(source + rng.integers(-12, 12, size=60), 1, 25)], axis=1)
    buckets = choose_buckets(pairs, 3, multiple=4)
    top = tuple(int(-(-m // 4) * 4) for m in pairs.max(axis=0))
    grid = list(itertools.product(range(4, top[0] + 4, 4), range(4, top[1] + 4, 4)))
    best = min(
        padded_positions(pairs, (*chosen, top))
        for count in range(3)
        for chosen in itertools.combinations(grid, count)
        if all(a[0] <= b[0] and a[1] <= b[1] for a, b in itertools.pairwise(chosen))
    )
    assert padded_positions(pairs, buckets) == best


def test_lengths_are_capped_and_useless_buckets_left_out():
    assert choose_buckets([3, 5, 90], max_length=50) == (8, 50)
    assert choose_buckets([7, 8, 8], max_buckets=6) == (8,)
    assert choose_buckets([1, 2, 3], multiple=1) == (1, 2, 3)
    assert choose_buckets([(3, 90), (70, 2)], max_length=(20, 30)) == ((20, 8), (20, 30))


def test_a_million_rows_are_fast():
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.geometric(1 / 60, 1_000_000), 512)
    start = time.perf_counter()
    choose_buckets(lengths)
    choose_buckets(np.stack([lengths, lengths[::-1]], axis=1))
    assert time.perf_counter() - start < 10  # 0.5 s on two free cores


def test_bad_input():
    with pytest.raises(ValueError, match="at least one length"):
        choose_buckets([])
    with pytest.raises(ValueError, match="`lengths` must be at least 1, received 0"):
        choose_buckets([4, 0])
    with pytest.raises(ValueError, match="`max_buckets` must be an integer"):
        choose_buckets([4], max_buckets=0)
    with pytest.raises(ValueError, match="max_length .* got 'x'"):
        choose_buckets([4], max_length="x")
    with pytest.raises(ValueError, match=r"Row 1 has length \[9\], longer .* \[8\]"):
        bucket_of([3, 9], (8,))
    with pytest.raises(ValueError, match="each at least as long as the one before"):
        bucket_of([3], (16, 8))
