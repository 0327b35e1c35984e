"""`generate` as a user calls it: ends, samples, details, streams, scores, chat, rules."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.generation import BeamSearch, Contrastive, Greedy, Random, Rules, Speculative
from tests.tasks.common import ENGLISH, language_model, tokenizer, translator
from tests.thorough import THOROUGH

pytestmark = pytest.mark.one_backend

PROMPTS = ["a warm", "two dogs run on", "never", "a man rides a bike . two"]


@pytest.fixture(scope="module")
def lm():
    return language_model(position="rotary", tie_embeddings=False)


@pytest.fixture(scope="module")
def mt():
    return translator(tie_embeddings=False)


SAMPLERS = [
    Greedy(),
    BeamSearch(3),
    BeamSearch(4, num_groups=2, diversity_penalty=0.5),
    Random(temperature=0.9, top_k=20, top_p=0.95),
    Contrastive(3),
    Speculative(num_draft_tokens=2),
]


@pytest.mark.parametrize(
    "kind, sampler",
    [
        pytest.param(
            kind,
            sampler,
            # On each backend all samplers, and both kinds of models.
            marks=[pytest.mark.each_backend] if kind == "lm" or sampler in SAMPLERS[:2] else [],
            id=f"{kind}-{type(sampler).__name__}",
        )
        for kind in ("lm", "mt")
        for sampler in SAMPLERS
        if kind == "lm" or sampler in SAMPLERS[:2] or THOROUGH
    ],
)
def test_a_batch_gives_what_each_gives_alone(kind, sampler, request):
    """Also through a batch that is smaller than the list: rows leave and others come."""
    task = request.getfixturevalue(kind)
    together = task.generate(PROMPTS, 12, sampler, seed=5)
    assert task.generate(PROMPTS, 12, sampler, seed=5, batch_size=2) == together
    assert len(set(together)) > 1
    if not sampler.draws:  # else the row's place decides what it draws
        assert task.generate(PROMPTS[1], 12, sampler) == together[1]


def test_a_text_ends_before_a_stop_string(lm):
    whole = lm.generate(PROMPTS, 20)
    for place, text in enumerate(whole):
        middle = text[len(text) // 2 :][:3]
        cut = lm.generate(PROMPTS, 20, stop=[middle, "never to be seen"])
        assert cut[place] == text[: text.index(middle)]
        found = lm.generate(PROMPTS[place], 20, stop=middle, return_details=True)
        assert (found.text, found.finish_reason) == (cut[place], "stop")
        assert len(found.token_ids) <= 20
        assert "".join(lm.generate(PROMPTS[place], 20, stop=middle, stream=True)) == cut[place]


def test_a_text_ends_at_a_stop_id(lm):
    ids = lm.tokenizer.encode(PROMPTS[0], special_tokens=False)
    whole = lm.generate(ids, 12)
    stop = whole[6]
    assert lm.generate(ids, 12, stop=stop) == whole[: whole.index(stop)]
    found = lm.generate(ids, 12, stop=[stop], return_details=True)
    assert found.finish_reason == "end" and found.token_ids == whole[: whole.index(stop)]
    assert lm.generate(ids, 3, return_details=True).finish_reason == "length"


def test_max_length_counts_the_prompt(lm, mt):
    rows = [lm.tokenizer.encode(text, special_tokens=False) for text in PROMPTS]
    longest = max(map(len, rows)) + 2
    new = lm.generate(rows, 50, max_length=longest)
    whole = lm.generate(rows, 50)
    for row, some, more in zip(rows, new, whole, strict=True):
        assert some == more[: longest - len(row)]
    assert mt.generate([[5, 6]], 9, max_length=4)[0] == mt.generate([[5, 6]], 4)[0]
    with pytest.raises(ValueError, match=r"`prompts\[3\]` has \d+ tokens: max_length=9 leaves"):
        lm.generate(rows, max_length=9)


@pytest.mark.parametrize("kind", ["lm", "mt"])
def test_pieces_of_a_stream_are_the_text(kind, request):
    task = request.getfixturevalue(kind)
    expected = task.generate(PROMPTS, 20)
    texts = [""] * len(PROMPTS)
    for place, piece in task.generate(PROMPTS, 20, stream=True, batch_size=2):
        assert piece
        texts[place] += piece
    assert texts == expected
    pieces = list(task.generate(PROMPTS[1], 20, stream=True))
    assert "".join(pieces) == expected[1] and len(pieces) > 2
    beams = task.generate(PROMPTS[1], 8, BeamSearch(2), stream=True)
    assert "".join(beams) == task.generate(PROMPTS[1], 8, BeamSearch(2))


def test_an_interrupted_stream_leaves_the_model_as_it_was(lm):
    expected = lm.generate(PROMPTS, 20)
    pieces = lm.generate(PROMPTS[0], 20, stream=True)
    first = next(pieces)
    assert expected[0].startswith(first)
    pieces.close()
    assert lm.generate(PROMPTS, 20) == expected


@pytest.mark.each_backend
def test_samples(lm):
    sampler = Random(temperature=1.5)
    drawn = lm.generate(PROMPTS[:2], 8, sampler, num_samples=3, seed=7)
    assert [len(texts) for texts in drawn] == [3, 3] and len(set(drawn[0])) > 1
    assert lm.generate(PROMPTS[:2], 8, sampler, num_samples=3, seed=7, batch_size=1) == drawn
    assert lm.generate(PROMPTS[:2], 8, sampler, num_samples=3, seed=8) != drawn
    best = lm.generate(PROMPTS[0], 8, BeamSearch(4), num_samples=3, return_details=True)
    scores = [found.score for found in best]
    assert scores == sorted(scores, reverse=True) and len({found.text for found in best}) == 3
    assert best[0].text == lm.generate(PROMPTS[0], 8, BeamSearch(4))
    for found in best:  # all of one length: none of them has ended
        total = found.log_probabilities.sum()
        np.testing.assert_allclose(found.score, total / len(found.token_ids), atol=1e-4)


@pytest.mark.each_backend
def test_log_probabilities_are_those_of_a_plain_pass(lm, mt):
    ids = lm.tokenizer.encode(PROMPTS[1], special_tokens=False)
    found = lm.generate(ids, 9, return_details=True)
    logits = np.asarray(lm.predict({"token_ids": np.array([ids + found.token_ids])}, verbose=0))[0]
    logits = logits.astype("float64")
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = [logits[len(ids) - 1 + i, token] for i, token in enumerate(found.token_ids)]
    np.testing.assert_allclose(found.log_probabilities, expected, atol=1e-4)
    whole = lm.score([ids + found.token_ids, ids], per_token=True)
    np.testing.assert_allclose(whole[0][len(ids) - 1 :], expected, atol=1e-4)
    assert [len(row) for row in whole] == [len(ids) + 8, len(ids) - 1]
    np.testing.assert_allclose(lm.score(ids), whole[1].sum(), atol=1e-4)

    source, target = mt.tokenizer.encode("never dull"), [7, 8, 9]
    scores = mt.score([source], [target], per_token=True)[0]
    inputs = {
        "encoder_token_ids": np.array([source]),
        "decoder_token_ids": np.array([[mt.start_id, *target]]),
    }
    logits = np.asarray(mt.predict(inputs, verbose=0))[0].astype("float64")
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = [logits[i, token] for i, token in enumerate([*target, mt.tokenizer.end_id])]
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    one = mt.score("never dull", "nie langweilig")
    assert isinstance(float(one), float) and one < 0


def test_the_longest_rows_that_learned_positions_have_are_scored():
    """No size that rows are padded to is 41."""
    learned = {"position": "learned", "max_sequence_length": 41}
    lm, mt = language_model(**learned), translator(**learned)
    assert len(lm.score([[5] * 41], per_token=True)[0]) == 40
    assert len(mt.score([[5] * 41], [[7] * 40], per_token=True)[0]) == 41


@pytest.mark.each_backend
def test_a_shared_beginning_changes_nothing(lm):
    begin = "two dogs run on the grass . a man rides a bike . never dull , from start to end : "
    prompts = [begin + text for text in ENGLISH]
    assert lm.generate(prompts, 10) == [lm.generate(prompt, 10) for prompt in prompts]
    sampler = Contrastive(3)
    assert lm.generate(prompts, 6, sampler) == [lm.generate(p, 6, sampler) for p in prompts]


@pytest.mark.each_backend
def test_rules_and_constraints(lm, mt):
    date = lm.constraint(regex="[0-9]{2}[.][0-9]{2}|none")
    assert lm.constraint(regex="[0-9]{2}[.][0-9]{2}|none") is date
    chosen = lm.generate(PROMPTS, 12, rules=Rules(automaton=lm.constraint(choices=["ab", "b c"])))
    assert set(chosen) <= {"ab", "b c"}
    chosen = mt.generate(PROMPTS, 12, "beam", rules=Rules(automaton=mt.constraint(choices=["ein"])))
    assert chosen == ["ein"] * 4
    ids = [lm.tokenizer.encode(text, special_tokens=False) for text in PROMPTS]
    rules = Rules(no_repeat_ngram_size=2, forced_prefix=[9], min_new_tokens=4)
    for row, new in zip(ids, lm.generate(ids, 10, rules=rules), strict=True):
        pairs = list(zip((row + new)[:-1], (row + new)[1:], strict=True))
        assert new[0] == 9 and len(new) >= 4
        assert len(set(pairs[len(row) :])) == len(pairs[len(row) :])


def test_chat():
    words = tokenizer("bpe", template="end")
    task = language_model(tie_embeddings=False)
    task.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    )
    messages = [{"role": "user", "content": "never dull"}]
    answer = task.chat(messages, max_new_tokens=6)
    ids = task.tokenizer.encode("user: never dull\nassistant:", special_tokens=False)
    assert (
        answer
        == task.tokenizer.decode(ids + task.generate(ids, 6))[len(task.tokenizer.decode(ids)) :]
    )
    assert "".join(task.chat(messages, max_new_tokens=6, stream=True)) == answer
    assert words is not task.tokenizer
    task.tokenizer.chat_template = None
    with pytest.raises(ValueError, match="chat template"):
        task.chat(messages)


def test_weights_that_are_no_numbers_are_named(lm):
    broken = language_model(position="rotary", tie_embeddings=False, seed=1)
    kernel = broken.backbone.decoder.blocks[0].feed_forward.output_dense.kernel
    kernel.assign(np.full(kernel.shape, np.nan))
    with pytest.raises(FloatingPointError, match="new token 1 are NaN"):
        broken.generate(PROMPTS, 4)


@pytest.mark.each_backend
def test_packed_weights_give_the_same(lm):
    expected = lm.generate(PROMPTS, 8)
    packed = language_model(position="rotary", tie_embeddings=False)
    packed.compile(pack_weights=True)
    assert packed.generate(PROMPTS, 8) == expected
    for variable in packed.weights:
        variable.assign(variable * 0.9)
    other = language_model(position="rotary", tie_embeddings=False)
    for variable in other.weights:
        variable.assign(variable * 0.9)
    assert packed.generate(PROMPTS, 8) == other.generate(PROMPTS, 8)


@pytest.mark.each_backend
@pytest.mark.parametrize("cache_dtype", ["bfloat16", "int8"])
def test_a_cache_of_fewer_bytes(lm, cache_dtype):
    assert len(lm.generate(PROMPTS, 8, cache_dtype=cache_dtype)) == 4


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sampler": "greddy"}, "Unknown sampler 'greddy'. Did you mean 'greedy'"),
        ({"sampler": BeamSearch(400)}, "follows 400 continuations, but the vocabulary has"),
        ({"max_new_tokens": -1}, "`max_new_tokens` must be an integer of at least 1"),
        ({"num_samples": 0}, "`num_samples` must be an integer of at least 1"),
        ({"num_samples": 2}, "would all be the same"),
        ({"num_samples": 3, "sampler": BeamSearch(2)}, "needs at least as many beams"),
        ({"stop": ""}, "`stop` must be a string, a token id or a list"),
        ({"stop": []}, "`stop` is empty"),
        ({"stop": 9999}, "`stop` holds ids from 9999"),
        ({"rules": {"min_new_tokens": 1}}, "`rules` must be a .*Rules, received dict"),
        ({"cache_dtype": "int4"}, "`cache_dtype` must be one of"),
        ({"seed": -1}, "`seed` must be an integer from 0"),
        ({"stream": True, "return_details": True}, "`stream=True` gives pieces of text"),
        ({"rules": Rules(bad_words=[[9999]])}, "`bad_words` has the id 9999"),
    ],
)
def test_bad_options_are_refused_before_any_work(lm, options, message):
    with pytest.raises(ValueError, match=message):
        lm.generate("a man", **options)


def test_bad_constraints(lm):
    with pytest.raises(ValueError, match="exactly one of `regex`"):
        lm.constraint()
    with pytest.raises(ValueError, match="position"):
        lm.constraint(regex="(a")
    with pytest.raises(ValueError, match="at least one character"):
        lm.constraint(choices=[""])


def test_a_model_of_ids_stops_at_ids_alone():
    task = kt.CausalLM(language_model().backbone)
    assert len(task.generate([[5, 6]], 3)[0]) == 3
    with pytest.raises(ValueError, match="stops at token ids, not at strings"):
        task.generate([[5, 6]], 3, stop="a")
