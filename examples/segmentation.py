"""Find the shape in an image, pixel by pixel.

python examples/segmentation.py --output runs/segments

A small vision transformer with the head of DPT (Ranftl et al. 2021) learns which pixels of an image
belong to a circle, a rectangle or a triangle. The masks are made from the images of easy-VQA: the
pixels whose color is not that of the ground. The score is the intersection over union, the mean
over the classes, on images that the model has not seen, and a picture shows some of them.
"""

import pathlib

from runs import start

import keras_transformer as kt
from example_data import SHAPES, captions_of, easy_vqa

import keras
import numpy as np
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_string("output", None, "Folder for the preset. Defaults to none.")
flags.DEFINE_string("picture", "segmentation.png", "Path of the picture of an unseen image.")
flags.DEFINE_integer("layers", 3, "Layers of the transformer.", lower_bound=1)
flags.DEFINE_integer("width", 48, "Width of the states.", lower_bound=16)
flags.DEFINE_integer("epochs", 12, "Passes over the images.", lower_bound=1)
flags.DEFINE_integer("batch_size", 16, "Images in a training step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 3e-3, "Peak, after 10 % of the steps; then decays to 0.")
flags.DEFINE_integer("seen", 480, "Number of images to train on.", lower_bound=1)
flags.DEFINE_integer(
    "held_out", 400, "Number of images, the last ones, to score on.", lower_bound=1
)
flags.DEFINE_integer("seed", 1, "Seed of weights, order and augmentation.")

LABELS = ["ground", *SHAPES]


def mask_of(pixels: np.ndarray, shape: str) -> np.ndarray:
    """Return the class of each pixel: the shape's, or 0 where the color is the ground's."""
    colors, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_counts=True)
    ground, inside = colors[counts.argsort()[::-1][:2]].astype(float)
    from_ground, from_shape = (np.linalg.norm(pixels - c, axis=-1) for c in (ground, inside))
    return np.where(from_shape < from_ground, LABELS.index(shape), 0).astype("uint8")


def make_task() -> kt.ImageSegmenter:
    """Build a small vision transformer with a head for the classes."""
    config = kt.TransformerConfig(
        kind="encoder",
        vocabulary_size=0,
        hidden_dim=FLAGS.width,
        num_layers=FLAGS.layers,
        num_heads=max(FLAGS.width // 16, 1),
        intermediate_dim=2 * FLAGS.width,
        position="learned",
        normalize_first=True,
        activation="gelu",
        stem={"kind": "patches", "image_size": (32, 32), "patch_size": 8},
    )
    decoder = {"channels": [8, 12, 16, 24], "features": 12}
    return kt.ImageSegmenter(
        kt.models.Encoder(config), kt.ImageProcessor(size=32), labels=LABELS, decoder=decoder
    )


def main(_):
    keras.utils.set_random_seed(FLAGS.seed)
    images, questions = easy_vqa()
    told = captions_of(images, questions)  # such as "a red circle"
    numbers = sorted(told)
    pixels = [kt.processors.read_image(images[i]) for i in numbers]
    masks = [mask_of(x, told[i].split()[-1]) for x, i in zip(pixels, numbers, strict=True)]
    new = slice(len(pixels) - FLAGS.held_out, None)
    known = slice(0, min(FLAGS.seen, len(pixels) - FLAGS.held_out))

    task = make_task()
    flips = [keras.layers.RandomFlip()]  # of images and masks alike
    steps = -(-len(pixels[known]) // FLAGS.batch_size) * FLAGS.epochs
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=FLAGS.learning_rate, warmup_steps=steps // 10
    )
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.01, clipnorm=1.0)
    task.compile(optimizer, augmentation=flips)
    print(f"{task.count_params():,} parameters, {len(pixels[known]):,} images", flush=True)
    task.fit(
        pixels[known], masks[known], epochs=FLAGS.epochs, batch_size=FLAGS.batch_size, verbose=2
    )
    scores = task.evaluate(pixels[new], masks[new], verbose=0, return_dict=True)
    count = len(pixels[new])
    print(f"Mean IoU of {count:,} unseen images: {scores['mean_iou']:.2%}")
    result = task.segment(pixels[new][0])
    result.plot().savefig(FLAGS.picture)
    print(f"The picture is in {pathlib.Path(FLAGS.picture)}.")
    if FLAGS.output:
        task.save_to_preset(FLAGS.output)
        print(f"The model is in {FLAGS.output}.")


if __name__ == "__main__":
    start(main)
