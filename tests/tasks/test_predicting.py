"""Outputs alone: batches by tokens where the device wants them, copied to the host together."""

import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.kernels.batches import PendingOutputs
from keras_transformer.kernels.device import Device, device
from tests.tasks import images
from tests.tasks.common import (
    ENGLISH,
    GERMAN,
    classifier,
    language_model,
    randomized,
    tokenizer,
)
from tests.tasks.test_text_embedder import embedder

pytestmark = pytest.mark.one_backend
TOKENS = 1024
GIB = 2**30


class Large(Device):
    """A device that wants batches of `TOKENS` tokens, of which tests have some."""

    batch_tokens = TOKENS


@pytest.fixture
def on_gpu(monkeypatch):
    """The package takes the device for a GPU. Tensors stay on the CPU."""
    found = Large(device().backend, "pretended", 8 * GIB)
    for name in (
        "tasks.base.task",
        "tasks.base.predicting",
        "tasks.media.input_classifier",
        "data.dataset",
    ):
        monkeypatch.setattr(f"keras_transformer.{name}.device", lambda: found)


def texts(count: int) -> list[str]:
    words = " ".join(ENGLISH).split()
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(words, rng.integers(1, 12))) for _ in range(count)]


def shapes_of(task, monkeypatch) -> list[tuple]:
    """The shapes of the batches that a task computes from now on."""
    shapes, batch_function = [], task.batch_function

    def noted():
        function = batch_function()

        def compute(batch):
            shapes.append(tuple(np.shape(batch[0]["token_ids"])))
            return function(batch)

        return compute

    monkeypatch.setattr(task, "batch_function", noted)
    return shapes


def test_how_many_tokens_a_device_wants():
    def wanted(memory, kind="cuda", backend="torch"):
        return Device(backend, kind, memory).batch_tokens

    assert wanted(None, "cpu") is None
    assert wanted(80 * GIB, backend="tensorflow") is None
    assert [wanted(n * GIB) for n in (4, 8, 24, 79, 139, 1000)] == [
        2**12, 2**12, 2**13, 2**15, 2**16, 2**16
    ]  # fmt: skip
    assert wanted(None, "tpu", "jax") == 2**14


@pytest.mark.each_backend
def test_vectors_are_the_same(monkeypatch, request, backend):
    task, given = embedder(), texts(300)
    wanted = task.encode(given)
    request.getfixturevalue("on_gpu")
    shapes = shapes_of(task, monkeypatch)
    found, tokens = task.encode_counted(given)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert tokens == sum(map(len, task.tokenizer.encode_batch(given)))
    if backend == "tensorflow":  # Keras's loop
        return
    assert all(rows * length <= TOKENS for rows, length in shapes)
    assert len(shapes) < len(given) / 32
    if backend == "torch":  # on JAX the last row is there until the number is one of the ladder
        assert sum(rows for rows, _ in shapes) == len(given)
    del shapes[:]
    np.testing.assert_allclose(task.predict(given, verbose=0), wanted, atol=1e-5)
    del shapes[:]
    task.predict(given, batch_size=8, verbose=0)  # rows that a user asks for
    assert len(shapes) >= len(given) / 8 and max(rows for rows, _ in shapes) == 8


def test_a_long_text_pads_no_short_ones(on_gpu, monkeypatch):
    task = embedder()
    given = [*["a man"] * 200, " ".join(ENGLISH * 6)]
    wanted = task.encode([given[0], given[-1]], batch_size=1)
    shapes = shapes_of(task, monkeypatch)
    found = task.encode(given)
    assert sum(rows * length for rows, length in shapes) < 200 * 16 + 200
    np.testing.assert_allclose(found, wanted[[0] * 200 + [1]], atol=1e-5)


def test_one_text_none_and_one_that_is_empty(on_gpu):
    task, given = embedder(), texts(300)
    np.testing.assert_allclose(task.encode(given[7]), task.encode(given)[7], atol=1e-5)
    with pytest.raises(ValueError, match="`x` is empty"):
        task.encode([])
    given[211] = "  "
    with pytest.raises(ValueError, match=r"`x\[211\]` is empty"):
        task.encode(given)
    given[13] = 3
    with pytest.raises(ValueError, match=r"`x\[13\]` must be a string"):
        task.encode(given)


