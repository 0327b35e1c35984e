"""Vectors of recordings and texts: learning from pairs, any labels, saving, wrong input."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.training import ContrastiveLoss, PairAccuracy, PairwiseSigmoidLoss
from tests.tasks import audio

LABELS = ["low", "high"]
TEXTS = [f"This is a sound of {label}." for label in LABELS]


def config(words, **values):
    """As CLAP's: two linear layers for each vector, and a scale for each direction."""
    sizes = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 24}
    sizes |= {"vocabulary_size": words.vocabulary_size, "position": "learned"}
    sizes |= {"vector_dim": 24, "vector_bias": True, "vector_activation": "gelu"}
    stem = {"kind": "folded_frames", "num_bins": 8, "image_size": (16, 12), "patch_size": 4}
    sides = {
        "encoder": {"vocabulary_size": 0, "stem": stem, "vector_pooling": "mean"},
        "decoder": {"vector_pooling": "end", "vector_end_id": words.end_id, "vector_pooler": True},
    }
    common = {"max_sequence_length": 16, "normalize_first": True, "similarity_text_scale": True}
    return kt.TransformerConfig(**{"kind": "dual", **common, **sides, **sizes} | values)


def processor(**values):
    own = {"sampling_rate": audio.RATE, "num_bins": 8, "window_length": 128, "hop_length": 100}
    return kt.AudioProcessor("decibel_mel", **{**own, "length": 21, **values})


def embedder(dtype=None, **values):
    words = kt.Tokenizer.train([*TEXTS, "what is it ?"] * 4, vocabulary_size=290)
    backbone = kt.models.DualEncoder(config(words, **values), dtype=dtype)
    return kt.AudioEmbedder(backbone, processor(), words)


