"""The transformer beside what it replaced: bags of words, convolutions, recurrent networks.

python examples/comparison.py --what texts --epochs 5
python examples/comparison.py --what recall --output recall.png
python examples/comparison.py --what length --output length.png

texts: the sentiment of film reviews (SST-2), by models of like size, each tuned alike: every one
tries the same learning rates on a part of the training sentences that is held out, and is then
scored on the dev sentences once. recall: which token stood k places before, for k up to 500.
length: the time of a training step on as many tokens, in ever longer sequences.
"""

import dataclasses
import time
from collections.abc import Callable

from runs import start

import keras_transformer as kt
from baselines import bag_of_words, fast_text, lstm, recurrent, text_cnn
from example_data import sst2

import keras
import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_enum("what", "texts", ["texts", "recall", "length"], "What is compared.")
flags.DEFINE_list("models", [], "Only these, by the names that the table has. By default all.")
flags.DEFINE_integer("epochs", 4, "Passes over the training sentences, at most.", lower_bound=1)
flags.DEFINE_list("rates", ["0.0005", "0.001", "0.003"], "Learning rates that each model tries.")
flags.DEFINE_float("reach", 0.78, "The accuracy whose time is told.")
flags.DEFINE_integer("steps", 1500, "Training steps of each model that recalls.", lower_bound=1)
flags.DEFINE_list("distances", ["1", "10", "50", "100", "200", "500"], "How far back, for recall.")
flags.DEFINE_list("lengths", ["32", "128", "512", "2048"], "Tokens of a sequence, for length.")
flags.DEFINE_integer("tokens", 8192, "Tokens of a step, for length.", lower_bound=1)
flags.DEFINE_integer("batch_size", 64, "Sequences of a step.", lower_bound=1)
flags.DEFINE_integer("vocabulary_size", 8000, "Pieces of words that all models share.")
flags.DEFINE_integer("train_size", None, "Train on the first sentences only, for a quick look.")
flags.DEFINE_string("output", None, "A picture of recall or length.")
flags.DEFINE_integer("seed", 1, "Seed of weights and order.")

_WINDOW = 64
_SYMBOLS = 16


@dataclasses.dataclass
class Trained:
    """What a training reached: the accuracy after each epoch, and the seconds until then."""

    model: keras.Model
    held_out: list[float]
    seconds: list[float]
    tokens_per_second: float


def encoder_from_scratch(vocabulary: int, classes: int) -> keras.Model:
    """A small transformer, about as large as the others."""
    config = kt.TransformerConfig(
        kind="encoder",
        vocabulary_size=vocabulary,
        hidden_dim=128,
        num_layers=2,
        num_heads=4,
        intermediate_dim=256,
        activation="gelu",
        normalize_first=True,
        position="learned",
        max_sequence_length=128,
        dropout=0.3,
        initializer_range=0.02,
    )
    return kt.TextClassifier(kt.models.Encoder(config), num_classes=classes, pooling="mean")


# Whatever reads words, by the name in the table, and a published accuracy on all of SST-2.
TEXT_MODELS: dict[str, tuple[Callable, str]] = {
    "bag of words": (bag_of_words, ""),
    "fastText": (fast_text, ""),
    "TextCNN": (text_cnn, "87.2 (Kim 2014, vectors of word2vec)"),
    "BiLSTM": (lstm, ""),
    "BiLSTM with attention": (lambda v, c: lstm(v, c, attention=True), ""),
    "encoder from scratch": (encoder_from_scratch, ""),
}
PRETRAINED = "pretrained encoder"


class _Ids(keras.utils.PyDataset):
    """The batches of a `kt` dataset for models of Keras, which take ids alone."""

    def __init__(self, dataset):
        super().__init__()
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        inputs, labels, *_ = self.dataset[index]
        return inputs["token_ids"], labels

    def on_epoch_end(self):
        self.dataset.on_epoch_end()


class _Watch(keras.callbacks.Callback):
    """The accuracy on held-out sentences after each epoch; its time does not count."""

    def __init__(self, score: Callable[[], float]):
        super().__init__()
        self.score, self.found, self.seconds, self.spent = score, [], [], 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.spent += time.perf_counter() - self.began
        self.seconds.append(self.spent)
        self.found.append(self.score())


