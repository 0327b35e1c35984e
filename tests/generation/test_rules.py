"""Rules step by step, against the processors of Transformers."""

import functools

import numpy as np
import pytest
from keras import ops

from keras_transformer.generation.rules.banning import BANNED
from keras_transformer.generation.rules.rules import Rules
from keras_transformer.generation.samplers.samplers import Prompt, RowLimits
from tests.generation.automata import Automaton, follow, is_way_on, random_automaton
from tests.generation.common import END, PAD, on_one

VOCABULARY = 24


def start(rules, prompts, branches=1, size=8, vocabulary=VOCABULARY, end_ids=(END,)):
    limits = RowLimits(end_ids, PAD, None, None)
    ids = np.full((len(prompts), max(map(len, prompts))), 7, "int32")
    mask = np.zeros(ids.shape, "bool")
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)], mask[row, : len(prompt)] = prompt, True
    prompt = Prompt(ops.convert_to_tensor(ids), ops.convert_to_tensor(mask), None)
    return rules.start(branches, size, vocabulary, prompt, limits), limits


def apply(rules, logits, state, limits):
    return ops.convert_to_numpy(rules.apply(ops.convert_to_tensor(logits), state, limits))


def advance(rules, state, parents, tokens):
    parents = None if parents is None else ops.convert_to_tensor(parents)
    return rules.advance(state, parents, ops.convert_to_tensor(tokens))


def every_step(rules, prompts, branches, expected, steps=8, vocabulary=VOCABULARY, **options):
    """Compares each step with `expected(history, new, logits)`, of one branch at a time.

    Tokens, and the branches that are continued, are random.
    """
    random = np.random.default_rng(0)
    state, limits = start(rules, prompts, branches, steps, vocabulary, **options)
    texts = [[(list(prompt), []) for _ in range(branches)] for prompt in prompts]
    for _ in range(steps):
        shape = (len(prompts), branches)
        logits = random.normal(size=(*shape, vocabulary)).astype("float32") * 3
        found = apply(rules, logits, state, limits)
        wanted = np.array(
            [
                [expected(*text, logits[row, i]) for i, text in enumerate(of_row)]
                for row, of_row in enumerate(texts)
            ]
        )
        np.testing.assert_array_equal(found <= BANNED / 2, np.isneginf(wanted))
        np.testing.assert_allclose(
            found, np.where(np.isneginf(wanted), BANNED, wanted), rtol=1e-5, atol=1e-6
        )
        parents = random.integers(0, branches, shape).astype("int32") if branches > 1 else None
        tokens = random.integers(0, vocabulary, shape).astype("int32")
        state = advance(rules, state, parents, tokens)
        before = np.arange(branches)[None] + 0 * tokens if parents is None else parents
        texts = [
            [
                tuple([*text, int(token)] for text in of_row[parent])
                for parent, token in zip(before[row], tokens[row], strict=True)
            ]
            for row, of_row in enumerate(texts)
        ]


def processors(rules, prompt_length, end_ids=(END,)):
    """Transformers' of the same values, in the order that its `generate` has."""
    found = pytest.importorskip("transformers.generation.logits_process")
    made = []
    if rules.sequence_bias:
        biases = [[list(ids), bias] for ids, bias in rules.sequence_bias]
        made.append(found.SequenceBiasLogitsProcessor(biases))
    if rules.repetition_penalty != 1:
        made.append(found.RepetitionPenaltyLogitsProcessor(rules.repetition_penalty))
    if rules.no_repeat_ngram_size:
        made.append(found.NoRepeatNGramLogitsProcessor(rules.no_repeat_ngram_size))
    if rules.bad_words:
        words = [list(word) for word in rules.bad_words]
        made.append(found.NoBadWordsLogitsProcessor(words, list(end_ids)))
    if rules.min_new_tokens:
        made.append(
            found.MinNewTokensLengthLogitsProcessor(
                prompt_length, rules.min_new_tokens, list(end_ids)
            )
        )
    if rules.exponential_decay_length_penalty:
        given = rules.exponential_decay_length_penalty
        made.append(found.ExponentialDecayLengthPenalty(given, list(end_ids), prompt_length))
    if rules.bad_first:
        bad, begin = list(rules.bad_first), prompt_length
        made.append(found.SuppressTokensAtBeginLogitsProcessor(bad, begin))
    if rules.forced_prefix:
        made.append(found.ForcedBOSTokenLogitsProcessor(rules.forced_prefix[0]))
    return found.LogitsProcessorList(made)


