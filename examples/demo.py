"""The main job in three minutes: fits a classifier on labelled sentences, and translates.

    python examples/demo.py "I loved it." "It was dull."

classifies the sentences given, after training on the 220 reviews in examples/data.
"""

import logging
import pathlib
import time

import keras_transformer as kt
from keras_transformer.checkpoints import resolve_preset
from keras_transformer.tokenizers import moses_detokenize, moses_tokenize
from runs import start

import keras
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_string("encoder", "minilm_l6_en", "Preset of the encoder to fine-tune.")
flags.DEFINE_string("translator", "transformer_tiny_en_de", "Preset that translates.")
flags.DEFINE_integer("epochs", 6, "Passes over the training sentences.", lower_bound=1)
flags.DEFINE_integer("batch_size", 16, "Sentences of a training step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 2e-4, "Peak of the learning rate, which then falls to 0.")
flags.DEFINE_integer("seed", 1, "Seed of the new layer, dropout and shuffling.")

DATA = pathlib.Path(__file__).parent / "data"
LABELS = ["negative", "positive"]
REVIEWS = [
    "The best pizza I have had in years.",
    "The battery died on the second day and nobody answered my calls.",
    "Not bad at all, I would go again.",
    "The hotel looks lovely in the photos, and nothing like it in reality.",
]
ENGLISH = [
    "A man rides a bike.",
    "Two children are playing in the snow.",
    "A woman in a red dress is dancing on the street.",
    "A brown dog jumps over a fence and catches a ball.",
]


def read(name: str) -> tuple[list[str], list[int]]:
    """The sentences and labels of one of the files of the demo."""
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    texts, labels = zip(*(line.split("\t") for line in lines), strict=True)
    return list(texts), [int(label) for label in labels]


def fit_classifier() -> tuple[kt.TextClassifier, float, float]:
    """The classifier, and its accuracy on the held-out sentences before and after."""
    (texts, labels), test = read("reviews_train.tsv"), read("reviews_test.tsv")
    classifier = kt.TextClassifier.from_preset(FLAGS.encoder, labels=LABELS)
    print(
        f"1. Sentiment: {FLAGS.encoder} ({classifier.count_params() / 1e6:.1f} million parameters) "
        f"learns from {len(texts)} labelled reviews; {len(test[0])} others are held out.\n"
    )
    steps = -(-len(texts) // FLAGS.batch_size) * FLAGS.epochs
    schedule = kt.training.LinearDecay(FLAGS.learning_rate, steps, warmup_steps=steps // 10)
    classifier.compile(
        optimizer=keras.optimizers.AdamW(schedule, weight_decay=0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    before = classifier.evaluate(*test, verbose=0)[1]
    classifier.fit(texts, labels, batch_size=FLAGS.batch_size, epochs=FLAGS.epochs)
    after = classifier.evaluate(*test, verbose=0)[1]
    print(f"\naccuracy on the held-out reviews: {before:.1%} before, {after:.1%} after\n")
    return classifier, before, after


def main(arguments):
    started = time.time()
    keras.utils.set_random_seed(FLAGS.seed)
    # That the new layer is untrained need not be said: the accuracy before shows it.
    logging.getLogger("keras_transformer").setLevel(logging.ERROR)
    for preset in (FLAGS.encoder, FLAGS.translator):
        resolve_preset(preset)  # A wrong name is said at once, not after the training.

    classifier, before, after = fit_classifier()
    reviews = arguments[1:] or REVIEWS
    for review, (label, probability) in zip(reviews, classifier.classify(reviews), strict=True):
        print(f"  {label}  {probability:6.1%}  {review}")

    translator = kt.Seq2SeqLM.from_preset(FLAGS.translator)
    print(
        f"\n2. Translation: {FLAGS.translator} ({translator.count_params() / 1e6:.1f} million "
        "parameters), beam search, 5 beams. Trained on descriptions of images, in lower case.\n"
    )
    # It learned words apart from their punctuation: "a man rides a bike ."
    german = translator.generate(
        [moses_tokenize(text) for text in ENGLISH], sampler=kt.generation.BeamSearch(num_beams=5)
    )
    width = max(map(len, ENGLISH))
    for source, target in zip(ENGLISH, german, strict=True):
        print(f"  {source:<{width}}  ->  {moses_detokenize(target)}")
    print(
        f"\nDone in {time.time() - started:.0f} s on {keras.backend.backend()}: held-out accuracy "
        f"{before:.1%} -> {after:.1%}, {len(german)} translations."
    )


if __name__ == "__main__":
    start(main)
