"""Packing: rows stay whole, few positions are wasted, and tokens know whose they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.data import BucketedDataset, pack_rows
from tests.thorough import many

pytestmark = pytest.mark.backend_independent


@settings(max_examples=many(60), deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_every_row_is_packed_once_and_none_overflows(lengths):
    groups = pack_rows(lengths, 30)
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    filled = [sum(lengths[row] for row in group) for group in groups]
    assert max(filled) <= 30
    # Best fit never opens a group while another has room: no two are half empty or more.
    assert sum(2 * total <= 30 for total in filled) <= 1


def test_real_lengths_leave_little_padding():
    lengths = np.random.default_rng(0).lognormal(3, 0.6, 20_000).astype(int).clip(1, 128)
    groups = pack_rows(lengths, 128)
    assert lengths.sum() / (128 * len(groups)) > 0.995


def test_a_row_that_does_not_fit():
    with pytest.raises(ValueError, match="Row 1 has 9 tokens, more than `pack_length`, 8"):
        pack_rows([3, 9], 8)


def packed(columns, **options):
    return BucketedDataset(columns, lambda arrays, masks: (arrays, masks), **options)


def test_arrays_of_a_packed_batch():
    dataset = packed(
        {"ids": [[1, 2, 3], [4], [5, 6]]}, pack_length=5, batch_size=2, pad_values={"ids": 9}
    )
    (arrays, masks) = dataset[0]
    assert arrays["ids"].tolist() == [[4, 9, 9, 9, 9], [1, 2, 3, 5, 6]]
    assert arrays["pack_ids"].tolist() == [[0, -1, -1, -1, -1], [0, 0, 0, 1, 1]]
    assert arrays["position_ids"][1].tolist() == [0, 1, 2, 0, 1]
    assert masks["ids"].sum() == 6 and dataset.num_rows == 3 and dataset.tokens_per_epoch == 6
    assert dataset.padding_share == pytest.approx(4 / 10)


def test_both_sides_of_pairs_are_in_the_same_pack():
    rng = np.random.default_rng(1)
    sides = [[[row + 1] * n for row, n in enumerate(rng.integers(1, 9, 40))] for _ in range(2)]
    dataset = packed(
        {"source": sides[0]},
        paired_columns={"target": sides[1]},
        pack_length=16,
        batch_size=3,
        shuffle=True,
    )
    seen = []
    for i in range(len(dataset)):
        arrays, masks = dataset[i]
        for row in range(len(arrays["source"])):
            of_pack = []
            for name, prefix in (("source", ""), ("target", "paired_")):
                ids, packs = arrays[name][row], arrays[f"{prefix}pack_ids"][row]
                assert ((packs >= 0) == masks[name][row]).all()
                # The id of each token is its row's number: one for each document.
                of_pack.append({int(p): set(ids[packs == p].tolist()) for p in set(packs) - {-1}})
            assert of_pack[0] == of_pack[1]
            seen += [n for numbers in of_pack[0].values() for n in numbers]
    assert sorted(seen) == list(range(1, 41))


def test_the_batches_depend_on_seed_and_epoch():
    rows = {"ids": [[i] * (i % 7 + 1) for i in range(50)]}
    first, again = (packed(rows, pack_length=16, batch_size=2, shuffle=True) for _ in range(2))
    again.epoch = 3
    before = first[1][0]["ids"]
    first.epoch = 3
    np.testing.assert_array_equal(first[1][0]["ids"], again[1][0]["ids"])
    assert not np.array_equal(before, again[1][0]["ids"])


def test_what_does_not_go_with_packing():
    rows = {"ids": [[1], [2]]}
    for options in ({"values": {"label": [0, 1]}}, {"buckets": [4]}):
        with pytest.raises(ValueError, match="cannot be combined with `buckets`, or with `values`"):
            packed(rows, pack_length=4, **options)
    with pytest.raises(ValueError, match="`pack_length` must be an integer of at"):
        packed(rows, pack_length=0)
    with pytest.raises(ValueError, match="without `pack_length`"):
        packed(rows, pack_length=4).restore_order([0])
