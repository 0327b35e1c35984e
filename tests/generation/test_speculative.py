"""Speculative decoding: the tokens of greedy decoding, and the distribution of sampling."""

import itertools

import numpy as np
import pytest
from keras import ops

from keras_transformer import CausalLM
from keras_transformer.generation import Engine, Greedy, Rules, Settings, Speculative
from keras_transformer.generation.samplers.speculative import look_up
from keras_transformer.generation.scheduler import Scheduler
from tests.generation.common import (
    END,
    PAD,
    START,
    engine_inputs,
    make_backbone,
    make_prompts,
    on_one,
    uncached_logits,
)


def nearly(backbone, noise=0.15, seed=1):
    """A model that mostly chooses what `backbone` does."""
    draft = type(backbone)(backbone.config)
    random = np.random.default_rng(seed)
    for mine, theirs in zip(draft.weights, backbone.weights, strict=True):
        mine.assign(theirs + noise * random.normal(size=theirs.shape))
    return draft


def decode(engine, sampler, prompts, limits, end_ids=(), seed=0, **options):
    """The `Finished` of each prompt, and rows that join and leave a running batch."""

    def make_inputs(ids, mask):
        if engine.backbone.config.kind == "decoder":
            return {"token_ids": ids, "padding_mask": mask}
        start = np.full((len(ids), 1), START, "int32")
        return {
            "encoder_token_ids": ids,
            "encoder_padding_mask": mask,
            "decoder_token_ids": start,
        }

    settings = Settings(sampler, None, end_ids, PAD)
    scheduler = Scheduler(engine, settings, make_inputs, seed=seed, **options)
    found = {(done.index, done.copy): done for done in scheduler.run(prompts, limits)}
    return [found[key] for key in sorted(found)]


def tokens_of(finished):
    return [done.tokens[0] for done in finished]


GROUPED = {"position": "rotary", "num_key_value_heads": 2, "num_layers": 2}
VARIANTS = [  # the last: whether the drafts are looked up, else they are of another model
    ("decoder", GROUPED, True),
    ("decoder", GROUPED, False),
    ("seq2seq", {"position": "relative"}, False),
    on_one("seq2seq", {"position": "relative"}, True),
    *(
        on_one("decoder", values, lookup)
        for values in (
            {"position": "learned", "max_sequence_length": 27},
            {"position": "alibi", "window": 6},
        )
        for lookup in (True, False)
    ),
]


@pytest.mark.parametrize("kind, values, lookup", VARIANTS, ids=lambda value: str(value)[:40])
def test_the_tokens_are_those_of_greedy(kind, values, lookup):
    """Rows of all lengths and limits, and at first more prompts than fit in a batch."""
    engine = Engine(make_backbone(kind, seed=1 if kind == "seq2seq" else 3, **values))
    prompts = make_prompts([3, 7, 4, 8, 4, 3, 1])
    limits = [9, 19, 20, 1, 13, 7, 2]
    ends = (END, 5)
    batch_size = 4 if "num_layers" in values else 8
    expected = decode(engine, Greedy(), prompts, limits, ends, batch_size=batch_size)
    assert len({len(tokens) for tokens in tokens_of(expected)}) > 2
    sampler = Speculative(None if lookup else nearly(engine.backbone), 2)
    found = decode(engine, sampler, prompts, limits, ends, batch_size=batch_size)
    assert tokens_of(found) == tokens_of(expected)
    passes = [done.passes for done in found]
    assert all(1 <= count <= len(row) for count, row in zip(passes, tokens_of(found), strict=True))
    if not lookup:
        assert sum(passes) < sum(map(len, tokens_of(found)))


@pytest.fixture(scope="module")
def engine():
    return Engine(make_backbone("decoder", position="rotary", num_key_value_heads=2, seed=3))


def test_a_draft_that_is_the_model_is_always_right(engine):
    prompts, count = make_prompts([3, 7, 1]), 41
    inputs = engine_inputs(engine.backbone, prompts)
    greedy = engine.generate(inputs, Settings(Greedy()), count).tokens
    outputs = engine.generate(inputs, Settings(Speculative(engine.backbone, 4)), count)
    np.testing.assert_array_equal(outputs.tokens, greedy)
    # The pass over the prompt gives one token, each other one 5.
    assert outputs.passes.tolist() == [9] * 3


def test_an_end_or_a_limit_within_accepted_drafts(engine):
    prompts = make_prompts([3, 7, 1])
    sampler = Speculative(engine.backbone, 4)
    inputs = engine_inputs(engine.backbone, prompts)
    free = engine.generate(inputs, Settings(Greedy()), 16).tokens[:, 0]
    # Within the second pass, its last token, within the third.
    ends = tuple({int(row[place]) for row, place in zip(free, (2, 5, 8), strict=True)})
    settings = [Settings(each, None, ends, PAD) for each in (Greedy(), sampler)]
    greedy, found = (engine.generate(inputs, each, 16) for each in settings)
    np.testing.assert_array_equal(found.tokens, greedy.tokens)
    np.testing.assert_array_equal(found.counts, greedy.counts)
    assert len(np.unique(found.counts)) > 1 and found.counts.max() < 16
    found = decode(engine, sampler, prompts, [4, 9, 12])
    assert tokens_of(found) == [free[0, :4].tolist(), free[1, :9].tolist(), free[2, :12].tolist()]
    assert [done.passes for done in found] == [2, 3, 4]


