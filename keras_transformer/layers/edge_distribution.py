"""Boxes from distributions of their edges, and the quality that these tell."""

import keras
from keras import ops

from keras_transformer.config.edge_distribution import EdgeDistribution
from keras_transformer.layers.mask_decoder import HeadLayer, LinearLayers


class EdgeDistributions(HeadLayer):
    """Move the edges of boxes by the expected values of distributions over distances.

    The distances are 0 in the middle and denser there, and grow to both sides like a geometric
    series; the outermost ones are twice `reach`. How sure the distributions are tells the quality
    of a box, which is added to the logits of its classes.

    Args:
        values: `EdgeDistribution`.
        layers: int, layers of a decoder, each of which has a quality of its own.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        boxes: float32 `(batch, queries, 4)`, center x, center y, width and height of the boxes
            whose edges are moved.
        logits: float32 `(batch, queries, 4 * (bins + 1))`, of the distances of the left, upper,
            right and lower edge.

    Returns:
        Float32 `(batch, queries, 4)`, center x, center y, width and height.

    Source: Peng et al. 2024, "D-FINE: Redefine Regression Task of DETRs as Fine-grained
    Distribution Refinement", section 4.1, https://arxiv.org/abs/2410.13842.
    """

    def __init__(self, values: EdgeDistribution, layers: int, **kwargs):
        super().__init__(autocast=False, **kwargs)  # boxes stay float32
        self.values = values
        self.qualities = [
            LinearLayers(
                values.quality_widths,
                last="zeros",
                names=values.quality_names,
                name=f"quality_{i}",
                dtype=self.dtype_policy,
            )
            for i in range(layers)
        ]

    def build(self, *shapes, **named):
        for layer in self.qualities:
            layer.build()
        for name in ("reach", "scale"):  # published checkpoints have them as weights
            initial = keras.initializers.Constant(getattr(self.values, name))
            options = {"name": name, "trainable": False, "dtype": "float32", "autocast": False}
            setattr(self, name, self.add_weight((1,), initial, **options))
        self.built = True

    def distances(self):
        """Return the distances that edges may be moved by, float32 `(bins + 1,)`, the least first.

        They are multiples of the width or height of a box divided by `scale`.
        """
        half = self.values.bins // 2
        reach = ops.abs(ops.convert_to_tensor(self.reach)) * ops.abs(self.scale)
        step = (reach + 1) ** (1 / (half - 1))
        inner = step ** ops.arange(1, half, dtype="float32") - 1
        outer = ops.concatenate([inner, 2 * reach])
        return ops.concatenate([-ops.flip(outer), ops.zeros((1,)), outer])

    def call(self, boxes, logits):
        shares = ops.softmax(self._of_edges(logits), axis=-1)
        distances = ops.sum(shares * self.distances(), axis=-1)
        scale = ops.abs(ops.convert_to_tensor(self.scale))
        centers, lengths = boxes[..., :2], boxes[..., 2:]
        low = centers - (scale / 2 + distances[..., :2]) * (lengths / scale)
        high = centers + (scale / 2 + distances[..., 2:]) * (lengths / scale)
        return ops.concatenate([(low + high) / 2, high - low], axis=-1)

    def quality(self, layer: int, logits):
        """Return the quality of boxes, float32 `(batch, queries, 1)`, by a layer of the decoder."""
        shares = ops.softmax(self._of_edges(logits), axis=-1)
        most = ops.top_k(shares, self.values.top)[0]
        told = ops.concatenate([most, ops.mean(most, axis=-1, keepdims=True)], axis=-1)
        told = ops.reshape(told, (-1, told.shape[1], self.values.quality_widths[0]))
        return ops.cast(self.qualities[layer](ops.cast(told, self.compute_dtype)), "float32")

    def _of_edges(self, logits):
        """Return the logits of each edge, float32 `(batch, queries, 4, bins + 1)`."""
        logits = ops.cast(logits, "float32")
        return ops.reshape(logits, (-1, logits.shape[1], 4, self.values.bins + 1))

    def compute_output_shape(self, boxes_shape, logits_shape=None):
        return boxes_shape
