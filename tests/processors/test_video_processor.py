"""Reading of videos, against Transformers' processors, and hostile files."""

import base64
import io
import json
import os
import socket
import struct
import tracemalloc
import wave

import numpy as np
import pytest
from PIL import Image

import keras_transformer as kt
from keras_transformer.processors import video_files
from keras_transformer.processors.video_files import read_frames
from tests.tasks.videos import encoded

pytest.importorskip("av")
pytestmark = pytest.mark.backend_independent


def steps(frames=20, height=24, width=32):
    """A video each of whose frames has one value, that of its number."""
    levels = np.arange(frames) * 10 % 250
    return np.broadcast_to(levels[:, None, None, None], (frames, height, width, 3)).astype("uint8")


def spread(count):
    return lambda total, place: np.arange(count) * total // count


def levels(given, count=5):
    """The numbers of the frames that are read of `steps`."""
    found = read_frames(given, spread(count), lambda frame, place: frame, "x[0]")
    return [round(float(np.mean(frame)) / 10) for frame in found]


@pytest.mark.parametrize("shape", [(5, 30, 44, 3), (4, 61, 23, 3)])
def test_frames_are_those_of_transformers(shape):
    transformers = pytest.importorskip("transformers")
    from transformers.models.videomae.image_processing_pil_videomae import VideoMAEImageProcessorPil

    video = np.random.default_rng(0).integers(0, 256, shape).astype("uint8")
    sizes = {"size": {"shortest_edge": 20}, "crop_size": {"height": 16, "width": 16}}
    means = {"image_mean": [0.4, 0.5, 0.6]}
    for theirs, values in (
        (VideoMAEImageProcessorPil(**sizes, **means), means),
        (transformers.VivitImageProcessor(**sizes), {}),
        (transformers.VivitImageProcessor(**sizes, offset=False, do_normalize=False),
         {"offset": False, "do_normalize": False}),
    ):  # fmt: skip
        expected = np.asarray(theirs(list(video))["pixel_values"])
        named = type(theirs).__name__
        processor = kt.VideoProcessor.from_values(
            {"image_processor_type": named, **sizes, **values}
        )
        found = processor([video], num_frames=len(video))
        assert np.abs(np.moveaxis(found, -1, 2) - expected).max() <= 1e-5


def test_numbers_of_frames_are_those_of_transformers():
    from transformers.video_utils import VideoMetadata, default_sample_indices_fn

    processor = kt.VideoProcessor()
    for total, count in ((16, 16), (17, 16), (100, 16), (31, 8)):
        expected = default_sample_indices_fn(VideoMetadata(total_num_frames=total), count)
        assert (processor.frame_indices(total, count) == expected).all()
    with pytest.raises(ValueError, match=r"`x\[3\]` has 5 frames, and 16 are read"):
        processor.frame_indices(5, 16, "x[3]")
    # The middle, as in the example of VideoMAE with a random start.
    stepped = kt.VideoProcessor(frame_step=4)
    expected = np.clip(np.linspace(18, 18 + 64, 16), 18, 18 + 64 - 1).astype("int64")
    assert (stepped.frame_indices(100, 16) == expected).all()
    assert (stepped.frame_indices(63, 16) == processor.frame_indices(63, 16)).all()


@pytest.mark.parametrize(
    ("codec", "form", "pixels"),
    [
        ("libx264", "mp4", "yuv420p"),
        ("libvpx", "webm", "yuv420p"),
        ("mjpeg", "avi", "yuvj420p"),
        ("mpeg4", "mpegts", "yuv420p"),
        ("gif", "gif", "rgb8"),
    ],
)
def test_formats(codec, form, pixels):
    assert levels(encoded(steps(), codec, form, pixels)) == [0, 4, 8, 12, 16]


