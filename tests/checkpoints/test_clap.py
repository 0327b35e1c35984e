"""CLAP against the Transformers library: states, vectors, gradients, features, both ways."""

import json

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.models.stack import ForwardContext
from tests.checkpoints import families
from tests.checkpoints.family_duals import OF_SOUND
from tests.checkpoints.test_families import _gradients, assert_gradients, saved
from tests.tokenizers.folders import roberta

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ENDS = np.array([8, 5, 3, 6])
LABELS = ["a cat", "dogs, two!", "The Park"]
TEXTS = ["Two young women are talking.", "a cat", "It's one of the BEST films!"]
# A file as published, of a small model: three seconds of 64 frames each.
FEATURES = {
    "feature_size": 8,
    "sampling_rate": 4000,
    "hop_length": 100,
    "max_length_s": 3,
    "fft_window_size": 256,
    "frequency_max": 1900,
    "truncation": "rand_trunc",
}


def texts():
    """Ids of several lengths, with RoBERTa's padding, and their mask."""
    ids = np.random.default_rng(3).integers(3, 57, (4, 9))
    mask = np.arange(9) <= ENDS[:, None]
    return np.where(mask, ids, 1), mask


def sounds(stem, length):
    """Three spectrograms, as ours takes them and as theirs; of a fused model two are longer."""
    x = 3 * np.random.default_rng(2).normal(size=(3, 4, length, stem.num_bins)).astype("float32")
    if stem.fusion is None:
        return {"frames": x[:, 0]}, {"input_features": torch.tensor(x[:, :1])}
    longer = np.array([[True], [False], [True]])
    theirs = {"input_features": torch.tensor(x), "is_longer": torch.tensor(longer)}
    return {"frames": x[:, 0], "pieces": x[:, 1:], "is_longer": longer}, theirs


def recordings():
    """Recordings of a sixth of a second, of two seconds, and of three, which are not cut."""
    random = np.random.default_rng(4)
    return [0.3 * random.normal(size=n).astype("float32") for n in (667, 8001, 12_000)]


@pytest.fixture(scope="module", params=range(len(OF_SOUND["clap"][1])))
def both(request, tmp_path_factory):
    reference = families.make("clap", request.param, "Model")
    return reference, load_backbone(saved(reference, tmp_path_factory.mktemp("theirs")))


def outputs_of(reference, given):
    """Their outputs, their vectors before they are normalized, and their last states."""
    ids, mask = texts()
    inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask).long()}
    found = reference(**inputs, **given)
    vectors = (
        reference.audio_projection(found.audio_model_output.pooler_output),
        reference.text_projection(found.text_model_output.pooler_output),
    )
    heard = reference.audio_model(**given, output_hidden_states=True).hidden_states[-1]
    return found, vectors, reference.audio_model.audio_encoder.norm(heard.flatten(2).mT)


@pytest.mark.each_backend
@pytest.mark.parametrize("share", [1, 0.7])
def test_same_states_vectors_and_logits(both, share):
    """Compare recordings that fill the image, and shorter ones, which are stretched."""
    reference, backbone = both
    stem = backbone.encoder_stem.config.stem
    given, theirs = sounds(stem, int(stem.most_frames * share))
    with torch.no_grad():
        expected, vectors, states = outputs_of(reference, theirs)
    ids, mask = texts()
    found = backbone({**given, "token_ids": ids, "padding_mask": mask})
    for ours, theirs in zip((found["recordings"], found["texts"]), vectors, strict=True):
        assert np.abs(to_numpy(ours) - theirs.numpy()).max() <= 2e-5
    embedded = backbone.encoder_stem(given)
    run = ForwardContext(embedded.states, embedded._asdict())
    found_states = backbone.encoder(embedded.states, run=run)
    assert np.abs(to_numpy(found_states) - states.numpy()).max() <= 2e-5
    logits = to_numpy(backbone.both_similarities(found["recordings"], found["texts"]))
    assert np.abs(logits[..., 0] - expected.logits_per_audio.numpy()).max() <= 1e-4
    assert np.abs(logits[..., 1] - expected.logits_per_text.numpy().T).max() <= 1e-4
    one = to_numpy(backbone.similarity(found["recordings"], found["texts"]))
    np.testing.assert_array_equal(one, logits[..., 0])