BAD_WORDS = [[5], [8], [END], [3, 9], [9, END], [4, 6], [6, 6], [1, 2, 3], [10, 11, 12, 13, 14, 3]]
# Two with one last token, one that another one is the end of.
BIASES = {(5,): 2.0, (8,): -3.0, (3, 9): 4.0, (6, 9): 1.0, (6, 6): -2.5, (4, 6, 6): 1.5}
CASES = {
    "biases": Rules(sequence_bias=BIASES),
    "biases of words": Rules(sequence_bias=[([i, (5 * i) % 24], i - 9.0) for i in range(24)]),
    "length": Rules(exponential_decay_length_penalty=(3, 1.3)),
    "length and biases": Rules(
        sequence_bias=BIASES, repetition_penalty=1.3, exponential_decay_length_penalty=(0, 0.7)
    ),
    "penalty": Rules(repetition_penalty=1.7),
    "reward": Rules(repetition_penalty=0.6),
    "1-grams": Rules(no_repeat_ngram_size=1),
    "2-grams": Rules(no_repeat_ngram_size=2),
    "3-grams": Rules(no_repeat_ngram_size=3),
    "long n-grams": Rules(no_repeat_ngram_size=30),
    "bad words": Rules(bad_words=BAD_WORDS),
    "bad pairs": Rules(bad_words=[[i, (7 * i) % 24] for i in range(24)]),
    "minimum": Rules(min_new_tokens=3),
    "bad first": Rules(bad_first=[3, 9, END]),
    "all": Rules(
        repetition_penalty=1.3, no_repeat_ngram_size=2, bad_words=BAD_WORDS, min_new_tokens=4
    ),
}


@pytest.mark.parametrize("branches", [on_one(1), 3])
@pytest.mark.parametrize("name", CASES)
def test_a_step_equals_transformers(name, branches):
    torch = pytest.importorskip("torch")
    rules = CASES[name]
    # Few tokens, so that they come again. Texts are longer than the beginnings of words: some
    # versions of Transformers look at no word that is longer than the text.
    prompts = [[3, 9, 3, 4], [2, 1], [6, 6, 4, 6, 10, 11, 12, 13], [1, 10, 11, 12, 13, 14]]

    def expected(history, new, logits):
        scores = torch.tensor(logits)[None]
        process = processors(rules, len(history) - len(new))
        return process(torch.tensor([history]), scores)[0].numpy()

    # The tokens that `every_step` draws are of the whole vocabulary: many prompts meet words.
    every_step(rules, prompts, branches, expected, steps=12)


def test_a_text_that_is_the_beginning_of_a_word():
    state, limits = start(rules := Rules(bad_words=[[4, 6, 3], [6, 6, 6, 6]]), [[4, 6]], 1, 2)
    found = apply(rules, np.zeros((1, 1, VOCABULARY), "float32"), state, limits)
    np.testing.assert_array_equal(found[0, 0] <= BANNED / 2, np.arange(VOCABULARY) == 3)


def test_a_forced_first_token_equals_transformers():
    torch = pytest.importorskip("torch")
    rules = Rules(forced_prefix=[5], bad_words=[[5], [6]], min_new_tokens=2)

    def expected(history, new, logits):
        process = processors(rules, 1)
        return process(torch.tensor([history]), torch.tensor(logits)[None])[0].numpy()

    every_step(rules, [[1], [4]], 2, expected, steps=3)


def test_a_forced_prefix():
    prefix = (5, END, 9)

    def expected(history, new, logits):
        if len(new) < len(prefix):
            logits = np.where(np.arange(VOCABULARY) == prefix[len(new)], 0.0, -np.inf)
        return logits

    every_step(Rules(forced_prefix=prefix), [[1, 2], [4]], 2, expected, steps=5)


@pytest.mark.parametrize("branches", [1, 3])
def test_presence_and_frequency_are_of_new_tokens(branches):
    """As the API of OpenAI defines them: logit - count * frequency - (count > 0) * presence."""

    def expected(history, new, logits):
        counts = np.bincount(np.array(new, int), minlength=6)
        return logits - counts * 0.3 - (counts > 0) * 0.8

    rules = Rules(presence_penalty=0.8, frequency_penalty=0.3)
    every_step(rules, [[1, 1, 2], [4]], branches, expected, vocabulary=6)


