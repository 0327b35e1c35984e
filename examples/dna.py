"""Recognize splice sites of genes from the 60 bases around them, with a small transformer.

python examples/dna.py --sequences CCAGCTGCATCACAGGAGGCCAGCGAGCAGGTCTGTTCCAAGGGCCTTCGAGCCAGTCTG
python examples/dna.py --train --folds 5

Before a protein is made, introns are cut out of the copy of a gene and exons are joined. Between
the 30th and the 31st base an exon ends and an intron begins (EI, a donor), or an intron ends and an
exon begins (IE, an acceptor), or there is no splice site (N).

Without --train a preset classifies sequences, by default those of examples/data/splice_sites.tsv,
which it was not trained on, and draws how every other base at each place would change its answer.
With --train a model is trained and saved; with --folds it is first scored on parts of the data
that it was not trained on. No two parts have the same sequence.
"""

import pathlib
import tempfile

from runs import check_recipe, start, values

import keras_transformer as kt
from example_data import splice

import keras
import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("preset", "splice_sites", "Preset that classifies sequences.")
flags.DEFINE_list("sequences", [], "Sequences of 60 bases. By default those of examples/data.")
flags.DEFINE_string("output", "dna.png", "Path of the picture; with --train, of the preset.")
flags.DEFINE_boolean("train", False, "Train a model.")
flags.DEFINE_integer("folds", 0, "Number of folds of a cross-validation before.", lower_bound=0)
flags.DEFINE_integer("layers", 1, "Number of blocks.", lower_bound=1)
flags.DEFINE_integer("width", 64, "Width of the states.", lower_bound=8)
flags.DEFINE_integer(
    "convolution", 9, "Number of bases mixed by the convolution in the first block."
)
flags.DEFINE_integer("epochs", 20, "Passes over the sequences.", lower_bound=1)
flags.DEFINE_integer("batch_size", 128, "Sequences in a training step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 3e-3, "Peak of the learning rate, which then falls to 0.")
flags.DEFINE_float("dropout", 0.2, "Dropout rate.")
flags.DEFINE_float("label_smoothing", 0.1, "Share of a label that is spread over all classes.")
flags.DEFINE_integer("train_size", None, "Train on the first sequences only, for a quick look.")
flags.DEFINE_integer("seed", 0, "Seed of weights, order, dropout and parts.")
flags.DEFINE_string("work_dir", None, "Folder from which a killed run is resumed.")

LABELS = ("EI", "IE", "N")
LENGTH = 60
# Four bases, and the IUPAC letters for one of several bases: R is A or G, N any.
BASES, AMBIGUOUS = "ACGT", "RYSWKMBDHVN"
_SHIPPED = pathlib.Path(__file__).parent / "data" / "splice_sites.tsv"
_RECIPE = (
    "folds layers width convolution epochs batch_size learning_rate dropout label_smoothing "
    "train_size seed"
)


def make_classifier() -> kt.TextClassifier:
    """Build a model with the sizes of the flags and random weights."""
    bases = kt.Tokenizer.of_symbols(BASES + AMBIGUOUS, template="none")
    config = kt.TransformerConfig(
        kind="encoder",
        vocabulary_size=bases.vocabulary_size,
        hidden_dim=FLAGS.width,
        num_layers=FLAGS.layers,
        num_heads=max(FLAGS.width // 16, 1),
        intermediate_dim=2 * FLAGS.width,
        activation="gelu",
        normalize_first=True,
        position="learned",
        max_sequence_length=LENGTH,
        dropout=FLAGS.dropout,
        initializer_range=0.02,
        layer_pattern=[{"convolution_size": FLAGS.convolution}, *[{}] * (FLAGS.layers - 1)],
    )
    return kt.TextClassifier(kt.models.Encoder(config), bases, labels=list(LABELS), pooling="max")


def train(sequences: list[str], labels: list[str], work_dir: pathlib.Path) -> kt.TextClassifier:
    """Train a classifier on these sequences."""
    keras.utils.set_random_seed(FLAGS.seed)
    classifier = make_classifier()
    soft = np.eye(len(LABELS), dtype="float32")[[LABELS.index(label) for label in labels]]
    soft = soft * (1 - FLAGS.label_smoothing) + FLAGS.label_smoothing / len(LABELS)
    dataset = classifier.make_dataset(
        sequences, soft, batch_size=FLAGS.batch_size, shuffle=True, seed=FLAGS.seed
    )
    steps = len(dataset) * FLAGS.epochs
    rate = kt.training.LinearDecay(FLAGS.learning_rate, steps, warmup_steps=steps // 10)
    classifier.compile(
        keras.optimizers.AdamW(rate, weight_decay=0.05, beta_2=0.99, global_clipnorm=1.0)
    )
    run = kt.training.ResumableRun(work_dir, dataset)
    classifier.fit(dataset, epochs=FLAGS.epochs, callbacks=[run], verbose=0)
    return classifier


def folds_of(sequences: list[str]) -> np.ndarray:
    """Return the fold of each sequence; equal sequences are in the same fold."""
    different = sorted(set(sequences))
    order = np.random.default_rng(FLAGS.seed).permutation(len(different))
    part = {
        name: i * FLAGS.folds // len(different) for name, i in zip(different, order, strict=True)
    }
    return np.array([part[sequence] for sequence in sequences])


def cross_validate(sequences: list[str], labels: list[str], work_dir: pathlib.Path) -> float:
    """Return the cross-validated accuracy, and print it by class."""
    parts = folds_of(sequences)
    right = np.zeros(len(sequences), bool)
    for fold in range(FLAGS.folds):
        seen, unseen = np.flatnonzero(parts != fold), np.flatnonzero(parts == fold)
        classifier = train(
            [sequences[i] for i in seen], [labels[i] for i in seen], work_dir / f"fold_{fold}"
        )
        found = classifier.classify([sequences[i] for i in unseen])
        right[unseen] = [label == labels[i] for i, (label, _) in zip(unseen, found, strict=True)]
        print(f"part {fold}: {right[unseen].mean():.1%} of {len(unseen)} unseen", flush=True)
    for label in LABELS:
        print(f"  {label:<2} {right[np.array(labels) == label].mean():.1%}")
    print(f"accuracy of all {len(right):,}, each unseen: {right.mean():.2%}", flush=True)
    return float(right.mean())


def train_and_save(work_dir: pathlib.Path) -> None:
    """Cross-validate the recipe if requested, then train a model on all data and save it."""
    shipped = {sequence for sequence, _ in read(_SHIPPED)}
    rows = [row for row in zip(*splice(), strict=True) if row[0] not in shipped]
    sequences, labels = (list(column) for column in zip(*rows[: FLAGS.train_size], strict=True))
    scores = {}
    if FLAGS.folds:
        accuracy = cross_validate(sequences, labels, work_dir)
        scores["cross_validated_accuracy"] = round(accuracy, 4)
    classifier = train(sequences, labels, work_dir / "all")
    print(f"{classifier.count_params():,} parameters, {len(sequences):,} sequences")
    if FLAGS["output"].present:
        metadata = {
            "family": "transformer",
            "description": "Tells splice sites of DNA by the 60 bases around them.",
            "source": "trained with examples/dna.py",
            "license": "apache-2.0",
        }
        classifier.save_to_preset(FLAGS.output, dtype="float16", metadata=metadata | scores)
        print(f"The classifier is in {FLAGS.output}.")


def read(path: pathlib.Path) -> list[tuple[str, str]]:
    """Return the sequences of a file of this project, and their labels."""
    rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    return [(sequence, label) for sequence, label in rows]


def effects(classifier: kt.TextClassifier, sequence: str) -> np.ndarray:
    """Effect of each base at each place on the log-odds of the found class, `(4, LENGTH)`.

    Every base is replaced by each of the four in turn, and the model is run again: in-silico
    mutagenesis (Alipanahi et al. 2015, "DeepBind").
    """
    changed = [
        sequence[:place] + base + sequence[place + 1 :] for base in BASES for place in range(LENGTH)
    ]
    logits = classifier.predict([sequence, *changed], batch_size=256, verbose=0).astype("float64")
    found = logits[0].argmax()
    others = np.delete(logits, found, axis=1)
    odds = logits[:, found] - np.logaddexp.reduce(others, axis=1)
    return (odds[1:] - odds[0]).reshape(len(BASES), LENGTH)


def look() -> None:
    """Classify sequences, print the predictions, and draw the effects of other bases."""
    rows = [(sequence.upper(), "") for sequence in FLAGS.sequences] or read(_SHIPPED)
    for number, (sequence, _) in enumerate(rows):
        if len(sequence) != LENGTH:
            raise app.UsageError(
                f"Sequence {number} has {len(sequence)} bases: give {LENGTH}, the place that is "
                "asked about in the middle."
            )
    classifier = kt.TextClassifier.from_preset(FLAGS.preset)
    found = classifier.classify([sequence for sequence, _ in rows])
    for (sequence, truth), (label, probability) in zip(rows, found, strict=True):
        middle = f"{sequence[:30]} {sequence[30:]}"
        said = f"{label:<2} {probability:.1%}" + (f"  (it is {truth})" if truth else "")
        print(f"{middle}  {said}")
    draw([sequence for sequence, _ in rows], found, classifier)
    print(f"The picture is in {FLAGS.output}.")


def draw(sequences: list[str], found: list, classifier: kt.TextClassifier) -> None:
    """Draw the effects of other bases for each sequence: red is against the predicted class."""
    from matplotlib import pyplot

    maps = [effects(classifier, sequence) for sequence in sequences]
    most = max(1.0, float(np.max(np.abs(maps))))
    figure, axes = pyplot.subplots(
        len(maps), 1, figsize=(13, 1.7 * len(maps) + 0.4), squeeze=False, layout="constrained"
    )
    for axis, sequence, (label, probability), change in zip(
        axes[:, 0], sequences, found, maps, strict=True
    ):
        image = axis.imshow(change, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
        axis.set_yticks(range(len(BASES)), BASES)
        axis.set_xticks(range(LENGTH), sequence)
        axis.tick_params(length=0, labelsize=8)
        axis.axvline(LENGTH / 2 - 0.5, color="black", linewidth=1)
        axis.set_title(f"{label}, {probability:.1%}", fontsize=10, loc="left")
    figure.colorbar(image, ax=axes, label="change of the log-odds\nof the class found", pad=0.01)
    figure.savefig(FLAGS.output, dpi=110)
    pyplot.close(figure)


def main(_):
    if not FLAGS.train:
        look()
    elif FLAGS.work_dir:
        check_recipe(pathlib.Path(FLAGS.work_dir), values(_RECIPE))
        train_and_save(pathlib.Path(FLAGS.work_dir))
    else:
        with tempfile.TemporaryDirectory() as folder:
            train_and_save(pathlib.Path(folder))


if __name__ == "__main__":
    start(main)
