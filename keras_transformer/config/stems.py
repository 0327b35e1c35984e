"""Configs of stems, which embed inputs other than token ids: a kind and its values.

The layers of the same names are in `layers/stems/`. Their weights are described here, as block
weights are in `structure.py`; their names begin with `input_`.
"""

import math
from typing import ClassVar

from keras_transformer.config.feed_forward import ACTIVATIONS
from keras_transformer.config.hgnet import HGNetStemConfig
from keras_transformer.config.inputs import ImageStemConfig, StemConfig, check_size
from keras_transformer.config.mobilenet import MobileNetStage, MobileNetV5StemConfig
from keras_transformer.config.options import option, part
from keras_transformer.config.queries import QueryStemConfig
from keras_transformer.config.resnet import ResNetStemConfig
from keras_transformer.config.subsampled_frames import (
    ConvolvedFrameStemConfig,
    SubsampledFrameStemConfig,
)
from keras_transformer.config.waveform import WaveformStemConfig
from keras_transformer.config.weight import dense_of, norm_of, residual_of, weight_of
from keras_transformer.support.checking import shorten

# How the table of learned positions is resampled for another grid of patches.
# The gates of a fusion: of each place, and of the mean of all places.
GATES = ("local", "global")
INTERPOLATIONS = ("bicubic", "bicubic_antialiased")

__all__ = [
    "ConvolutionStemConfig", "ConvolvedFrameStemConfig", "FoldedFrameStemConfig", "FrameStemConfig",
    "HGNetStemConfig", "MobileNetStage", "MobileNetV5StemConfig", "PatchSequenceStemConfig",
    "PatchStemConfig", "QueryStemConfig", "ResNetStemConfig", "SeriesStemConfig", "TubeStemConfig",
]  # fmt: skip