def test_looking_up_saves_passes_where_the_text_repeats_itself():
    # Each token sees itself alone: of 24 tokens, one comes again, and with it what followed.
    engine = Engine(make_backbone("decoder", position="rotary", window=1, seed=3))
    prompts, limits = make_prompts([9, 5, 2]), [120, 100, 80]
    expected = decode(engine, Greedy(), prompts, limits)
    found = decode(engine, Speculative(num_draft_tokens=4, max_ngram=2), prompts, limits)
    assert tokens_of(found) == tokens_of(expected)
    for done in found:
        assert done.passes <= 24 + len(done.tokens[0]) / 5


def test_rejected_tokens_give_back_their_slots(engine):
    """Run enough steps that the cache has to be compacted, and to grow."""
    prompts, limits = make_prompts([9, 5, 2]), [90, 80, 60]
    expected = decode(engine, Greedy(), prompts, limits)
    found = decode(engine, Speculative(nearly(engine.backbone, 0.3), 3), prompts, limits)
    assert tokens_of(found) == tokens_of(expected)
    assert len({done.passes / len(done.tokens[0]) for done in found}) > 1


@pytest.mark.one_backend
def test_a_shared_prefix_is_read_by_the_draft_too(engine):
    prefix = make_prompts([20], seed=4)[0]
    prompts = [prefix + rest for rest in make_prompts([3, 1, 5])]
    expected = decode(engine, Greedy(), prompts, [12] * 3)
    sampler = Speculative(engine.backbone, 3)
    found = decode(engine, sampler, prompts, [12] * 3, share_prefix=True)
    assert tokens_of(found) == tokens_of(expected)
    assert [done.passes for done in found] == [4] * 3