@pytest.mark.parametrize("number", [0, 2])
def test_same_gradients(tmp_path, number):
    """Also of both scales, in the loss that `fit` uses."""
    reference = families.make("clap", number, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    given, inputs = sounds(backbone.encoder_stem.config.stem, 100)
    ids, mask = texts()
    theirs = reference(
        input_ids=torch.tensor(ids[:3]), attention_mask=torch.tensor(mask[:3]).long(), **inputs
    )
    of_rows = torch.nn.functional.cross_entropy(theirs.logits_per_audio, torch.arange(3))
    of_texts = torch.nn.functional.cross_entropy(theirs.logits_per_text, torch.arange(3))
    ((of_rows + of_texts) / 2).backward()

    def loss():
        found = backbone({**given, "token_ids": ids[:3], "padding_mask": mask[:3]})
        logits = backbone.both_similarities(found["recordings"], found["texts"])
        return kt.training.ContrastiveLoss()(keras.ops.ones(3), logits)

    averages = ("moving_mean", "moving_variance")
    found = _gradients(backbone, loss)
    with torch.no_grad():
        for name, buffer in reference.named_buffers():
            if "running" in name:
                buffer.zero_()
    found = {p: 0 * g if p.endswith(averages) else g for p, g in found.items()}
    assert_gradients(found, reference, tmp_path / "gradients")


@pytest.mark.one_backend
def test_export_is_the_way_back(tmp_path, both):
    reference, backbone = both
    kt.export_to_huggingface(backbone, tmp_path / "theirs")
    again, info = type(reference).from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not any(info.values()), info
    _, given = sounds(backbone.config.encoder.input, 60)
    with torch.no_grad():
        expected, back = (outputs_of(model.eval(), given)[0] for model in (reference, again))
    for name in ("logits_per_audio", "logits_per_text"):
        assert (getattr(back, name) - getattr(expected, name)).abs().max() <= 1e-5
    backbone.save_to_preset(tmp_path / "ours")
    backbone.save(tmp_path / "model.keras")
    for other in (
        load_backbone(tmp_path / "theirs"),
        kt.Backbone.from_preset(tmp_path / "ours"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert other.config == backbone.config
        for one, two in zip(other.weights, backbone.weights, strict=True):
            np.testing.assert_array_equal(to_numpy(one), to_numpy(two))


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"padding": "repeat"},
        {"padding": "pad"},
        {"frequency_min": 100, "hop_length": 80, "sampling_rate": 8000, "max_length_s": 1},
    ],
)
def test_same_features(tmp_path, values):
    """Compare short recordings, and a longer one: theirs begins anywhere, ours at 0."""
    theirs = transformers.ClapFeatureExtractor(**FEATURES | values)
    theirs.save_pretrained(tmp_path)
    ours = kt.AudioProcessor.from_files(tmp_path)
    most = theirs.nb_max_samples
    random = np.random.default_rng(5)
    given = [random.normal(size=n).astype("float32") for n in (most // 7, most - 1, most, 3)]
    given.append(random.normal(size=most + 999).astype("float32"))
    cut = [row[:most] for row in given]
    expected = theirs(cut, sampling_rate=theirs.sampling_rate, return_tensors="np")
    found = ours(given)
    assert found.dtype == np.float32 and len(found) == 5
    assert np.abs(found - expected["input_features"][:, 0]).max() <= 1e-5
    for row, together in zip(given, found, strict=True):
        np.testing.assert_array_equal(ours([row])[0], together)
    (tmp_path / "ours").mkdir()
    ours.save(tmp_path / "ours")
    again = transformers.ClapFeatureExtractor.from_pretrained(tmp_path / "ours")
    for name in ("padding", "truncation", "nb_max_samples", "frequency_max", "fft_window_size"):
        assert getattr(again, name) == getattr(theirs, name), name
    assert kt.AudioProcessor.from_files(tmp_path / "ours").values() == ours.values()


@pytest.mark.backend_independent
def test_same_features_of_fused_models(tmp_path, monkeypatch):
    """Compare with theirs, where it draws the middle ones of the places of a piece."""
    theirs = transformers.ClapFeatureExtractor(
        **FEATURES | {"feature_size": 64, "fft_window_size": 1024, "truncation": "fusion"}
    )
    theirs.save_pretrained(tmp_path)
    ours = kt.AudioProcessor.from_files(tmp_path)
    monkeypatch.setattr(np.random, "choice", lambda places: places[len(places) // 2])
    most, hop = theirs.nb_max_samples, theirs.hop_length
    random = np.random.default_rng(6)
    lengths = (most // 3, most, most + hop // 2, most + hop, most + 3 * hop, 3 * most + 777)
    rows = [random.normal(size=n).astype("float32") for n in lengths]
    wholes, pieces, longer = ours.fused(rows)
    assert longer[:, 0].tolist() == [False, False, False, True, True, True]
    np.testing.assert_array_equal(ours(rows), wholes)
    for row, whole, three in zip(rows, wholes, pieces, strict=True):
        expected = theirs(row, sampling_rate=4000, return_tensors="np")["input_features"][0]
        assert np.abs(whole - expected[0]).max() <= 1e-5
        assert np.abs(three - expected[1:]).max() <= 1e-5
    assert ours.most_samples is None and ours.values()["truncation"] == "fusion"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint with its feature extractor and tokenizer, as Transformers saves them."""
    place = tmp_path_factory.mktemp("theirs")
    roberta(place)
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    words = {"vocab_size": len(tokenizer), "max_position_embeddings": 66}
    config = OF_SOUND["clap"][1][0]
    reference = families.make("clap", 0, "Model", text_config={**config["text_config"], **words})
    saved(reference, place)
    features = transformers.ClapFeatureExtractor(**FEATURES)
    transformers.ClapProcessor(features, tokenizer).save_pretrained(place)
    return place


def test_vectors_and_classes_of_recordings(folder):
    """Against their processor and their model, for recordings of several lengths and rates."""
    ours, given = kt.AudioEmbedder.from_preset(folder), recordings()
    model = transformers.AutoModel.from_pretrained(folder)
    processor = transformers.AutoProcessor.from_pretrained(folder)
    inputs = processor(
        text=TEXTS, audio=given, sampling_rate=4000, padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        expected = model(**inputs)
    vectors, of_texts = ours.encode(given), ours.encode_texts(TEXTS)
    assert np.abs(vectors - expected.audio_embeds.numpy()).max() <= 2e-5
    assert np.abs(of_texts - expected.text_embeds.numpy()).max() <= 2e-5
    logits = ours.similarity(vectors, of_texts)
    assert np.abs(logits - expected.logits_per_audio.numpy()).max() <= 1e-4
    for row, vector in zip(given, vectors, strict=True):
        assert np.abs(ours.encode((row, 4000)) - vector).max() <= 1e-6
    pipe = transformers.pipeline("zero-shot-audio-classification", model=str(folder))
    for row, found in zip(given, ours.classify(given, LABELS, top_k=3), strict=True):
        shares = {each["label"]: each["score"] for each in pipe(row, candidate_labels=LABELS)}
        assert dict(found) == pytest.approx(shares, abs=2e-5)


@pytest.mark.one_backend
def test_the_task_is_exported(folder, tmp_path):
    ours, given = kt.AudioEmbedder.from_preset(folder), recordings()
    kt.export_to_huggingface(ours, tmp_path)
    again = kt.AudioEmbedder.from_preset(tmp_path)
    assert again.processor.source.values() == ours.processor.source.values()
    np.testing.assert_allclose(again.encode(given), ours.encode(given), atol=1e-6)
    for place in (folder, tmp_path):
        pipe = transformers.pipeline("zero-shot-audio-classification", model=str(place))
        shares = {each["label"]: each["score"] for each in pipe(given[0], candidate_labels=LABELS)}
        assert dict(ours.classify(given[0], LABELS, top_k=3)) == pytest.approx(shares, abs=2e-5)


@pytest.mark.one_backend
def test_the_tower_of_sound_alone(folder):
    """Its states and vectors, before they are projected, and a classifier on it."""
    tower = kt.models.Encoder.from_preset(folder)
    given, theirs = sounds(tower.config.stem, 121)
    reference = transformers.AutoModel.from_pretrained(folder).audio_model
    with torch.no_grad():
        expected = reference(**theirs).pooler_output.numpy()
    assert np.abs(to_numpy(tower.pool(tower(given))) - expected).max() <= 2e-5
    embedder = kt.AudioEmbedder(tower, kt.AudioProcessor.from_files(folder), normalize=False)
    heard = tower.pool(tower({"frames": embedder.processor.source(recordings())}))
    np.testing.assert_allclose(embedder.encode(recordings()), to_numpy(heard), atol=1e-5)
    classifier = kt.AudioClassifier.from_preset(folder, labels=["low", "high"], pooling="mean")
    assert classifier.backbone.config.encoder.vector.dim is None
    with pytest.raises(ValueError, match="is of kind 'dual', but TextEmbedder needs"):
        kt.TextEmbedder.from_preset(folder)
    given = recordings()[:2]
    assert classifier.fit(given, ["low", "high"], verbose=0).history["loss"][0] > 0


@pytest.mark.one_backend
def test_what_is_not_read_is_refused(tmp_path):
    values = families.make("clap", 0, "Model").config.to_dict()
    for part, change, message in (
        (
            "audio_config",
            {"enable_fusion": True, "fusion_type": "channel_map"},
            "fusion_type='channel_map' of an audio_config is not supported",
        ),
        ("audio_config", {"enable_fusion": True, "aff_block_r": 99}, "`fusion` must be at most"),
        ("audio_config", {"hidden_size": 99}, "hidden_size=99 of an audio_config must be"),
        ("audio_config", {"num_mel_bins": 7}, "`num_bins` must divide the height"),
        ("audio_config", {"patch_stride": [4, 2]}, "patch_stride must be a number"),
        ("audio_config", {"spec_size": 10**6}, "`image_size` of a stem must be two integers"),
        ("audio_config", {"depths": [2]}, "num_heads must be 1 numbers"),
        ("text_config", {"hidden_act": "loud"}, "hidden_act='loud' is not supported"),
        (None, {"projection_hidden_act": 3}, "projection_hidden_act=3 is not supported"),
    ):
        changed = json.loads(json.dumps(values))
        (changed if part is None else changed[part]).update(change)
        with pytest.raises(ValueError, match=message):
            kt.checkpoints.families.FAMILIES["clap"].config(changed)
    for change, message in (
        ({"truncation": "none"}, "truncation='none' is not supported"),
        ({"max_length_s": 1e9}, "`max_length_s` must be a number"),
        ({"hop_length": 7}, "must be a multiple of hop_length=7"),
        ({"padding": "mirror"}, "`padding` must be one of"),
        ({"frequency_max": 99_999}, "`frequency_max` must be a number above 0 and at most"),
        ({"frequency_min": 1950}, "`frequency_min` must be below `frequency_max`"),
        ({"fft_window_size": 2**15}, "`hop_length` must be at least"),
    ):
        with pytest.raises(ValueError, match=message):
            kt.AudioProcessor.from_values(
                {"feature_extractor_type": "ClapFeatureExtractor", **FEATURES, **change}
            )
