"""Contrastive search against its definition, with passes over whole texts."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.generation import Contrastive, Engine, Greedy
from tests.generation.common import (
    END,
    PAD,
    START,
    compiled,
    make_backbone,
    make_prompts,
    on_one,
)
from tests.generation.nuclei import sharper
from tests.generation.tables import TableModel
from tests.generation.test_speculative import decode, tokens_of

LENGTH = 16  # of every pass, so that one shape is compiled


def pass_over(backbone):
    """States and logits of a batch, in a pass over all of it."""

    def states_and_logits(inputs):
        states = backbone(inputs)
        return states, backbone.logits(states)

    return compiled(states_and_logits, backbone)


def padded(prefix, tokens):
    """A row and its mask, padded on the right, where nothing before it sees it."""
    ids, mask = np.full((1, LENGTH), PAD, "int32"), np.arange(LENGTH)[None] < len(tokens)
    ids[0, : len(tokens)] = tokens
    names = (f"{prefix}token_ids", f"{prefix}padding_mask")
    return dict(zip(names, map(ops.convert_to_tensor, (ids, mask)), strict=True))


def states_and_probabilities(whole, kind, prompt, text):
    """Return normalized states of the decoder's own tokens, and the last probabilities."""
    own = [START, *text] if kind == "seq2seq" else prompt + text
    inputs = padded("", own)
    if kind == "seq2seq":
        inputs = {**padded("encoder_", prompt), **padded("decoder_", own)}
    hidden, logits = (ops.convert_to_numpy(x)[0, : len(own)] for x in whole(inputs))
    logits, hidden = logits[-1].astype("float64"), hidden.astype("float64")
    odds = np.exp(logits - logits.max())
    return hidden / np.linalg.norm(hidden, axis=-1, keepdims=True), odds / odds.sum()


def by_definition(whole, kind, prompt, count, k, alpha, end_ids):
    """Su et al. 2022, equation 5, token by token."""
    text = []
    while len(text) < count and not (text and text[-1] in end_ids):
        past, chances = states_and_probabilities(whole, kind, prompt, text)
        candidates = np.argsort(-chances, kind="stable")[:k]
        scores = []
        for token in candidates:
            states, _ = states_and_probabilities(whole, kind, prompt, [*text, int(token)])
            scores.append((1 - alpha) * chances[token] - alpha * (past @ states[-1]).max())
        text.append(int(candidates[np.argmax(scores)]))
    return text


@pytest.mark.parametrize("kind", ["decoder", on_one("seq2seq")])
def test_tokens_are_those_of_the_definition(kind):
    backbone = make_backbone(kind, seed=5)
    whole, prompts = pass_over(backbone), make_prompts([4, 2, 6])
    limits = [7, 3, 6]
    expected = [
        by_definition(whole, kind, prompt, limit, 3, 0.6, (END,))
        for prompt, limit in zip(prompts, limits, strict=True)
    ]
    found = decode(Engine(backbone), Contrastive(3, 0.6), prompts, limits, (END,), batch_size=2)
    assert tokens_of(found) == expected
    greedy = decode(Engine(backbone), Greedy(), prompts, limits, (END,), batch_size=2)
    assert tokens_of(greedy) != expected


@pytest.mark.parametrize("factor", [1.0, on_one(20.0)], ids=["", "all but sure"])
def test_with_the_whole_penalty_the_state_alone_counts(factor):
    """Also of candidates whose probability float32 cannot tell from 0, and of far states."""
    backbone = sharper(make_backbone("decoder", seed=6, vocabulary_size=20), factor)
    whole, prompts, limits = pass_over(backbone), make_prompts([4, 2, 6], 20), [5, 3, 4]
    expected = [
        by_definition(whole, "decoder", prompt, limit, 3, 1.0, (END,))
        for prompt, limit in zip(prompts, limits, strict=True)
    ]
    found = decode(Engine(backbone), Contrastive(3, 1.0), prompts, limits, (END,), batch_size=2)
    assert tokens_of(found) == expected


@pytest.mark.one_backend
def test_without_a_penalty_it_is_greedy():
    engine, prompts = Engine(TableModel(seed=3)), make_prompts([4, 2, 6])
    found = decode(engine, Contrastive(2, 0.0), prompts, [9, 1, 7], (END, 5))
    assert tokens_of(found) == tokens_of(decode(engine, Greedy(), prompts, [9, 1, 7], (END, 5)))


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    "values, message",
    [
        ({"top_k": 1}, "`top_k` must be an integer of at least 2, received 1"),
        ({"penalty_alpha": 1.2}, "`penalty_alpha` must be a number from 0 to 1, received 1.2"),
    ],
)
def test_bad_values(values, message):
    with pytest.raises(ValueError, match=message):
        Contrastive(**values)
