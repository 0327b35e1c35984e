"""Maps of several scales that are joined, from the smallest to the largest and back."""

import itertools
from collections.abc import Sequence

import keras
from keras import ops

from keras_transformer.config.box_decoder import BoxDecoder
from keras_transformer.kernels.convolution import centered_convolution
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.fusion import batch_norm_layer, conv
from keras_transformer.layers.mask_decoder import HeadLayer


class NormedConvolution(HeadLayer):
    """A convolution without bias, and a batch norm.

    Args:
        inputs, units: ints, features of its input and of its output.
        size: int, height and width of the kernel, which is centered at each place.
        strides: int.
        groups: int, 1, or as many as features, each of which is then computed by itself.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        x: float `(batch, rows, columns, inputs)`.

    Returns:
        Float `(batch, rows / strides, columns / strides, units)`, rounded up.
    """

    def __init__(
        self, inputs: int, units: int, size: int = 1, strides: int = 1, groups: int = 1, **kwargs
    ):
        super().__init__(**kwargs)
        self.inputs, self.units = inputs, units
        options = {"bias": False, "strides": strides, "groups": groups}
        self.convolution = conv(units, size, "convolution", self.dtype_policy, **options)
        self.norm = batch_norm_layer("norm", self.dtype_policy)

    def build(self, shape=None):
        self.convolution.build((None, None, None, self.inputs))
        self.norm.build((None, None, None, self.units))
        self.built = True

    def call(self, x, training: bool = False):
        return self.norm(centered_convolution(self.convolution, x), training=training)


class PartialStage(HeadLayer):
    """A cross stage partial network of RepVGG's blocks: a part of the features passes by them.

    Args:
        values: `BoxDecoder`.
        inputs, inner, outputs: ints, features of its input, of its blocks and of its output.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        x: float `(batch, rows, columns, inputs)`.

    Returns:
        Float `(batch, rows, columns, outputs)`.

    Source: Wang et al. 2020, "CSPNet", section 3.1; Ding et al. 2021, "RepVGG", section 3.
    """

    def __init__(self, values: BoxDecoder, inputs: int, inner: int, outputs: int, **kwargs):
        super().__init__(**kwargs)
        options = {"dtype": self.dtype_policy}
        self.activation = get_activation(values.map_activation)
        self.first = NormedConvolution(inputs, inner, name="first", **options)
        self.second = NormedConvolution(inputs, inner, name="second", **options)
        self.blocks = [_Block(inner, name=f"block_{i}", **options) for i in range(values.blocks)]
        self.output_convolution = None
        if inner != outputs:
            self.output_convolution = NormedConvolution(inner, outputs, name="output", **options)

    def build(self, shape=None):
        for layer in (self.first, self.second, *self.blocks, self.output_convolution):
            if layer is not None:
                layer.build()
        self.built = True

    def call(self, x, training: bool = False):
        inner = self.activation(self.first(x, training=training))
        for block in self.blocks:
            inner = self.activation(block(inner, training=training))
        inner = inner + self.activation(self.second(x, training=training))
        if self.output_convolution is None:
            return inner
        return self.activation(self.output_convolution(inner, training=training))


class AggregatedStages(HeadLayer):
    """Two cross stage partial networks behind each other, whose outputs are joined with the input.

    Args:
        values: `BoxDecoder`.
        features: int, features of each of two maps, and of the output.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        x: float `(batch, rows, columns, 2 * features)`.

    Returns:
        Float `(batch, rows, columns, features)`.

    Source: Wang et al. 2024, "YOLOv9: Learning What You Want to Learn Using Programmable Gradient
    Information", section 4.2.
    """

    def __init__(self, values: BoxDecoder, features: int, **kwargs):
        super().__init__(**kwargs)
        inner, options = values.inner(features), {"dtype": self.dtype_policy}
        self.activation = get_activation(values.map_activation)
        self.first = NormedConvolution(2 * features, 2 * features, name="first", **options)
        self.stages = [
            PartialStage(values, inputs, inner, inner, name=f"stage_{i}", **options)
            for i, inputs in enumerate((features, inner))
        ]
        self.wides = [
            NormedConvolution(inner, inner, 3, name=f"wide_{i}", **options) for i in range(2)
        ]
        self.output_convolution = NormedConvolution(
            2 * (features + inner), features, name="output", **options
        )

    def build(self, shape=None):
        for layer in (self.first, *self.stages, *self.wides, self.output_convolution):
            layer.build()
        self.built = True

    def call(self, x, training: bool = False):
        x = self.activation(self.first(x, training=training))
        found, state = [x], ops.split(x, 2, axis=-1)[1]
        for stage, wide in zip(self.stages, self.wides, strict=True):
            state = self.activation(wide(stage(state, training=training), training=training))
            found.append(state)
        x = ops.concatenate(found, axis=-1)
        return self.activation(self.output_convolution(x, training=training))


