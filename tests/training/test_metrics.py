import sys
from collections import Counter
from itertools import pairwise

import keras
import numpy as np
import pytest

from keras_transformer.tasks.text.question_answerer import SpanAccuracy
from keras_transformer.training import (
    BLEU,
    CHRF,
    ROUGE,
    ClassAccuracy,
    EditDistance,
    ExactMatch,
    PairAccuracy,
    Perplexity,
    TokenAccuracy,
    WordErrorRate,
)

RNG = np.random.default_rng(0)


def batches():
    """Two batches of different lengths: (targets, logits, mask)."""
    for length, real in ((4, [[4], [2]]), (9, [[9], [1]])):
        logits = RNG.normal(size=(2, length, 7)).astype("float32")
        yield RNG.integers(0, 7, size=(2, length)), logits, np.arange(length) < np.array(real)


def test_tokens_count_alike_in_batches_of_any_length():
    losses, hits = [], []
    perplexity, accuracy = Perplexity(), TokenAccuracy()
    for targets, logits, mask in batches():
        perplexity.update_state(targets, logits, sample_weight=mask)
        accuracy.update_state(targets, logits, sample_weight=mask)
        logp = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        losses += (-np.take_along_axis(logp, targets[..., None], axis=-1)[..., 0])[mask].tolist()
        hits += (logits.argmax(axis=-1) == targets)[mask].tolist()
    assert len(hits) == 16
    assert float(perplexity.result()) == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    assert float(accuracy.result()) == pytest.approx(np.mean(hits))
    perplexity.reset_state()
    perplexity.update_state([[1]], np.zeros((1, 1, 7), "float32"))
    assert float(perplexity.result()) == pytest.approx(7, rel=1e-6)


def test_before_any_update_they_are_0_as_those_of_keras():
    pytest.importorskip("sacrebleu")
    for metric in (
        keras.metrics.SparseCategoricalAccuracy(), Perplexity(), TokenAccuracy(), BLEU(),
        ClassAccuracy(), ClassAccuracy(multi_label=True), PairAccuracy(), SpanAccuracy(),
    ):  # fmt: skip
        assert float(metric.result()) == 0.0


def test_infinite_logits_of_padding_do_not_matter():
    logits = np.zeros((1, 2, 3), "float32")
    logits[0, 1] = np.nan
    metric = Perplexity()
    metric.update_state([[1, 1]], logits, sample_weight=[[1, 0]])
    assert float(metric.result()) == pytest.approx(3, rel=1e-6)


def test_as_weighted_metrics_of_a_model():
    targets, logits, mask = next(batches())
    model = keras.Sequential([keras.Input((4, 7)), keras.layers.Identity()])
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[Perplexity(), TokenAccuracy()],
    )
    logs = model.test_on_batch(logits, targets, sample_weight=mask, return_dict=True)
    assert logs["perplexity"] == pytest.approx(np.exp(logs["loss"] * mask.size / mask.sum()))
    assert logs["accuracy"] == pytest.approx((logits.argmax(-1) == targets)[mask].mean())
    metric = keras.metrics.deserialize(keras.metrics.serialize(Perplexity(name="ppl")))
    assert metric.name == "ppl"


HYPOTHESES = ["The cat sat on the mat .", "a dog runs !", "two men"]
REFERENCES = ["the cat is on the mat .", "a dog is running fast !", "two men are walking"]


@pytest.mark.parametrize("options", [{}, {"tokenize": "none", "lowercase": True}])
def test_bleu_is_sacrebleus(options):
    sacrebleu = pytest.importorskip("sacrebleu")
    bleu = BLEU(**options)
    bleu.update_state(REFERENCES[:1], HYPOTHESES[:1])
    bleu.update_state(REFERENCES[1:], HYPOTHESES[1:])
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], **options).score
    assert 1 < expected < 99
    assert bleu.result() == pytest.approx(expected)
    assert f"tok:{options.get('tokenize', '13a')}" in bleu.signature
    assert f"case:{'lc' if options else 'mixed'}" in bleu.signature
    bleu.reset_state()
    assert bleu.result() == 0.0


def test_bleu_with_several_references():
    sacrebleu = pytest.importorskip("sacrebleu")
    others = ["a cat sat on the mat .", "a dog runs fast !", "two men walk"]
    bleu = BLEU()
    bleu.update_state(list(zip(REFERENCES, others, strict=True)), HYPOTHESES)
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES, others]).score
    assert bleu.result() == pytest.approx(expected)


def test_bleu_bad_input(monkeypatch):
    pytest.importorskip("sacrebleu")
    bleu = BLEU()
    with pytest.raises(ValueError, match="2 hypotheses but 1 references"):
        bleu.update_state(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="`y_true` must be a list of texts, received 'a'"):
        bleu.update_state("a", "a")
    bleu.update_state([["a"], ["b", "c"]], ["a", "b"])
    with pytest.raises(ValueError, match=r"the same number of references, got \[1, 2\]"):
        bleu.result()
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ImportError, match=r"keras_transformer\[bleu\]"):
        BLEU()


@pytest.mark.parametrize("word_order", [0, 2])
def test_chrf_is_sacrebleus(word_order):
    sacrebleu = pytest.importorskip("sacrebleu")
    others = ["a cat sat on the mat .", "a dog runs fast !", "two men walk"]
    chrf = CHRF(word_order)
    chrf.update_state(list(zip(REFERENCES, others, strict=True))[:1], HYPOTHESES[:1])
    chrf.update_state(list(zip(REFERENCES, others, strict=True))[1:], HYPOTHESES[1:])
    expected = sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES, others], word_order=word_order)
    assert chrf.result() == pytest.approx(expected.score) and 1 < chrf.result() < 99
    assert f"nw:{word_order}" in chrf.signature
    with pytest.raises(ValueError, match="`word_order`"):
        CHRF(-1)


