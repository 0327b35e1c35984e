"""What makes the states of a side that reads other inputs than token ids: a kind and its values.

The layers of the same names are in `layers/stems/`. Their weights are described here, as those of
the blocks are in `structure.py`: their names begin with `input_`.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from keras_transformer.checking import describe, nearest, shorten
from keras_transformer.config_checks import option
from keras_transformer.config_feed_forward import ACTIVATIONS
from keras_transformer.config_stem_base import StemConfig
from keras_transformer.config_waveform import WaveformStemConfig
from keras_transformer.weight import dense_of, residual_of, weight_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageStemConfig(StemConfig):
    """What stems of images share."""

    image_size: tuple | list = option(
        "height and width of the images that the positions are of; others have positions "
        "interpolated.",
        (224, 224),
    )
    num_channels: int = option("channels of an image.", 3, least=1, most=1024)

    def __post_init__(self):
        super().__post_init__()
        sizes = self.image_size
        if len(sizes) != 2 or not all(type(n) is int and 1 <= n <= 2**15 for n in sizes):
            raise ValueError(
                "`image_size` of a stem must be two integers from 1 to 32,768, height and width, "
                f"received {describe(sizes)}."
            )

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of states that an image has."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatchStemConfig(ImageStemConfig):
    """`layers.stems.PatchStem`: an image cut into patches, each multiplied with a matrix."""

    kind: str = option("which stem.", "patches", choices=("patches",))
    patch_size: int = option("height and width of a patch.", 16, least=1, most=2**15)
    stride: int | None = option(
        "places from one patch to the next. Defaults to `patch_size`: patches do not overlap.",
        None,
        least=1,
    )
    use_bias: bool = option("a bias of the projection.", True)
    class_token: bool = option("a trained state before those of the patches.", True)
    distillation_token: bool = option("another one behind it (DeiT).", False)

    def __post_init__(self):
        super().__post_init__()
        if self.stride is None:
            object.__setattr__(self, "stride", self.patch_size)
        if min(self.image_size) < self.patch_size:
            raise ValueError(
                f"`image_size` {self.image_size} has no patch of patch_size={self.patch_size}."
            )
        if self.distillation_token and not self.class_token:
            raise ValueError("`distillation_token` needs `class_token`.")

    @property
    def num_tokens(self) -> int:
        """States that are of no patch."""
        return self.class_token + self.distillation_token

    def grid(self, image_size):
        rows, columns = ((n - self.patch_size) // self.stride + 1 for n in image_size)
        return rows, columns

    @property
    def num_states(self):
        return math.prod(self.grid(self.image_size)) + self.num_tokens

    @property
    def weights(self):
        axes = ("patch_size", "patch_size", "num_channels", "embedding_dim")
        return (
            *weight_of("input_patches/kernel", *axes),
            *(weight_of("input_patches/bias", "embedding_dim") if self.use_bias else ()),
            *(weight_of("input_class_token", "embedding_dim") if self.class_token else ()),
            *(
                weight_of("input_distillation_token", "embedding_dim")
                if self.distillation_token
                else ()
            ),
        )

    @property
    def sizes(self):
        return {"patch_size": self.patch_size, "num_channels": self.num_channels}

    @property
    def products(self):
        return {"input_patches/kernel": math.prod(self.grid(self.image_size))}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvolutionStemConfig(ImageStemConfig):
    """`layers.stems.ConvolutionStem`: convolutions over an image, whose places are the states."""

    kind: str = option("which stem.", "convolutions", choices=("convolutions",))
    filters: tuple | list = option(
        "width of each convolution but the last, which is that of the states.", (64,)
    )
    kernel_size: int = option("height and width that a convolution sees.", 3, least=1, most=64)
    strides: tuple | list = option("places that each convolution goes on.", (1, 1))
    pool_sizes: tuple | list = option(
        "height and width of the maximum behind each convolution, 1 for none.", (3, 3)
    )
    pool_strides: tuple | list = option("places that each maximum goes on.", (2, 2))
    activation: str = option("behind each convolution.", "relu", choices=ACTIVATIONS)
    use_bias: bool = option("a bias of each convolution.", False)

    def __post_init__(self):
        super().__post_init__()
        count = len(self.filters) + 1
        for name in ("filters", "strides", "pool_sizes", "pool_strides"):
            values, wanted = getattr(self, name), count - (name == "filters")
            fits = len(values) == wanted and all(type(n) is int and 1 <= n <= 2**15 for n in values)
            if not fits or count > 16:
                raise ValueError(
                    f"`{name}` of the stem must be {wanted} integers of at least 1, received "
                    f"{shorten(values)}; at most 16 convolutions."
                )

    def grid(self, image_size):
        rows, columns = image_size
        both = zip(self.strides, self.pool_strides, strict=True)
        for step in (step for pair in both for step in pair):
            rows, columns = -(-rows // step), -(-columns // step)
        return rows, columns

    @property
    def num_states(self):
        return math.prod(self.grid(self.image_size))

    @property
    def weights(self):
        inputs = ("num_channels", *(f"filters_{i}" for i in range(len(self.filters))))
        outputs = (*inputs[1:], "embedding_dim")
        return tuple(
            weight
            for i, (before, after) in enumerate(zip(inputs, outputs, strict=True))
            for weight in (
                *weight_of(
                    f"input_convolution_{i}/kernel", "kernel_size", "kernel_size", before, after
                ),
                *(weight_of(f"input_convolution_{i}/bias", after) if self.use_bias else ()),
            )
        )

    @property
    def sizes(self):
        widths = {f"filters_{i}": width for i, width in enumerate(self.filters)}
        return {"kernel_size": self.kernel_size, "num_channels": self.num_channels, **widths}

    @property
    def products(self):
        places, (rows, columns) = {}, self.image_size
        for i, (step, pooled) in enumerate(zip(self.strides, self.pool_strides, strict=True)):
            rows, columns = -(-rows // step), -(-columns // step)
            places[f"input_convolution_{i}/kernel"] = rows * columns
            rows, columns = -(-rows // pooled), -(-columns // pooled)
        return places


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameStemConfig(StemConfig):
    """`layers.stems.FrameStem`: convolutions over frames, such as those of sound."""

    kind: str = option("which stem.", "frames", choices=("frames",))
    num_bins: int = option("numbers of a frame, such as bands of frequencies.", 80, least=1)
    num_frames: int = option(
        "the most frames of an input, which positions are for.", 3000, least=1, most=2**24
    )
    kernel_size: int = option("frames that a convolution sees.", 3, least=1, most=1024)
    strides: tuple | list = option("frames that each convolution goes on.", (1, 2))
    activation: str = option("behind each convolution.", "gelu", choices=ACTIVATIONS)
    use_bias: bool = option("a bias of each convolution.", True)

    def __post_init__(self):
        super().__post_init__()
        fits = all(type(n) is int and 1 <= n <= 2**15 for n in self.strides)
        if not fits or not 1 <= len(self.strides) <= 16:
            raise ValueError(
                "`strides` of the stem must be 1 to 16 integers of at least 1, one a convolution, "
                f"received {shorten(self.strides)}."
            )
        if self.kernel_size % 2 == 0:
            raise ValueError(
                f"`kernel_size` of frames must be odd, so that a frame is in the middle, received "
                f"{self.kernel_size}."
            )

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many places each convolution has of an input of the most frames."""
        found = [self.num_frames]
        for step in self.strides:
            found.append(-(-found[-1] // step))
        return tuple(found[1:])

    @property
    def num_states(self):
        return self.lengths[-1]

    @property
    def weights(self):
        inputs = ("num_bins", *["embedding_dim"] * (len(self.strides) - 1))
        return tuple(
            weight
            for i, axis in enumerate(inputs)
            for weight in (
                *weight_of(f"input_convolution_{i}/kernel", "kernel_size", axis, "embedding_dim"),
                *(
                    weight_of(f"input_convolution_{i}/bias", "embedding_dim")
                    if self.use_bias
                    else ()
                ),
            )
        )

    @property
    def sizes(self):
        return {"kernel_size": self.kernel_size, "num_bins": self.num_bins}

    @property
    def products(self):
        return {f"input_convolution_{i}/kernel": n for i, n in enumerate(self.lengths)}


# Numbers in the pieces of one series, which overlapping ones multiply: 268 MB of float32.
_MOST_NUMBERS = 2**26


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeriesStemConfig(StemConfig):
    """`layers.stems.SeriesStem`: a series of numbers cut into pieces, each a state."""

    kind: str = option("which stem.", "series", choices=("series",))
    context_length: int = option(
        "values of an input, which positions are for.", least=1, most=2**24
    )
    patch_length: int = option("values of a piece.", 16, least=1, most=2**15)
    stride: int | None = option(
        "values from one piece to the next. Defaults to `patch_length`: they do not overlap.",
        None,
        least=1,
    )
    repeat_last: bool = option(
        "the last value is put behind the others, `stride` times, for one more piece (PatchTST).",
        False,
    )
    reads_observed: bool = option(
        "which values are known, 1 or 0, is read behind the values of a piece. A piece of which "
        "none is known is masked, and the first one is filled with what is missing, in place of "
        "being left out (Chronos-Bolt). Pieces do not overlap.",
        False,
    )
    residual: bool = option(
        "the projection is a feed-forward layer, as wide within as those of the blocks and with "
        "their activation, and a linear layer beside it (Chronos-Bolt).",
        False,
    )
    use_bias: bool = option("a bias of the projection, which a `residual` one has always.", True)
    class_token: bool = option("a trained state before those of the pieces.", False)
    end_token: bool = option("a trained state behind them (Chronos-Bolt).", False)
    num_channels: int = option(
        "channels of a series. Each is a row of its own, and no weight depends on their number: "
        "it is for an export, which Transformers gives series of as many.",
        1,
        least=1,
        most=2**24,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.stride is None:
            object.__setattr__(self, "stride", self.patch_length)
        if self.context_length < self.patch_length:
            raise ValueError(
                f"context_length={self.context_length} has no piece of patch_length="
                f"{self.patch_length}."
            )
        if self.stride > self.context_length:
            raise ValueError(
                f"stride={self.stride} must be at most context_length={self.context_length}."
            )
        numbers = self.pieces(self.context_length) * self.patch_length
        if numbers > _MOST_NUMBERS:
            raise ValueError(
                f"Pieces of patch_length={self.patch_length}, stride={self.stride} apart, of "
                f"context_length={self.context_length} hold {numbers:,} numbers, and may hold "
                f"{_MOST_NUMBERS:,}."
            )
        if self.reads_observed and self.stride != self.patch_length:
            raise ValueError(
                f"With `reads_observed` pieces do not overlap: leave stride={self.stride} out."
            )
        if self.residual and not self.use_bias:
            raise ValueError("A `residual` projection has biases: leave `use_bias` out.")

    def pieces(self, length: int) -> int:
        """How many pieces so many values have."""
        length += self.repeat_last * self.stride
        if self.reads_observed:  # The first is filled.
            return -(-length // self.patch_length)
        return (length - self.patch_length) // self.stride + 1

    @property
    def num_states(self):
        return self.pieces(self.context_length) + self.class_token + self.end_token

    @property
    def weights(self):
        axes = ("piece_values", "embedding_dim")
        if self.residual:
            projection = residual_of("input_patches", *axes)
        elif self.use_bias:
            projection = dense_of("input_patches", *axes)
        else:
            projection = weight_of("input_patches/kernel", *axes)
        return (
            *projection,
            *(weight_of("input_class_token", "embedding_dim") if self.class_token else ()),
            *(weight_of("input_end_token", "embedding_dim") if self.end_token else ()),
        )

    @property
    def sizes(self):
        return {"piece_values": self.patch_length * (1 + self.reads_observed)}

    @property
    def products(self):
        kernels = [each.path for each in self.weights if each.path.endswith("/kernel")]
        return dict.fromkeys(kernels, self.pieces(self.context_length))


STEMS: dict[str, type[StemConfig]] = {
    "patches": PatchStemConfig,
    "convolutions": ConvolutionStemConfig,
    "frames": FrameStemConfig,
    "series": SeriesStemConfig,
    "waveform": WaveformStemConfig,
}


# Stems of each kind that have all the weights that those of the kind may have.
WHOLE = (
    PatchStemConfig(distillation_token=True),
    ConvolutionStemConfig(use_bias=True),
    FrameStemConfig(),
    SeriesStemConfig(context_length=16, class_token=True),
    SeriesStemConfig(context_length=16, residual=True, end_token=True),
    WaveformStemConfig(norm="layer", use_bias=True),
)


def stem_config(values: Mapping[str, Any] | StemConfig) -> StemConfig:
    """The stem of values by name. ValueError for an unknown kind, or names that it has not."""
    if isinstance(values, StemConfig):
        return values
    kind = values.get("kind") if isinstance(values, Mapping) else None
    if not isinstance(kind, str) or kind not in STEMS:
        raise ValueError(
            "`stem` must be a dict of values with the 'kind' of the stem, one of "
            f"{', '.join(map(repr, STEMS))}, received {shorten(values)}."
        )
    known = [field.name for field in dataclasses.fields(STEMS[kind])]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ValueError(
            f"The stem {kind!r} has no value {shorten(unknown[0])}, only: {', '.join(known)}."
            f"{nearest(unknown[0], known)}"
        )
    return STEMS[kind](**values)
