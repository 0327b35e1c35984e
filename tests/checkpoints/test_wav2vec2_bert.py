"""w2v-BERT 2.0 against the Transformers library: states, gradients, texts, classes, both ways."""

import json

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

NAME = "wav2vec2-bert"
CASES = range(len(CONFIGS[NAME][1]))
LENGTHS = (30, 17, 1)
# Samples of 72, 41 and 19 windows, two of them in a frame; what is left over is cut.
SAMPLES = (11_900, 6_901, 3_333)
WORDS = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4, "A": 5, "B": 6, "'": 7, "C": 8}
WORDS |= {"D": 9, "E": 10}


def frames():
    """Frames of several recordings, padded with other numbers than zeros, and their mask."""
    random = np.random.default_rng(2)
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    return random.normal(size=(*mask.shape, 10)).astype("float32"), mask


def recordings():
    random = np.random.default_rng(3)
    return [random.normal(size=length).astype("float32") for length in SAMPLES]


@pytest.fixture(scope="module", params=CASES)
def both(request, tmp_path_factory):
    reference = families.make(NAME, request.param, "Model")
    return reference, load_backbone(saved(reference, tmp_path_factory.mktemp("theirs")))


def states_of(reference, given, mask=None):
    mask = None if mask is None else torch.tensor(mask.astype("int64"))
    with torch.no_grad():
        return reference(torch.tensor(given), attention_mask=mask)[0].numpy()


def test_same_states(both):
    """Compare a padded batch with theirs, and with each recording alone."""
    reference, backbone = both
    given, mask = frames()
    states = to_numpy(backbone({"frames": given, "padding_mask": mask}))
    assert np.abs(states - states_of(reference, given, mask))[mask].max() <= 2e-5
    for found, row, length in zip(states, given, LENGTHS, strict=True):
        expected = states_of(reference, row[None, :length])[0]
        assert np.abs(found[:length] - expected).max() <= 2e-5
    whole = to_numpy(backbone({"frames": given}))
    assert np.abs(whole - states_of(reference, given)).max() <= 2e-5


@pytest.mark.one_backend
def test_export_is_the_way_back(tmp_path, both):
    reference, backbone = both
    kt.export_to_huggingface(backbone, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    given, mask = frames()
    found = states_of(again.eval(), given, mask)
    assert np.abs(found - states_of(reference, given, mask)).max() <= 2e-6
    assert_reads_back(tmp_path, backbone)


def test_same_gradients(tmp_path):
    reference = families.make(NAME, 0, "Model", mask_time_prob=0.0)
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    given, _ = frames()
    (reference(torch.tensor(given))[0] ** 2).mean().backward()
    inputs = {"frames": given}
    found = _gradients(backbone, lambda: keras.ops.mean(keras.ops.square(backbone(inputs))))
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.grad)
    expected = backbone_variables(load_backbone(saved(reference, tmp_path / "gradients")))
    for path, variable in expected.items():
        value = to_numpy(variable)
        bound = 1e-4 * np.abs(value).max() + 2e-6
        assert np.abs(found[path] - value).max() <= bound, path


