"""A task is a `keras.Model`: Keras's positions, files, copies and batches hold for strings too."""

import copy
import inspect
import pickle
import warnings

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.tasks.data.arguments import split_rows
from keras_transformer.training import lora
from tests.generation.common import on_one
from tests.tasks.common import (
    ENGLISH,
    GERMAN,
    classifier,
    config,
    language_model,
    randomized,
    tokenizer,
    translator,
)

TEXTS = ["a man", "dull", "two dogs", "a film"] * 3  # of one length, for few programs
LABELS = [1, 0, 1, 0] * 3
MIXED = [*ENGLISH, "a", "a man rides a bike . " * 3]  # of several lengths


def numpy(tensor):
    return np.array(keras.ops.convert_to_numpy(tensor))


def masked():
    words = tokenizer(lowercase=True)
    values = config("encoder", words, segment_vocabulary_size=2, max_sequence_length=64)
    return randomized(kt.MaskedLM(kt.models.Encoder(values), words))


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    "verb", ["fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"]
)
def test_positions_are_keras(verb):
    theirs, ours = (inspect.signature(getattr(c, verb)).parameters for c in (keras.Model, kt.Task))
    places = [list(p)[: len(theirs)] for p in (theirs, ours)]
    assert places[0] == places[1]
    for name in list(ours)[len(theirs) :]:
        kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        assert ours[name].kind in kinds
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("make", "data", "metric", "better"),
    [
        (lambda: classifier(num_classes=2), (TEXTS, LABELS), "accuracy", keras.ops.greater),
        (language_model, (TEXTS,), "accuracy", keras.ops.greater),
        (language_model, (TEXTS,), "perplexity", keras.ops.less),
        (
            lambda: kt.QuestionAnswerer(classifier(num_classes=2).backbone, tokenizer()),
            ((["who ?"] * 4, ["a man"] * 4), [(0, "a")] * 4),
            "accuracy",
            keras.ops.greater,
        ),
    ],
)
def test_callbacks_know_which_value_of_a_metric_is_better(make, data, metric, better):
    stopping = keras.callbacks.EarlyStopping(f"val_{metric}")
    make().fit(*data, validation_data=data, verbose=0, callbacks=[stopping])
    assert stopping.monitor_op is better


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("loss", "warned"),
    [
        ("sparse_categorical_crossentropy", True),
        ("SparseCategoricalCrossentropy", True),
        (keras.losses.CategoricalCrossentropy(), True),
        (keras.losses.binary_crossentropy, True),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), False),
        ("mean_squared_error", False),
        (lambda y, logits: keras.ops.mean(logits), False),
    ],
)
def test_a_loss_of_probabilities_is_warned_of(loss, warned):
    task = classifier(num_classes=2)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        task.compile("adam", loss)
    said = [warning for warning in found if "takes probabilities" in str(warning.message)]
    assert len(said) == warned and all(warning.filename == __file__ for warning in said)


@pytest.mark.one_backend
def test_a_file_that_could_not_be_loaded_is_refused(tmp_path):
    for model in (classifier(num_classes=2), classifier(num_classes=2).backbone):
        with pytest.raises(ValueError, match=r"save\('model\.keras'\)"):
            model.save(tmp_path / "model.h5")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel is TensorFlow's")
def test_what_is_exported_gives_the_same(tmp_path):
    """By the arguments of Keras; tests/exporting has what each task gives."""
    import tensorflow as tf

    task = classifier(labels=["bad", "good"])
    task.export(tmp_path / "model", "tf_saved_model", False)
    exported = tf.saved_model.load(tmp_path / "model")  # its functions need it
    found = exported.serve(tf.constant(ENGLISH))
    ours = task.classify(ENGLISH)
    assert [row[0].decode() for row in found["labels"].numpy()] == [label for label, _ in ours]
    np.testing.assert_allclose(found["probabilities"][:, 0], [x for _, x in ours], atol=1e-5)