def pairs(count, seed=0):
    """Low and high tones of several lengths, and what they are."""
    random = np.random.default_rng(seed)
    x = []
    for i in range(count):
        t = np.arange(random.integers(700, 2400)) / audio.RATE
        pitch = (random.uniform(200, 300), random.uniform(2000, 2500))[i % 2]
        x.append(np.sin(2 * np.pi * pitch * t).astype("float32"))
    return x, TEXTS * (count // 2)


@pytest.fixture(scope="module")
def learned():
    keras.utils.set_random_seed(0)
    task = embedder()
    task.compile(keras.optimizers.Adam(3e-3))
    x, texts = pairs(16)
    for _ in range(20):
        for i in range(0, 16, 4):
            task.train_on_batch((x[i : i + 4], texts[i : i + 4]))
    return task


def test_it_learns_which_belong_together(learned, tmp_path):
    x, texts = pairs(6, seed=3)
    assert [label for label, _ in learned.classify(x, LABELS)] == LABELS * 3
    found = learned.evaluate((x[:2], texts[:2]), verbose=0, return_dict=True)
    assert found["accuracy"] == 1
    for name in ("similarity_scale", "similarity_text_scale"):
        assert float(to_numpy(getattr(learned.backbone, name))) != pytest.approx(np.log(1 / 0.07))
    vectors = learned.encode(x)
    assert vectors.shape == (6, 24)
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() <= 1e-5
    for row, vector in zip(x, vectors, strict=True):  # alone as in a batch
        np.testing.assert_allclose(learned.encode((row, audio.RATE)), vector, atol=1e-5)
    expected = learned.classify(x[:2], LABELS, top_k=2)
    learned.save_to_preset(tmp_path / "preset")
    learned.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        kt.AudioEmbedder.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert type(again) is kt.AudioEmbedder and again.task_values() == learned.task_values()
        assert again.processor.source.values() == learned.processor.source.values()
        np.testing.assert_allclose(again.encode(x), vectors, atol=1e-5)
        for ours, theirs in zip(again.classify(x[:2], LABELS, top_k=2), expected, strict=True):
            assert dict(ours) == pytest.approx(dict(theirs), abs=1e-4)


def test_the_loss_has_a_scale_for_each_direction():
    """Against the formula, with a pair that is not there."""
    task = embedder()
    task.backbone.similarity_scale.assign(1.5)
    task.backbone.similarity_text_scale.assign(0.5)
    x, texts = pairs(4)
    logits = task.similarity(task.encode(x), task.encode_texts(texts)).astype("float64")
    kept = logits[np.ix_([0, 2, 3], [0, 2, 3])]
    of = [np.log(np.exp(a).sum(1)) - np.diag(a) for a in (kept, kept.T / np.e)]
    shares = np.array([1.0, 2.0, 1.0]) / 4
    weights = np.array([1.0, 0.0, 2.0, 1.0], "float32")
    found = task.evaluate((x, texts), sample_weight=weights, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx((shares * sum(of) / 2).sum(), rel=1e-4)
    arrays = task.make_dataset((x, texts))[0][0]
    both = to_numpy(task({name: np.asarray(array) for name, array in arrays.items()}))
    assert both.shape == (4, 4, 2)
    np.testing.assert_allclose(both[..., 1] * np.e, both[..., 0], rtol=1e-4)
    metric = PairAccuracy()
    metric.update_state(np.ones(2), np.stack([np.eye(2), np.zeros((2, 2))], axis=-1))
    assert float(metric.result()) == 1


def test_adapters_and_mixed_precision():
    keras.utils.set_random_seed(0)
    task = embedder(dtype="mixed_bfloat16")
    task.enable_lora(rank=2)
    x, texts = pairs(4)
    history = task.fit((x, texts), verbose=0, batch_size=2, validation_data=((x, texts),))
    assert np.isfinite([history.history["loss"], history.history["val_loss"]]).all()
    assert task.classify((x[0], audio.RATE), LABELS)[0] in LABELS


def test_longer_recordings_are_fused(tmp_path):
    """Their vectors depend on all of them, but on no other recording, also as they are learned."""
    task = embedder()
    sound = task.backbone.config.encoder
    stem = sound.input.replace(fusion=2)
    parts = task.backbone.config.replace(encoder=sound.replace(input=stem))
    words = task.tokenizer
    with pytest.raises(ValueError, match="fusion=2, and the processor fusion=False"):
        kt.AudioEmbedder(kt.models.DualEncoder(parts), processor(), words)
    task = kt.AudioEmbedder(kt.models.DualEncoder(parts), processor(fusion=True), words)
    task.compile(keras.optimizers.Adam(1e-2))
    x, texts = pairs(4)
    x[1] = np.tile(x[1], 9)
    for longest in (4, 1):  # also a batch without a longer one
        history = task.fit((x[:longest], texts[:longest]), verbose=0).history
        assert np.isfinite(history["loss"]).all()
    vectors = task.encode(x)
    for row, vector in zip(x, vectors, strict=True):
        np.testing.assert_allclose(task.encode((row, audio.RATE)), vector, atol=1e-5)
    changed = [row.copy() for row in x]
    changed[1][-1500:] = 0
    difference = np.abs(task.encode(changed) - vectors).max(axis=1)
    assert difference[1] > 1e-4 and np.delete(difference, 1).max() <= 1e-6
    task.save_to_preset(tmp_path)
    np.testing.assert_allclose(kt.Task.from_preset(tmp_path).encode(x), vectors, atol=1e-5)


def test_recordings_alone():
    """An encoder of recordings of any length, whose padding changes nothing."""
    backbone = kt.models.Encoder(audio.waveform())
    task = kt.AudioEmbedder(backbone, kt.AudioProcessor("waveform", sampling_rate=audio.RATE))
    x, _ = pairs(4)
    vectors = task.encode(x)
    for row, vector in zip(x, vectors, strict=True):
        np.testing.assert_allclose(task.encode((row, audio.RATE)), vector, atol=1e-5)
    with pytest.raises(ValueError, match="This model reads recordings only"):
        task.classify(x, LABELS)
    with pytest.raises(ValueError, match="A `tokenizer` is for a DualEncoder"):
        kt.AudioEmbedder(backbone, processor(), kt.Tokenizer.train(TEXTS, vocabulary_size=290))


@pytest.mark.one_backend
def test_wrong_input(learned):
    x, texts = pairs(4)
    for given, message in (
        (x, r"AudioEmbedder learns from recordings and their texts, fit\(\(recordings, texts\)\)"),
        ((x, texts[:2]), "Received 4 recordings and 2 texts"),
        (([*x[:3], x[0][:0]], texts), r"`x\[3\]` has no samples: it is empty"),
        (([*x[:3], (x[0], 50)], texts), r"`x\[3\]` must have a rate of 100 to 1,000,000"),
        (([*x[:3], x[0] * np.nan], texts), r"`x\[3\]` has samples that are NaN"),
        (([*x[:3], 7], texts), r"`x\[3\]` must be a recording"),
    ):
        with pytest.raises(ValueError, match=message):
            learned.fit(given, verbose=0)
    with pytest.raises(ValueError, match="Classes are learned by an AudioClassifier"):
        learned.fit((x, texts), [0, 1, 0, 1], verbose=0)
    with pytest.raises(ValueError, match="`predict` returns vectors of recordings only"):
        learned.predict((x, texts), verbose=0)
    with pytest.raises(ValueError, match="An AudioEmbedder has no loss 'contrastiv'"):
        learned.compile(loss="contrastiv")
    with pytest.raises(ValueError, match="takes the logits of as many images as texts"):
        PairwiseSigmoidLoss()(np.ones(2), np.ones((2, 2, 2), "float32"))
    with pytest.raises(ValueError, match="takes the logits of as many images as texts"):
        ContrastiveLoss()(np.ones(2), np.ones((2, 2, 3), "float32"))


@pytest.mark.one_backend
def test_wrong_parts(learned):
    backbone, words = learned.backbone, learned.tokenizer
    for wrong, message in (
        (processor(length=25), "at most 24 frames: give the processor a `length` of 1 to 24"),
        (processor(num_bins=9), "reads frames of 8 bands, but the processor has 9"),
        (kt.AudioProcessor("waveform", length=21), "has features='waveform'"),
        (kt.ImageProcessor(size=16), "`processor` must be an AudioProcessor"),
    ):
        with pytest.raises(ValueError, match=message):
            kt.AudioEmbedder(backbone, wrong, words)
    with pytest.raises(ValueError, match="ImageEmbedder needs a backbone that reads images"):
        kt.ImageEmbedder(backbone)
    with pytest.raises(ValueError, match="needs a `length` of at least 2 frames"):
        processor(length=1)
    with pytest.raises(ValueError, match="`fusion` needs the `length` of a piece"):
        processor(length=None, fusion=True)
    with pytest.raises(ValueError, match="are for features='decibel_mel'"):
        kt.AudioProcessor("log_mel", padding="repeat")
    for values, message in (
        ({"similarity_bias": True}, "`similarity_text_scale` and `similarity_bias` cannot be"),
        ({"vector_dim": None}, "`vector_activation` is between two linear layers"),
    ):
        with pytest.raises(ValueError, match=message):
            config(words, **values)
    masked = {"kind": "frames", "num_bins": 8, "num_frames": 24, "masked": True}
    with pytest.raises(ValueError, match="reads recordings of one length"):
        sound = {"vocabulary_size": 0, "stem": masked, "vector_pooling": "mean"}
        config(words, encoder=sound)
