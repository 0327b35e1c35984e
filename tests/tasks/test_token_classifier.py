"""TokenClassifier: the logits and the entities of Transformers, labels of words and of spans."""

import itertools

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.tasks.data.text import words_of
from tests.tasks.common import ENGLISH, config, predictions_alone, randomized
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

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
PLAIN = ["O", "PER", "LOC", "DATE-TIME", "B"]
NASTY = [
    *TEXTS,
    "  Angela   Merkel\tmet  ",
    "Angela-Merkel's 🙂 good 🙂🙂 café!",
    "paris",
    "文 in Paris…",
]


def pair_with(labels, seed=0):
    words = tokenizer()
    model = reference("BertForTokenClassification", words, num_labels=len(labels))
    model.config.id2label = dict(enumerate(labels))
    task = kt.TokenClassifier(backbone_of(model), words, labels=labels)
    assign_head(task, output=model.classifier)
    return task, model


@pytest.fixture(scope="module")
def pair():
    """A model of Transformers and ours with its weights."""
    return pair_with(LABELS)


def small(kind="wordpiece", **options):
    words = tokenizer() if kind == "wordpiece" else common_tokenizer(kind, add_prefix_space=False)
    backbone = kt.models.Encoder(config("encoder", words, position="learned", hidden_dim=24))
    return randomized(kt.TokenClassifier(backbone, words, **options))


def test_a_decoder():
    words = common_tokenizer("bpe", add_prefix_space=False)
    backbone = kt.models.Decoder(config("decoder", words, hidden_dim=24))
    task = randomized(kt.TokenClassifier(backbone, words, labels=LABELS))
    assert set(task.head) == {"output/kernel", "output/bias"}
    rows = [text.split() for text in ENGLISH]
    losses = task.fit(rows, [["O"] * len(row) for row in rows], epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0]
    for entity in task.recognize(ENGLISH[0]):
        assert entity.text == ENGLISH[0][entity.start : entity.end]


@pytest.mark.each_backend
def test_logits_of_bert(pair, tmp_path):
    task, model = pair
    outputs, mask = logits_of(model, fast_tokenizer(tmp_path), TEXTS)
    found = task.predict(TEXTS, batch_size=2, verbose=0)
    assert largest_difference(found, outputs.logits.numpy(), mask) <= 1e-4
    assert set(task.head) == {"output/kernel", "output/bias"}
    assert task.head["output/kernel"].shape == (24, 5)
    alone = predictions_alone(task, TEXTS[2:3])[0]
    np.testing.assert_allclose(found[2, : len(alone)], alone, atol=1e-4)


@pytest.mark.parametrize("labels", [LABELS, PLAIN], ids=["BIO", "plain"])
def test_entities_of_bert(labels, tmp_path, pair):
    """The groups of Transformers' pipeline, whose words have the label of their first token."""
    transformers = pytest.importorskip("transformers")
    task, model = pair if labels is LABELS else pair_with(labels)
    ner = transformers.pipeline(
        "token-classification", model=model, tokenizer=fast_tokenizer(tmp_path), device="cpu",
        aggregation_strategy="first",
    )  # fmt: skip
    found = task.recognize(NASTY, batch_size=3)
    lengths = []
    for text, entities in zip(NASTY, found, strict=True):
        expected = ner(text)
        assert [(e.start, e.end) for e in entities] == [(e["start"], e["end"]) for e in expected]
        # Transformers takes "DATE-" for a prefix too.
        groups = [e["entity_group"].replace("TIME", "DATE-TIME") for e in expected]
        assert [e.label for e in entities] == groups
        scores = [e["score"] for e in expected]
        assert [e.score for e in entities] == pytest.approx(scores, abs=1e-5)
        assert all(e.text == text[e.start : e.end] == e.text.strip() != "" for e in entities)
        lengths += [len(e.text.split()) for e in entities]
    assert max(lengths) > 1 and len({e.label for es in found for e in es}) > 1
    assert task.recognize(NASTY[1]) == [
        (e.label, e.text, e.start, e.end, pytest.approx(e.score, abs=1e-5)) for e in found[1]
    ]