def slow_look_up(text, count, max_ngram):
    for n in range(max_ngram, 0, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if text[start : start + n] == text[len(text) - n :]:
                whole = list(text)
                for i in range(count):
                    whole.append(whole[start + n + i])
                return whole[len(text) :]
    return [-1] * count


@pytest.mark.parametrize("max_ngram", [1, 2, 3, 40])
def test_what_is_looked_up(max_ngram):
    random = np.random.default_rng(0)
    lengths = random.integers(1, 17, 60)
    texts = np.zeros((60, 16), "int32")
    for row, length in zip(texts, lengths, strict=True):
        row[:length] = random.integers(0, random.integers(2, 9), length)
    expected = [
        slow_look_up(row[:length].tolist(), 5, max_ngram)
        for row, length in zip(texts, lengths, strict=True)
    ]
    assert ops.convert_to_numpy(look_up(texts, lengths, 5, max_ngram)).tolist() == expected
    assert [-1] * 5 in expected


def chi_squared(rows, chances):
    """The statistic of drawn rows against the chances of each, and its 0.1% quantile."""
    counted = dict.fromkeys(chances, 0)
    for row in rows:
        counted[tuple(row)] += 1
    pairs = sorted((chances[key] * len(rows), counted[key]) for key in chances)
    cells, expected, observed = [], 0.0, 0
    for share, count in pairs:  # cells of at least 5
        expected, observed = expected + share, observed + count
        if expected >= 5:
            cells.append((expected, observed))
            expected, observed = 0.0, 0
    cells[-1] = (cells[-1][0] + expected, cells[-1][1] + observed)
    assert len(cells) > 8
    statistic = sum((observed - expected) ** 2 / expected for expected, observed in cells)
    # Wilson and Hilferty 1931
    part = 2 / (9 * (len(cells) - 1))
    return statistic, (len(cells) - 1) * (1 - part + 3.09 * part**0.5) ** 3


def chances_of_all(backbone, prompt, length, temperature):
    """The probability of every continuation of `length` tokens, from passes without a cache."""
    vocabulary = range(backbone.config.vocabulary_size)
    every = [list(row) for row in itertools.product(vocabulary, repeat=length)]
    logits = uncached_logits(backbone, [prompt] * len(every), every).astype("float64")
    logits = logits / temperature
    chances = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances /= chances.sum(axis=-1, keepdims=True)
    return {
        tuple(row): float(np.prod([steps[i, row[i]] for i in range(length)]))
        for row, steps in zip(every, chances, strict=True)
    }


@pytest.mark.parametrize("lookup", [on_one(True), False])
def test_the_distribution_is_that_of_sampling(lookup):
    backbone, prompt, temperature = make_backbone("decoder", 4, seed=2), [3, 1, 2, 3, 1], 1.7
    draft = None if lookup else nearly(backbone, 0.3)
    copies, length = 4096, 3
    sampler = Speculative(draft, num_draft_tokens=2, temperature=temperature)
    found = decode(
        Engine(backbone), sampler, [prompt], [length], seed=5, batch_size=1, copies=copies
    )
    rows = tokens_of(found)
    assert len(rows) == copies
    statistic, bound = chi_squared(rows, chances_of_all(backbone, prompt, length, temperature))
    assert statistic < bound
    # There are enough rows to tell another temperature, and the draft's own distribution.
    others = [chances_of_all(backbone, prompt, length, 1.5 * temperature)]
    if draft is not None:
        others.append(chances_of_all(draft, prompt, length, temperature))
    for other in others:
        statistic, bound = chi_squared(rows, other)
        assert statistic > 2 * bound
    # Some drafts were accepted and some were not.
    assert {done.passes for done in found} == {2, 3}


@pytest.mark.parametrize(
    "lookup",
    [
        pytest.param(True, marks=pytest.mark.one_backend, id="lookup"),
        pytest.param(False, id="draft"),
    ],
)
def test_a_batch_gives_what_each_prompt_gives_alone(engine, lookup):
    draft = None if lookup else nearly(engine.backbone)
    sampler = Speculative(draft, 2, temperature=0.8)
    prompts, limits = make_prompts([4, 3, 4, 8, 3], 8), [12, 14, 5, 9, 3]
    together = decode(engine, sampler, prompts, limits, (END,), seed=3, batch_size=4)
    alone = decode(engine, sampler, prompts, limits, (END,), seed=3, batch_size=1)
    assert together == alone
    others = decode(engine, sampler, prompts, limits, (END,), seed=4, batch_size=4)
    assert tokens_of(together) != tokens_of(others)


@pytest.mark.one_backend
def test_a_draft_with_too_few_positions_is_only_wrong(engine):
    draft = make_backbone("decoder", position="learned", max_sequence_length=10)
    prompts = make_prompts([3, 7])
    found = decode(engine, Speculative(draft, 2), prompts, [20, 20])
    assert tokens_of(found) == tokens_of(decode(engine, Greedy(), prompts, [20, 20]))


@pytest.mark.one_backend
def test_a_row_that_is_done_may_run_beyond_the_last_position():
    """It stays in the batch until the others are done, and is not read any more."""
    backbone = make_backbone("decoder", position="learned", max_sequence_length=15, seed=3)
    prompts = make_prompts([10, 3])
    for sampler in (Greedy(), Speculative()):
        found = decode(Engine(backbone), sampler, prompts, [2, 12], longest=15)
        for prompt, row in zip(prompts, tokens_of(found), strict=True):
            expected = uncached_logits(backbone, [prompt], [row]).argmax(axis=-1)
            assert expected.tolist() == [row]
        assert list(map(len, tokens_of(found))) == [2, 12]


@pytest.mark.one_backend
def test_it_is_a_sampler_of_generate(engine):
    lm = CausalLM(engine.backbone)
    prompts = make_prompts([4, 2])
    greedy = lm.generate(prompts, max_new_tokens=10)
    assert lm.generate(prompts, max_new_tokens=10, sampler="speculative") == greedy


@pytest.mark.parametrize(
    "values, message",
    [
        ({"num_draft_tokens": 0}, "`num_draft_tokens` must be an integer from 1 to"),
        ({"num_draft_tokens": True}, "received True"),
        ({"max_ngram": 1.5}, "`max_ngram` must be an integer from 1 to 256, received 1.5"),
        ({"temperature": -0.1}, "`temperature` must be a number of at least 0, received -0.1"),
        ({"temperature": float("nan")}, "received nan"),
        ({"draft": "small"}, "`draft` must be a backbone, received str"),
    ],
)
def test_bad_values(values, message):
    with pytest.raises(ValueError, match=message):
        Speculative(**values)


def test_drafts_that_do_not_fit(engine):
    with pytest.raises(ValueError, match="must be a backbone with a decoder, received one of kind"):
        Speculative(make_backbone("encoder"))
    other = Speculative(make_backbone("decoder", vocabulary_size=25))
    with pytest.raises(ValueError, match="vocabulary_size=25, but the model .* has 24"):
        decode(engine, other, [[3, 4]], [5])
    with pytest.raises(ValueError, match="kind='seq2seq', but the model .* has 'decoder'"):
        decode(engine, Speculative(make_backbone("seq2seq")), [[3, 4]], [5])
    settings = Settings(Speculative(), rules=Rules(repetition_penalty=2.0))
    with pytest.raises(ValueError, match="Rules that change the logits do not go with"):
        engine.generate({"token_ids": np.array([[3, 4]])}, settings, 5)


def test_samplers_are_equal_if_their_drafts_are_the_same_object(engine):
    draft = nearly(engine.backbone)
    assert Speculative(draft) == Speculative(draft) != Speculative(nearly(engine.backbone))
    assert hash(Speculative(draft)) == hash(Speculative(draft))
