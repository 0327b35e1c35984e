"""Compare recall and speed by length: recurrent networks, window attention, full attention."""

import time
from collections.abc import Callable, Sequence

import keras_transformer as kt
from baselines import recurrent

import keras
import numpy as np

_WINDOW = 64
_SYMBOLS = 16


def decoder(vocabulary: int, width: int, window: int | None = None) -> keras.Model:
    """Make two blocks that attend to all earlier tokens, or to the last `window` of them."""
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
    """Return random symbols, the symbols `distance` places before, and a mask of the targets."""
    length = distance + 32
    ids = random.integers(1, _SYMBOLS, (count, length)).astype("int32")
    targets = np.roll(ids, distance, axis=1)
    counted = np.broadcast_to(np.arange(length) >= distance, ids.shape).astype("float32")
    return ids, targets, counted


def compare_recall(
    names: list[str], distances: list[int], steps: int, rows: int, seed: int
) -> dict[str, list[float]]:
    """Return the share of symbols that each model recalls, by their distance."""
    found = {}
    print(f"{'recalled, of so far back':<26}" + "".join(f"{d:>8}" for d in distances))
    for name in names:
        found[name] = []
        for distance in distances:
            keras.utils.set_random_seed(seed)
            random = np.random.default_rng(seed)
            model = compiled(SEQUENCE_MODELS[name](_SYMBOLS))
            for _ in range(steps):
                ids, targets, counted = recall_rows(distance, rows, random)
                model.train_on_batch(of(model, ids), targets, counted)
            ids, targets, counted = recall_rows(distance, 64, random)
            logits = np.asarray(model.predict(of(model, ids), verbose=0))
            right = (logits.argmax(axis=-1) == targets)[counted > 0]
            found[name].append(float(right.mean()))
        print(f"{name:<26}" + "".join(f"{x:>8.1%}" for x in found[name]), flush=True)
    return found


def of(model: keras.Model, ids: np.ndarray):
    """Return ids as the inputs of a model."""
    return {"token_ids": ids} if isinstance(model, kt.CausalLM) else ids


def compare_lengths(names: list[str], lengths: list[int], tokens: int) -> dict[str, list[float]]:
    """Return milliseconds per training step on equally many tokens, by sequence length."""
    found = {}
    print(f"{'ms a step, of length':<26}" + "".join(f"{n:>8}" for n in lengths))
    for name in names:
        found[name] = []
        for length in lengths:
            model = compiled(SEQUENCE_MODELS[name](_SYMBOLS))
            rows = max(1, tokens // length)
            ids = np.random.default_rng(0).integers(1, _SYMBOLS, (rows, length)).astype("int32")
            times = []
            for _ in range(5):
                began = time.perf_counter()
                model.train_on_batch(of(model, ids), ids)
                times.append(time.perf_counter() - began)
            found[name].append(1000 * float(np.median(times[2:])))
        print(f"{name:<26}" + "".join(f"{x:>8.0f}" for x in found[name]), flush=True)
    return found


def draw(found: dict[str, Sequence], across: list[int], x: str, y: str, path: str) -> None:
    """Draw a line for each model."""
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
