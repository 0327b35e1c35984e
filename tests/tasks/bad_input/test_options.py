"""Options and texts of tasks that cannot be meant: refused, and named."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.tasks.bad_input.conftest import (
    GOOD,
    INF,
    NAN,
    TEXTS,
    check,
    learned,
)
from tests.tasks.common import classifier, config, tokenizer

pytestmark = pytest.mark.one_backend

HALF = "a \ud83d b"  # half of a surrogate pair


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({name: value}, f"`{name}` must be an integer of at least 1")
            for name in ("batch_size", "batch_tokens", "steps_per_epoch")
            for value in ("8", 1.5, 8.0, 0, -1, True, NAN, [8], b"8")
        ),
        *(
            ({"seed": value}, r"`seed` must be an integer from 0 to 2\*\*63 - 1")
            for value in ("x", -1, 1.0, NAN, 2**64, True, [1])
        ),
        ({"epochs": "2"}, "`epochs` must be an integer of at least 0, received '2'"),
        ({"epochs": 1.5}, "`epochs` must be an integer of at least 0, received 1.5"),
        ({"initial_epoch": -1}, "`initial_epoch` must be an integer of at least 0"),
        ({"validation_freq": 0}, "`validation_freq` must be an integer of at least 1"),
        ({"verbose": "yes"}, "`verbose` must be one of 'auto'"),
        ({"class_weight": {0: NAN}}, r"`class_weight\[0\]` must be a number of at least 0"),
        ({"class_weight": [1, 1]}, "`class_weight` must be a dict"),
        ({"batch_size": 8, "batch_tokens": 64}, r"`batch_size` \(8\) counts rows, and"),
    ],
    ids=str,
)
def test_options_of_fit(task, options, message):
    check(message, task.fit, TEXTS, [0, 1, 2], **options)
    if "batch_tokens" not in options:
        check(message, task.fit, GOOD, np.array([0, 1]), **options)


def test_callbacks_and_parts_of_data(task):
    early = keras.callbacks.EarlyStopping
    for verb, data in ((task.fit, (TEXTS, [0, 1, 2])), (task.predict, (TEXTS,))):
        check(r"`callbacks\[0\]` must be a keras.callbacks.Callback, received 3 of type int", verb,
              *data, callbacks=[3])  # fmt: skip
        check(r"`callbacks\[1\]` must be a .*Give an object, with \(\)", verb, *data,
              callbacks=[keras.callbacks.Callback(), early])  # fmt: skip
        check(r"`callbacks\[0\]` must be a .* of type list", verb, *data,
              callbacks=[[keras.callbacks.Callback()]])  # fmt: skip
        for wrong in (3, early, "x", {}):
            check("`callbacks` must be a list of keras.callbacks.Callback", verb, *data,
                  callbacks=wrong)  # fmt: skip
    for parts in ((), (TEXTS, [0, 1, 2], None, 1, 2), (GOOD, np.array([0, 1]), None, 1)):
        message = rf"`validation_data`: A tuple must be \(x,\), .*received {len(parts)} parts"
        check(message, task.fit, TEXTS, [0, 1, 2], validation_data=parts)
    check("An element of the data must be .*received 4 parts", task.fit,
          iter([(TEXTS, [0, 1, 2], None, 1)]))  # fmt: skip


def test_options_of_models():
    words = tokenizer(lowercase=True)
    encoder = kt.models.Encoder(config("encoder", words))
    for dtype in ("float7", "bool", "complex64", 3, ""):
        check("`dtype` must be a dtype of floats", kt.models.Encoder, encoder.config, dtype=dtype)
        check("`dtype` must be a dtype of floats", kt.SequenceClassifier.for_rows, ["AC"],
              num_classes=2, dtype=dtype)  # fmt: skip
    for kind, made in (("encoder", kt.models.Encoder), ("seq2seq", kt.models.Seq2Seq)):
        values = {**config(kind, words).flat, "vocabulary_size": 0}
        none = kt.TransformerConfig.from_dict(values)
        check("`vocabulary_size` must be at least 1 for a model of tokens", made, none)
    for separator in ("x", -5, 10**9, 1.5):
        check("`separator_id` must be an integer", kt.QuestionAnswerer, encoder, words,
              separator_id=separator)  # fmt: skip
    check(
        "`start_id` is the first token of the decoder",
        kt.QuestionAnswerer,
        encoder,
        words,
        start_id=1,
    )
    check("`end_ids` are the tokens whose states", kt.TextClassifier, encoder, words, 2,
          end_ids=[1])  # fmt: skip


def test_batch_size_of_other_verbs(task, words_task, answerer, masked):
    for value in ("8", 1.5, 0, True):
        message = "`batch_size` must be an integer of at least 1"
        for verb in (task.predict, task.classify, words_task.recognize):
            check(message, verb, TEXTS, batch_size=value)
        check(message, task.predict, GOOD, batch_size=value)
        check(message, task.evaluate, TEXTS, [0, 1, 2], batch_size=value)
        check(message, answerer.answer, TEXTS, TEXTS, batch_size=value)
        check(message, masked.fill_mask, "a [MASK]", batch_size=value)
        check(message, task.make_dataset, TEXTS, batch_size=value)


def test_options_of_datasets(task, lm, mt, masked):
    for one, x in ((task, (TEXTS,)), (lm, (TEXTS,)), (masked, (TEXTS,)), (mt, (TEXTS, TEXTS))):
        for value in ("5", 0, -1, 2.5, True, NAN, 2**64 * 1.0):
            check("`max_length` must be an integer", one.make_dataset, *x, max_length=value)
        for value in ("x", -1, 1.5, 2**64):
            check("`seed` must be an integer", one.make_dataset, *x, seed=value)
        check("`shuffle` must be True or False", one.make_dataset, *x, shuffle="x")
        check("`max_buckets` must be an integer", one.make_dataset, *x, max_buckets=1.5)
        check("`multiple` must be an integer", one.make_dataset, *x, multiple="8")
        check("counts rows, and `batch_tokens`", one.make_dataset, *x, batch_size=2,
              batch_tokens=64)  # fmt: skip
        dataset = one.make_dataset(*x, max_length=None, seed=np.int64(3), batch_size=np.int32(2))
        assert type(dataset.seed) is int


def test_numbers_of_numpy(task, masked, answerer):
    for number in (np.int64(2), np.array(2), np.uint8(2)):
        history = task.fit(
            TEXTS, [0, 1, 2], batch_size=number, epochs=number, seed=number, verbose=0
        )
        assert history.epoch == [0, 1]
        assert len(masked.fill_mask("a [MASK]", top_k=number, batch_size=number)) == 2
        assert len(answerer.answer("who ?", "a man rides", top_k=number)) == 2
    assert type(classifier(num_classes=np.int64(2), dropout=np.float32(0.5)).num_classes) is int
    values = config("encoder", tokenizer(lowercase=True), dropout=np.float32(0.25))
    small = values.replace(num_layers=np.int64(2))
    assert (small.num_layers, small.dropout) == (2, 0.25) and type(small.num_layers) is int


def test_half_of_a_surrogate_pair(task, words_task, answerer, masked, lm, mt):
    rows = ["a film", "ä", HALF]
    message = r"`{}` has half of a surrogate pair, '\\ud83d', at character 2"
    here = message.format(r"x\[2\]")
    check(here, task.fit, rows, [0, 1, 2])
    check(here, task.evaluate, rows, [0, 1, 2])
    check(here, task.predict, rows)
    check(here, task.predict, np.array(rows))
    check(here, task.classify, rows)
    check(message.format(r"x\[1\]\[2\]"), task.predict, (TEXTS, rows))
    check(message.format(r"x\[0\]\[2\]"), task.predict, (rows, TEXTS))
    check(f"`validation_data`: {here}", task.fit, TEXTS, [0, 1, 2], validation_data=(rows, [0] * 3))
    check(message.format(r"x\[0\]\[1\]"), words_task.fit, [["a", HALF]], [[0, 0]])
    check(message.format(r"texts\[2\]"), words_task.recognize, rows)
    check(message.format(r"contexts\[2\]"), answerer.answer, TEXTS, rows)
    check(message.format(r"x\[1\]\[2\]"), answerer.fit, (TEXTS, rows), [None] * 3)
    check(here, masked.fit, rows)
    check(message.format(r"texts\[2\]"), masked.fill_mask, rows)
    check(here, lm.fit, rows)
    check(message.format(r"y\[2\]"), mt.fit, TEXTS, rows)
    check(message.format(r"labels\[1\]"), classifier, labels=["a", HALF])
    words = tokenizer(lowercase=True)
    embedder = kt.TextEmbedder(kt.models.Encoder(config("encoder", words)), words)
    check(here, embedder.predict, rows)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b: kt.TextClassifier(b, num_classes=2.5), "`num_classes` must be an integer"),
        (lambda b: kt.TextClassifier(b, num_classes=2**64), "`num_classes` must be an integer"),
        (lambda b: kt.TextClassifier(b, num_classes=2, dropout="x"), "`dropout` must be a number"),
        (lambda b: kt.TextClassifier(b, num_classes=2, dropout=NAN), "`dropout` must be a number"),
        (lambda b: kt.TextClassifier(b, num_classes=2, dropout=1), "`dropout` must be a number"),
        (lambda b: kt.TextClassifier(b, labels=5), "`labels` must be a list of strings"),
        (lambda b: kt.TextClassifier(b, labels=[1, 2]), "`labels` must be a list of strings"),
        (lambda b: kt.QuestionAnswerer(b, dropout=-0.5), "`dropout` must be a number"),
        (lambda b: kt.MaskedLM(b, mask_rate=NAN), "`mask_rate` must be a number between 0 and 1"),
        (lambda b: kt.MaskedLM(b, normalization_epsilon="x"), "`normalization_epsilon` must be a"),
        (lambda b: kt.TextEmbedder(b, max_length="4"), "`max_length` must be an integer from 1 to"),
        (
            lambda b: kt.TextEmbedder(b, max_length=99),
            "`max_length` must be an integer from 1 to 8",
        ),
        (lambda b: kt.TextEmbedder(b, normalize="x"), "`normalize` must be True or False"),
    ],
)
def test_constructors(make, message):
    check(message, make, learned())


def test_adapters(task):
    for rank in (0, 1.5, "4", True, NAN):
        check("`rank` must be an integer of at least 1", task.enable_lora, rank)
    for alpha in (0, NAN, INF, "x", -1):
        check("`alpha` must be a number above 0", task.enable_lora, 2, alpha)
    for targets in ("query", [], None, [5], ["nothing"], 5):
        check("`targets` must be a list of dense layers", task.enable_lora, 2, targets=targets)
    for layers in (-1, "1", 1.0, NAN, 9):
        check("`layers` must be an integer from 0 to 1", task.freeze, layers)
    for path in (None, "", 5, "a\0b", "x" * 10_000):
        check(
            "`path` (must be a path|is empty|has characters|is too long)", task.load_adapter, path
        )
