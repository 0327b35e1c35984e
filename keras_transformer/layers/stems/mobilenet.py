"""Stem of images: a MobileNetV5."""

import math

import keras
import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.config.mobilenet import MobileNetBlock, MobileNetConvolution
from keras_transformer.kernels.attention import attention, takes
from keras_transformer.kernels.convolution import same_convolution
from keras_transformer.layers.arguments import kernel_initializer
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.normalization import make_normalization
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.layers.stems.images import ImageStem
from keras_transformer.layers.stems.stem import Embedded

# The first value of the factors behind blocks, which no published model changes.
_FIRST_SCALE = 1e-5
_ACTIVATION = get_activation("gelu_tanh")
_LAST = "input_projection"


class MapConvolution(keras.layers.Layer):
    """A convolution of maps with the padding that TensorFlow calls "same".

    Args:
        values: `MobileNetConvolution`.
        use_bias: bool, whether to add a bias.
        initializer: initializer of the kernel.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        x: float `(batch, rows, columns, features)`.
    """

    def __init__(
        self,
        values: MobileNetConvolution,
        use_bias: bool = False,
        initializer="he_normal",
        **kwargs,
    ):
        super().__init__(name=values.name, **kwargs)
        self.step, self.use_bias = values.step, use_bias
        shape = values.size, values.size, values.inputs
        self.shape = shape if values.depthwise else (*shape, values.outputs)
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape=None):
        self.kernel = self.add_weight(self.shape, self.initializer, name="kernel")
        if self.use_bias:
            self.bias = self.add_weight(self.shape[-1:], "zeros", name="bias")

    def call(self, x):
        x = same_convolution(x, ops.cast(self.kernel, x.dtype), self.step)
        return x + ops.cast(self.bias, x.dtype) if self.use_bias else x


