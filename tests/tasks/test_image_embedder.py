"""Vectors of images and texts: learning from pairs, any labels, the verbs, saving, wrong input."""

import io

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.training import ContrastiveLoss, PairAccuracy, PairwiseSigmoidLoss
from tests.tasks import duals, images

MAKERS = {"clip": duals.config, "siglip": duals.sigmoid_config}


def softmax(logits):
    powers = np.exp(logits.astype("float64"))
    return powers / powers.sum(axis=1, keepdims=True)


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits.astype("float64")))


def learned_pairs():
    """Batches of a dark and a bright image, since a text is a wrong one where it is there twice."""
    x, texts = duals.pairs(16)
    return [(x[i : i + 2], texts[i : i + 2]) for i in range(0, 16, 2)]


@pytest.fixture(scope="module", params=MAKERS)
def learned(request):
    keras.utils.set_random_seed(0)
    task = duals.embedder(MAKERS[request.param])
    task.compile(keras.optimizers.Adam(1e-2))
    for _ in range(12):
        for x, texts in learned_pairs():
            task.train_on_batch((x, texts))
    return task


def test_it_learns_which_belong_together(learned, tmp_path):
    x, texts = duals.pairs(8, seed=3)
    _, labels = images.pictures(8)
    assert [label for label, _ in learned.classify(x, duals.LABELS)] == labels
    for pair in learned_pairs():
        assert learned.evaluate(pair, verbose=0, return_dict=True)["accuracy"] == 1
    vectors, of_texts = learned.encode(x), learned.encode_texts(texts[:2])
    assert vectors.shape == (8, 12) and of_texts.shape == (2, 12)
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() <= 1e-5
    assert (learned.similarity(vectors, of_texts).argmax(1) == [0, 1] * 4).all()
    expected = learned.classify(x[:2], duals.LABELS, top_k=2)

    learned.save_to_preset(tmp_path / "preset")
    learned.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        kt.ImageEmbedder.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.task_values() == learned.task_values()
        assert type(again.loss) is type(learned.loss)
        np.testing.assert_allclose(again.encode(x), vectors, atol=1e-5)
        for ours, theirs in zip(
            again.classify(x[:2], duals.LABELS, top_k=2), expected, strict=True
        ):
            assert [name for name, _ in ours] == [name for name, _ in theirs]
            assert ours[0][1] == pytest.approx(theirs[0][1], abs=1e-4)


def test_probabilities(learned):
    """CLIP has a softmax over the labels, SigLIP a probability for each label."""
    x, _ = duals.pairs(3)
    found = learned.classify(x, duals.LABELS, template="{}", top_k=5)
    logits = learned.similarity(learned.encode(x), learned.encode_texts(duals.LABELS))
    shares = softmax(logits) if learned.backbone.similarity_bias is None else sigmoid(logits)
    for row, expected in zip(found, shares, strict=True):
        assert [share for _, share in row] == pytest.approx(sorted(expected)[::-1], abs=1e-5)
    likeliest, share = found[0][0]
    kept = learned.classify(x[0], duals.LABELS, template="{}", threshold=share / 2)
    assert kept[0] == (likeliest, pytest.approx(share, abs=1e-5))


@pytest.mark.parametrize("make", MAKERS)
def test_templates_are_averaged(make):
    task = duals.embedder(MAKERS[make])
    x, _ = duals.pairs(2)
    templates = ["a photo of a {}.", "{}"]
    parts = [task.encode_texts([t.format(label) for label in duals.LABELS]) for t in templates]
    logits = task.similarity(task.encode(x), sum(parts) / 2)
    shares = sigmoid(logits) if make == "siglip" else softmax(logits)
    for row, expected in zip(
        task.classify(x, duals.LABELS, template=templates, top_k=2), shares, strict=True
    ):
        assert [share for _, share in row] == pytest.approx(sorted(expected)[::-1], abs=1e-5)
    alone = task.classify(x, duals.LABELS, template=templates[0], top_k=2)
    assert alone[0][0][1] != pytest.approx(shares[0].max(), abs=1e-7)


