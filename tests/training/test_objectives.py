"""Tokens cut out, hidden and reordered: the papers' examples and the numbers of their code."""

from itertools import permutations

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.training import (
    Denoising,
    MaskedTokens,
    NextToken,
    PermutedOrders,
    SpanCorruption,
)
from keras_transformer.training.objectives import RowGenerator, _sentinel_spans, _to_the_left

pytestmark = pytest.mark.backend_independent

TEXTS = ["thank you for inviting me to your party last week . it was fun ! was it not ?"] * 4
START = 7


@pytest.fixture(scope="module")
def words():
    specials = ["<mask>", *(f"<extra_id_{i}>" for i in range(30))]
    return kt.Tokenizer.train(
        TEXTS, vocabulary_size=500, special_tokens=specials, template="start_end"
    )


def rows_of(words, lengths, width=None, seed=0):
    """Padded rows of ordinary ids, none of them twice in a row."""
    random = np.random.default_rng(seed)
    ordinary = np.setdiff1d(np.arange(words.vocabulary_size), words.special_ids)
    width = width or max(lengths)
    ids = np.stack([random.permutation(ordinary)[:width] for _ in lengths])
    mask = np.arange(width) < np.asarray(lengths)[:, None]
    return np.where(mask, ids, words.pad_id), mask


def real(ids, mask):
    return [row[keep].tolist() for row, keep in zip(ids, mask, strict=True)]


def put_together(source, target, sentinels):
    """The text of a source and its target, which only a right pair gives."""
    spans, current = {}, None
    for token in target:
        if token in sentinels:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    text = []
    for token in source:
        text += spans[token] if token in sentinels else [token]
    return text


def test_the_example_of_t5():
    """Raffel et al. 2020, figure 2."""
    text = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week", "."]
    x, y, z = "<X>", "<Y>", "<Z>"
    vocabulary = [*text, x, y, z]
    ids = np.array([[vocabulary.index(token) for token in text] + [99]])  # and a padded place
    mask = np.array([[True] * len(text) + [False]])
    noise = np.isin(ids, [vocabulary.index(token) for token in ("for", "inviting", "last")])
    sentinels = np.array([vocabulary.index(token) for token in (x, y, z)])
    source, target = _sentinel_spans(ids, mask, noise, sentinels)

    def words_of(row):
        found, real = _to_the_left(*row, 12, 0)
        return " ".join(vocabulary[token] for token in found[0][real[0]])

    assert words_of(source) == "Thank you <X> me to your party <Y> week ."
    assert words_of(target) == "<X> for inviting <Y> last <Z>"


@pytest.mark.parametrize(
    "length, density, mean, noise, spans",
    # By hand from the published formula, where a half goes to the even number. Of 568 tokens T5
    # makes its 512 inputs and 114 targets, each with its end.
    [
        (568, 0.15, 3.0, 85, 28),
        (512, 0.15, 3.0, 77, 26),
        (100, 0.15, 3.0, 15, 5),
        (10, 0.15, 3.0, 2, 1),
        (30, 0.15, 3.0, 4, 1),
        (30, 0.5, 3.0, 15, 5),
        (50, 0.15, 3.0, 8, 3),
        (64, 0.5, 8.0, 32, 4),
        (2, 0.15, 3.0, 1, 1),
        (9, 0.9, 1.0, 8, 1),
    ],
)
def test_numbers_of_spans(length, density, mean, noise, spans):
    found = SpanCorruption(density, mean)._numbers(np.array([length]))
    assert [int(number[0]) for number in found] == [noise, spans]


