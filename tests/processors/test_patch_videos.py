"""Videos as patches, against the processors of Transformers."""

import json

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.processors import PatchSequenceProcessor, PatchVideoProcessor, Video
from keras_transformer.processors.resampling import resampled
from keras_transformer.processors.video_files import video_shape
from tests.tasks.videos import encoded

pytestmark = pytest.mark.backend_independent

FAMILIES = ("qwen2_vl", "qwen3_vl")
BOUNDS = {
    "qwen2_vl": {"shortest_edge": 300, "longest_edge": 1200},
    "qwen3_vl": {"shortest_edge": 2000, "longest_edge": 9000},
}


def frames_of(count, height, width, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, height, width, 3), dtype="uint8")


# Odd numbers of frames, odd sizes, sizes that are made larger and smaller.
VIDEOS = (
    Video(frames_of(11, 23, 31), 5.0),
    Video(frames_of(7, 47, 29, 1), 2.5),
    Video(frames_of(30, 7, 90, 2), 10.0),
    Video(frames_of(90, 20, 20, 3), 8.0),
)


def theirs_of(family, **values):
    pytest.importorskip("transformers")
    from tests.processors.published_videos import video_processor

    values = {"size": BOUNDS[family], "patch_size": 4, "fps": 2, "max_frames": 20, **values}
    return video_processor(family, do_sample_frames=True, **values)


def ours_of(theirs, folder):
    theirs.save_pretrained(folder)
    return PatchVideoProcessor.from_files(str(folder))


def expected_of(theirs, video, **options):
    given = np.moveaxis(video.content, -1, 1)
    metadata = [{"fps": video.fps, "total_num_frames": len(given)}]
    found = theirs(
        videos=[given], video_metadata=metadata, return_metadata=True, return_tensors="np",
        **options,
    )  # fmt: skip
    return found["pixel_values_videos"], found["video_grid_thw"][0], found["video_metadata"][0]


def values_of(patches, size):
    """The patches of all pairs of frames in the order of Transformers: channels first."""
    values = np.concatenate([each.values for each in patches])
    shape = (len(values), 2, size, size, 3)
    return values.reshape(shape).transpose(0, 4, 1, 2, 3).reshape(len(values), -1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"cap_pixels_per_frame": True, "max_video_tokens": 8},
        {"resample": 2, "patch_size": 5, "merge_size": 3, "image_std": [0.3, 0.2, 0.1]},
    ],
)
def test_same_patches(tmp_path, family, values):
    theirs = theirs_of(family, **values)
    processor = ours_of(theirs, tmp_path)
    for video in VIDEOS:
        expected, grid, metadata = expected_of(theirs, video)
        assert processor.chosen(video).numbers.tolist() == list(metadata.frames_indices)
        patches, layout = processor.patches_of(video, "x"), processor.layout(video)
        square = processor.merge_size
        assert grid.tolist() == [layout.tiles, *(square * n for n in patches[0].grid)]
        assert len(layout.states) * square**2 == len(expected)
        assert np.abs(values_of(patches, processor.patch_size) - expected).max() <= 1e-5
        if family == "qwen2_vl":
            assert layout.seconds == pytest.approx(2 / metadata.sampled_fps, abs=1e-12)
            assert len(layout.runs) == 1 and layout.text is None


@pytest.mark.parametrize("family", FAMILIES)
def test_one_frame_is_repeated(tmp_path, family):
    theirs = theirs_of(family)
    processor, video = ours_of(theirs, tmp_path), Video(frames_of(1, 23, 31), 5.0)
    # Theirs refuse to choose of one frame, or to take one alone.
    twice = Video(np.repeat(video.content, 2, axis=0), 5.0)
    expected, grid, _ = expected_of(theirs, twice, do_sample_frames=False)
    patches = processor.patches_of(video, "x")
    assert grid.tolist() == [1, *(2 * n for n in patches[0].grid)]
    assert np.abs(values_of(patches, 4) - expected).max() <= 1e-5
    assert processor.layout(video).tiles == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_same_frames_are_chosen(tmp_path, family):
    theirs = theirs_of(family, min_frames=3, max_frames=41)
    processor = ours_of(theirs, tmp_path)
    from transformers.video_utils import VideoMetadata

    random = np.random.default_rng(0)
    for total in (2, 3, 4, 5, *random.integers(6, 5000, 200).tolist()):
        fps = float(random.choice([1, 12.5, 23.976, 24, 25, 29.97, 30, 60, random.uniform(1, 99)]))
        metadata = VideoMetadata(total_num_frames=total, fps=fps)
        expected = [int(i) for i in theirs.sample_frames(metadata)]
        found = processor.frame_indices(total, fps).tolist()
        assert found == [min(i, total - 1) for i in expected[: len(found)]]
        assert len(expected) - len(found) in (0, int(family == "qwen2_vl"))  # one behind the end


def test_timestamps(tmp_path):
    """The mean of the first and the last frame of a pair, as their processor writes it."""
    processor = ours_of(theirs_of("qwen3_vl"), tmp_path)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Qwen3VLProcessor._calculate_timestamps
    for video in VIDEOS:
        layout = processor.layout(video)
        times = theirs(None, processor.chosen(video).numbers, video.fps, 2)
        assert layout.text == "".join(
            f"<{time:.1f} seconds><|vision_start|>{{image}}<|vision_end|>" for time in times
        )
        assert len(layout.runs) == layout.tiles == len(times) and layout.seconds is None


