"""Compare the transformer with what it replaced: bags of words, convolutions, recurrent networks.

python examples/comparison.py --what texts
python examples/comparison.py --what translation
python examples/comparison.py --what recall --output recall.png
python examples/comparison.py --what length --output length.png

texts: the sentiment of film reviews (SST-2). translation: descriptions of images, from English to
German (Multi30k). In both, models of similar size are tuned alike: each tries the same learning
rates, keeps the best one on sentences held out of training, and is scored once on others. With
several seeds all is done for each, and the lowest and highest numbers are printed. recall:
which token stood k places back, for k up to 500. length: the time of a training step with the same
number of tokens, in longer and longer sequences.
"""

from runs import start

import keras_transformer as kt
from baselines import LSTMTranslator, bag_of_words, fast_text, lstm, text_cnn
from contests import Contender, Contest, print_spread, table
from example_data import multi30k, sst2
from sequences import SEQUENCE_MODELS, compare_lengths, compare_recall, draw

import keras
import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_enum("what", "texts", ["texts", "translation", "recall", "length"], "What to compare.")
flags.DEFINE_list("models", [], "Names of models in the table. Defaults to all.")
flags.DEFINE_integer(
    "epochs",
    None,
    "Passes over the data. Defaults to 8 for texts, 10 for translation.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "tuning_epochs",
    None,
    "Passes for each rate. Defaults to 8 for texts, 2 for translation.",
    lower_bound=1,
)
flags.DEFINE_list("rates", ["0.0005", "0.001", "0.003"], "Learning rates that each model tries.")
flags.DEFINE_float("goal", None, "Score to time. Defaults to accuracy 0.78 or BLEU 0.25.")
flags.DEFINE_integer("steps", 1500, "Training steps of each model, for recall.", lower_bound=1)
flags.DEFINE_list("distances", ["1", "10", "50", "100", "200", "500"], "How far back, for recall.")
flags.DEFINE_list("lengths", ["32", "128", "512", "2048"], "Tokens of a sequence, for length.")
flags.DEFINE_integer("tokens", 8192, "Tokens of a step, for length.", lower_bound=1)
flags.DEFINE_integer("batch_size", 64, "Sequences of a step; 16 for recall.", lower_bound=1)
flags.DEFINE_integer("vocabulary_size", 8000, "Size of the shared subword vocabulary.")
flags.DEFINE_integer("train_size", None, "Train on the first sentences only, for a quick look.")
flags.DEFINE_integer("test_size", None, "Maximum number of sentences to hold out and test on.")
flags.DEFINE_string("output", None, "Path of a picture, for recall and length.")
flags.DEFINE_list("seeds", ["1"], "Seeds of weights and order, one for each run.")

_MOST = 64  # maximum number of tokens in a translated sentence


def encoder(vocabulary: int) -> kt.models.Encoder:
    """Build an encoder of two small blocks."""
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
    return kt.models.Encoder(config)


def classifiers(tokenizer: kt.Tokenizer) -> dict[str, Contender]:
    """Return the classifiers, by their names in the table."""
    size = tokenizer.vocabulary_size

    def from_scratch():
        return kt.TextClassifier(encoder(size), tokenizer, num_classes=2, pooling="mean")

    def pretrained():
        return kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)

    return {
        "bag of words": Contender(lambda: bag_of_words(size, 2), rates=10),
        "fastText": Contender(lambda: fast_text(size, 2), rates=3),
        "TextCNN": Contender(lambda: text_cnn(size, 2), "87.2 with phrases and word2vec"),
        "BiLSTM": Contender(lambda: lstm(size, 2)),
        "BiLSTM with attention": Contender(lambda: lstm(size, 2, attention=True)),
        "encoder from scratch": Contender(from_scratch),
        "pretrained encoder": Contender(pretrained, rates=0.05),
    }