@pytest.mark.one_backend
def test_arguments_by_place_and_a_split():
    task = classifier(labels=["bad", "good"])
    history = task.fit(TEXTS, LABELS, 4, 2, 0, None, 1 / 3)
    assert history.epoch == [0, 1] and len(history.history["val_loss"]) == 2
    assert int(task.optimizer.iterations) == 2 * 2  # of eight texts, four at a time
    # The last rows are those of the validation, as in Keras.
    expected = task.evaluate(TEXTS[8:], LABELS[8:], 4, 0)
    np.testing.assert_allclose(history.history["val_loss"][-1], expected[0], rtol=1e-5)
    with pytest.raises(ValueError, match="no text for one of the two parts"):
        task.fit(TEXTS[:1], LABELS[:1], validation_split=0.5)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("y", "warned"),
    [
        (["a"] * 5 + ["b"] * 5, "1 of 2 classes are in the validation part. Shuffle the rows"),
        (np.repeat([0, 1, 2], 4), "1 of 3 classes"),
        (["a", "b"] * 5, ""),
        (["a"] * 9, ""),
        ([0.5] * 5 + [1.5] * 5, ""),  # of a regression
        (None, ""),
    ],
)
def test_a_split_of_sorted_rows_warns(y, warned, recwarn):
    texts = [str(number) for number in range(10 if y is None else len(y))]
    split_rows(texts, y, None, 0.2)
    assert [warned in str(one.message) for one in recwarn] == [True] * bool(warned)


def test_a_file_keeps_all(tmp_path):
    task = classifier(labels=["bad", "good"])
    task.compile(
        kt.training.FineTuningAdamW(1e-3, layer_decay=0.9), task.loss, metrics=["accuracy"]
    )
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras")
    task.fit(TEXTS, LABELS, verbose=0, callbacks=[checkpoint])
    expected = task.predict(TEXTS, verbose=0)
    task.save(tmp_path / "m.keras")
    for name in ("m.keras", "best.keras"):
        again = keras.models.load_model(tmp_path / name)
        assert type(again) is kt.TextClassifier and again.labels == ["bad", "good"]
        assert again.optimizer.layer_decay == 0.9
        np.testing.assert_allclose(again.predict(TEXTS, verbose=0), expected, atol=1e-5)
    # It goes on as if nothing had been.
    losses = [t.train_on_batch(TEXTS, LABELS)[0] for t in (task, again) for _ in range(2)]
    np.testing.assert_allclose(losses[:2], losses[2:], rtol=1e-4)


def test_copies_do_not_share_weights():
    task = classifier(labels=["bad", "good"])
    task.compile("adam", task.loss, adversarial_norm=0.1)
    expected = task.predict(TEXTS, verbose=0)
    for other in (copy.deepcopy(task), pickle.loads(pickle.dumps(task))):
        np.testing.assert_allclose(other.predict(TEXTS, verbose=0), expected, atol=1e-6)
        assert other.adversarial_norm == 0.1
        other.output_dense.bias.assign([5.0, -5.0])
    np.testing.assert_array_equal(task.predict(TEXTS, verbose=0), expected)
    fresh = keras.models.clone_model(task)
    assert fresh.get_config() == task.get_config()
    assert np.abs(fresh.predict(TEXTS, verbose=0) - expected).max() > 1e-3


@pytest.mark.one_backend
def test_what_is_frozen_and_adapted_in_a_copy():
    task = classifier(labels=["bad", "good"])
    task.freeze(layers=1)
    again = copy.deepcopy(task)
    assert [v.path for v in again.trainable_variables] == [v.path for v in task.trainable_variables]
    task.freeze(layers=0, embeddings=False)
    task.enable_lora(2)
    for layer in lora.adapted_layers(task.backbone):
        layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape, "float32"))
    again = copy.deepcopy(task)
    np.testing.assert_allclose(
        again.predict(TEXTS, verbose=0), task.predict(TEXTS, verbose=0), atol=1e-5
    )
    assert [v.path for v in again.trainable_variables] == [v.path for v in task.trainable_variables]