class _Block(HeadLayer):
    """The sum of a convolution of each place's neighbours and one of the place alone."""

    def __init__(self, features: int, **kwargs):
        super().__init__(**kwargs)
        self.convolutions = [
            NormedConvolution(features, features, size, name=name, dtype=self.dtype_policy)
            for name, size in (("wide", 3), ("narrow", 1))
        ]

    def build(self, shape=None):
        for layer in self.convolutions:
            layer.build()
        self.built = True

    def call(self, x, training: bool = False):
        wide, narrow = (layer(x, training=training) for layer in self.convolutions)
        return wide + narrow


class SeparableConvolution(HeadLayer):
    """A convolution of each place alone, and one of each feature by itself, which halves maps."""

    def __init__(self, features: int, **kwargs):
        super().__init__(**kwargs)
        options = {"dtype": self.dtype_policy}
        self.convolutions = [
            NormedConvolution(features, features, name="place", **options),
            NormedConvolution(features, features, 3, 2, features, name="feature", **options),
        ]

    def build(self, shape=None):
        for layer in self.convolutions:
            layer.build()
        self.built = True

    def call(self, x, training: bool = False):
        for layer in self.convolutions:
            x = layer(x, training=training)
        return x


class MapPyramid(HeadLayer):
    """Join the maps of a network, from the last, smallest one to the largest and back.

    Args:
        values: `BoxDecoder`.
        widths: ints, features of the maps of the network, the largest map first.
        features: int, features of the states of the encoder, which are those of each result.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        maps: list of float arrays `(batch, rows, columns, features)`, the largest first: maps of
            the network, and the states behind the encoder as the last one. Each has twice the rows
            and columns of the next.

    Returns:
        As many maps, each with `features`, of the same rows and columns.

    Raises:
        ValueError: if a map has not twice the rows and columns of the next.

    Source: Zhao et al. 2023, "DETRs Beat YOLOs on Real-time Object Detection", section 4.2; without
    activations between maps: Peng et al. 2024, "D-FINE", appendix A.1.
    """

    def __init__(self, values: BoxDecoder, widths: Sequence[int], features: int, **kwargs):
        super().__init__(**kwargs)
        options, count = {"dtype": self.dtype_policy}, len(widths)
        aggregated = values.join == "csp_elan"
        self.activation = get_activation(values.map_activation)
        if aggregated:
            self.activation = keras.activations.linear
        self.projections = [
            NormedConvolution(width, features, name=f"project_{i}", **options)
            for i, width in enumerate(widths)
        ]
        self.laterals = [
            NormedConvolution(features, features, name=f"lateral_{i}", **options)
            for i in range(count)
        ]

        def downsample(name: str):
            if aggregated:
                return SeparableConvolution(features, name=name, **options)
            return NormedConvolution(features, features, 3, 2, name=name, **options)

        def join(name: str):
            if aggregated:
                return AggregatedStages(values, features, name=name, **options)
            sizes = (2 * features, values.inner(features), features)
            return PartialStage(values, *sizes, name=name, **options)

        self.downsamples = [downsample(f"downsample_{i}") for i in range(count)]
        self.top_down, self.bottom_up = (
            [join(f"{name}_{i}") for i in range(count)] for name in ("top_down", "bottom_up")
        )

    def build(self, shape=None):
        for layer in (
            *self.projections, *self.laterals, *self.downsamples, *self.top_down, *self.bottom_up,
        ):  # fmt: skip
            layer.build()
        self.built = True

    def call(self, maps, training: bool = False):
        sizes = [tuple(each.shape[1:3]) for each in maps]
        for large, small in itertools.pairwise(sizes):
            if large != tuple(2 * n for n in small):
                raise ValueError(
                    "The maps of an image must halve from stage to stage, received rows and "
                    f"columns {sizes}: give images whose height and width are multiples of the "
                    "stride of the last map, such as 32."
                )
        options = {"training": training}
        *read, top = maps
        read = [layer(x, **options) for layer, x in zip(self.projections, read, strict=True)]
        found = []
        for lateral, join, x in zip(self.laterals, self.top_down, read[::-1], strict=True):
            top = self.activation(lateral(top, **options))
            found.append(top)
            larger = ops.repeat(ops.repeat(top, 2, axis=1), 2, axis=2)
            top = join(ops.concatenate([larger, x], axis=-1), **options)
        results = [top]
        for down, join, x in zip(self.downsamples, self.bottom_up, found[::-1], strict=True):
            smaller = self.activation(down(results[-1], **options))
            results.append(join(ops.concatenate([smaller, x], axis=-1), **options))
        return results
