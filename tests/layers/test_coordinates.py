"""Coordinates are read in float32 whatever the compute dtype, in which they would be far apart.

Between 0.5 and 1 numbers of bfloat16 are 0.004 apart, and between 512 and 1,024 they are 4 apart.
"""

import keras
import numpy as np
import pytest

from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.config.box_decoder import BoxDecoder
from keras_transformer.config.edge_distribution import EdgeDistribution
from keras_transformer.config.prompted import PromptedMasks
from keras_transformer.layers.attention.deformable import DeformableAttention
from keras_transformer.layers.denoising import NoisyObjects
from keras_transformer.layers.edge_distribution import EdgeDistributions
from keras_transformer.layers.prompt_encoder import PromptEncoder
from keras_transformer.layers.refining_decoder import RefiningDecoder

pytestmark = pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])


def test_points_of_prompts(dtype):
    """Neighbouring pixels have states of their own, which are those of float32, rounded."""
    found = []
    for each in ("float32", dtype):
        keras.utils.set_random_seed(0)
        layer = PromptEncoder(PromptedMasks(width=16), (1024, 1024), (8, 8), dtype=each)
        points = np.array([[[700, 300], [701, 300], [702, 301]]], "float32")
        found.append(to_numpy(layer(points, np.ones((1, 3), "int32"))).astype("float32"))
    # The weights of a whole bfloat16 model, frequencies of up to a hundred turns, are rounded.
    if dtype != "bfloat16":
        np.testing.assert_allclose(found[1], found[0], atol=0.02)
    assert np.abs(np.diff(found[1][0], axis=0)).max(axis=1).min() > 0.005


def test_boxes_of_deformable_attention(dtype):
    """A map that grows from column to column shows the place that is read."""
    layer = DeformableAttention(
        4, num_heads=1, levels=1, num_points=1, value_projection=False, dtype=dtype
    )
    layer.build()
    for each in layer.weights:
        each.assign(np.zeros(each.shape))
    columns = np.arange(64, dtype="float32") - 31.5
    states = np.repeat(columns[None, :, None], 4, axis=2)
    centers = np.array([0.5, 0.501, 0.502], "float32")
    boxes = np.stack([centers, np.full(3, 0.5), np.full(3, 0.1), np.full(3, 0.1)], axis=-1)[None]
    queries = np.zeros((1, 3, 4), "float32")
    found = to_numpy(layer(queries, states, boxes.astype("float32"), grids=((1, 64),)))
    np.testing.assert_allclose(found[0, :, 0], 64 * (centers - 0.5), atol=2e-3)


def test_boxes_of_noisy_objects(dtype):
    """Without noise they are those of the objects."""
    values = BoxDecoder(width=8, num_denoising=2, label_noise_ratio=0.0, box_noise_scale=0.0)
    layer = NoisyObjects(values, 3, dtype=dtype)
    box = np.array([0.5003, 0.6007, 0.1001, 0.2009], "float32")
    states, boxes, _ = layer(box[None, None], np.zeros((1, 1), "int32"), others=2)
    np.testing.assert_allclose(to_numpy(boxes)[0, 0], box, atol=1e-6)
    assert keras.backend.standardize_dtype(states.dtype) == "bfloat16"


def test_boxes_whose_edges_are_moved(dtype):
    """Distributions without a preference leave them as they are."""
    layer = EdgeDistributions(EdgeDistribution(bins=8), 1, dtype=dtype)
    box = np.array([[[0.5003, 0.6007, 0.1001, 0.2009]]], "float32")
    found = to_numpy(layer(box, np.zeros((1, 1, 36), "float32")))
    np.testing.assert_allclose(found, box, atol=1e-6)


def test_boxes_of_a_decoder(dtype):
    """The objects that noisy queries are made of reach it unrounded."""
    values = BoxDecoder(
        num_queries=2, width=8, num_layers=1, num_heads=2, num_points=1, intermediate_dim=8,
        num_denoising=2, label_noise_ratio=0.0, box_noise_scale=0.0,
    )  # fmt: skip
    layer = RefiningDecoder(values, levels=1, features=8, classes=3, dtype=dtype)
    maps = [np.zeros((1, 4, 4, 8), "float32")]
    layer.build()
    for each in layer.weights:
        if "boxes" in each.path:
            each.assign(np.zeros(each.shape))
    box = np.array([[[0.5003, 0.6007, 0.1001, 0.2009]]], "float32")
    objects = box, np.zeros((1, 1), "int32")
    found = layer(maps, objects=objects, training=True)["denoised"]
    np.testing.assert_allclose(to_numpy(found)[0, 0, 0, :4], box[0, 0], atol=1e-5)