def entities_for(task, text, names):
    """The entities if the words of a text had these labels, one a word."""
    words = kt.tasks.text.token_classifier.words_of(
        text, task.tokenizer.encode_batch_with_offsets([text])[0]
    )
    assert len(words) == len(names), [text[w.start : w.end] for w in words]
    probabilities = np.full((max(w.token for w in words) + 1, task.num_classes), 0.01)
    for word, name in zip(words, names, strict=True):
        probabilities[word.token, task.label_names.index(name)] = 0.9
    return [(e.label, e.text) for e in task._entities(text, words, probabilities)]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_words_of_the_original_text(kind):
    """Accents, emoji and white space stay as they are in the text."""
    task = small(kind, labels=LABELS)
    text = "  Cafe\u0301  Zoë 🙂\tParis,  ok"
    # A combining accent is a word by itself in byte-level BPE; BERT drops it, with its place.
    accent, cafe = ([], "Cafe") if kind == "wordpiece" else (["I-PER"], "Cafe\u0301")
    names = ["B-PER", *accent, "I-PER", "B-LOC", "I-LOC", "O", "O"]
    assert entities_for(task, text, names) == [("PER", "Cafe\u0301  Zoë"), ("LOC", "🙂\tParis")]
    names = ["I-PER", *accent, "B-PER", "I-LOC", "O", "B-LOC", "I-PER"]
    assert entities_for(task, text, names) == [
        ("PER", cafe), ("PER", "Zoë"), ("LOC", "🙂"), ("LOC", ","), ("PER", "ok")
    ]  # fmt: skip


def test_a_long_text_is_read_in_windows():
    """Each token counts where it has most text around it; nothing of the text is lost."""
    task = small(labels=LABELS)
    text = " ".join(ENGLISH * 60)
    (encoding,) = task.tokenizer.encode_batch_with_offsets([text])
    parts = kt.tasks.data.text.split_windows(encoding, 0, 512)
    assert len(encoding) > 1000 and len(parts) > 2 and max(map(len, parts)) == 512
    assert sorted(set(np.concatenate(parts).tolist())) == list(range(len(encoding)))
    for first, second in itertools.pairwise(parts):
        assert len(np.intersect1d(first, second)) == 128 + 2  # and [CLS] and [SEP]
    rows = [np.asarray(encoding.ids)[places] for places in parts]
    logits = [keras.ops.convert_to_numpy(task({"token_ids": row[None]}))[0] for row in rows]
    best = np.zeros((len(encoding), 5))
    for token in range(1, len(encoding) - 1):
        inside = []
        for places, row in zip(parts, logits, strict=True):
            at = np.flatnonzero(places == token)
            if len(at):
                inside.append((min(at[0], len(places) - 1 - at[0]), row[at[0]]))
        best[token] = max(inside, key=lambda pair: pair[0])[1]
    words = kt.tasks.text.token_classifier.words_of(text, encoding)
    expected = [
        (e.label, e.start, e.end)
        for e in task._entities(text, words, np.exp(best) / np.exp(best).sum(-1, keepdims=True))
    ]
    assert [(e.label, e.start, e.end) for e in task.recognize(text)] == expected
    assert expected[-1][2] > len(text) * 0.9


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_only_the_first_token_of_a_word_counts(kind):
    task = small(kind, labels=LABELS)
    words = [["a", "man", "zoo-keeper", "🙂é", "", "New York", "bike"], ["never", "dull"]]
    labels = [["O", "B-PER", "I-PER", "O", "O", "B-LOC", "O"], ["O", "I-LOC"]]
    dataset = task.make_dataset(words, labels)
    inputs, targets, weights = dataset[0]
    order = dataset.order
    for row, text in enumerate([" ".join(words[i]) for i in order]):
        (encoding,) = task.tokenizer.encode_batch_with_offsets([text])
        assert inputs["token_ids"][row][: len(encoding)].tolist() == encoding.ids
        counted = np.flatnonzero(weights[row])
        kept = [i for i, word in enumerate(words[order[row]]) if word]
        expected = [LABELS.index(labels[order[row]][i]) for i in kept]
        assert targets[row][counted].tolist() == expected
        starts = [text[encoding.offsets[t][0] : encoding.offsets[t][1]].strip() for t in counted]
        for start, i in zip(starts, kept, strict=True):
            assert words[order[row]][i].startswith(start)
    assert set(np.unique(weights)) == {0, 1}
    numbers = [[LABELS.index(name) for name in row] for row in labels]
    for other in (numbers, [np.array(row) for row in numbers]):
        for found, wanted in zip(task.make_dataset(words, other)[0], dataset[0], strict=True):
            keras.tree.map_structure(np.testing.assert_array_equal, found, wanted)
    weighted = task.make_dataset(words, labels, sample_weight=[0.5, 0.0])[0][2]
    np.testing.assert_allclose(weighted[order.argsort()], weights[order.argsort()] * [[0.5], [0.0]])


