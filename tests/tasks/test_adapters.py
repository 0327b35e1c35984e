"""Low-rank adaptation: what is trained, what is saved, and what the sum computes."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.support.files import write_safetensors
from keras_transformer.support.scratch import PathLock
from keras_transformer.training import lora

pytestmark = pytest.mark.one_backend

TEXTS = ["a man rides a bike .", "two dogs run on the grass .", "nobody is here ."] * 16
LABELS = np.array([0, 1, 2] * 16)


@pytest.fixture(scope="module")
def tokenizer():
    return kt.Tokenizer.train(TEXTS, kind="wordpiece", vocabulary_size=100)


def make(tokenizer, hidden_dim=16, num_classes=3, seed=0):
    keras.utils.set_random_seed(seed)
    config = kt.TransformerConfig(
        kind="encoder",
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=hidden_dim,
        num_layers=2,
        num_heads=2,
        intermediate_dim=32,
    )
    classifier = kt.TextClassifier(kt.models.Encoder(config), tokenizer, num_classes=num_classes)
    classifier.compile(keras.optimizers.Adam(0.01), classifier.loss, weighted_metrics=["accuracy"])
    return classifier


def arrays(variables):
    return [ops.convert_to_numpy(variable) for variable in variables]


@pytest.mark.each_backend
def test_adapters_alone_are_trained(tokenizer):
    task = make(tokenizer)
    before = task.predict(TEXTS[:6], verbose=0)
    frozen = {
        v.path: array
        for v, array in zip(task.backbone.weights, arrays(task.backbone.weights), strict=True)
    }
    task.enable_lora(rank=2, alpha=4)
    np.testing.assert_array_equal(task.predict(TEXTS[:6], verbose=0), before)
    inside = {id(variable) for variable in task.backbone.variables}
    trained = [v for v in task.trainable_variables if id(v) in inside]
    assert [tuple(v.shape) for v in trained] == [(16, 2), (2, 16)] * 4
    history = task.fit(TEXTS, LABELS, epochs=8, seed=0, verbose=0).history
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    for variable in task.backbone.weights:
        if variable.path in frozen:
            np.testing.assert_array_equal(ops.convert_to_numpy(variable), frozen[variable.path])
    assert all(np.abs(array).max() > 0 for array in arrays(trained))


def test_a_task_that_was_trained_can_be_adapted(tokenizer):
    task = make(tokenizer)
    task.fit(TEXTS, LABELS, epochs=1, verbose=0)
    task.enable_lora(rank=2)
    first = task.fit(TEXTS, LABELS, epochs=1, verbose=0).history["loss"][0]
    assert np.isfinite(first)
    task.merge_lora()
    assert np.isfinite(task.fit(TEXTS, LABELS, epochs=1, verbose=0).history["loss"][0])


@pytest.mark.each_backend
def test_the_merged_model_computes_the_same_and_is_a_preset(tokenizer, tmp_path):
    task = make(tokenizer)
    task.backbone.token_embedding.embeddings.trainable = False  # by the user
    paths = [variable.path for variable in task.weights]
    trainable = [variable.path for variable in task.trainable_variables]
    task.enable_lora(rank=2, alpha=6, targets=["query", "key", "output"])
    task.fit(TEXTS, LABELS, epochs=3, verbose=0)
    with pytest.raises(ValueError, match="Call the task's `merge_lora` first"):
        task.save_to_preset(tmp_path / "preset")
    expected = task.predict(TEXTS[:6], verbose=0)
    task.merge_lora()
    np.testing.assert_allclose(task.predict(TEXTS[:6], verbose=0), expected, rtol=0, atol=1e-5)
    assert [variable.path for variable in task.weights] == paths
    assert [variable.path for variable in task.trainable_variables] == trainable
    task.save_to_preset(tmp_path / "preset")
    loaded = kt.TextClassifier.from_preset(tmp_path / "preset")
    np.testing.assert_allclose(loaded.predict(TEXTS[:6], verbose=0), expected, rtol=0, atol=1e-5)


def test_adapters_are_saved_alone(tokenizer, tmp_path):
    task = make(tokenizer)
    task.enable_lora(rank=2, alpha=8)
    task.fit(TEXTS, LABELS, epochs=3, verbose=0)
    expected = task.predict(TEXTS[:6], verbose=0)
    task.save_adapter(tmp_path / "bikes.safetensors")
    assert (tmp_path / "bikes.safetensors").stat().st_size < 12_000
    other = make(tokenizer)
    assert np.abs(other.predict(TEXTS[:6], verbose=0) - expected).max() > 1e-3
    other.load_adapter(tmp_path / "bikes.safetensors")
    np.testing.assert_allclose(other.predict(TEXTS[:6], verbose=0), expected, rtol=0, atol=1e-5)
    # Another set of adapters of the same kind on top.
    task.fit(TEXTS, LABELS, epochs=1, verbose=0)
    task.save_adapter(tmp_path / "more.safetensors")
    other.load_adapter(tmp_path / "more.safetensors")
    np.testing.assert_allclose(
        other.predict(TEXTS[:6], verbose=0), task.predict(TEXTS[:6], verbose=0), rtol=0, atol=1e-5
    )


def test_adapters_of_another_model_change_nothing(tokenizer, tmp_path):
    task = make(tokenizer)
    task.enable_lora(rank=2)
    path = tmp_path / "adapter.safetensors"
    task.save_adapter(path)
    for values, message in (
        ({"hidden_dim": 32}, r"has the shape \(16, 2\) in the file and \(32, 2\) in"),
        (
            {"num_classes": 4},
            r"'head/.*' has the shape \(.*3.*\) in the file and \(.*4.*\) in",
        ),
    ):
        other = make(tokenizer, **values)
        before = other.predict(TEXTS[:6], verbose=0)
        with pytest.raises(ValueError, match=message):
            other.load_adapter(path)
        np.testing.assert_allclose(other.predict(TEXTS[:6], verbose=0), before, rtol=0, atol=1e-6)
        other.enable_lora(rank=1)


@pytest.mark.each_backend
def test_generating_with_adapters():
    config = kt.TransformerConfig(
        kind="decoder",
        vocabulary_size=50,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=32,
    )
    lm = kt.CausalLM(kt.models.Decoder(config))
    lm.enable_lora(rank=2)
    random = np.random.default_rng(0)
    for layer in lora.adapted_layers(lm.backbone):
        layer.lora_kernel_b.assign(random.normal(size=layer.lora_kernel_b.shape))
    adapted = lm.generate([[3, 4, 5]], max_new_tokens=8)
    lm.merge_lora()
    assert lm.generate([[3, 4, 5]], max_new_tokens=8) == adapted


@pytest.mark.parametrize(
    "values, message",
    [
        ({"rank": 0}, "`rank` must be an integer of at least 1, received 0"),
        ({"rank": 2.0}, "received 2.0"),
        ({"rank": 2, "alpha": -1}, "`alpha` must be a number above 0"),
        ({"rank": 2, "targets": ["querry"]}, "must be a list of dense layers.*query"),
        ({"rank": 2, "targets": []}, "received \\[\\]"),
    ],
)
def test_bad_values(tokenizer, values, message):
    with pytest.raises(ValueError, match=message):
        make(tokenizer).enable_lora(**values)


def test_bad_files(tokenizer, tmp_path):
    task = make(tokenizer)
    for call in (task.merge_lora, lambda: task.save_adapter(tmp_path / "x")):
        with pytest.raises(ValueError, match="call `enable_lora` first"):
            call()
    with pytest.raises(FileNotFoundError, match="There is no file"):
        task.load_adapter(tmp_path / "nothing.safetensors")
    (tmp_path / "cut").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(ValueError, match="cut"):
        task.load_adapter(tmp_path / "cut")
    task.save_to_preset(tmp_path / "preset")
    with pytest.raises(ValueError, match="holds no adapters"):
        task.load_adapter(tmp_path / "preset" / "model.safetensors")
    task.enable_lora(2)
    with pytest.raises(ValueError, match="adapted already"):
        task.enable_lora(2)


def test_files_that_cannot_be_written_or_are_foreign(tokenizer, tmp_path):
    task = make(tokenizer)
    odd = {"backbone/query/lora_kernel_a": np.zeros(3, "float32"), "alpha": np.ones(1, "float32")}
    write_safetensors(tmp_path / "odd", odd)
    with pytest.raises(ValueError, match="odd holds no adapters"):
        task.load_adapter(tmp_path / "odd")
    odd["backbone/nothing/lora_kernel_a"] = odd.pop("backbone/query/lora_kernel_a")[:, None]
    write_safetensors(tmp_path / "odd", odd)
    with pytest.raises(ValueError, match="odd does not fit this model: `targets` must be a list"):
        task.load_adapter(tmp_path / "odd")
    task.enable_lora(2)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="it is a folder. Name a file"):
        task.save_adapter(tmp_path / "folder")
    with pytest.raises(OSError, match="odd/x could not be written"):
        task.save_adapter(tmp_path / "odd" / "x")
    lock = PathLock(tmp_path / "adapter")
    assert lock.acquire()
    with pytest.raises(OSError, match="is being written by another process"):
        task.save_adapter(tmp_path / "adapter")
    lock.release()
    task.save_adapter(tmp_path / "adapter")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "folder", "odd"]


def test_files_of_keras_keep_the_adapters(tokenizer, tmp_path):
    task = make(tokenizer)
    task.backbone.token_embedding.embeddings.trainable = False  # by the user
    task.enable_lora(rank=2, alpha=6, targets=["query", "output"])
    task.fit(TEXTS, LABELS, epochs=2, verbose=0)
    expected = task.predict(TEXTS[:6], verbose=0)
    matrices = arrays(lora.adapters(task.backbone).values())
    assert all(np.abs(matrix).max() > 0 for matrix in matrices)
    task.save(tmp_path / "task.keras")
    again = keras.models.load_model(tmp_path / "task.keras")
    assert lora.lora_values(again.backbone) == {
        "rank": 2,
        "alpha": 6,
        "targets": ["output", "query"],
        "method": "lora",
    }
    paths = [[v.path for v in each.trainable_variables] for each in (task, again)]
    assert paths[0] == paths[1]
    for one, other in zip(arrays(lora.adapters(again.backbone).values()), matrices, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(arrays(again.weights), arrays(task.weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    # It goes on as the first does, the states of the optimizer included, and can be merged.
    losses = [
        t.fit(TEXTS, LABELS, epochs=1, seed=1, verbose=0).history["loss"] for t in (task, again)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    again.merge_lora()
    assert len(again.trainable_variables) == len(again.weights) - 1
    # Its weights alone: with adapters for one that has them, and added to those of one without.
    task.save_weights(tmp_path / "task.weights.h5")
    expected = task.predict(TEXTS[:6], verbose=0)
    plain, adapted = make(tokenizer, seed=1), make(tokenizer, seed=1)
    adapted.enable_lora(rank=2, alpha=6, targets=["query", "output"])
    for other in (plain, adapted):
        other.load_weights(tmp_path / "task.weights.h5")
        np.testing.assert_allclose(other.predict(TEXTS[:6], verbose=0), expected, atol=1e-5)
    assert np.abs(arrays(lora.adapters(adapted.backbone).values())[1]).max() > 0


def test_adapters_of_layers_without_names_are_told_by_their_paths():
    """Keras calls them `dense_4` in one process and `dense_9` in another."""

    def numbered():
        inputs = keras.Input((4,))
        dense = [keras.layers.Dense(4) for _ in range(3)]
        model = keras.Sequential([inputs, *dense])
        return model, dense

    (first, dense), (second, others) = numbered(), numbered()
    lora.enable_lora(first, 2, targets=[dense[1].name])
    lora.enable_lora(second, **lora.lora_values(first))
    assert dense[1].name != others[1].name
    assert [layer.lora_enabled for layer in others] == [False, True, False]
    assert list(lora.adapters(first)) == list(lora.adapters(second))


def test_functions_over_any_keras_model():
    """Adapt dense layers of a model that does not come from this library."""
    inputs = keras.Input((8,))
    outputs = keras.layers.Dense(3)(keras.layers.Dense(8, name="query", activation="relu")(inputs))
    model = keras.Model(inputs, outputs)
    x = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
    before = model.predict(x, verbose=0)
    lora.enable_lora(model, 2, targets=["query"])
    assert [v.name for v in model.trainable_variables] == ["lora_kernel_a", "lora_kernel_b"]
    model.layers[1].lora_kernel_b.assign(np.ones((2, 8), "float32"))
    adapted = model.predict(x, verbose=0)
    assert np.abs(adapted - before).max() > 1e-3
    lora.merge_lora(model)
    np.testing.assert_allclose(model.predict(x, verbose=0), adapted, rtol=0, atol=1e-5)
    assert len(model.trainable_variables) == 4
    with pytest.raises(ValueError, match="found no blocks"):
        lora.freeze(model, 1)


def test_a_quantized_backbone_is_not_saved(tokenizer, tmp_path):
    task = make(tokenizer)
    task.backbone.quantize("int8")
    for model, name in ((task.backbone, "backbone"), (task, "task")):
        with pytest.raises(
            ValueError, match=f"The {name} is quantized to int8: save or copy it before"
        ):
            model.save(tmp_path / "model.keras")
    with pytest.raises(
        ValueError, match="The backbone is quantized to int8: save or copy it before"
    ):
        task.backbone.save_to_preset(tmp_path / "preset")
    assert not (tmp_path / "model.keras").exists()
