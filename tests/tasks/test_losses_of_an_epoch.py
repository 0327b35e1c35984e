"""The loss of an epoch is one mean over all that counts, whatever the batches are."""

import warnings

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.training import (
    Denoising,
    Distiller,
    MaskedTokens,
    Perplexity,
    SpanCorruption,
    TokenCrossEntropy,
)
from tests.generation.common import on_one
from tests.tasks.common import (
    ENGLISH,
    classifier,
    config,
    language_model,
    randomized,
    tokenizer,
    translator,
)

TEXTS = [*ENGLISH, "a", "dull dull", "a man rides a bike . " * 3]
NAMES = ["O", "B-X", "I-X"]


def masked():
    words = tokenizer(lowercase=True)
    return randomized(kt.MaskedLM(kt.models.Encoder(config("encoder", words)), words))


def labeller():
    words = tokenizer(lowercase=True)
    task = kt.TokenClassifier(kt.models.Encoder(config("encoder", words)), words, labels=NAMES)
    task.compile(task.optimizer, weighted_metrics=[Perplexity()])
    return randomized(task)


def from_logits():
    """With a metric that needs logits, so that the loss is computed from them."""
    task = language_model()
    top = keras.metrics.SparseTopKCategoricalAccuracy(name="top")
    task.compile(task.optimizer, weighted_metrics=[Perplexity(), top])
    return task


TASKS = {
    "causal": (language_model, lambda: (TEXTS,), {}),
    "packed": (language_model, lambda: (TEXTS,), {"pack_length": 32}),
    "from logits": (from_logits, lambda: (TEXTS,), {}),
    "seq2seq": (translator, lambda: (TEXTS, TEXTS[::-1]), {}),
    "masked": (masked, lambda: (TEXTS,), {}),
    "labels": (
        labeller,
        lambda: ([text.split() for text in TEXTS], [["B-X"] * len(t.split()) for t in TEXTS]),
        {"sample_weight": [1.0, 2.0, 0.5, 1.0, 0.0, 1.0, 3.0]},
    ),
}


def cross_entropy(task, dataset):
    """By NumPy, over the tokens of all batches, by weight."""
    losses, total = 0.0, 0.0
    for place in range(len(dataset)):
        x, y, weights = dataset[place]
        logits = np.asarray(task.predict_on_batch(x), "float64")
        normalized = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        each = -np.take_along_axis(normalized, np.asarray(y)[..., None], -1)[..., 0]
        losses, total = losses + (each * weights).sum(), total + weights.sum()
    return losses / total


@pytest.mark.parametrize(
    "name", ["labels", *map(on_one, ("causal", "packed", "from logits", "seq2seq", "masked"))]
)
def test_it_is_the_mean_over_the_tokens(name):
    make, data, options = TASKS[name]
    if name != "packed":
        options = {"max_buckets": 2, **options}
    task = make()
    datasets = [task.make_dataset(*data(), batch_size=size, **options) for size in (2, 7)]
    assert len(datasets[0]) > 1
    for dataset in datasets:
        expected = cross_entropy(task, dataset)
        found = task.evaluate(dataset, verbose=0, return_dict=True)
        assert found["loss"] == pytest.approx(expected, rel=1e-4)
        assert found["perplexity"] == pytest.approx(np.exp(found["loss"]), rel=1e-4)
    task.compile(keras.optimizers.SGD(0.0))  # so that training changes nothing
    validation = task.make_dataset(*data(), batch_size=2, **options)
    history = task.fit(datasets[0], verbose=0, validation_data=validation).history
    expected = cross_entropy(task, datasets[0])
    assert history["loss"] == pytest.approx([expected], rel=1e-4)
    assert history["val_loss"] == pytest.approx([expected], rel=1e-4)


def weighted_mean(scores, weights):
    """By arithmetic: the loss of tokens whose log-probabilities are known."""
    total = sum(float(-(s * w).sum()) for s, w in zip(scores, weights, strict=True))
    return total / sum(float(w.sum()) for w in weights)


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["causal", "seq2seq", "packed"])
def test_weights_of_texts_and_of_tokens(name):
    """Weight texts in every form: lists, streams and files."""
    seq2seq = name == "seq2seq"
    task = translator() if seq2seq else language_model()
    packed = {"pack_length": 32} if name == "packed" else {}
    if seq2seq:
        scores = task.score(TEXTS, TEXTS[::-1], per_token=True)
    else:
        end = [task.tokenizer.end_id]
        rows = [row if row[-1:] == end else row + end for row in task.tokenizer.encode_batch(TEXTS)]
        scores = task.score(rows, per_token=True)
    random = np.random.default_rng(0)
    of_texts = random.uniform(0, 3, len(TEXTS))
    of_tokens = [random.uniform(0, 3, len(row)) for row in scores]
    padded = np.full((len(TEXTS), max(map(len, scores)) + 3), 7.0)
    for row, given in zip(padded, of_tokens, strict=True):
        row[: len(given)] = given
    data = (TEXTS, TEXTS[::-1]) if seq2seq else (TEXTS, None)
    expected = weighted_mean(scores, of_tokens)
    task.compile(keras.optimizers.SGD(0.0))
    for given in (of_tokens, padded):
        dataset = task.make_dataset(*data, given, batch_size=3, **packed)
        assert task.evaluate(dataset, verbose=0)[0] == pytest.approx(expected, rel=1e-4)
    history = task.fit(*data, sample_weight=list(map(list, of_tokens)), verbose=0, batch_size=3)
    assert history.history["loss"] == pytest.approx([expected], rel=1e-4)
    given = [np.full(len(row), weight) for row, weight in zip(scores, of_texts, strict=True)]
    expected = weighted_mean(scores, given)
    found = task.fit(*data, sample_weight=of_texts, verbose=0, batch_size=3, **packed).history
    assert found["loss"] == pytest.approx([expected], rel=1e-4)


