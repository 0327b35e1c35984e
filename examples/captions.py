"""Describe images in words: captions, and answers to questions.

python examples/captions.py --images shape.png --question "What color is the circle?"
python examples/captions.py --train answers --epochs 20 --output runs/my_answers

Without --train two presets read images of shapes, by default those in examples/data/shapes: one
writes a caption, the other answers questions. A picture shows the images with their texts. With
--train a model learns from 4,000 images of shapes and is scored on unseen images.
"""

import pathlib

from runs import check_recipe, start, values

import keras_transformer as kt
from example_data import captions_of, easy_vqa

import keras
import numpy as np
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_string("captioner", "captions_shapes", "Preset that writes captions.")
flags.DEFINE_string("answerer", "vqa_shapes", "Preset that answers questions.")
flags.DEFINE_list("images", [], "Paths of images. Defaults to examples/data/shapes.")
flags.DEFINE_multi_string(
    "question", ["What is the shape?", "What color is the shape?", "Is there a red shape?"],
    "A question; repeat the flag for several.",
)  # fmt: skip
flags.DEFINE_string("output", "captions.png", "Path of the picture; with --train, of the preset.")
flags.DEFINE_enum(
    "train", None, ["captions", "answers"], "Train on captions, or on questions and answers."
)
flags.DEFINE_string("start", None, "Preset with the initial weights of the training.")
flags.DEFINE_integer("layers", 2, "Layers of the encoder, and of the decoder.", lower_bound=1)
flags.DEFINE_integer("width", 64, "Width of the states.", lower_bound=8)
flags.DEFINE_integer("epochs", 15, "Passes over the texts.", lower_bound=1)
flags.DEFINE_integer("batch_size", 64, "Texts in a training step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 2e-3, "Peak, reached after 5 % of the steps; then decays to 0.")
flags.DEFINE_boolean("flips", True, "Also train on each image flipped in both directions.")
flags.DEFINE_integer(
    "held_out", 400, "Number of images, the last ones, to score on.", lower_bound=1
)
flags.DEFINE_integer("seed", 1, "Seed of weights and order.")
flags.DEFINE_string("work_dir", "runs/captions", "Folder from which a killed run is resumed.")

_EXAMPLES = pathlib.Path(__file__).parent / "data" / "shapes"
# There is one caption for each image, and ten questions.
_COPIES = {"captions": 6, "answers": 4}
_RECIPE = "train start layers width epochs batch_size learning_rate flips held_out seed"


def _turned(pixels, vertically: int, horizontally: int):
    """Flip an image vertically or horizontally, if the arguments are 1."""
    return pixels[:: 1 - 2 * vertically, :: 1 - 2 * horizontally]


def make_task(texts: list[str]) -> kt.ImageToText:
    """Build a model with the sizes of the flags, or load the one of `--start`."""
    if FLAGS.start:
        return kt.ImageToText.from_preset(FLAGS.start)
    tokenizer = kt.Tokenizer.train(texts, "wordpiece", vocabulary_size=200, lowercase=True)
    config = kt.TransformerConfig(
        kind="seq2seq",
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=FLAGS.width,
        num_layers=FLAGS.layers,
        num_heads=max(FLAGS.width // 32, 1),
        intermediate_dim=2 * FLAGS.width,
        position="learned",
        max_sequence_length=24,
        normalize_first=True,
        activation="gelu",
        encoder={
            "vocabulary_size": 0,
            "stem": {"kind": "patches", "image_size": (64, 64), "patch_size": 8},
        },
    )
    return kt.ImageToText(kt.models.Seq2Seq(config), kt.ImageProcessor(size=64), tokenizer)


def train() -> None:
    """Train a model, score it on unseen images, and save it."""
    check_recipe(pathlib.Path(FLAGS.work_dir), values(_RECIPE))
    keras.utils.set_random_seed(FLAGS.seed)
    images, questions = easy_vqa()
    random = np.random.default_rng(FLAGS.seed)
    pixels = {i: kt.processors.read_image(image) for i, image in images.items()}
    if FLAGS.train == "captions":
        rows = [(image, None, text) for image, text in captions_of(images, questions).items()]
    else:
        rows = [(image, question, answer) for question, answer, image in questions]
    unseen = set(sorted(images)[-FLAGS.held_out :])
    known, new = ([r for r in rows if (r[0] in unseen) == wanted] for wanted in (False, True))

    def given(rows, turned=False):
        pictures = [pixels[image] for image, _, _ in rows]
        if turned:  # flipping changes neither shape nor color
            pictures = [_turned(x, *random.integers(2, size=2)) for x in pictures]
        if FLAGS.train == "captions":
            return pictures
        return pictures, [question for _, question, _ in rows]

    texts = [text for row in known for text in row[1:] if text]
    task = make_task(texts)
    known *= _COPIES[FLAGS.train] if FLAGS.flips else 1
    dataset = task.make_dataset(
        given(known, FLAGS.flips), [text for _, _, text in known], batch_size=FLAGS.batch_size,
        shuffle=True, seed=FLAGS.seed,
    )  # fmt: skip
    steps = len(dataset) * FLAGS.epochs
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=FLAGS.learning_rate, warmup_steps=steps // 20
    )
    task.compile(keras.optimizers.AdamW(schedule, weight_decay=0.01, clipnorm=1.0))
    print(f"{task.count_params():,} parameters, {len(known):,} texts", flush=True)
    run = kt.training.ResumableRun(FLAGS.work_dir, dataset)
    task.fit(dataset, epochs=FLAGS.epochs, callbacks=[run], verbose=2)
    x = given(new)
    asked = x if isinstance(x, tuple) else (x,)
    found = task.generate(*asked, max_new_tokens=6, batch_size=100)
    right = sum(a == b for a, (_, _, b) in zip(found, new, strict=True))
    print(f"{FLAGS.train} right, of {len(new):,} on unseen images: {right / len(new):.2%}")
    if FLAGS["output"].present:
        task.save_to_preset(FLAGS.output, dtype="float16")
        print(f"The model is in {FLAGS.output}.")


def look() -> None:
    """Generate captions and answers for images, print them, and draw them under the images."""
    paths = FLAGS.images or sorted(map(str, _EXAMPLES.glob("*")))
    captioner = kt.ImageToText.from_preset(FLAGS.captioner)
    answerer = kt.ImageToText.from_preset(FLAGS.answerer)
    lines = [[caption] for caption in captioner.caption(paths)]
    for question in FLAGS.question:
        for row, answer in zip(lines, answerer.answer(paths, question), strict=True):
            row.append(f"{question} {answer}")
    for path, row in zip(paths, lines, strict=True):
        print(f"{pathlib.Path(path).name:<16} {' | '.join(row)}")
    draw(paths, lines)
    print(f"The picture is in {FLAGS.output}.")


def draw(paths: list[str], lines: list[list[str]]) -> None:
    """Draw the images side by side, each above its texts."""
    from matplotlib import pyplot

    columns = min(len(paths), 4)
    rows = -(-len(paths) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(3.2 * columns, 4 * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat:
        axis.axis("off")
    for axis, path, (caption, *answers) in zip(axes.flat, paths, lines, strict=False):
        axis.imshow(kt.processors.read_image(path))
        axis.set_title(caption, fontsize=11)
        axis.text(0, -0.04, "\n".join(answers), transform=axis.transAxes, va="top", fontsize=8)
    figure.savefig(FLAGS.output, dpi=120)
    pyplot.close(figure)


def main(_):
    train() if FLAGS.train else look()


if __name__ == "__main__":
    start(main)