def test_spans_are_cut_out_and_written_down(words):
    objective = SpanCorruption()
    lengths = [64, 63, 40, 17, 5, 2, 1]
    ids, mask = rows_of(words, lengths)
    make = objective.bind(words, START)
    sentinels = [words.token_to_id(f"<extra_id_{i}>") for i in range(30)]
    firsts = []
    for seed in range(20):
        x, y, weights = make(ids, mask, np.random.default_rng(seed))
        sources = real(x["encoder_token_ids"], x["encoder_padding_mask"])
        targets = real(y, weights > 0)
        starts = real(x["decoder_token_ids"], x["decoder_padding_mask"])
        for row, length in enumerate(lengths):
            source, target = sources[row], targets[row]
            assert (source[0], source[-1]) == (words.start_id, words.end_id)
            assert target[-1] == words.end_id and starts[row] == [START, *target[:-1]]
            used = [token for token in source if token in sentinels]
            assert used == sentinels[: len(used)]
            if length > 1:
                assert put_together(source[1:-1], target[:-1], sentinels) == real(ids, mask)[row]
                noise, spans = (int(n[0]) for n in objective._numbers(np.array([length])))
                assert len(used) == spans and len(target) == noise + spans + 1
                assert source[1] == ids[row, 0] and source[-2] == used[-1]  # kept, then cut out
            else:
                assert source[1:-1] == [ids[row, 0]] and target == [sentinels[0], words.end_id]
        firsts.append(sources[0].index(sentinels[0]))
    assert len(set(firsts)) > 5
    assert (x["encoder_token_ids"][~x["encoder_padding_mask"]] == words.pad_id).all()
    assert (y[weights == 0] == words.pad_id).all()


def test_divisions_are_alike_likely():
    """Six tokens kept, of which the first span has 1 to 5, two cut out in two spans."""
    objective = SpanCorruption(0.25, 1.0)
    noise = objective._noise(np.full(20_000, 8), 8, np.random.default_rng(0))
    assert (noise.sum(axis=1) == 2).all() and noise[:, -1].all() and not noise[:, 0].any()
    firsts = np.bincount(noise.argmax(axis=1), minlength=8)[1:6]
    assert firsts.sum() == 20_000
    np.testing.assert_allclose(firsts / 20_000, 0.2, atol=0.012)


@pytest.mark.parametrize("objective", [SpanCorruption(0.3, 2.0), Denoising()])
def test_shapes_are_those_of_the_batch(words, objective):
    make = objective.bind(words, START)
    shapes = set()
    for seed, lengths in enumerate(([24] * 3, [1, 2, 24], [3, 1, 1], [23, 22, 21])):
        ids, mask = rows_of(words, lengths, width=24)
        x, y, weights = make(ids, mask, np.random.default_rng(seed))
        shapes.add((*(a.shape for a in x.values()), y.shape, weights.shape))
        assert {a.dtype.name for a in x.values()} == {"int32", "bool"} and y.dtype == "int32"
    assert len(shapes) == 1


def test_few_sentinels(words):
    make = SpanCorruption(0.5, 1.0).bind(words, START)
    with pytest.raises(ValueError, match="up to 32 spans, but the tokenizer has 30 sentinels"):
        make(*rows_of(words, [64]), np.random.default_rng(0))


def test_text_infilling(words):
    """Lewis et al. 2020, section 2.2: 30 % of the tokens, Poisson(3) spans, one mask each."""
    lengths = [200] * 200 + [10, 3, 1]
    ids, mask = rows_of(words, lengths)
    make = Denoising(permute_sentences=False).bind(words, START)
    x, y, weights = make(ids, mask, np.random.default_rng(0))
    assert real(y, weights > 0) == [[*row, words.end_id] for row in real(ids, mask)]
    sizes = []
    for row, source in enumerate(real(x["encoder_token_ids"], x["encoder_padding_mask"])):
        source = source[1:-1]
        kept = [token for token in source if token != words.mask_id]
        whole = ids[row, : lengths[row]].tolist()
        assert len(whole) - len(kept) == round(0.3 * len(whole))
        assert kept == [token for token in whole if token in set(kept)]  # in their order
        if row >= 200:
            continue
        # Masks side by side share what is missing between their neighbours.
        places = {token: place for place, token in enumerate(whole)}
        last, masks = -1, 0
        for token in [*source, None]:
            if token == words.mask_id:
                masks += 1
                continue
            place = len(whole) if token is None else places[token]
            missing = place - last - 1
            assert masks or not missing
            sizes += [missing] if masks == 1 else []
            last, masks = place, 0
    sizes = np.array(sizes)
    assert len(sizes) > 2000
    # The last span of a row is cut to the share, and runs of masks are left out.
    assert abs(sizes.mean() - 3) < 0.3 and abs((sizes == 0).mean() - np.exp(-3)) < 0.02
    assert abs((sizes == 3).mean() - 4.5 * np.exp(-3)) < 0.03


