"""One task used from several threads: what they get is what one gets, or an error names both."""

import concurrent.futures
import threading

import keras
import numpy as np
import pytest

import keras_transformer as kt

THREADS = 8
TEXTS = [f"{'never dull and warm ' * count}film" for count in (1, 2, 3, 5)]


@pytest.fixture(scope="module")
def tokenizer():
    return kt.Tokenizer.train(TEXTS, vocabulary_size=300, template="start_end")


def config(kind, tokenizer):
    return kt.TransformerConfig(
        kind=kind, vocabulary_size=tokenizer.vocabulary_size, hidden_dim=8, num_layers=1,
        num_heads=2, intermediate_dim=8, max_sequence_length=64,
    )  # fmt: skip


@pytest.fixture(scope="module")
def lm(tokenizer):
    keras.utils.set_random_seed(1)
    return kt.CausalLM(kt.models.Decoder(config("decoder", tokenizer)), tokenizer)


@pytest.fixture(scope="module")
def classifier(tokenizer):
    keras.utils.set_random_seed(1)
    return kt.TextClassifier(kt.models.Encoder(config("encoder", tokenizer)), tokenizer, 2)


def at_once(*calls):
    """Return the results of the calls, one thread each, started at the same moment."""
    barrier = threading.Barrier(len(calls))

    def run(call):
        barrier.wait(60)
        return call()

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(120) for future in [pool.submit(run, call) for call in calls]]


def assert_same(found, expected):
    for one, other in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        if isinstance(other, str):
            assert one == other
        else:
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def assert_as_one_after_the_other(calls, rounds):
    alone = [call() for call in calls]
    for _ in range(rounds):
        assert_same(at_once(*calls), alone)


def test_readers_of_a_classifier(classifier):
    one, two = TEXTS[:2], TEXTS[1:]
    labels = [0, 1, 1]
    calls = [
        lambda: classifier.predict(one, verbose=0),
        lambda: classifier.predict(two, verbose=0, batch_size=2),
        lambda: classifier.classify(two),
        lambda: classifier.evaluate(two, labels, verbose=0),
        lambda: classifier.evaluate(one, labels[:2], verbose=0),
        lambda: classifier.classify(one),
        lambda: classifier.tokenizer.encode_batch(two, max_length=6),
        lambda: classifier.tokenizer.encode_batch(two),
    ]
    assert len(calls) == THREADS
    assert_as_one_after_the_other(calls, rounds=4)


def test_readers_of_a_language_model(lm):
    options = {"max_new_tokens": 6}
    calls = [
        lambda: lm.generate(TEXTS[:1], **options),
        lambda: lm.generate(TEXTS[:3], **options),
        lambda: lm.generate(TEXTS[:2], sampler="top_p", seed=5, **options),
        lambda: "".join(lm.generate(TEXTS[0], stream=True, **options)),
        lambda: sorted(lm.generate(TEXTS[:2], stream=True, **options)),
        lambda: lm.score(TEXTS),
        lambda: lm.predict(TEXTS[:2], verbose=0),
        lambda: lm.evaluate(TEXTS, verbose=0),
    ]
    assert len(calls) == THREADS
    assert_as_one_after_the_other(calls, rounds=4)


def test_the_first_calls_of_all_threads(tokenizer):
    """When nothing is compiled yet: a step that is traced tells no other thread what it is in."""
    keras.utils.set_random_seed(1)
    make = [kt.CausalLM(kt.models.Decoder(config("decoder", tokenizer)), tokenizer)]
    keras.utils.set_random_seed(1)
    make.append(kt.CausalLM(kt.models.Decoder(config("decoder", tokenizer)), tokenizer))
    one, other = make

    def calls(lm):
        return [
            lambda: lm.evaluate(TEXTS, verbose=0),
            lambda: lm.predict(TEXTS[:2], verbose=0),
            lambda: lm.score(TEXTS),
        ]

    assert_same(at_once(*calls(one)), [call() for call in calls(other)])


class Waits(keras.callbacks.Callback):
    """Stays in a hook until it is told to go on."""

    def __init__(self, hook):
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()

        def wait(*_, **__):
            self.reached.set()
            assert self.go_on.wait(60)

        setattr(self, hook, wait)


