"""Families that read waveforms against the Transformers library: states, texts, both ways."""

import json

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import backbone_variables, load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import Checkpoint, save_tensors, to_numpy
from keras_transformer.checkpoints.weights.weight_norm import kernel_of
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_reads_back
from tests.checkpoints.family_sound import CONFIGS
from tests.checkpoints.test_families import _gradients, saved
from tests.compiled import outputs_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NAMES = ("wav2vec2", "hubert", "wavlm")
CASES = [(name, i) for name in NAMES for i in range(len(CONFIGS[name][1]))]
LENGTHS = (900, 700, 257)
VOCABULARY = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4, "A": 5, "B": 6, "'": 7, "C": 8}
VOCABULARY |= {"D": 9, "E": 10}


def recordings():
    random = np.random.default_rng(3)
    return [random.normal(size=length).astype("float32") for length in LENGTHS]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "{}-{}".format(*case))
def both(request, tmp_path_factory):
    reference = families.make(*request.param, "Model")
    return reference, load_backbone(saved(reference, tmp_path_factory.mktemp("theirs")))


def alone(reference, row):
    with torch.no_grad():
        return reference(torch.tensor(row[None]))[0][0].numpy()


def test_same_states(both):
    """Compare one recording, and several with padding, each with theirs alone."""
    reference, backbone = both
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    samples = np.zeros(mask.shape, "float32")
    samples[mask] = np.concatenate(recordings())
    states = outputs_of(backbone, {"samples": samples, "padding_mask": mask})
    for found, row in zip(states, recordings(), strict=True):
        expected = alone(reference, row)
        assert np.abs(found[: len(expected)] - expected).max() <= 2e-5
    if reference.config.feat_extract_norm == "layer":  # which theirs reads with a mask
        with torch.no_grad():
            given = torch.tensor(samples), torch.tensor(mask.astype("int64"))
            theirs = reference(given[0], attention_mask=given[1])[0].numpy()
        real = to_numpy(backbone.stem.mask_of_states(mask, states.shape[1]))
        assert np.abs(states - theirs)[real].max() <= 2e-5


@pytest.mark.one_backend
def test_export_is_the_way_back(tmp_path, both):
    reference, backbone = both
    kt.export_to_huggingface(backbone, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    row = recordings()[0]
    assert np.abs(alone(again.eval(), row) - alone(reference, row)).max() <= 2e-6
    assert_reads_back(tmp_path, backbone)


@pytest.mark.parametrize("case", CASES[:2])
def test_same_gradients(tmp_path, case):
    """Compare all weights but the kernel of positions, which is two tensors there."""
    reference = families.make(*case, "Model", mask_time_prob=0.0)
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    row = recordings()[0][None]
    (reference(torch.tensor(row))[0] ** 2).mean().backward()
    inputs = {"samples": row}
    found = _gradients(backbone, lambda: keras.ops.mean(keras.ops.square(backbone(inputs))))
    lengths = dict(reference.named_parameters())
    with torch.no_grad():
        for name, parameter in lengths.items():
            if "pos_conv_embed.conv.parametrizations" not in name:
                parameter.copy_(parameter.grad)
    expected = backbone_variables(load_backbone(saved(reference, tmp_path / "gradients")))
    for path, variable in expected.items():
        if path != "encoder/input_positions/kernel":
            value = to_numpy(variable)
            bound = 1e-4 * np.abs(value).max() + 2e-6
            assert np.abs(found[path] - value).max() <= bound, path


def _talkative(reference):
    """With weights by which states say different things."""
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            wide = 1.5 if "pos_conv" in name or "q_proj" in name or "k_proj" in name else 0.6
            offset = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            parameter.copy_(offset + wide * torch.randn(parameter.shape, generator=random))
        logits = reference(torch.tensor(recordings()[0][None])).logits
        reference.lm_head.bias -= logits.mean(dim=(0, 1))
    return reference


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "{}-{}".format(*case))
def writers(request, tmp_path_factory):
    """A model with a CTC head, its processor and tokenizer, and their folder."""
    reference = _talkative(families.make(*request.param, "ForCTC"))
    folder = saved(reference, tmp_path_factory.mktemp("theirs"))
    words = dict(VOCABULARY)
    if reference.config.pad_token_id:
        words |= {"<pad>": 4, "|": 0}
    (folder / "vocab.json").write_text(json.dumps(words))
    masked = reference.config.feat_extract_norm == "layer"
    lower = request.param[1] == 1
    tokenizer = transformers.Wav2Vec2CTCTokenizer(folder / "vocab.json", do_lower_case=lower)
    extract = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=masked)
    tokenizer.save_pretrained(folder)
    extract.save_pretrained(folder)
    return reference, extract, tokenizer, folder


