"""TextClassifier: strings, pairs, arrays and datasets through Keras's own verbs."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.generation.common import compiled
from tests.tasks.common import classifier, config, predictions_alone, randomized, tokenizer

pytestmark = pytest.mark.one_backend

TEXTS = [
    "a warm film",
    "dull",
    "funny and warm from start to end , and never dull",
    "a dull film from start to end",
    "warm and funny",
    "never funny",
] * 4
LABELS = [1, 0, 1, 0, 1, 0] * 4


@pytest.fixture(scope="module")
def task():
    return classifier(num_classes=2)


def test_a_model_of_few_positions():
    """Fewer than the tokens by which the buckets are chosen."""
    words = tokenizer(lowercase=True)
    few = config("encoder", words, position="learned", max_sequence_length=6)
    kt.TextClassifier(kt.models.Encoder(few), words, num_classes=2).fit(TEXTS, LABELS, verbose=0)


@pytest.mark.each_backend
def test_predict_keeps_the_order(task):
    """Batches are sorted by length: the outputs are not."""
    outputs = task.predict(TEXTS[:6], batch_size=2, verbose=0)
    np.testing.assert_allclose(outputs, predictions_alone(task, TEXTS[:6]), atol=1e-5)
    array = task.predict(np.array(TEXTS[:6]), batch_size=2, verbose=0)
    np.testing.assert_array_equal(array, outputs)
    objects = task.predict(np.array(TEXTS[:6], dtype=object), batch_size=2, verbose=0)
    np.testing.assert_array_equal(objects, outputs)


@pytest.mark.each_backend
def test_fit_on_strings_learns():
    task = classifier(num_classes=2)
    before = task.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)
    task.compile(
        keras.optimizers.Adam(3e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )  # fmt: skip
    history = task.fit(
        TEXTS, LABELS, batch_size=8, epochs=12, verbose=0, validation_data=(TEXTS[:6], LABELS[:6])
    ).history
    after = task.evaluate(np.array(TEXTS), np.array(LABELS), verbose=0, return_dict=True)
    assert len(history["loss"]) == 12 and after["loss"] < before["loss"]
    assert after["accuracy"] == history["val_accuracy"][-1] == 1.0
    labels = [label for label, _ in task.classify(TEXTS[:6])]
    assert labels == [str(label) for label in LABELS[:6]]


def test_pairs():
    task = classifier(num_classes=3)
    first, second = TEXTS[:6], TEXTS[1:7]
    outputs = task.predict((first, second), verbose=0)
    ids, segments = task.tokenizer.encode_batch_with_segments(first, second)
    for row in (0, 2):
        inputs = {"token_ids": np.array([ids[row]]), "segment_ids": np.array([segments[row]])}
        assert 1 in segments[row]
        expected = keras.ops.convert_to_numpy(task(inputs))
        np.testing.assert_allclose(outputs[row], expected[0], atol=1e-5)
    assert np.abs(outputs - task.predict((second, first), verbose=0)).max() > 1e-3
    history = task.fit((first, second), [0, 1, 2] * 2, epochs=1, verbose=0).history
    assert np.isfinite(history["loss"][0])


def test_labels_by_name():
    task = classifier(labels=["bad", "good"])
    names = ["bad", "good"]
    by_name = task.evaluate(TEXTS[:6], [names[i] for i in LABELS[:6]], verbose=0)
    by_number = task.evaluate(TEXTS[:6], LABELS[:6], verbose=0)
    array = np.array([names[i] for i in LABELS[:6]], dtype=object)
    assert by_name == by_number == task.evaluate(TEXTS[:6], array, verbose=0)
    (label, probability), *_ = task.classify(TEXTS[:1])
    logits = task.predict(TEXTS[:1], verbose=0)[0]
    assert label == names[logits.argmax()]
    assert probability == pytest.approx(1 / (1 + np.exp(-abs(logits[0] - logits[1]))), abs=1e-6)


def arrays(task, texts=TEXTS[:6]):
    rows = task.tokenizer.encode_batch(texts)
    ids = np.zeros((len(rows), max(map(len, rows))), "int32")
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    return {"token_ids": ids, "padding_mask": ids != 0}


def test_arrays_and_datasets(task):
    outputs = task.predict(TEXTS[:6], verbose=0)
    inputs, labels = arrays(task), np.array(LABELS[:6])
    np.testing.assert_allclose(task.predict(inputs, verbose=0), outputs, atol=1e-5)
    expected = task.evaluate(TEXTS[:6], LABELS[:6], verbose=0)
    np.testing.assert_allclose(task.evaluate(inputs, labels, verbose=0), expected, rtol=1e-5)
    dataset = task.make_dataset(TEXTS[:6], LABELS[:6], batch_size=6)
    assert isinstance(dataset, keras.utils.PyDataset)
    np.testing.assert_allclose(task.evaluate(dataset, verbose=0), expected, rtol=1e-5)


def test_fit_of_arrays_and_datasets():
    task = classifier(num_classes=2)
    inputs, labels = arrays(task), np.array(LABELS[:6])
    task.fit(inputs, labels, validation_data=(inputs, labels), batch_size=6, verbose=0)
    task.fit(task.make_dataset(TEXTS[:6], LABELS[:6], batch_size=6), verbose=0)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        dataset = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(6)
        task.fit(dataset, validation_data=dataset, verbose=0)
        assert task.predict(dataset, verbose=0).shape == (6, 2)


def test_token_budget_and_weights(task):
    weights = [1.0, 0.0] * 3
    kept = task.evaluate(TEXTS[:6:2], LABELS[:6:2], verbose=0)
    found = task.evaluate(TEXTS[:6], LABELS[:6], sample_weight=weights, verbose=0)
    # Keras divides by the number of rows, not by the sum of the weights.
    assert found[0] == pytest.approx(kept[0] / 2, rel=1e-4)
    shapes = {
        tuple(x["token_ids"].shape) for x, _ in task.make_dataset(TEXTS, LABELS, batch_tokens=64)
    }
    assert len(shapes) > 1 and all(rows * length <= 64 for rows, length in shapes)
    assert max(length for _, length in shapes) < task.backbone.config.max_sequence_length
    history = classifier(num_classes=2).fit(TEXTS, LABELS, batch_tokens=64, verbose=0).history
    assert np.isfinite(history["loss"]).all()


@pytest.mark.each_backend
def test_it_is_a_keras_model(tmp_path, task):
    lines = []
    task.summary(print_fn=lines.append)
    assert "encoder" in "\n".join(lines)
    assert len(task.weights) == len(task.backbone.weights) + 2
    assert [variable.path for variable in task.weights[-2:]] == ["output/kernel", "output/bias"]
    other = classifier(num_classes=2)
    other.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    path = str(tmp_path / "best.weights.h5")
    callbacks = [
        keras.callbacks.ModelCheckpoint(path, save_weights_only=True, monitor="val_loss"),
        keras.callbacks.EarlyStopping("val_loss", patience=0, start_from_epoch=1, min_delta=1e9),
    ]
    data = {"x": TEXTS[:6], "y": LABELS[:6], "validation_data": (TEXTS[:6], LABELS[:6])}
    history = other.fit(**data, epochs=5, verbose=0, callbacks=callbacks).history
    assert 1 < len(history["loss"]) < 5
    restored = classifier(num_classes=2, seed=1)
    restored.load_weights(path)
    np.testing.assert_allclose(
        restored.predict(TEXTS[:6], verbose=0), other.predict(TEXTS[:6], verbose=0), atol=1e-6
    )


@pytest.mark.parametrize("dtype, tolerance", [(None, 0), ("float16", 5e-3)])
def test_preset_round_trip(tmp_path, dtype, tolerance):
    task = classifier(labels=["bad", "good", "mixed"], dropout=0.2)
    task.save_to_preset(tmp_path, dtype=dtype)
    loaded = kt.Task.from_preset(tmp_path)
    assert type(loaded) is kt.TextClassifier
    assert (loaded.labels, loaded.dropout) == (task.labels, 0.2)
    assert loaded.compiled and loaded.weights[0].dtype == "float32"
    expected = task.predict(TEXTS[:6], verbose=0)
    found = loaded.predict(TEXTS[:6], verbose=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def states_of(task, inputs):
    return keras.ops.convert_to_numpy(compiled(task.backbone, task.backbone)(inputs))


@pytest.mark.parametrize(
    "module, name, activation",
    [
        ("roberta", "RobertaClassificationHead", "tanh"),
        ("electra", "ElectraClassificationHead", "gelu"),
    ],
)
def test_hidden_layer_of_roberta_and_electra(module, name, activation):
    """Transformers' head on the same states with the same weights; the pooler is not used."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    words = tokenizer(lowercase=True)
    backbone = kt.models.Encoder(config("encoder", words, pooler=True))
    task = randomized(
        kt.TextClassifier(backbone, words, num_classes=3, hidden_activation=activation)
    )
    assert [*task.head] == ["hidden/kernel", "hidden/bias", "output/kernel", "output/bias"]
    assert task.task_values()["hidden_activation"] == activation
    settings = transformers.RobertaConfig(hidden_size=16, num_labels=3)
    settings.summary_activation = activation
    modeling = getattr(transformers.models, module)
    head = getattr(getattr(modeling, f"modeling_{module}"), name)(settings).eval()
    for layer, linear in (("hidden", head.dense), ("output", head.out_proj)):
        kernel, bias = task.head[f"{layer}/kernel"], task.head[f"{layer}/bias"]
        linear.weight.data = torch.tensor(keras.ops.convert_to_numpy(kernel).T.copy())
        linear.bias.data = torch.tensor(keras.ops.convert_to_numpy(bias).copy())
    inputs = arrays(task)
    with torch.no_grad():
        expected = head(torch.tensor(states_of(task, inputs))).numpy()
    np.testing.assert_allclose(task.predict(inputs, verbose=0), expected, atol=1e-5)
    np.testing.assert_allclose(task.predict(TEXTS[:6], verbose=0), expected, atol=1e-5)