def test_weights_of_words_in_an_array():
    """An array has room for the longest text; what is behind the words of others is not read."""
    task = small(labels=LABELS)
    words, labels = [["a", "man", "rides"], ["dogs"]], [["O", "O", "O"], ["O"]]
    listed = task.make_dataset(words, labels, sample_weight=[[1.0, 2.0, 3.0], [4.0]])[0][2]
    for behind in (9.0, np.nan):
        array = np.array([[1, 2, 3, behind], [4, behind, behind, behind]])
        found = task.make_dataset(words, labels, sample_weight=array)[0][2]
        np.testing.assert_array_equal(found, listed)
    with pytest.raises(ValueError, match=r"`sample_weight\[0\]` has 2 numbers, and `x\[0\]` 3"):
        task.make_dataset(words, labels, sample_weight=np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"`sample_weight\[0\]` has 4 numbers, and `x\[0\]` 3"):
        task.make_dataset(words, labels, sample_weight=[[1.0] * 4, [1.0]])


def test_words_of_sentencepiece():
    """`▁` alone is its word's first token, in `fit` as in `recognize`."""
    tokenizers = pytest.importorskip("tokenizers")
    pieces = ["<unk>", "▁", "▁in", "par", "is", ",", "▁good", "e", "é"]
    model = tokenizers.models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0)
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    words = kt.Tokenizer(backend, pad="<unk>")
    text = "good  paris , in é"
    (encoding,) = words.encode_batch_with_offsets([text])
    assert encoding.tokens == ["▁good", "▁", "▁", "par", "is", "▁", ",", "▁in", "▁", "é"]
    found = kt.tasks.text.token_classifier.words_of(text, encoding)
    spans = [(0, 0, 4), (2, 6, 11), (5, 12, 13), (7, 14, 16), (8, 17, 18)]
    assert [tuple(word) for word in found] == spans
    task = kt.TokenClassifier(
        kt.models.Encoder(config("encoder", words)), words, labels=["O", "B-LOC", "I-LOC"]
    )
    given = ["good", "paris", ",", "in", "é"]
    _, targets, weights = task.make_dataset([given], [["O", "B-LOC", "O", "O", "I-LOC"]])[0]
    assert np.flatnonzero(weights[0]).tolist() == [0, 1, 4, 6, 7]  # one space, one token less
    assert targets[0][:8].tolist() == [0, 1, 0, 0, 0, 0, 0, 2]


def test_entities_as_characters():
    task = small(labels=LABELS)
    text = "a warm man from Start, to end"
    spans = [(2, 10, "PER"), (16, 20, "LOC")]  # the second one ends within a word
    (inputs, targets, weights) = task.make_dataset([text], [spans])[0]
    words = ["a", "warm", "man", "from", "Start", ",", "to", "end"]
    names = ["O", "B-PER", "I-PER", "O", "B-LOC", "O", "O", "O"]
    (same, expected, counted) = task.make_dataset([words], [names])[0]
    kept = weights[0] > 0
    assert targets[0][kept].tolist() == [LABELS.index(name) for name in names]
    assert expected[0][counted[0] > 0].tolist() == targets[0][kept].tolist()
    assert same["token_ids"].shape == inputs["token_ids"].shape
    assert not task.make_dataset(["dull"], [[]])[0][1].any()


@pytest.mark.each_backend
def test_fit_learns():
    words = [text.split() for text in TEXTS[:3]] * 3
    named = {"Angela": "B-PER", "Merkel": "I-PER", "Paris": "B-LOC"}
    labels = [[named.get(word, "O") for word in row] for row in words]
    task = small(labels=LABELS)
    before = task.evaluate(words, labels, verbose=0, return_dict=True)
    task.compile(
        keras.optimizers.Adam(1e-2), task.loss, weighted_metrics=[kt.training.TokenAccuracy()]
    )
    history = task.fit(
        words, labels, batch_size=3, epochs=12, verbose=0, validation_data=(words, labels)
    ).history
    after = task.evaluate(words, labels, verbose=0, return_dict=True)
    assert after["loss"] < 0.2 * before["loss"]
    assert after["accuracy"] == history["val_accuracy"][-1] == 1.0
    found = task.recognize(["Angela  Merkel met Emmanuel Macron in Paris .", "wind"])
    assert [entity[:4] for entity in found[0]] == [
        ("PER", "Angela  Merkel", 0, 14), ("LOC", "Paris", 38, 43)
    ]  # fmt: skip
    assert found[0][0].score > 0.5


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_white_space_is_no_word(kind):
    texts = ["New   York   Anna", "a\nb\n\n\nc", "   a", " \n\n a\t\tb "]
    words = kt.Tokenizer.train(texts * 4, kind, vocabulary_size=300)
    for text in texts:
        (encoding,) = words.encode_batch_with_offsets([text])
        assert [text[word.start : word.end] for word in words_of(text, encoding)] == text.split()