def theirs_of(writers, row):
    reference, extract, _, _ = writers
    given = extract(row, sampling_rate=16_000, return_tensors="pt").input_values
    with torch.no_grad():
        return reference(given).logits


def test_same_texts(writers):
    """From samples to logits, texts and the times of words, each recording as theirs alone."""
    _, extract, tokenizer, folder = writers
    task = kt.CTCSpeechToText.from_preset(folder)
    assert task.processor.source.return_attention_mask == extract.return_attention_mask
    texts, words = task.transcribe(recordings()), task.transcribe(recordings(), timestamps=True)
    rows = task.predict(recordings(), verbose=0)
    second = 16_000 / task.backbone.config.stem.samples_of_state
    for row, text, said, logits in zip(recordings(), texts, words, rows, strict=True):
        expected = theirs_of(writers, row)
        assert np.abs(logits[: expected.shape[1]] - expected[0].numpy()).max() <= 1e-4
        assert (logits[expected.shape[1] :].argmax(-1) == task.blank_id).all()
        ids = expected.argmax(-1)[0]
        decoded = tokenizer.decode(ids, output_word_offsets=True)
        assert text == decoded.text
        assert [(w.text, round(w.start * second), round(w.end * second)) for w in said] == [
            (w["word"].lower() if tokenizer.do_lower_case else w["word"], w["start_offset"],
             w["end_offset"]) for w in decoded.word_offsets
        ]  # fmt: skip
    assert len(set("".join(texts))) > 4


def test_same_loss(writers):
    reference, extract, tokenizer, folder = writers
    task = kt.CTCSpeechToText.from_preset(folder)
    texts = ["a cab" if tokenizer.do_lower_case else "A CAB", "BAD", "EE"]
    reference.config.ctc_loss_reduction = "mean"
    expected = []
    for row, text in zip(recordings(), texts, strict=True):
        given = extract(row, sampling_rate=16_000, return_tensors="pt").input_values
        labels = torch.tensor([tokenizer(text).input_ids])
        with torch.no_grad():
            expected.append(reference(given, labels=labels).loss.item())
    found = task.evaluate(recordings(), texts, verbose=0)
    assert found == pytest.approx(np.mean(expected), rel=1e-4)


@pytest.mark.one_backend
def test_export_of_a_writer_is_the_way_back(writers, tmp_path):
    _, extract, tokenizer, folder = writers
    task = kt.CTCSpeechToText.from_preset(folder)
    kt.export_to_huggingface(task, tmp_path)
    again, info = type(writers[0]).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    processor = transformers.AutoProcessor.from_pretrained(tmp_path)
    assert type(processor.tokenizer) is type(tokenizer)
    assert processor.feature_extractor.return_attention_mask == extract.return_attention_mask
    for row in recordings():
        given = processor(row, sampling_rate=16_000, return_tensors="pt").input_values
        with torch.no_grad():
            ids = again.eval()(given).logits.argmax(-1)
        expected = tokenizer.batch_decode(theirs_of(writers, row).argmax(-1))
        assert processor.batch_decode(ids) == expected
    back = kt.CTCSpeechToText.from_preset(tmp_path)
    assert back.task_values() == task.task_values()
    assert back.transcribe(recordings()) == task.transcribe(recordings())


