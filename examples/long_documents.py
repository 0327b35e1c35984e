"""Train small encoders on ListOps (Long Range Arena), with full attention and with a window.

python examples/long_documents.py --train_size=2000 --short_size=20000
python examples/long_documents.py --work_dir=run --output=listops_small
make reproduce PRESET=listops_small

A text is a nested list of operations on digits, 500 to 2,000 symbols long, and its class is the
value, 0 to 9. With a window a symbol attends to some of its neighbours; the first
token, whose state is classified, is global. Both models have the same number of weights. They first
learn the operations from lists of up to 150 symbols (--short_size), twenty of which cost as much as
a long one. The published models have four layers of width 512 and 160,000 long training texts;
these models are smaller. The printed memory is that of the whole process: to measure one kind of
attention by itself give --attention.
"""

import pathlib
import tempfile
import time

from runs import check_recipe, start, values

import keras_transformer as kt
from listops import SYMBOLS, examples

import keras
import tokenizers
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_enum("attention", "both", ["both", "window", "full"], "What to train.")
flags.DEFINE_integer("train_size", 96_000, "Texts to train on.", lower_bound=1)
flags.DEFINE_integer("short_size", 400_000, "Short texts to train on first.", lower_bound=0)
flags.DEFINE_integer("test_size", 2000, "Texts to test on.", lower_bound=1)
flags.DEFINE_integer("longest", 2000, "Texts have fewer symbols than this.", lower_bound=20)
flags.DEFINE_integer("shortest", 500, "Texts have more symbols than this.", lower_bound=1)
flags.DEFINE_integer("epochs", 1, "Passes over the texts.", lower_bound=1)
flags.DEFINE_integer(
    "batch_size", 32, "Texts in a training step; four times as many short ones.", lower_bound=1
)
flags.DEFINE_integer("layers", 4, "Blocks of the model.", lower_bound=1)
flags.DEFINE_integer("width", 128, "Width of the model, a multiple of 32.", lower_bound=32)
flags.DEFINE_integer("window", 65, "A symbol attends to places nearer than this.")
flags.DEFINE_float("learning_rate", 1e-3, "Peak of the learning rate, which then falls to 0.")
flags.DEFINE_integer("seed", 0, "Seed of the texts, of weights and of shuffling.")
flags.DEFINE_string("work_dir", None, "Folder for checkpoints. Defaults to a temporary one.")
flags.DEFINE_string("output", None, "Save the better model as a preset here.")

RECIPE = (
    "train_size short_size shortest longest epochs batch_size layers width window learning_rate "
    "seed attention"
)
# Tay et al. 2020, table 1, as corrected in its repository.
PUBLISHED = {
    "chance (the most frequent value)": 16.8,
    "Local attention": 15.82,
    "Longformer": 35.63,
    "BigBird": 36.05,
    "Transformer": 36.37,
    "Reformer": 37.27,
}


def make_tokenizer() -> kt.Tokenizer:
    """Make a tokenizer with a token for each symbol, and one before a text."""
    words = ["[PAD]", "[UNK]", "[CLS]", *SYMBOLS]
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 2)]
    )
    return kt.Tokenizer(backend, pad="[PAD]", unknown="[UNK]", start="[CLS]")


def build(attention: str) -> kt.TextClassifier:
    """Build the classifier, with or without a window."""
    tokenizer = make_tokenizer()
    near = {"window": FLAGS.window, "global_tokens": 1} if attention == "window" else {}
    config = kt.TransformerConfig(
        kind="encoder",
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=FLAGS.width,
        num_layers=FLAGS.layers,
        num_heads=FLAGS.width // 16,
        intermediate_dim=2 * FLAGS.width,
        activation="gelu",
        normalize_first=True,
        position="rotary",
        max_sequence_length=FLAGS.longest + 1,
        **near,
    )
    return kt.TextClassifier(kt.models.Encoder(config), tokenizer, num_classes=10)


