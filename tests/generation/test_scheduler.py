"""Many prompts in a running batch: each gives what it gives alone, and rows are used again."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
from keras import ops

from keras_transformer.generation import BeamSearch, Engine, Greedy, Settings
from keras_transformer.generation.scheduler import (
    Finished,
    GenerationRequest,
    Progress,
    Scheduler,
    row_uniforms,
)
from tests.generation.common import (
    PAD,
    START,
    decode,
    engine_inputs,
    found_tokens,
    make_backbone,
    make_prompts,
    on_cpu,
    on_one,
    uncached_greedy,
    uncached_logits,
    until,
)
from tests.generation.tables import TableModel

RANDOM = np.random.default_rng(0)
PROMPTS = make_prompts(RANDOM.integers(1, 9, 40).tolist())
LIMITS = RANDOM.integers(1, 17, 40).tolist()
ENDS = (5, 9)


class Watched(Engine):
    """An engine that remembers how many rows were read and how many rows took steps."""

    def __init__(self, backbone):
        super().__init__(backbone)
        self.read, self.running = [], []

    def prefill(self, inputs, *args, **kwargs):
        self.read.append(len(next(iter(inputs.values()))))
        return super().prefill(inputs, *args, **kwargs)

    def extend(self, batch, *args):
        self.running.append(batch.state.cache.rows)
        return super().extend(batch, *args)


@pytest.fixture(scope="module")
def engine():
    return Watched(TableModel(seed=3))


@pytest.fixture(scope="module")
def translator():
    return Watched(make_backbone("seq2seq", position="sinusoidal", seed=1))


@pytest.fixture(scope="module")
def greedy(engine):
    """The likeliest 16 tokens of each prompt, without a cache."""
    return uncached_greedy(engine.backbone, PROMPTS, 16)


@pytest.fixture(autouse=True)
def _forget(engine, translator):
    for watched in (engine, translator):
        watched.read, watched.running = [], []


def make_inputs(engine):
    def make(ids, mask):
        if engine.backbone.config.kind == "decoder":
            return {"token_ids": ids, "padding_mask": mask}
        start = np.full((len(ids), 1), START, "int32")
        return {"encoder_token_ids": ids, "encoder_padding_mask": mask, "decoder_token_ids": start}

    return make


def scheduler(engine, sampler=None, end_ids=ENDS, **options):
    settings = Settings(sampler or Greedy(), None, end_ids, PAD)
    return Scheduler(engine, settings, make_inputs(engine), **options)


def run(made, prompts=PROMPTS, limits=LIMITS, copies=1):
    """The hypotheses of each prompt, or of each of its samples, and their scores."""
    found = {(x.index, x.copy): x for x in made.run(prompts, limits)}
    assert len(found) == len(prompts) * copies
    keys = sorted(found)
    assert keys == [(i, copy) for i in range(len(prompts)) for copy in range(copies)]
    return [found[key].tokens for key in keys], [found[key].scores for key in keys]


@pytest.mark.parametrize("batch_size", [on_one(1), 4, on_one(5), on_one(64)])
def test_each_prompt_gives_what_it_gives_alone(engine, greedy, batch_size):
    expected = [[until(row, limit, ENDS)] for row, limit in zip(greedy, LIMITS, strict=True)]
    assert len({len(row[0]) for row in expected}) > 4
    found, scores = run(scheduler(engine, batch_size=batch_size))
    assert found == expected
    assert scores == [None] * 40


@pytest.mark.parametrize("name", ["engine", "translator"])
def test_beams_of_each_prompt(name, request):
    engine = request.getfixturevalue(name)
    sampler = BeamSearch(3, length_penalty=0.7)
    settings = Settings(sampler, None, ENDS, PAD)
    expected, expected_scores = [], []
    for prompt, limit in zip(PROMPTS[:12], LIMITS, strict=False):
        inputs = engine_inputs(engine.backbone, [prompt, [3] * 8])  # of one length
        alone, _ = decode(engine, {k: v[:1] for k, v in inputs.items()}, settings, [limit])
        expected += found_tokens(alone)
        expected_scores.append([score for score in alone.scores[0] if score > -1e8])
    for batch_size in (4, 16):
        made = scheduler(engine, sampler, batch_size=batch_size)
        found, scores = run(made, PROMPTS[:12], LIMITS[:12])
        assert found == expected
        for mine, theirs in zip(scores, expected_scores, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-4)


def test_a_translator(translator):
    greedy = uncached_greedy(translator.backbone, PROMPTS[:16], 16)
    expected = [[until(*row, ENDS)] for row in zip(greedy, LIMITS, strict=False)]
    assert run(scheduler(translator, batch_size=4), PROMPTS[:16], LIMITS[:16])[0] == expected


@on_cpu
@pytest.mark.one_backend
def test_rows_are_filled_again_and_their_number_stays(engine):
    run(scheduler(engine, batch_size=4))
    assert set(engine.running) == {4}
    assert sum(engine.read) == 40 and len(engine.read) > 10
    assert max(engine.read[1:]) < 4  # some rows went on while others were read
    assert len(set(engine.read[1:])) > 0


@pytest.mark.one_backend
def test_the_longest_prompts_come_first(engine):
    first = []
    made = scheduler(engine, batch_size=4)
    make = made.make_inputs
    made.make_inputs = lambda ids, mask: first.append(mask.sum(axis=1).tolist()) or make(ids, mask)
    run(made)
    lengths = [length for rows in first for length in rows]
    assert lengths == sorted(map(len, PROMPTS), reverse=True)


@pytest.mark.parametrize("sampler", [Greedy(), BeamSearch(2)], ids=["greedy", "beam"])
@pytest.mark.parametrize("common", [on_one(5), on_one(20), 33])
def test_a_shared_prefix_changes_nothing(engine, sampler, common):
    prefix = make_prompts([common], seed=7)[0]
    prompts, limits = [prefix + prompt for prompt in PROMPTS[:9]], LIMITS[:9]
    plain, plain_scores = run(scheduler(engine, sampler, batch_size=4), prompts, limits)
    engine.read = []
    made = scheduler(engine, sampler, batch_size=4, share_prefix=True)
    widths, make = [], made.make_inputs
    # Without the padding, which depends on the sizes that there are programs for.
    made.make_inputs = lambda ids, mask: widths.append(mask.sum(axis=1).max()) or make(ids, mask)
    found, scores = run(made, prompts, limits)
    assert found == plain
    if plain_scores[0] is not None:
        for mine, theirs in zip(scores, plain_scores, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-4)
    # Of 20 tokens the first 16 are read once, of 33 the first 32; fewer than 16 do not pay.
    shared = {5: 0, 20: 16, 33: 32}[common]
    assert max(widths) <= max(16, common + 8 - shared + 3)


@pytest.mark.one_backend
def test_a_prompt_that_is_the_prefix_keeps_a_token(engine):
    prefix = make_prompts([16], seed=7)[0]
    prompts = [prefix, [*prefix, 4], [*prefix, 4, 6]]
    expected = uncached_greedy(engine.backbone, prompts, 8)
    made = scheduler(engine, end_ids=(), share_prefix=True)
    assert run(made, prompts, [8] * 3)[0] == [[row] for row in expected]


@pytest.mark.one_backend
def test_samples_of_a_greedy_sampler_are_equal(engine, greedy):
    found, _ = run(scheduler(engine, batch_size=4, copies=3), PROMPTS[:7], LIMITS[:7], copies=3)
    expected = [[until(*row, ENDS)] for row in zip(greedy[:7], LIMITS, strict=False)]
    assert found == [row for row in expected for _ in range(3)]
    assert set(engine.running) == {12}
    assert max(engine.read) == 4  # a prompt is read once for all of its samples


def test_progress_and_a_stop(engine, greedy):
    made, seen, stopped = scheduler(engine, end_ids=(), batch_size=2), {}, {1: 5, 3: 9}
    finished = {}
    for event in made.run(PROMPTS[:5], [16] * 5, steps=2):
        assert event.tokens
        if isinstance(event, Finished):
            finished[event.index] = event.tokens
            continue
        assert isinstance(event, Progress) and event.index not in finished
        last = seen.get(event.index, [])
        assert event.tokens[: len(last)] == last
        assert len(event.tokens) - len(last) <= 2
        seen[event.index] = event.tokens
        if len(event.tokens) >= stopped.get(event.index, 99):
            made.stop(event.index)
    assert sorted(finished) == list(range(5))
    for index, tokens in finished.items():
        count = stopped.get(index, 16)
        assert count <= len(tokens[0]) <= count + (1 if index in stopped else 0)
        assert tokens[0] == greedy[index][: len(tokens[0])]
    # Nobody is stopped in another run.
    assert run(made, PROMPTS[:5], [16] * 5)[0] == [[row] for row in greedy[:5]]


def test_beams_tell_nothing_before_they_are_done(engine):
    events = list(scheduler(engine, BeamSearch(2)).run(PROMPTS[:3], [8] * 3, steps=1))
    assert sorted(event.index for event in events) == [0, 1, 2]
    assert all(isinstance(event, Finished) for event in events)


@dataclasses.dataclass(frozen=True)
class Drawing(Greedy):
    """Draws a token by its probability."""

    draws: ClassVar[int] = 1

    def choose(self, logits, count, limits):
        place = ops.minimum(count, limits.uniforms.shape[1] - 1)[:, None]
        uniform = ops.take_along_axis(limits.uniforms, place, axis=1)
        below = ops.cumsum(ops.softmax(logits, axis=-1), axis=-1) < uniform
        return ops.cast(ops.sum(ops.cast(below, "int32"), axis=-1), "int32")


def test_what_is_drawn_depends_on_the_seed_and_the_row_alone(engine):
    def draw(seed, **options):
        made = scheduler(engine, Drawing(), (), seed=seed, copies=2, **options)
        return run(made, PROMPTS[:9], [16] * 9, copies=2)[0]

    found = draw(3, batch_size=4)
    assert draw(3, batch_size=2) == found
    assert draw(4, batch_size=4) != found
    assert found[0] != found[1]  # two samples of one prompt
    rows = [PROMPTS[i] for i in range(9) for _ in range(2)]
    new = [tokens[0] for tokens in found]
    logits = uncached_logits(engine.backbone, rows, new).astype("float64")
    likely = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    for row in range(18):
        uniforms = row_uniforms(3, row, 16)
        for step in range(16):
            upto = likely[row, step].cumsum()
            token = new[row][step]
            assert upto[token] >= uniforms[step] - 1e-4
            assert token == 0 or upto[token - 1] <= uniforms[step] + 1e-4


def test_prompts_that_come_while_others_are_decoded(engine, greedy):
    """As in a server: the batch grows and shrinks, and each gives what it gives alone."""
    made = scheduler(engine, batch_size=8, row_counts=(1, 4, 8))
    found, coming, rounds = {}, list(range(24)), 0
    while made.busy or coming:
        # One alone, later a few more, then all others at once.
        for i in coming[: {0: 1, 4: 2, 7: 24}.get(rounds, 0)]:
            assert made.add(GenerationRequest(PROMPTS[i], LIMITS[i], 0, 0)) == coming.pop(0)
        rounds += 1
        for event in made.advance(3):
            if isinstance(event, Finished):
                found[event.index] = event.tokens
    assert [found[i] for i in range(24)] == [[until(greedy[i], LIMITS[i], ENDS)] for i in range(24)]
    assert set(engine.running) <= {1, 4, 8} and len(set(engine.running)) > 1
    for i in (0, 1):
        made.add(GenerationRequest(PROMPTS[i], 4, 0, 0))
    assert made.withdraw(25) and not made.withdraw(25) and made.waiting == 1
    assert [event.index for event in [*made.advance(3), *made.advance(3)]] == [24]


@pytest.mark.backend_independent
def test_random_numbers_of_a_row():
    many = np.concatenate([row_uniforms(5, row, 1000) for row in range(50)])
    assert many.dtype == "float32" and many.min() >= 0 and many.max() < 1
    assert len(np.unique(many)) > 49_000
    assert abs(many.mean() - 0.5) < 0.01 and abs(many.var() - 1 / 12) < 0.005
    np.testing.assert_array_equal(row_uniforms(5, 7, 8), row_uniforms(5, 7, 16)[:8])