@pytest.mark.parametrize("case", CASES)
def test_same_classes(case, tmp_path):
    """Logits of classes, of recordings with padding, and the way back."""
    reference = families.make(*case, "ForSequenceClassification", num_labels=4)
    extract = transformers.Wav2Vec2FeatureExtractor()
    folder = saved(reference, tmp_path / "theirs")
    extract.save_pretrained(folder)
    classifier = kt.AudioClassifier.from_preset(folder)
    logits = classifier.predict(recordings(), verbose=0)
    for found, row in zip(logits, recordings(), strict=True):
        given = extract(row, sampling_rate=16_000, return_tensors="pt").input_values
        with torch.no_grad():
            expected = reference(given).logits[0].numpy()
        assert np.abs(found - expected).max() <= 1e-4
    kt.export_to_huggingface(classifier, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        assert np.abs(again.eval()(given).logits[0].numpy() - expected).max() <= 1e-5
    back = kt.AudioClassifier.from_preset(tmp_path / "ours")
    assert back.task_values() == classifier.task_values()


@pytest.mark.backend_independent
def test_weight_norm_of_older_files(tmp_path):
    """Lengths and directions under PyTorch's older names; a part alone is no kernel."""
    reference = families.make("wav2vec2", 0, "Model")
    folder = saved(reference, tmp_path / "theirs")
    expected = Checkpoint(folder)
    name = "encoder.pos_conv_embed.conv"
    new = [f"{name}.parametrizations.weight.original{i}" for i in (0, 1)]
    tensors = {n: expected.read(n) for n in expected if n != f"{name}.weight"}
    lengths, directions = (dict(reference.named_parameters())[n].detach().numpy() for n in new)
    assert expected[f"{name}.weight"].shape == directions.shape
    conv = reference.encoder.pos_conv_embed.conv.weight.detach().numpy()
    kernel = expected.read(f"{name}.weight")
    assert np.abs(kernel - conv).max() <= 1e-6
    assert np.abs(kernel_of(lengths, directions) - conv).max() <= 1e-6

    old = {f"{name}.weight_g": lengths, f"{name}.weight_v": directions}
    save_tensors(folder / "model.safetensors", {**tensors, **old})
    assert np.array_equal(Checkpoint(folder).read(f"{name}.weight"), kernel)
    load_backbone(folder)
    for odd in (
        {f"{name}.weight_v": directions},
        {f"{name}.weight_g": lengths[..., :3], f"{name}.weight_v": directions},
    ):
        save_tensors(folder / "model.safetensors", {**tensors, **odd})
        with pytest.raises(ValueError, match=r"missing:\n  encoder.pos_conv_embed.conv.weight "):
            load_backbone(folder)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("wav2vec2", {"conv_dim": 512}, "`filters`"),
        ("wav2vec2", {"conv_stride": [5, 2]}, "`strides` of the stem must be 7 integers"),
        ("wav2vec2", {"feat_extract_norm": "batch"}, "`norm` must be one of"),
        ("wav2vec2", {"feat_extract_activation": "loud"}, "feat_extract_activation='loud' is not"),
        ("wav2vec2", {"add_adapter": True}, "add_adapter=True is not supported"),
        ("wav2vec2", {"adapter_attn_dim": 16}, "adapter_attn_dim=16 is not supported"),
        ("hubert", {"conv_pos_batch_norm": True}, "conv_pos_batch_norm=True is not supported"),
        ("hubert", {"num_conv_pos_embedding_groups": 0}, "`position_groups` must be at least 1"),
    ],
)
def test_wrong_values_are_refused(name, values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES[name].config(values)


@pytest.mark.backend_independent
def test_a_weighted_sum_of_layers_is_refused():
    values = {"architectures": ["Wav2Vec2ForSequenceClassification"]}
    with pytest.raises(ValueError, match="use_weighted_layer_sum=True is not supported"):
        FAMILIES["wav2vec2"].task({**values, "use_weighted_layer_sum": True})
