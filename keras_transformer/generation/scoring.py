"""Log-probabilities of given texts, in one pass without a cache."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.generation.engine import Engine
from keras_transformer.kernels.programs import compile_function, to_tensor
from keras_transformer.kernels.selection import log_sum
from keras_transformer.kernels.selection import top_k as top_logits
from keras_transformer.support.sizes import pad_rows, round_rows, round_size

# Rows times length of a batch: its logits are the largest tensor.
_TOKENS = 1024


class TokenScores(NamedTuple):
    """Scores of the tokens of a continuation, and the likeliest tokens at each place."""

    log_probabilities: np.ndarray  # float32 (tokens,)
    best: Any = None  # float32 (tokens, top_k), the largest log-probabilities at each place
    best_ids: Any = None  # int32 (tokens, top_k), the tokens with these log-probabilities


def score_continuations(
    engine: Engine,
    make_inputs: Callable,
    pairs: Sequence[tuple[list[int], list[int]]],
    pad_id: int,
    further: Mapping[str, np.ndarray],
    input_rows: Sequence[int] | None = None,
    top_k: int = 0,
) -> list[TokenScores]:
    """Compute the log-probability of each token of continuations.

    `pairs` are ids of a prompt and its continuation. `make_inputs` turns lists of both into the
    backbone's padded inputs and the places of the outputs that predict the first tokens. `further`
    are additional inputs, one row for each pair, or row `input_rows[i]` for pair `i`. With `top_k`
    the likeliest tokens at each place are returned too.
    """
    compiled = engine.compiled_once(("score", top_k), lambda: _compile(engine.backbone, top_k))
    results = [_nothing(top_k)] * len(pairs)
    order = sorted((i for i, (_, new) in enumerate(pairs) if new), key=lambda i: _length(pairs[i]))
    while order:
        count = max(1, _TOKENS // round_size(_length(pairs[order[-1]])))
        chosen, order = order[-count:], order[:-count]
        filled = chosen + chosen[:1] * (min(round_rows(len(chosen)), count) - len(chosen))
        inputs, first = make_inputs(*zip(*(pairs[i] for i in filled), strict=True))
        chosen_rows = filled if input_rows is None else [input_rows[i] for i in filled]
        of_rows = {name: array[chosen_rows] for name, array in further.items()}
        inputs |= {name: array for name, array in of_rows.items() if array is not None}
        width = next(x.shape[1] for name, x in inputs.items() if name.endswith("token_ids"))
        if "decoder_token_ids" in inputs:
            width = inputs["decoder_token_ids"].shape[1]
        targets = np.full((len(filled), width), pad_id, "int32")
        for row, i in enumerate(filled):
            targets[row, first[row] : first[row] + len(pairs[i][1])] = pairs[i][1]
        tensors = {name: to_tensor(x) for name, x in inputs.items()}
        found = [ops.convert_to_numpy(x) for x in compiled(tensors, to_tensor(targets))]
        for row, i in enumerate(chosen):
            last = first[row] + len(pairs[i][1])
            results[i] = TokenScores(*(x[row, first[row] : last] for x in found))
    return results


def score_next(
    engine: Engine,
    make_inputs: Callable,
    prompts: Sequence[list[int]],
    pad_id: int,
) -> list[np.ndarray]:
    """Compute the log-probability of each token of the vocabulary after prompts.

    `make_inputs` is as for `score_continuations`. Returns float32 `(vocabulary_size,)` for each
    prompt.
    """
    compiled = engine.compiled_once(("next",), lambda: _compile_next(engine.backbone))
    results: list[np.ndarray] = [np.zeros((0,), "float32")] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    while order:
        count = max(1, _TOKENS // round_size(len(prompts[order[-1]])))
        chosen, order = order[-count:], order[:-count]
        filled = chosen + chosen[:1] * (min(round_rows(len(chosen)), count) - len(chosen))
        # The continuation has any one token, which is not read.
        inputs, places = make_inputs([prompts[i] for i in filled], [[pad_id]] * len(filled))
        tensors = {name: to_tensor(x) for name, x in inputs.items()}
        found = ops.convert_to_numpy(compiled(tensors, to_tensor(places.astype("int32"))))
        for row, i in enumerate(chosen):
            results[i] = found[row]
    return results


def sliding_windows(
    ids: Sequence[int], max_length: int, stride: int
) -> list[tuple[list[int], list[int]]]:
    """Cut a long row of ids into windows, in which each token but the first is scored once.

    A window has at most `max_length` ids and begins `stride` ids after the one before it; in it the
    ids that no earlier window has are new. Returns the ids before the new ones, and the new ones.
    Without ids before them the first new one is not scored: nothing precedes it.
    """
    windows, scored = [], 0
    for begin in range(0, len(ids), stride):
        end = min(begin + max_length, len(ids))
        first = max(scored, begin + 1)
        windows.append((list(ids[begin:first]), list(ids[first:end])))
        scored = end
        if end == len(ids):
            break
    return windows


def pad_for(
    config: TransformerConfig, rows: Sequence[Sequence[int]], pad_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pad rows to a rounded length that the positions of this config allow; see `pad_rows`."""
    if config.position != "learned":
        return pad_rows(rows, pad_id)
    longest = max(map(len, rows))
    return pad_rows(
        rows, pad_id, max(longest, min(round_size(longest), config.max_sequence_length))
    )


def _length(pair: tuple[list[int], list[int]]) -> int:
    return len(pair[0]) + len(pair[1])


def _nothing(top_k: int) -> TokenScores:
    """Return the scores of an empty continuation."""
    none = np.zeros((0,), "float32")
    if not top_k:
        return TokenScores(none)
    return TokenScores(none, np.zeros((0, top_k), "float32"), np.zeros((0, top_k), "int32"))


def _compile(backbone, top_k: int) -> Callable:
    def score(inputs, targets):
        logits = ops.cast(backbone.logits(backbone(inputs)), "float32")
        chosen = ops.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        largest, above = log_sum(logits)
        chosen = chosen - largest - above
        if not top_k:
            return (chosen,)
        best, ids = top_logits(logits, top_k)
        return chosen, best - largest[..., None] - above[..., None], ids

    return compile_function(score, backbone)


def _compile_next(backbone) -> Callable:
    def score(inputs, places):
        states = ops.take_along_axis(backbone(inputs), places[:, None, None], axis=1)
        logits = ops.cast(backbone.logits(states), "float32")[:, 0]
        largest, above = log_sum(logits)
        return logits - largest[..., None] - above[..., None]

    return compile_function(score, backbone)