@pytest.mark.parametrize("ignore", [(), ("case",), ("punctuation",), ("case", "punctuation")])
def test_exact_match_is_lm_evals(ignore):
    metrics = pytest.importorskip("lm_eval.api.metrics")
    texts, right = ["Cat.", "cat", "a dog", "Owl!"], ["cat", "cat", "the dog", "Owl"]
    match = ExactMatch(ignore)
    match.update_state(right, texts)
    expected = metrics.exact_match_hf_evaluate(
        predictions=texts, references=right, **{f"ignore_{name}": True for name in ignore}
    )
    assert match.result() == expected["exact_match"]


def test_exact_match_of_squad():
    """Section 6.1 of SQuAD: articles, punctuation, case and spaces do not count."""
    match = ExactMatch(ignore=("spaces", "case", "articles", "punctuation"))
    match.update_state(
        ["cat", "the dog", ["ox", "yak"], "owls", "b"], ["The  Cat.", "a dog", " Yak", "owl's", "a"]
    )
    assert match.result() == 4 / 5
    strict = ExactMatch()
    strict.update_state([["ox", "yak"], "a"], ["yak", "A"])
    assert strict.result() == 1 / 2
    with pytest.raises(ValueError, match=r"`ignore\[0\]`"):
        ExactMatch(["accents"])
    with pytest.raises(ValueError, match="`ignore` must be a list"):
        ExactMatch("case")


def f_measure(reference: list, text: list) -> float:
    """Harmonic mean of the shares of equal items, which come as often as in both (Lin 2004)."""
    shared = sum((Counter(reference) & Counter(text)).values())
    return 2 * shared / (len(reference) + len(text))


def subsequence(first: list, second: list) -> int:
    """Length of the longest common subsequence, from its recursive definition."""
    if not first or not second:
        return 0
    if first[0] == second[0]:
        return 1 + subsequence(first[1:], second[1:])
    return max(subsequence(first[1:], second), subsequence(first, second[1:]))


@pytest.mark.backend_independent
def test_rouge_is_what_the_paper_defines():
    pairs = [(r.split(), h.split()) for r, h in zip(REFERENCES, HYPOTHESES, strict=True)]
    lower = [([w.lower() for w in a], [w.lower() for w in b]) for a, b in pairs]
    expected = {
        "rouge1": [f_measure(a, b) for a, b in lower],
        "rouge2": [f_measure(list(pairwise(a)), list(pairwise(b))) for a, b in lower],
        "rougeL": [2 * subsequence(a, b) / (len(a) + len(b)) for a, b in lower],
    }
    for kind, values in expected.items():
        metric = ROUGE(kind, tokenize=lambda text: text.lower().split())
        assert metric.result() == 0.0
        metric.update_state(REFERENCES[:1], HYPOTHESES[:1])
        metric.update_state(REFERENCES[1:], HYPOTHESES[1:])
        assert metric.result() == pytest.approx(np.mean(values))
    # Its own tokenizer leaves punctuation out; of several references the best counts.
    metric = ROUGE("rouge1")
    metric.update_state([["something else", "two men are walking !"]], ["two men"])
    assert metric.result() == pytest.approx(2 * 2 / (2 + 4))
    with pytest.raises(ValueError, match="`kind` must be one of 'rouge1'"):
        ROUGE("bleu")


@pytest.mark.backend_independent
def test_edit_distances_of_textbooks():
    pairs = {
        ("kitten", "sitting"): 3,
        ("saturday", "sunday"): 3,
        ("", "ab"): 2,
        ("flaw", "lawn"): 2,
    }
    for (reference, text), distance in pairs.items():
        metric = EditDistance(normalize=False)
        metric.update_state([reference], [text])
        assert metric.result() == distance
    together = EditDistance()
    together.update_state([r for r, _ in pairs], [t for _, t in pairs])
    assert together.result() == 10 / (6 + 8 + 0 + 4)  # of all characters, no mean of shares
    assert WordErrorRate().result() == 0.0
    rate = WordErrorRate()
    rate.update_state(
        ["a man rides a bike", ["two", "two men are"]], ["a man ride bike", "two men"]
    )
    assert rate.result() == (2 + 1) / (5 + 1)  # "two" and "two men are" are as near
    rate.reset_state()
    rate.update_state([""], ["words"])
    assert rate.result() == float("inf")


@pytest.mark.backend_independent
def test_error_rates_are_those_of_jiwer():
    """The numbers are what jiwer 4.0.0 returns, with ToLowerCase and RemovePunctuation for last."""
    references = ["a man rides a bike", "Two dogs run, in the snow.", "zero one"]
    texts = ["a man ride bike", "two dogs run in snow", "zero on one"]
    plain = WordErrorRate(ignore=("case", "punctuation"))
    metrics = {WordErrorRate(): 0.5384615384615384, EditDistance(): 0.25, plain: 0.3076923076923077}
    for metric, expected in metrics.items():
        metric.update_state(references, texts)
        assert metric.result() == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match=r"`ignore\[0\]`"):
        WordErrorRate(["accents"])


@pytest.mark.backend_independent
@pytest.mark.parametrize("metric, package", [(ROUGE, "rouge_score"), (WordErrorRate, "rapidfuzz")])
def test_a_missing_package_is_named(metric, package, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"keras_transformer\[metrics\]"):
        metric()
