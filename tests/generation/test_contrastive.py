"""Contrastive search against its definition, with passes over whole texts."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.generation import Contrastive, Engine, Greedy
from tests.generation.common import END, START, make_backbone, make_prompts
from tests.generation.test_speculative import decode, tokens_of


def states_and_probabilities(backbone, prompt, text):
    """Of the decoder's own tokens the normalized states, and the last one's probabilities."""
    inputs = {"token_ids": np.array([prompt + text])}
    if backbone.config.kind == "seq2seq":
        decoder = np.array([[START, *text]])
        inputs = {"encoder_token_ids": np.array([prompt]), "decoder_token_ids": decoder}
    hidden = backbone(inputs)
    logits = ops.convert_to_numpy(backbone.logits(hidden))[0, -1].astype("float64")
    hidden = ops.convert_to_numpy(hidden)[0].astype("float64")
    odds = np.exp(logits - logits.max())
    return hidden / np.linalg.norm(hidden, axis=-1, keepdims=True), odds / odds.sum()


def by_definition(backbone, prompt, count, k, alpha, end_ids):
    """Su et al. 2022, equation 5, token by token."""
    text = []
    while len(text) < count and not (text and text[-1] in end_ids):
        past, chances = states_and_probabilities(backbone, prompt, text)
        candidates = np.argsort(-chances, kind="stable")[:k]
        scores = []
        for token in candidates:
            states, _ = states_and_probabilities(backbone, prompt, [*text, int(token)])
            scores.append((1 - alpha) * chances[token] - alpha * (past @ states[-1]).max())
        text.append(int(candidates[np.argmax(scores)]))
    return text


@pytest.mark.parametrize("kind", ["decoder", "seq2seq"])
def test_tokens_are_those_of_the_definition(kind):
    backbone = make_backbone(kind, seed=5)
    prompts = make_prompts([4, 2, 6])
    limits = [7, 3, 6]
    expected = [
        by_definition(backbone, prompt, limit, 3, 0.6, (END,))
        for prompt, limit in zip(prompts, limits, strict=True)
    ]
    found = decode(Engine(backbone), Contrastive(3, 0.6), prompts, limits, (END,), batch_size=2)
    assert tokens_of(found) == expected
    greedy = decode(Engine(backbone), Greedy(), prompts, limits, (END,), batch_size=2)
    assert tokens_of(greedy) != expected


def test_without_a_penalty_it_is_greedy():
    engine, prompts = Engine(make_backbone("decoder", seed=3)), make_prompts([4, 2, 6])
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