def texts(seed: int) -> tuple[Contest, dict[str, Contender]]:
    """Compare models on sentences of film reviews; every twentieth sentence is held out."""
    train = list(zip(*sst2("train"), strict=True))[: FLAGS.train_size]
    order = np.random.default_rng(seed).permutation(len(train))
    count = max(1, len(train) // 20)
    held_out, rows = ([train[i] for i in part] for part in (order[:count], order[count:]))
    dev = list(zip(*sst2("dev"), strict=True))[: FLAGS.test_size]
    tokenizer = kt.Tokenizer.train(
        [text for text, _ in rows],
        kind="wordpiece",
        vocabulary_size=FLAGS.vocabulary_size,
        lowercase=True,
    )
    reader = kt.TextClassifier(
        encoder(tokenizer.vocabulary_size), tokenizer, num_classes=2, pooling="mean"
    )

    def batches(model, part=rows, shuffle=True):
        columns = (list(column) for column in zip(*part, strict=True))
        task = model if isinstance(model, kt.TextClassifier) else reader
        return task.make_dataset(*columns, batch_size=FLAGS.batch_size, shuffle=shuffle, seed=seed)

    def read(model, batch):
        return (
            batch if isinstance(model, kt.TextClassifier) else (batch[0]["token_ids"], *batch[1:])
        )

    def prepare(model, rate, steps):
        model.compile(
            keras.optimizers.AdamW(kt.training.LinearDecay(rate, steps, steps // 10), 0.01),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )

    def accuracy(part):
        def score(model):
            dataset = batches(model, part, shuffle=False)
            found = [
                (np.argmax(model.predict_on_batch(read(model, batch)[0]), axis=-1) == batch[1])
                for batch in (dataset[i] for i in range(len(dataset)))
            ]
            return float(np.mean(np.concatenate(found)))

        return score

    goal = 0.78 if FLAGS.goal is None else FLAGS.goal
    contest = Contest(batches, read, prepare, accuracy(held_out), accuracy(dev), goal, parts=4)
    print(f"{len(rows):,} sentences, {len(held_out):,} held out, {len(dev):,} to score\n")
    return contest, classifiers(tokenizer)


def transformer(tokenizer: kt.Tokenizer) -> kt.Seq2SeqLM:
    """Build a transformer with as many parameters as the recurrent translators."""
    config = kt.TransformerConfig(
        kind="seq2seq",
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=192,
        num_layers=3,
        num_heads=4,
        intermediate_dim=384,
        normalize_first=True,
        dropout=0.3,
        scale_embedding=True,
    )
    return kt.Seq2SeqLM(kt.models.Seq2Seq(config), tokenizer)


def translators(tokenizer: kt.Tokenizer) -> dict[str, Contender]:
    """Return the translators, by their names in the table."""
    size = tokenizer.vocabulary_size
    return {
        "LSTM": Contender(lambda: LSTMTranslator(size, 192), "13.8 from German (LSTM)"),
        "additive attention": Contender(
            lambda: LSTMTranslator(size, 192, "additive"), "33.7 to 38.1 (GRU)"
        ),
        "general attention": Contender(lambda: LSTMTranslator(size, 192, "general")),
        "Transformer": Contender(lambda: transformer(tokenizer), "41.0 (tiny)"),
    }


def translation(seed: int) -> tuple[Contest, dict[str, Contender]]:
    """Compare translators of image descriptions; 300 of the validation part are held out."""
    source, target = (multi30k("train", x)[: FLAGS.train_size] for x in ("en", "de"))
    tokenizer = kt.Tokenizer.train(
        source + target, kind="bpe", vocabulary_size=FLAGS.vocabulary_size, lowercase=True
    )
    reader = transformer(tokenizer)

    def batches(model):
        return reader.make_dataset(
            source, target, batch_size=FLAGS.batch_size, shuffle=True, seed=seed
        )

    def prepare(model, rate, steps):
        model.compile(
            keras.optimizers.Adam(
                kt.training.LinearDecay(rate, steps, steps // 10), beta_2=0.98, global_clipnorm=1.0
            ),
            kt.training.TokenCrossEntropy(label_smoothing=0.1),
        )

    def bleu(split, count):
        sources, references = (multi30k(split, x)[:count] for x in ("en", "de"))

        def score(model):
            metric = kt.training.BLEU(tokenize="none")
            metric.update_state(references, translated(model, tokenizer, sources))
            return float(metric.result()) / 100

        return score

    goal = 0.25 if FLAGS.goal is None else FLAGS.goal
    held_out = bleu("val", min(300, FLAGS.test_size or 300))
    final = bleu("test_2016_flickr", FLAGS.test_size)
    contest = Contest(batches, lambda model, batch: batch, prepare, held_out, final, goal)
    print(f"{len(source):,} pairs, {tokenizer.vocabulary_size:,} pieces of words\n")
    return contest, translators(tokenizer)


def translated(model: keras.Model, tokenizer: kt.Tokenizer, sources: list[str]) -> list[str]:
    """Translate each sentence greedily."""
    if isinstance(model, kt.Seq2SeqLM):
        return model.generate(sources, max_new_tokens=_MOST)
    ids = [row[:_MOST] for row in tokenizer.encode_batch(sources)]
    padded = np.zeros((len(ids), _MOST), "int32")
    for row, found in zip(padded, ids, strict=True):
        row[: len(found)] = found
    written = model.translate(padded, tokenizer.start_id, tokenizer.end_id, _MOST)
    return tokenizer.decode_batch(written)


# The axes of the pictures.
DRAWN = {
    "recall": ("places back", "share recalled"),
    "length": ("tokens of a sequence", "ms of a training step"),
}
# The function, the name of its score, passes over the data to train and to tune.
CONTESTS = {"texts": (texts, "dev", 8, 8), "translation": (translation, "BLEU", 10, 2)}


def chosen(names) -> list[str]:
    """Return the names given by `--models`, or all."""
    unknown = [name for name in FLAGS.models if name not in names]
    if unknown:
        known = ", ".join(sorted(names))
        raise app.UsageError(f"--models has {unknown[0]!r}. Known of {FLAGS.what} are: {known}.")
    return [name for name in names if not FLAGS.models or name in FLAGS.models]


def compare(seed: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Compare with one seed. Returns the numbers of each model, and the formats of the columns."""
    if FLAGS.what == "recall":
        distances = list(map(int, FLAGS.distances))
        rows = max(1, FLAGS.batch_size // 4)
        found = compare_recall(chosen(SEQUENCE_MODELS), distances, FLAGS.steps, rows, seed)
        return found, dict.fromkeys(FLAGS.distances, ".0%")
    if FLAGS.what == "length":
        lengths = list(map(int, FLAGS.lengths))
        found = compare_lengths(chosen(SEQUENCE_MODELS), lengths, FLAGS.tokens)
        return found, dict.fromkeys(FLAGS.lengths, ".0f")
    make, score, epochs, tuning_epochs = CONTESTS[FLAGS.what]
    contest, contenders = make(seed)
    found = table(
        contest,
        {name: contenders[name] for name in chosen(contenders)},
        score,
        rates=list(map(float, FLAGS.rates)),
        epochs=FLAGS.epochs or epochs,
        tuning_epochs=FLAGS.tuning_epochs or tuning_epochs,
        seed=seed,
    )
    return found, {"held out": ".1%", score: ".1%", "tokens/s": ",.0f"}


def main(_):
    runs = []
    for seed in map(int, FLAGS.seeds):
        found, columns = compare(seed)
        runs.append(found)
    if len(runs) > 1:
        print_spread(runs, columns)
    if FLAGS.output and FLAGS.what in DRAWN:
        means = {name: np.mean([run[name] for run in runs], axis=0) for name in runs[0]}
        draw(means, list(map(int, columns)), *DRAWN[FLAGS.what], FLAGS.output)


if __name__ == "__main__":
    start(main)