def test_tags_of_other_schemes():
    """A kind may be called "O", and what `fit` makes of spans is what `recognize` reads."""
    text, spans = "Anna met Angela Merkel in Paris", [(0, 4, "O"), (9, 22, "PER"), (26, 31, "O")]
    for letters, expected in (
        ("BIES", ["S-O", "O", "B-PER", "E-PER", "O", "S-O"]),
        ("BILU", ["U-O", "O", "B-PER", "L-PER", "O", "U-O"]),
        ("I", ["I-O", "O", "I-PER", "I-PER", "O", "I-O"]),
    ):
        labels = ["O", *(f"{letter}-{kind}" for letter in letters for kind in ("PER", "O"))]
        task = small(labels=labels)
        (encoding,) = task.tokenizer.encode_batch_with_offsets([text])
        words = words_of(text, encoding)
        _, targets, weights = task.make_dataset([text], [spans])[0]
        made = [labels[i] for i in targets[weights > 0]]
        assert made == expected
        shares = np.zeros((len(encoding), len(labels)))
        shares[np.arange(len(encoding)), targets[0, : len(encoding)]] = 1.0
        found = task._entities(text, words, shares)
        assert [(e.start, e.end, e.label) for e in found] == spans
        assert [e.text for e in found] == ["Anna", "Angela Merkel", "Paris"]


def test_the_mask_and_arrays():
    task = small(num_classes=3)
    (inputs,) = task.make_dataset(ENGLISH)[0]
    outputs = task.predict(inputs, verbose=0)
    changed = {**inputs, "token_ids": np.where(inputs["padding_mask"], inputs["token_ids"], 9)}
    mask = inputs["padding_mask"]
    np.testing.assert_allclose(outputs[mask], task.predict(changed, verbose=0)[mask], atol=1e-5)
    targets = np.zeros(mask.shape, "int32")
    history = task.fit(inputs, targets, sample_weight=mask.astype("float32"), verbose=0).history
    assert np.isfinite(history["loss"][0])
    assert {e.label for e in task.recognize(ENGLISH)[0]} <= {"0", "1", "2"}


def test_bad_input():
    task = small(labels=LABELS)

    def check(message, function, *args, **kwargs):
        with pytest.raises(ValueError, match=message):
            function(*args, **kwargs)

    words = [["a", "man"], ["dull"]]
    check("learns from labels: give `y`", task.fit, words)
    check("`y` must be a list with a list of labels for each of the 2", task.fit, words, [["O"]])
    check("for each of the 2 texts, received int", task.fit, words, 5)
    check(
        r"`y\[1\]\[0\]` is 'O', a name, but the classes have no names",
        small(num_classes=3).fit, words, [[0, 1], ["O"]],
    )  # fmt: skip
    check(r"`y\[0\]` must be one label a word, 2 in", task.fit, words, [["O"], ["O"]])
    check(r"`y\[1\]\[0\]` is 'PER', which is not among", task.fit, words, [["O"] * 2, ["PER"]])
    check(r"but `y\[0\]\[1\]` is 9", task.fit, words, [[0, 9], [0]])
    check(r"`x\[0\]` is a list of words, but `x\[1\]` is not.*str", task.fit, [["a"], "b"], [[0]])
    check(r"`x\[1\]\[0\]` must be a string, received 5 of", task.fit, [["a"], [5]], [[0], [0]])
    check(r"`x\[1\]` is empty", task.fit, [["a"], []], [[0], []])
    check(r"`x\[0\]` must be a string, received None of", task.predict, [None])
    check(r"Labels of words need lists of words as `x`", task.fit, ["a man"], [["O", "O"]])
    check(r"The entities of `y\[0\]` must be a list, received 3", task.fit, ["a man"], [3])
    check(r"\(0, 6, 'PER'\) of `y\[0\]` is not within", task.fit, ["a man"], [[(0, 6, "PER")]])
    check("is not within its text", task.fit, ["a man"], [[(3, 3, "PER")]])
    check("overlaps another", task.fit, ["a man"], [[(0, 1, "PER"), (0, 5, "LOC")]])
    check("there is no .B-ORG. in", task.fit, ["a man"], [[(0, 1, "ORG")]])
    check("need a task with `labels`", small(num_classes=3).fit, ["a"], [[(0, 1, "PER")]])
    check(r"`texts\[1\]` must be a string", task.recognize, ["a", None])
    check("`texts` is empty", task.recognize, [])
    check("`num_classes` must be an integer", small)
    both = kt.models.Seq2Seq(config("seq2seq", tokenizer()))
    check("TokenClassifier needs.*'encoder' or 'dec", kt.TokenClassifier, both, num_classes=2)
    no_words = kt.TokenClassifier(task.backbone, num_classes=2)
    check("This TokenClassifier has no tokenizer", no_words.recognize, "a")