def test_texts_of_several_lengths_give_what_each_gives_alone(learned):
    texts = ["dark", "a photo of a bright.", "what is it ?"]
    together = learned.encode_texts(texts)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(learned.encode_texts(text), vector, atol=1e-5)


@pytest.mark.each_backend
def test_texts_of_more_lengths_than_a_program_is_compiled_for():
    """TensorFlow compiles a program for any length when it has seen a few."""
    task = duals.embedder(duals.config)
    ids = np.arange(12, dtype="int32").reshape(2, 6) % 5 + 3
    for length in (3, 4, 5, 6):
        batch = {"token_ids": ids[:, :length]}
        found = task.predict(batch, verbose=0)
        np.testing.assert_allclose(found, to_numpy(task(batch)), atol=1e-6)


@pytest.mark.parametrize("make", MAKERS)
def test_losses_of_a_batch(make):
    """Against the formulas, with pairs that are not there."""
    task = duals.embedder(MAKERS[make])
    x, texts = duals.pairs(4)
    weights = np.array([1.0, 0.0, 2.0, 1.0], "float32")
    logits = task.similarity(task.encode(x), task.encode_texts(texts)).astype("float64")
    kept = logits[np.ix_([0, 2, 3], [0, 2, 3])]
    shares = np.array([1.0, 2.0, 1.0]) / 4
    if make == "clip":
        of = [np.log(np.exp(a).sum(1)) - np.diag(a) for a in (kept, kept.T)]
        expected = (shares * (of[0] + of[1]) / 2).sum()
    else:
        signs = 2 * np.eye(3) - 1
        expected = (shares * np.log1p(np.exp(-signs * kept)).sum(1)).sum()
    found = task.evaluate((x, texts), sample_weight=weights, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("make", MAKERS)
def test_adapters_and_mixed_precision(make):
    keras.utils.set_random_seed(0)
    task = duals.embedder(MAKERS[make], dtype="mixed_bfloat16")
    task.enable_lora(rank=2)
    x, texts = duals.pairs(4)
    before = [np.array(v) for v in task.backbone.non_trainable_weights]
    history = task.fit((x, texts), verbose=0, batch_size=2, validation_data=((x, texts),))
    assert np.isfinite([history.history["loss"], history.history["val_loss"]]).all()
    for old, new in zip(before, task.backbone.non_trainable_weights, strict=True):
        assert (old == np.array(new)).all()
    assert task.encode(x).dtype == np.float32 and np.isfinite(task.encode(x)).all()
    assert task.classify(x[0], duals.LABELS)[0] in duals.LABELS


def test_arrays_and_one_side():
    task = duals.embedder()
    x, texts = duals.pairs(4)
    inputs, *_ = task.make_dataset((x, texts))[0]
    arrays = {name: np.asarray(array) for name, array in inputs.items()}
    logits = np.asarray(keras.ops.convert_to_numpy(task(arrays)))
    assert logits.shape == (4, 4)
    task.fit(arrays, verbose=0, batch_size=4)
    of_images = task.predict({"images": arrays["images"]}, verbose=0)
    np.testing.assert_allclose(of_images, task.encode(x), atol=1e-5)
    ids = {"token_ids": arrays["token_ids"], "padding_mask": arrays["padding_mask"]}
    np.testing.assert_allclose(task.predict(ids, verbose=0), task.encode_texts(texts), atol=1e-5)
    assert np.asarray(task.predict_on_batch({"images": arrays["images"]})).shape == (4, 12)


@pytest.mark.parametrize("pooling", [None, "mean", "first_and_mean"])
def test_images_alone(pooling, tmp_path):
    """Compare an encoder of images, such as DINOv2's, with the formulas."""
    backbone = kt.models.Encoder(images.patches())
    task = kt.ImageEmbedder(backbone, kt.ImageProcessor(size=(12, 16)), pooling=pooling)
    x, _ = images.pictures(5)
    states = keras.ops.convert_to_numpy(backbone({"images": task.processor.source(x)}))
    first, mean = states[:, 0], states[:, 1:].mean(axis=1)
    expected = {None: first, "mean": mean, "first_and_mean": np.concatenate([first, mean], 1)}
    expected = expected[pooling]
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(task.encode(x), expected, atol=1e-5)
    np.testing.assert_allclose(task.encode(x[0]), expected[0], atol=1e-5)
    np.testing.assert_allclose(
        task.similarity(expected, expected), expected @ expected.T, atol=1e-5
    )
    task.save_to_preset(tmp_path / "preset")
    task.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.pooling == task.pooling
        np.testing.assert_allclose(again.encode(x), expected, atol=1e-5)
    with pytest.raises(ValueError, match="reads images only"):
        task.encode_texts("a cat")
    with pytest.raises(ValueError, match="reads images only"):
        task.classify(x, ["a", "b"])
    with pytest.raises(ValueError, match="reads images only"):
        task.fit((x, ["a"] * 5), verbose=0)
    raw = kt.ImageEmbedder(backbone, pooling=pooling, normalize=False)
    found = raw.predict({"images": task.processor.source(x)}, verbose=0)
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() > 1e-3


@pytest.mark.one_backend
def test_wrong_input(learned):
    x, texts = duals.pairs(4)
    for given, message in (
        (x, r"learns from images and their texts, fit\(\(images, texts\)\)"),
        ((x, texts[:2]), "Received 4 images and 2 texts"),
        ((x, [*texts[:3], 5]), r"`texts\[3\]` must be a string"),
        (([*x[:3], 7], texts), r"`x\[3\]` must be an image"),
        ((x, "a text"), "must be a list of strings"),
    ):
        with pytest.raises(ValueError, match=message):
            learned.fit(given, verbose=0)
    with pytest.raises(ValueError, match="takes no `y`"):
        learned.fit((x, texts), [0, 1, 0, 1], verbose=0)
    with pytest.raises(ValueError, match="`predict` returns vectors of images only"):
        learned.predict((x, texts), verbose=0)
    for labels, message in (
        ([], "`labels` must be a list of strings"),
        ("cat", "`labels` must be a list of strings"),
        (["cat", 3], r"`labels\[1\]` must be a string"),
        (["cat", "cat"], "'cat' twice"),
    ):
        with pytest.raises(ValueError, match=message):
            learned.classify(x, labels)
    for template in ("a photo", ["{}", "a photo"]):
        with pytest.raises(ValueError, match="`template` must have {} where the label goes"):
            learned.classify(x, ["cat"], template=template)
    for template in ([], 5):
        with pytest.raises(ValueError, match="`template` must be a string or a list"):
            learned.classify(x, ["cat"], template=template)
    with pytest.raises(ValueError, match="`top_k` must be"):
        learned.classify(x, ["cat"], top_k=0)
    with pytest.raises(ValueError, match="An ImageEmbedder has no loss 'contrastiv'. Did you mean"):
        learned.compile(loss="contrastiv")


@pytest.mark.one_backend
def test_wrong_parts():
    words = duals.tokenizer()
    dual = kt.models.DualEncoder(duals.config(words))
    processor = kt.ImageProcessor(size=(12, 16))
    with pytest.raises(ValueError, match="`pooling` is for an Encoder"):
        kt.ImageEmbedder(dual, processor, words, pooling="mean")
    with pytest.raises(ValueError, match="`processor` is missing"):
        kt.ImageEmbedder(dual, None, words)
    with pytest.raises(ValueError, match="`tokenizer` must be a Tokenizer"):
        kt.ImageEmbedder(dual, processor, "words")
    with pytest.raises(ValueError, match="`processor` must be an ImageProcessor"):
        kt.ImageEmbedder(dual, kt.AudioProcessor(), words)
    with pytest.raises(ValueError, match="A `tokenizer` is for a DualEncoder"):
        kt.ImageEmbedder(kt.models.Encoder(images.patches()), processor, words)
    with pytest.raises(ValueError, match="`pooling` must be one of"):
        kt.ImageEmbedder(kt.models.Encoder(images.patches()), processor, pooling="last")
    with pytest.raises(ValueError, match="needs a backbone that reads images"):
        values = {**images.patches().stated(), "stem": None, "vocabulary_size": 20}
        kt.ImageEmbedder(kt.models.Encoder(kt.TransformerConfig.from_dict(values)))
    without = kt.ImageEmbedder(dual, processor)
    x, texts = duals.pairs(2)
    assert without.encode(x).shape == (2, 12)
    with pytest.raises(ValueError, match="has no tokenizer"):
        without.fit((x, texts), verbose=0)
    with pytest.raises(ValueError, match="has no image processor and tokenizer and takes arrays"):
        kt.ImageEmbedder(dual).encode(x)
    other = kt.Tokenizer.train(duals.TEXTS * 4, vocabulary_size=290, template="none")
    endless = kt.ImageEmbedder(dual, processor, other)
    with pytest.raises(
        ValueError, match=r"reads a text at its token 2, which is not in `texts\[0\]"
    ):
        endless.encode_texts(["a photo"])


def encoded(pixels, **options):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, **{"format": "PNG", **options})
    return file.getvalue()


