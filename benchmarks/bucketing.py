"""Effect of length buckets on the loss curve: one model on batches composed in four ways.

  any length   each batch is a random sample of all pairs, padded to the longest of all
  buckets      as in `make_dataset(shuffle=True)`: pairs of similar length in a batch, the batches
               in random order, both drawn anew in each epoch
  equal tokens the same with `batch_tokens`: more rows in a batch of short texts
  by length    batches from the shortest to the longest in each epoch, as without shuffling

A small translator is trained on Multi30k, with the same seeds for all four. Its loss on the
validation pairs is printed after each epoch: the mean over the seeds and, as a measure of chance,
the standard deviation of "any length". "bias" is the difference from "any length" with the same
seed, and its standard error.

    python benchmarks/bucketing.py
    python benchmarks/bucketing.py --pairs 2000 --epochs 2 --seeds 2      # a quick look
"""

import argparse
import os
import statistics

from harness import DATA, multi30k

ORDERS = {
    "any length": {"batch_size": 64, "max_buckets": 1, "shuffle": True},
    "buckets": {"batch_size": 64, "shuffle": True},
    "equal tokens": {"batch_tokens": 1568, "shuffle": True},
    "by length": {"batch_size": 64, "shuffle": False},
}


def train(order: str, seed: int, options: argparse.Namespace, data: dict) -> tuple:
    """Return the loss on the validation pairs after each epoch, and the data set."""
    import keras

    import keras_transformer as kt

    keras.utils.set_random_seed(seed)
    config = kt.TransformerConfig(
        kind="seq2seq", vocabulary_size=data["tokenizer"].vocabulary_size, hidden_dim=64,
        num_layers=2, num_heads=4, intermediate_dim=128, dropout=0.1, normalize_first=True,
        scale_embedding=True,
    )  # fmt: skip
    task = kt.Seq2SeqLM(kt.models.Seq2Seq(config), data["tokenizer"])
    task.compile(kt.training.transformer_adam(2e-3), kt.training.TokenCrossEntropy())
    dataset = task.make_dataset(*data["train"], seed=seed, **ORDERS[order])
    history = task.fit(
        dataset, epochs=options.epochs, verbose=0, validation_data=tuple(data["val"])
    )
    return history.history["val_loss"], dataset


def report(losses: dict, datasets: dict) -> None:
    chance = [statistics.stdev(column) for column in zip(*losses["any length"], strict=True)]
    epochs = range(1, len(chance) + 1)
    print(
        "\nloss on the validation pairs           "
        + "".join(f"   epoch {n:2d}    " for n in epochs)
    )
    for order, runs in losses.items():
        means = [statistics.mean(column) for column in zip(*runs, strict=True)]
        cells = "".join(f"   {mean:.3f}       " for mean in means)
        shape = f"{len(datasets[order])} steps, {datasets[order].padding_share:.0%} padding"
        print(f"  {order:12s}  {shape:23s}{cells}")
    print(f"  {'standard deviation of chance':37s}" + "".join(f"   {s:.3f}       " for s in chance))
    for order in list(ORDERS)[1:]:
        runs = zip(losses[order], losses["any length"], strict=True)
        differences = [[a - b for a, b in zip(*pair, strict=True)] for pair in runs]
        cells = ""
        for column in zip(*differences, strict=True):
            error = statistics.stdev(column) / len(column) ** 0.5
            cells += f"  {statistics.mean(column):+.3f}±{error:.3f}"
        print(f"  bias of {order!r:29s}" + cells)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=3000, help="training pairs (%(default)s)")
    parser.add_argument("--epochs", type=int, default=4, help="epochs (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds, 2 or more (%(default)s)")
    parser.add_argument("--data_dir", default=str(DATA), help="holds multi30k/")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("--seeds must be 2 or more: one alone does not say what chance does.")
    os.environ["KT_BENCHMARK_DATA"] = options.data_dir
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras_transformer as kt

    pairs = [side[: options.pairs] for side in multi30k("train")]
    data = {
        "train": pairs,
        "val": multi30k("val"),
        "tokenizer": kt.Tokenizer.train(pairs[0] + pairs[1], "bpe", vocabulary_size=2000),
    }
    losses, datasets = {order: [] for order in ORDERS}, {}
    for seed in range(options.seeds):
        for order in ORDERS:
            curve, datasets[order] = train(order, seed, options, data)
            losses[order].append(curve)
            print(f"seed {seed}  {order:12s}", *(f"{loss:.3f}" for loss in curve), flush=True)
    report(losses, datasets)


if __name__ == "__main__":
    main()
