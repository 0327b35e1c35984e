"""`SoftTokenVideoProcessor`: frames of videos, each an image with a small budget of states."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from keras_transformer.processors.patch_videos import PatchVideoProcessor
from keras_transformer.processors.soft_tokens import (
    SoftTokenProcessor,
    published_pixels,
    soft_token_options,
    within_budget,
)
from keras_transformer.processors.tiling import Layout
from keras_transformer.processors.video_files import Video
from keras_transformer.support.checking import check_int, shorten

_BICUBIC, _HALF = 3, (0.5,) * 3
_FAMILIES = ("Gemma4",)


class SoftTokenVideoProcessor(PatchVideoProcessor):
    """Convert videos to sequences of patches, as Gemma 4 reads them.

    Frames are taken at equal distances, and each is an image with a budget of states of its own,
    behind its minute and second in the text. The options are the values of
    `video_preprocessor_config.json`, and `save` writes the same file. It belongs to the `videos` of
    a `SoftTokenProcessor`.

    Args:
        max_soft_tokens: int, the most states of a frame.
        patch_size, merge_size, rescale_factor, mean, std: as for `SoftTokenProcessor`.
        resample: int, 2 (linear) or 3 (cubic).
        max_frames: int, number of frames that are taken of a video, if it has them.
        fps: float, number of frames in a second of a list of frames that has none.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    processor = kt.processors.SoftTokenVideoProcessor(12, patch_size=4, merge_size=2, max_frames=3)
    frames = np.zeros((90, 23, 31, 3), "uint8")  # of 9 seconds
    layout = processor.layout(kt.processors.Video(frames, fps=10))
    assert layout.text.replace("<|image>{image}<image|>", "X") == "00:00 X 00:03 X 00:06 X"
    assert [len(run) for run in layout.runs] == [8, 8, 8]
    ```

    Source: Google DeepMind 2026, https://ai.google.dev/gemma/docs/core/model_card_4.
    """

    token: ClassVar[str] = "<|video|>"
    around: ClassVar[tuple[str, str]] = ("", "")
    lowered: ClassVar[str] = "`max_frames` or `max_soft_tokens`"
    # What stands around the states of a frame.
    around_frame: ClassVar[tuple[str, str]] = ("<|image>", "<image|>")

    def __init__(
        self,
        max_soft_tokens: int = 70,
        patch_size: int = 16,
        merge_size: int = 3,
        resample: int = _BICUBIC,
        rescale_factor: float | None = 1 / 255,
        mean: Sequence[float] | None = _HALF,
        std: Sequence[float] | None = _HALF,
        max_frames: int = 32,
        fps: float = 24.0,
    ):
        self.max_soft_tokens = check_int("max_soft_tokens", max_soft_tokens, 1, 2**16)
        square = check_int("patch_size", patch_size, 1, 4096) * check_int(
            "merge_size", merge_size, 1, 2**10
        )
        super().__init__(
            min_pixels=1, max_pixels=max_soft_tokens * square**2, patch_size=patch_size,
            merge_size=merge_size, num_frames=1, resample=resample, rescale_factor=rescale_factor,
            mean=mean, std=std, fps=fps, min_frames=1, max_frames=max_frames, timestamps=True,
        )  # fmt: skip

    def layout(self, video: Video, place: str = "video") -> Layout:
        chosen = self.chosen(video, place)
        count = math.prod(chosen.size) // self.frames.square**2
        start, end = self.around_frame
        seconds = (int(number / chosen.fps) for number in chosen.numbers)
        text = " ".join(f"{s // 60:02d}:{s % 60:02d} {start}{{image}}{end}" for s in seconds)
        frames = len(chosen.numbers)
        return Layout((0, 0), frames, tuple(np.arange(frames * count).reshape(frames, -1)), text)

    def frame_indices(self, total: int, fps: float) -> np.ndarray:
        count = min(self.max_frames, total)
        return np.arange(count) * total // count

    def resized(self, count: int, height: int, width: int) -> tuple[int, int]:
        return within_budget(height, width, self.frames.square, self.max_soft_tokens)

    def values(self) -> dict[str, Any]:
        """Return the content of `video_preprocessor_config.json`."""
        values = super().values()
        names = ("do_convert_rgb", "do_resize", "do_rescale", "resample", "rescale_factor")
        return {name: values[name] for name in names if name in values} | {
            "video_processor_type": f"{_FAMILIES[0]}VideoProcessor",
            **published_pixels(self.frames),
            "do_sample_frames": True,
            "num_frames": self.max_frames,
            "max_soft_tokens": self.max_soft_tokens,
            "patch_size": self.patch_size,
            "pooling_kernel_size": self.merge_size,
        }

    @classmethod
    def beside(cls, images: SoftTokenProcessor) -> "SoftTokenVideoProcessor":
        """Return the processor of a model that has a file for its images alone."""
        return cls(
            patch_size=images.patch_size, merge_size=images.merge_size,
            rescale_factor=images.rescale_factor, mean=images.mean, std=images.std,
        )  # fmt: skip

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "SoftTokenVideoProcessor":
        """Return the processor described by a `video_preprocessor_config.json`.

        Raises:
            ValueError: if the class is unknown or a value is out of range.
        """
        named = values.get("video_processor_type") or f"{_FAMILIES[0]}VideoProcessor"
        if str(named).removesuffix("VideoProcessor") not in _FAMILIES:
            raise ValueError(
                f"Videos for {shorten(named)} are not supported, only for "
                f"{', '.join(map(repr, _FAMILIES))}."
            )
        if values.get("fps") is not None or not values.get("do_sample_frames", True):
            raise ValueError(
                "Frames are chosen by `num_frames`: fps must be null and do_sample_frames true, "
                f"received {shorten(values.get('fps'))} and "
                f"{shorten(values.get('do_sample_frames', True))}."
            )
        frames = values.get("num_frames", 32)
        return cls(**soft_token_options(values, 70, normalizes=True), max_frames=frames)


SoftTokenProcessor.video_class = SoftTokenVideoProcessor