@pytest.mark.one_backend
def test_a_generating_task_and_its_sampler_in_a_copy():
    task = language_model()
    sampler = kt.generation.BeamSearch(num_beams=2, length_penalty=0.5)
    task.compile(task.optimizer, task.loss, sampler=sampler)
    expected = task.generate(["a man", "two dogs"], max_new_tokens=4)
    again = pickle.loads(pickle.dumps(task))
    assert again.sampler == sampler
    assert again.generate(["a man", "two dogs"], max_new_tokens=4) == expected
    draft = kt.generation.Speculative(draft=task.backbone, num_draft_tokens=2)
    task.compile(task.optimizer, task.loss, sampler=draft)
    again = copy.deepcopy(task)
    assert again.sampler.num_draft_tokens == 2 and again.sampler.draft is not task.backbone
    for old, new in zip(task.backbone.weights, again.sampler.draft.weights, strict=True):
        np.testing.assert_array_equal(numpy(old), numpy(new))
    assert again.generate(["a man"], max_new_tokens=3) == task.generate(["a man"], max_new_tokens=3)


@pytest.mark.backend_independent
def test_every_sampler_has_a_config():
    for name in ("greedy", "beam", "random", "top_k", "top_p", "contrastive", "speculative"):
        sampler = kt.generation.samplers.samplers.get(name)
        config = keras.saving.serialize_keras_object(sampler)
        assert keras.saving.deserialize_keras_object(config) == sampler


@pytest.mark.backend_independent
def test_a_hostile_config_writes_no_file_elsewhere():
    values = classifier(labels=["bad", "good"]).get_config()
    values["tokenizer"]["../outside.json"] = "e30="
    with pytest.raises(ValueError, match="outside"):
        kt.TextClassifier.from_config(values)


@pytest.mark.one_backend
def test_compile_keeps_what_it_is_not_told():
    task = classifier(labels=["bad", "good"])
    task.compile("adam", task.loss, adversarial_norm=0.2)
    task.compile("sgd", task.loss)
    assert task.adversarial_norm == 0.2
    task.compile("sgd", task.loss, adversarial_norm=0)
    assert task.adversarial_norm == 0
    task = language_model()
    task.compile("adam", task.loss, sampler="beam", pack_weights=True)
    task.compile("sgd", task.loss)
    assert isinstance(task.sampler, kt.generation.BeamSearch) and task.pack_weights
    task.compile("sgd", task.loss, sampler="greedy", pack_weights=False)
    assert task.sampler == kt.generation.Greedy() and not task.pack_weights


@pytest.mark.one_backend
@pytest.mark.parametrize("make", [classifier, language_model, masked])
def test_compile_keeps_the_optimizer(make):
    """Not Keras's default, which is not that of the task."""
    task = make(**({"num_classes": 2} if make is classifier else {}))
    optimizer, loss, metrics = task.optimizer, task.loss, task.metrics_names
    task.compile(jit_compile=False)
    assert (task.optimizer, task.loss, task.metrics_names) == (optimizer, loss, metrics)
    task.compile(optimizer="auto", loss="auto", weighted_metrics="auto")  # as in KerasHub
    assert (task.optimizer, task.loss, task.metrics_names) == (optimizer, loss, metrics)
    task.compile("sgd", task.loss)
    assert isinstance(task.optimizer, keras.optimizers.SGD)
    task.compile(loss=task.loss)
    assert isinstance(task.optimizer, keras.optimizers.SGD)


