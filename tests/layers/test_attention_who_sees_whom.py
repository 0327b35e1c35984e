"""Who sees whom in attention: causality, padding, windows, packs, positions and a cache."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import AttentionMask, SinusoidalPosition
from keras_transformer.layers.attention.key_value_cache import KeyValueCache
from tests.layers.attending import (
    BATCH,
    DIM,
    HEAD_DIM,
    HEADS,
    LENGTH,
    PADDING,
    SOURCE,
    X,
    attention,
    both_paths,
    sdpa,
)
from tests.layers.conftest import assert_close, differs, numpy, random


def test_permuting_keys_and_values_together_changes_nothing_without_positions():
    layer, order = attention(), np.array([4, 0, 6, 2, 5, 1, 3])
    assert_close(layer(X, value=SOURCE), layer(X, value=SOURCE[:, order]))
    table = numpy(SinusoidalPosition()(SOURCE))
    assert differs(layer(X, value=SOURCE + table), layer(X, value=SOURCE[:, order] + table))
    rotary = attention(rotary={"base": 100.0})
    assert differs(rotary(X, value=SOURCE), rotary(X, value=SOURCE[:, order]))


@pytest.mark.parametrize("score", ["scaled_dot", "location", "cosine"])
def test_causal_output_is_unchanged_by_what_comes_after(score):
    layer = attention(causal=True, score=score, max_sequence_length=LENGTH)
    before = numpy(layer(X))
    for t in range(LENGTH - 1):
        changed = X.copy()
        changed[:, t + 1 :] += 10
        after = numpy(layer(changed))
        assert_close(after[:, : t + 1], before[:, : t + 1])
        assert differs(after[:, t + 1 :], before[:, t + 1 :])


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"score": "general"}])
def test_a_masked_position_changes_nothing(options):
    layer, changed = attention(**options), X.copy()
    changed[1, 3:] = 1e4
    before, after = numpy(layer(X, mask=PADDING)), numpy(layer(changed, mask=PADDING))
    np.testing.assert_array_equal(after[PADDING], before[PADDING])
    other = SOURCE.copy()
    other[1, 3:] = -1e4
    mask = np.array([[1] * 7, [1] * 3 + [0] * 4], bool)
    before = numpy(layer(X, value=SOURCE, value_mask=mask))
    np.testing.assert_array_equal(numpy(layer(X, value=other, value_mask=mask)), before)


@pytest.mark.parametrize("bias", [None, random(1, HEADS, LENGTH, LENGTH)])
def test_a_row_without_any_key_stays_finite(bias):
    nothing = np.zeros((BATCH, LENGTH), bool)
    for policy in ("float32", "mixed_bfloat16", "mixed_float16"):
        layer = attention(dtype=policy)
        assert np.isfinite(numpy(layer(X, mask=nothing, bias=bias))).all()


def test_window(torch):
    layer = attention(window=2)
    steps = np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH))
    output, _ = both_paths(layer, X)
    assert_close(output, sdpa(torch, layer, X, X, attn_mask=steps < 2))


def test_packed_documents_equal_the_documents_alone():
    packs, positions = np.array([[0, 0, 0, 1, 1]] * 2), np.array([[0, 1, 2, 0, 1]] * 2)
    for options in ({}, {"causal": True}, {"window": 2, "rotary": {"base": 100.0}}):
        layer = attention(**options)
        given = {"query_positions": positions} if "window" in options else {}
        packed = numpy(layer(X, visibility=AttentionMask(query_pack=packs, **given)))
        for document in (slice(0, 3), slice(3, 5)):
            assert_close(packed[:, document], layer(X[:, document]))


def test_rotary_self_attention_depends_on_distances_alone():
    layer = attention(rotary={"base": 100.0}, causal=True)
    shifted = np.tile(np.arange(LENGTH) + 11, (BATCH, 1))
    assert_close(layer(X, visibility=AttentionMask(query_positions=shifted)), layer(X), atol=1e-4)
    stretched = AttentionMask(query_positions=np.tile(np.arange(LENGTH) * 2, (BATCH, 1)))
    assert differs(layer(X, visibility=stretched), layer(X))


def test_rotary_cross_attention_rotates_the_keys_by_their_own_positions():
    layer = attention(rotary={"base": 100.0})
    queries, keys = np.tile(np.arange(LENGTH), (BATCH, 1)), np.tile(np.arange(7), (BATCH, 1))

    def across(queries=None, keys=None):
        positions = AttentionMask(query_positions=queries, key_positions=keys)
        return layer(X, value=SOURCE, visibility=positions)

    expected = layer(X, value=SOURCE)
    assert_close(across(queries), expected)
    assert_close(across(queries, keys), expected)
    assert_close(across(queries + 9, keys + 9), expected, atol=1e-4)
    assert differs(across(queries, keys * 3), expected)


@pytest.mark.parametrize(
    "options", [{}, {"num_key_value_heads": 2}, {"rotary": {"base": 100.0}}, {"window": 2}]
)
@pytest.mark.parametrize("known", [True, False], ids=["slots known", "slots unknown"])
def test_cached_self_attention_equals_uncached(options, known):
    """Where an int says which slots are filled, only those are read, and masks are as short."""
    layer = attention(causal=True, **options)
    expected, weights = (numpy(x) for x in layer(X, return_attention_scores=True))
    cache = KeyValueCache.make(BATCH, layer.num_key_value_heads, 8, HEAD_DIM, "float32")
    slots = np.tile(np.arange(8), (BATCH, 1))

    def unknown(cache):
        return dataclasses.replace(cache, next=ops.convert_to_tensor(cache.next, "int32"))

    for start, end in ((0, 2), (2, 3), (3, LENGTH)):
        read = slots[:, : end if known else 8]
        step, found, cache = layer(
            X[:, start:end],
            visibility=AttentionMask(
                query_positions=slots[:, start:end],
                key_positions=read,
                explicit=read[:, None] <= slots[:, start:end, None],
            ),
            cache=cache if known else unknown(cache),
            return_attention_scores=True,
        )
        assert_close(step, expected[:, start:end])
        assert found.shape[-1] == read.shape[1]
        assert_close(found[..., :end], weights[:, :, start:end, :end])
    assert cache.keys.shape == (BATCH, layer.num_key_value_heads, 8, HEAD_DIM)
    assert not numpy(cache.keys)[:, :, LENGTH:].any()


def test_branches_in_one_row_see_what_the_mask_says():
    """Two tokens after the same two, neither of which sees the other, in neighbouring slots."""
    layer = attention(causal=True, rotary={"base": 100.0})
    cache = KeyValueCache.make(BATCH, HEADS, 4, HEAD_DIM, "float32")
    _, cache = layer(X[:, :2], cache=cache)
    side_by_side = AttentionMask(
        query_positions=np.full((BATCH, 2), 2),
        key_positions=np.tile([0, 1, 2, 2], (BATCH, 1)),
        explicit=np.tile(np.array([[1, 1, 1, 0], [1, 1, 0, 1]], bool), (BATCH, 1, 1)),
    )
    both, _ = layer(X[:, 2:4], visibility=side_by_side, cache=cache)
    for branch in range(2):
        alone = np.concatenate([X[:, :2], X[:, 2 + branch : 3 + branch]], axis=1)
        assert_close(both[:, branch], numpy(layer(alone))[:, 2])


def test_cached_cross_attention_equals_uncached():
    layer = attention()
    expected = numpy(layer(X, value=SOURCE))
    cache = KeyValueCache.make(BATCH, HEADS, 7, HEAD_DIM, "float32")
    first, cache = layer(X[:, :2], value=SOURCE, cache=cache)
    rest, weights, again = layer(X[:, 2:], cache=cache, return_attention_scores=True)
    assert_close(first, expected[:, :2])
    assert_close(rest, expected[:, 2:])
    assert weights.shape == (BATCH, HEADS, 3, 7)
    assert_close(again.keys, cache.keys)


def test_keras_masks_arrive():
    """Also beside other tensors, where Keras looks for another argument's name."""
    ids = np.array([[3, 4, 1, 2, 5], [1, 2, 4, 0, 0]])
    embedding = keras.layers.Embedding(6, DIM, mask_zero=True)
    layer, other = attention(), {"bias": np.zeros((1, 1, LENGTH, LENGTH), "float32")}
    states = embedding(ids)
    expected = numpy(layer(numpy(states), mask=PADDING))
    assert_close(layer(states), expected)
    assert_close(layer(states, **other), expected)
    assert_close(layer(X, value=states), layer(X, value=numpy(states), value_mask=PADDING))
    # The mask of the query goes on to the next layer.
    for output in (layer(states), layer(states, **other), layer(states, value=SOURCE)):
        mean = keras.layers.GlobalAveragePooling1D()(output)
        assert_close(mean[1], numpy(output)[1, :3].mean(axis=0))