def test_what_changes_the_model_excludes_all_others(lm):
    waits = Waits("on_train_batch_end")
    stream = lm.generate(TEXTS[0], stream=True, max_new_tokens=8)
    first = next(stream)
    before = lm.get_weights()
    thread = threading.Thread(
        target=lm.fit, args=(TEXTS,), kwargs={"verbose": 0, "callbacks": [waits]}, name="trainer"
    )
    thread.start()
    try:
        assert waits.reached.wait(120)
        calls = {
            "generate": lambda: lm.generate(TEXTS[0]),
            "predict": lambda: lm.predict(TEXTS, verbose=0),
            "evaluate": lambda: lm.evaluate(TEXTS, verbose=0),
            "score": lambda: lm.score(TEXTS),
            "fit": lambda: lm.fit(TEXTS, verbose=0),
            "compile": lambda: lm.compile("sgd", lm.loss),
            "freeze": lambda: lm.freeze(1),
            "enable_lora": lambda: lm.enable_lora(2),
            "quantize": lambda: lm.quantize("int8"),
            "set_weights": lambda: lm.set_weights(before),
            "save_to_preset": lambda: lm.save_to_preset("never"),
        }
        for verb, call in calls.items():
            with pytest.raises(RuntimeError, match=f"`{verb}` of MainThread and `fit` of trainer"):
                call()
        with pytest.raises(RuntimeError, match="`generate` of MainThread and `fit` of trainer"):
            next(stream)
        # Neither the tokenizer nor another model is concerned.
        assert lm.tokenizer.encode(TEXTS[0])
    finally:
        waits.go_on.set()
        thread.join(120)
    assert isinstance(first, str) and isinstance(lm.generate(TEXTS[0], max_new_tokens=4), str)


def test_nothing_changes_the_model_while_another_thread_reads(classifier):
    waits = Waits("on_predict_batch_end")
    found = []
    expected = classifier.predict(TEXTS, verbose=0)
    thread = threading.Thread(
        target=lambda: found.append(classifier.predict(TEXTS, verbose=0, callbacks=[waits])),
        name="reader",
    )
    thread.start()
    try:
        assert waits.reached.wait(120)
        with pytest.raises(
            RuntimeError, match=r"`fit` of MainThread and `predict` of reader.*`fit` ch"
        ):
            classifier.fit(TEXTS, [0, 1, 0, 1], verbose=0)
        with pytest.raises(RuntimeError, match="`freeze` of MainThread and `predict` of reader"):
            classifier.freeze(1)
    finally:
        waits.go_on.set()
        thread.join(120)
    np.testing.assert_array_equal(found[0], expected)
    classifier.fit(TEXTS, [0, 1, 0, 1], verbose=0)


def test_calls_within_a_callback_belong_to_fit(lm):
    found = []

    class Use(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            found.append(lm.generate(TEXTS[0], max_new_tokens=2))
            found.append(lm.predict(TEXTS[:1], verbose=0))
            found.append(lm.evaluate(TEXTS[:2], verbose=0))

    lm.fit(TEXTS, epochs=2, verbose=0, callbacks=[Use()])
    assert len(found) >= 6


def test_a_stream_that_is_not_finished_holds_nothing_up(lm):
    whole = lm.generate(TEXTS[0], max_new_tokens=12)
    streams = [lm.generate(TEXTS[0], stream=True, max_new_tokens=12) for _ in range(3)]
    texts = [next(stream) for stream in streams]
    at_once(lambda: lm.set_weights(lm.get_weights()))
    unfinished = list(range(3))
    while unfinished:  # by turns
        for place in list(unfinished):
            piece = next(streams[place], None)
            if piece is None:
                unfinished.remove(place)
            else:
                texts[place] += piece
    assert texts == [whole] * 3


def test_fit_in_one_thread_while_others_read_gives_numbers_or_the_error(lm):
    def read(verb):
        try:
            return verb()
        except RuntimeError as error:
            assert "cannot overlap" in str(error)
            return None

    losses = []
    at_once(
        lambda: read(lambda: losses.extend(lm.fit(TEXTS, epochs=3, verbose=0).history["loss"])),
        *[lambda: [read(lambda: lm.generate(TEXTS[0], max_new_tokens=2)) for _ in range(3)]] * 3,
        *[lambda: [read(lambda: lm.predict(TEXTS, verbose=0)) for _ in range(3)]] * 3,
    )
    assert np.isfinite(lm.predict(TEXTS, verbose=0)).all()
    assert np.isfinite(lm.fit(TEXTS, verbose=0).history["loss"]).all()
