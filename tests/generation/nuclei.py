"""Which tokens a sampler may draw: in NumPy, in float64, from a model's logits.

Run as a program it draws with all of XLA's optimization, and prints what it found.
"""

import json
import os
import sys

import numpy as np

# Tokens whose membership is decided by the last digits of float32 may be drawn or not.
SLACK = 1e-4


def softmax(logits):
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def left(logits, sampler, slack=0.0):
    """Bool, the tokens that the cuts of a `Random` leave, of logits `(rows, vocabulary_size)`.

    By sorting. With `slack`, and those that are next to the border.
    """
    logits = logits.astype("float64") / sampler.temperature
    kept = np.ones(logits.shape, "bool")
    if sampler.top_k is not None:
        worst = np.sort(logits, axis=-1)[:, -sampler.top_k][:, None]
        kept &= logits >= worst - slack
    if sampler.top_p < 1:
        kept &= _first(np.where(kept, logits, -np.inf), -logits, sampler.top_p, slack)
    if sampler.min_p > 0:
        share = np.exp(logits - logits.max(axis=-1, keepdims=True))
        kept &= share >= sampler.min_p * (1 - slack)
    if sampler.typical_p < 1:
        cut = np.where(kept, logits, -np.inf)
        surprise = -np.log(np.maximum(softmax(cut), 1e-300))
        expected = (softmax(cut) * surprise).sum(axis=-1, keepdims=True)
        distance = np.where(kept, np.abs(surprise - expected), np.inf)
        kept &= _first(cut, distance, sampler.typical_p, slack)
    return kept


def _first(logits, keys, mass, slack):
    """The tokens with the least keys that together have this mass, and all their equals."""
    chances = softmax(logits)
    order = np.argsort(keys, axis=-1, kind="stable")
    summed = np.cumsum(np.take_along_axis(chances, order, axis=-1), axis=-1)
    count = np.minimum((summed < mass + slack).sum(axis=-1), keys.shape[-1] - 1)
    last = np.take_along_axis(keys, order, axis=-1)[np.arange(len(keys)), count][:, None]
    return keys <= last + slack


def chances(logits, sampler):
    """The exact distribution that a `Random` draws from."""
    kept = left(logits, sampler)
    return softmax(np.where(kept, logits.astype("float64") / sampler.temperature, -np.inf))


def sharper(backbone, factor):
    """The backbone with its logits multiplied."""
    weights = [w for w in backbone.weights if w.name == "reverse_embeddings"]
    for weight in weights:
        weight.assign(weight * factor)
    assert weights
    return backbone


def draws(backbone, sampler, prompts, copies, seed=0, batch_size=32, new=2):
    """Tokens that were drawn, int `(prompts, copies, new)`."""
    from keras_transformer.generation import Engine, Settings
    from keras_transformer.generation.scheduler import Scheduler
    from tests.generation.common import engine_inputs

    def make_inputs(ids, mask):
        return engine_inputs(backbone, [row[: m.sum()].tolist() for row, m in zip(ids, mask)])  # noqa: B905

    scheduler = Scheduler(
        Engine(backbone), Settings(sampler), make_inputs, batch_size, copies=copies, seed=seed
    )
    found = {}
    for event in scheduler.run(prompts, [new] * len(prompts)):
        found[event.index, event.copy] = event.tokens[0]
    return np.array([[found[i, j] for j in range(copies)] for i in range(len(prompts))])


def logits_of(backbone, prompts, drawn):
    """Return the logits at each place of the drawn tokens, `(prompts, copies, new, size)`."""
    from tests.generation.common import uncached_logits

    count, copies, new = drawn.shape
    repeated = [prompt for prompt in prompts for _ in range(copies)]
    flat = uncached_logits(backbone, repeated, drawn.reshape(-1, new))
    return flat.reshape(count, copies, new, -1)


def outside(logits, drawn, sampler):
    """How many of the drawn tokens the cuts do not leave."""
    size = logits.shape[-1]
    kept = left(logits.reshape(-1, size), sampler, SLACK)
    return int((~kept[np.arange(len(kept)), drawn.reshape(-1)]).sum())


def main():
    """Prints how many of how many tokens lie outside, for peaked and flat distributions."""
    from keras_transformer.generation import Random
    from tests.generation.common import make_backbone, make_prompts

    prompts = make_prompts([3] * 32, 90)
    found = []
    for factor, size, sampler in (
        (2.0, 1, Random(temperature=0.7, top_p=0.9)),
        (1.0, 32, Random(temperature=0.3, top_p=0.5)),
    ):
        backbone = sharper(make_backbone("decoder", vocabulary_size=90), factor)
        drawn = draws(backbone, sampler, prompts, 4, batch_size=size, new=6)
        logits = logits_of(backbone, prompts, drawn)
        found.append([outside(logits, drawn, sampler), drawn.size])
    print(json.dumps({"flags": os.environ.get("XLA_FLAGS"), "found": found}))


if __name__ == "__main__":
    sys.exit(main())
