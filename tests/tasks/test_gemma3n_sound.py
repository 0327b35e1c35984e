"""Gemma 3n: conversations with recordings, against Transformers."""

import copy
import json
import logging

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.generation import BeamSearch, Rules
from keras_transformer.processors import Sound
from tests.checkpoints.test_families import _gradients, assert_gradients
from tests.tasks import vision_chats
from tests.tasks.test_gemma4_sound import (
    assert_back,
    assert_planned,
    assert_saved,
    recording,
    sound,
)
from tests.tasks.test_qwen_vl import said
from tests.tasks.test_vision_chats import arrays_of, theirs_of
from tests.tasks.vision_chats import user

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    model, processor = vision_chats.gemma3n(folder)
    return model, processor, kt.ImageToText.from_preset(folder)


A, B, C = sound(7777), sound(513, 1), sound(16_001, 2)


def conversations():
    """Rows with none, with one and with several recordings."""
    return [
        [user("which is dark ?")],
        [user(A, "which is dark ?")],
        [user("a : ", B, " b : ", A, " ?"), said(), user("which ?", C)],
        [user("which or ?", C), said(), user({**C, "audio": recording(900)})],
    ]


def embedded(model, processor, conversation):
    """Their inputs of a conversation, each of whose recordings is encoded by itself.

    In a batch of theirs the last states of a short recording depend on the longest one.
    """
    ids, inner = theirs_of(processor, conversation)["input_ids"], model.model
    further = torch.tensor([[model.config.text_config.vocab_size - 1]])
    padding = inner.embed_audio(input_ids=further)[0]
    rows = []
    for each in processor.recordings(conversation):
        read = inner.get_audio_features(
            each["input_features"], ~each["input_features_mask"], return_dict=True
        )
        states = read.pooler_output[0]
        rows += [states, padding.expand(processor.states - len(states), -1)]
    x = inner.get_input_embeddings()(ids)
    first = model.config.audio_config.vocab_offset
    hard = inner.embed_audio(input_ids=ids.clamp(min=first))
    x = torch.where((ids >= first)[..., None], hard, x)
    if rows:
        places = (ids == model.config.audio_token_id)[..., None].expand_as(x)
        x = x.masked_scatter(places, torch.cat(rows))
    return {
        "inputs_embeds": x,
        "per_layer_inputs": inner.language_model.get_per_layer_inputs(ids),
    }


@pytest.mark.each_backend
def test_same_logits_in_one_batch(both):
    """Each row as theirs alone; a recording in several places is encoded once."""
    model, processor, task = both
    arrays, mask = arrays_of(task, conversations())
    assert len(np.unique(arrays["encoder_frames"], axis=0)) <= 5  # four, and a blank one
    found = to_numpy(task(arrays))
    for i, conversation in enumerate(conversations()):
        theirs = theirs_of(processor, conversation)["input_ids"][0].tolist()
        assert theirs == arrays["decoder_token_ids"][i][mask[i]].tolist()
        with torch.no_grad():
            expected = model(**embedded(model, processor, conversation)).logits[0].numpy()
        assert np.abs(found[i][mask[i]] - expected).max() <= 1e-4


@pytest.mark.one_backend
def test_same_logits_by_their_own_inputs(both):
    """One recording: the features, their mask and the ids, as their processor gives them."""
    model, processor, task = both
    conversation = conversations()[1]
    (given,) = processor.recordings(conversation)
    with torch.no_grad():
        expected = model(**theirs_of(processor, conversation), **given).logits[0].numpy()
    arrays, mask = arrays_of(task, [conversation])
    assert np.abs(to_numpy(task(arrays))[mask] - expected).max() <= 1e-4


