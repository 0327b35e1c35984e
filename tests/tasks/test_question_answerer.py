"""QuestionAnswerer: the logits and the answers of Transformers' BERT, windows, targets."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.tasks.common import config, randomized
from tests.tasks.common import tokenizer as common_tokenizer
from tests.tasks.published import (
    TEXTS,
    assign_head,
    backbone_of,
    fast_tokenizer,
    largest_difference,
    logits_of,
    reference,
    tokenizer,
)

pytestmark = pytest.mark.one_backend

QUESTIONS = ["who met ?", "what was played in the café ?", "wind ?", "2nd ?"]
CONTEXTS = [
    "Angela  Merkel met E. Macron in Paris",
    "The café José opened, in 🙂 good wind",
    "wind and weather",
    "un able",
]


@pytest.fixture(scope="module")
def pair():
    """A model of Transformers and ours with its weights."""
    words = tokenizer()
    model = reference("BertForQuestionAnswering", words)
    task = kt.QuestionAnswerer(backbone_of(model), words)
    assign_head(task, output=model.qa_outputs)
    return task, model


def small(kind="wordpiece", **values):
    words = tokenizer() if kind == "wordpiece" else common_tokenizer("bpe", add_prefix_space=False)
    sizes = {"position": "learned", "segment_vocabulary_size": 2, **values}
    return randomized(
        kt.QuestionAnswerer(kt.models.Encoder(config("encoder", words, **sizes)), words)
    )


def answers_by_definition(model, fast, question, context, max_length, max_tokens, stride):
    """All spans of the context by their score, as Transformers' pipeline defined it.

    That pipeline left Transformers in release 5. Its definition: every position but those of the
    context and [CLS] is masked, start and end have a softmax each, and the score of a span is the
    product; of the windows of a long context the best counts.
    """
    import torch

    batch = fast(
        question, context, truncation="only_second", max_length=max_length, stride=stride,
        return_overflowing_tokens=True, return_offsets_mapping=True, padding=True,
        return_tensors="pt",
    )  # fmt: skip
    spans, no_answer = {}, 1.0
    for i in range(len(batch["input_ids"])):
        names = ("input_ids", "attention_mask", "token_type_ids")
        with torch.no_grad():
            outputs = model(**{name: batch[name][i : i + 1] for name in names if name in batch})
        inside = np.array([side == 1 for side in batch.sequence_ids(i)])
        offsets = batch["offset_mapping"][i].tolist()
        allowed = inside.copy()
        allowed[0] = True
        start, end = (
            torch.softmax(torch.where(torch.tensor(allowed), logits[0].double(), -10000.0), 0)
            for logits in (outputs.start_logits, outputs.end_logits)
        )
        no_answer = min(no_answer, float(start[0] * end[0]))
        tokens = np.flatnonzero(inside)
        for first in tokens:
            for last in tokens[(tokens >= first) & (tokens < first + max_tokens)]:
                place = offsets[first][0], offsets[last][1]
                spans[place] = max(spans.get(place, 0.0), float(start[first] * end[last]))
    return sorted(spans.items(), key=lambda item: -item[1]), no_answer


@pytest.mark.each_backend
def test_logits_of_bert(pair, tmp_path):
    task, model = pair
    outputs, mask = logits_of(model, fast_tokenizer(tmp_path), QUESTIONS, CONTEXTS)
    expected = np.stack([outputs.start_logits.numpy(), outputs.end_logits.numpy()], axis=-1)
    found = task.predict((QUESTIONS, CONTEXTS), batch_size=2, verbose=0)
    assert largest_difference(found, expected, mask) <= 1e-4
    assert set(task.head) == {"output/kernel", "output/bias"}
    assert task.head["output/kernel"].shape == (24, 2)
    assert task.task_values() == {
        "block_norm": False,
        "dropout": 0.0,
        "feed_forward": False,
        "hidden_activation": None,
        "hidden_bias": True,
        "mask_question": False,
        "separator_id": None,
        "start_id": None,
    }


@pytest.mark.each_backend
def test_padding_has_no_probability(pair):
    task, _ = pair
    (inputs,) = task.make_dataset((QUESTIONS, CONTEXTS))[0]
    mask = inputs["padding_mask"]
    outputs = task.predict(inputs, verbose=0)
    assert outputs.dtype == np.float32 and (outputs[~mask] == -1e9).all()
    changed = {**inputs, "token_ids": np.where(mask, inputs["token_ids"], 9)}
    np.testing.assert_allclose(task.predict(changed, verbose=0), outputs, atol=1e-4)
    loss = task.loss(np.array([[1, 2]] * 4), outputs)
    longer = np.pad(outputs, ((0, 0), (0, 5), (0, 0)), constant_values=-1e9)
    assert float(loss) == pytest.approx(float(task.loss(np.array([[1, 2]] * 4), longer)))
    scores = outputs.astype("float64")
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    expected = -np.mean([logs[:, 1, 0], logs[:, 2, 1]])
    assert float(loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("max_tokens", [1, 3, 15])
def test_answers_of_bert(pair, tmp_path, max_tokens):
    task, model = pair
    fast = fast_tokenizer(tmp_path)
    found = task.answer(QUESTIONS, CONTEXTS, top_k=4, max_answer_tokens=max_tokens, batch_size=3)
    one = task.answer(QUESTIONS, CONTEXTS, max_answer_tokens=max_tokens)
    for i, answers in enumerate(found):
        expected, _ = answers_by_definition(
            model, fast, QUESTIONS[i], CONTEXTS[i], 48, max_tokens, 5
        )
        assert [(a.start, a.end) for a in answers] == [place for place, _ in expected[:4]]
        assert [a.score for a in answers] == pytest.approx([s for _, s in expected[:4]], rel=1e-3)
        assert all(a.text == CONTEXTS[i][a.start : a.end] for a in answers)
        assert one[i][:1] + one[i][2:] == answers[0][:1] + answers[0][2:]


def test_the_shapes_of_answers(pair):
    task, _ = pair
    both = task.answer(QUESTIONS, CONTEXTS)
    single = task.answer(QUESTIONS[0], CONTEXTS[0])
    assert isinstance(single, kt.tasks.text.question_answerer.Answer) and len(both) == 4
    assert single.text == both[0].text and single.score == pytest.approx(both[0].score, rel=1e-4)
    shared = task.answer(QUESTIONS, CONTEXTS[0])
    assert len(shared) == 4 and shared[0].text == single.text
    assert task.answer(QUESTIONS[0], CONTEXTS)[0].text == single.text
    several = task.answer(QUESTIONS[0], CONTEXTS[0], top_k=2)
    assert len(several) == 2 and several[0].text == single.text
    assert len(task.answer("wind ?", "un able", top_k=50)) == 15  # of 5 tokens


def test_long_contexts_in_windows(pair, tmp_path):
    """Overlapping windows, and the best answer of all."""
    task, model = pair
    context = " ".join(TEXTS[:3])
    (encoding,) = task.tokenizer.encode_batch_with_offsets([QUESTIONS[0]], [context])
    parts = kt.tasks.data.text.split_windows(encoding, 1, 48)
    assert len(encoding) > 70 and len(parts) >= 3 and {len(p) for p in parts[:-1]} == {48}
    for part in parts:
        assert part[:4].tolist() == [0, 1, 2, 3] and part[-1] == len(encoding) - 1
    expected, no_answer = answers_by_definition(
        model, fast_tokenizer(tmp_path), QUESTIONS[0], context, 48, 15, 24
    )
    found = task.answer(QUESTIONS[0], context, top_k=5)
    assert [(a.start, a.end) for a in found] == [place for place, _ in expected[:5]]
    assert [a.score for a in found] == pytest.approx([s for _, s in expected[:5]], rel=1e-3)
    found = task.answer([QUESTIONS[0]], [context], top_k=10**6, allow_no_answer=True)[0]
    (nothing,) = [a for a in found if a.text == ""]
    assert nothing == ("", pytest.approx(no_answer, rel=1e-3), 0, 0)
    assert found == sorted(found, key=lambda a: -a.score) and len(found) == len(expected) + 1


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_answers_are_of_the_original_text(kind):
    """Neither the space before a byte-level word nor what is not in the context."""
    task = small(kind)
    context = "  The  Café 🙂\tJosé's wind, (Paris)  "
    for answer in task.answer("wind ?", context, top_k=60):
        assert answer.text == context[answer.start : answer.end] == answer.text.strip() != ""


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_targets(kind):
    task = small(kind)
    context = "The café 🙂 José opened in Paris"
    contexts = [context] * 5
    spans = [(4, 8), (9, "🙂"), None, [9, 15], (25, 31)]
    words = ["café", "🙂", None, "🙂 José", "Paris"]
    dataset = task.make_dataset((["wind ?"] * 5, contexts), spans, sample_weight=[1, 2, 3, 4, 5])
    inputs, targets, weights = dataset[0]
    assert weights[np.argsort(dataset.order)].tolist() == [1, 2, 3, 4, 5]
    targets = targets[np.argsort(dataset.order)]
    (encoding,) = task.tokenizer.encode_batch_with_offsets(["wind ?"], [context])
    assert inputs["token_ids"][0, : len(encoding)].tolist() == encoding.ids
    for (first, last), word in zip(targets.tolist(), words, strict=True):
        if word is None:
            assert (first, last) == (0, 0)
        else:
            found = context[encoding.offsets[first][0] : encoding.offsets[last][1]]
            assert found.strip() == word
            assert encoding.sequence_ids[first] == encoding.sequence_ids[last] == 1
    array = task.make_dataset((["wind ?"] * 2, contexts[:2]), np.array([[4, 8], [9, 10]]))[0][1]
    np.testing.assert_array_equal(array, targets[:2])


def test_windows_of_training():
    """Each window is a row; the answer is marked where it is whole, the first token elsewhere."""
    task = small(max_sequence_length=40)
    context = " ".join(TEXTS[:2])
    start = context.index("São")
    pairs = (["wind ?", "met ?"], [context, "wind"])
    dataset = task.make_dataset(pairs, [(start, "São Paulo"), (0, 4)], sample_weight=[0.5, 2.0])
    inputs, targets, weights = dataset[0]
    (encoding,) = task.tokenizer.encode_batch_with_offsets(["wind ?"], [context])
    parts = kt.tasks.data.text.split_windows(encoding, 1, 40)
    assert dataset.num_rows == len(parts) + 1 and len(dataset) == 1
    marked = 0
    for row, place in enumerate(dataset.order):
        if place == len(parts):
            assert weights[row] == 2.0 and targets[row].tolist() == [4, 4]
            continue
        ids = np.asarray(encoding.ids)[parts[place]]
        np.testing.assert_array_equal(inputs["token_ids"][row][: len(ids)], ids)
        first, last = parts[place][targets[row]]
        whole = context[encoding.offsets[first][0] : encoding.offsets[last][1]]
        assert whole == "São Paulo" if targets[row].any() else (first, last) == (0, 0)
        assert weights[row] == 0.5
        marked += bool(targets[row].any())
    assert marked >= 1
    assert task.predict(pairs, verbose=0).shape[:2] == (2, 40)  # the first window of each


@pytest.mark.each_backend
def test_fit_learns():
    task = small()
    names = ["angela", "paris", "wind", "weather", "cafe"]
    contexts = [f"{a} met in {b}" for a in names for b in names if a != b]
    questions = ["was met ?", "in ?"] * (len(contexts) // 2)
    answers = [
        (0, c.split()[0]) if q == "was met ?" else (c.rindex(" ") + 1, len(c))
        for q, c in zip(questions, contexts, strict=True)
    ]
    task.compile(
        keras.optimizers.Adam(1e-2), task.loss,
        metrics=[kt.tasks.text.question_answerer.SpanAccuracy()],
    )  # fmt: skip
    data = {"x": (questions, contexts), "y": answers}
    before = task.evaluate(**data, verbose=0, return_dict=True)
    history = task.fit(
        **data, epochs=15, batch_size=5, verbose=0, validation_data=(data["x"], answers)
    ).history
    after = task.evaluate(**data, verbose=0, return_dict=True)
    assert after["loss"] < 0.1 * before["loss"]
    assert after["accuracy"] == history["val_accuracy"][-1] == 1.0
    answer = task.answer("was met ?", contexts[0])
    assert answer[:1] + answer[2:] == ("angela", 0, 6) and answer.score > 0.5


def test_loss_and_metric_come_back_from_their_config():
    task = small()
    for part in (task.loss, kt.tasks.text.question_answerer.SpanAccuracy(name="exact")):
        config = keras.saving.serialize_keras_object(part)
        restored = keras.saving.deserialize_keras_object(config)
        assert type(restored) is type(part) and restored.name == part.name


def test_bad_input():
    task = small(max_sequence_length=24)

    def check(message, function, *args, **kwargs):
        with pytest.raises(ValueError, match=message):
            function(*args, **kwargs)

    x = (["wind ?"], ["wind"])
    check("takes a tuple of two lists, .questions, contexts., received 1 tex", task.predict, ["a"])
    check("received 3 texts in a tuple", task.predict, (["a"], ["b"], ["c"]))
    check("Received 2 questions and 1 contexts", task.predict, (["a", "b"], ["c"]))
    check(r"`x\[1\]\[0\]` must be a string", task.predict, (["a"], [None]))
    check(r"`x\[1\]\[0\]` is empty: a context needs text", task.predict, (["a"], [" "]))
    check("learns from labels: give `y`", task.fit, x)
    check("for each of the 1 pairs, received 2 of them", task.fit, x, [(0, 1), None])
    check("for each of the 1 pairs, received int", task.fit, x, 3)
    for wrong in (3, "wind", (0,), (0, 1.5), (0, 1, 2), ("a", 1), (None, 3)):
        check(r"`y\[0\]` must be None, \(start, end\) or \(start, text\)", task.fit, x, [wrong])
    for wrong in ((0, 5), (-1, 2), (2, 2), (3, 1)):
        check("must be within the context, which has 4 characters", task.fit, x, [wrong])
    check("the context has 'ind' at 1, but the answer is 'win'", task.fit, x, [(1, "win")])
    check("must include a token of the context", task.fit, (["a"], ["a wind"]), [(1, 2)])
    check("one number a pair, 1 in all", task.fit, x, [None], sample_weight=[1.0, 2.0])
    long = "wind " * 30
    check("question of pair 0 takes 33 of 24 tokens: there is no room", task.answer, long, "wind")
    check(r"`contexts\[0\]` is empty", task.answer, "wind", "")
    check("finds no token in the context of pair 0", task.answer, "wind", "\u200d")
    check(r"`questions\[0\]` must be a string", task.answer, [3], ["wind"])
    check("`contexts` must be a list of strings", task.answer, "wind", 3)
    check("Received 2 questions and 1 contexts", task.answer, ["a", "b"], ["wind"])
    for value in (0, 1.5, "2", None, True):
        check("`top_k` must be an integer", task.answer, "a", "wind", top_k=value)
        check("`max_answer_tokens` must be", task.answer, "a", "wind", max_answer_tokens=value)
