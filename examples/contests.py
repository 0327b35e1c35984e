"""Train models alike: each tries the same learning rates, keeps the best, and is scored once."""

import dataclasses
import time
from collections.abc import Callable

import keras_transformer  # noqa: F401, before Keras: it takes a backend that is installed

import keras
import numpy as np


@dataclasses.dataclass(frozen=True)
class Contender:
    """A model of the table: its constructor, a published score, the scale of its learning rates."""

    make: Callable[[], keras.Model]
    published: str = ""
    rates: float = 1.0


@dataclasses.dataclass(frozen=True)
class Contest:
    """Settings that all contenders share.

    Args:
        batches: the training batches of a model, a `BucketedDataset`.
        read: function of one of these batches that returns the inputs of a model.
        prepare: function that compiles a model, given its learning rate and number of steps.
        held_out: function that returns a score from 0 to 1 on data held out of training.
        final: function that returns a score from 0 to 1 on data not used for any choice.
        goal: float, held-out score; the table gives the time to reach it.
        parts: int, number of held-out scores taken per epoch.
    """

    batches: Callable[[keras.Model], keras.utils.PyDataset]
    read: Callable[[keras.Model, tuple], tuple]
    prepare: Callable[[keras.Model, float, int], None]
    held_out: Callable[[keras.Model], float]
    final: Callable[[keras.Model], float]
    goal: float
    parts: int = 1


@dataclasses.dataclass
class Trained:
    """Model with its best weights, and its score after each number of tokens."""

    model: keras.Model
    rate: float
    tokens: list[float]
    scores: list[float]

    @property
    def best(self) -> float:
        return max(self.scores)

    def tokens_to(self, goal: float) -> float | None:
        """Return the number of tokens read when it first reached a score; None if it never did."""
        pairs = zip(self.tokens, self.scores, strict=True)
        return next((tokens for tokens, score in pairs if score >= goal), None)


class _Parts(keras.utils.PyDataset):
    """Dataset that divides an epoch into parts, so that a score can be taken after each."""

    def __init__(self, dataset: keras.utils.PyDataset, parts: int, read: Callable):
        super().__init__()
        self.dataset, self.read, self.begin = dataset, read, 0
        self.length = max(1, len(dataset) // parts)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.read(self.dataset[self.begin + index])

    def on_epoch_end(self):
        self.begin += self.length
        if self.begin + self.length > len(self.dataset):
            self.begin = 0
            self.dataset.on_epoch_end()


class _Watch(keras.callbacks.Callback):
    """Score the model after each part of an epoch, and keep the best weights."""

    def __init__(self, score: Callable[[keras.Model], float]):
        super().__init__()
        self.score, self.found, self.weights = score, [], None

    def on_epoch_end(self, epoch, logs=None):
        self.found.append(self.score(self.model))
        if self.found[-1] == max(self.found):
            self.weights = self.model.get_weights()


def train(contest: Contest, contender: Contender, rate: float, epochs: int, seed: int) -> Trained:
    """Train a new model, and return it with the weights that scored best on held-out data."""
    keras.utils.set_random_seed(seed)
    model = contender.make()
    dataset = contest.batches(model)
    parts = _Parts(dataset, contest.parts, lambda batch: contest.read(model, batch))
    contest.prepare(model, rate, len(parts) * contest.parts * epochs)
    watch = _Watch(contest.held_out)
    model.fit(parts, epochs=contest.parts * epochs, callbacks=[watch], verbose=0, shuffle=False)
    model.set_weights(watch.weights)
    each = dataset.tokens_per_epoch / contest.parts
    return Trained(model, rate, [each * (i + 1) for i in range(len(watch.found))], watch.found)


def tune(
    contest: Contest,
    contender: Contender,
    rates: list[float],
    epochs: int,
    tuning_epochs: int,
    seed: int,
) -> Trained:
    """Return the model with the best learning rate by its held-out score.

    If tuning has fewer epochs than training, the model is trained anew with the best rate.
    """
    found = [
        train(contest, contender, rate * contender.rates, tuning_epochs, seed) for rate in rates
    ]
    best = max(found, key=lambda one: one.best)
    if tuning_epochs == epochs:
        return best
    return train(contest, contender, best.rate, epochs, seed)


def speeds(contest: Contest, models: dict[str, keras.Model], steps: int = 20) -> dict[str, float]:
    """Return the real tokens per second of training: each model in turn, median of three rounds.

    All programs are compiled before, since each round uses the same batches.
    """
    rounds = {}
    for name, model in models.items():
        dataset = contest.batches(model)
        count = min(steps, len(dataset))
        taken = np.linspace(0, len(dataset) - 1, count).astype(int)
        batches = [dataset[int(i)] for i in taken]
        share = sum(_tokens(batch) for batch in batches)
        rounds[name] = ([contest.read(model, batch) for batch in batches], share, [])
    for turn in range(4):
        for name, model in models.items():
            batches, tokens, found = rounds[name]
            began = time.perf_counter()
            for batch in batches:
                model.train_on_batch(*batch)
            if turn:
                found.append(tokens / (time.perf_counter() - began))
    return {name: float(np.median(found)) for name, (_, _, found) in rounds.items()}


def _tokens(batch: tuple) -> int:
    """Return the number of tokens of a batch that are not padding."""
    return sum(int(np.sum(v)) for name, v in batch[0].items() if name.endswith("padding_mask"))


def table(
    contest: Contest, contenders: dict[str, Contender], score: str, **tuning
) -> dict[str, list[float]]:
    """Train all models; print their scores, then their speed and the time to the goal.

    Returns the held-out score, the final score and the tokens per second of each model.
    """
    print(f"{'model':<24}{'parameters':>12}{'rate':>9}{'held out':>10}{score:>8}  published")
    found, finals = {}, {}
    for name, contender in contenders.items():
        found[name] = one = tune(contest, contender, **tuning)
        finals[name] = contest.final(one.model)
        print(
            f"{name:<24}{one.model.count_params():>12,}{one.rate:>9.2g}{one.best:>10.1%}"
            f"{finals[name]:>8.1%}  {contender.published}",
            flush=True,
        )
    fast = speeds(contest, {name: one.model for name, one in found.items()})
    title = f"to {contest.goal:.0%} held out"
    print(f"\n{'model':<24}{'tokens/s':>12}{'tokens ' + title:>28}{'time':>8}")
    for name, one in found.items():
        tokens = one.tokens_to(contest.goal)
        reached = f"{tokens:>28,.0f}{tokens / fast[name]:>6.0f} s" if tokens else f"{'never':>28}"
        print(f"{name:<24}{fast[name]:>12,.0f}{reached}")
    return {name: [one.best, finals[name], fast[name]] for name, one in found.items()}


def print_spread(runs: list[dict[str, list[float]]], columns: dict[str, str]) -> None:
    """Print the lowest and the highest number of several runs, by model and column.

    Args:
        runs: for each run, the numbers of each model.
        columns: the format of each number by the head of its column, such as `{"BLEU": ".1%"}`.
    """
    print(f"\n{f'lowest and highest of {len(runs)}':<26}" + "".join(f"{c:>18}" for c in columns))
    for name in runs[0]:
        numbers = zip(columns.values(), *(run[name] for run in runs), strict=True)
        pairs = [f"{min(values):{form}} - {max(values):{form}}" for form, *values in numbers]
        print(f"{name:<26}" + "".join(f"{pair:>18}" for pair in pairs), flush=True)