@pytest.mark.each_backend
def test_same_states_of_recordings(both):
    """States of the tower, and as they are put among the tokens, whatever the padding."""
    model, processor, task = both
    samples = [recording(n, i) for i, n in enumerate((513, 16_001, 7777, 12_345, 1800))]
    arrays = task.processor.source.sounds.arrays(samples, frames=130)
    backbone = task.backbone
    heard, _ = backbone._of_side("encoder", arrays, (), False)
    states = to_numpy(heard["encoder_states"])[:, ::4]
    projected = to_numpy(backbone.projector(heard["encoder_states"]))
    for i, row in enumerate(samples):
        given = processor.sounds([row], return_tensors="pt")
        with torch.no_grad():
            read = model.model.get_audio_features(
                given["input_features"], ~given["input_features_mask"], return_dict=True
            )
        count = task.processor.source.sounds.num_states(len(row))
        assert count == read.last_hidden_state.shape[1] and not read.audio_mel_mask.any()
        for mine, theirs in ((states, read.last_hidden_state), (projected, read.pooler_output)):
            assert np.abs(mine[i, :count] - theirs[0].numpy()).max() <= 2e-5


@pytest.mark.backend_independent
def test_same_features():
    """Recordings of odd lengths and rates: each frame is theirs, and so is their number."""
    processor = kt.processors.SoftTokenSoundProcessor(family="Gemma3n")
    theirs = transformers.Gemma3nAudioFeatureExtractor()
    for seed, (length, rate) in enumerate(
        ((16_001, 16_000), (7777, 8000), (44_099, 44_100), (513, 16_000), (480_000, 16_000))
    ):
        samples = processor.samples(Sound((recording(length, seed), rate)))
        expected = theirs([samples], return_tensors="np")
        assert expected["input_features_mask"].all()
        made = processor.arrays([samples])
        assert made["padding_mask"].all()
        assert np.abs(made["frames"] - expected["input_features"]).max() <= 1e-5
        (states,) = processor.layout(Sound(samples)).runs
        assert (states >= 0).sum() == -(-expected["input_features"].shape[1] // 16)
        assert len(states) == 188


@pytest.mark.each_backend
def test_answers_are_theirs(both):
    """8 tokens of a batch, through the cache; a conversation alone; beams."""
    model, processor, task = both
    task.end_ids, ends = (), task.end_ids
    names = ("<audio_soft_token>", "<image_soft_token>", "<end_of_image>", "<further>")
    bad = [[task.tokenizer.token_to_id(name)] for name in names]
    options = {"max_new_tokens": 8, "rules": Rules(bad_words=bad)}
    try:
        found = task.generate(conversations(), return_details=True, **options)
        for conversation, completion in zip(conversations(), found, strict=True):
            given = embedded(model, processor, conversation)
            for token in completion.token_ids:
                with torch.no_grad():
                    scores = model(**given).logits[0, -1].clone()
                scores[[id for (id,) in bad]] = -np.inf
                assert scores.argmax() == token
                further = embedded_token(model, token)
                given = {n: torch.cat([x, further[n]], dim=1) for n, x in given.items()}
        assert len(found[0].token_ids) == 8
        last = conversations()[3]
        assert task.chat(last, **options) == found[3].text
        beams = task.generate(conversations()[2:4], sampler=BeamSearch(2), **options)
        assert task.chat(last, sampler=BeamSearch(2), **options) == beams[-1]
    finally:
        task.end_ids = ends


def embedded_token(model, token):
    ids, inner = torch.tensor([[token]]), model.model
    first = model.config.audio_config.vocab_offset
    embed = inner.get_input_embeddings() if token < first else inner.embed_audio
    return {
        "inputs_embeds": embed(ids) if token < first else embed(input_ids=ids),
        "per_layer_inputs": inner.language_model.get_per_layer_inputs(ids),
    }


@pytest.mark.each_backend
def test_same_gradients(both, tmp_path):
    model, processor, task = both
    model, conversation = copy.deepcopy(model), conversations()[2]
    arrays, _ = arrays_of(task, [conversation])
    (model(**embedded(model, processor, conversation)).logits ** 2).mean().backward()
    for name, parameter in model.named_parameters():
        if "vision" in name:
            parameter.requires_grad_(False)
    backbone = task.backbone
    found = _gradients(
        backbone, lambda: keras.ops.mean(keras.ops.square(backbone.logits(backbone(arrays))))
    )
    heard = [path for path in found if path.startswith(("encoder", "projector"))]
    names = [name for name, _ in model.named_parameters() if "audio" in name]
    assert len(heard) == len(names) and all(np.abs(found[path]).max() > 0 for path in heard)
    assert_gradients(found, model, tmp_path / "gradients")


@pytest.mark.one_backend
def test_export_is_the_way_back(both, tmp_path):
    """All but the tower of images, which was not read."""
    model, processor, task = both
    kt.export_to_huggingface(task, tmp_path)
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    missing = info.pop("missing_keys")
    assert not any(info.values()), info
    assert missing and all(
        name.startswith(("model.vision_tower.", "model.embed_vision.")) for name in missing
    )
    theirs = embedded(model, processor, conversations()[2])
    with torch.no_grad():
        expected, mine = (each(**theirs).logits.numpy() for each in (model, again.eval()))
    assert np.abs(mine - expected).max() <= 1e-6
    given = [recording(7777)]
    parts = json.loads((tmp_path / "processor_config.json").read_text())
    sounds = transformers.Gemma3nAudioFeatureExtractor.from_dict(parts["feature_extractor"])
    assert parts["audio_seq_length"] == processor.states
    assert np.array_equal(
        sounds(given)["input_features"], processor.sounds(given)["input_features"]
    )
    theirs, before = again.config, model.config
    assert theirs.audio_token_id == before.audio_token_id
    assert theirs.image_token_id == before.image_token_id
    for name in ("vocab_offset", "vocab_size"):
        for part in ("audio_config", "vision_config"):
            assert getattr(getattr(theirs, part), name) == getattr(getattr(before, part), name)
    assert_back(task, conversations(), tmp_path)


@pytest.mark.one_backend
def test_presets_and_keras_files(both, tmp_path):
    *_, task = both
    assert_saved(task, conversations(), tmp_path)


@pytest.mark.one_backend
def test_plans_count_all_weights(both):
    *_, task = both
    assert_planned(task)


@pytest.mark.one_backend
def test_fit_counts_the_answer(both, capsys):
    """Batches with and without sound; the tower stays, and the projector learns."""
    *_, task = both
    rows = [[*some, said()] for some in conversations()]
    for inputs, targets, weights in task.make_dataset(rows, batch_size=2):
        assert {"encoder_frames", "encoder_padding_mask"} <= inputs.keys()
        for row, counts in zip(targets, weights, strict=True):
            assert task.tokenizer.decode(row[counts > 0]).split()[:2] == ["the", "first"]
    inputs, *_ = task.make_dataset(rows[:1])[0]
    assert "encoder_frames" not in inputs
    task.show_example(rows[2])
    assert "[recording 3: 1.0 seconds]" in capsys.readouterr().out
    backbone = task.backbone
    parts = (backbone.projector, backbone.encoder, backbone.encoder_stem)
    before = [[to_numpy(v).copy() for v in part.variables] for part in parts]

    def changed():
        return [
            any(
                np.abs(to_numpy(v) - old).max() > 0
                for v, old in zip(part.variables, olds, strict=True)
            )
            for part, olds in zip(parts, before, strict=True)
        ]

    task.fit(rows, batch_size=2, epochs=1, verbose=0)
    assert changed() == [True, False, False]
    task.fit(rows[1:3], image_tower="trained", epochs=1, verbose=0)
    assert changed() == [True, True, True]


@pytest.mark.one_backend
def test_adapters(tmp_path):
    """Adapters of both sides; merged, they are theirs."""
    model, processor = vision_chats.gemma3n(tmp_path)
    task = kt.ImageToText.from_preset(tmp_path)
    task.enable_lora(rank=2)
    paths = [v.path for v in task.trainable_variables]
    assert all("lora" in path for path in paths)
    assert all(any(f"/{side}/" in p for p in paths) for side in ("encoder", "decoder"))
    rows = [[*some, said()] for some in conversations()[:3]]
    losses = task.fit(rows, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    arrays, mask = arrays_of(task, conversations())
    adapted = to_numpy(task(arrays))
    task.merge_lora()
    kt.export_to_huggingface(task, tmp_path / "merged")
    merged = type(model).from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        expected = merged(**embedded(merged, processor, conversations()[2])).logits[0].numpy()
    assert np.abs(adapted[2][mask[2]] - expected).max() <= 1e-4


@pytest.mark.one_backend
def test_the_tower_of_images_is_not_read(tmp_path, caplog):
    """It is said once; an image in a message is an error."""
    vision_chats.gemma3n(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            task = kt.ImageToText.from_preset(tmp_path)
    told = [each.getMessage() for each in caplog.records if "vision_tower" in each.getMessage()]
    assert len(told) == 1 and "are not read" in told[0]
    image = np.zeros((8, 8, 3), "uint8")
    with pytest.raises(ValueError, match="`messages`: This model sees no images"):
        task.chat([user(image, "which ?")])
    with pytest.raises(ValueError, match="sees no images: give conversations"):
        task.generate([image], ["which ?"])
    with pytest.raises(ValueError, match=r"the text has '<image_soft_token>', which stands for"):
        task.chat([user(A, "which <image_soft_token> ?")])
    with pytest.raises(ValueError, match="SpeechToText needs a backbone"):
        kt.SpeechToText(task.backbone)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("part", "told"),
    [
        (sound(0), "`sound 1` has no samples: it is empty"),
        (sound(512), "`sound 1` is too short: it has 512 samples at 16,000 Hz, and needs 513"),
        (sound(64_000), "`sound 1` takes 4.0 seconds, and this model hears at most 3.2"),
    ],
)
def test_recordings_that_are_not_heard(both, part, told):
    *_, task = both
    with pytest.raises(ValueError, match=told):
        task.chat([user(part, "which ?")])


@pytest.mark.backend_independent
def test_recordings_are_not_cut():
    """30 seconds are the most for the 188 states of published models, which cut what is longer."""
    processor = kt.processors.SoftTokenSoundProcessor(family="Gemma3n")
    assert processor.num_states(480_001) == 188
    with pytest.raises(ValueError, match="hears at most 30.0"):
        processor.layout(Sound(np.zeros(480_001, "float32")))


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "gemma4_audio"}, "'gemma4_audio' is not supported"),
        ({"vocab_offset": 262_271}, "must be the last of the vocabulary"),
        ({"conf_attention_context_right": 1}, "conf_attention_context_right=1"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps=1e-05"),
        ({"sscp_conv_kernel_size": [[3, 3], [5, 3]]}, "sscp_conv_kernel_size"),
        ({"sscp_conv_channel_size": [4]}, "must be two positive integers"),
        ({"conf_num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"conf_reduction_factor": 10**6}, "stride"),
        ({"hidden_size": 7}, "divisible by `num_heads`"),
    ],
)
def test_wrong_values_are_refused(values, message):
    given = {"text_config": {}, "audio_config": values}
    with pytest.raises(ValueError, match=message):
        FAMILIES["gemma3n"].config(given)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"preemphasis": 0.0}, "preemphasis=0.0 is not supported"),
        ({"fft_length": 512}, "fft_length=512"),
        ({"max_frequency": 8000.0}, "max_frequency"),
        ({"audio_seq_length": "188"}, "max_soft_tokens"),
        ({"feature_size": 2000}, "num_bins"),
    ],
)
def test_wrong_files_are_refused(tmp_path, values, message):
    """In the one file of images and recordings that published folders have."""
    published = {
        "image_processor_type": "SiglipImageProcessorFast",
        "feature_extractor_type": "Gemma3nAudioFeatureExtractor",
    }
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(published))
    assert kt.ImageProcessor.from_files(tmp_path).sounds.max_soft_tokens == 188
    path.write_text(json.dumps(published | values))
    with pytest.raises(ValueError, match=f"preprocessor_config.json: .*{message}"):
        kt.ImageProcessor.from_files(tmp_path)


@pytest.mark.one_backend
def test_processors_that_do_not_fit(both):
    *_, task = both
    backbone, tokenizer, sounds = (
        task.backbone,
        task.tokenizer,
        kt.processors.SoftTokenSoundProcessor,
    )
    for given, message in (
        (None, "hears recordings, and sees no images: give the processor `sounds`"),
        (sounds(num_bins=16), "has a state for 16 frames, and the processor counts one for 4"),
        (sounds(family="Gemma3n"), "reads frames of 16 bands"),
    ):
        with pytest.raises(ValueError, match=message):
            kt.ImageToText(backbone, kt.ImageProcessor(sounds=given), tokenizer)
    with pytest.raises(ValueError, match="`sounds` must be a SoftTokenSoundProcessor"):
        kt.ImageProcessor(sounds=5)
