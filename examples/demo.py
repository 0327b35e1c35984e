"""Show the library in a minute: fit a classifier on sentences, translate, continue a text.

    python examples/demo.py "I loved it." "It was dull."

classifies the sentences given, after training on the 746 reviews in examples/data.
"""

import logging
import pathlib
import sys
import time

from runs import start

import keras_transformer as kt
from keras_transformer.checkpoints import resolve_preset
from keras_transformer.tokenizers import moses_detokenize, moses_tokenize

import keras
from absl import flags
from absl import logging as absl_logging

FLAGS = flags.FLAGS
flags.DEFINE_string("encoder", "minilm_l6_en", "Preset of the encoder to fine-tune.")
flags.DEFINE_string("translator", "transformer_tiny_en_de", "Preset that translates.")
flags.DEFINE_string("writer", "gpt_tiny_shakespeare", "Preset that continues a text.")
flags.DEFINE_integer("epochs", 2, "Passes over the training sentences.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Sentences in a training step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 2e-4, "Peak of the learning rate, which then falls to 0.")
flags.DEFINE_integer("seed", 0, "Seed of the new layer, dropout, shuffling and the continuation.")

DATA = pathlib.Path(__file__).parent / "data"
LABELS = ["negative", "positive"]
REVIEWS = [
    "The best pizza I have had in years.",
    "Our waiter forgot us twice and still expected a tip.",
    "The soup was cold and nobody cared.",
    "Great sound, and the battery lasts for days.",
]
ENGLISH = [
    "A man rides a bike.",
    "Two children are playing in the snow.",
    "A woman in a red dress is dancing on the street.",
    "A brown dog jumps over a fence and catches a ball.",
]
PROMPT = "JULIET:\nO Romeo,"


class OneLineAnEpoch(keras.callbacks.Callback):
    """Callback that prints the progress of an epoch on one line, updated in place in a terminal."""

    def on_epoch_begin(self, epoch, logs=None):
        self.name = f"  epoch {epoch + 1} of {self.params['epochs']}"

    def on_train_batch_end(self, batch, logs=None):
        if sys.stdout.isatty():
            steps = self.params["steps"]
            bar = "=" * (20 * (batch + 1) // steps)
            print(f"\r{self.name}  [{bar:20}]  step {batch + 1} of {steps}", end="", flush=True)

    def on_epoch_end(self, epoch, logs=None):
        line = f"{self.name}  loss {logs['loss']:.3f}  accuracy {logs['accuracy']:.1%}"
        print(f"\r{line:60}" if sys.stdout.isatty() else line, flush=True)


def read(name: str) -> tuple[list[str], list[int]]:
    """Return the sentences and labels of one of the demo's files."""
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    texts, labels = zip(*(line.split("\t") for line in lines), strict=True)
    return list(texts), [int(label) for label in labels]


def title(number: int, what: str, preset: str, model: keras.Model) -> None:
    print(f"{number}. {what}: {preset}, {model.count_params() / 1e6:.1f} million parameters")


def fit_classifier() -> tuple[kt.TextClassifier, float]:
    """Return a fitted classifier, and its accuracy on the held-out sentences."""
    (texts, labels), test = read("reviews_train.tsv"), read("reviews_test.tsv")
    classifier = kt.TextClassifier.from_preset(FLAGS.encoder, labels=LABELS)
    title(1, "Classify", FLAGS.encoder, classifier)
    print(f"   fits {len(texts)} sentences of restaurant reviews; {len(test[0])} are held out\n")
    # With so few sentences a further batch length costs more to compile than it saves.
    sizes = {"batch_size": FLAGS.batch_size, "max_buckets": 2}
    train = classifier.make_dataset(texts, labels, shuffle=True, seed=FLAGS.seed, **sizes)
    steps = len(train) * FLAGS.epochs
    schedule = kt.training.LinearDecay(FLAGS.learning_rate, steps, warmup_steps=steps // 10)
    classifier.compile(
        optimizer=kt.training.FineTuningAdamW(schedule),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    classifier.fit(train, epochs=FLAGS.epochs, callbacks=[OneLineAnEpoch()], verbose=0)
    accuracy = classifier.evaluate(classifier.make_dataset(*test, **sizes), verbose=0)[1]
    print(f"\n  right on {accuracy:.1%} of the {len(test[0])} held-out sentences\n")
    return classifier, accuracy


def main(arguments):
    started = time.time()
    keras.utils.set_random_seed(FLAGS.seed)
    # Hide messages of the backend, and the warning that the new layer is untrained.
    absl_logging.set_verbosity(absl_logging.ERROR)
    logging.getLogger("keras_transformer").setLevel(logging.ERROR)
    for preset in (FLAGS.encoder, FLAGS.translator, FLAGS.writer):
        resolve_preset(preset)  # Report a wrong name now, not after the training.

    classifier, accuracy = fit_classifier()
    reviews = arguments[1:] or REVIEWS
    for review, (label, probability) in zip(reviews, classifier.classify(reviews), strict=True):
        print(f"  {label}  {probability:6.1%}  {review}")

    translator = kt.Seq2SeqLM.from_preset(FLAGS.translator)
    print()
    title(2, "Translate", FLAGS.translator, translator)
    print("   trained on descriptions of photographs, in lower case; beam search\n")
    # It was trained on text with separated punctuation: "a man rides a bike ."
    german = translator.generate(
        [moses_tokenize(text) for text in ENGLISH], sampler=kt.generation.BeamSearch(num_beams=5)
    )
    for source, target in zip(ENGLISH, german, strict=True):
        print(f"  {source}\n    {moses_detokenize(target)}")

    writer = kt.CausalLM.from_preset(FLAGS.writer)
    print()
    title(3, "Write on", FLAGS.writer, writer)
    print("   trained on Shakespeare's plays; draws among the likely tokens\n")
    text = writer.generate(
        PROMPT,
        max_new_tokens=100,
        sampler=kt.generation.Random(temperature=0.7, top_p=0.9),
        seed=FLAGS.seed,
    )
    whole = text.rpartition("\n")[0] or text  # drop the incomplete last line
    print("\n".join(f"  {line}".rstrip() for line in (PROMPT + whole).rstrip().splitlines()))
    print(
        f"\nDone in {time.time() - started:.0f} s on {keras.backend.backend()}: {accuracy:.1%} of "
        f"the held-out reviews, {len(german)} translations, one scene."
    )


if __name__ == "__main__":
    start(main)