def test_prompts_and_pairs(request):
    asked = {"prompts": {"query": "a man"}, "include_prompt": False}
    task, pairs = embedder(**asked), randomized(classifier(num_classes=2))
    given, others = texts(200), texts(250)[50:]
    wanted = task.encode(given, "query"), pairs.predict((given, others), verbose=0)
    request.getfixturevalue("on_gpu")
    np.testing.assert_allclose(task.encode(given, "query"), wanted[0], atol=1e-5)
    for verbose in (0, 1):
        found = pairs.predict((given, others), verbose=verbose)
        np.testing.assert_allclose(found, wanted[1], atol=1e-5)


def test_tokens_and_answers(request):
    words, backbone = tokenizer(), classifier(num_classes=2).backbone
    tagger = randomized(kt.TokenClassifier(backbone, words, num_classes=3))
    answerer = randomized(kt.QuestionAnswerer(backbone, words))
    given = texts(80)

    def outputs():
        found = [tagger.predict(given, verbose=0), *tagger.word_probabilities(given)]
        answers = answerer.answer(["who ?"] * 80, given)
        return found, [each.text for each in answers]

    wanted = outputs()
    request.getfixturevalue("on_gpu")
    found = outputs()
    for one, other in zip(found[0], wanted[0], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert found[1] == wanted[1]


def test_rows_of_images(on_gpu):
    task = images.classifier()
    states = task.backbone.config.stem.num_states
    rows = task.to_predict()["batch_size"]
    assert TOKENS // states // 2 < rows <= TOKENS // states
    assert task.to_predict(3)["batch_size"] == 3


def test_logits_of_a_vocabulary_stay_in_small_batches(on_gpu):
    assert language_model().to_predict()["batch_tokens"] is None


@pytest.mark.each_backend
def test_outputs_wait_for_each_other(backend):
    parts = [np.arange(6, dtype="float32").reshape(2, 3), np.ones((1, 3), "float32")]
    parts.append(np.zeros((4, 3), "float32"))
    outputs, bounded = PendingOutputs(), PendingOutputs(most=parts[0].nbytes)
    for part in parts:
        for each in (outputs, bounded):
            each.add({"a": ops.convert_to_tensor(part)})
    assert len(outputs._there) == 0 and len(bounded._there) >= 2
    for each in (outputs, bounded):
        np.testing.assert_array_equal(each.arrays()["a"], np.concatenate(parts))


@pytest.mark.one_backend("torch")
def test_nothing_is_asked_of_the_device_between_batches(on_gpu):
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Calls(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names.append(function.overloadpacket)
            return function(*args, **(kwargs or {}))

    task = embedder()
    with Calls() as calls:
        task.encode(texts(300))
    aten = torch.ops.aten
    assert aten._local_scalar_dense not in calls.names
    last = max(place for place, name in enumerate(calls.names) if name is aten.native_layer_norm)
    assert calls.names.count(aten.native_layer_norm) > 4 * 3
    # The outputs of all batches are put together behind the last one, and copied then.
    assert calls.names[last:].count(aten.cat) == 1


@pytest.mark.each_backend
def test_an_interrupt_leaves_the_model_whole(backend):
    import keras

    class Interrupt(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    task = embedder()
    wanted = task.predict(ENGLISH, verbose=0)
    with pytest.raises(KeyboardInterrupt):
        task.predict(ENGLISH, verbose=0, batch_size=2, callbacks=[Interrupt()])
    np.testing.assert_array_equal(task.predict(ENGLISH, verbose=0), wanted)
    before = [ops.convert_to_numpy(w) for w in task.trainable_weights]
    task.fit((ENGLISH[:3], GERMAN), verbose=0)
    after = [ops.convert_to_numpy(w) for w in task.trainable_weights]
    assert any((one != other).any() for one, other in zip(before, after, strict=True))
