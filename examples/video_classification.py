"""Recognize motions in videos with a small transformer, trained on clips that it draws itself.

python examples/video_classification.py
python examples/video_classification.py --videos clip.mp4,other.mkv

A bright disc moves over a noisy background: to the right, down, or around a circle, from any place
and at any speed. One frame does not show which: only the order of several does. A ViT over tubes,
patches over two frames each (Arnab et al. 2021; Tong et al. 2022), is trained to tell the motions
apart, and is scored on clips that it has not seen. --videos are classified afterwards.
"""

from runs import start

import keras_transformer as kt

import keras
import numpy as np
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_list("videos", [], "Paths of videos to classify.")
flags.DEFINE_string("output", "motions", "Folder of the preset.")
flags.DEFINE_integer("clips", 900, "Clips to train on.", lower_bound=3)
flags.DEFINE_integer("unseen", 300, "Clips to score on.", lower_bound=3)
flags.DEFINE_integer("epochs", 8, "Passes over the clips.", lower_bound=1)
flags.DEFINE_integer("width", 64, "Width of the states.", lower_bound=8)
flags.DEFINE_integer("seed", 1, "Seed of the clips, the weights and the order.")

MOTIONS = ("right", "down", "around")
FRAMES, SIDE = 8, 32


def draw(motion: str, random: np.random.Generator) -> np.ndarray:
    """Return a clip of a disc, uint8 `(frames, height, width, 3)`."""
    times = np.arange(FRAMES)[:, None]
    speed, size = random.uniform(1.5, 3.0), random.uniform(3, 5)
    if motion == "around":
        angles = random.uniform(0, 2 * np.pi) + times * speed / 6
        path = random.uniform(12, 20, 2) + 8 * np.concatenate([np.sin(angles), np.cos(angles)], 1)
    else:
        along = np.array([0, 1] if motion == "right" else [1, 0])
        first = random.uniform(6, SIDE - 6, 2) * (1 - along) + random.uniform(0, 10) * along
        path = first + times * speed * along
    rows, columns = np.mgrid[:SIDE, :SIDE]
    places = np.hypot(rows - path[:, 0, None, None], columns - path[:, 1, None, None])
    light = 60 + 160 * np.clip(size - places, 0, 1)
    noise = random.normal(scale=20, size=light.shape)
    frames = np.clip(light + noise, 0, 255).astype("uint8")
    return np.repeat(frames[..., None], 3, axis=-1)


def clips(count: int, seed: int) -> tuple[np.ndarray, list[str]]:
    """Return clips of each motion by turns, and their labels."""
    random = np.random.default_rng(seed)
    labels = [MOTIONS[i % len(MOTIONS)] for i in range(count)]
    return np.stack([draw(label, random) for label in labels]), labels


def make_classifier() -> kt.VideoClassifier:
    """Build a model without weights of others."""
    config = kt.TransformerConfig(
        kind="encoder",
        vocabulary_size=0,
        hidden_dim=FLAGS.width,
        num_layers=2,
        num_heads=4,
        intermediate_dim=2 * FLAGS.width,
        position="sinusoidal",
        normalize_first=True,
        stem={"kind": "tubes", "num_frames": FRAMES, "frame_size": (SIDE, SIDE), "patch_size": 8},
    )
    processor = kt.VideoProcessor(size=(SIDE, SIDE), crop_size=None)
    return kt.VideoClassifier(kt.models.Encoder(config), processor, labels=list(MOTIONS))


def main(_) -> None:
    """Train, score, save, and classify the videos of `--videos`."""
    keras.utils.set_random_seed(FLAGS.seed)
    classifier = make_classifier()
    videos, labels = clips(FLAGS.clips, FLAGS.seed)
    classifier.compile(keras.optimizers.Adam(1e-3), weighted_metrics=["accuracy"])
    classifier.fit(videos, labels, epochs=FLAGS.epochs, batch_size=32, verbose=2)

    unseen, wanted = clips(FLAGS.unseen, FLAGS.seed + 1)
    named = [label for label, _ in classifier.classify(unseen)]
    share = np.mean([a == b for a, b in zip(named, wanted, strict=True)])
    print(f"accuracy of {len(wanted)} unseen clips: {share:.1%}")
    classifier.save_to_preset(FLAGS.output)
    print(f"The classifier is in {FLAGS.output}.")
    for path in FLAGS.videos:
        label, probability = classifier.classify(path)
        print(f"{path}  {label} {probability:.1%}")


if __name__ == "__main__":
    start(main)