@part
class PatchStemConfig(ImageStemConfig, kind="patches"):
    """`layers.stems.PatchStem`: an image cut into patches, each projected linearly."""

    patch_size: int = option("height and width of a patch.", 16, least=1, most=2**15)
    patch_width: int | None = option(
        "width of a patch that is not square, and does not overlap with others (PARSeq). Defaults "
        "to `patch_size`.",
        None,
        least=1,
        most=2**15,
    )
    stride: int | None = option(
        "pixels from one patch to the next. Defaults to `patch_size`, so patches do not overlap.",
        None,
        least=1,
    )
    padding: int = option("pixels of zeros around the image (SegFormer).", 0, least=0, most=2**15)
    whole_patches: bool = option(
        "rows and columns of pixels that are left over below and on the right are padded with "
        "zeros to whole patches, instead of being left out (Swin).",
        False,
    )
    use_bias: bool = option("a bias in the projection.", True)
    class_token: bool = option("a trained state before the patches.", True)
    distillation_token: bool = option("a second trained state after the class token (DeiT).", False)
    num_registers: int = option(
        "number of trained states between these tokens and the patches, without positions "
        "(DINOv2 with registers).",
        0,
        least=0,
        most=2**15,
    )
    num_detection_tokens: int = option(
        "number of trained states after the patches, with positions, from which objects are "
        "predicted (YOLOS).",
        0,
        least=0,
        most=2**15,
    )
    mid_positions: int = option(
        "number of blocks, from the first, behind which further trained positions are added to the "
        "states (YOLOS).",
        0,
        least=0,
        most=2**10,
    )
    position_size: tuple | list | None = option(
        "height and width of the images that learned positions are defined for, if they are not "
        "those of `image_size`, to which they are interpolated (ViTDet). For stems of patches "
        "alone.",
        None,
    )
    interpolation: str = option(
        'how learned positions are interpolated for images of another size: `"bicubic"`, or '
        '`"bicubic_antialiased"`, which weighs all positions that a smaller grid leaves out.',
        "bicubic",
        choices=INTERPOLATIONS,
    )

    def check(self):
        super().check()
        if self.stride is None:
            object.__setattr__(self, "stride", self.patch_size)
        if min(self.image_size) + 2 * self.padding < self.patch_size:
            raise ValueError(
                f"`image_size` {self.image_size} is too small for patch_size={self.patch_size}."
            )
        if self.patch_width is not None and (
            self.padding or self.whole_patches or self.stride != self.patch_size
        ):
            raise ValueError(
                "`patch_width` needs patches that do not overlap, and neither `padding` nor "
                f"`whole_patches`, received {self}."
            )
        if self.image_size[1] < self.patch_sides[1]:
            raise ValueError(
                f"`image_size` {self.image_size} is too small for patch_width={self.patch_width}."
            )
        if self.whole_patches and (self.padding or self.stride != self.patch_size):
            raise ValueError(
                "`whole_patches` needs patches that do not overlap, and no `padding`, received "
                f"stride={self.stride} and padding={self.padding}."
            )
        if self.distillation_token and not self.class_token:
            raise ValueError("`distillation_token` needs `class_token`.")
        if self.position_size is not None:
            check_size("position_size", self.position_size)
            others = self.num_tokens or self.num_detection_tokens or self.mid_positions
            if others or 0 in self.grid(self.position_size):
                raise ValueError(
                    "`position_size` needs a stem of patches without other states and "
                    f"`mid_positions`, and a patch at least, received {self}."
                )
        if self.num_registers and self.num_detection_tokens:
            raise ValueError("`num_registers` cannot be combined with `num_detection_tokens`.")

    @property
    def num_tokens(self) -> int:
        """Number of states before those of the patches."""
        return self.class_token + self.distillation_token + self.num_registers

    @property
    def patch_sides(self) -> tuple[int, int]:
        """Height and width of a patch."""
        return self.patch_size, self.patch_width or self.patch_size

    def grid(self, image_size):
        if self.patch_width is not None:
            return image_size[0] // self.patch_size, image_size[1] // self.patch_width
        around = 2 * self.padding - self.patch_size
        around += (self.patch_size - 1) * self.whole_patches
        rows, columns = ((n + around) // self.stride + 1 for n in image_size)
        return rows, columns

    @property
    def num_states(self):
        patches = math.prod(self.grid(self.image_size))
        return self.num_tokens + patches + self.num_detection_tokens

    @property
    def num_positions(self):
        if self.position_size is not None:
            return math.prod(self.grid(self.position_size))
        return self.num_states - self.num_registers

    @property
    def weights(self):
        axes = ("patch_size", "patch_width", "num_channels", "embedding_dim")
        return (
            *weight_of("input_patches/kernel", *axes),
            *(weight_of("input_patches/bias", "embedding_dim") if self.use_bias else ()),
            *(weight_of("input_class_token", "embedding_dim") if self.class_token else ()),
            *(
                weight_of("input_distillation_token", "embedding_dim")
                if self.distillation_token
                else ()
            ),
            *(
                weight_of("input_registers", "num_registers", "embedding_dim")
                if self.num_registers
                else ()
            ),
            *(
                weight_of("input_detection_tokens", "num_detection_tokens", "embedding_dim")
                if self.num_detection_tokens
                else ()
            ),
            *(
                weight_of(
                    "input_mid_positions", "mid_positions", "one", "stem_states", "embedding_dim"
                )
                if self.mid_positions
                else ()
            ),
        )

    def sizes(self, width):
        return {
            "patch_size": self.patch_size,
            "patch_width": self.patch_sides[1],
            "num_channels": self.num_channels,
            "num_registers": self.num_registers,
            "num_detection_tokens": self.num_detection_tokens,
            "mid_positions": self.mid_positions,
            "stem_states": self.num_states,
        }

    @property
    def products(self):
        return {"input_patches/kernel": math.prod(self.grid(self.image_size))}


@part
class FoldedFrameStemConfig(PatchStemConfig, kind="folded_frames"):
    """`layers.stems.FoldedFrameStem`: a spectrogram folded to an image, cut into patches (HTS-AT).

    The frames are cut into as many pieces of equal length as `image_size` has times `num_bins`
    rows. The pieces are stacked: rows are the frequency bands of the first piece, then those of the
    second, and so on.
    """

    # Frames of silence have states as others do.
    masked: ClassVar[bool] = False

    num_bins: int = option("number of values in a frame, such as frequency bands.", 64, least=1)
    image_size: tuple | list = option("height and width of the image.", (256, 256))
    num_channels: int = option("number of channels of the image.", 1, least=1, most=1)
    patch_size: int = option("height and width of a patch.", 4, least=1, most=2**15)
    class_token: bool = option("a trained state before the patches.", False)
    fusion: int | None = option(
        "a recording that is longer than the image has place for comes as a shrunk whole and three "
        "pieces, whose patches are fused by two gates: their hidden layers have this many times "
        "fewer features than the states (CLAP's fused models). None reads one spectrogram.",
        None,
        least=1,
    )

    def check(self):
        super().check()
        if self.fusion is not None and self.image_size[1] < 3 * self.patch_size:
            raise ValueError(
                f"`fusion` needs images of at least three patches in width, received "
                f"{self.image_size} and patch_size={self.patch_size}."
            )
        if self.image_size[0] % self.num_bins:
            raise ValueError(
                f"`num_bins` must divide the height of the image, {self.image_size[0]}, received "
                f"{self.num_bins}."
            )

    @property
    def num_pieces(self) -> int:
        """Number of pieces that the frames are cut into."""
        return self.image_size[0] // self.num_bins

    @property
    def most_frames(self) -> int:
        """Number of frames that fill the image, to which fewer are stretched."""
        return self.num_pieces * self.image_size[1]

    def check_width(self, width: int) -> None:
        if self.fusion is not None and width < self.fusion:
            raise ValueError(
                f"`fusion` must be at most the width of the states, {width}, received "
                f"{self.fusion}."
            )

    @property
    def weights(self):
        found = norm_of("input_norm", "batch_norm", "num_bins") + super().weights
        if self.fusion is None:
            return found
        axes = ("patch_size", "patch_of_pieces", "num_channels", "embedding_dim")
        found += weight_of("input_pieces/kernel", *axes)
        found += weight_of("input_pieces/bias", "embedding_dim")
        for gate in GATES:
            name = f"input_{gate}_gate"
            found += dense_of(f"{name}/hidden", "embedding_dim", "fused_dim")
            found += norm_of(f"{name}/hidden_norm", "batch_norm", "fused_dim")
            found += dense_of(f"{name}/output", "fused_dim", "embedding_dim")
            found += norm_of(f"{name}/output_norm", "batch_norm", "embedding_dim")
        return found

    def sizes(self, width):
        sizes = {**super().sizes(width), "num_bins": self.num_bins}
        if self.fusion is None:
            return sizes
        return {**sizes, "fused_dim": width // self.fusion, "patch_of_pieces": 3 * self.patch_size}


@part
class ConvolutionStemConfig(ImageStemConfig, kind="convolutions"):
    """`layers.stems.ConvolutionStem`: convolutions over an image, with a state per position."""

    filters: tuple | list = option(
        "width of each convolution except the last, which has the width of the states.", (64,)
    )
    kernel_size: int = option("height and width of each convolution's kernel.", 3, least=1, most=64)
    strides: tuple | list = option("stride of each convolution.", (1, 1))
    pool_sizes: tuple | list = option(
        "height and width of the max pooling after each convolution, 1 disables it.", (3, 3)
    )
    pool_strides: tuple | list = option("stride of each max pooling.", (2, 2))
    activation: str = option("activation after each convolution.", "relu", choices=ACTIVATIONS)
    use_bias: bool = option("a bias in each convolution.", False)

    def check(self):
        super().check()
        count = len(self.filters) + 1
        for name in ("filters", "strides", "pool_sizes", "pool_strides"):
            values, wanted = getattr(self, name), count - (name == "filters")
            fits = len(values) == wanted and all(type(n) is int and 1 <= n <= 2**15 for n in values)
            if not fits or count > 16:
                each = (
                    "one for each convolution but the last, which makes the states"
                    if name == "filters"
                    else "one for each of `filters`, and one for the last convolution"
                )
                raise ValueError(
                    f"`{name}` of the stem must be {wanted} integers of at least 1 ({each}), "
                    f"received {shorten(values)}; at most 16 convolutions."
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

    def sizes(self, width):
        filters = {f"filters_{i}": each for i, each in enumerate(self.filters)}
        return {"kernel_size": self.kernel_size, "num_channels": self.num_channels, **filters}

    @property
    def products(self):
        places, (rows, columns) = {}, self.image_size
        for i, (step, pooled) in enumerate(zip(self.strides, self.pool_strides, strict=True)):
            rows, columns = -(-rows // step), -(-columns // step)
            places[f"input_convolution_{i}/kernel"] = rows * columns
            rows, columns = -(-rows // pooled), -(-columns // pooled)
        return places


@part
class PatchSequenceStemConfig(StemConfig, kind="patch_sequence"):
    """`layers.stems.PatchSequenceStem`: the patches of images of any size, each with its place."""

    patch_size: int = option("height and width of a patch.", 14, least=1, most=2**15)
    num_frames: int = option(
        "number of frames of a patch; an image is a video of equal frames.", 2, least=1, most=1024
    )
    num_channels: int = option("number of channels of an image.", 3, least=1, most=1024)
    use_bias: bool = option("a bias in the projection.", False)
    window: int | None = option(
        "the patches come in windows of this many rows and columns, padded to whole windows, so "
        "that attention in chunks of a window's patches stays within a window. None if they come "
        "row by row.",
        None,
        least=1,
        most=2**7,  # a small image is padded to a whole window
    )
    position_grid: int | None = option(
        "rows and columns of a square grid of trained positions, which are interpolated "
        "to the patches of an image and added to them (Qwen3-VL). None for no such positions.",
        None,
        least=1,
        most=2**15,
    )
    interpolation: str = option(
        'how these positions are interpolated: `"linear"`, with the first and the last patch of an '
        'image at the ends of the grid; or `"linear_antialiased"`, with the sides of the image at '
        "those of the grid, which weighs all positions that a smaller image leaves out (SigLIP 2).",
        "linear",
        choices=("linear", "linear_antialiased"),
    )
    axis_positions: int | None = option(
        "number of rows and of columns that have a trained vector each, of which those of a "
        "patch's row and column are added to it (Gemma 4). None for no such positions.",
        None,
        least=1,
        most=2**17,
    )
    time_steps: int | None = option(
        "positions on the axis of time for a second of video (Qwen2.5-VL). None for one position "
        "for each patch in time.",
        None,
        least=1,
        most=2**15,
    )

    @property
    def patch_shape(self) -> tuple[int, int, int, int]:
        """Frames, rows, columns and channels of a patch."""
        return self.num_frames, self.patch_size, self.patch_size, self.num_channels

    @property
    def num_values(self) -> int:
        """Number of values in a patch."""
        return math.prod(self.patch_shape)

    @property
    def weights(self):
        axes = ("num_frames", "patch_size", "patch_size", "num_channels", "embedding_dim")
        return (
            *weight_of("input_patches/kernel", *axes),
            *(weight_of("input_patches/bias", "embedding_dim") if self.use_bias else ()),
            *(
                weight_of("input_positions", "grid_places", "embedding_dim")
                if self.position_grid
                else ()
            ),
            *(
                weight_of("input_axis_positions", "two_axes", "axis_positions", "embedding_dim")
                if self.axis_positions
                else ()
            ),
        )

    def sizes(self, width):
        names = ("num_frames", "patch_size", "num_channels")
        places = {"grid_places": (self.position_grid or 0) ** 2}
        places |= {"two_axes": 2, "axis_positions": self.axis_positions or 0}
        return {name: getattr(self, name) for name in names} | places


@part
class TubeStemConfig(StemConfig, kind="tubes"):
    """`layers.stems.TubeStem`: a video cut into tubes, patches over several frames."""

    num_frames: int = option(
        "number of frames of the videos that positions are defined for; positions are interpolated "
        "for other numbers.",
        16,
        least=1,
        most=2**15,
    )
    frame_size: tuple | list = option(
        "height and width of the frames that positions are defined for, as above.", (224, 224)
    )
    tube_frames: int = option("number of frames of a tube.", 2, least=1, most=2**15)
    patch_size: int = option("height and width of a tube.", 16, least=1, most=2**15)
    num_channels: int = option("number of channels of a frame.", 3, least=1, most=1024)
    use_bias: bool = option("a bias in the projection.", True)
    class_token: bool = option("a trained state before the tubes.", False)
    positions: str = option(
        'what has a position: each of the `"tubes"`, or the places of a `"frame"`, the same in all '
        "frames, which are interpolated linearly for other sizes (VideoPrism).",
        "tubes",
        choices=("tubes", "frame"),
    )

    def check(self):
        check_size("frame_size", self.frame_size)
        if 0 in self.tube_grid(self.video_size):
            height, width = self.frame_size
            raise ValueError(
                f"{self.num_frames} frames of {height} x {width} are too few or too small for "
                f"tubes of {self.tube_frames} frames of {self.patch_size} x {self.patch_size}."
            )
        if self.positions == "frame" and self.class_token:
            raise ValueError("positions='frame' are for tubes alone, without a `class_token`.")

    @property
    def video_size(self) -> tuple[int, int, int]:
        """Frames, height and width of the usual video."""
        return (self.num_frames, *self.frame_size)

    def tube_grid(self, video_size: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the tubes of a video in time, by row and by column; what is left over is cut."""
        frames, height, width = video_size
        return frames // self.tube_frames, height // self.patch_size, width // self.patch_size

    @property
    def num_tokens(self) -> int:
        """Number of states that do not belong to a tube."""
        return int(self.class_token)

    @property
    def num_states(self):
        return math.prod(self.tube_grid(self.video_size)) + self.num_tokens

    @property
    def num_positions(self):
        _, *places = self.tube_grid(self.video_size)
        return math.prod(places) if self.positions == "frame" else self.num_states

    @property
    def weights(self):
        axes = ("tube_frames", "patch_size", "patch_size", "num_channels", "embedding_dim")
        return (
            *weight_of("input_patches/kernel", *axes),
            *(weight_of("input_patches/bias", "embedding_dim") if self.use_bias else ()),
            *(weight_of("input_class_token", "embedding_dim") if self.class_token else ()),
        )

    def sizes(self, width):
        names = ("tube_frames", "patch_size", "num_channels")
        return {name: getattr(self, name) for name in names}

    @property
    def products(self):
        return {"input_patches/kernel": math.prod(self.tube_grid(self.video_size))}


@part
class FrameStemConfig(StemConfig, kind="frames"):
    """`layers.stems.FrameStem`: convolutions over frames, such as audio frames."""

    num_bins: int = option("number of values in a frame, such as frequency bands.", 80, least=1)
    num_frames: int = option(
        "maximum number of frames in an input, which positions are defined for. Without positions "
        "it is the usual number, which plans assume.",
        3000,
        least=1,
        most=2**24,
    )
    kernel_size: int = option("number of frames that a convolution sees.", 3, least=1, most=1024)
    strides: tuple | list = option(
        "stride of each convolution, in frames. Without any the frames themselves are the states, "
        "of the width `num_bins`: give the side that `embedding_dim` (w2v-BERT 2.0).",
        (1, 2),
    )
    activation: str = option("activation after each convolution.", "gelu", choices=ACTIVATIONS)
    use_bias: bool = option("a bias in each convolution.", True)
    masked: bool = option(
        "the input has a `padding_mask` of its frames, and no state of a recording depends on its "
        "padding (w2v-BERT 2.0). Without it recordings are padded with silence (Whisper).",
        False,
    )

    def check(self):
        fits = all(type(n) is int and 1 <= n <= 2**15 for n in self.strides)
        if not fits or len(self.strides) > 16:
            raise ValueError(
                "`strides` of the stem must be 1 to 16 integers of at least 1, one for each "
                f"convolution, received {shorten(self.strides)}."
            )
        if self.kernel_size % 2 == 0:
            raise ValueError(
                f"`kernel_size` of frames must be odd, so that it is centered on a frame, received "
                f"{self.kernel_size}."
            )

    def check_width(self, width: int) -> None:
        if not self.strides and width != self.num_bins:
            raise ValueError(
                "`strides` of the stem must be 1 to 16 integers of at least 1, one for each "
                "convolution. Without any the frames themselves are the states: `embedding_dim` "
                f"must be `num_bins`, {self.num_bins}, received {width}."
            )

    def lengths(self, frames) -> list:
        """Return how many states each convolution makes of `frames`, an int or an array."""
        found = []
        for step in self.strides:
            frames = -(-frames // step)
            found.append(frames)
        return found

    def count_states(self, frames):
        """Return how many states the stem makes of `frames`, an int or an array."""
        return (frames, *self.lengths(frames))[-1]

    @property
    def num_states(self):
        return self.count_states(self.num_frames)

    @property
    def weights(self):
        inputs = ("num_bins", *["embedding_dim"] * len(self.strides))[: len(self.strides)]
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

    def sizes(self, width):
        return {"kernel_size": self.kernel_size, "num_bins": self.num_bins}

    @property
    def products(self):
        lengths = self.lengths(self.num_frames)
        return {f"input_convolution_{i}/kernel": n for i, n in enumerate(lengths)}


# Maximum count of numbers in all patches of one series, 268 MB of float32: overlapping patches
# repeat the values of the series.
_MOST_NUMBERS = 2**26


@part
class SeriesStemConfig(StemConfig, kind="series"):
    """`layers.stems.SeriesStem`: a series of numbers cut into patches, each a state."""

    context_length: int = option(
        "number of values in an input, which positions are defined for.", least=1, most=2**24
    )
    patch_length: int = option("number of values in a patch.", 16, least=1, most=2**15)
    stride: int | None = option(
        "values from one patch to the next. Defaults to `patch_length`, so patches do not overlap.",
        None,
        least=1,
    )
    repeat_last: bool = option(
        "append the last value `stride` times, for one more patch (PatchTST).",
        False,
    )
    reads_observed: bool = option(
        "append a 0/1 mask of observed values to each patch. A patch without observed values "
        "is masked, and the first patch is padded with missing values instead of being left "
        "out (Chronos-Bolt). Patches do not overlap.",
        False,
    )
    residual: bool = option(
        "the projection is a feed-forward layer with the inner width and activation of the "
        "blocks, and a linear layer beside it (Chronos-Bolt).",
        False,
    )
    running_scale: bool = option(
        "standardize each patch by the mean and the deviation of all known values up to its end, "
        "mark the missing values with 1 rather than the observed ones, and count positions from "
        "the first patch with a known value (TimesFM 2.5). Needs `reads_observed`.",
        False,
    )
    use_bias: bool = option("a bias in the projection; a `residual` one always has biases.", True)
    class_token: bool = option("a trained state before the patches.", False)
    end_token: bool = option("a trained state after the patches (Chronos-Bolt).", False)
    num_channels: int = option(
        "number of channels of a series. Unless they are `joint_channels`, each is a separate row, "
        "and no weight depends on their number: it is kept for exports to Transformers, which "
        "expects it.",
        1,
        least=1,
        most=2**24,
    )
    joint_channels: bool = option(
        "the channels of a series are one row, whose states are the patches of the first channel, "
        "then those of the second, and so on. All channels have the same positions (TSMixer).",
        False,
    )

    def check(self):
        if self.stride is None:
            object.__setattr__(self, "stride", self.patch_length)
        if self.context_length < self.patch_length:
            raise ValueError(
                f"context_length={self.context_length} is too short for patch_length="
                f"{self.patch_length}."
            )
        if self.stride > self.context_length:
            raise ValueError(
                f"stride={self.stride} must be at most context_length={self.context_length}."
            )
        numbers = self.pieces(self.context_length) * self.patch_length
        if numbers > _MOST_NUMBERS:
            raise ValueError(
                f"Patches of patch_length={self.patch_length}, stride={self.stride} apart, of "
                f"context_length={self.context_length} hold {numbers:,} numbers, more "
                f"than {_MOST_NUMBERS:,}."
            )
        if self.reads_observed and self.stride != self.patch_length:
            raise ValueError(
                f"With `reads_observed` patches do not overlap: leave stride={self.stride} out."
            )
        if self.running_scale and not self.reads_observed:
            raise ValueError("`running_scale` needs `reads_observed`, received False.")
        if self.running_scale and (self.class_token or self.end_token):
            raise ValueError("`running_scale` and tokens beside the patches cannot be combined.")
        if self.residual and not self.use_bias:
            raise ValueError("A `residual` projection has biases: leave `use_bias` out.")
        if self.joint_channels and (self.reads_observed or self.class_token or self.end_token):
            raise ValueError(
                "`joint_channels` can be combined neither with `reads_observed` nor with tokens "
                "beside the patches."
            )
        if self.num_states > _MOST_NUMBERS:
            raise ValueError(
                f"{self.num_channels} `joint_channels` have {self.num_states:,} patches, more than "
                f"{_MOST_NUMBERS:,}."
            )

    def pieces(self, length: int) -> int:
        """Return how many patches a series of this length has."""
        length += self.repeat_last * self.stride
        if self.reads_observed:  # the first patch is padded
            return -(-length // self.patch_length)
        return (length - self.patch_length) // self.stride + 1

    @property
    def num_rows(self) -> int:
        """Number of channels that have a row of states together."""
        return self.num_channels if self.joint_channels else 1

    @property
    def num_states(self):
        return self.num_rows * self.num_positions

    @property
    def num_positions(self):
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

    def sizes(self, width):
        return {"piece_values": self.patch_length * (1 + self.reads_observed)}

    @property
    def products(self):
        kernels = [each.path for each in self.weights if each.path.endswith("/kernel")]
        return dict.fromkeys(kernels, self.num_rows * self.pieces(self.context_length))


# Stems of each kind that together have all weights of the kind, for the tables in `structure`.
WHOLE = (
    PatchStemConfig(distillation_token=True, num_registers=1),
    PatchStemConfig(num_detection_tokens=1, mid_positions=1),
    FoldedFrameStemConfig(fusion=1),
    PatchSequenceStemConfig(use_bias=True, position_grid=1),
    ConvolutionStemConfig(use_bias=True),
    TubeStemConfig(class_token=True),
    FrameStemConfig(),
    SeriesStemConfig(context_length=16, class_token=True),
    SeriesStemConfig(context_length=16, residual=True, end_token=True),
    WaveformStemConfig(norm="layer", use_bias=True),
    ResNetStemConfig(),
    HGNetStemConfig(affine=True),
    MobileNetV5StemConfig(
        stages=[
            MobileNetStage(dim=8, kernel_sizes=(3,), expansions=(1,), attentions=1, key_stride=2)
        ]
        * 2
    ),
    QueryStemConfig(),
    SubsampledFrameStemConfig(num_layers=2),
    ConvolvedFrameStemConfig(),
)
_KINDS = (
    "patches", "patch_sequence", "convolutions", "tubes", "frames", "series", "waveform", "resnet",
    "hgnet", "queries", "subsampled_frames", "convolved_frames", "folded_frames", "mobilenet_v5",
)  # fmt: skip
STEMS = {kind: StemConfig.kinds[kind] for kind in _KINDS}