def reader() -> tuple[kt.TextClassifier, list, list]:
    """What makes ids of sentences for all models; training and held-out sentences with labels."""
    texts, labels = (rows[: FLAGS.train_size] for rows in sst2("train"))
    order = np.random.default_rng(FLAGS.seed).permutation(len(texts))
    rows = [(texts[i], labels[i]) for i in order]
    tokenizer = kt.Tokenizer.train(
        texts, kind="wordpiece", vocabulary_size=FLAGS.vocabulary_size, lowercase=True
    )
    classifier = encoder_from_scratch(tokenizer.vocabulary_size, 2)
    of_texts = kt.TextClassifier(classifier.backbone, tokenizer, num_classes=2, pooling="mean")
    count = max(1, len(rows) // 20)
    return of_texts, rows[count:], rows[:count]


def batches(task: kt.TextClassifier, rows: list, shuffle: bool):
    texts, labels = (list(column) for column in zip(*rows, strict=True))
    return task.make_dataset(
        texts, labels, batch_size=FLAGS.batch_size, shuffle=shuffle, seed=FLAGS.seed
    )


def trained(model: keras.Model, task, rows: list, held_out: list, rate: float) -> Trained:
    """A model after its epochs."""
    dataset, watched = batches(task, rows, True), batches(task, held_out, False)
    ours = isinstance(model, kt.TextClassifier)
    steps = len(dataset) * FLAGS.epochs
    model.compile(
        keras.optimizers.AdamW(kt.training.LinearDecay(rate, steps, steps // 10), 0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    shown = watched if ours else _Ids(watched)
    watch = _Watch(lambda: model.evaluate(shown, verbose=0)[1])
    model.fit(dataset if ours else _Ids(dataset), epochs=FLAGS.epochs, callbacks=[watch], verbose=0)
    speed = dataset.tokens_per_epoch * FLAGS.epochs / watch.seconds[-1]
    return Trained(model, watch.found, watch.seconds, speed)


def compare_texts() -> None:
    """Prints a line for each model of texts."""
    task, rows, held_out = reader()
    print(f"{len(rows):,} sentences, {len(held_out):,} held out, {keras.backend.backend()}\n")
    title = f"time to {FLAGS.reach:.0%}"
    columns = f"{'model':<22}{'parameters':>12}{'rate':>8}{'dev':>8}{'tokens/s':>10}{title:>13}"
    print(f"{columns}  published")
    makers = {name: maker for name, maker in TEXT_MODELS.items() if asked(name)}
    for name, (maker, published) in makers.items():
        best, chosen = None, 0.0
        for rate in map(float, FLAGS.rates):
            keras.utils.set_random_seed(FLAGS.seed)
            made = maker(task.backbone.config.vocabulary_size, 2)
            found = trained(made, task, rows, held_out, rate)
            if best is None or max(found.held_out) > max(best.held_out):
                best, chosen = found, rate
        tell(name, best, chosen, task, published)
    if asked(PRETRAINED):
        pretrained = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
        keras.utils.set_random_seed(FLAGS.seed)
        tell(PRETRAINED, trained(pretrained, pretrained, rows, held_out, 5e-5), 5e-5, pretrained)


def asked(name: str) -> bool:
    """Whether a model is one of `--models`."""
    return not FLAGS.models or name in FLAGS.models


def tell(name: str, found: Trained, rate: float, task, published: str = "") -> None:
    """Prints the line of a model; the dev sentences are looked at here alone."""
    texts, labels = sst2("dev")
    dev = batches(task, list(zip(texts, labels, strict=True)), False)
    ours = isinstance(found.model, kt.TextClassifier)
    accuracy = found.model.evaluate(dev if ours else _Ids(dev), verbose=0)[1]
    times = [s for s, x in zip(found.seconds, found.held_out, strict=True) if x >= FLAGS.reach]
    reached = f"{times[0]:.0f} s" if times else "not reached"
    print(
        f"{name:<22}{found.model.count_params():>12,}{rate:>8g}{accuracy:>8.1%}"
        f"{found.tokens_per_second:>10,.0f}{reached:>13}  {published}",
        flush=True,
    )


def decoder(vocabulary: int, width: int, window: int | None = None) -> keras.Model:
    """Two blocks that see what came before: all of it, or so many places."""
    config = kt.TransformerConfig(
        kind="decoder",
        vocabulary_size=vocabulary,
        hidden_dim=width,
        num_layers=2,
        num_heads=4,
        intermediate_dim=2 * width,
        normalize_first=True,
        position="rotary",
        dropout=0.0,
        window=window,
    )
    return kt.CausalLM(kt.models.Decoder(config))


SEQUENCE_MODELS: dict[str, Callable[[int], keras.Model]] = {
    "RNN": lambda vocabulary: recurrent(keras.layers.SimpleRNN, vocabulary, 128),
    "LSTM": lambda vocabulary: recurrent(keras.layers.LSTM, vocabulary, 128),
    f"attention to {_WINDOW}": lambda vocabulary: decoder(vocabulary, 64, _WINDOW),
    "attention": lambda vocabulary: decoder(vocabulary, 64),
}


def compiled(model: keras.Model, rate: float = 2e-3) -> keras.Model:
    model.compile(
        keras.optimizers.Adam(rate, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )
    return model


def recall_rows(distance: int, count: int, random) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random symbols, those that stood `distance` places before, and where that is asked."""
    length = distance + 32
    ids = random.integers(1, _SYMBOLS, (count, length)).astype("int32")
    targets = np.roll(ids, distance, axis=1)
    counted = np.broadcast_to(np.arange(length) >= distance, ids.shape).astype("float32")
    return ids, targets, counted


def compare_recall() -> dict[str, list[float]]:
    """The share of symbols that each model recalls, by how far back they stood."""
    distances, found = list(map(int, FLAGS.distances)), {}
    print(f"{'recalled, of so far back':<26}" + "".join(f"{d:>8}" for d in distances))
    for name, maker in SEQUENCE_MODELS.items():
        if not asked(name):
            continue
        found[name] = []
        for distance in distances:
            keras.utils.set_random_seed(FLAGS.seed)
            random = np.random.default_rng(FLAGS.seed)
            model = compiled(maker(_SYMBOLS))
            for _ in range(FLAGS.steps):
                ids, targets, counted = recall_rows(distance, FLAGS.batch_size // 4 or 1, random)
                model.train_on_batch(of(model, ids), targets, counted)
            ids, targets, counted = recall_rows(distance, 64, random)
            logits = np.asarray(model.predict(of(model, ids), verbose=0))
            right = (logits.argmax(axis=-1) == targets)[counted > 0]
            found[name].append(float(right.mean()))
        print(f"{name:<26}" + "".join(f"{x:>8.1%}" for x in found[name]), flush=True)
    return found


def of(model: keras.Model, ids: np.ndarray):
    """Ids as a model takes them."""
    return {"token_ids": ids} if isinstance(model, kt.CausalLM) else ids


def compare_lengths() -> dict[str, list[float]]:
    """Milliseconds of a training step on as many tokens, by the length of a sequence."""
    lengths, found = list(map(int, FLAGS.lengths)), {}
    print(f"{'ms a step, of length':<26}" + "".join(f"{n:>8}" for n in lengths))
    for name, maker in SEQUENCE_MODELS.items():
        if not asked(name):
            continue
        found[name] = []
        for length in lengths:
            model = compiled(maker(_SYMBOLS))
            rows = max(1, FLAGS.tokens // length)
            ids = np.random.default_rng(0).integers(1, _SYMBOLS, (rows, length)).astype("int32")
            times = []
            for _ in range(5):
                began = time.perf_counter()
                model.train_on_batch(of(model, ids), ids)
                times.append(time.perf_counter() - began)
            found[name].append(1000 * float(np.median(times[2:])))
        print(f"{name:<26}" + "".join(f"{x:>8.0f}" for x in found[name]), flush=True)
    return found


def draw(found: dict[str, list[float]], across: list[int], x: str, y: str, path: str) -> None:
    """A line for each model."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for (name, values), mark in zip(found.items(), "osD^", strict=False):
        axes.plot(across, values, marker=mark, label=name)
    axes.set(xlabel=x, ylabel=y, xscale="log", xticks=across, xticklabels=across)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    print(f"The picture is in {path}.")


def main(_):
    known = {*TEXT_MODELS, PRETRAINED, *SEQUENCE_MODELS}
    unknown = [name for name in FLAGS.models if name not in known]
    if unknown:
        raise app.UsageError(f"--models has {unknown[0]!r}. Known are: {', '.join(sorted(known))}.")
    if FLAGS.what == "texts":
        compare_texts()
    elif FLAGS.what == "recall":
        found, across = compare_recall(), list(map(int, FLAGS.distances))
        if FLAGS.output:
            draw(found, across, "places back", "share recalled", FLAGS.output)
    else:
        found, across = compare_lengths(), list(map(int, FLAGS.lengths))
        if FLAGS.output:
            draw(found, across, "tokens of a sequence", "ms of a training step", FLAGS.output)


if __name__ == "__main__":
    start(main)
