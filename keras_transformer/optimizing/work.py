"""Workloads that `optimize` times, and the comparison of their outputs."""

from typing import Any

import keras
import numpy as np

from keras_transformer.generation.rules.rules import Rules
from keras_transformer.support.checking import check_int, describe
from keras_transformer.tasks import CausalLM, Seq2SeqLM, Task

_LENGTH = 64
_SMALLEST = 1e-30


class Predicting:
    """Workload of `predict`: `rows` rows of `inputs`, with `length` tokens each (None: unknown)."""

    def __init__(self, inputs: Any, batch_size: int, rows: int, length: int | None):
        self.inputs, self.batch_size, self.rows, self.length = inputs, batch_size, rows, length
        self.count = rows * (length or 1)

    def run(self, task: Task) -> Any:
        return task.predict(self.inputs, batch_size=self.batch_size, verbose=0)

    def compare(self, task: Task, whole: Task) -> tuple[float, float]:
        """Return the largest difference from the outputs of `whole`, and the agreement with them.

        For classes and tokens, probabilities and the likeliest class are compared; for other
        outputs, numbers and their cosine similarity.
        """
        found, wanted = (
            [np.asarray(x, "float64") for x in keras.tree.flatten(self.run(each))]
            for each in (task, whole)
        )
        pairs = list(zip(found, wanted, strict=True))
        if task.number_of_targets is not None:
            pairs = [tuple(map(_probabilities, pair)) for pair in pairs]
            same = [one.argmax(-1) == other.argmax(-1) for one, other in pairs]
        else:
            same = [_cosines(*pair) for pair in pairs]
        difference = max(float(np.abs(one - other).max()) for one, other in pairs)
        return difference, float(np.mean([each.mean() for each in same]))

    def described(self) -> str:
        tokens = "" if self.length is None else f" of {self.length} tokens"
        return f"predict {self.rows} rows{tokens}, {self.batch_size} at a time"


class Generating:
    """Workload of greedy `generate`: a batch of prompts, each continued by `new_tokens` tokens."""

    def __init__(self, prompts: list[list[int]], batch_size: int, new_tokens: int):
        self.prompts, self.batch_size, self.new_tokens = prompts, batch_size, new_tokens
        self.count = len(prompts) * new_tokens
        self._written: list[list[int]] | None = None

    def run(self, task: CausalLM | Seq2SeqLM) -> list[list[int]]:
        return task.generate(
            self.prompts,
            max_new_tokens=self.new_tokens,
            sampler="greedy",
            batch_size=self.batch_size,
            rules=Rules(min_new_tokens=self.new_tokens),
        )

    def compare(self, task, whole) -> tuple[float, float]:
        """Return the largest difference of token probabilities, and the share of equal best tokens.

        Both are measured on the text that `whole` generates.
        """
        if self._written is None:
            self._written = self.run(whole)
        pairs = list(zip(self.prompts, self._written, strict=True))
        found, wanted = (each.token_scores(pairs, top_k=1) for each in (task, whole))
        difference = max(
            float(np.abs(np.exp(one.log_probabilities) - np.exp(other.log_probabilities)).max())
            for one, other in zip(found, wanted, strict=True)
        )
        same = [one.best_ids == other.best_ids for one, other in zip(found, wanted, strict=True)]
        return difference, float(np.concatenate(same).mean())

    def described(self) -> str:
        longest = max(map(len, self.prompts))
        return (
            f"generate {self.new_tokens} tokens for {len(self.prompts)} prompts of {longest} "
            f"tokens, {self.batch_size} at a time"
        )


Work = Predicting | Generating


def work_of(task: Task, x: Any, batch_size: int, length: int | None, new_tokens: int) -> Work:
    """Return the workload of a task, with `x` or with random tokens."""
    if task.generates and not isinstance(task, CausalLM | Seq2SeqLM):
        raise ValueError(
            f"`optimize` measures generation only for CausalLM and Seq2SeqLM, received a "
            f"{type(task).__name__}. Quantize a copy and compare it: see docs/quantization.md."
        )
    if x is not None and length is not None:
        raise ValueError("`length` is the length of random tokens: leave it out if `x` is given.")
    if task.generates:
        prompts = random_tokens(task, batch_size, length, new_tokens).tolist() if x is None else x
        rows, _, single = task.generator.prompt_ids(prompts)
        if single:
            raise ValueError(f"`x` must be a list of prompts, received {describe(x)}.")
        return Generating(rows, batch_size, new_tokens)
    if x is not None:
        return Predicting(x, batch_size, _count_rows(x), None)
    names = task.input_interface.id_inputs
    if any(name.split("encoder_")[-1].split("decoder_")[-1] != "token_ids" for name in names):
        raise ValueError(
            f"{type(task).__name__} takes {', '.join(names)}, which random tokens cannot replace: "
            "give `x`, as for `predict`."
        )
    ids = random_tokens(task, batch_size, length, 0)
    return Predicting(dict.fromkeys(names, ids), batch_size, *ids.shape)


def random_tokens(task: Task, rows: int, length: int | None, further: int) -> np.ndarray:
    """Return random ids, int32 `(rows, length)`, which leave room for `further` new tokens."""
    config = task.input_interface.config
    length = check_int("length", length, at_least=1, none=True)
    most = config.max_sequence_length - (further if task.generates else 0)
    if length is None:
        length = max(1, min(_LENGTH, most))
    elif config.position == "learned" and length > most:
        raise ValueError(
            f"length={length} is too long: the model takes {config.max_sequence_length} tokens"
            + (f", {further} of them new." if further else ".")
        )
    low = min(4, config.vocabulary_size - 1)  # the first ids are usually special tokens
    shape = (rows, length)
    return np.random.default_rng(0).integers(low, config.vocabulary_size, shape, dtype="int32")


def _count_rows(x: Any) -> int:
    """Return the number of rows in a list of texts, a tuple of lists (pairs), or named arrays."""
    first = next(iter(x.values())) if isinstance(x, dict) else x[0] if isinstance(x, tuple) else x
    try:
        return len(first)
    except TypeError:
        raise ValueError(
            f"`x` must be a list, or arrays by name, received {describe(x)}."
        ) from None


def _probabilities(logits: np.ndarray) -> np.ndarray:
    logits = logits - logits.max(-1, keepdims=True)
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def _cosines(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    found, wanted = np.atleast_2d(found), np.atleast_2d(wanted)
    norms = np.linalg.norm(found, axis=-1) * np.linalg.norm(wanted, axis=-1)
    return (found * wanted).sum(-1) / np.maximum(norms, _SMALLEST)