@pytest.mark.one_backend
def test_weights_of_masked_tokens_and_of_spoiled_texts():
    task = masked()
    counts = list(map(len, task.tokenizer.encode_batch(TEXTS)))
    of_tokens = [np.arange(1.0, count + 1) for count in counts]
    dataset = task.make_dataset(TEXTS, sample_weight=of_tokens, max_buckets=1)
    x, _, weights = dataset[0]
    plain = task.make_dataset(TEXTS, max_buckets=1)[0][2]
    assert np.array_equal(weights, plain * (x["mask_positions"] + 1))
    assert task.evaluate(dataset, verbose=0)[0] == pytest.approx(
        cross_entropy(task, dataset), rel=1e-4
    )
    options = {"objective": kt.training.Denoising(), "max_buckets": 1}
    words = kt.Tokenizer.train(TEXTS, vocabulary_size=330, special_tokens=["<mask>"])
    seq2seq = kt.Seq2SeqLM(kt.models.Seq2Seq(config("seq2seq", words)), words)
    dataset = seq2seq.make_dataset(TEXTS, sample_weight=np.arange(7.0), **options)
    plain = seq2seq.make_dataset(TEXTS, **options)[0][2]
    assert np.array_equal(dataset[0][2], plain * dataset.order[:, None])


@pytest.mark.one_backend
def test_weights_of_texts_of_any_source(tmp_path):
    pytest.importorskip("pyarrow")
    task = language_model()
    weights = np.arange(7.0)
    expected = task.evaluate(TEXTS, sample_weight=weights, verbose=0)[0]
    records = kt.data.read([{"text": text} for text in TEXTS], cache=tmp_path)
    assert task.evaluate(records, sample_weight=weights, verbose=0)[0] == pytest.approx(expected)
    stream = ((text, None, weight) for text, weight in zip(TEXTS, weights, strict=True))
    assert task.evaluate(stream, batch_size=2, verbose=0)[0] == pytest.approx(expected)
    with pytest.raises(ValueError, match="`sample_weight` is for lists and arrays"):
        task.fit((text for text in TEXTS), sample_weight=weights, verbose=0)
    with pytest.raises(
        ValueError, match=r"`sample_weight\[0\]` has 99 numbers, and `x\[0\]` \d+ t"
    ):
        task.fit(TEXTS, sample_weight=[[1.0] * 99] * 7, max_length=99)


HALVES = {
    "classifier": lambda words, **options: (
        kt.TextClassifier(kt.models.Encoder(config("encoder", words), **options), words, 3),
        (TEXTS, [0, 1, 2, 0, 1, 2, 0]),
    ),
    "labels": lambda words, **options: (
        kt.TokenClassifier(kt.models.Encoder(config("encoder", words), **options), words, 3),
        ([text.split() for text in TEXTS], [[1] * len(text.split()) for text in TEXTS]),
    ),
    "masked": lambda words, **options: (
        kt.MaskedLM(kt.models.Encoder(config("encoder", words), **options), words),
        (TEXTS,),
    ),
    "causal": lambda words, **options: (
        kt.CausalLM(kt.models.Decoder(config("decoder", words), **options), words),
        (TEXTS,),
    ),
    "seq2seq": lambda words, **options: (
        kt.Seq2SeqLM(kt.models.Seq2Seq(config("seq2seq", words), **options), words),
        (TEXTS, TEXTS),
    ),
}


@pytest.mark.parametrize("name", ["classifier", *map(on_one, list(HALVES)[1:])])
@pytest.mark.parametrize("dtype", ["mixed_float16", on_one("bfloat16")])
def test_logits_of_half_precision_are_float32(name, dtype):
    """So that every metric takes them, on each backend."""
    words = tokenizer(lowercase=True)
    if name in ("causal", "seq2seq"):
        words = tokenizer("bpe", add_prefix_space=True, template="end")
    task, data = HALVES[name](words, dtype=dtype)
    dataset = task.make_dataset(*data, max_buckets=1)
    assert keras.backend.standardize_dtype(task(dataset[0][0]).dtype) == "float32"
    task.compile(
        task.optimizer, metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")]
    )
    found = task.evaluate(dataset, verbose=0, return_dict=True)
    assert 0 <= found["top"] <= 1 and np.isfinite(found["loss"])


