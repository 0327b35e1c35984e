"""`VideoProcessor`: converts videos to arrays of frames, as published models expect them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.processors.image import ImageProcessor
from keras_transformer.processors.media import FILE, MediaProcessor
from keras_transformer.processors.video_files import is_one_video, read_frames
from keras_transformer.support.checking import check_bool, check_int, shorten

_BILINEAR, _HALF = 2, ((0.5,) * 3, (0.5,) * 3)
_BICUBIC, _CLIP = 3, ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


class _Usual(NamedTuple):
    """Values of a Transformers class that a file may leave out."""

    size: dict[str, int]
    factor: float = 1 / 255
    offset: bool = False
    crop: bool = True
    resample: int = _BILINEAR
    normalize: bool = True
    normal: tuple = _HALF  # mean and deviation of a channel


# By the prefix of the class. VideoPrism's processor has another class's, whose pixels it leaves as
# they are.
_DEFAULTS = {
    "VideoMAE": _Usual({"shortest_edge": 224}),
    "Vivit": _Usual({"shortest_edge": 256}, factor=1 / 127.5, offset=True),
    "VideoPrism": _Usual(
        {"height": 288, "width": 288}, crop=False, resample=_BICUBIC, normalize=False, normal=_CLIP
    ),
}
_CLASSES = {"VideoPrism": "LlavaOnevision"}
_USUAL = 16  # frames outside of a task


class VideoProcessor(MediaProcessor):
    """Convert videos to float32 arrays: choose frames, and resize, crop and normalize each of them.

    Frames are decoded one after another, and only those that are taken are kept, resized.

    The options are the values of `preprocessor_config.json`, in which published models describe
    their inputs, and how frames are chosen; `save` writes the same file.

    Args:
        size, crop_size, resample, rescale_factor, mean, std: of each frame, as in
            `ImageProcessor`.
        offset: bool, subtract 1 from rescaled pixels (ViViT).
        num_frames: int, number of frames taken of each video. None takes as many as the model
            reads, or 16 outside of a task.
        frame_step: int, take every n-th frame of the middle of a video, or frames that are spread
            over all of it if it is shorter. None always spreads them.
        family: str, prefix of the Transformers class that the file names, `"VideoMAE"`, `"Vivit"`
            or `"VideoPrism"`.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    processor = kt.VideoProcessor(size=32, crop_size=None, num_frames=4)
    video = np.zeros((10, 40, 60, 3), "uint8")  # or a path
    assert processor([video, video]).shape == (2, 4, 32, 32, 3)
    assert list(processor.frame_indices(10, 4)) == [0, 2, 5, 7]
    ```

    Source: Tong et al. 2022, "VideoMAE", section 4.1, every second or fourth frame; Arnab et al.
    2021, "ViViT", section 4.1.
    """

    kind = "video processor"
    raw = "videos"
    reads_arrays = ("videos",)
    part = "video_processor"
    unit = "video"
    feature = "Video"
    column_names = ("video", "videos", "clip", "video_path", "path", "file", "file_name")
    files = (FILE, "video_preprocessor_config.json", "processor_config.json")

    def __init__(
        self,
        size: int | Sequence | Mapping | None = _DEFAULTS["VideoMAE"].size,
        crop_size: int | Sequence | Mapping | None = 224,
        resample: int = _BILINEAR,
        rescale_factor: float | None = 1 / 255,
        mean: Sequence[float] | None = _HALF[0],
        std: Sequence[float] | None = _HALF[1],
        offset: bool = False,
        num_frames: int | None = None,
        frame_step: int | None = None,
        family: str = "VideoMAE",
    ):
        self.frames = ImageProcessor(size, crop_size, resample, rescale_factor, mean, std)
        self.offset = check_bool("offset", offset)
        self.num_frames = check_int("num_frames", num_frames, 1, 2**15, none=True)
        self.frame_step = check_int("frame_step", frame_step, 1, 2**15, none=True)
        self.family = family
        if family in _CLASSES and mean is not None:
            raise ValueError(
                f"family={family!r} leaves the pixels between 0 and 1: give mean=None, std=None."
            )

    @staticmethod
    def is_one(x: Any) -> bool:
        """Return whether `x` is a single video."""
        return is_one_video(x)

    def rows(self, x):
        if isinstance(x, (list, tuple)) and is_one_video(x):
            raise ValueError(
                "Give a list of videos, each (frames, height, width, channels), received a list of "
                "frames, which is one video. Of grey frames give `video[..., None]`."
            )
        return super().rows(x)

    def __call__(
        self, videos: Any, places: Sequence[int] | None = None, num_frames: int | None = None
    ) -> np.ndarray:
        """Return the videos as one array.

        Args:
            videos: a list, an array or a column of inputs of `processors.video_files.read_frames`,
                or one such input.
            places: list of int, row numbers of the videos for error messages. Defaults to 0, 1, 2,
                ...
            num_frames: int, number of frames if the processor has none.

        Returns:
            Float32 `(batch, frames, height, width, 3)`.

        Raises:
            ValueError: if an input is not a video, or has too few frames (the message has its row
                number), or if sizes differ and the processor has neither a `size` nor a
                `crop_size`.
        """
        rows = [videos] if is_one_video(videos) else self.rows(videos)
        places = range(len(rows)) if places is None else places
        count = self.num_frames or num_frames or _USUAL

        def choose(total, place):
            return self.frame_indices(total, count, place)

        made = [
            read_frames(row, choose, self.frames.pixels, f"x[{i}]")
            for i, row in zip(places, rows, strict=True)
        ]
        shapes = {frame.shape for row in made for frame in row}
        if len(shapes) > 1:
            raise ValueError(
                f"The frames have {len(shapes)} sizes, such as {sorted(shapes)[:2]}. Give the "
                "processor a `size`, or a `crop_size`."
            )
        return self._normalized(np.stack([np.stack(row) for row in made]))

    def _normalized(self, pixels: np.ndarray) -> np.ndarray:
        """Return pixels from 0 to 255 as the model's float32."""
        array = pixels.astype("float32")
        frames = self.frames
        if frames.rescale_factor is not None:
            array *= np.float32(frames.rescale_factor)
        if self.offset:
            array -= np.float32(1)
        if frames.mean is not None:
            array -= np.asarray(frames.mean, "float32")
            array /= np.asarray(frames.std, "float32")
        return array

    def frame_indices(self, total: int, num_frames: int, place: str = "x") -> np.ndarray:
        """Return the numbers of the frames that are taken of a video.

        Args:
            total: int, number of frames of the video.
            num_frames: int, number of frames to take.
            place: name of the video in error messages.

        Raises:
            ValueError: if the video has fewer frames.
        """
        if total < num_frames:
            raise ValueError(
                f"`{place}` has {total:,} frames, and {num_frames:,} are read. Leave it out, or "
                f"give the processor `num_frames={total}` or less."
            )
        span = num_frames * (self.frame_step or total)
        if span > total or self.frame_step is None:
            return np.arange(num_frames) * total // num_frames
        start = (total - span) // 2
        places = np.linspace(start, start + span, num_frames)
        return np.minimum(places, start + span - 1).astype("int64")

    def check(self, config: TransformerConfig) -> None:
        stem = config.sides[0].stem
        if getattr(stem, "kind", None) != "tubes":
            raise ValueError("A VideoProcessor needs a model whose config has a `stem` of tubes.")

    def values(self) -> dict[str, Any]:
        """Return the content of `preprocessor_config.json`."""
        values = self.frames.values() | {
            "image_processor_type": f"{_CLASSES.get(self.family, self.family)}ImageProcessor",
            "video_processor_type": f"{_CLASSES.get(self.family, self.family)}VideoProcessor",
            "do_sample_frames": False,
        }
        if self.family in _CLASSES:
            values["processor_class"] = f"{self.family}Processor"
        if self.offset or self.family == "Vivit":
            values["offset"] = self.offset
        chosen = {"num_frames": self.num_frames, "frame_step": self.frame_step}
        return values | {name: value for name, value in chosen.items() if value is not None}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "VideoProcessor":
        """Return the processor described by a `preprocessor_config.json`.

        Raises:
            ValueError: if the class is unknown or a value is out of range.
        """
        names = ("video_processor_type", "image_processor_type", "feature_extractor_type")
        named = next((values[name] for name in names if values.get(name)), "VideoMAE")
        owner = str(values.get("processor_class")).removesuffix("Processor")
        family = owner if owner in _CLASSES else str(named)
        for end in ("Pil", "Fast", "VideoProcessor", "ImageProcessor", "FeatureExtractor"):
            family = family.removesuffix(end)
        if family not in _DEFAULTS:
            raise ValueError(
                f"Videos for {shorten(named)} are not supported, only for "
                f"{', '.join(map(repr, _DEFAULTS))}."
            )
        usual = _DEFAULTS[family]
        given = values.get("size", usual.size)
        if isinstance(given, int):  # old files give the shortest edge as a number
            given = {"shortest_edge": given}
        parts = {"resize": True, "rescale": True}
        parts |= {"center_crop": usual.crop, "normalize": usual.normalize}
        has = {  # null is the usual value too
            name: own if (value := values.get(f"do_{name}")) is None else check_bool(name, value)
            for name, own in parts.items()
        }
        if family in _CLASSES:  # whatever the file says: its processor overrides the class's
            has["normalize"] = usual.normalize
        return cls(
            size=given if has["resize"] else None,
            crop_size=values.get("crop_size", 224) if has["center_crop"] else None,
            resample=values.get("resample", usual.resample),
            rescale_factor=values.get("rescale_factor", usual.factor) if has["rescale"] else None,
            mean=values.get("image_mean", usual.normal[0]) if has["normalize"] else None,
            std=values.get("image_std", usual.normal[1]) if has["normalize"] else None,
            offset=check_bool("offset", values.get("offset", usual.offset)),
            num_frames=values.get("num_frames"),
            frame_step=values.get("frame_step"),
            family=family,
        )
