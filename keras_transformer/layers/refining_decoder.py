"""A decoder of objects whose queries are chosen among the places of maps, and refine boxes."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.config.box_decoder import BoxDecoder
from keras_transformer.kernels.indexing import of_rows
from keras_transformer.layers.attention.deformable import DeformableAttention
from keras_transformer.layers.attention.masking import AttentionMask
from keras_transformer.layers.attention.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.denoising import NoisyObjects
from keras_transformer.layers.dense import Dense
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.edge_distribution import EdgeDistributions
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.mask_decoder import HeadLayer, LinearLayers
from keras_transformer.layers.merging import as_states
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.pyramid import NormedConvolution
from keras_transformer.layers.remat import no_inner_remat

_EPSILON = 1e-5
# The side of the first box of each place of the largest map; it doubles from map to map.
_SIDE = 0.05
# Places whose first box begins or ends this near to the edge of the image have none.
_MARGIN = 1e-2
# Boxes are as far as this from 0 and 1, where they are turned into logits.
_LEAST = 1e-5
# The largest numbers of the positions of boxes whose edges have distributions.
_MOST = 10.0
_SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")


class Edges(NamedTuple):
    """Distributions of edges, which a loss compares with objects.

    Fields:
        logits: float32 `(batch, num_layers, queries, 4 * (bins + 1))`.
        start: float32 `(batch, queries, 4)`, the boxes whose edges are moved.
        distances: float32 `(bins + 1,)`, what the logits are of.
        scale: float32 `(1,)`, see `EdgeDistributions.distances`.
    """

    logits: Any
    start: Any
    distances: Any
    scale: Any


class _Layer(HeadLayer):
    """A layer of the decoder: attention among queries, attention to maps, a feed-forward layer."""

    def __init__(self, values: BoxDecoder, levels: int, dropout: float, **kwargs):
        super().__init__(autocast=False, **kwargs)  # boxes stay float32
        width, dtype = values.width, self.dtype_policy
        self.values = values
        self.activation = get_activation(values.activation)
        with no_inner_remat():
            self.self_attention = MultiHeadAttention(
                num_heads=values.num_heads,
                head_dim=width // values.num_heads,
                output_dim=width,
                name="self_attention",
                dtype=dtype,
            )
            self.cross_attention = DeformableAttention(
                width,
                values.num_heads,
                levels,
                values.points(levels),
                offset_scale=values.offset_scale,
                sampling=values.sampling,
                value_projection=values.value_projection,
                name="cross_attention",
                dtype=dtype,
            )
            self.gate = None
            if values.gated:  # both gates are one half at first
                self.gate = Dense(2 * width, kernel_initializer="zeros", name="gate", dtype=dtype)
            self.intermediate = Dense(values.intermediate_dim, name="intermediate", dtype=dtype)
            self.output_dense = Dense(width, name="output", dtype=dtype)
            self.norms = [
                make_normalization("layer_norm", _EPSILON, name=f"{name}_norm", dtype=dtype)
                for name in _SUBLAYERS
            ]
            self.dropout = Dropout(dropout, dtype=dtype)

    def build(self, *shapes, **named):
        shape = (None, None, self.values.width)
        self.self_attention.build(shape, shape, shape)
        self.cross_attention.build()
        if self.gate is not None:
            self.gate.build((None, None, 2 * self.values.width))
        self.intermediate.build(shape)
        self.output_dense.build((None, None, self.values.intermediate_dim))
        for norm in self.norms:
            norm.build(shape)
        self.built = True

    def call(self, x, states, boxes, positions, grids, seen=None, training: bool = False):
        visibility = None if seen is None else AttentionMask(explicit=seen)

        def attend(x):
            query = x + positions
            return self.self_attention(query, value=x, key=query, visibility=visibility)

        def read(x):
            return self.cross_attention(x + positions, states, boxes, grids=grids)

        def feed_forward(x):
            return self.output_dense(self.activation(self.intermediate(x)))

        for function, norm in zip((attend, read, feed_forward), self.norms, strict=True):
            found = self.dropout(function(x), training=training)
            gated = function is read and self.gate is not None
            x = norm(self._gated(x, found) if gated else x + found)
        return x

    def _gated(self, x, found):
        """Return the sum of states and of what was read, each by the gate of each feature."""
        gates = ops.sigmoid(self.gate(ops.concatenate([x, found], axis=-1)))
        kept, taken = ops.split(gates, 2, axis=-1)
        return kept * x + taken * found


class RefiningDecoder(HeadLayer):
    """Choose the likeliest places of maps as queries, and refine the box of each layer by layer.

    Each place of a map proposes a box and has logits of the classes. The places with the largest
    logits become queries: their states, and their boxes, whose position is added in each
    attention. Each layer of the decoder changes the boxes that the next one reads around. With
    `edges` only the first one does so directly; each layer adds to the logits of distributions, by
    which the edges of that first box are moved.

    Args:
        values: `BoxDecoder`.
        levels: int, number of maps.
        features: int, features of the maps.
        classes: int, number of classes.
        dropout: float, rate on the output of each sub-layer.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        maps: list of float arrays `(batch, rows, columns, features)`, the largest first.
        objects: in training, boxes `(batch, objects, 4)` and classes `(batch, objects)` that
            `NoisyObjects` makes further queries of.
        training: bool.

    Returns:
        Float32 `(batch, num_queries, 4 + classes)`: center x, center y, width and height of a box
        as shares of the image, and logits. With `training` `(batch, 1 + num_layers, num_queries, 4
        + classes)`: the proposals and the outputs of each layer, with `edges` between them the
        boxes that are moved. With `objects` a dict: `found` is this; `denoised`, with
        `num_denoising`, the outputs of the noisy queries, without proposals; and with `edges`
        `found_edges` and `denoised_edges`, `Edges` of both.

    Raises:
        ValueError: if the maps have fewer places than there are queries.

    Source: Zhao et al. 2023, "DETRs Beat YOLOs on Real-time Object Detection", section 4.3; boxes
    that are refined: Zhu et al. 2020, "Deformable DETR", section 4.2 and appendix A.4; edges: Peng
    et al. 2024, "D-FINE", section 4.1, https://arxiv.org/abs/2410.13842.
    """

    def __init__(
        self,
        values: BoxDecoder,
        levels: int,
        features: int,
        classes: int,
        dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)  # boxes stay float32
        self.values, width, dtype = values, values.width, self.dtype_policy
        self.input_convolutions = []
        if values.projects(features):
            self.input_convolutions = [
                NormedConvolution(features, width, name=f"input_{i}", dtype=dtype)
                for i in range(levels)
            ]
        # As many classes are found at first as if one of all, and none, were as likely.
        prior = keras.initializers.Constant(-math.log(classes))

        def of_classes(name: str) -> Dense:
            return Dense(classes, bias_initializer=prior.clone(), name=name, dtype=dtype)

        boxes = [width, width, width, 4]
        with no_inner_remat():
            self.proposal = Dense(width, name="proposal", dtype=dtype)
            self.proposal_norm = make_normalization(
                "layer_norm", _EPSILON, name="proposal_norm", dtype=dtype
            )
            self.proposal_classes = of_classes("proposal_classes")
            self.classes = [of_classes(f"classes_{i}") for i in range(values.num_layers)]
        self.proposal_boxes = LinearLayers(boxes, name="proposal_boxes", dtype=dtype)
        self.query_positions = LinearLayers(
            [4, 2 * width, width], name="query_positions", dtype=dtype
        )
        self.denoising = None
        if values.num_denoising:
            self.denoising = NoisyObjects(values, classes, name="denoising_classes", dtype=dtype)
        self.blocks = [
            _Layer(values, levels, dropout, name=f"layer_{i}", dtype=dtype)
            for i in range(values.num_layers)
        ]
        outputs = [*boxes[:-1], 4 if values.edges is None else values.edges.outputs]
        self.boxes = [
            LinearLayers(outputs, last="zeros", name=f"boxes_{i}", dtype=dtype)
            for i in range(values.num_layers)
        ]
        self.edges = self.first_boxes = None
        if values.edges is not None:
            self.edges = EdgeDistributions(
                values.edges, values.num_layers, name="edges", dtype=dtype
            )
            self.first_boxes = LinearLayers(boxes, name="first_boxes", dtype=dtype)

    def build(self, shape=None):
        width = self.values.width
        for layer in (*self.input_convolutions, *self.blocks, self.proposal_boxes, *self.boxes):
            layer.build()
        self.query_positions.build()
        for dense in (self.proposal, self.proposal_classes, *self.classes):
            dense.build((None, None, width))
        self.proposal_norm.build((None, None, width))
        for layer in (self.denoising, self.edges, self.first_boxes):
            if layer is not None:
                layer.build()
        self.built = True

    def call(self, maps, objects=None, training: bool = False):
        grids = tuple(tuple(each.shape[1:3]) for each in maps)
        places, count = sum(math.prod(grid) for grid in grids), self.values.num_queries
        if places < count:
            raise ValueError(
                f"An image has {places} places in its maps, but {count} of them become queries: "
                "give larger images, or a `box_decoder` with fewer `num_queries`."
            )
        if self.input_convolutions:
            both = zip(self.input_convolutions, maps, strict=True)
            maps = [layer(each, training=training) for layer, each in both]
        states = ops.concatenate([as_states(each) for each in maps], axis=1)
        first, has_box = map(ops.convert_to_tensor, _first_boxes(grids))
        proposed = self.proposal_norm(self.proposal(states * ops.cast(has_box, states.dtype)))
        logits = ops.cast(self.proposal_classes(proposed), "float32")
        offsets = ops.cast(self.proposal_boxes(proposed), "float32") + first
        chosen = ops.top_k(ops.stop_gradient(ops.max(logits, axis=-1)), count)[1]
        logits, offsets = of_rows(logits, chosen), of_rows(offsets, chosen)
        boxes = ops.sigmoid(offsets)
        found = [ops.concatenate([boxes, logits], axis=-1)]
        x, seen = ops.stop_gradient(of_rows(proposed, chosen)), None
        if objects is not None and self.denoising is not None:
            noisy, near, seen = self.denoising(*objects, others=count)
            x = ops.concatenate([x, ops.cast(noisy, x.dtype)], axis=1)
            boxes = ops.concatenate([boxes, ops.sigmoid(_logit(near))], axis=1)
        edges: list = []
        start = before = None
        for i, layer in enumerate(self.blocks):
            boxes = ops.stop_gradient(boxes)
            positions = self.query_positions(ops.cast(boxes, x.dtype))
            if self.edges is not None:
                positions = ops.clip(positions, -_MOST, _MOST)
            x = layer(x, states, boxes, positions, grids=grids, seen=seen, training=training)
            counts, quality = training or i == self.values.num_layers - 1, 0.0
            if self.edges is None:
                boxes = ops.sigmoid(ops.cast(self.boxes[i](x), "float32") + _logit(boxes))
            else:
                if start is None:
                    start = ops.cast(self.first_boxes(x), "float32") + _logit(boxes)
                    start = ops.sigmoid(start)
                    if training:
                        found.append(self._outputs(i, x, start))
                    start, before = ops.stop_gradient(start), ops.zeros_like(x)
                moved = ops.cast(self.boxes[i](x + before), "float32")
                edges.append(edges[-1] + moved if edges else moved)
                boxes, before = self.edges(start, edges[-1]), ops.stop_gradient(x)
                quality = self.edges.quality(i, edges[-1]) if counts else quality
            if counts:
                found.append(self._outputs(i, x, boxes, quality))
        if not training:
            return found[-1]
        of_queries = ops.stack([each[:, :count] for each in found], axis=1)
        if objects is None:
            return of_queries
        results = {"found": of_queries}
        if self.edges is not None:
            results["found_edges"] = self._edges(edges, start, slice(count))
        if seen is not None:
            results["denoised"] = ops.stack([each[:, count:] for each in found[1:]], axis=1)
        if seen is not None and self.edges is not None:
            results["denoised_edges"] = self._edges(edges, start, slice(count, None))
        return results

    def _outputs(self, layer: int, x, boxes, quality=0.0):
        """Return boxes, and the logits of a layer's states, float32."""
        logits = ops.cast(self.classes[layer](x), "float32") + quality
        return ops.concatenate([boxes, logits], axis=-1)

    def _edges(self, logits: Sequence, start, queries: slice) -> Edges:
        """Return what the loss reads of the distributions of some queries."""
        logits = ops.stack([each[:, queries] for each in logits], axis=1)
        scale = ops.convert_to_tensor(self.edges.scale)
        return Edges(logits, start[:, queries], self.edges.distances(), scale)


def _logit(boxes):
    """Return the logits of shares from 0 to 1, with a margin."""
    return ops.log(ops.maximum(boxes, _LEAST)) - ops.log(ops.maximum(1 - boxes, _LEAST))


def _first_boxes(grids: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of the first box of each place, and whether the place has one.

    Both are float32 `(1, places, 4)` and `(1, places, 1)`. Logits of places without a box are the
    largest number: their box is at the lower right corner of the image.
    """
    boxes = []
    for level, (rows, columns) in enumerate(grids):
        y, x = np.indices((rows, columns)).astype("float32") + np.float32(0.5)
        side = np.full_like(x, np.float32(_SIDE) * 2**level)
        boxes.append(np.stack([x / columns, y / rows, side, side], axis=-1).reshape(-1, 4))
    boxes = np.concatenate(boxes)
    has_box = ((boxes > _MARGIN) & (boxes < 1 - _MARGIN)).all(axis=-1, keepdims=True)
    logits = np.log(boxes / (1 - boxes), where=has_box, out=np.zeros_like(boxes))
    logits = np.where(has_box, logits, np.finfo("float32").max)
    return logits[None].astype("float32"), has_box[None].astype("float32")