def _talkative(reference):
    """With weights by which states say different things."""
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            offset = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            parameter.copy_(offset + 0.6 * torch.randn(parameter.shape, generator=random))
        frames = torch.randn((1, 40, 10), generator=random)
        reference.lm_head.bias -= reference(frames).logits.mean(dim=(0, 1))
    return reference


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """A model with a CTC head, its feature extractor and tokenizer, and their folder."""
    reference = _talkative(families.make(NAME, 0, "ForCTC"))
    folder = saved(reference, tmp_path_factory.mktemp("theirs"))
    (folder / "vocab.json").write_text(json.dumps(WORDS))
    extract = transformers.SeamlessM4TFeatureExtractor(feature_size=5, num_mel_bins=5)
    tokenizer = transformers.Wav2Vec2CTCTokenizer(folder / "vocab.json")
    transformers.Wav2Vec2BertProcessor(extract, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    extract.save_pretrained(folder)
    return reference, extract, tokenizer, folder


def test_same_texts(writer):
    """From samples to logits, texts and the times of words, in a batch as theirs."""
    reference, extract, tokenizer, folder = writer
    task = kt.CTCSpeechToText.from_preset(folder)
    assert task.processor.source.stack == 2
    given = extract(recordings(), sampling_rate=16_000, return_tensors="pt")
    with torch.no_grad():
        logits = reference(**given).logits.numpy()
    real = given["attention_mask"].numpy().astype("bool")
    texts, words = task.transcribe(recordings()), task.transcribe(recordings(), timestamps=True)
    rows = task.predict(recordings(), verbose=0)
    for found, text, said, expected, mask in zip(rows, texts, words, logits, real, strict=True):
        count = mask.sum()
        assert np.abs(found[:count] - expected[:count]).max() <= 1e-4
        assert (found[count:].argmax(-1) == task.blank_id).all()
        decoded = tokenizer.decode(expected[:count].argmax(-1), output_word_offsets=True)
        assert text == decoded.text
        assert [(w.text, round(w.start * 50), round(w.end * 50)) for w in said] == [
            (w["word"], w["start_offset"], w["end_offset"]) for w in decoded.word_offsets
        ]
    assert len(set("".join(texts))) > 4
    assert task.transcribe(recordings()[1]) == texts[1]


def test_same_loss(writer):
    reference, extract, tokenizer, folder = writer
    task = kt.CTCSpeechToText.from_preset(folder)
    texts = ["A CAB", "BAD", "EE"]
    reference.config.ctc_loss_reduction = "mean"
    expected = []
    for row, text in zip(recordings(), texts, strict=True):
        given = extract(row, sampling_rate=16_000, return_tensors="pt")
        labels = torch.tensor([tokenizer(text).input_ids])
        with torch.no_grad():
            expected.append(reference(**given, labels=labels).loss.item())
    found = task.evaluate(recordings(), texts, verbose=0)
    assert found == pytest.approx(np.mean(expected), rel=1e-4)
    with pytest.raises(ValueError, match=r"`y\[0\]` needs 12 states.* 3,333 samples, has 9"):
        task.evaluate(recordings()[2:], ["ABCDEABCDEAB"], verbose=0)


@pytest.mark.one_backend
def test_export_of_a_writer_is_the_way_back(writer, tmp_path):
    reference, extract, _, folder = writer
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


def test_same_classes(tmp_path):
    """Logits of classes, of recordings with padding, and the way back."""
    reference = families.make(NAME, 0, "ForSequenceClassification", num_labels=4)
    extract = transformers.SeamlessM4TFeatureExtractor(feature_size=5, num_mel_bins=5)
    folder = saved(reference, tmp_path / "theirs")
    extract.save_pretrained(folder)
    classifier = kt.AudioClassifier.from_preset(folder)
    logits = classifier.predict(recordings(), verbose=0)
    given = extract(recordings(), sampling_rate=16_000, return_tensors="pt")
    with torch.no_grad():
        expected = reference(**given).logits.numpy()
    assert np.abs(logits - expected).max() <= 1e-4
    kt.export_to_huggingface(classifier, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        assert np.abs(again.eval()(**given).logits.numpy() - expected).max() <= 1e-5


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"conv_depthwise_kernel_size": 4}, "conv_depthwise_kernel_size must be odd, received 4"),
        ({"add_adapter": True}, "add_adapter=True is not supported"),
        ({"position_embeddings_type": "rotary"}, "position_embeddings_type='rotary' is not"),
        ({"left_max_position_embeddings": -1}, "`before` must be at least 0"),
        ({"feature_projection_input_dim": "wide"}, "feature_projection_input_dim must be a number"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES[NAME].config(values)
