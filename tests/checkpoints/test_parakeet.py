"""Parakeet against the Transformers library: states, gradients, features, texts, both ways."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import backbone_variables, load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_reads_back
from tests.checkpoints.family_sound import CONFIGS
from tests.checkpoints.test_families import _gradients, saved

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NAME, WRITER = "parakeet_encoder", "parakeet_ctc"
LENGTHS = (30, 17, 1)
# Samples of 74, 43 and 20 frames: what does not fill a frame is cut.
SAMPLES = (11_900, 6_901, 3_333)
TEXTS = ["a cab", "bad dad", "fade"]


def frames():
    """Frames of several recordings, padded with other numbers than zeros, and their mask."""
    random = np.random.default_rng(2)
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    return random.normal(size=(*mask.shape, 8)).astype("float32"), mask


def recordings():
    random = np.random.default_rng(3)
    return [random.normal(size=length).astype("float32") for length in SAMPLES]


def states_of(reference, given, mask=None):
    """Their states, and which of them are real. Their first convolution would read padding."""
    mask = np.ones(given.shape[:2], "bool") if mask is None else mask
    given = torch.tensor(np.where(mask[..., None], given, 0))
    with torch.no_grad():
        found = reference(given, attention_mask=torch.tensor(mask))
    return found.last_hidden_state.numpy(), found.attention_mask.numpy().astype("bool")


@pytest.fixture(scope="module", params=range(len(CONFIGS[NAME][1])))
def both(request, tmp_path_factory):
    reference = families.make(NAME, request.param, "Model")
    return reference, load_backbone(saved(reference, tmp_path_factory.mktemp("theirs")))


@pytest.mark.each_backend
def test_same_states(both):
    """Compare a padded batch with theirs, and with each recording alone."""
    reference, backbone = both
    given, mask = frames()
    states = to_numpy(backbone({"frames": given, "padding_mask": mask}))
    expected, real = states_of(reference, given, mask)
    assert np.abs(states - expected)[real].max() <= 2e-5
    row, count = given[1, : LENGTHS[1]], real[1].sum()
    alone = to_numpy(backbone({"frames": row[None]}))[0]
    assert np.abs(alone - states_of(reference, row[None])[0][0]).max() <= 2e-5
    assert np.abs(states[1, :count] - alone).max() <= 2e-5


@pytest.mark.one_backend
def test_export_is_the_way_back(tmp_path, both):
    reference, backbone = both
    kt.export_to_huggingface(backbone, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    given, mask = frames()
    found, real = states_of(again.eval(), given, mask)
    assert np.abs(found - states_of(reference, given, mask)[0])[real].max() <= 2e-6
    assert_reads_back(tmp_path, backbone)


def test_same_gradients(tmp_path):
    reference = families.make(NAME, 0, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    given, _ = frames()
    (reference(torch.tensor(given)).last_hidden_state ** 2).mean().backward()
    inputs = {"frames": given}
    found = _gradients(backbone, lambda: keras.ops.mean(keras.ops.square(backbone(inputs))))
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.grad)
    expected = backbone_variables(load_backbone(saved(reference, tmp_path / "gradients")))
    for path, variable in expected.items():
        if "moving" not in path:
            value = to_numpy(variable)
            bound = 1e-4 * np.abs(value).max() + 2e-6
            assert np.abs(found[path] - value).max() <= bound, path


def test_averages_over_a_batch_leave_padding_out(both):
    """In training, the moving averages become nearer those of the real states alone."""
    _, backbone = both
    layer = backbone.encoder.blocks[0].conformer
    seen = np.random.default_rng(5).normal(size=(2, 6, backbone.config.hidden_dim))
    mask = np.arange(6) < np.array([[6], [3]])
    norm = layer.depthwise_norm
    before = to_numpy(norm.moving_mean).copy()
    norm(seen.astype("float32"), training=True, mask=mask)
    moved = 0.9 * before + 0.1 * seen[mask].mean(axis=0)
    assert np.abs(to_numpy(norm.moving_mean) - moved).max() <= 1e-5
    norm.moving_mean.assign(before)


@pytest.mark.backend_independent
def test_same_features():
    """The exact logarithms, from float64, of which theirs in float32 are within 1e-4."""
    extract = transformers.ParakeetFeatureExtractor()
    processor = kt.AudioProcessor.from_values(extract.to_dict())
    theirs = extract(recordings(), sampling_rate=16_000, return_tensors="np")
    ours = processor(recordings())
    filters = extract.mel_filters.numpy().astype("float64").T
    window = np.zeros(512)
    window[56:456] = np.hanning(400)
    for place, row in enumerate(recordings()):
        row = row.astype("float64")
        row = np.pad(np.append(row[0], row[1:] - 0.97 * row[:-1]), 256)
        starts = range(0, len(recordings()[place]) // 160 * 160, 160)
        power = [np.abs(np.fft.rfft(row[i : i + 512] * window)) ** 2 for i in starts]
        levels = np.log(np.array(power) @ filters + 2**-24)
        exact = (levels - levels.mean(0)) / (levels.std(0, ddof=1) + 1e-5)
        count = theirs["attention_mask"][place].sum()
        assert count == len(exact) == processor.count_frames(SAMPLES[place])
        assert np.abs(ours[place, :count] - exact).max() <= 1e-5
        assert np.abs(theirs["input_features"][place, :count] - exact).max() <= 1e-4
        assert not ours[place, count:].any()
    assert kt.AudioProcessor.from_values(processor.values()).values() == processor.values()
    assert processor([np.ones(5, "float32")]).shape[1] >= 2  # of too few samples


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """A model with a CTC head, its feature extractor and tokenizer, and their folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers.models.parakeet.tokenization_parakeet import ParakeetTokenizer

    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=12, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(TEXTS * 5, trainer)
    tokenizer = ParakeetTokenizer(tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>")
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    reference = families.make(WRITER, 0, "ForCTC", **sizes)
    extract = transformers.ParakeetFeatureExtractor(feature_size=8)
    given = extract(recordings(), sampling_rate=16_000, return_tensors="pt")
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():  # so that states say different things
        weight = reference.ctc_head.weight
        weight.copy_(2 * torch.randn(weight.shape, generator=random))
        reference.ctc_head.bias -= reference(**given).logits[0].mean(dim=0)
    folder = saved(reference, tmp_path_factory.mktemp("theirs"))
    transformers.ParakeetProcessor(extract, tokenizer).save_pretrained(folder)
    return reference, extract, tokenizer, folder


@pytest.mark.each_backend
def test_same_texts(writer):
    """From samples to logits and texts, in a batch as theirs."""
    reference, extract, tokenizer, folder = writer
    task = kt.CTCSpeechToText.from_preset(folder)
    given = extract(recordings(), sampling_rate=16_000, return_tensors="pt")
    with torch.no_grad():
        logits = reference(**given).logits.numpy()
        real = reference._get_output_attention_mask(given["attention_mask"]).numpy()
    texts, rows = task.transcribe(recordings()), task.predict(recordings(), verbose=0)
    for found, text, expected, count in zip(rows, texts, logits, real.sum(1), strict=True):
        # Their features are less exact.
        assert np.abs(found[:count] - expected[:count]).max() <= 2e-4
        assert (found[count:].argmax(-1) == task.blank_id).all()
        assert text == tokenizer.decode(expected[:count].argmax(-1), skip_special_tokens=True)
    assert len(set("".join(texts))) > 3
    assert task.transcribe(recordings()[1]) == texts[1]
    with pytest.raises(ValueError, match="no word delimiter"):
        task.transcribe(recordings(), timestamps=True)


def test_same_loss_and_learning(writer):
    reference, extract, tokenizer, folder = writer
    task = kt.CTCSpeechToText.from_preset(folder)
    expected = []
    for row, text in zip(recordings(), TEXTS, strict=True):
        given = extract(row, sampling_rate=16_000, return_tensors="pt")
        labels = torch.tensor([tokenizer(text, add_special_tokens=False).input_ids])
        with torch.no_grad():
            expected.append(reference(**given, labels=labels).loss.item())
    found = task.evaluate(recordings(), TEXTS, verbose=0)
    assert found == pytest.approx(np.mean(expected), rel=1e-3)
    history = task.fit(recordings(), TEXTS, epochs=1, verbose=0).history
    assert np.isfinite(history["loss"][0])


@pytest.mark.one_backend
def test_export_of_a_writer_is_the_way_back(writer, tmp_path):
    reference, extract, tokenizer, folder = writer
    task = kt.CTCSpeechToText.from_preset(folder)
    kt.export_to_huggingface(task, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    processor = transformers.AutoFeatureExtractor.from_pretrained(tmp_path)
    given, theirs = (
        each(recordings(), sampling_rate=16_000, return_tensors="pt")
        for each in (processor, extract)
    )
    with torch.no_grad():
        found, expected = again.eval()(**given).logits, reference(**theirs).logits
    assert (found - expected).abs().max() <= 1e-5
    back = kt.CTCSpeechToText.from_preset(tmp_path)
    assert back.task_values() == task.task_values()
    assert back.transcribe(recordings()) == task.transcribe(recordings())
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.encode("bad cab") == tokenizer.encode("bad cab")
    with pytest.raises(ValueError, match="without a head"):
        kt.export_to_huggingface(task.backbone, tmp_path / "bare", family=WRITER)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"conv_kernel_size": 4}, "conv_kernel_size must be odd, received 4"),
        ({"subsampling_factor": 6}, "subsampling_factor must be a power of two"),
        ({"num_mel_bins": 12}, "that divides num_mel_bins, received 8 and 12"),
        ({"subsampling_conv_stride": 3}, "subsampling_conv_stride=3 is not supported"),
        ({"subsampling_conv_kernel_size": 2}, "`kernel_size` of the stem must be odd"),
        ({"convolution_bias": "no"}, "convolution_bias"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES[NAME].config(values)
    with pytest.raises(ValueError, match=message):
        FAMILIES[WRITER].config({"encoder_config": values})


@pytest.mark.backend_independent
def test_wrong_features_are_refused():
    values = transformers.ParakeetFeatureExtractor().to_dict()
    for name, value in (("n_fft", 400), ("preemphasis", 0.9), ("preemphasis", None)):
        with pytest.raises(ValueError, match=f"{name}={value} is not supported"):
            kt.AudioProcessor.from_values({**values, name: value})
