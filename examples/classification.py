"""Sentiment of film reviews (SST-2): a pretrained encoder, and the same one from scratch.

python examples/classification.py --output my_classifier
keras-transformer classify --preset my_classifier "What a film!"
"""

import logging
import time

import keras
from absl import app, flags
from datasets import sst2

import keras_transformer as kt

FLAGS = flags.FLAGS
flags.DEFINE_string("preset", "minilm_l6_en", "Preset of the encoder.")
flags.DEFINE_integer("epochs", 1, "Passes over the training sentences.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Sentences of a training step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 5e-5, "Learning rate of AdamW.")
flags.DEFINE_integer("train_size", None, "Train on the first sentences only, for a quick look.")
flags.DEFINE_integer("seed", 0, "Seed of new weights, dropout and shuffling.")
flags.DEFINE_string("output", None, "Save the fine-tuned classifier as a preset here.")


def train(pretrained: bool) -> tuple[kt.TextClassifier, float, float]:
    """A classifier, its accuracy on the dev set and the seconds of its training."""
    keras.utils.set_random_seed(FLAGS.seed)
    classifier = kt.TextClassifier.from_preset(
        FLAGS.preset, load_weights=pretrained, labels=["negative", "positive"]
    )
    classifier.optimizer.learning_rate = FLAGS.learning_rate
    texts, labels = (rows[: FLAGS.train_size] for rows in sst2("train"))
    started = time.time()
    classifier.fit(texts, labels, batch_size=FLAGS.batch_size, epochs=FLAGS.epochs)
    seconds = time.time() - started
    return classifier, classifier.evaluate(*sst2("dev"), verbose=0)[1], seconds


def main(_):
    # That the layer of the two classes is new need not be said.
    logging.getLogger("keras_transformer").setLevel(logging.ERROR)
    print(f"{FLAGS.preset}, fine-tuned:")
    tuned, tuned_accuracy, tuned_seconds = train(pretrained=True)
    if FLAGS.output:
        tuned.save_to_preset(FLAGS.output)
        print(f"The classifier is in {FLAGS.output}.")
    print("\nThe same architecture, from scratch:")
    _, scratch_accuracy, scratch_seconds = train(pretrained=False)

    print(
        f"\nSST-2, {len(sst2('dev')[0])} dev sentences, {FLAGS.epochs} epoch(s), "
        f"{tuned.count_params():,} parameters, {keras.backend.backend()}\n\n"
        "                dev accuracy  training\n"
        f"  from scratch  {scratch_accuracy:12.1%}  {scratch_seconds:6.0f} s\n"
        f"  fine-tuned    {tuned_accuracy:12.1%}  {tuned_seconds:6.0f} s\n"
        f"  gain          {tuned_accuracy - scratch_accuracy:+12.1%}\n"
    )
    texts = sst2("dev")[0][:5]
    for text, (label, share) in zip(texts, tuned.classify(texts), strict=True):
        print(f"  {label}  {share:6.1%}  {text}")


if __name__ == "__main__":
    app.run(main)
