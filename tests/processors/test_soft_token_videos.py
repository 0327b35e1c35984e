"""Frames of videos with a budget of states each, against the processor of Transformers."""

import json

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.processors import SoftTokenProcessor, SoftTokenVideoProcessor, Video
from tests.processors.test_patch_videos import VIDEOS, frames_of

pytestmark = pytest.mark.backend_independent


def theirs_of(**values):
    pytest.importorskip("transformers")
    from tests.processors.published_videos import video_processor

    return video_processor("gemma4", **{"patch_size": 4, "num_frames": 6, **values})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"pooling_kernel_size": 2, "resample": 2, "image_mean": [0.1] * 3, "image_std": [0.4] * 3},
        {"max_soft_tokens": 140, "patch_size": 3, "do_normalize": False, "num_frames": 7},
    ],
)
def test_same_patches(tmp_path, values):
    theirs = theirs_of(**values)
    theirs.save_pretrained(tmp_path)
    processor = SoftTokenVideoProcessor.from_files(str(tmp_path))
    for video in VIDEOS:
        expected = theirs(
            videos=[np.moveaxis(video.content, -1, 1)], return_metadata=True, return_tensors="np",
            video_metadata=[{"fps": video.fps, "total_num_frames": len(video.content)}],
        )  # fmt: skip
        metadata = expected["video_metadata"][0]
        assert processor.chosen(video).numbers.tolist() == list(metadata.frames_indices)
        patches, layout = processor.patches_of(video, "x"), processor.layout(video)
        assert len(patches) == layout.tiles == len(expected["pixel_values_videos"])
        for mine, pixels, places in zip(
            patches, expected["pixel_values_videos"], expected["video_position_ids"], strict=True
        ):
            real = places[:, 0] >= 0
            order = np.lexsort(mine.positions.T[::-1])
            assert np.array_equal(mine.positions[order][:, ::-1], places[real])
            # Theirs fuses the factor of the pixels with their deviation.
            assert np.abs(mine.values[order] - 2 * (pixels[real] - 0.5)).max() <= 1e-5
        count = expected["num_soft_tokens_per_video"][0]
        assert [len(run) for run in layout.runs] == [count] * layout.tiles
        times = [f"{int(t // 60):02d}:{int(t % 60):02d}" for t in metadata.timestamps]
        assert layout.text == " ".join(f"{time} <|image>{{image}}<image|>" for time in times)


def test_short_and_long_videos():
    """All frames of a short one, which theirs refuse; minutes; frames without a rate."""
    processor = SoftTokenVideoProcessor(12, patch_size=4, merge_size=2, max_frames=4)
    assert processor.layout(Video(frames_of(3, 9, 9), 1.0)).tiles == 3
    text = processor.layout(Video(frames_of(5, 9, 9), 0.02)).text
    assert [part[:5] for part in text.split(" ")[::2]] == ["00:00", "00:50", "01:40", "02:30"]
    assert processor.layout(Video(frames_of(4, 9, 9))).text.startswith("00:00 <|image>")
    with pytest.raises(ValueError, match="has 5 frames, and `max_frames` is 4"):
        processor.layout(Video(frames_of(5, 9, 9)))


def test_files(tmp_path):
    """Beside images in one folder, or in the file of all parts; without a file, the usual one."""
    videos = SoftTokenVideoProcessor(140, patch_size=4, merge_size=2, max_frames=5, std=[0.3] * 3)
    images = SoftTokenProcessor(280, patch_size=4, merge_size=2, videos=videos)
    images.save(str(tmp_path))
    again = kt.ImageProcessor.from_files(str(tmp_path)).with_files_of(str(tmp_path))
    assert again.videos.values() == videos.values() and again.values() == images.values()
    whole = {
        "image_processor": json.loads((tmp_path / "preprocessor_config.json").read_text()),
        "video_processor": json.loads((tmp_path / "video_preprocessor_config.json").read_text()),
    }
    (tmp_path / "video_preprocessor_config.json").unlink()
    plain = kt.ImageProcessor.from_files(str(tmp_path)).with_files_of(str(tmp_path))
    assert (plain.videos.max_soft_tokens, plain.videos.max_frames) == (70, 32)
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    both = kt.ImageProcessor.from_files(str(tmp_path)).with_files_of(str(tmp_path))
    assert both.videos.values() == videos.values()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"video_processor_type": "Qwen2VLVideoProcessor"}, "Videos for 'Qwen2VLVideoProcessor'"),
        ({"fps": 2}, "fps must be null"),
        ({"do_sample_frames": False}, "do_sample_frames true"),
        ({"num_frames": 0}, "`max_frames` must be"),
        ({"resample": 0}, "`resample` must be"),
        ({"max_soft_tokens": "70"}, "`max_soft_tokens` must be"),
    ],
)
def test_wrong_files_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        SoftTokenVideoProcessor.from_values(values)


def test_a_video_of_too_many_states():
    processor = SoftTokenVideoProcessor(2**16, patch_size=1, merge_size=1, max_frames=5)
    with pytest.raises(ValueError, match="lower `max_frames` or `max_soft_tokens` of"):
        processor.layout(Video(frames_of(5, 20, 20), 1.0))


def test_wrong_processors_are_refused():
    with pytest.raises(ValueError, match="`videos` must be a SoftTokenVideoProcessor or None"):
        SoftTokenProcessor(videos=kt.processors.PatchVideoProcessor())