class Memory(keras.callbacks.Callback):
    """Callback that records the largest memory of the process after a step, in MB, if known."""

    def __init__(self):
        super().__init__()
        self.most = 0.0

    def on_train_batch_end(self, batch, logs=None):
        status = pathlib.Path("/proc/self/status")
        if status.is_file():
            lines = status.read_text().splitlines()
            kilobytes = next(int(x.split()[1]) for x in lines if x.startswith("VmRSS"))
            self.most = max(self.most, kilobytes / 1024)


def stages(lengths: dict) -> dict[str, tuple[int, int, dict]]:
    """Return the stages of training, short texts first: number, batch size and length bounds."""
    short = {"least": 10, "most": 150, "depth": 7}
    both = {
        "short": (FLAGS.short_size, 4 * FLAGS.batch_size, short),
        "long": (FLAGS.train_size, FLAGS.batch_size, lengths),
    }
    return {name: stage for name, stage in both.items() if stage[0]}


def train(attention: str, folder: pathlib.Path) -> tuple[kt.TextClassifier, float, float, float]:
    """Return a classifier, its test accuracy, training tokens per second, and memory in MB."""
    keras.utils.set_random_seed(FLAGS.seed)
    classifier = build(attention)
    lengths = {"least": FLAGS.shortest, "most": FLAGS.longest}
    memory, started, tokens = Memory(), time.time(), 0
    parts = {}
    for name, (count, per_step, bounds) in stages(lengths).items():
        texts, labels = examples(count, FLAGS.seed, **bounds)
        parts[name] = classifier.make_dataset(
            texts, labels, batch_size=per_step, shuffle=True, seed=FLAGS.seed
        )
        tokens += FLAGS.epochs * sum(text.count(" ") + 2 for text in texts)
    steps = FLAGS.epochs * sum(map(len, parts.values()))
    rate = kt.training.LinearDecay(FLAGS.learning_rate, steps, warmup_steps=steps // 10)
    classifier.compile(
        keras.optimizers.AdamW(rate, weight_decay=0.01), classifier.loss, metrics=["accuracy"]
    )
    for name, dataset in parts.items():
        run = kt.training.ResumableRun(folder / f"{attention}_{name}", dataset, every=200)
        classifier.fit(dataset, epochs=FLAGS.epochs, callbacks=[run, memory])
    speed = tokens / (time.time() - started)
    test = examples(FLAGS.test_size, FLAGS.seed + 1_000_003, **lengths)
    return classifier, classifier.evaluate(*test, verbose=0)[1], speed, memory.most


def main(_):
    kinds = ["window", "full"] if FLAGS.attention == "both" else [FLAGS.attention]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(FLAGS.work_dir or temporary)
        if FLAGS.work_dir:
            check_recipe(folder, values(RECIPE))
        rows = {}
        for kind in kinds:
            print(f"{kind} attention:")
            rows[kind] = train(kind, folder)
    best = max(rows, key=lambda kind: rows[kind][1])
    print(
        f"\nListOps, {FLAGS.test_size:,} test texts, {FLAGS.train_size:,} to train on, "
        f"{rows[best][0].count_params():,} parameters, {keras.backend.backend()}\n\n"
        "                                      accuracy  tokens/s     MB"
    )
    for kind, (_, accuracy, speed, memory) in rows.items():
        name = f"{kind}, {FLAGS.window - 1} on each side" if kind == "window" else kind
        print(f"  {name:34s}  {accuracy:8.1%}  {speed:8,.0f}  {memory:5,.0f}")
    for name, accuracy in PUBLISHED.items():
        print(f"  {name:34s}  {accuracy:7.1f}%")
    if FLAGS.output:
        rows[best][0].save_to_preset(
            FLAGS.output,
            dtype="float16",
            metadata={
                "family": "transformer",
                "description": "The value of nested operations on digits, ListOps.",
                "source": "trained by this project",
                "license": "apache-2.0",
                "test_accuracy": round(rows[best][1], 4),
            },
        )
        print(f"\nThe model with {best} attention is in {FLAGS.output}.")


if __name__ == "__main__":
    start(main)