def test_sentences_are_permuted(words):
    ids = np.array([words.encode(TEXTS[0], special_tokens=False) + [words.pad_id] * 3])
    mask = ids != words.pad_id
    make = Denoising(mask_rate=1e-9).bind(words, START)
    orders = set()
    for seed in range(40):
        x, y, weights = make(ids, mask, np.random.default_rng(seed))
        orders.add(words.decode(real(x["encoder_token_ids"], x["encoder_padding_mask"])[0]))
        assert words.decode(real(y, weights > 0)[0]) == TEXTS[0]
    one, two, three = "thank you for inviting me to your party last week .", "it was fun !", "was"
    sentences = [f" {one}", f" {two}", f" {three} it not ?"]
    assert orders == {"".join(order).strip() for order in permutations(sentences)}


def test_masked_tokens_and_next_token(words):
    ids, mask = rows_of(words, [20, 8])
    x, y, weights = MaskedTokens(0.25).bind(words)(ids, mask, np.random.default_rng(0))
    assert weights.sum(axis=1).tolist() == [5, 2]
    assert (np.take_along_axis(ids, x["mask_positions"], 1) == y).all()
    arrays = {"inputs": ids[:, :-1], "targets": ids[:, 1:]}
    x, y, weights = NextToken()(arrays, {"inputs": mask[:, :-1], "targets": mask[:, 1:]})
    assert weights.sum(axis=1).tolist() == [19, 7] and (x["token_ids"][:, 1:] == y[:, :-1]).all()


