"""`PatchVideoProcessor`: videos as sequences of patches, as the Qwen-VL models read them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from keras_transformer.processors.image import CLIP, MOST_PIXELS
from keras_transformer.processors.image_files import read_image
from keras_transformer.processors.media import OF_ALL_PARTS, MediaProcessor
from keras_transformer.processors.patch_sequences import (
    MOST_STATES,
    MOST_VALUES,
    Patches,
    PatchSequenceProcessor,
    fitted,
    published_options,
)
from keras_transformer.processors.resampling import FILTERS, resampled
from keras_transformer.processors.tiling import Layout
from keras_transformer.processors.video_files import Video, is_one_video, read_frames, video_shape
from keras_transformer.support.checking import check_bool, check_int, check_number, shorten

_BICUBIC, _HALF = 3, ((0.5,) * 3, (0.5,) * 3)
# Pixels of all frames of a video that bounds may allow.
_MOST_PIXELS = 2**31
_FAMILIES = {"Qwen2VL": False, "Qwen2_5_VL": False, "Qwen3VL": True}  # whether they have timestamps


class ChosenFrames(NamedTuple):
    """Which frames of a video are read, and how.

    Args:
        numbers: int array, the numbers of the frames.
        fps: float, the number of frames of the video in a second.
        rate: float, the number of chosen frames in a second.
        given: ints, height and width of the frames of the video.
        size: ints, height and width to which they are resized.
    """

    numbers: np.ndarray
    fps: float
    rate: float
    given: tuple[int, int]
    size: tuple[int, int]


class PatchVideoProcessor(MediaProcessor):
    """Convert videos to sequences of patches, as Qwen2-VL and its successors read them.

    A number of frames per second is taken, each is resized, and pairs of frames are cut into
    patches. The options are the values of `video_preprocessor_config.json`, and `save` writes the
    same file. It belongs to the `videos` of a `PatchSequenceProcessor`.

    Args:
        min_pixels, max_pixels: int, bounds of the pixels of a resized frame; with `timestamps`, of
            all frames of a video together.
        patch_size, merge_size, rescale_factor, mean, std: as for `PatchSequenceProcessor`.
        num_frames: int, number of frames of a patch. The last frame of a video is repeated until
            there are enough.
        resample: int, 2 (linear) or 3 (cubic).
        fps: float, number of frames that are taken in a second.
        min_frames: int, number of frames that are taken of a short video, if it has them.
        max_frames: int, number of frames that are taken of a long video.
        timestamps: bool. True writes the seconds before the states of each pair of frames, as
            Qwen3-VL does; False puts the states of a video in one run, whose positions in time are
            those of the frames.
        capped: bool, let the frames of a video share the pixels of `max_states` states, as the
            program that the models were published with does; with `timestamps` this is the number
            of states of a frame.
        max_states: int. Defaults to 128,000; with `timestamps` to 768.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    processor = kt.processors.PatchVideoProcessor(
        min_pixels=64, max_pixels=1024, patch_size=4, fps=2
    )
    frames = np.zeros((30, 23, 31, 3), "uint8")  # of 3 seconds, become 24 x 32
    layout = processor.layout(kt.processors.Video(frames, fps=10))
    assert layout.tiles == 3 and len(layout.states) == 3 * 3 * 4
    ```

    Source: Wang et al. 2024, "Qwen2-VL", section 2.1; Bai et al. 2025, "Qwen2.5-VL Technical
    Report", section 2.1.2; timestamps: Bai et al. 2025, "Qwen3-VL Technical Report".
    """

    kind = "video processor"
    raw = "videos"
    unit = "video"
    part = "video_processor"
    feature = "Video"
    column_names = ("video", "videos")
    files = ("video_preprocessor_config.json", OF_ALL_PARTS)
    # What chat templates write for a video, and around it.
    token: ClassVar[str] = "<|video_pad|>"
    around: ClassVar[tuple[str, str]] = ("<|vision_start|>", "<|vision_end|>")
    # The options that a video may be too large for.
    lowered: ClassVar[str] = "`fps`, `max_frames` or `max_pixels`"

    def __init__(
        self,
        min_pixels: int = 128 * 28 * 28,
        max_pixels: int = 768 * 28 * 28,
        patch_size: int = 14,
        merge_size: int = 2,
        num_frames: int = 2,
        resample: int = _BICUBIC,
        rescale_factor: float | None = 1 / 255,
        mean: Sequence[float] | None = CLIP[0],
        std: Sequence[float] | None = CLIP[1],
        fps: float = 2.0,
        min_frames: int = 4,
        max_frames: int = 768,
        timestamps: bool = False,
        capped: bool = False,
        max_states: int | None = None,
    ):
        self.timestamps = check_bool("timestamps", timestamps)
        self.capped = check_bool("capped", capped)
        usual = 768 if timestamps else 128000
        self.max_states = check_int("max_states", max_states or usual, 1, 2**24)
        square = check_int("patch_size", patch_size, 1, 4096) * check_int(
            "merge_size", merge_size, 1, 2**10
        )
        self.frames = PatchSequenceProcessor(
            min_pixels=1, max_pixels=square**2, patch_size=patch_size, merge_size=merge_size,
            num_frames=num_frames, resample=resample, rescale_factor=rescale_factor, mean=mean,
            std=std,
        )  # fmt: skip
        if resample not in FILTERS:
            raise ValueError(f"`resample` must be 2 (linear) or 3 (cubic), received {resample}.")
        self.min_pixels = check_int("min_pixels", min_pixels, 1, _MOST_PIXELS)
        self.max_pixels = check_int("max_pixels", max_pixels, 1, _MOST_PIXELS)
        if max_pixels < max(min_pixels, square**2):
            raise ValueError(
                f"`max_pixels` must be at least `min_pixels` and at least {square**2:,}, a square "
                f"of patches, received {max_pixels:,} and {min_pixels:,}."
            )
        self.fps = check_number("fps", fps, above=0, at_most=1000)
        self.min_frames = check_int("min_frames", min_frames, 1, 2**15)
        self.max_frames = check_int("max_frames", max_frames, max(min_frames, num_frames), 2**15)

    @property
    def patch_size(self) -> int:
        """Height and width of a patch."""
        return self.frames.patch_size

    @property
    def merge_size(self) -> int:
        """Rows and columns of a square of patches that becomes one state."""
        return self.frames.merge_size

    @property
    def num_frames(self) -> int:
        """Number of frames of a patch."""
        return self.frames.num_frames

    @staticmethod
    def is_one(x: Any) -> bool:
        """Return whether `x` is a single video."""
        return is_one_video(x)

    def layout(self, video: Video, place: str = "video") -> Layout:
        """Return what stands for a video in a text, by its size, its length and its first frame.

        Args:
            video: `Video`.
            place: its name in errors.

        Raises:
            ValueError: if it is not a video, or has too many frames or states; if a file is given
                with `fps`.
        """
        chosen = self.chosen(video, place)
        pairs = -(-len(chosen.numbers) // self.num_frames)
        count = math.prod(chosen.size) // self.frames.square**2
        if not self.timestamps:
            seconds = self.num_frames / chosen.rate
            return Layout((0, 0), pairs, (np.arange(pairs * count),), seconds=seconds)
        last = np.full(pairs * self.num_frames - len(chosen.numbers), chosen.numbers[-1])
        times = np.concatenate([chosen.numbers, last]).reshape(pairs, self.num_frames) / chosen.fps
        start, end = self.around
        text = "".join(
            f"<{(ends[0] + ends[-1]) / 2:.1f} seconds>{start}{{image}}{end}" for ends in times
        )
        return Layout((0, 0), pairs, tuple(np.arange(pairs * count).reshape(pairs, count)), text)

    def patches_of(self, video: Video, place: str, window: int | None = None) -> list[Patches]:
        """Return the patches of each pair of frames, see `PatchSequenceProcessor.patches`."""
        return [self.frames.patches(pair, window) for pair in self.pairs(video, place)]

    def pairs(self, video: Video, place: str = "video") -> np.ndarray:
        """Read the frames of a video, uint8 `(pairs, num_frames, height, width, 3)`.

        Args:
            video: `Video`.
            place: its name in errors.

        Raises:
            ValueError: as `layout`, and if a frame cannot be read or has another size.
        """
        chosen = self.chosen(video, place)

        def choose(total: int, _: str) -> np.ndarray:
            return np.minimum(chosen.numbers, total - 1)  # a file may have fewer than it states

        def take(frame: Any, place: str) -> np.ndarray:
            pixels = read_image(frame, place)
            if pixels.shape[:2] != chosen.given:
                raise ValueError(
                    f"`{place}` has a frame of {pixels.shape[0]:,} x {pixels.shape[1]:,} pixels, "
                    f"and the first has {' x '.join(f'{n:,}' for n in chosen.given)}: the frames "
                    "of a video have one size."
                )
            return resampled(pixels, *chosen.size, self.frames.resample)

        frames = read_frames(video.content, choose, take, place)
        frames += frames[-1:] * (-len(frames) % self.num_frames)
        return np.stack(frames).reshape(-1, self.num_frames, *frames[0].shape)

    def chosen(self, video: Video, place: str = "video") -> ChosenFrames:
        """Return which frames of a video are read, and how.

        Args:
            video: `Video`.
            place: its name in errors.

        Raises:
            ValueError: as `layout`.
        """
        shape = video_shape(video.content, place)
        if shape.fps is not None and video.fps is not None:
            raise ValueError(
                f"`{place}` is a file, which states its frames per second: leave out 'fps'. How "
                "many of them are read is `processor.source.videos.fps`."
            )
        fps = shape.fps if video.fps is None else video.fps
        if fps is not None:
            numbers = self.frame_indices(shape.frames, fps)
        elif shape.frames > self.max_frames:
            raise ValueError(
                f"`{place}` has {shape.frames:,} frames, and `max_frames` is {self.max_frames:,}. "
                "Give 'fps', the number of frames in a second, so that some of them are chosen."
            )
        else:
            numbers, fps = np.arange(shape.frames), self.fps
        given = shape.height, shape.width
        try:
            size = self.resized(len(numbers), *given)
        except ValueError as error:
            raise ValueError(f"`{place}`: {error}") from None
        pixels = math.prod(size) * -(-len(numbers) // self.num_frames)
        states = pixels // self.frames.square**2
        most = MOST_VALUES // (3 * self.num_frames)
        if math.prod(size) > MOST_PIXELS or pixels > most or states > MOST_STATES:
            raise ValueError(
                f"`{place}` would be read as {len(numbers):,} frames of {size[0]:,} x {size[1]:,} "
                f"pixels, {states:,} states. Make it shorter, or lower {self.lowered} of "
                "`processor.source.videos`."
            )
        return ChosenFrames(numbers, fps, fps * len(numbers) / shape.frames, given, size)

    def frame_indices(self, total: int, fps: float) -> np.ndarray:
        """Return the numbers of the frames that are taken of a video.

        Args:
            total: int, number of frames of the video.
            fps: float, number of its frames in a second.

        Returns:
            Int array, in ascending order. Without `timestamps` their number is a multiple of
            `num_frames`, unless the video has fewer.
        """
        count, step = total / fps * self.fps, self.num_frames
        if self.timestamps:
            count = min(max(int(count), self.min_frames), self.max_frames, total)
            return np.linspace(0, total - 1, count).round().astype("int64")
        if total < step:
            return np.arange(total)
        most = min(self.max_frames, total) // step * step
        count = math.floor(min(max(count, self.min_frames), most) / step) * step
        numbers = (np.arange(max(count, step)) * (total / max(count, step))).astype("float32")
        return np.minimum(numbers.astype("int64"), total - 1)

    def resized(self, count: int, height: int, width: int) -> tuple[int, int]:
        """Return the height and width to which the frames of a video are resized.

        Args:
            count: int, number of frames that are taken.
            height: int, of a frame.
            width: int, of a frame.

        Raises:
            ValueError: if a frame is more than 200 times as long as wide.
        """
        square, most = self.frames.square, self.max_pixels
        least = int(self.min_pixels * 1.05)
        if not self.timestamps:
            if self.capped:
                shared = int(self.max_states * square**2 * 0.9) * self.num_frames // count
                most = max(min(most, shared), least)
            return fitted(height, width, square, self.min_pixels, most)
        if min(height, width) < square:
            scale = max(square / height, square / width)
            height, width = int(height * scale), int(width * scale)
        count = max(count, self.num_frames)  # one frame is repeated
        if self.capped:
            each = min(self.max_states * square**2, most // count)
            most = max(each, least) * count
        counted = round(count / self.num_frames) * self.num_frames
        return fitted(height, width, square, self.min_pixels, most, count, counted)

    def values(self) -> dict[str, Any]:
        """Return the content of `video_preprocessor_config.json`."""
        values = self.frames.values()
        del values["image_processor_type"], values["do_center_crop"]
        return values | {
            "video_processor_type": f"{'Qwen3VL' if self.timestamps else 'Qwen2VL'}VideoProcessor",
            "size": {"shortest_edge": self.min_pixels, "longest_edge": self.max_pixels},
            "do_sample_frames": True,
            "fps": self.fps,
            "min_frames": self.min_frames,
            "max_frames": self.max_frames,
            "cap_pixels_per_frame": self.capped,
            "max_video_tokens": self.max_states,
        }

    @classmethod
    def beside(cls, images: PatchSequenceProcessor) -> "PatchVideoProcessor":
        """Return the processor of a model that has a file for its images alone.

        The bounds are those of the program that Qwen2-VL was published with, as the file's are too
        large for many frames.
        """
        return cls(
            patch_size=images.patch_size, merge_size=images.merge_size,
            num_frames=images.num_frames, rescale_factor=images.rescale_factor, mean=images.mean,
            std=images.std, capped=True,
            min_pixels=128 * images.square**2, max_pixels=768 * images.square**2,
        )  # fmt: skip

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "PatchVideoProcessor":
        """Return the processor described by a `video_preprocessor_config.json`.

        Raises:
            ValueError: if the class is unknown or a value is out of range.
        """
        named = values.get("video_processor_type") or "Qwen2VLVideoProcessor"
        family = str(named).removesuffix("VideoProcessor")
        if family not in _FAMILIES:
            raise ValueError(
                f"Videos for {shorten(named)} are not supported, only for "
                f"{', '.join(map(repr, _FAMILIES))}."
            )
        timestamps = _FAMILIES[family]
        patch, (mean, std) = (16, _HALF) if timestamps else (14, CLIP)
        if values.get("num_frames") is not None:
            raise ValueError(
                f"num_frames={shorten(values['num_frames'])} is not supported, only null: frames "
                "are chosen by `fps`."
            )
        square = (2 * patch) ** 2
        return cls(
            **published_options(values, (128 * square, 768 * square), patch, mean, std),
            fps=values.get("fps") or 2.0,
            min_frames=values.get("min_frames", 4),
            max_frames=values.get("max_frames", 768),
            timestamps=timestamps,
            capped=check_bool("cap_pixels_per_frame", values.get("cap_pixels_per_frame") or False),
            max_states=values.get("max_video_tokens"),
        )


PatchSequenceProcessor.video_class = PatchVideoProcessor
