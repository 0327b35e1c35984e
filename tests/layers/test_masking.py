"""The composition of masks."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.device import device
from keras_transformer.kernels.values import drop_trivial_mask
from keras_transformer.layers import combine_masks
from tests.layers.conftest import numpy


def mask(*args, **kwargs):
    return numpy(combine_masks(*args, **kwargs))[:, 0]


def test_nothing_to_hide_is_no_mask():
    assert combine_masks(3, 4) is None


def test_causal():
    np.testing.assert_array_equal(mask(3, 3, causal=True)[0], np.tril(np.ones((3, 3), bool)))


def test_causal_from_a_slot_of_a_cache():
    expected = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]
    np.testing.assert_array_equal(
        mask(2, 5, causal=True, first_slot=2)[0], np.array(expected, bool)
    )


def test_padding_hides_keys_whatever_its_dtype():
    padding = np.array([[1, 1, 0], [1, 0, 0]])
    for dtype in ("bool", "int32", "float32"):
        result = numpy(combine_masks(2, 3, padding=padding.astype(dtype)))
        assert result.shape == (2, 1, 1, 3) and result.dtype == bool
        np.testing.assert_array_equal(result[:, 0, 0], padding.astype(bool))


@pytest.mark.parametrize("dtype", ["bool", "int32"])
def test_a_mask_without_padding_is_none_where_that_can_be_seen(backend, dtype):
    whole = ops.ones((2, 3), dtype)
    padded = ops.convert_to_tensor(np.array([[1, 1, 1], [1, 1, 0]], dtype))
    assert (drop_trivial_mask(whole) is None) == (backend == "torch" and device().is_cpu)
    assert drop_trivial_mask(padded) is padded and drop_trivial_mask(None) is None
    if backend == "torch":
        from torch.fx.experimental.proxy_tensor import make_fx

        seen = []
        make_fx(lambda x: (seen.append(drop_trivial_mask(x)), x + 1)[1])(whole)
        assert seen[0] is not None  # what is traced is for other masks too
        import torch

        rows = torch.func.vmap(lambda row: ops.cast(drop_trivial_mask(row), "int32"))(padded)
        assert rows.shape == (2, 3)  # many masks at once are not looked at


def test_window():
    expected = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    np.testing.assert_array_equal(mask(4, 4, window=2)[0], np.array(expected, bool))
    causal = np.array(expected, bool) & np.tril(np.ones((4, 4), bool))
    np.testing.assert_array_equal(mask(4, 4, window=2, causal=True)[0], causal)


def test_window_by_positions():
    positions = np.array([[0, 1, 2, 7]])
    result = mask(4, 4, window=2, query_positions=positions, key_positions=positions)[0]
    expected = np.abs(positions.T - positions) < 2
    np.testing.assert_array_equal(result, expected)


def test_packed_documents_see_themselves_only():
    packs = np.array([[0, 0, 1, 1], [0, 1, 1, 2]])
    expected = packs[:, :, None] == packs[:, None]
    np.testing.assert_array_equal(mask(4, 4, query_pack=packs), expected)
    keys = np.array([[1, 0], [2, 2]])
    expected = packs[:, :, None] == keys[:, None]
    np.testing.assert_array_equal(mask(4, 2, query_pack=packs, key_pack=keys), expected)


def test_explicit_with_and_without_heads():
    explicit = np.random.default_rng(0).random((2, 3, 4)) > 0.5
    np.testing.assert_array_equal(mask(3, 4, explicit=explicit), explicit)
    heads = np.random.default_rng(1).random((2, 5, 3, 4)) > 0.5
    np.testing.assert_array_equal(numpy(combine_masks(3, 4, explicit=heads)), heads)


def test_a_prefix_is_seen_whatever_causality_and_window():
    prefix, padding = np.array([[3, 3, 3, 0, 0], [0, 2, 0, 0, 0]]), np.array([[1, 1, 1, 1, 0]] * 2)
    result = mask(5, 5, causal=True, window=2, prefix=prefix, padding=padding)
    steps = np.arange(5)[:, None] - np.arange(5)
    near = (steps >= 0) & (steps < 2)
    expected = (near | (np.arange(5) < prefix[..., None])) & padding[:, None].astype(bool)
    np.testing.assert_array_equal(result, expected)
    # Of queries in a cache the slots count.
    result = mask(2, 4, causal=True, first_slot=1, prefix=np.array([[4, 0]]))[0]
    np.testing.assert_array_equal(result, [[1, 1, 1, 1], [1, 1, 1, 0]])


def test_all_together_is_the_conjunction():
    random = np.random.default_rng(0)
    padding, explicit = random.random((2, 4)) > 0.3, random.random((2, 4, 4)) > 0.3
    packs = np.array([[0, 0, 1, 1], [0, 0, 0, 1]])
    result = mask(4, 4, padding=padding, causal=True, window=3, query_pack=packs, explicit=explicit)
    steps = np.arange(4)[:, None] - np.arange(4)
    expected = padding[:, None] & explicit & (packs[:, :, None] == packs[:, None])
    np.testing.assert_array_equal(result, expected & (steps >= 0) & (steps < 3))
