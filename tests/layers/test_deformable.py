"""Deformable attention against Transformers' layer, and where it reads."""

import numpy as np
import pytest

from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.layers.attention.deformable import DeformableAttention

torch = pytest.importorskip("torch")

GRIDS = ((5, 8), (3, 4), (1, 2))


@pytest.mark.each_backend
@pytest.mark.parametrize("points", [1, 3])
def test_it_is_that_of_transformers(points):
    """Also for points beside the maps, which have the value 0."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.rt_detr.modeling_rt_detr import RTDetrMultiscaleDeformableAttention

    config = transformers.RTDetrConfig(d_model=12, num_feature_levels=len(GRIDS))
    theirs = RTDetrMultiscaleDeformableAttention(config, num_heads=3, n_points=points)
    random = np.random.default_rng(0)
    layer = DeformableAttention(12, num_heads=3, levels=len(GRIDS), num_points=points)
    layer.build()
    denses = (layer.offsets, layer.weights_dense, layer.value_dense, layer.output_dense)
    names = ("sampling_offsets", "attention_weights", "value_proj", "output_proj")
    for dense, name in zip(denses, names, strict=True):
        other = getattr(theirs, name)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.copy_(torch.tensor(random.normal(size=tuple(parameter.shape)) * 0.5))
        dense.kernel.assign(other.weight.detach().numpy().T)
        dense.bias.assign(other.bias.detach().numpy())
    queries = random.normal(size=(2, 6, 12)).astype("float32")
    states = random.normal(size=(2, 54, 12)).astype("float32")
    boxes = random.uniform(0, 1, size=(2, 6, 4)).astype("float32")
    boxes[0, 0], boxes[0, 1] = 1, 0  # at the corners, one as large as the image
    with torch.no_grad():
        expected, _ = theirs(
            torch.tensor(queries),
            encoder_hidden_states=torch.tensor(states),
            reference_points=torch.tensor(boxes)[:, :, None],
            spatial_shapes=torch.tensor(GRIDS),
            spatial_shapes_list=list(GRIDS),
        )
    found = to_numpy(layer(queries, states, boxes, grids=GRIDS))
    assert np.abs(found - expected.numpy()).max() <= 1e-5 and expected.std() > 0.1


@pytest.mark.each_backend
@pytest.mark.parametrize("sampling", ["linear", "nearest"])
def test_maps_with_different_numbers_of_points(sampling):
    """As D-FINE's, which does not project what it reads."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.d_fine.modeling_d_fine import DFineMultiscaleDeformableAttention

    points = [3, 1, 2]
    config = transformers.DFineConfig(
        d_model=12,
        decoder_attention_heads=3,
        decoder_n_points=points,
        decoder_method={"linear": "default", "nearest": "discrete"}[sampling],
    )
    theirs = DFineMultiscaleDeformableAttention(config)
    random = np.random.default_rng(0)
    layer = DeformableAttention(
        12, 3, len(GRIDS), points, sampling=sampling, value_projection=False
    )
    layer.build()
    # Each head looks further in a direction, from one in each map.
    steps = to_numpy(layer.offsets.bias).reshape(3, 6, 2)[0]
    assert np.allclose(steps[:, 0], [1, 2, 3, 1, 1, 2], atol=1e-6)
    both = ((layer.offsets, "sampling_offsets"), (layer.weights_dense, "attention_weights"))
    for dense, name in both:
        other = getattr(theirs, name)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.copy_(torch.tensor(random.normal(size=tuple(parameter.shape)) * 0.5))
        dense.kernel.assign(other.weight.detach().numpy().T)
        dense.bias.assign(other.bias.detach().numpy())
    queries = random.normal(size=(2, 6, 12)).astype("float32")
    states = random.normal(size=(2, 54, 12)).astype("float32")
    boxes = random.uniform(0, 1, size=(2, 6, 4)).astype("float32")
    with torch.no_grad():
        expected, _ = theirs(
            torch.tensor(queries),
            encoder_hidden_states=torch.tensor(states),
            reference_points=torch.tensor(boxes)[:, :, None],
            spatial_shapes=torch.tensor(GRIDS),
            spatial_shapes_list=list(GRIDS),
        )
    found = to_numpy(layer(queries, states, boxes, grids=GRIDS))
    assert np.abs(found - expected.numpy()).max() <= 1e-5 and expected.std() > 0.1
    with pytest.raises(ValueError, match="`num_points` must be an integer, or one for each of 3"):
        DeformableAttention(12, 3, len(GRIDS), [1, 2])


@pytest.mark.one_backend
def test_a_new_layer_looks_around_the_center_of_each_box():
    """Heads look right, down, left and up, each point half a box further than the last."""
    layer = DeformableAttention(8, num_heads=4, levels=1, num_points=2)
    layer.build()
    offsets = to_numpy(layer.offsets.bias).reshape(4, 2, 2)
    assert np.allclose(offsets[:, 0], [[1, 0], [0, 1], [-1, 0], [0, -1]], atol=1e-6)
    assert np.allclose(offsets[:, 1], 2 * offsets[:, 0], atol=1e-6)
    layer.value_dense.kernel.assign(np.eye(8))
    layer.output_dense.kernel.assign(np.eye(8))
    # The value of a place is its column, so the result is the mean x of the two points of a head.
    states = np.tile(np.arange(16, dtype="float32")[None, :, None], (1, 1, 8))
    box = np.array([[[8 / 16, 0.5, 4 / 16, 0.1]]], "float32")
    found = to_numpy(layer(np.zeros((1, 1, 8)), states, box, grids=((1, 16),)))[0, 0, ::2]
    # The points of a head are a half and a whole of half the box from the center, 7.5.
    assert np.allclose(found[[0, 2]], [7.5 + 1.5, 7.5 - 1.5], atol=1e-5)
    with pytest.raises(ValueError, match="needs the rows and columns of each"):
        layer(np.zeros((1, 1, 8)), states, box, grids=((1, 15),))