@keras.saving.register_keras_serializable(package="keras_transformer")
class MobileNetV5Stem(ImageStem):
    """A MobileNetV5, whose last two maps are joined to a grid of states.

    Args:
        config: `TransformerConfig` of a side whose `stem` is a `MobileNetV5StemConfig`.
        initializer: initializer of all weights. Defaults to He's normal initializer, and for the
            last convolution to the config's.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: dict of `images`, float `(batch, height, width, channels)`, of a size whose map can
            be averaged to the grid of states.

    Returns:
        `Embedded`: the states of the grid, row by row.

    Raises:
        ValueError: if an image has another size.

    Source: Qin et al. 2024, "MobileNetV4", sections 3 and 4, for the blocks; the number of them and
    the joining of maps: the published code of Gemma 3n in timm, `MobileNetV5Encoder`.
    """

    def __init__(self, config: TransformerConfig, initializer=None, **kwargs):
        super().__init__(config, initializer, **kwargs)
        stem, epsilon = config.stem, config.only_side.block.norm.epsilon
        self.convolutions, self.norms, self.scales = {}, {}, {}
        options = {"dtype": self.dtype_policy}
        own = kernel_initializer(config, initializer)
        with no_inner_remat():
            for each in (*stem.convolutions, self._projection):
                self.convolutions[each.name] = MapConvolution(
                    each,
                    use_bias=each.name == stem.first_convolution.name,
                    initializer=own if each.name == _LAST else initializer or "he_normal",
                    **options,
                )
            for name, _ in self._norms:
                self.norms[name] = make_normalization("rms_norm", epsilon, name=name, **options)
        self.make_rest(initializer)

    @property
    def _projection(self) -> MobileNetConvolution:
        """The convolution to the width of the states."""
        stem, width = self.config.stem, self.config.embedding_dim
        before = stem.convolutions[-1]
        return MobileNetConvolution(_LAST, 1, before.outputs, width, before.grid)

    @property
    def _norms(self) -> list[tuple[str, int]]:
        """Names and features of all norms."""
        stem = self.config.stem
        convolutions = (*stem.convolutions, self._projection)
        found = [(each.name, each.outputs) for each in convolutions if each.norm]
        found += [(each.name, each.features) for each in stem.blocks if each.stage is not None]
        found.append(("input", self.config.embedding_dim))
        return [(f"{name}_norm", features) for name, features in found]

    def build(self, input_shape=None):
        for layer in self.convolutions.values():
            layer.build()
        for name, features in self._norms:
            self.norms[name].build((None, None, None, features))
        for block in self.config.stem.blocks:
            if block.scaled:
                first = keras.initializers.Constant(_FIRST_SCALE)
                name = f"{block.name}_scale"
                self.scales[name] = self.add_weight((block.features,), first, name=name)
        super().build(input_shape)

    def states_shape(self, inputs):
        return inputs["images"].shape[0], self.config.stem.num_states, self.config.embedding_dim

    def call(self, inputs, training=False):
        stem, images = self.config.stem, ops.cast(inputs["images"], self.compute_dtype)
        size, maps = self.image_size(images), []
        stem.check_size(size)
        if None in images.shape[1:3]:  # a graph: it is an error if they have another size
            images = ops.reshape(images, (ops.shape(images)[0], *size, stem.num_channels))
        x = self._convolved(stem.first_convolution, images)
        for blocks in stem.blocks_of_stages:
            for block in blocks:
                x = self._of_block(block, x)
            maps.append(x)
        x = self._joined(*maps[-2:])
        x = ops.reshape(x, (-1, stem.num_states, x.shape[-1]))
        return Embedded(self.positioned(x, training=training))

    def _convolved(self, each: MobileNetConvolution, x):
        """Apply a convolution, its norm and its activation."""
        x = self.convolutions[each.name](x)
        x = self.norms[f"{each.name}_norm"](x) if each.norm else x
        return _ACTIVATION(x) if each.activated else x

    def _of_block(self, block: MobileNetBlock, x):
        before = x
        if block.stage is None:
            for each in block.convolutions:
                x = self._convolved(each, x)
        else:
            x = self._attended(block, self.norms[f"{block.name}_norm"](x))
        if block.scaled:
            x = x * ops.cast(self.scales[f"{block.name}_scale"], x.dtype)
        return x + before if block.adds else x

    def _attended(self, block: MobileNetBlock, x):
        """Attend to the places of a map, or to fewer, with one head of keys."""
        named = {each.name.removeprefix(f"{block.name}_"): each for each in block.convolutions}
        heads, places = block.stage.num_heads, x.shape[1:3]
        states = []
        for name in ("query", "key", "value"):
            reduction = named.get(f"{name}_reduction")
            read = x if reduction is None else self._convolved(reduction, x)
            read = self._convolved(named[name], read)
            own = heads if name == "query" else 1
            shape = math.prod(read.shape[1:3]), own, block.stage.head_dim
            states.append(ops.reshape(read, (-1, *shape)))
        dtype = x.dtype
        if not takes(dtype):
            states = [ops.cast(each, "float32") for each in states]
        x = ops.cast(attention(*states), dtype)
        x = ops.reshape(x, (-1, *places, heads * block.stage.head_dim))
        return self._convolved(named["output"], x)

    def _joined(self, fine, coarse):
        """Return the states, a map, of the maps of the last two stages."""
        stem = self.config.stem
        for axis in (1, 2):  # the nearest place
            places = np.arange(fine.shape[axis]) * coarse.shape[axis] // fine.shape[axis]
            coarse = ops.take(coarse, places.astype("int32"), axis=axis)
        x = ops.concatenate([fine, coarse], axis=-1)
        for each in (stem.convolutions[-1], self._projection):
            x = self._convolved(each, x)
        rows, columns = stem.state_grid
        shape = rows, x.shape[1] // rows, columns, x.shape[2] // columns, x.shape[3]
        return self.norms["input_norm"](ops.mean(ops.reshape(x, (-1, *shape)), axis=(2, 4)))