@pytest.mark.each_backend
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_mean_pooling(kind, tmp_path):
    words = tokenizer(lowercase=True)
    backbone = kt.models.build_backbone(config(kind, words, pooler=kind == "encoder"))
    task = randomized(kt.TextClassifier(backbone, words, labels=["bad", "good"], pooling="mean"))
    inputs = arrays(task)
    mask = inputs["padding_mask"][..., None]
    mean = (states_of(task, inputs) * mask).sum(axis=1) / mask.sum(axis=1)
    head = [keras.ops.convert_to_numpy(weight) for weight in task.output_dense.get_weights()]
    expected = mean @ head[0] + (head[1] if kind == "encoder" else 0)
    np.testing.assert_allclose(task.predict(TEXTS[:6], verbose=0), expected, atol=1e-5)
    task.save_to_preset(tmp_path)
    again = kt.TextClassifier.from_preset(tmp_path)
    assert again.pooling == "mean"
    np.testing.assert_allclose(again.predict(TEXTS[:6], verbose=0), expected, atol=1e-5)


@pytest.mark.each_backend
def test_the_mean_of_a_hidden_layer(tmp_path):
    words = tokenizer(lowercase=True)
    backbone = kt.models.build_backbone(config("encoder", words, pooler=True))
    options = {"hidden_activation": "tanh", "pooling": "mean_hidden"}
    task = randomized(kt.TextClassifier(backbone, words, num_classes=3, **options))
    inputs = arrays(task)
    head = {name: keras.ops.convert_to_numpy(weight) for name, weight in task.head.items()}
    hidden = np.tanh(states_of(task, inputs) @ head["hidden/kernel"] + head["hidden/bias"])
    mask = inputs["padding_mask"][..., None]
    mean = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
    expected = mean @ head["output/kernel"] + head["output/bias"]
    np.testing.assert_allclose(task.predict(TEXTS[:6], verbose=0), expected, atol=1e-5)
    task.save_to_preset(tmp_path)
    again = kt.TextClassifier.from_preset(tmp_path)
    np.testing.assert_allclose(again.predict(TEXTS[:6], verbose=0), expected, atol=1e-5)
    with pytest.raises(ValueError, match="pooling='mean_hidden' needs a hidden layer"):
        kt.TextClassifier(backbone, num_classes=3, pooling="mean_hidden")


