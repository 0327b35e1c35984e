"""Configs of the stems of frames whose convolutions are over frequencies too."""

import itertools
from typing import ClassVar

from keras_transformer.config.inputs import StemConfig
from keras_transformer.config.options import option, part
from keras_transformer.config.weight import Weight, dense_of, norm_of, weight_of
from keras_transformer.support.checking import shorten

__all__ = ["ConvolvedFrameStemConfig", "SubsampledFrameStemConfig"]

_USUAL = 1000  # frames assumed in plans: ten seconds


@part
class HalvedFrameStemConfig(StemConfig):
    """Base class of stems whose convolutions each halve the frames and the frequencies."""

    # The input has a `padding_mask` of its frames.
    masked: ClassVar[bool] = True

    num_bins: int = option("number of values in a frame, such as frequency bands.", 80, least=1)

    @property
    def strides(self) -> tuple[int, ...]:
        """Stride of each convolution that halves the frames."""
        raise NotImplementedError

    def count_states(self, frames):
        """Return how many states the stem makes of `frames`, an int or an array."""
        return -(-frames // 2 ** len(self.strides))

    @property
    def num_states(self):
        return self.count_states(_USUAL)


@part
class SubsampledFrameStemConfig(HalvedFrameStemConfig, kind="subsampled_frames"):
    """`layers.stems.SubsampledFrameStem`: halvings of frames and frequencies (Fast Conformer)."""

    filters: int = option("features of each convolution.", 256, least=1, most=2**15)
    kernel_size: int = option("frames and bands that a convolution sees.", 3, least=1, most=1024)
    num_layers: int = option(
        "number of convolutions that halve the frames and the bands.", 3, least=1, most=16
    )
    scaled: bool = option("multiply the states by the root of their width.", True)

    @property
    def strides(self):
        return (2,) * self.num_layers

    def check(self):
        if self.kernel_size % 2 == 0:
            raise ValueError(
                "`kernel_size` of the stem must be odd, so that a convolution is centered on a "
                f"frame, received {self.kernel_size}."
            )

    @property
    def weights(self):
        both = ("kernel_size", "kernel_size")
        found: list[Weight] = []
        found += weight_of("input_convolution/kernel", *both, "one", "filters")
        found += weight_of("input_convolution/bias", "filters")
        for i in range(1, self.num_layers):
            name = f"input_depthwise_{i}"
            found += weight_of(f"{name}/kernel", *both, "filters")
            found += weight_of(f"{name}/bias", "filters")
            found += dense_of(f"input_pointwise_{i}", "filters", "filters")
        return (*found, *dense_of("input_projection", "filtered_bands", "embedding_dim"))

    def sizes(self, width):
        bands = self.filters * self.count_states(self.num_bins)
        sizes = {"kernel_size": self.kernel_size, "filters": self.filters}
        return {**sizes, "filtered_bands": bands}

    @property
    def products(self):
        counts, frames, bands = {}, _USUAL, self.num_bins
        for i in range(self.num_layers):
            frames, bands = -(-frames // 2), -(-bands // 2)
            names = (
                (f"input_depthwise_{i}", f"input_pointwise_{i}") if i else ("input_convolution",)
            )
            counts |= dict.fromkeys((f"{name}/kernel" for name in names), frames * bands)
        return {**counts, "input_projection/kernel": frames}


@part
class ConvolvedFrameStemConfig(HalvedFrameStemConfig, kind="convolved_frames"):
    """`layers.stems.ConvolvedFrameStem`: halvings by whole convolutions with norms (Gemma 4)."""

    num_bins: int = option("number of values in a frame, such as frequency bands.", 128, least=1)
    filters: tuple | list = option("features of each convolution.", (128, 32))
    norm: str = option(
        'norm behind each convolution: `"layer"`, of the features of a place, or '
        '`"cumulative_group"`, of all features and bands of a frame and of those before it (Gemma '
        "3n).",
        "layer",
        choices=("layer", "cumulative_group"),
    )
    norm_epsilon: float | None = option(
        "added to the variance in these norms. Defaults to the value of the block's norms.",
        None,
        positive=True,
    )
    padding: str = option(
        'where a convolution over frames pads them with zeros: `"same"`, one on each side, or '
        '`"reverse_causal"`, two behind them (Gemma 3n). Bands have one on each side.',
        "same",
        choices=("same", "reverse_causal"),
    )

    def check(self):
        known = all(type(n) is int and 1 <= n <= 2**15 for n in self.filters)
        if not known or not 1 <= len(self.filters) <= 16:
            raise ValueError(
                "`filters` of the stem must be 1 to 16 positive integers, received "
                f"{shorten(self.filters)}."
            )

    @property
    def strides(self):
        return (2,) * len(self.filters)

    @property
    def weights(self):
        names = ("one", *(f"filters_{i}" for i in range(len(self.filters))))
        found: list[Weight] = []
        for i, (before, after) in enumerate(itertools.pairwise(names)):
            found += weight_of(f"input_convolution_{i}/kernel", "three", "three", before, after)
            found += norm_of(f"input_norm_{i}", "layer_norm_no_bias", after)
        last = dense_of("input_projection", "filtered_bands", "embedding_dim", bias=False)
        return (*found, *last)

    def sizes(self, width):
        bands = self.filters[-1] * self.count_states(self.num_bins)
        filters = {f"filters_{i}": each for i, each in enumerate(self.filters)}
        return {"three": 3, "filtered_bands": bands, **filters}

    @property
    def products(self):
        counts, frames, bands = {}, _USUAL, self.num_bins
        for i in range(len(self.filters)):
            frames, bands = -(-frames // 2), -(-bands // 2)
            counts[f"input_convolution_{i}/kernel"] = frames * bands
        return {**counts, "input_projection/kernel": frames}
