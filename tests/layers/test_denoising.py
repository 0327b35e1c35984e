"""Queries of noisy objects: groups, noise, which queries see which."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.config.box_decoder import BoxDecoder
from keras_transformer.layers.denoising import NO_OBJECT, NO_QUERY, NoisyObjects, repeated

CLASSES = 20


def objects(*counts, width):
    """Boxes within the middle of the image, and classes, with padding anywhere."""
    random = np.random.default_rng(0)
    boxes = random.uniform(0.3, 0.5, (len(counts), width, 4)).astype("float32")
    boxes[..., 2:] /= 4
    classes = np.full((len(counts), width), -1, "int32")
    for row, count in zip(classes, counts, strict=True):
        row[random.permutation(width)[:count]] = random.integers(0, CLASSES, count)
    return boxes, classes


@pytest.mark.each_backend
@pytest.mark.parametrize(
    ("counts", "width", "count", "groups"),
    [((3, 1, 0), 4, 8, 2), ((1, 1), 3, 5, 5), ((4, 2), 6, 3, 1), ((0, 0), 2, 5, 0)],
)
def test_objects_are_repeated_in_groups(counts, width, count, groups):
    boxes, classes = objects(*counts, width=width)
    found = repeated(ops.convert_to_tensor(boxes), ops.convert_to_tensor(classes), count)
    found, names, group = map(ops.convert_to_numpy, found)
    places, most = max(count, width), max(counts)
    assert names.shape == (len(counts), places) and group.shape == (places,)
    for own, kinds, row, known in zip(found, names, boxes, classes, strict=True):
        real = known >= 0
        padded = np.concatenate([known[real], np.full(most - real.sum(), NO_OBJECT)])
        whole = np.tile(padded, groups)
        assert kinds.tolist() == [*whole, *[NO_QUERY] * (places - len(whole))]
        assert np.array_equal(own[kinds >= 0], np.tile(row[real], (groups, 1)))
        assert not own[kinds < 0].any()
    assert group.tolist() == [
        *np.repeat(np.arange(groups), most),
        *[-1] * (places - groups * most),
    ]


@pytest.mark.each_backend
def test_noise_is_as_large_as_stated():
    boxes, classes = objects(5, 4, width=6)
    values = BoxDecoder(width=8, num_heads=2, num_denoising=2000, box_noise_scale=0.5)
    layer = NoisyObjects(values, CLASSES, seed=3)
    layer.build()
    given = ops.convert_to_tensor(boxes), ops.convert_to_tensor(classes)
    plain, names, _ = map(ops.convert_to_numpy, repeated(*given, 2000))
    states, noisy, seen = map(ops.convert_to_numpy, layer(*given, others=3))
    assert states.shape == (2, 4000, 8) and seen.shape == (1, 4003, 4003)
    again = ops.convert_to_numpy(layer(*given, others=3)[1])
    assert np.abs(again - noisy).max() > 0.1  # each step has noise of its own

    def corners(x):
        return np.concatenate([x[..., :2] - x[..., 2:] / 2, x[..., :2] + x[..., 2:] / 2], -1)

    real = names >= 0
    lengths = np.tile(plain[..., 2:], 2)[real]
    for near, low, high in ((True, 0.0, 0.25), (False, 0.25, 0.5)):
        part = noisy[:, :2000] if near else noisy[:, 2000:]
        moved = (corners(part) - corners(plain))[real] / lengths
        sizes = np.abs(moved)
        assert low - 1e-5 <= sizes.min() and sizes.max() <= high + 1e-5
        assert sizes.mean() == pytest.approx((low + high) / 2, abs=0.005)
        assert (moved > 0).mean(axis=0) == pytest.approx(0.5, abs=0.05)
        assert np.abs(np.corrcoef(moved.T) - np.eye(4)).max() < 0.07
    # Half of the ratio has a random class, which may be the same.
    table = ops.convert_to_numpy(layer.embeddings)
    used = np.abs(states[:, :, None] - table).max(-1).argmin(-1)
    for part in (used[:, :2000], used[:, 2000:]):
        changed = part[real] != names[real]
        assert changed.mean() == pytest.approx(0.25 * (1 - 1 / CLASSES), abs=0.03)
        assert set(part[real][changed]) == set(range(CLASSES))
        assert (part[~real] == CLASSES).all()


@pytest.mark.each_backend
def test_queries_see_their_group_and_the_others():
    boxes, classes = objects(2, 1, width=2)
    values = BoxDecoder(width=8, num_heads=2, num_denoising=5)
    layer = NoisyObjects(values, CLASSES)
    layer.build()
    given = ops.convert_to_tensor(boxes), ops.convert_to_tensor(classes)
    seen = ops.convert_to_numpy(layer(*given, others=3)[2])[0]
    assert seen[:, :3].all() and not seen[:3, 3:].any()
    groups = np.array([0, 0, 1, 1, -1] * 2)
    assert np.array_equal(seen[3:, 3:], groups[:, None] == groups)
