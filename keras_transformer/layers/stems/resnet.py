"""Stem of images: a ResNet."""

import keras
from keras import ops

from keras_transformer.kernels.convolution import halved_maximum
from keras_transformer.layers.stems.network import NetworkStem


@keras.saving.register_keras_serializable(package="keras_transformer")
class ResNetStem(NetworkStem):
    """A ResNet, whose last map is projected to the states: see `NetworkStem`.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `ResNetStemConfig`.
        initializer: initializer of all weights. Defaults to He's normal initializer, and for the
            projection to the config's.
        **kwargs: as in `keras.layers.Layer`.

    Source: He et al. 2016, "Deep Residual Learning for Image Recognition", section 4.1, with the
    stride in the middle of a bottleneck; the variants: He et al. 2019, "Bag of Tricks for Image
    Classification with Convolutional Neural Networks", section 4.
    """

    def _maps(self, images):
        """Return the map of each stage, `(batch, rows, columns, features)`."""
        stem, x, found = self.config.stem, images, []
        for each in stem.first_convolutions:
            x = self._activated(each.name, x)
        x = halved_maximum(x)
        last = 1 if stem.block == "basic" else 2
        for stage, depth in enumerate(stem.depths):
            for block in range(depth):
                name, shortcut = f"input_stage_{stage}_block_{block}", x
                for i in range(last + 1):
                    x = self._convolved(f"{name}_convolution_{i}", x)
                    x = x if i == last else ops.relu(x)
                if f"{name}_shortcut" in self.convolutions:
                    if stem.variant == "d" and stage and not block:
                        shortcut = _halved(shortcut)
                    shortcut = self._convolved(f"{name}_shortcut", shortcut)
                x = ops.relu(x + shortcut)
            found.append(x)
        return found


def _halved(x):
    """Average maps over two by two places, at an odd end over those that there are."""
    odd = [n % 2 for n in x.shape[1:3]]
    if any(odd):
        x = ops.pad(x, ((0, 0), (0, odd[0]), (0, odd[1]), (0, 0)), "symmetric")
    return ops.average_pool(x, 2, 2, "valid", data_format="channels_last")
