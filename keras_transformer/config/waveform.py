"""Config of the stem of waveforms, which reads raw audio samples."""

from keras_transformer.config.feed_forward import ACTIVATIONS
from keras_transformer.config.inputs import StemConfig
from keras_transformer.config.options import option, part
from keras_transformer.config.weight import Weight, dense_of, weight_of
from keras_transformer.support.checking import shorten

__all__ = ["WaveformStemConfig"]

_USUAL = 160_000  # samples assumed in plans: ten seconds


@part
class WaveformStemConfig(StemConfig, kind="waveform"):
    """`layers.stems.WaveformStem`: convolutions over audio samples."""

    filters: tuple | list = option("width of each convolution.", (512,) * 7)
    kernel_sizes: tuple | list = option(
        "number of samples or states that each convolution sees.", (10, 3, 3, 3, 3, 2, 2)
    )
    strides: tuple | list = option("stride of each convolution.", (5, 2, 2, 2, 2, 2, 2))
    activation: str = option(
        "activation after each convolution, including the convolution of positions.",
        "gelu",
        choices=ACTIVATIONS,
    )
    first_activation: str | None = option(
        "activation after the first convolution. Defaults to `activation`.",
        None,
        choices=(None, *ACTIVATIONS),
    )
    use_bias: bool = option(
        "a bias in each convolution except the convolution of positions, which always has one.",
        False,
    )
    first_bias: bool | None = option(
        "a bias in the first convolution. Defaults to `use_bias`.", None
    )
    norm: str = option(
        '`"group"`: normalize each feature of the first convolution over the recording; '
        '`"layer"`: normalize each state of every convolution over its features; '
        '`"recording"`: normalize all features of the first convolution together over the '
        "recording, after its activation.",
        "group",
        choices=("group", "layer", "recording"),
    )
    projection_norm: bool = option("a normalization after the last convolution.", True)
    projection: bool = option(
        "a dense layer after the last convolution, which otherwise has the width of the states.",
        True,
    )
    position_size: int = option(
        "number of states that the convolution of positions sees. 0 disables it.",
        128,
        least=0,
        most=2**15,
    )
    position_groups: int = option(
        "number of feature groups in the convolution of positions.", 16, least=1
    )

    def check(self):
        for name, usual in (("first_activation", "activation"), ("first_bias", "use_bias")):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self, usual))
        count = len(self.filters)
        for name in ("filters", "kernel_sizes", "strides"):
            values = getattr(self, name)
            fits = len(values) == count and all(type(n) is int and 1 <= n <= 2**15 for n in values)
            if not fits or not 1 <= count <= 16:
                raise ValueError(
                    f"`{name}` of the stem must be {count} integers of at least 1, one for each of "
                    f"1 to 16 convolutions, received {shorten(values)}."
                )
        if self.lengths(_USUAL)[-1] < 1:
            raise ValueError(
                f"The convolutions of kernel_sizes={self.kernel_sizes} and strides={self.strides} "
                f"leave no state of {_USUAL:,} samples. Give smaller ones."
            )

    def check_width(self, width: int) -> None:
        if not self.projection and self.filters[-1] != width:
            raise ValueError(
                "Without a `projection` the last of `filters` of the stem must be the width of "
                f"the states, {width}, received {self.filters[-1]}."
            )
        if self.position_size and width % self.position_groups:
            raise ValueError(
                f"position_groups={self.position_groups} of the stem must divide the width of the "
                f"states, {width}."
            )

    def lengths(self, samples):
        """Return how many states each convolution makes from `samples`, an int or an array.

        The last number of the list counts the states of the stem. It is below 1 if there are too
        few samples.
        """
        found = []
        for size, step in zip(self.kernel_sizes, self.strides, strict=True):
            samples = (samples - size) // step + 1
            found.append(samples)
        return found

    @property
    def fewest_samples(self) -> int:
        """Minimum number of samples that make one state."""
        count = 1
        for size, step in zip(self.kernel_sizes[::-1], self.strides[::-1], strict=True):
            count = (count - 1) * step + size
        return count

    @property
    def samples_of_state(self) -> int:
        """Samples from one state to the next."""
        count = 1
        for step in self.strides:
            count *= step
        return count

    @property
    def num_states(self):
        return self.lengths(_USUAL)[-1]

    @property
    def weights(self):
        found: list[Weight] = []
        before = "one"
        for i in range(len(self.filters)):
            path, width = f"input_convolution_{i}", f"filters_{i}"
            found += weight_of(f"{path}/kernel", f"kernel_size_{i}", before, width)
            biased = self.use_bias if i else self.first_bias
            found += weight_of(f"{path}/bias", width) if biased else ()
            if self.norm == "layer" or i == 0:
                found += _norm_of(f"{path}_norm", width)
            before = width
        found += _norm_of("input_projection_norm", before) if self.projection_norm else ()
        found += dense_of("input_projection", before, "embedding_dim") if self.projection else ()
        if self.position_size:
            axes = ("position_size", "position_features", "embedding_dim")
            found += weight_of("input_positions/kernel", *axes)
            found += weight_of("input_positions/bias", "embedding_dim")
        return tuple(found)

    def sizes(self, width):
        each = {"filters": self.filters, "kernel_size": self.kernel_sizes}
        return {f"{name}_{i}": n for name, values in each.items() for i, n in enumerate(values)} | {
            "position_size": self.position_size,
            # features that one group of the convolution sees
            "position_features": width // self.position_groups,
        }

    @property
    def products(self):
        lengths = self.lengths(_USUAL)
        counts = {f"input_convolution_{i}/kernel": n for i, n in enumerate(lengths)}
        return counts | dict.fromkeys(
            ("input_projection/kernel", "input_positions/kernel"), lengths[-1]
        )


def _norm_of(path: str, axis: str) -> tuple[Weight, ...]:
    """Return the weights of a LayerNorm, whatever normalization the blocks have."""
    return weight_of(f"{path}/gamma", axis) + weight_of(f"{path}/beta", axis)
