"""Programs of coming batches are compiled in other threads, on JAX; what is computed stays."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.kernels.jax_step_programs import AheadOfTime, StepPrograms
from keras_transformer.kernels.programs import PROGRAMS

ON_JAX = keras.backend.backend() == "jax"
if ON_JAX:
    import jax

    ON_JAX = jax.default_backend() == "cpu"
TEXTS = [" ".join(["never dull"] * count) for count in (1, 2, 3, 8, 9, 10, 20, 21, 22, 30, 31)]
LABELS = [0, 1] * 5 + [0]
pytestmark = pytest.mark.one_backend("jax")


@pytest.fixture(scope="module")
def tokenizer():
    return kt.Tokenizer.train(TEXTS, "wordpiece", vocabulary_size=30)


@pytest.fixture
def compiled_by(monkeypatch):
    """The functions of `AheadOfTime` that were made."""
    made = []
    original = AheadOfTime.__init__

    def keep(self, *args, **options):
        original(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(AheadOfTime, "__init__", keep)
    return made


def classifier(tokenizer, **options):
    keras.utils.set_random_seed(0)
    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=tokenizer.vocabulary_size, hidden_dim=8, num_layers=1,
        num_heads=2, intermediate_dim=8, max_sequence_length=64, dropout=0.1,
    )  # fmt: skip
    task = kt.TextClassifier(kt.models.Encoder(config), tokenizer, num_classes=2)
    task.compile("adam", task.loss, metrics=["accuracy"], **options)
    return task


def fit(task, data, **options):
    return task.fit(data, epochs=2, verbose=0, **options).history


def data_of(task, texts=TEXTS, labels=LABELS, **options):
    options = {"shuffle": True, "batch_size": 2, "multiple": 4, "max_buckets": 6, **options}
    return task.make_dataset(texts, labels, **options)


# Keras has no `steps_per_execution` on PyTorch.
TWICE = [] if keras.backend.backend() == "torch" else [{"steps_per_execution": 2}]


@pytest.mark.parametrize("options", [{}, *TWICE], ids=str)
def test_the_history_is_what_it_is_without(tokenizer, compiled_by, monkeypatch, options):
    task = classifier(tokenizer, **options)
    ahead = fit(task, data_of(task), validation_data=(TEXTS, LABELS))
    assert len(compiled_by) == (2 if ON_JAX else 0)  # of training and of evaluation
    monkeypatch.setattr(kt.TextClassifier, "_expect", lambda *_, **__: None)
    task = classifier(tokenizer, **options)
    without = fit(task, data_of(task), validation_data=(TEXTS, LABELS))
    assert set(ahead) == set(without) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    for name, values in ahead.items():
        np.testing.assert_array_equal(values, without[name], name)


def test_each_shape_is_compiled_once_and_ahead(tokenizer, compiled_by, monkeypatch):
    ahead = []
    original = AheadOfTime._compile_ahead

    def count(self, values, signature):
        ahead.append(signature)
        original(self, values, signature)

    monkeypatch.setattr(AheadOfTime, "_compile_ahead", count)
    task = classifier(tokenizer)
    data = data_of(task)
    shapes = {data[place][0]["token_ids"].shape for place in range(len(data))}
    assert len(shapes) > 3
    fit(task, data)
    if not ON_JAX:
        assert not compiled_by
        return
    (step,) = compiled_by
    assert len(PROGRAMS.keys(step)) == len(shapes) and not step._pending
    assert len(set(ahead)) == len(ahead) == len(shapes)  # none when it was needed already
    # Data of other shapes: more programs, and again ahead.
    other = data_of(task, [text * 2 for text in TEXTS[:5]], LABELS[:5], batch_size=3)
    fit(task, other)
    assert len(set(ahead)) == len(ahead) == len(PROGRAMS.keys(step)) > len(shapes)


@pytest.mark.each_backend
def test_what_is_no_such_dataset_is_compiled_when_it_comes(tokenizer, compiled_by):
    task = classifier(tokenizer)
    x, y = data_of(task)[0]
    task.fit(x, y, epochs=1, verbose=0)
    task.train_on_batch(x, y)
    assert len(compiled_by) == ON_JAX
    for step in compiled_by:
        assert 1 <= len(PROGRAMS.keys(step)) <= 2 and step._threads is None


@pytest.mark.each_backend
def test_an_error_while_tracing_comes_out_of_fit(tokenizer):
    task = classifier(tokenizer)
    task.compile("adam", lambda y, logits: logits.no_such_attribute)
    with pytest.raises(Exception, match="no_such_attribute"):
        task.fit(data_of(task), verbose=0)


@pytest.mark.skipif(not ON_JAX, reason="barriers are dropped on a CPU alone")
def test_what_is_computed_again_is_not_kept():
    """XLA for a CPU merges it with what was computed before, unless it is told not to."""

    def layer(x, w):
        for _ in range(4):
            x = jax.numpy.tanh(x @ w)
        return x

    def bytes_of(layer):
        def loss(w, x):
            for i in range(8):
                x = layer(x, w + i)
            return jax.numpy.sum(x**2)

        programs = StepPrograms(jax.grad(loss))
        lowered = programs._jitted().lower(np.zeros((64, 64)), np.zeros((1024, 64)))
        return lowered.compile().memory_analysis().temp_size_in_bytes

    assert bytes_of(jax.checkpoint(layer)) < 0.5 * bytes_of(layer)