def bomb():
    """The header of a PNG of 50,000 x 50,000 pixels."""
    import struct
    import zlib

    def chunk(kind, content):
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.one_backend
def test_odd_images(tmp_path):
    task = duals.embedder()
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype("uint8")
    alpha = np.dstack([pixels, np.full((20, 30), 9, "uint8")])
    odd = [
        encoded(pixels[:1, :1]),  # one pixel
        encoded(pixels[..., 0]),  # grey
        encoded(alpha),
        pixels[..., :1].astype("float32") / 255,
        {"bytes": encoded(pixels), "path": None},
    ]
    (tmp_path / "image.png").write_bytes(odd[0])
    odd.append(str(tmp_path / "image.png"))
    vectors = task.encode(odd)
    assert vectors.shape == (6, 12) and np.isfinite(vectors).all()
    from PIL import Image

    white = Image.alpha_composite(Image.new("RGBA", (30, 20), "white"), Image.fromarray(alpha))
    expected = task.encode([white.convert("RGB"), pixels])
    np.testing.assert_allclose(vectors[[2, 4]], expected, atol=1e-6)
    np.testing.assert_allclose(vectors[0], vectors[5], atol=1e-6)
    texts = [f"a photo of a {name}." for name in "abcdef"]
    task.fit((odd, texts), verbose=0)
    for wrong, message in (
        (encoded(pixels)[:200], "cannot be read as an image.*Is the file whole?"),
        (bomb(), r"50,?000.*|too large"),
        (b"", "is not an image that Pillow can read"),
        (np.zeros((0, 4, 3), "uint8"), "has no pixels"),
        (np.full((4, 4, 3), np.nan), "NaN|from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=rf"x\[1\].*({message})"):
            task.encode([pixels, wrong])
        with pytest.raises(ValueError, match=rf"x\[1\].*({message})"):
            task.classify([pixels, wrong], ["cat"])
        with pytest.raises(ValueError, match=rf"x\[1\].*({message})"):
            task.fit(([pixels, wrong], ["a", "b"]), batch_size=2, verbose=0)
    with pytest.raises(FileNotFoundError, match=r"x\[0\].*there is no file"):
        task.encode(["none.png"])


def test_losses_are_square_and_metrics_count():
    for loss in (ContrastiveLoss(), PairwiseSigmoidLoss()):
        again = keras.losses.deserialize(keras.losses.serialize(loss))
        assert type(again) is type(loss)
        with pytest.raises(ValueError, match="takes the logits of as many images as texts"):
            loss(np.ones(2), np.ones((2, 3), "float32"))
    metric = PairAccuracy()
    metric.update_state(np.ones(3), np.eye(3)[[0, 2, 2]], sample_weight=np.array([1.0, 1.0, 0.0]))
    assert float(metric.result()) == 0.5
