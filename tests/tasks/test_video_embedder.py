"""Vectors of videos and texts: learning from pairs, any labels, saving, wrong input."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.tasks import videos

LABELS = ["rising", "falling"]
TEXTS = [f"a video of a {label} light." for label in LABELS]
TEMPLATE = "a video of a {} light."


def config(words, **values):
    """As VideoPrism's: each frame alone, then the frames at each place, and a pooling query."""
    part = kt.config
    attention = part.Attention(num_heads=2)
    plain = part.Block(
        mixer=attention, feed_forward=part.Dense(dim=24), residual=part.Residual(order="pre")
    )
    space, time = (
        plain.replace(mixer=attention.replace(pattern=part.VideoAxis(over=over, steps=4)))
        for over in ("space", "time")
    )
    time = time.replace(merging=part.TimePositions(hidden_dim=16, steps=4))
    stem = part.TubeStemConfig(
        num_frames=4, frame_size=(8, 12), tube_frames=1, patch_size=4, positions="frame"
    )
    own = part.Attention(num_heads=2, head_dim=12, query_scale=True)
    films = part.Side(
        input=stem,
        hidden_dim=16,
        num_layers=2,
        block=time.replace(merging=None),
        layers=(space, time),
        position=part.Learned(),
        vector=part.Vector(pooling="attention", attention=own, feed_forward=False, normalize=True),
    )
    texts = part.Side(
        input=part.Tokens(vocabulary_size=words.vocabulary_size, class_token=True, scale="sqrt"),
        hidden_dim=16,
        num_layers=1,
        block=plain,
        position=part.Sinusoidal(),
        max_sequence_length=16,
        vector=part.Vector(pooling="last"),
    )
    similarity = part.Similarity(fixed_scale=20.0)
    return kt.TransformerConfig(
        **{"encoder": films, "decoder": texts, "similarity": similarity, **values}
    )


def embedder(dtype=None):
    words = kt.Tokenizer.train(TEXTS * 4, vocabulary_size=290)
    backbone = kt.models.DualEncoder(config(words), dtype=dtype)
    return kt.VideoEmbedder(backbone, kt.VideoProcessor((8, 12), None), words)


def pairs(count, seed=0):
    x, _ = videos.clips(count, seed)
    return x, [TEXTS[i % 2] for i in range(count)]


@pytest.fixture(scope="module")
def learned():
    keras.utils.set_random_seed(0)
    task = embedder()
    task.compile(keras.optimizers.Adam(3e-3))
    x, texts = pairs(16)
    for _ in range(25):
        for i in range(0, 16, 2):
            task.train_on_batch((x[i : i + 2], texts[i : i + 2]))
    return task


def test_it_learns_which_belong_together(learned, tmp_path):
    x, texts = pairs(6, seed=3)
    assert [label for label, _ in learned.classify(x, LABELS, TEMPLATE)] == LABELS * 3
    found = learned.evaluate((x[:2], texts[:2]), verbose=0, return_dict=True)
    assert found["accuracy"] == 1
    vectors = learned.encode(x)
    assert vectors.shape == (6, 16)
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() <= 1e-5
    for row, vector in zip(x, vectors, strict=True):  # alone as in a batch
        np.testing.assert_allclose(learned.encode(row), vector, atol=1e-5)
    cosines = vectors @ learned.encode_texts(TEXTS).T
    given = learned.similarity(vectors, learned.encode_texts(TEXTS))
    np.testing.assert_allclose(given, 20 * cosines, atol=1e-3)
    learned.save_to_preset(tmp_path / "preset")
    learned.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert type(again) is kt.VideoEmbedder
        assert again.processor.source.values() == learned.processor.source.values()
        np.testing.assert_allclose(again.encode(x), vectors, atol=1e-5)
        np.testing.assert_allclose(
            again.encode_texts(TEXTS), learned.encode_texts(TEXTS), atol=1e-5
        )


def test_adapters_and_mixed_precision():
    keras.utils.set_random_seed(0)
    task = embedder(dtype="mixed_bfloat16")
    task.enable_lora(rank=2)
    x, texts = pairs(4)
    history = task.fit((x, texts), verbose=0, batch_size=2, validation_data=((x, texts),))
    assert np.isfinite([history.history["loss"], history.history["val_loss"]]).all()
    assert task.classify(x[0], LABELS)[0] in LABELS


@pytest.mark.one_backend
def test_videos_alone():
    """An encoder, whose vector is the mean of its tubes; a classifier learns on the same."""
    backbone = kt.models.Encoder(videos.config())
    task = kt.VideoEmbedder(backbone, kt.VideoProcessor((8, 12), None))
    x, _ = pairs(4)
    assert task.encode(x).shape == (4, 16)
    with pytest.raises(ValueError, match="This model reads videos only"):
        task.classify(x, LABELS)


@pytest.mark.one_backend
def test_wrong_input(learned, caplog):
    x, texts = pairs(4)
    learned.make_dataset((x, texts), batch_size=2)
    assert not caplog.text
    learned.make_dataset((x, texts))
    assert "Only 2 of 4 texts differ, fewer than the 4 rows of a batch." in caplog.text
    for given, message in (
        (x, r"VideoEmbedder learns from videos and their texts, fit\(\(videos, texts\)\)"),
        ((x, texts[:2]), "Received 4 videos and 2 texts"),
        (([*x[:3], x[0][:2]], texts), r"`x\[3\]` has 2 frames, and 4 are read"),
        (([*x[:3], 7], texts), r"x\[3\]"),
    ):
        with pytest.raises(ValueError, match=message):
            learned.fit(given, verbose=0)
    with pytest.raises(ValueError, match="Classes are learned by a VideoClassifier"):
        learned.fit((x, texts), [0, 1, 0, 1], verbose=0)
    with pytest.raises(ValueError, match="VideoEmbedder needs a backbone that reads videos"):
        kt.VideoEmbedder(kt.models.Encoder(_texts()))
    with pytest.raises(ValueError, match="ImageEmbedder needs a backbone that reads images"):
        kt.ImageEmbedder(learned.backbone)


def _texts():
    return kt.TransformerConfig(
        kind="encoder", vocabulary_size=9, hidden_dim=8, num_layers=1, num_heads=2,
        intermediate_dim=8,
    )  # fmt: skip