@pytest.mark.one_backend
def test_it_does_not_depend_on_the_size_of_the_batches():
    task = language_model()
    losses = [task.evaluate(TEXTS, batch_size=size, verbose=0)[0] for size in (1, 2, 3, 7)]
    assert losses[1:] == pytest.approx(losses[:1] * 3, rel=1e-5)
    scores = {"loss": "cosine_similarity"}  # the other losses compare the rows of a batch
    words = tokenizer(lowercase=True)
    embedder = kt.TextEmbedder(kt.models.Encoder(config("encoder", words)), words)
    embedder.compile(**scores)
    data = {
        "x": (TEXTS, TEXTS[::-1]),
        "y": np.linspace(0, 1, 7),
        "sample_weight": [3.0, *[1.0] * 6],
    }
    losses = [embedder.evaluate(**data, batch_size=size, verbose=0) for size in (1, 2, 7)]
    assert losses[1:] == pytest.approx(losses[:1] * 2, rel=1e-5)


@pytest.mark.one_backend
def test_a_loss_of_keras_by_weight_is_that_of_the_task():
    """Whatever the batches are; one that counts padding is warned of."""
    task = language_model()
    expected = task.evaluate(TEXTS, verbose=0)[0]
    loss = keras.losses.SparseCategoricalCrossentropy
    by_weight = loss(from_logits=True, reduction="mean_with_sample_weight")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task.compile(task.optimizer, by_weight)
    for size in (1, 3, 7):
        assert task.evaluate(TEXTS, batch_size=size, verbose=0)[0] == pytest.approx(expected, 1e-5)
    with pytest.warns(UserWarning, match="padding too"):
        task.compile(task.optimizer, loss(from_logits=True))


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", ["masked", "whole words", "spans", "denoising"])
def test_what_is_hidden_of_a_text_does_not_depend_on_the_batch(kind):
    if kind in ("masked", "whole words"):
        task = masked()
        options = {"objective": MaskedTokens(whole_words=kind == "whole words")}
    else:
        task = randomized(kt.Seq2SeqLM(*_with_sentinels()))
        options = {"objective": SpanCorruption() if kind == "spans" else Denoising()}
    losses = [
        task.evaluate(task.make_dataset(TEXTS, batch_size=size, **options), verbose=0)[0]
        for size in (1, 3, 7)
    ]
    assert losses[1:] == pytest.approx(losses[:1] * 2, rel=1e-5)
    inputs = task.make_dataset([TEXTS[0]] * 9, **options)[0][0]
    assert len(np.unique(inputs[task.backbone.id_inputs[0]], axis=0)) > 1  # each row its own


def _with_sentinels():
    specials = ["<mask>", *(f"<extra_id_{i}>" for i in range(20))]
    words = kt.Tokenizer.train(TEXTS, vocabulary_size=300, special_tokens=specials)
    return kt.models.Seq2Seq(config("seq2seq", words)), words


@pytest.mark.one_backend
def test_a_loss_of_ones_own_has_the_meaning_of_keras():
    """The mean of the batches by rows."""

    class Own(kt.CausalLM):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return 2 * super().compute_loss(x, y, y_pred, sample_weight, training=training)

    task = language_model()
    task.compile(task.optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    own = Own(task.backbone, task.tokenizer)
    for mine, factor, loss in ((task, 1, task.loss), (own, 2, TokenCrossEntropy())):
        dataset = mine.make_dataset(TEXTS, batch_size=3)
        values, rows = [], []
        for place in range(len(dataset)):
            x, y, weights = dataset[place]
            values.append(factor * float(loss(y, mine.predict_on_batch(x), weights)))
            rows.append(len(y))
        found = mine.evaluate(dataset, verbose=0, return_dict=True)["loss"]
        assert found == pytest.approx(np.average(values, weights=rows), rel=1e-4)


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["classifier", "causal"])
def test_each_part_of_distillation_is_one_mean(name):
    if name == "causal":
        student, teacher, y = language_model(0), language_model(1), ()
    else:
        student, teacher = (classifier(seed, num_classes=2) for seed in range(2))
        y = ([0, 1, 0, 1, 1, 0, 1],)
    distiller = Distiller(student, teacher)
    # Of one length: padding is no part of it.
    sizes = [student.make_dataset(TEXTS, *y, batch_size=size, max_buckets=1) for size in (2, 7)]
    one, other = (distiller.evaluate(each, verbose=0, return_dict=True) for each in sizes)
    assert set(one) >= {"loss", "soft_loss", "hard_loss", "cosine_loss"}
    assert one == pytest.approx(other, rel=1e-4)
