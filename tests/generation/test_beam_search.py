"""Beam search against every sequence there is."""

import itertools

import numpy as np
import pytest

from keras_transformer.generation import BeamSearch, Engine, Greedy, Settings
from tests.generation.common import (
    END,
    PAD,
    engine_inputs,
    make_prompts,
    on_one,
    uncached_logits,
)
from tests.generation.tables import TableModel


def generate(engine, prompts, sampler, max_new_tokens, end_ids=(END,)):
    """The best sequence of each prompt, padded."""
    inputs = engine_inputs(engine.backbone, prompts)
    outputs = engine.generate(inputs, Settings(sampler, None, end_ids, PAD), max_new_tokens)
    return outputs.tokens[:, 0].tolist()


def all_scores(backbone, prompt, length, end_ids, penalty):
    """The score of every sequence that has ended, or has `length`, by trying each."""
    vocabulary = range(backbone.config.vocabulary_size)
    every = [list(row) for row in itertools.product(vocabulary, repeat=length)]
    logits = uncached_logits(backbone, [prompt] * len(every), every).astype("float64")
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    scores = {}
    for row, steps in zip(every, log_probabilities, strict=True):
        ends = [place for place, token in enumerate(row) if token in end_ids]
        n = ends[0] + 1 if ends else length
        total = sum(steps[place, row[place]] for place in range(n))
        scores[(*row[:n], *[PAD] * (length - n))] = total / n**penalty
    return scores


def best_of_all(*args):
    scores = all_scores(*args)
    return list(max(scores, key=scores.get))


@pytest.mark.parametrize(
    "penalty, end_ids", [(0.0, (2,)), (2.0, (1, 2, 3)), on_one(2.0, (2,)), on_one(0.0, (1, 2, 3))]
)
def test_with_beams_for_every_sequence_the_best_is_found(penalty, end_ids):
    """More beams than the vocabulary has tokens, and at first than there are beginnings."""
    backbone = TableModel(vocabulary_size=4, seed=2)
    prompts = [[3, 1], [0], [1, 3, 3]]
    expected = [best_of_all(backbone, prompt, 3, end_ids, penalty) for prompt in prompts]
    found = generate(Engine(backbone), prompts, BeamSearch(64, penalty), 3, end_ids)
    assert found == expected


def test_all_hypotheses_with_their_scores_best_first():
    backbone = TableModel(vocabulary_size=4, seed=2)
    prompts, ends = [[3, 1], [0], [1, 3, 3]], (2,)
    inputs = engine_inputs(backbone, prompts)
    found = Engine(backbone).generate(inputs, Settings(BeamSearch(64, 0.7), None, ends, PAD), 3)
    assert found.tokens.shape == (3, 64, 3)
    for prompt, tokens, counts, scores in zip(prompts, *found[:3], strict=True):
        expected = all_scores(backbone, prompt, 3, ends, 0.7)
        ranked = sorted(expected, key=expected.get, reverse=True)
        n = len(ranked)  # 1 + 3 + 9 + 27, of which 1 + 3 + 9 have ended by themselves
        assert counts[n:].tolist() == [0] * (64 - n)
        assert [tuple(row) for row in tokens[:n].tolist()] == ranked
        assert counts[:n].tolist() == [row.index(2) + 1 if 2 in row else 3 for row in ranked]
        np.testing.assert_allclose(scores[:n], sorted(expected.values())[::-1], atol=1e-4)


def grouped_by_hand(backbone, prompt, groups, beams, penalty, length):
    """Groups of beams one after the other, each step a pass over whole sequences; without ends."""
    vocabulary = backbone.config.vocabulary_size
    state = [[((), 0.0)] for _ in range(groups)]
    for _ in range(length):
        used = np.zeros(vocabulary)
        for group, hypotheses in enumerate(state):
            rows = [[*tokens, 0] for tokens, _ in hypotheses]
            logits = uncached_logits(backbone, [prompt] * len(rows), rows)[:, -1].astype("float64")
            logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
            candidates = [
                ((*tokens, token), score + logs[i, token] - penalty * used[token])
                for i, (tokens, score) in enumerate(hypotheses)
                for token in range(vocabulary)
            ]
            state[group] = sorted(candidates, key=lambda x: -x[1])[:beams]
            for tokens, _ in state[group]:
                used[tokens[-1]] += 1
    return sorted((x for group in state for x in group), key=lambda x: -x[1])


def test_groups_of_beams():
    backbone = TableModel(vocabulary_size=9, seed=2)
    prompts = [[3, 1, 4], [5]]
    sampler = BeamSearch(4, length_penalty=0.0, num_groups=2, diversity_penalty=1.5)
    inputs = engine_inputs(backbone, prompts)
    found = Engine(backbone).generate(inputs, Settings(sampler), 4)
    plain = Engine(backbone).generate(inputs, Settings(BeamSearch(4, 0.0)), 4)
    for row, prompt in enumerate(prompts):
        expected = grouped_by_hand(backbone, prompt, 2, 2, 1.5, 4)
        assert found.tokens[row].tolist() == [list(tokens) for tokens, _ in expected]
        np.testing.assert_allclose(found.scores[row], [score for _, score in expected], atol=1e-4)
        by_hand = grouped_by_hand(backbone, prompt, 1, 4, 0.0, 4)
        assert plain.tokens[row].tolist() == [list(tokens) for tokens, _ in by_hand]
    assert (found.tokens != plain.tokens).any()


def test_beams_without_a_beginning_do_not_end():
    """Two tokens, one of them the end: at every step there is one open sequence, and one ends."""
    backbone = TableModel(vocabulary_size=2, seed=9)
    expected = best_of_all(backbone, [0, 1], 4, (1,), 3.0)
    beam = BeamSearch(4, length_penalty=3.0, early_stopping=True)
    assert generate(Engine(backbone), [[0, 1]], beam, 4, (1,)) == [expected]
    # Else two steps would have been enough.
    assert expected not in ([1, PAD, PAD, PAD], [0, 1, PAD, PAD])


def test_one_beam_is_greedy():
    engine, prompts = Engine(TableModel(seed=3)), make_prompts([4, 2, 6])
    ends = (END, 5, 9)
    one = generate(engine, prompts, BeamSearch(1), 12, ends)
    assert one == generate(engine, prompts, Greedy(), 12, ends)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"num_beams": 0}, "`num_beams` must be an integer of at least 1, received 0"),
        ({"num_beams": 2.5}, "received 2.5"),
        ({"early_stopping": "sometimes"}, "`early_stopping` must be True, False or .never."),
        ({"num_beams": 4, "num_groups": 3}, "must be a multiple of `num_groups`, received 4 and 3"),
        ({"num_beams": 4, "num_groups": 2}, "go together"),
        ({"diversity_penalty": 1.0}, "go together"),
        ({"length_penalty": "long"}, "`length_penalty` must be a number from -100"),
    ],
)
def test_bad_values(values, message):
    with pytest.raises(ValueError, match=message):
        BeamSearch(**values)
