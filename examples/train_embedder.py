"""Train an English sentence encoder to embed German descriptions near their English ones.

    python examples/train_embedder.py --output my_embedder
    python examples/train_embedder.py --scratch --epochs=3

trains on pairs of descriptions of the same image (Multi30k), with the other pairs of a batch as
negatives. Before and after training it searches the English description of each unseen image by the
German one: recall@1 is the share that is found first, MRR the mean of 1 / rank.
"""

import time

from runs import start

import keras_transformer as kt
from example_data import multi30k

import keras
import numpy as np
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_string("preset", "minilm_l6_en", "Preset that makes vectors of sentences.")
flags.DEFINE_boolean("scratch", False, "Begin with a small new encoder and tokenizer instead.")
flags.DEFINE_enum("language", "de", ["de", "fr"], "Language of the other descriptions.")
flags.DEFINE_integer("train_size", None, "Train on the first pairs only, for a quick look.")
flags.DEFINE_integer("epochs", 1, "Passes over the pairs.", lower_bound=1)
flags.DEFINE_integer(
    "batch_size", 64, "Pairs in a step, which are negatives of each other.", lower_bound=2
)
flags.DEFINE_float("learning_rate", 2e-4, "Peak of the learning rate, which then falls to 0.")
flags.DEFINE_multi_integer(
    "matryoshka_dims", [], "Learn vectors that may be cut to so many numbers; repeat the flag."
)
flags.DEFINE_enum(
    "dtype",
    None,
    ["float32", "mixed_bfloat16", "mixed_float16"],
    "Precision; mixed_bfloat16 is faster on many CPUs and GPUs.",
)
flags.DEFINE_enum(
    "held_out",
    "test_2016_flickr",
    ["val", "test_2016_flickr"],
    "Part to search: val to choose options by, the other to report.",
)
flags.DEFINE_integer("seed", 0, "Seed of new weights, dropout and shuffling.")
flags.DEFINE_string("output", None, "Save the embedder as a preset here.")


def new_embedder(texts: list[str]) -> kt.TextEmbedder:
    """Build an embedder of two layers of width 256, with a tokenizer for both languages."""
    words = kt.Tokenizer.train(texts, "wordpiece", vocabulary_size=8000, lowercase=True)
    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=words.vocabulary_size, hidden_dim=256, num_layers=2,
        num_heads=4, intermediate_dim=1024, position="rotary", dropout=0.1,
    )  # fmt: skip
    return kt.TextEmbedder(kt.models.Encoder(config, dtype=FLAGS.dtype), words)


def search(embedder: kt.TextEmbedder, width: int | None = None) -> tuple[float, float]:
    """Return recall@1 and MRR on the held-out part, by the first `width` numbers of vectors."""
    sides = [
        embedder.predict(multi30k(FLAGS.held_out, language), verbose=0)[:, :width]
        for language in (FLAGS.language, "en")
    ]
    queries, texts = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides)
    cosines = queries @ texts.T
    nearer = (cosines > np.diag(cosines)[:, None]).sum(axis=1)
    return float(np.mean(nearer == 0)), float(np.mean(1 / (1 + nearer)))


def main(_):
    keras.utils.set_random_seed(FLAGS.seed)
    foreign, english = (multi30k("train", n)[: FLAGS.train_size] for n in (FLAGS.language, "en"))
    if FLAGS.scratch:
        embedder = new_embedder(foreign + english)
    else:
        embedder = kt.TextEmbedder.from_preset(FLAGS.preset, dtype=FLAGS.dtype)
    rows = [("before", *search(embedder))]
    dataset = embedder.make_dataset(
        (foreign, english), batch_size=FLAGS.batch_size, shuffle=True, seed=FLAGS.seed
    )
    steps = len(dataset) * FLAGS.epochs
    dims = sorted(FLAGS.matryoshka_dims, reverse=True) or None
    embedder.compile(
        kt.training.FineTuningAdamW(
            kt.training.LinearDecay(FLAGS.learning_rate, steps, warmup_steps=steps // 10)
        ),
        loss=kt.training.MultipleNegativesRankingLoss(matryoshka_dims=dims),
    )
    started = time.time()
    embedder.fit(dataset, epochs=FLAGS.epochs)
    seconds = time.time() - started
    rows.append(("after", *search(embedder)))
    rows += [(f"after, {dim} numbers", *search(embedder, dim)) for dim in dims or ()]
    if FLAGS.output:
        embedder.save_to_preset(FLAGS.output)
        print(f"The embedder is in {FLAGS.output}.")
    print(
        f"\nMulti30k, {FLAGS.language} to en, {len(multi30k(FLAGS.held_out, 'en')):,} images of "
        f"{FLAGS.held_out}; {len(english):,} pairs, {FLAGS.epochs} epoch(s) in {seconds:.0f} s, "
        f"{embedder.count_params():,} parameters, {keras.backend.backend()}\n\n"
        "                       recall@1    MRR"
    )
    for name, recall, rank in rows:
        print(f"  {name:20s} {recall:8.1%}  {rank:6.3f}")


if __name__ == "__main__":
    start(main)
