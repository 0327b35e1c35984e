"""Classify the sentiment of film reviews (SST-2), with a pretrained encoder and from scratch.

python examples/classification.py --output my_classifier
keras-transformer classify --preset my_classifier "What a film!"
"""

import logging
import statistics
import tempfile
import time

from runs import start

import keras_transformer as kt
from example_data import sst2

import keras
import numpy as np
from absl import flags
from keras import ops

FLAGS = flags.FLAGS
flags.DEFINE_string("preset", "minilm_l6_en", "Preset of the encoder.")
flags.DEFINE_integer("epochs", 1, "Passes over the training sentences.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Sentences in a training step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 5e-5, "Peak of the learning rate, which then falls to 0.")
flags.DEFINE_float("layer_decay", 1.0, "Learning rate of a layer relative to the layer above.")
flags.DEFINE_enum(
    "pooling",
    "first",
    ["first", "mean", "max"],
    "Pooling of the states: first token, mean or maximum.",
)
flags.DEFINE_float("dropout", None, "Dropout rate; defaults to the encoder's own.")
flags.DEFINE_float(
    "adversarial_norm",
    0.0,
    "Norm of the adversarial step, relative to the embeddings; 0 turns it off.",
)
flags.DEFINE_integer("average", 1, "Number of checkpoints to average, 50 steps apart.")
flags.DEFINE_integer("runs", 1, "Number of runs, each with the next seed.", lower_bound=1)
flags.DEFINE_boolean("soup", False, "Also average the weights of the runs that improve the mean.")
flags.DEFINE_enum(
    "dtype",
    None,
    ["float32", "mixed_bfloat16", "mixed_float16"],
    "Precision; mixed_bfloat16 is faster on many CPUs and GPUs.",
)
flags.DEFINE_boolean("scratch", True, "Also train the same architecture from scratch.")
flags.DEFINE_integer("train_size", None, "Train on the first sentences only, for a quick look.")
flags.DEFINE_integer("seed", 0, "Seed of new weights, dropout and shuffling.")
flags.DEFINE_string("output", None, "Save the best classifier as a preset here.")


def train(pretrained: bool, seed: int) -> tuple[kt.TextClassifier, float, float]:
    """Return a trained classifier, its accuracy on the dev set, and the seconds of training."""
    # Only runs with the same initial weights can be averaged.
    keras.utils.set_random_seed(FLAGS.seed)
    rates = {} if FLAGS.dropout is None else {"dropout": FLAGS.dropout}
    classifier = kt.TextClassifier.from_preset(
        FLAGS.preset,
        load_weights=pretrained,
        labels=["negative", "positive"],
        pooling=FLAGS.pooling,
        dtype=FLAGS.dtype,
        **rates,
    )
    keras.utils.set_random_seed(seed)
    texts, labels = (rows[: FLAGS.train_size] for rows in sst2("train"))
    started = time.time()
    dataset = classifier.make_dataset(
        texts, labels, batch_size=FLAGS.batch_size, shuffle=True, seed=seed
    )
    steps = len(dataset) * FLAGS.epochs
    classifier.compile(
        kt.training.FineTuningAdamW(
            kt.training.LinearDecay(FLAGS.learning_rate, steps, warmup_steps=steps // 10),
            layer_decay=FLAGS.layer_decay if pretrained else 1.0,
        ),
        classifier.loss,
        metrics=["accuracy"],
        adversarial_norm=FLAGS.adversarial_norm,
    )
    with tempfile.TemporaryDirectory() as folder:
        last = kt.training.LastCheckpoints(folder, keep=FLAGS.average, every=50)
        callbacks = [last] if FLAGS.average > 1 else []
        classifier.fit(dataset, epochs=FLAGS.epochs, callbacks=callbacks)
        if callbacks:
            last.average_into(classifier)
    seconds = time.time() - started
    return classifier, classifier.evaluate(*sst2("dev"), verbose=0)[1], seconds


def make_soup(classifiers: list[kt.TextClassifier], accuracies: list[float]) -> float:
    """Average the best classifier with the runs that improve it on the dev set.

    Source: Wortsman et al. 2022, "Model soups", section 2 (the greedy soup).
    """
    order = sorted(range(len(classifiers)), key=lambda i: -accuracies[i])
    # Copies: PyTorch's arrays are the weights themselves.
    weights = [
        [np.array(ops.convert_to_numpy(v)) for v in classifiers[i].trainable_variables]
        for i in order
    ]
    best, accuracy, chosen = classifiers[order[0]], accuracies[order[0]], weights[:1]
    for others in weights[1:]:
        _assign_mean(best, [*chosen, others])
        reached = best.evaluate(*sst2("dev"), verbose=0)[1]
        if reached >= accuracy:
            accuracy, chosen = reached, [*chosen, others]
    _assign_mean(best, chosen)
    return accuracy


def _assign_mean(classifier: kt.TextClassifier, weights: list[list[np.ndarray]]) -> None:
    for variable, *same in zip(classifier.trainable_variables, *weights, strict=True):
        variable.assign(np.mean(same, axis=0))


def main(_):
    # Hide the warning that the layer of the two classes is new.
    logging.getLogger("keras_transformer").setLevel(logging.ERROR)
    print(f"{FLAGS.preset}, fine-tuned:")
    accuracies, times, classifiers = [], [], []
    for seed in range(FLAGS.seed, FLAGS.seed + FLAGS.runs):
        classifier, accuracy, seconds = train(pretrained=True, seed=seed)
        if FLAGS.runs > 1:
            print(f"seed {seed}: {accuracy:.2%} of the dev sentences", flush=True)
        classifiers.append(classifier)
        accuracies.append(accuracy)
        times.append(seconds)
    tuned = classifiers[accuracies.index(max(accuracies))]
    of_soup = make_soup(classifiers, accuracies) if FLAGS.soup else None
    if FLAGS.output:
        tuned.save_to_preset(FLAGS.output)
        print(f"The classifier is in {FLAGS.output}.")
    rows = [("fine-tuned", max(accuracies), statistics.mean(times))]
    if FLAGS.scratch:
        print("\nThe same architecture, from scratch:")
        rows.insert(0, ("from scratch", *train(pretrained=False, seed=FLAGS.seed)[1:]))

    print(
        f"\nSST-2, {len(sst2('dev')[0])} dev sentences, {FLAGS.epochs} epoch(s), "
        f"{tuned.count_params():,} parameters, {keras.backend.backend()}\n\n"
        "                dev accuracy  training"
    )
    for name, accuracy, seconds in rows:
        print(f"  {name:12s}  {accuracy:12.1%}  {seconds:6.0f} s")
    if FLAGS.scratch:
        print(f"  gain          {rows[1][1] - rows[0][1]:+12.1%}")
    if FLAGS.runs > 1:
        spread = statistics.stdev(accuracies)
        print(
            f"\n  {FLAGS.runs} seeds: best {max(accuracies):.2%}, "
            f"mean {statistics.mean(accuracies):.2%}, standard deviation {spread:.2%}"
        )
    if of_soup is not None:
        print(f"  the mean of the weights of those that help: {of_soup:.2%}")
    print()
    texts = sst2("dev")[0][:5]
    for text, (label, share) in zip(texts, tuned.classify(texts), strict=True):
        print(f"  {label}  {share:6.1%}  {text}")


if __name__ == "__main__":
    start(main)
