"""Small models of sound, and recordings of two classes that tell them apart."""

import numpy as np

import keras_transformer as kt
from tests.tasks import images

LABELS = ["low", "high"]
RATE = 8000


def config(stem, **values):
    return kt.TransformerConfig(
        **{
            "kind": "encoder",
            "vocabulary_size": 0,
            "hidden_dim": 16,
            "num_layers": 1,
            "num_heads": 2,
            "intermediate_dim": 24,
            "position": "learned",
            "normalize_first": True,
            "stem": stem,
            **values,
        }
    )


def frames(**values):
    return config({"kind": "frames", "num_bins": 12, "num_frames": 26, **values})


def transcripts(**values):
    """An encoder of frames and a decoder of text."""
    stem = {"kind": "frames", "num_bins": 12, "num_frames": 26}
    encoder = {"vocabulary_size": 0, "stem": stem}
    return images.captions(**{"encoder": encoder, "max_sequence_length": 12} | values)


def spectrogram(**values):
    """Patches of a spectrogram, as of the Audio Spectrogram Transformer."""
    stem = {"kind": "patches", "image_size": (12, 26), "patch_size": 4, "stride": 3}
    return config({**stem, "num_channels": 1, "distillation_token": True, **values})


def folded(**values):
    """Patches of a spectrogram that is folded to an image, as of CLAP."""
    stem = {"kind": "folded_frames", "num_bins": 8, "image_size": (16, 12), "patch_size": 4}
    return config({**stem, **values})


def waveform(**values):
    """Convolutions over samples, as of wav2vec 2.0."""
    stem = {"kind": "waveform", "filters": [6, 5, 4], "kernel_sizes": [10, 3, 2]}
    stem |= {"strides": [5, 2, 2], "position_size": 8, "position_groups": 4, **values}
    first = stem.get("norm") == "layer"
    norms = {"normalize_first": first, "embedding_normalization": not first}
    return config(stem, position="none", **norms)


def samples(**values):
    """An encoder of samples and a decoder of text, as of Moonshine."""
    stem = {"kind": "waveform", "filters": [12, 20, 16], "kernel_sizes": [27, 7, 3]}
    stem |= {"strides": [16, 3, 2], "norm": "recording", "first_activation": "tanh"}
    stem |= {"use_bias": True, "first_bias": False, "projection_norm": False}
    stem |= {"projection": False, "position_size": 0}
    encoder = {"vocabulary_size": 0, "stem": stem}
    rotary = {"position": "rotary", "rotary_dim": 6, "rotary_interleaved": True}
    return images.captions(**{"encoder": encoder, **rotary} | values)


def processor(**values):
    return kt.AudioProcessor(
        **{"sampling_rate": RATE, "length": 26, "num_bins": 12, "window_length": 200}
        | {"hop_length": 80}
        | values
    )


def classifier(backbone_config=None, dtype=None, **options):
    backbone = kt.models.Encoder(backbone_config or frames(), dtype=dtype)
    if "num_classes" not in options:
        options.setdefault("labels", LABELS)
    return kt.AudioClassifier(backbone, processor(), **options)


def recordings(count=16, seed=0):
    """Tones of several lengths, low and high by turns, and their labels."""
    random = np.random.default_rng(seed)
    made = []
    for i in range(count):
        samples = np.arange(1500 + 100 * (i % 5))
        pitch = random.uniform(0.1, 0.2) + 1.5 * (i % 2)
        made.append((0.5 * np.sin(pitch * samples)).astype("float32"))
    return made, [LABELS[i % 2] for i in range(count)]