def test_what_a_user_has(tmp_path):
    video = steps()
    content = encoded(video)
    path = tmp_path / "clip.mkv"
    path.write_bytes(content)
    url = f"data:video/x-matroska;base64,{base64.b64encode(content).decode()}"
    pictures = [Image.fromarray(frame) for frame in video]
    arrays = (video, list(video), pictures, video[..., 0], (video / 255).astype("float32"))
    files = (content, path, str(path), url, {"path": str(path)}, {"bytes": content})
    for given in (*files, *arrays):
        assert levels(given) == [0, 4, 8, 12, 16]
        assert kt.VideoProcessor.is_one(given)
    for given in ([video], [pictures, pictures], [str(path)], [], np.zeros((2, 4, 8, 8, 3))):
        assert not kt.VideoProcessor.is_one(given)
    processor = kt.VideoProcessor(8, None, num_frames=3)
    assert processor([content, pictures, video]).shape == (3, 3, 8, 8, 3)
    assert processor(np.stack([video, video])).shape == (2, 3, 8, 8, 3)
    folder = tmp_path / "classes"
    for name in ("b", "a"):
        (folder / name).mkdir(parents=True)
        (folder / name / "1.mkv").write_bytes(content)
        (folder / name / "notes.txt").write_text("")
    paths, labels = kt.processors.video_folder(folder)
    assert labels == ["a", "b"] and levels(paths[1]) == [0, 4, 8, 12, 16]


def test_odd_sizes_and_frames_that_differ():
    found = read_frames(encoded(steps(6, 25, 33)), spread(2), lambda frame, place: frame)
    assert [frame.shape for frame in found] == [(25, 33, 3)] * 2
    mixed = [np.zeros((8, 8, 3), "uint8"), np.zeros((9, 8, 3), "uint8")]
    with pytest.raises(ValueError, match="The frames have 2 sizes"):
        kt.VideoProcessor(None, None)([mixed], num_frames=2)


def test_phones_turn_their_videos():
    """The display matrix in the header of a track, as phones write it."""
    video = np.zeros((4, 16, 32, 3), "uint8")
    video[:, :, 24:] = 250  # bright at the right
    content = encoded(video, "mpeg4", "mp4")
    upright = read_frames(content, spread(1), lambda frame, place: frame)[0]
    assert upright.shape == (16, 32, 3) and upright[:, 28].mean() > 200
    one = 1 << 16
    plain = struct.pack(">9i", one, 0, 0, 0, one, 0, 0, 0, 1 << 30)
    clockwise = struct.pack(">9i", 0, one, 0, -one, 0, 0, 16 * one, 0, 1 << 30)
    place = content.index(plain, content.index(b"tkhd"))
    turned = content[:place] + clockwise + content[place + len(plain) :]
    found = read_frames(turned, spread(1), lambda frame, place: frame)[0]
    assert found.shape == (32, 16, 3) and found[28].mean() > 200 and found[4].mean() < 50