def test_no_family_has_a_classifier_of_the_mean(tmp_path):
    task = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2, pooling="mean")
    with pytest.raises(ValueError, match="bert checkpoint cannot express pooling='mean'"):
        kt.export_to_huggingface(task, tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


@pytest.mark.each_backend
def test_a_decoder_reads_the_last_token():
    words = tokenizer("bpe", add_prefix_space=True)
    backbone = kt.models.Decoder(config("decoder", words, position="rotary"))
    task = randomized(kt.TextClassifier(backbone, words, labels=["bad", "good"]))
    assert [*task.head] == ["output/kernel"]
    kernel = keras.ops.convert_to_numpy(task.head["output/kernel"])
    for text, found in zip(TEXTS[:4], task.predict(TEXTS[:4], verbose=0), strict=True):
        alone = {"token_ids": np.array([words.encode(text)])}
        expected = states_of(task, alone)[0, -1] @ kernel
        np.testing.assert_allclose(found, expected, atol=1e-5)
    ids = np.array([[0, 0, 9, 300, 7], [9, 300, 7, 0, 0], [0, 9, 300, 7, 0]])  # any padding
    inputs = {"token_ids": ids, "padding_mask": ids != 0}
    states = states_of(task, inputs)
    expected = np.stack([states[0, 4], states[1, 2], states[2, 3]]) @ kernel
    np.testing.assert_allclose(task.predict(inputs, verbose=0), expected, atol=1e-5)
    assert task.classify(TEXTS[:1])[0][0] in ("bad", "good")


def test_a_decoder_learns():
    words = tokenizer("bpe", add_prefix_space=True)
    task = kt.TextClassifier(kt.models.Decoder(config("decoder", words)), words, num_classes=2)
    task.compile(keras.optimizers.Adam(1e-2), task.loss, metrics=["accuracy"])
    history = task.fit(TEXTS[:6], LABELS[:6], epochs=10, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]


def test_bad_hidden_activation():
    with pytest.raises(ValueError, match="Unknown activation 'swish2'. Known are: 'relu'"):
        classifier(num_classes=2, hidden_activation="swish2")
    with pytest.raises(ValueError, match="`pooling` must be one of 'mean', 'first'.* 'middle'"):
        classifier(num_classes=2, pooling="middle")


def test_task_from_preset_is_of_the_wanted_kind(tmp_path):
    classifier(num_classes=2).save_to_preset(tmp_path)
    with pytest.raises(
        ValueError,
        match="names the task 'TextClassifier'.*CausalLM, Sampled.*Seq2SeqLM",
    ):
        kt.tasks.text.language_model.LanguageModel.from_preset(tmp_path)


@pytest.mark.each_backend
def test_trains_under_remat_with_dropout():
    """On JAX the dropout's state must leave the recomputed part, or its tracer leaks."""
    losses = []
    for mode in (None, "full"):
        keras.utils.set_random_seed(3)
        with keras.RematScope(mode=mode):
            words = tokenizer(lowercase=True)
            backbone = kt.models.Encoder(config("encoder", words, dropout=0.2, pooler=True))
            task = randomized(kt.TextClassifier(backbone, words, num_classes=2))
        history = task.fit(TEXTS, LABELS, epochs=2, shuffle=False, verbose=0).history
        losses.append(history["loss"])
    assert losses[0][1] != losses[0][0]
    if keras.backend.backend() != "torch":  # whose dropout draws from another place of the stream
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
