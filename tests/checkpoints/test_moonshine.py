"""Moonshine against the Transformers library: states, logits, texts, gradients, both ways."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families
from tests.checkpoints.conftest import assert_same_values
from tests.checkpoints.family_sound import CONFIGS
from tests.checkpoints.test_families import _gradients, assert_gradients, saved
from tests.tasks import moonshine

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LENGTHS = (2900, 2100, 1290)  # samples, of 6, 4 and 2 states
TARGETS = (7, 4, 5)  # tokens


def make(number, suffix="ForConditionalGeneration"):
    return families.make("moonshine", number, suffix)


def rows(model):
    """Recordings, and the tokens of their texts."""
    random = np.random.default_rng(3)
    samples = [random.normal(size=length).astype("float32") for length in LENGTHS]
    size = model.config.vocab_size
    return samples, [random.integers(3, size, length).astype("int32") for length in TARGETS]


def padded(rows):
    """Return one array and the mask of real values. The padding is not zero."""
    mask = np.arange(max(map(len, rows))) < np.array([[len(row)] for row in rows])
    array = np.ones(mask.shape, rows[0].dtype)
    array[mask] = np.concatenate(rows)
    return array, mask


def batch(model):
    samples, ids = map(padded, rows(model))
    names = ("encoder_samples", "encoder_padding_mask", "decoder_token_ids", "decoder_padding_mask")
    return dict(zip(names, (*samples, *ids), strict=True))


def alone(model, samples, ids, **options):
    with torch.no_grad():
        given = torch.tensor(samples[None]), torch.tensor(ids[None]).long()
        return model(given[0], decoder_input_ids=given[1], **options)


@pytest.fixture(scope="module", params=range(len(CONFIGS["moonshine"][1])))
def both(request, tmp_path_factory):
    reference = make(request.param)
    folder = saved(reference, tmp_path_factory.mktemp("theirs"))
    return reference, kt.SpeechToText.from_preset(folder)


@pytest.mark.one_backend
def test_same_states_and_logits(both):
    """Compare one recording, and several with padding, each with theirs alone."""
    reference, task = both
    inputs = batch(reference)
    states, collected = task.backbone(inputs, collect=("states",))
    logits, encoded = to_numpy(task(inputs)), to_numpy(collected["encoder_states"][-1])
    for i, (samples, ids) in enumerate(zip(*rows(reference), strict=True)):
        with torch.no_grad():
            expected = alone(reference.model, samples, ids)
            theirs = alone(reference, samples, ids).logits[0].numpy()
        of_encoder = expected.encoder_last_hidden_state[0].numpy()
        assert np.abs(encoded[i, : len(of_encoder)] - of_encoder).max() <= 2e-5
        of_decoder = expected.last_hidden_state[0].numpy()
        assert np.abs(to_numpy(states)[i, : len(ids)] - of_decoder).max() <= 2e-5
        assert np.abs(logits[i, : len(ids)] - theirs).max() <= 1e-4
        single = {"encoder_samples": samples[None], "decoder_token_ids": ids[None]}
        assert np.abs(to_numpy(task(single))[0] - theirs).max() <= 1e-4
    assert task.start_id == 1 and task.end_ids == (2,) and task.processor is None
    assert (task.tokens_per_second, task.window_seconds) == (6.5, 64)


@pytest.mark.one_backend
def test_padding_is_heard_there(both):
    """Why the test above is not of their batches: so docs/sound.md says."""
    reference, _ = both
    inputs = {name: torch.tensor(array) for name, array in batch(reference).items()}
    with torch.no_grad():
        found = reference(
            torch.where(inputs["encoder_padding_mask"], inputs["encoder_samples"], 0.0),
            attention_mask=inputs["encoder_padding_mask"].long(),
            decoder_input_ids=inputs["decoder_token_ids"].long(),
        ).logits
    samples, ids = (each[1] for each in rows(reference))
    expected = alone(reference, samples, ids).logits[0]
    assert (found[1, : len(ids)] - expected).abs().max() > 1e-2


def test_same_gradients(tmp_path):
    reference = make(0, "Model")
    backbone = load_backbone(saved(reference, tmp_path / "theirs"))
    samples, ids = (each[0] for each in rows(reference))
    inputs = {"encoder_samples": samples[None], "decoder_token_ids": ids[None]}
    given = torch.tensor(samples[None]), torch.tensor(ids[None]).long()
    (reference(given[0], decoder_input_ids=given[1])[0] ** 2).mean().backward()
    found = _gradients(backbone, lambda: keras.ops.mean(keras.ops.square(backbone(inputs))))
    assert_gradients(found, reference, tmp_path / "gradients")


@pytest.mark.one_backend
def test_export_is_the_way_back(both, tmp_path):
    reference, task = both
    kt.export_to_huggingface(task, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    for samples, ids in zip(*rows(reference), strict=True):
        found, expected = (alone(each.eval(), samples, ids).logits for each in (again, reference))
        assert (found - expected).abs().max() <= 1e-5
    written = again.state_dict()
    for name, tensor in reference.state_dict().items():
        assert torch.equal(written[name], tensor), name
    back = kt.SpeechToText.from_preset(tmp_path)
    assert back.backbone.config == task.backbone.config
    assert back.task_values() == task.task_values()
    assert_same_values(back.backbone, task.backbone)


@pytest.fixture(scope="module", params=[0, 1])
def writers(request, tmp_path_factory):
    """A model that writes, ours and theirs, and the folder of it."""
    transformers.logging.set_verbosity_error()
    reference = moonshine.model(request.param)
    folder = moonshine.saved(reference, tmp_path_factory.mktemp("moonshine"))
    return reference, kt.SpeechToText.from_preset(folder), folder


def theirs_of(reference, samples, **limits):
    given = moonshine.features()(samples, sampling_rate=16_000, return_tensors="pt")
    return reference.generate(**given, do_sample=False, **limits)[0].tolist()


def test_same_texts(writers):
    """From recordings to tokens and texts, several at once, each as theirs alone."""
    reference, task, _ = writers
    recordings, tokenizer = moonshine.recordings(), moonshine.tokenizer()
    assert not task.processor.source.normalize
    found = task.generate(recordings, max_new_tokens=12, return_details=True, batch_size=2)
    for samples, completion in zip(recordings, found, strict=True):
        start, *ids = theirs_of(reference, samples, max_new_tokens=12)
        assert start == task.start_id
        assert completion.token_ids == [i for i in ids if i != 2]
        assert completion.text == tokenizer.decode(ids, skip_special_tokens=True)
    assert len({i for completion in found for i in completion.token_ids}) > 6
    # Without a limit, each row's own limit follows from its seconds.
    expected = [
        tokenizer.decode(
            theirs_of(reference, samples, max_new_tokens=int(6.5 * seconds)),
            skip_special_tokens=True,
        )
        for samples, seconds in zip(recordings, moonshine.LENGTHS, strict=True)
    ]
    assert task.transcribe(recordings) == expected
    assert [task.transcribe(samples) for samples in recordings] == expected


def test_same_scores(writers):
    """The log-probability of texts, of recordings together, is that of their logits."""
    reference, task, _ = writers
    recordings, texts = moonshine.recordings(), ["ab a", "the other", "é"]
    found = task.score(recordings, texts)
    for samples, text, score in zip(recordings, texts, found, strict=True):
        ids = moonshine.tokenizer()(text, add_special_tokens=False).input_ids
        logits = alone(reference, samples, np.array([1, *ids])).logits[0]
        chosen = logits.log_softmax(-1)[range(len(ids) + 1), [*ids, 2]]
        assert score == pytest.approx(chosen.sum().item(), rel=1e-4)


@pytest.mark.one_backend
def test_export_of_a_writer_is_the_way_back(writers, tmp_path):
    reference, task, _ = writers
    kt.export_to_huggingface(task, tmp_path)
    again = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path).eval()
    processor = transformers.AutoProcessor.from_pretrained(tmp_path)
    assert type(processor) is transformers.Wav2Vec2Processor
    extractor = processor.feature_extractor
    assert not extractor.do_normalize and extractor.return_attention_mask
    assert again.generation_config.max_length == 40
    for samples in moonshine.recordings():
        given = processor(samples, sampling_rate=16_000, return_tensors="pt")
        ids = again.generate(**given, do_sample=False, max_new_tokens=9)[0].tolist()
        assert ids == theirs_of(reference, samples, max_new_tokens=9)
        assert processor.decode(ids, skip_special_tokens=True) == task.transcribe(
            samples, max_new_tokens=9
        )
    back = kt.SpeechToText.from_preset(tmp_path)
    assert back.transcribe(moonshine.recordings()) == task.transcribe(moonshine.recordings())


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"decoder_num_attention_heads": 4}, "decoder_num_attention_heads=4 is not supported"),
        ({"encoder_num_key_value_heads": 2}, "encoder_num_key_value_heads=2 is not supported"),
        ({"encoder_num_attention_heads": "many"}, "encoder_num_attention_heads must be a number"),
        ({"encoder_hidden_act": "loud"}, "encoder_hidden_act='loud' is not supported"),
        ({"decoder_hidden_act": ["silu"]}, "decoder_hidden_act=.'silu'. is not supported"),
        ({"hidden_size": 10**6}, "`filters` of the stem must be 3 integers"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type='spiral' is not supported"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["moonshine"].config(values)


@pytest.mark.backend_independent
def test_shares_of_rotary_features():
    """As a config has them: the usual one, and one whose product would be just below a number."""
    family = FAMILIES["moonshine"]
    for changed, share in (({}, 0.9), ({"rotary_dim": 30}, 30 / 36), ({"rotary_dim": 23}, None)):
        config = family.config({"head_dim": 43} if share is None else {}).replace(**changed)
        written = family.published_config(config)["rope_parameters"]["partial_rotary_factor"]
        assert written == pytest.approx(share or 23 / 43, rel=1e-12)
        assert int(config.head_dim * written) == config.rotary_dim
    assert int(43 * (23 / 43)) == 22


@pytest.mark.backend_independent
def test_what_a_checkpoint_cannot_say_is_not_written():
    family = FAMILIES["moonshine"]
    config = family.config({})
    stem = {**config.flat["encoder"]["stem"], "strides": (64, 3, 3)}
    for values, message in (
        ({"num_key_value_heads": 2}, "num_key_value_heads=2 is not supported|key_value_heads"),
        ({"encoder": {**config.flat["encoder"], "stem": stem}}, "cannot express stem"),
        ({"encoder": {**config.flat["encoder"], "num_heads": 4}}, "cannot express num_heads"),
        ({"normalize_first": False}, "cannot express normalize_first"),
    ):
        with pytest.raises(ValueError, match=message):
            family.published_config(config.replace(**values))
