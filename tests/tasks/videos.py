"""Small models of videos, and clips of two classes that tell them apart only in their order."""

import io

import numpy as np

import keras_transformer as kt

LABELS = ["brighter", "darker"]


def config(**values):
    stem = {"kind": "tubes", "num_frames": 4, "frame_size": (8, 12), "patch_size": 4}
    return kt.TransformerConfig(
        kind="encoder",
        vocabulary_size=0,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=24,
        position="sinusoidal",
        normalize_first=True,
        stem={**stem, **values},
    )


def classifier(backbone_config=None, **options):
    if "num_classes" not in options:
        options.setdefault("labels", LABELS)
    backbone = kt.models.Encoder(backbone_config or config())
    return kt.VideoClassifier(backbone, kt.VideoProcessor((8, 12), None), **options)


def clips(count=16, seed=0):
    """Videos of several sizes and lengths, which become brighter and darker by turns."""
    random = np.random.default_rng(seed)
    made = []
    for i in range(count):
        frames = 6 + i % 3
        light = np.linspace(20, 200, frames)[:: 1 - 2 * (i % 2)]
        noise = random.integers(0, 40, (frames, 10 + i % 3, 14, 3))
        made.append((light[:, None, None, None] + noise).astype("uint8"))
    return made, [LABELS[i % 2] for i in range(count)]


def encoded(video, codec="ffv1", form="matroska", pixels="yuv420p"):
    """The bytes of a file of these frames, uint8 `(frames, height, width, 3)`."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=25)
        stream.height, stream.width = video.shape[1:3]
        stream.pix_fmt = pixels
        for frame in video:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return file.getvalue()
