"""Find the shape in an image: its box and its name.

python examples/detection.py --output runs/shapes
python examples/detection.py --detector=queries --auxiliary_loss
python examples/detection.py --detector=maps --num_denoising=100
python examples/detection.py --detector=edges

A small vision transformer with detection tokens (YOLOS, Fang et al. 2021), a decoder of object
queries (DETR, Carion et al. 2020), or one that refines boxes of the maps of a convolutional network
(RT-DETR, Zhao et al. 2023) or distributions of their edges (D-FINE, Peng et al. 2024), learns to
find circles, rectangles and triangles. The boxes are made from the images of easy-VQA: they hold
the pixels whose color is not that of the ground. The score is COCO's average precision on images
that the model has not seen, and a picture shows one of them.
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
flags.DEFINE_string("picture", "detection.png", "Path of the picture of an unseen image.")
flags.DEFINE_enum(
    "detector", "tokens", ["tokens", "queries", "maps", "edges"], "What finds objects."
)
flags.DEFINE_bool("auxiliary_loss", False, "With queries: a loss of each layer of the decoder.")
flags.DEFINE_integer("num_denoising", 100, "With maps or edges: noisy objects.", lower_bound=0)
flags.DEFINE_integer("layers", 3, "Layers of the transformer.", lower_bound=1)
flags.DEFINE_integer("width", 48, "Width of the states.", lower_bound=16)
flags.DEFINE_integer("tokens", 5, "Detection tokens, or queries.", lower_bound=1)
flags.DEFINE_integer("epochs", 20, "Passes over the images.", lower_bound=1)
flags.DEFINE_integer("batch_size", 16, "Images in a training step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 3e-3, "Peak, after 10 % of the steps; then decays to 0.")
flags.DEFINE_integer("seen", 800, "Number of images to train on.", lower_bound=1)
flags.DEFINE_integer(
    "held_out", 400, "Number of images, the last ones, to score on.", lower_bound=1
)
flags.DEFINE_integer("seed", 1, "Seed of weights, order and augmentation.")


def box_of(pixels: np.ndarray) -> list[int]:
    """Return the box around the pixels whose color is not the ground's, in pixels."""
    colors, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_counts=True)
    ground, inside = colors[counts.argsort()[::-1][:2]].astype(float)
    from_ground, from_shape = (np.linalg.norm(pixels - c, axis=-1) for c in (ground, inside))
    rows, columns = np.nonzero(from_shape < from_ground)
    return [int(n) for n in (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)]


def make_task() -> kt.ObjectDetector:
    """Build a small detector, with a head for boxes and classes."""
    values = {
        "vocabulary_size": 0,
        "hidden_dim": FLAGS.width,
        "num_layers": FLAGS.layers,
        "num_heads": max(FLAGS.width // 16, 1),
        "intermediate_dim": 2 * FLAGS.width,
    }
    labels = list(SHAPES)
    if FLAGS.detector == "tokens":
        stem = {"kind": "patches", "image_size": (32, 32), "patch_size": 4}
        config = kt.TransformerConfig(
            kind="encoder",
            **values,
            position="learned",
            normalize_first=True,
            activation="gelu",
            stem={**stem, "num_detection_tokens": FLAGS.tokens},
        )
        return kt.ObjectDetector(
            kt.models.Encoder(config), kt.ImageProcessor(size=32), labels=labels
        )
    network = {"kind": "resnet", "block": "basic", "filters": 16, "depths": [1, 1, 1]}
    network["widths"] = [16, 32, FLAGS.width]
    if FLAGS.detector == "queries":
        config = kt.TransformerConfig(
            kind="seq2seq",
            **values,
            position="none",
            stem={"kind": "queries", "num_queries": FLAGS.tokens},
            encoder={"stem": network},
            decoder={"final_normalization": True},
        )
        processor = kt.ImageProcessor(size=(64, 64), family="Detr")
        return kt.ObjectDetector(
            kt.models.Seq2Seq(config), processor, labels=labels, auxiliary_loss=FLAGS.auxiliary_loss
        )
    further = {"variant": "d", "num_maps": 1, "projection_norm": True, "positions": "counts"}
    config = kt.TransformerConfig(
        kind="encoder", **{**values, "num_layers": 1}, position="none", stem=network | further
    )
    decoder = {name: values[name] for name in ("num_layers", "num_heads", "intermediate_dim")}
    decoder |= {"num_queries": FLAGS.tokens, "width": FLAGS.width}
    decoder |= {"num_denoising": FLAGS.num_denoising}
    if FLAGS.detector == "edges":
        decoder |= {"join": "csp_elan", "value_projection": False, "gated": True, "edges": {}}
    processor = kt.ImageProcessor(size=(64, 64), family="RTDetr", mean=None, std=None)
    return kt.ObjectDetector(
        kt.models.Encoder(config), processor, labels=labels, box_decoder=decoder
    )


def main(_):
    keras.utils.set_random_seed(FLAGS.seed)
    images, questions = easy_vqa()
    told = captions_of(images, questions)  # such as "a red circle"
    numbers = sorted(told)
    count = min(FLAGS.seen, max(len(numbers) - FLAGS.held_out, 0))
    numbers = [*numbers[:count], *numbers[-FLAGS.held_out :]]
    pixels = [kt.processors.read_image(images[i]) for i in numbers]
    objects = [
        {"boxes": [box_of(x)], "labels": [told[i].split()[-1]]}
        for x, i in zip(pixels, numbers, strict=True)
    ]
    known, new = slice(count), slice(count, None)

    task = make_task()
    flips = [keras.layers.RandomFlip()]  # of images and boxes alike
    steps = -(-len(pixels[known]) // FLAGS.batch_size) * FLAGS.epochs
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=FLAGS.learning_rate, warmup_steps=steps // 10
    )
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.01, clipnorm=1.0)
    task.compile(optimizer, augmentation=flips)
    print(f"{task.count_params():,} parameters, {len(pixels[known]):,} images", flush=True)
    task.fit(
        pixels[known], objects[known], epochs=FLAGS.epochs, batch_size=FLAGS.batch_size, verbose=2
    )
    scores = kt.evaluating.evaluate_detector(task, pixels[new], objects[new])
    print(f"Average precision on {len(pixels[new]):,} unseen images: {scores.ap:.1%}")
    print(f"at an intersection over union of 0.5: {scores.ap50:.1%}, of 0.75: {scores.ap75:.1%}")
    for label, precision in scores.classes.items():
        print(f"{label}: {precision:.1%}")
    task.detect(pixels[new][0]).plot().savefig(FLAGS.picture)
    print(f"The picture is in {pathlib.Path(FLAGS.picture)}.")
    if FLAGS.output:
        task.save_to_preset(FLAGS.output)
        print(f"The model is in {FLAGS.output}.")


if __name__ == "__main__":
    start(main)
