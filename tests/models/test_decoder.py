"""The decoder backbone: causal, cached, packed."""

import numpy as np
import pytest

from keras_transformer.generation import Cache
from tests.layers.conftest import assert_close, differs, numpy
from tests.models.conftest import IDS, PADDING, small_backbone

POSITIONS = ("none", "sinusoidal", "learned", "rotary", "relative", "alibi")


def test_states_are_unchanged_by_what_comes_after():
    backbone = small_backbone("decoder")
    before = numpy(backbone({"token_ids": IDS}))
    for t in range(4):
        changed = IDS.copy()
        changed[:, t + 1 :] = 10
        after = numpy(backbone({"token_ids": changed}))
        assert_close(after[:, : t + 1], before[:, : t + 1])
        assert differs(after[:, t + 1 :], before[:, t + 1 :])


@pytest.mark.parametrize(
    "values",
    [{"position": p} for p in POSITIONS]
    + [
        {"window": 2, "position": "rotary", "num_key_value_heads": 1},
        {"position": "learned", "position_offset": 2, "num_layers": 3, "num_layer_groups": 2},
        {
            "position": "rotary",
            "rotary_dim": 2,
            "rotary_scaling": "yarn",
            "rotary_factor": 4.0,
            "normalize_first": True,
            "parallel_residual": True,
            "query_key_norm": True,
            "output_bias": True,
        },
        {
            "position": "rotary",
            "query_key_norm": True,
            "query_key_norm_across_heads": True,
            "num_key_value_heads": 1,
            "normalize_output": True,
            "normalization": "rms_norm_plus_one",
        },
    ],
)
def test_cached_equals_uncached_also_behind_padding(values):
    """Three tokens, the second row has two; then token by token, each row on its own position."""
    backbone = small_backbone("decoder", **{"num_layers": 1, **values})
    rows = [IDS[:1], np.array([[4, 6, 9, 2]], "int32")]
    expected = [numpy(backbone({"token_ids": row}))[0] for row in rows]
    prompt = np.concatenate([rows[0][:, :3], [[4, 6, 0]]])
    mask = np.array([[1, 1, 1], [1, 1, 0]], bool)
    cache = Cache.create(backbone, rows=2, slots=6)
    states, cache = backbone({"token_ids": prompt, "padding_mask": mask}, cache=cache)
    assert_close(states[0], expected[0][:3])
    assert_close(states[1, :2], expected[1][:2])
    for step in range(2):
        tokens = np.array([[rows[0][0, 3 + step]], [rows[1][0, 2 + step]]])
        states, cache = backbone({"token_ids": tokens}, cache=cache)
        assert_close(states[0, 0], expected[0][3 + step], atol=2e-5)
        assert_close(states[1, 0], expected[1][2 + step], atol=2e-5)


@pytest.mark.parametrize("position", POSITIONS[1:])
def test_packed_documents_equal_the_documents_alone(position):
    backbone = small_backbone("decoder", num_layers=1, position=position)
    packs, positions = np.array([[0, 0, 0, 1, 1]] * 2), np.array([[0, 1, 2, 0, 1]] * 2)
    packed = numpy(backbone({"token_ids": IDS, "pack_ids": packs, "position_ids": positions}))
    for document in (slice(0, 3), slice(3, 5)):
        assert_close(packed[:, document], backbone({"token_ids": IDS[:, document]}))


def test_step_and_prompt_inputs():
    backbone = small_backbone("decoder")
    ids, mask = backbone.prompt_tokens({"token_ids": IDS})
    assert ids is IDS and numpy(mask).all()
    _, mask = backbone.prompt_tokens({"token_ids": IDS, "padding_mask": PADDING})
    np.testing.assert_array_equal(numpy(mask), PADDING)
    assert backbone.step_inputs(IDS[:, :1])["token_ids"].shape == (2, 1)


@pytest.mark.parametrize("values", [{}, {"position": "rotary", "window": 3}, {"position": "alibi"}])
@pytest.mark.parametrize(
    "mask",
    [
        [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]],
        [[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]],
        [[0, 1, 1, 1, 1], [0, 1, 0, 1, 0]],
        [[1, 1, 0, 1, 1], [0, 0, 0, 0, 0]],
    ],
    ids=["right", "left", "between", "none"],
)
def test_no_real_token_sees_padding_wherever_it_stands(values, mask):
    backbone = small_backbone("decoder", **values)
    mask = np.array(mask, bool)
    inputs = {"token_ids": IDS, "padding_mask": mask}
    found = numpy(backbone(inputs, training=True))
    others = {**inputs, "token_ids": np.where(mask, IDS, 10 - IDS)}
    assert_close(numpy(backbone(others, training=True))[mask], found[mask], atol=1e-6)
    expected, collected = backbone(inputs, collect=("attention",))
    assert_close(expected, found)
    assert_close(backbone(inputs), expected)
    weights = numpy(collected["attention"][0]).transpose(0, 2, 1, 3)[mask]  # of the real queries
    assert not weights[np.broadcast_to(~mask[np.nonzero(mask)[0], None], weights.shape)].any()