def test_a_function_sees_the_new_tokens():
    seen = []

    def function(logits, tokens, counts):
        seen.append((ops.convert_to_numpy(tokens), ops.convert_to_numpy(counts)))
        return logits * 2 - ops.cast(tokens[..., :1], "float32")

    def expected(history, new, logits):
        first = new[0] if new else PAD
        return np.where(np.arange(VOCABULARY) == 6, -np.inf, logits * 2 - first)

    every_step(Rules(bad_words=[[6]], function=function), [[3, 4], [1]], 2, expected, steps=3)
    tokens, counts = seen[2]
    assert tokens.shape == (2, 2, 3) and counts.tolist() == [2, 2] and (tokens[..., 2] == PAD).all()


def test_what_a_function_returns_is_checked():
    state, limits = start(Rules(function=lambda logits, *_: logits[..., 0]), [[1]])
    rules = Rules(function=lambda logits, *_: logits[..., 0])
    with pytest.raises(ValueError, match=r"must return logits of the shape .* \(1, 1, 24\)"):
        apply(rules, np.zeros((1, 1, VOCABULARY), "float32"), state, limits)


def test_an_infinite_ban_of_a_function_is_one_of_ours():
    rules = Rules(function=lambda logits, *_: ops.where(logits > 0, logits, -float("inf")))
    state, limits = start(rules, [[1]])
    logits = np.linspace(-1, 1, VOCABULARY, dtype="float32")[None, None]
    found = apply(rules, logits, state, limits)
    np.testing.assert_array_equal(found, np.where(logits > 0, logits, np.float32(BANNED)))


@pytest.mark.parametrize("branches", [on_one(1), 3])
@pytest.mark.parametrize("end_ids", [(END,), (END, 5), ()])
def test_an_automaton_allows_what_its_table_says(end_ids, branches):
    automaton = random_automaton(20)  # the model has 4 tokens more

    def expected(history, new, logits):
        state = follow(automaton, new)
        stuck = state >= 0 and not is_way_on(automaton, state, end_ids)
        for token in range(VOCABULARY):
            allowed = state >= 0 and follow(automaton, [*new, token]) >= 0
            if token in end_ids:
                allowed = state >= 0 and (stuck or bool(automaton.accepting[state]))
            elif token == PAD and not end_ids:
                allowed = allowed or stuck
            logits = logits if allowed else np.where(np.arange(24) == token, -np.inf, logits)
        return logits

    random = np.random.default_rng(1)
    rules = Rules(automaton=automaton)
    state, limits = start(rules, [[1]] * 4, branches, end_ids=end_ids)
    new = [[[] for _ in range(branches)] for _ in range(4)]
    for _ in range(8):
        logits = random.normal(size=(4, branches, VOCABULARY)).astype("float32")
        found = apply(rules, logits, state, limits)
        wanted = [
            [expected([], new[r][b], logits[r, b]) for b in range(branches)] for r in range(4)
        ]
        np.testing.assert_array_equal(found <= BANNED / 2, np.isneginf(wanted))
        # Mostly an allowed token that goes on.
        tokens = np.where(random.random((4, branches)) < 0.9, found.argmax(-1), 3).astype("int32")
        tokens = np.where(np.isin(tokens, end_ids), 23, tokens).astype("int32")
        parents = random.integers(0, branches, (4, branches)).astype("int32")
        stuck = [
            [(s := follow(automaton, x)) >= 0 and not is_way_on(automaton, s, ()) for x in of_row]
            for of_row in new
        ]
        state = advance(rules, state, parents, tokens)
        new = [
            [
                # A state without a way on stays.
                of_row[p] if stuck[r][p] else [*of_row[p], int(tokens[r, i])]
                for i, p in enumerate(parents[r])
            ]
            for r, of_row in enumerate(new)
        ]


