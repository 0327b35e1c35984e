"""Distributions of the edges of boxes against the Transformers library."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.config.edge_distribution import EdgeDistribution
from keras_transformer.layers.edge_distribution import EdgeDistributions
from keras_transformer.layers.refining_decoder import Edges
from keras_transformer.training.losses.detection_loss import _shares


def made(**values):
    layer = EdgeDistributions(EdgeDistribution(**values), layers=1)
    layer.build()
    return layer


@pytest.mark.each_backend
@pytest.mark.parametrize(
    "values", [{}, {"bins": 4, "reach": 0.3, "scale": 8.0, "top": 2, "quality_layers": 1}]
)
def test_boxes_and_quality_are_those_of_transformers(values):
    torch = pytest.importorskip("torch")
    import transformers
    from transformers.models.d_fine import modeling_d_fine as theirs

    layer = made(**values)
    own = layer.values
    random = np.random.default_rng(0)
    boxes = random.uniform(0.2, 0.6, (2, 5, 4)).astype("float32")
    logits = random.normal(size=(2, 5, own.outputs)).astype("float32") * 3
    config = transformers.DFineConfig(
        max_num_bins=own.bins,
        top_prob_values=own.top,
        lqe_hidden_dim=own.quality_dim,
        lqe_layers=own.quality_layers,
    )
    reach, scale = torch.tensor([own.reach]), torch.tensor([own.scale])
    project = theirs.weighting_function(own.bins, reach, scale)
    assert np.allclose(ops.convert_to_numpy(layer.distances()), project.numpy(), atol=1e-5)
    moved = theirs.DFineIntegral(config)(torch.tensor(logits), project)
    expected = theirs.distance2bbox(torch.tensor(boxes), moved, own.scale).numpy()
    given = ops.convert_to_tensor(boxes), ops.convert_to_tensor(logits)
    assert np.abs(ops.convert_to_numpy(layer(*given)) - expected).max() <= 1e-5

    quality = theirs.DFineLQE(config)
    for dense, linear in zip(layer.qualities[0].denses, quality.reg_conf.layers, strict=True):
        weight = random.normal(size=linear.weight.shape).astype("float32")
        bias = random.normal(size=linear.bias.shape).astype("float32")
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(weight))
            linear.bias.copy_(torch.tensor(bias))
        dense.kernel.assign(weight.T)
        dense.bias.assign(bias)
    with torch.no_grad():
        expected = quality(torch.zeros(2, 5, 1), torch.tensor(logits)).numpy()
    assert np.abs(ops.convert_to_numpy(layer.quality(0, given[1])) - expected).max() <= 1e-5


@pytest.mark.each_backend
def test_shares_have_the_edges_of_objects_as_their_mean():
    """Distributions that are these shares give the boxes back, unless they are out of reach."""
    layer = made(bins=16)
    random = np.random.default_rng(1)
    start = random.uniform(0.3, 0.5, (1, 6, 4)).astype("float32")
    objects = start + random.uniform(-0.1, 0.1, start.shape).astype("float32")
    objects[0, 5] = [0.4, 0.4, 5.0, 5.0]
    tensors = map(ops.convert_to_tensor, (start, objects))
    edges = Edges(None, None, layer.distances(), ops.convert_to_tensor(layer.scale))
    shares = ops.convert_to_numpy(_shares(edges, *tensors))
    assert shares.shape == (1, 6, 4, 17) and np.allclose(shares.sum(-1), 1, atol=1e-6)
    assert ((shares > 0).sum(-1) <= 2).all() and (shares >= 0).all()
    assert (shares[0, 5, :, -1] == 1).all()
    logits = np.log(np.maximum(shares, 1e-30)).reshape(1, 6, -1)
    found = layer(ops.convert_to_tensor(start), ops.convert_to_tensor(logits))
    found = ops.convert_to_numpy(found)
    assert np.abs(found - objects)[0, :5].max() <= 1e-5
    # Twice the reach, which is half of its length, to each side and no more.
    assert np.allclose(found[0, 5, 2:], 3 * start[0, 5, 2:], atol=1e-5)