@pytest.mark.parametrize("make", [classifier, language_model, on_one(masked)])
def test_outputs_for_batches_are_in_the_order_of_the_texts(make):
    task = make(labels=["bad", "good"]) if make is classifier else make()
    options = {"masked": False} if make is masked else {}
    expected = task.predict(MIXED, verbose=0)
    dataset = task.make_dataset(MIXED, shuffle=True, seed=3, batch_size=4, **options)
    for _ in range(2):  # epochs, whose order differs
        found = task.predict(dataset, verbose=0)
        length = min(found.shape[1], expected.shape[1])  # padded to another one on PyTorch
        np.testing.assert_allclose(found[:, :length], expected[:, :length], atol=2e-4)
    assert len(task.predict(dataset, verbose=0, steps=1)) == 4
    np.testing.assert_allclose(
        numpy(task.predict_on_batch(MIXED))[:, :1], expected[:, :1], atol=2e-4
    )


@pytest.mark.parametrize("make", [classifier, language_model, on_one(translator), on_one(masked)])
def test_steps_on_one_batch_of_strings(make):
    keras.utils.set_random_seed(0)
    task = make(labels=["bad", "good"]) if make is classifier else make()
    data = {classifier: (TEXTS, LABELS), translator: (ENGLISH[:3], GERMAN)}.get(make, (TEXTS,))
    task.optimizer.learning_rate = 1e-2
    first = task.test_on_batch(*data, return_dict=True)
    reported = dict(zip(("loss", "compile_metrics"), task.evaluate(*data, verbose=0), strict=False))
    np.testing.assert_allclose(float(first["loss"]), reported["loss"], rtol=1e-3)
    for _ in range(20):
        task.train_on_batch(*data)
    assert int(task.optimizer.iterations) == 20
    assert float(task.test_on_batch(*data, return_dict=True)["loss"]) < float(first["loss"])
    if make is classifier:
        with pytest.raises(ValueError, match="learns from labels"):
            task.train_on_batch(TEXTS)


def test_a_frozen_backbone_after_a_fit(backend):
    task = classifier(labels=["bad", "good"])
    task.fit(TEXTS, LABELS, verbose=0)
    expected = task.predict(TEXTS, verbose=0)
    task.backbone.trainable = False
    np.testing.assert_allclose(task.predict(TEXTS, verbose=0), expected, atol=1e-5)
    if backend == "jax":  # whose optimizer is built for the weights there were
        with pytest.raises(ValueError, match="the optimizer was built with"):
            task.fit(TEXTS, LABELS, verbose=0)
    task.compile("adam", task.loss)
    before = [numpy(v) for v in task.backbone.weights]
    task.fit(TEXTS, LABELS, verbose=0)
    for old, new in zip(before, task.backbone.weights, strict=True):
        np.testing.assert_array_equal(old, numpy(new))
    again = copy.deepcopy(task)
    assert not again.backbone.trainable and len(again.trainable_variables) == 2


@pytest.mark.one_backend
def test_a_loss_of_ones_own_gets_logits():
    shapes = []

    class Mine(kt.CausalLM):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            shapes.append(tuple(y_pred.shape))
            return super().compute_loss(x, y, y_pred, sample_weight, training=training)

    task = language_model()
    mine = Mine(task.backbone, task.tokenizer)
    np.testing.assert_allclose(
        mine.evaluate(TEXTS, verbose=0), task.evaluate(TEXTS, verbose=0), rtol=1e-4
    )
    mine.fit(TEXTS, verbose=0)
    assert {shape[-1] for shape in shapes} == {task.backbone.config.vocabulary_size}


def test_a_compiled_backbone_in_a_file(tmp_path):
    backbone = classifier(labels=["bad", "good"]).backbone
    backbone.family = "bert"
    backbone.compile("sgd", "mse")
    backbone.save(tmp_path / "b.keras")
    again = keras.models.load_model(tmp_path / "b.keras")
    assert again.compiled and again.family == "bert"
    inputs = {"token_ids": np.array([[5, 6, 7]])}
    np.testing.assert_allclose(numpy(again(inputs)), numpy(backbone(inputs)), atol=1e-6)
