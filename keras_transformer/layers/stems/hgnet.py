"""Stem of images: an HGNet."""

import keras
from keras import ops

from keras_transformer.layers.stems.network import NetworkStem


@keras.saving.register_keras_serializable(package="keras_transformer")
class HGNetStem(NetworkStem):
    """An HGNetV2, whose last map is projected to the states: see `NetworkStem`.

    Args:
        config: `TransformerConfig` of a side whose `stem` is an `HGNetStemConfig`.
        initializer: initializer of all weights. Defaults to He's normal initializer, and for the
            projection to the config's.
        **kwargs: as in `keras.layers.Layer`.

    Source: Cui et al. 2021, "Beyond Self-Supervision: A Simple Yet Effective Network Distillation
    Alternative to Improve Backbones", and PaddleClas, "PP-HGNetV2"; in a detector: Zhao et al.
    2023, "DETRs Beat YOLOs on Real-time Object Detection", section 5.1.
    """

    def _maps(self, images):
        stem, found = self.config.stem, []
        first, left, right, joined, last = (each.name for each in stem.first_convolutions)
        x = self._activated(first, images)
        beside = self._activated(right, self._activated(left, x))
        x = ops.concatenate([_neighbours_maximum(x), beside], axis=-1)
        x = self._activated(last, self._activated(joined, x))
        grid = x.shape[1:3]
        for stage, depth in enumerate(stem.depths):
            if stage:
                x = self._convolved(stem.narrowing(stage, grid).name, x)
            for block in range(depth):
                x = self._block(stem.layers_of_block(stage, block, grid), x, residual=block > 0)
            found.append(x)
        return found

    def _block(self, layers, x, residual: bool):
        """Return the joined outputs of all layers of a block, beside its input."""
        *layers, joins = layers
        outputs, state = [x], x
        for *places, last in layers:
            for each in places:
                state = self._convolved(each.name, state)
            state = self._activated(last.name, state)
            outputs.append(state)
        state = ops.concatenate(outputs, axis=-1)
        for each in joins:
            state = self._activated(each.name, state)
        return x + state if residual else state


def _neighbours_maximum(x):
    """Return the maximum of each place, the next ones to its right and below, and zeros beside."""
    rows, columns = x.shape[1:3]
    x = ops.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))
    right = ops.maximum(x[:, :, :columns], x[:, :, 1:])
    return ops.maximum(right[:, :rows], right[:, 1:])
