"""Classify images with a small transformer trained on 50,000 images of ten classes.

python examples/images.py --images photo.jpg,other.png --output images.png
python examples/images.py --preset clip_vit_base_patch32 --labels "a cat,a dog" --images photo.jpg
python examples/images.py --train --stem patches --epochs 20

Without --train a preset classifies images, by default those in examples/data/images, and a picture
shows them with the predictions. --labels is for a preset of images and texts, which classifies into
any named classes (Radford et al. 2021). With --train a model is trained on CIFAR-10 from scratch:
by default a compact convolutional transformer (Hassani et al. 2021).
"""

import itertools
import pathlib

from runs import check_recipe, start, values

import keras_transformer as kt
from example_data import CIFAR10_LABELS, cifar10

import keras
import numpy as np
from absl import flags
from keras import ops

FLAGS = flags.FLAGS
flags.DEFINE_string("preset", "cct_tiny_cifar10", "Preset that classifies images.")
flags.DEFINE_list("images", [], "Paths of images. Defaults to examples/data/images.")
flags.DEFINE_list("labels", [], "Names of classes, for a preset of images and texts.")
flags.DEFINE_string("output", "images.png", "Path of the picture; with --train, of the preset.")
flags.DEFINE_boolean("train", False, "Train a model on CIFAR-10 and score it on unseen images.")
flags.DEFINE_enum(
    "stem", "convolutions", ["convolutions", "patches"], "Layer that turns an image into states."
)
flags.DEFINE_string("start", None, "Preset with the initial weights of the training.")
flags.DEFINE_enum(
    "changes", "few", ["few", "many"],
    "What is changed of an image each time: its place and side, or its angle, size and colors too, "
    "and a part of it is erased.",
)  # fmt: skip
flags.DEFINE_integer("layers", 3, "Layers of the transformer.", lower_bound=1)
flags.DEFINE_integer("width", 128, "Width of the states.", lower_bound=8)
flags.DEFINE_integer("epochs", 64, "Passes over the images.", lower_bound=1)
flags.DEFINE_integer("batch_size", 128, "Images in a training step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 2e-3, "Peak, after 1,500 steps; then half a cosine to 0.")
flags.DEFINE_float("label_smoothing", 0.1, "Share of a label that is spread over all classes.")
flags.DEFINE_enum(
    "dtype",
    "float32",
    ["float32", "mixed_bfloat16", "mixed_float16"],
    "Precision; mixed_bfloat16 is faster on many CPUs and GPUs.",
)
flags.DEFINE_integer("train_size", None, "Train on the first images only, for a quick look.")
flags.DEFINE_integer("seed", 1, "Seed of weights, order and augmentation.")
flags.DEFINE_string("work_dir", "runs/images", "Folder from which a killed run is resumed.")

# Of each channel of the training images.
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_EXAMPLES = pathlib.Path(__file__).parent / "data" / "images"
_RECIPE = (
    "stem start changes layers width epochs batch_size learning_rate label_smoothing dtype "
    "train_size seed"
)
_WARMUP = 1500


@keras.saving.register_keras_serializable(package="examples")
class HalfCosine(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate that rises for `_WARMUP` steps, times half a cosine over all steps."""

    def __init__(self, peak: float, steps: int):
        self.peak, self.steps = peak, steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        done = ops.minimum(step / self.steps, 1.0)
        return self.peak * ops.minimum(step / _WARMUP, 1.0) * 0.5 * (1 + ops.cos(np.pi * done))

    def get_config(self):
        return {"peak": self.peak, "steps": self.steps}


def make_classifier() -> kt.ImageClassifier:
    """Build a model with the sizes of the flags, or load the one of `--start`."""
    if FLAGS.start:
        return kt.ImageClassifier.from_preset(FLAGS.start, dtype=FLAGS.dtype)
    stem = {"kind": FLAGS.stem, "image_size": (32, 32)}
    stem |= {"filters": (64,)} if FLAGS.stem == "convolutions" else {"patch_size": 4}
    config = kt.TransformerConfig(
        kind="encoder",
        vocabulary_size=0,
        hidden_dim=FLAGS.width,
        num_layers=FLAGS.layers,
        num_heads=max(FLAGS.width // 64, 1),
        intermediate_dim=FLAGS.width,
        position="learned",
        normalize_first=True,
        activation="gelu",
        initializer_range=0.02,
        stem=stem,
    )
    return kt.ImageClassifier(
        kt.models.Encoder(config, dtype=FLAGS.dtype),
        kt.ImageProcessor(size=32, mean=MEAN, std=DEVIATION),
        labels=list(CIFAR10_LABELS),
        pooling="attention" if FLAGS.stem == "convolutions" else "first",
    )


def augmentation() -> list[keras.layers.Layer]:
    """Return layers that shift and flip images; with `many`, layers that change much more."""
    seeds = itertools.count(FLAGS.seed)
    layers, empty = keras.layers, {"fill_mode": "constant"}
    few = [
        layers.RandomTranslation(0.125, 0.125, interpolation="nearest", seed=next(seeds), **empty),
        layers.RandomFlip("horizontal", seed=next(seeds)),
    ]
    if FLAGS.changes == "few":
        return few
    bounds = [
        edge((value - mean) / std for mean, std in zip(MEAN, DEVIATION, strict=True))
        for edge, value in ((min, 0), (max, 1))
    ]
    colors = {"value_range": bounds}
    return [
        *few,
        layers.RandomRotation(0.04, seed=next(seeds), **empty),
        layers.RandomZoom(0.15, 0.15, seed=next(seeds), **empty),
        layers.RandomColorDegeneration(0.6, seed=next(seeds), **colors),
        layers.RandomBrightness(0.15, seed=next(seeds), **colors),
        layers.RandomContrast(0.4, seed=next(seeds), **colors),
        layers.RandomErasing(1.0, scale=(0.05, 0.25), fill_value=0.0, seed=next(seeds), **colors),
    ]


def compile_for(classifier: kt.ImageClassifier, steps: int) -> None:
    """Compile with AdamW and the augmentation that the flags select."""
    optimizer = keras.optimizers.AdamW(
        HalfCosine(FLAGS.learning_rate, steps), weight_decay=0.05, beta_2=0.99, clipnorm=1.0
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    classifier.compile(
        optimizer, augmentation=augmentation(), jit_compile=keras.backend.backend() == "jax"
    )


def train() -> None:
    """Train a classifier, score it on unseen images, and save it."""
    check_recipe(pathlib.Path(FLAGS.work_dir), values(_RECIPE))
    keras.utils.set_random_seed(FLAGS.seed)
    classifier = make_classifier()
    images, labels = (rows[: FLAGS.train_size] for rows in cifar10("train"))
    numbers = np.array([CIFAR10_LABELS.index(label) for label in labels])
    soft = np.eye(10, dtype="float32")[numbers] * (1 - FLAGS.label_smoothing)
    dataset = classifier.make_dataset(
        [kt.processors.read_image(image) for image in images],  # decoded once
        soft + FLAGS.label_smoothing / 10,
        batch_size=FLAGS.batch_size,
        shuffle=True,
        seed=FLAGS.seed,
    )
    compile_for(classifier, len(dataset) * FLAGS.epochs)
    print(f"{classifier.count_params():,} parameters, {len(images):,} images", flush=True)
    run = kt.training.ResumableRun(FLAGS.work_dir, dataset)
    classifier.fit(dataset, epochs=FLAGS.epochs, callbacks=[run], verbose=2)
    unseen, truth = cifar10("test_a")
    found = [label for label, _ in classifier.classify(unseen, batch_size=500)]
    right = np.mean([a == b for a, b in zip(found, truth, strict=True)])
    print(f"accuracy of {len(unseen):,} unseen images: {right:.2%}")
    if FLAGS["output"].present:
        classifier.save_to_preset(FLAGS.output, dtype="float16")
        print(f"The classifier is in {FLAGS.output}.")


def look() -> None:
    """Classify images, print the predictions, and draw the images."""
    paths = FLAGS.images or sorted(map(str, _EXAMPLES.glob("*")))
    if FLAGS.labels:
        embedder = kt.ImageEmbedder.from_preset(FLAGS.preset)
        found = embedder.classify(paths, FLAGS.labels, template="a photo of {}.", top_k=3)
    else:
        found = kt.ImageClassifier.from_preset(FLAGS.preset).classify(paths, top_k=3)
    for path, classes in zip(paths, found, strict=True):
        shown = ", ".join(f"{label} {probability:.1%}" for label, probability in classes)
        print(f"{pathlib.Path(path).name:<16} {shown}")
    draw(paths, found)
    print(f"The picture is in {FLAGS.output}.")


def draw(paths: list[str], found: list) -> None:
    """Draw the images side by side, each above bars of its likeliest classes."""
    from matplotlib import pyplot

    columns = min(len(paths), 5)
    rows = -(-len(paths) // columns)
    figure, axes = pyplot.subplots(
        2 * rows, columns, figsize=(2.4 * columns, 3.4 * rows), squeeze=False,
        height_ratios=[3, 1] * rows, layout="constrained",
    )  # fmt: skip
    for axis in axes.flat:
        axis.axis("off")
    for i, (path, classes) in enumerate(zip(paths, found, strict=True)):
        row, column = 2 * (i // columns), i % columns
        axes[row][column].imshow(kt.processors.read_image(path))
        axes[row][column].set_title(pathlib.Path(path).name, fontsize=9)
        bars, names = axes[row + 1][column], [label for label, _ in classes]
        bars.axis("on")
        bars.barh(names, [probability for _, probability in classes], color="#4477aa")
        bars.invert_yaxis()
        bars.set_xlim(0, 1)
        bars.tick_params(labelsize=8)
        bars.spines[["top", "right"]].set_visible(False)
    figure.savefig(FLAGS.output, dpi=120)
    pyplot.close(figure)


def main(_):
    train() if FLAGS.train else look()


if __name__ == "__main__":
    start(main)