def test_where_all_is_banned_only_the_automaton_holds():
    automaton = Automaton(np.array([[1, -1], [-1, -1]]), np.array([1] * 6 + [0, 0]), np.ones(2) > 2)
    words = [[token] for token in range(8)]
    logits = np.arange(8, dtype="float32")[None, None]
    for rules, likeliest in (
        (Rules(bad_words=words), 7),
        (Rules(function=lambda x, *_: x - float("inf")), 7),
        (Rules(bad_words=words, automaton=automaton), 7),
        (Rules(forced_prefix=[3], automaton=automaton), 7),
        (Rules(bad_words=[[7]], automaton=automaton), 6),
    ):
        state, limits = start(rules, [[1]], vocabulary=8, end_ids=())
        found = apply(rules, logits, state, limits)[0, 0]
        assert np.isfinite(found).all() and found.argmax() == likeliest
        if rules.automaton is not None:
            assert (found[:6] <= BANNED / 2).all()
    # An end that is too early, but nothing else is possible.
    rules = Rules(automaton=automaton, min_new_tokens=5)
    state, limits = start(rules, [[1]], vocabulary=8)
    state = advance(rules, state, None, np.array([[6]], "int32"))
    found = apply(rules, logits, state, limits)[0, 0]
    assert found.argmax() == END and (np.delete(found, END) <= BANNED / 2).all()


# Values.


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    "values, message",
    [
        (
            {"repetition_penalty": 0},
            "`repetition_penalty` must be from 1e-6 to 1e6, and 1 disables it",
        ),
        ({"repetition_penalty": "much"}, "`repetition_penalty` must be a number from"),
        ({"presence_penalty": float("nan")}, "`presence_penalty` must be a number from"),
        ({"frequency_penalty": None}, "`frequency_penalty` must be a number from"),
        ({"no_repeat_ngram_size": -1}, "`no_repeat_ngram_size` must be an integer"),
        ({"min_new_tokens": 2.5}, "`min_new_tokens` must be an integer"),
        ({"min_new_tokens": True}, "received True"),
        ({"bad_words": [[3], []]}, r"`bad_words\[1\]` is empty"),
        ({"bad_words": [3]}, r"`bad_words\[0\]` must be a sequence of token ids, received 3"),
        ({"bad_words": ["no"]}, r"`bad_words\[0\]` must be a sequence of token ids.* `tokenizer"),
        ({"forced_prefix": "no"}, r"received 'no'. `tokenizer.encode\(text, special_tokens=False"),
        ({"bad_words": [[-4]]}, r"`bad_words\[0\]\[0\]` must be an integer of at least 0"),
        ({"forced_prefix": [1.5]}, r"`forced_prefix\[0\]` must be an integer"),
        ({"sequence_bias": [[5, 2.0, 1]]}, "`sequence_bias` must be pairs of token ids and a"),
        ({"sequence_bias": {(5,): "x"}}, r"`sequence_bias\[0\]\[1\]` must be a number"),
        ({"sequence_bias": {5: 1.0}}, r"`sequence_bias\[0\]` must be a sequence of token ids"),
        ({"sequence_bias": [([5], 1), ((5,), 2)]}, "the same sequence of ids twice"),
        ({"exponential_decay_length_penalty": 3}, "must be a pair of a number of tokens and a"),
        ({"exponential_decay_length_penalty": (3, 0)}, r"penalty\[1\]` must be a number above 0"),
        ({"function": 3}, "`function` must be callable"),
        ({"function": lambda logits: logits}, r"called as `function\(logits, tokens, counts\)`"),
        ({"function": lambda a, b, c, d: a}, "missing a required argument: 'd'"),
        ({"function": lambda a, b, c, *, d: a}, "missing a required argument: 'd'"),
        ({"automaton": "a*"}, "`automaton` must be a TokenAutomaton, received 'a\\*'"),
    ],
)
def test_bad_values(values, message):
    with pytest.raises(ValueError, match=message):
        Rules(**values)


@pytest.mark.backend_independent
def test_functions_that_can_be_called():
    for function in (
        lambda *given: given[0],
        lambda a, b, c, d=1: a,
        functools.partial(max, key=1),
    ):
        assert Rules(function=function).function is function


@pytest.mark.backend_independent
def test_equal_rules_are_equal():
    automaton = random_automaton(20)
    first = Rules(
        bad_words=[[3], np.array([4, 5])], forced_prefix=np.array([1]), automaton=automaton
    )
    second = Rules(bad_words=((3,), (4, 5)), forced_prefix=(1,), automaton=automaton)
    assert first == second and hash(first) == hash(second)
    biased = Rules(sequence_bias={(3, 4): 1, (5,): 2.0})
    assert biased == Rules(sequence_bias=[[[3, 4], 1.0], [np.array([5]), 2]])
    assert hash(biased) == hash(Rules(sequence_bias=biased.sequence_bias))
    assert first != Rules(bad_words=[[3], [4, 5]], forced_prefix=[1])
