"""Read words in images, by a small PARSeq that has learned from drawn words.

python examples/read_words.py --output runs/reader

Words of random syllables are drawn with Pillow's own font, dark on light or light on dark. The
model learns each word in several orders of its letters, and reads words that it has not seen: from
left to right, and then each letter once more, given those on both sides of it.
"""

from runs import start

import keras_transformer as kt

import keras
import numpy as np
from absl import flags
from PIL import Image, ImageDraw, ImageFont

FLAGS = flags.FLAGS
flags.DEFINE_integer("words", 12000, "Words to learn from.", lower_bound=1)
flags.DEFINE_integer("held_out", 400, "Words to score on.", lower_bound=1)
flags.DEFINE_integer("epochs", 20, "Passes over the words.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Images in a training step.", lower_bound=1)
flags.DEFINE_integer("orders", 6, "Orders of the letters of a word, an even number, or 1.")
flags.DEFINE_integer("layers", 2, "Layers of the encoder of images.", lower_bound=1)
flags.DEFINE_integer("width", 64, "Width of the states.", lower_bound=8)
flags.DEFINE_float("learning_rate", 3e-3, "Peak, from which it decays to 0.")
flags.DEFINE_integer("seed", 0, "Seed of words, weights and order.")
flags.DEFINE_string("output", None, "Folder for the trained preset.")

_HEIGHT, _WIDTH = 32, 128
_CONSONANTS, _VOWELS = "bcdfghklmnprstvwz", "aeiou"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def random_words(count: int, random: np.random.Generator) -> list[str]:
    """Return different words of one to three syllables."""
    words: dict[str, None] = {}
    while len(words) < count:
        word = ""
        for _ in range(random.integers(1, 4)):
            ends = random.random() < 0.3
            word += random.choice([*_CONSONANTS]) + random.choice([*_VOWELS])
            word += random.choice([*_CONSONANTS]) if ends else ""
        words[word] = None
    return list(words)


def draw(word: str, random: np.random.Generator) -> np.ndarray:
    """Draw a word at a random place and in random grays, uint8 `(32, 128, 3)`."""
    shades = [int(random.integers(0, 90)), int(random.integers(150, 256))]
    ground, ink = shades if random.random() < 0.5 else shades[::-1]
    image = Image.new("RGB", (_WIDTH, _HEIGHT), (ground,) * 3)
    place = tuple(map(int, random.integers((2, 2), (7, 7))))
    font = ImageFont.load_default(size=20)
    ImageDraw.Draw(image).text(place, word, fill=(ink,) * 3, font=font)
    return np.asarray(image)


def make_task() -> kt.ImageToText:
    """Build a reader: an encoder of strips of the image, and a decoder with a stream of queries."""
    tokenizer = kt.Tokenizer.of_symbols(_LETTERS)
    config = kt.TransformerConfig(
        kind="seq2seq",
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=FLAGS.width,
        num_layers=1,
        num_heads=max(FLAGS.width // 16, 1),
        intermediate_dim=2 * FLAGS.width,
        position="learned",
        max_sequence_length=12,
        normalize_first=True,
        activation="gelu",
        scale_embedding=True,
        encoder={
            "vocabulary_size": 0,
            "num_layers": FLAGS.layers,
            "stem": {
                "kind": "patches",
                "image_size": (_HEIGHT, _WIDTH),
                "patch_size": _HEIGHT,
                "patch_width": 4,
                "class_token": False,
            },
        },
    )
    decoder = config.decoder
    streamed = decoder.replace(block=decoder.block.replace(query_stream=True))
    backbone = kt.models.Seq2Seq(config.replace(decoder=streamed))
    return kt.ImageToText(backbone, kt.ImageProcessor(size=(_HEIGHT, _WIDTH)), tokenizer)


def main(_):
    keras.utils.set_random_seed(FLAGS.seed)
    random = np.random.default_rng(FLAGS.seed)
    words = random_words(FLAGS.words + FLAGS.held_out, random)
    images = [draw(word, random) for word in words]
    known, new = slice(FLAGS.words), slice(FLAGS.words, None)
    task = make_task()
    steps = FLAGS.epochs * -(-FLAGS.words // FLAGS.batch_size)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=FLAGS.learning_rate, warmup_steps=steps // 20
    )
    task.compile(keras.optimizers.AdamW(schedule, weight_decay=0.01, clipnorm=1.0))
    print(f"{task.count_params():,} parameters, {FLAGS.words:,} words", flush=True)
    task.fit(
        images[known], words[known], batch_size=FLAGS.batch_size, epochs=FLAGS.epochs, verbose=2,
        seed=FLAGS.seed, num_orders=FLAGS.orders,
    )  # fmt: skip
    for refinements, said in enumerate(("from left to right", "and refined once")):
        found = task.read(images[new], num_refinements=refinements, batch_size=100)
        right = sum(a == b for a, b in zip(found, words[new], strict=True))
        print(f"unseen words right, {said}: {right / len(found):.2%}")
    print(" ".join(f"{a}->{b}" for a, b in zip(words[new], found, strict=True) if a != b)[:300])
    if FLAGS.output:
        task.save_to_preset(FLAGS.output, dtype="float16")
        print(f"The model is in {FLAGS.output}.")


if __name__ == "__main__":
    start(main)
