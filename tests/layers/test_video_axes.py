"""Attention over one axis of a video, and positions in time, against masks and PyTorch."""

import numpy as np
import pytest
from keras import ops

from keras_transformer import config
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers.merging import AddedTimePositions
from keras_transformer.layers.resampling import linear_resampling

GRID = (3, 2, 4)  # steps, rows, columns


@pytest.mark.parametrize("over", ["space", "time"])
def test_an_axis_is_attention_with_a_mask(over):
    """Also with a cap on the scores."""
    part = config.Attention(num_heads=2, head_dim=4, soft_cap=3.0)
    pattern = config.VideoAxis(over=over, steps=3)
    layer, plain = MultiHeadAttention(part.replace(pattern=pattern)), MultiHeadAttention(part)
    x = np.random.default_rng(0).normal(size=(2, 24, 8)).astype("float32")
    for each in (layer, plain):
        each.build(x.shape)
    random = np.random.default_rng(1)
    for ours, theirs in zip(layer.weights, plain.weights, strict=True):
        value = random.normal(size=ours.shape)
        ours.assign(value)
        theirs.assign(value)
    steps, places = np.divmod(np.arange(24), 8)
    own = steps if over == "space" else places
    expected = plain(x, visibility=plain_mask(own[:, None] == own[None]))
    np.testing.assert_allclose(to_numpy(layer(x, grid=GRID)), to_numpy(expected), atol=1e-5)


def plain_mask(seen):
    from keras_transformer.layers.attention.masking import AttentionMask

    return AttentionMask(explicit=ops.convert_to_tensor(seen[None]))


def test_calls_that_an_axis_cannot_take():
    layer = MultiHeadAttention(
        config.Attention(num_heads=2, head_dim=4, pattern=config.VideoAxis(over="time", steps=3))
    )
    x = np.ones((1, 24, 8), "float32")
    with pytest.raises(ValueError, match="need the `grid`"):
        layer(x)
    with pytest.raises(ValueError, match="has 24 states, received 20"):
        layer(x[:, :20], grid=GRID)
    with pytest.raises(ValueError, match="takes whole videos, and returns no weights"):
        layer(x, grid=GRID, mask=np.ones((1, 24), bool))
    with pytest.raises(ValueError, match="takes whole videos, and returns no weights"):
        layer(x, grid=GRID, return_attention_scores=True)


@pytest.mark.parametrize("steps", [3, 5, 2])
def test_positions_in_time(steps):
    """Against PyTorch's interpolation, as VideoPrism's."""
    torch = pytest.importorskip("torch")
    layer = AddedTimePositions(config.TimePositions(hidden_dim=6, steps=3), config.Norm())
    random = np.random.default_rng(0)
    x = random.normal(size=(2, steps * 8, 6)).astype("float32")
    layer.build(x.shape)
    table = random.normal(size=(3, 6)).astype("float32")
    layer.positions.assign(table)
    added = torch.nn.functional.interpolate(
        torch.tensor(table)[None, None], (steps, 6), mode="bilinear", antialias=True
    )[0, 0].numpy()
    states = torch.nn.functional.layer_norm(torch.tensor(x), (6,), eps=1e-12).numpy()
    expected = states + np.repeat(added, 8, axis=0)
    np.testing.assert_allclose(to_numpy(layer(x, grid=(steps, 2, 4))), expected, atol=1e-5)
    alone = AddedTimePositions(config.TimePositions(hidden_dim=6), config.Norm())
    np.testing.assert_allclose(to_numpy(alone(x, grid=(steps, 2, 4))), states, atol=1e-5)


@pytest.mark.backend_independent
@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, 7), (9, 4), (5, 1), (1, 3)])
def test_linear_resampling_is_that_of_pytorch(before, after, antialiased):
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).normal(size=(1, 1, before, 3)).astype("float32")
    expected = torch.nn.functional.interpolate(
        torch.tensor(values), (after, 3), mode="bilinear", antialias=antialiased
    )
    found = linear_resampling(before, after, antialiased) @ values[0, 0]
    np.testing.assert_allclose(found, expected[0, 0].numpy(), atol=1e-6)


@pytest.mark.backend_independent
def test_parts_that_do_not_fit():
    tubes = {"num_frames": 4, "frame_size": (8, 8), "tube_frames": 1, "patch_size": 4}
    plain = config.Block(mixer=config.Attention(num_heads=2), feed_forward=config.Dense(dim=8))

    def side(stem, steps=4, **values):
        pattern = config.VideoAxis(over="space", steps=steps)
        block = plain.replace(mixer=plain.mixer.replace(pattern=pattern))
        return config.Side(input=stem, hidden_dim=8, num_layers=1, block=block, **values)

    side(config.TubeStemConfig(**tubes))
    with pytest.raises(ValueError, match="need a stem of tubes without a `class_token`"):
        side(config.TubeStemConfig(**tubes, class_token=True))
    with pytest.raises(ValueError, match="need a stem of tubes without a `class_token`"):
        side(config.PatchStemConfig(image_size=(8, 8), patch_size=4, class_token=False))
    with pytest.raises(ValueError, match="`steps` must be those of the videos, 4"):
        side(config.TubeStemConfig(**tubes), steps=3)
    with pytest.raises(ValueError, match="are for tubes alone, without a `class_token`"):
        config.TubeStemConfig(**tubes, positions="frame", class_token=True)
    with pytest.raises(ValueError, match="without rotations and position biases"):
        config.Attention(
            num_heads=2,
            position=config.Rotary(),
            pattern=config.VideoAxis(over="time", steps=4),
        )
    with pytest.raises(ValueError, match="keep the width of the states"):
        config.TimePositions(hidden_dim=8, input_dim=4)
    with pytest.raises(ValueError, match="for pooling='attention'"):
        config.Vector(pooling="mean", feed_forward=False)
    with pytest.raises(ValueError, match="The attention of a vector has heads"):
        config.Vector(pooling="attention", attention=config.Attention(num_heads=2, sinks=True))
    with pytest.raises(ValueError, match="`fixed_scale` is in place of trained numbers"):
        config.Similarity(fixed_scale=1.0, bias=True)
    words = config.Tokens(vocabulary_size=9, class_token=True)
    with pytest.raises(ValueError, match="needs vector_pooling='last'"):
        config.Side(input=words, hidden_dim=8, num_layers=1, block=plain)