def test_bad_values(words):
    for make, message in (
        (lambda: SpanCorruption(density=1.0), "`density` must be a number between 0 and 1"),
        (lambda: SpanCorruption(mean_span_length=0.5), "`mean_span_length` must be a number of at"),
        (
            lambda: Denoising(mask_rate=0),
            "`mask_rate` must be a number between 0 and 1, received 0",
        ),
        (lambda: MaskedTokens(True), "`rate` must be a number between 0 and 1, received True"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    plain = kt.Tokenizer.train(TEXTS, vocabulary_size=300)
    for objective in (Denoising(), MaskedTokens()):
        with pytest.raises(ValueError, match="The tokenizer has no mask token"):
            objective.bind(plain, *[START][: not isinstance(objective, MaskedTokens)])
    with pytest.raises(ValueError, match="has no '<extra_id_0>'. Load T5's, or train one with"):
        SpanCorruption().bind(plain, START)


def whole_word_tokenizers():
    texts = ["unbelievable walking walked talking talked", "a man rides a bicycle ."] * 4
    yield kt.Tokenizer.train(texts, "wordpiece", vocabulary_size=45)
    yield kt.Tokenizer.train(texts, "bpe", vocabulary_size=275, special_tokens=["<mask>"])


@pytest.mark.parametrize("tokenizer", list(whole_word_tokenizers()), ids=["wordpiece", "bpe"])
def test_whole_words_are_masked_or_none_of_them(tokenizer):
    text = "a man walked unbelievable talking rides a bicycle"
    (encoding,) = tokenizer.encode_batch_with_offsets([text])
    ids = np.array([encoding.ids])
    # The word of each token, as the library splits the text before it makes tokens.
    word_of = np.array([-1 if word is None else word for word in encoding.word_ids])
    special = np.isin(ids[0], tokenizer.special_ids)
    hide = kt.training.MaskedTokens(rate=0.5, whole_words=True).bind(tokenizer)
    sizes = np.bincount(word_of[~special])
    assert sizes.max() > 2
    numbers = set()
    for seed in range(20):
        inputs, targets, weights = hide(ids, np.ones_like(ids, bool), np.random.default_rng(seed))
        places = inputs["mask_positions"][0][weights[0] > 0]
        assert not special[places].any() and (ids[0, places] == targets[0][weights[0] > 0]).all()
        words, counts = np.unique(word_of[places], return_counts=True)
        assert (counts == sizes[words]).all()  # all of a word
        assert len(places) <= round(0.5 * (~special).sum())
        numbers.add(tuple(words))
    assert len(numbers) > 5


def test_whole_words_need_a_vocabulary_that_tells():
    symbols = kt.Tokenizer.train(["a c g t"] * 3, "wordpiece", vocabulary_size=20)
    with pytest.raises(ValueError, match="tokens tell where a word begins"):
        kt.training.MaskedTokens(whole_words=True).bind(symbols)
    with pytest.raises(ValueError, match="`whole_words` must be True or False"):
        kt.training.MaskedTokens(whole_words=3)


def ordered(texts, length, number, seed=0, **options):
    """The rows of all orders of texts, given as numbers from 10; 1 starts a text and 2 ends it."""
    mask = np.arange(length) < np.array([[len(text) + 1] for text in texts])
    ids, targets = np.zeros((2, *mask.shape), "int32")
    for row, text in enumerate(texts):
        ids[row, : len(text) + 1], targets[row, : len(text) + 1] = [1, *text], [*text, 2]
    weights = (mask * (1 + np.arange(length) / 8)).astype("float32")
    random = RowGenerator(seed, np.arange(len(texts)))
    return PermutedOrders(number)(ids, targets, mask, weights, random, **options)


def documents(made, row):
    """The places, tokens, targets and weights of each document of a row."""
    inputs, targets, weights = made
    packs = inputs["pack_ids"][row]
    assert ((packs >= 0) == inputs["padding_mask"][row]).all()
    found = []
    for pack in np.unique(packs[packs >= 0]):
        here = packs == pack
        arrays = (inputs["position_ids"], inputs["token_ids"], targets, weights)
        found.append([array[row][here].tolist() for array in arrays])
    return found


def test_permuted_orders():
    text = list(range(10, 17))
    made = ordered([text, text[:5]], 10, 6, pad_id=9)
    assert all(array.shape == (2, 2 + 6 * 9) for array in (*made[0].values(), *made[1:]))
    assert (made[0]["token_ids"][~made[0]["padding_mask"]] == 9).all()
    for row, length in enumerate((7, 5)):
        found = documents(made, row)
        places, tokens, targets, weights = zip(*found, strict=True)
        assert list(places[:3]) == [[*range(length + 1)], [length], [*range(length)][::-1]]
        whole, counts = [*text[:length], 2], 1 + np.arange(10) / 8
        for here, before, wanted, counted in zip(places, tokens, targets, weights, strict=True):
            assert wanted == [whole[place] for place in here]  # at the place that is asked for
            assert before == [1, *wanted[:-1]] and counted == counts[here].tolist()
        for order, reverse in ((places[3], places[4]), (places[5], places[6])):
            assert sorted(order) == [*range(length)] and reverse == order[::-1]
        assert len({tuple(order) for order in places}) == 7
    # The same in a wider batch and in another one; another seed draws other orders.
    again = ordered([text, text[:5], text[:2]], 13, 6, pad_id=9)
    assert [documents(again, row) for row in (0, 1)] == [documents(made, row) for row in (0, 1)]
    assert documents(ordered([text], 10, 6, seed=1), 0)[3:] != documents(made, 0)[3:]


def test_orders_of_short_texts():
    """There are no more pairs than half of the orders of a text."""
    made = ordered([[10, 11, 12, 13], [10, 11, 12], [10, 11], [10]], 8, 10)
    assert [len(documents(made, row)) for row in range(4)] == [11, 7, 3, 1]
    assert documents(made, 3) == [[[0, 1], [1, 10], [10, 2], [1.0, 1.125]]]
    inputs, targets, _ = ordered([[10, 11]], 4, 1)
    assert inputs.keys() == {"token_ids", "padding_mask"} and targets.shape == (1, 4)
    for number in (0, 3, -2, 2**20, 2.5, "6"):
        with pytest.raises(ValueError, match="`num_orders` must be"):
            PermutedOrders(number)