def test_memory_is_that_of_the_frames_taken(tmp_path):
    path = tmp_path / "long.mp4"
    path.write_bytes(encoded(np.repeat(steps(1, 240, 320), 120, axis=0), "mpeg4", "mp4"))
    processor = kt.VideoProcessor(16, None, num_frames=4)
    processor([str(path)])
    tracemalloc.start()
    processor([str(path)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 240 * 320 * 3  # all of it has 120 frames


def recording():
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(8000)
        writer.writeframes(bytes(8000))
    return file.getvalue()


def test_files_that_are_no_videos(tmp_path):
    for name, content in (
        ("empty.mp4", b""),
        ("text.mp4", b"These are words.\n" * 40),
        ("sound.mp4", recording()),
        ("begun.mp4", encoded(steps(), "mpeg4", "mp4")[:300]),
        ("damaged.mkv", b"\x1aE\xdf\xa3" + bytes(200)),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"`x\[0\]`, the file `.*{name}` (cannot be|has no)"):
            levels(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        levels(str(tmp_path / "none.mp4"))
    with pytest.raises(ValueError, match="is a folder"):
        levels(str(tmp_path))
    with pytest.raises(ValueError, match="must be a video: a path, bytes, an array"):
        levels(7)
    with pytest.raises(ValueError, match=r"must be of shape \(frames, height, width, channels\)"):
        levels(np.zeros((4, 4), "uint8"))
    with pytest.raises(ValueError, match="must be of shape"):
        levels(np.zeros((20, 30, 3), "uint8"))  # one image
    for shape, axis in (((3, 20, 8, 8), 0), ((20, 3, 8, 8), 1)):
        with pytest.raises(ValueError, match=rf"first: give `np.moveaxis\(video, {axis}, -1\)`"):
            levels(np.zeros(shape, "uint8"))
    with pytest.raises(ValueError, match="a list of frames, which is one video. Of grey frames"):
        kt.VideoProcessor().rows([np.zeros((20, 30, 40), "uint8")])


def test_a_codec_that_is_missing():
    content = encoded(steps()).replace(b"V_FFV1", b"V_NONE")
    with pytest.raises(
        ValueError, match=r"`x\[0\]` is compressed in a way that the installed PyAV"
    ):
        levels(content)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(ValueError, match="pipe"):
        levels(tmp_path / "pipe.mp4")


def test_a_cut_file_is_read_as_far_as_it_goes():
    content = encoded(steps(), "ffv1", "matroska")
    half = content[: len(content) // 2]
    found = levels(half)
    assert found == sorted(found) and 0 < found[-1] < 16
    with pytest.raises(ValueError, match=r"`x\[0\]` has \d frames, and 16 are read"):
        kt.VideoProcessor()([half])


def test_too_much(monkeypatch):
    content = encoded(steps())
    for name, value, message in (
        ("MOST_FRAMES", 19, "has more than 19 frames"),
        ("MOST_PIXELS", 500, "cannot be read as a video.* with frames of at most 500 pixels"),
        ("MOST_DECODED", 17 * 700, "they may have 700 pixels"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(video_files, name, value)
            with pytest.raises(ValueError, match=message):
                levels(content)


@pytest.mark.parametrize(
    "given", ["http://127.0.0.1:{}/a.mp4", "tcp://127.0.0.1:{}", "rtsp://127.0.0.1:{}/a"]
)
def test_an_address_is_not_opened(given):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        with pytest.raises((ValueError, FileNotFoundError)):
            levels(given.format(server.getsockname()[1]))
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_file_opens_nothing_else(tmp_path):
    """Playlists, which name addresses and further files: FFmpeg opens those of an HLS file."""
    import av

    (tmp_path / "other.ts").write_bytes(encoded(steps(), "mpeg4", "mpegts"))
    head = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{}\n#EXT-X-ENDLIST\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/a.ts"
        for name, content in (
            ("a.mp4", head.format(address)),
            ("b.mp4", head.format(tmp_path / "other.ts")),
            ("c.mp4", head.format("other.ts")),
            ("a.m3u8", head.format(address)),
            ("d.mp4", f"ffconcat version 1.0\nfile '{tmp_path / 'other.ts'}'\n"),
            ("e.mp4", "ffconcat version 1.0\nfile other.ts\n"),
            ("f.mp4", f"ffconcat version 1.0\nfile '{address}'\n"),
        ):
            path = tmp_path / name
            path.write_text(content)
            for given in (path, content.encode()):
                with pytest.raises(ValueError, match="cannot be read as a video"):
                    levels(given)
        with pytest.raises(TimeoutError):
            server.accept()
    # What the list of formats is for: the same file, opened without it, is read.
    with av.open(io.BytesIO((tmp_path / "d.mp4").read_bytes()), options={"safe": "0"}) as opened:
        assert opened.format.name == "concat" and opened.streams.video


def test_the_file_of_a_processor(tmp_path):
    for processor in (
        kt.VideoProcessor(),
        kt.VideoProcessor((20, 30), None, 3, None, None, None, num_frames=8, frame_step=2),
        kt.VideoProcessor({"shortest_edge": 256}, 224, rescale_factor=1 / 127.5, offset=True,
                          family="Vivit"),
    ):  # fmt: skip
        processor.save(tmp_path)
        again = kt.VideoProcessor.from_files(tmp_path)
        assert again.values() == processor.values()
    theirs = {"video_processor": {"video_processor_type": "VivitVideoProcessor", "size": 8}}
    (tmp_path / "processor_config.json").write_text(json.dumps(theirs))
    read = kt.VideoProcessor.from_files(tmp_path)
    assert read.family == "Vivit" and read.offset and read.frames.size == {"shortest_edge": 8}
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "preprocessor_config.json").rename(tmp_path / "video_preprocessor_config.json")
    assert kt.VideoProcessor.from_files(tmp_path).values() == processor.values()


def test_wrong_values():
    for values, message in (
        ({"num_frames": 0}, "`num_frames` must be"),
        ({"frame_step": 1.5}, "`frame_step` must be"),
        ({"size": "large"}, "`size` must be"),
        ({"offset": 1}, "`offset` must be"),
    ):
        with pytest.raises(ValueError, match=message):
            kt.VideoProcessor(**values)
    with pytest.raises(ValueError, match="Videos for 'ViTImageProcessor' are not supported"):
        kt.VideoProcessor.from_values({"image_processor_type": "ViTImageProcessor"})