def test_same_pixels_as_pytorch():
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    for height, width, rows, columns in random.integers(1, 70, (40, 4)).tolist():
        frame = random.integers(0, 256, (height, width, 3), dtype="uint8")
        given = torch.from_numpy(frame).permute(2, 0, 1)[None]
        for number, mode in ((2, "bilinear"), (3, "bicubic")):
            expected = torch.nn.functional.interpolate(
                given, size=(rows, columns), mode=mode, antialias=True
            )
            found = resampled(frame, rows, columns, number)
            assert np.array_equal(found, expected[0].permute(1, 2, 0).numpy())


def test_files(tmp_path):
    """The bounds, the rate and the kind are in a file of their own, or in that of all parts."""
    videos = PatchVideoProcessor(64, 9000, patch_size=4, fps=1.5, max_frames=9, timestamps=True)
    images = PatchSequenceProcessor(64, 1024, patch_size=4, videos=videos)
    images.save(str(tmp_path))
    again = kt.ImageProcessor.from_files(str(tmp_path))
    assert again.values() == images.values() and again.videos.values() == videos.values()
    whole = {"image_processor": images.values(), "video_processor": videos.values()}
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "processor_config.json").write_text(json.dumps(whole))
    again = kt.ImageProcessor.from_files(str(tmp_path / "all"))
    assert again.values() == images.values() and again.videos.values() == videos.values()
    (tmp_path / "video_preprocessor_config.json").unlink()
    beside = kt.ImageProcessor.from_files(str(tmp_path)).videos
    assert beside.capped and beside.patch_size == 4 and beside.max_pixels == 768 * 8 * 8


def test_forms_of_videos(tmp_path):
    """Files, bytes, arrays and lists of images of one video give the same."""
    pytest.importorskip("av")
    frames = np.repeat(np.arange(12, dtype="uint8")[:, None, None, None] * 20, 24, axis=1)
    frames = np.broadcast_to(frames.repeat(32, axis=2), (12, 24, 32, 3))
    path = tmp_path / "steps.mp4"
    path.write_bytes(encoded(frames, "mpeg4", "mp4"))
    shape = video_shape(str(path))
    assert shape[:3] == (12, 24, 32)
    processor = PatchVideoProcessor(64, 1024, patch_size=4, fps=shape.fps / 3)
    decoded = kt.VideoProcessor(None, None, rescale_factor=None, mean=None, std=None, num_frames=12)
    arrays = decoded([str(path)])[0].astype("uint8")
    forms = [Video(str(path)), Video(path), Video(path.read_bytes()), Video({"path": str(path)})]
    forms += [Video(arrays, shape.fps), Video(list(arrays), shape.fps)]
    expected = processor.patches_of(forms[0], "x")
    assert len(expected) == 2
    for form in forms[1:]:
        assert processor.layout(form).tiles == 2
        for found, each in zip(processor.patches_of(form, "x"), expected, strict=True):
            assert np.array_equal(found.values, each.values)
    chosen = processor.chosen(Video(arrays[:5]))  # no rate: they are chosen already
    assert chosen.numbers.tolist() == [0, 1, 2, 3, 4] and chosen.rate == processor.fps
    with pytest.raises(ValueError, match="is a file, which states its frames per second"):
        processor.layout(Video(str(path), 3.0))


@pytest.mark.parametrize(
    ("video", "message"),
    [
        (Video(np.zeros((0, 8, 8, 3), "uint8"), 2), r"must be of shape \(frames, height"),
        (Video([], 2), "must be a video"),
        (Video(b"no video", 2), "cannot be read as a video"),
        (Video(np.zeros((21, 8, 8, 3), "uint8")), "has 21 frames, and `max_frames` is 20"),
        (Video(np.zeros((4, 1, 500, 3), "uint8"), 2), "more than 200 times as long as wide"),
        (Video([np.zeros((8, 8, 3)), np.zeros((8, 9, 3))], 2), "has a frame of 8 x 9 pixels"),
    ],
)
def test_wrong_videos_are_refused(video, message):
    processor = PatchVideoProcessor(64, 1024, patch_size=4, max_frames=20)
    with pytest.raises(ValueError, match=message):
        processor.patches_of(video, "x")


def test_too_much_is_refused_before_it_is_read():
    processor = PatchVideoProcessor(64, 2**24, patch_size=4, fps=30)
    frames = np.broadcast_to(np.zeros((1, 1, 1, 3), "uint8"), (90, 2000, 2000, 3))  # of no memory
    with pytest.raises(ValueError, match="would be read as 90 frames of 2,000 x 2,000 pixels"):
        processor.layout(Video(frames, 30))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fps": 0}, "`fps` must be"),
        ({"min_frames": 9, "max_frames": 8}, "`max_frames` must be"),
        ({"resample": 1}, "`resample` must be 2"),
        ({"max_pixels": 10}, "`max_pixels` must be at least"),
        ({"timestamps": 1}, "`timestamps` must be"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PatchVideoProcessor(**options)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"video_processor_type": "LlavaVideoProcessor"}, "are not supported, only for 'Qwen2VL'"),
        ({"num_frames": 8}, "num_frames=8 is not supported"),
        ({"do_resize": False}, "do_resize be true"),
        ({"size": 3}, "must hold 'shortest_edge'"),
        ({"max_frames": 10**9}, "`max_frames` must be"),
        ({"size": {"shortest_edge": 1, "longest_edge": 10**12}}, "`max_pixels` must be"),
        ({"patch_size": 10**9}, "`patch_size` must be"),
    ],
)
def test_wrong_files_are_refused(tmp_path, values, message):
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=message):
        PatchVideoProcessor.from_files(str(tmp_path))
