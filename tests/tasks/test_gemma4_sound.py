"""Gemma 4: conversations with recordings, images and videos, against Transformers."""

import copy
import io
import json

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.config.structure import is_frozen
from keras_transformer.generation import BeamSearch, Rules
from keras_transformer.processors import Sound
from keras_transformer.tasks.images import row_images
from tests.checkpoints.conftest import assert_same_values
from tests.checkpoints.test_families import _gradients, assert_gradients
from tests.compiled import outputs_of
from tests.tasks import vision_chats
from tests.tasks.test_qwen_vl import said
from tests.tasks.test_video_chats import frames_of, video
from tests.tasks.test_vision_chats import arrays_of, theirs_of
from tests.tasks.vision_chats import pictures, user

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
soundfile = pytest.importorskip("soundfile")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    model, processor = vision_chats.gemma4(folder, sound=vision_chats.OF_SOUND, num_frames=3)
    return model, processor, kt.ImageToText.from_preset(folder)


def recording(length, seed=0):
    """Samples of a tone and of noise."""
    noise = np.random.default_rng(seed).normal(size=length)
    return (0.5 * np.sin(np.arange(length) * 0.1 * (1 + seed)) + 0.2 * noise).astype("float32")


def sound(length, seed=0):
    return {"type": "audio", "audio": recording(length, seed)}


A, B, C = sound(7777), sound(161, 1), sound(4000, 2)


def conversations():
    """Rows with none, with one and several recordings, and with images and a video among them."""
    a, b, _ = pictures()
    frames = video(frames_of(7, 23, 31), 2.0)
    return [
        [user("which is dark ?")],
        [user(A, "which is dark ?")],
        [user("a : ", B, " b : ", A, " ?"), said(), user("which ?", C)],
        [user(a, C, "or ", frames, A, b, "which ?"), said(), user({**A, "audio": recording(7777)})],
        [user(a, "which ?")],
    ]


def answers_alike(task, model, processor, some, **options):
    """Return our completions, each of which Transformers writes too."""
    names = ("<|image|>", "<|video|>", "<|audio|>")
    bad = [[task.tokenizer.token_to_id(name)] for name in names]
    options = {"max_new_tokens": 8, "rules": Rules(bad_words=bad), **options}
    found = task.generate(some, return_details=True, **options)
    for conversation, completion in zip(some, found, strict=True):
        ids = model.generate(
            **theirs_of(processor, conversation), max_new_tokens=8, do_sample=False,
            eos_token_id=[], pad_token_id=0, bad_words_ids=bad,
        )  # fmt: skip
        assert ids[0, -8:].tolist() == completion.token_ids
    return found, options


@pytest.mark.each_backend
def test_same_logits_in_one_batch(both):
    """Each row as theirs alone; a recording in several places is encoded once."""
    model, processor, task = both
    arrays, mask = arrays_of(task, conversations())
    assert len(np.unique(arrays["sound_frames"], axis=0)) <= 4  # three, and a blank one
    found = outputs_of(task, arrays)
    token = task.backbone.config.placeholder_id
    for i, conversation in enumerate(conversations()):
        theirs = theirs_of(processor, conversation)
        ids = theirs["input_ids"][0].clone()
        ids[theirs["mm_token_type_ids"][0] >= 2] = token  # ours of videos and sound too
        assert ids.tolist() == arrays["decoder_token_ids"][i][mask[i]].tolist()
        with torch.no_grad():
            expected = model(**theirs).logits[0].numpy()
        assert np.abs(found[i][mask[i]] - expected).max() <= 1e-4


@pytest.mark.each_backend
def test_same_states_of_recordings(both):
    """States of the tower, and as they are put among the tokens, whatever the padding."""
    model, processor, task = both
    samples = [recording(n, i) for i, n in enumerate((161, 16_001, 7777, 12_345, 800))]
    given = processor.sounds(samples, return_tensors="pt")
    arrays = task.processor.source.sounds.arrays(samples, frames=130)
    with torch.no_grad():
        read = model.model.get_audio_features(**given, return_dict=True)
    backbone = task.backbone
    heard, _ = backbone._of_side("sound", arrays, (), False)
    states, projected = heard["encoder_states"], backbone.sound_projector(heard["encoder_states"])
    pairs = (
        (backbone.sound_projector.inner(states), read.last_hidden_state),
        (projected, read.pooler_output),
    )
    for i, real in enumerate(read.attention_mask.numpy()):
        assert real.sum() == task.processor.source.sounds.num_states(len(samples[i]))
        assert to_numpy(heard["encoder_padding_mask"])[i].sum() == real.sum()
        for mine, theirs in pairs:
            difference = to_numpy(mine)[i, : real.sum()] - theirs[i, : real.sum()].numpy()
            assert np.abs(difference).max() <= 2e-5


@pytest.mark.backend_independent
def test_same_features():
    """Recordings of odd lengths and rates: each frame is theirs, and so is their number."""
    processor = kt.processors.SoftTokenSoundProcessor()
    theirs = transformers.Gemma4AudioFeatureExtractor()
    for seed, (length, rate) in enumerate(
        ((16_001, 16_000), (7777, 8000), (44_099, 44_100), (161, 16_000), (30_011, 22_050))
    ):
        given = Sound((recording(length, seed), rate))
        samples = processor.samples(given)
        expected = theirs([samples], return_tensors="np")
        real = expected["input_features_mask"][0]
        made = processor.arrays([samples])
        assert made["padding_mask"].sum() == real.sum()
        assert np.abs(made["frames"][0] - expected["input_features"][0][real]).max() <= 1e-5
        assert len(processor.layout(given).states) == real[::4].sum()


def test_answers_are_theirs(both):
    """8 tokens of a batch, through the cache; a conversation alone; beams."""
    model, processor, task = both
    task.end_ids, ends = (), task.end_ids
    try:
        found, options = answers_alike(task, model, processor, conversations())
        last = conversations()[3]
        assert task.chat(last, **options) == found[3].text
        beams = task.generate(conversations()[2:4], sampler=BeamSearch(2), **options)
        assert task.chat(last, sampler=BeamSearch(2), **options) == beams[-1]
    finally:
        task.end_ids = ends


@pytest.mark.each_backend
def test_same_gradients(both, tmp_path):
    model, processor, task = both
    model, conversation = copy.deepcopy(model), conversations()[2]
    arrays, _ = arrays_of(task, [conversation])
    outputs = model(**theirs_of(processor, conversation)).logits
    (outputs**2).mean().backward()
    for buffer in model.buffers():  # which are weights here, without gradients
        buffer.zero_()
    backbone = task.backbone
    found = _gradients(
        backbone, lambda: keras.ops.mean(keras.ops.square(backbone.logits(backbone(arrays))))
    )
    found |= {path: np.zeros(1) for path in found if is_frozen(path)}
    heard = [path for path in found if path.startswith("sound") and not is_frozen(path)]
    names = [name for name, _ in model.named_parameters() if "audio" in name]
    assert len(heard) == len(names) and all(np.abs(found[path]).max() > 0 for path in heard)
    assert_gradients(found, model, tmp_path / "gradients")


def assert_saved(task, some, folder):
    """A preset and a file of Keras give the logits of conversations as they are."""
    arrays, mask = arrays_of(task, some)
    expected = outputs_of(task, arrays)
    task.save_to_preset(folder / "preset")
    task.save(folder / "model.keras")
    for again in (
        kt.Task.from_preset(folder / "preset"),
        keras.models.load_model(folder / "model.keras"),
    ):
        mine, _ = arrays_of(again, some)
        assert np.abs(outputs_of(again, mine) - expected)[mask].max() <= 1e-6


def assert_back(task, some, folder):
    """An exported folder gives the task again."""
    back = kt.ImageToText.from_preset(folder)
    assert back.backbone.config == task.backbone.config
    assert back.task_values() == task.task_values()
    assert back.asked(some, None)[1] == task.asked(some, None)[1]
    assert_same_values(back.backbone, task.backbone)


def assert_planned(task):
    """A plan counts all weights."""
    plan = kt.planning.make_plan(task.backbone.config, batch_size=2, length=40)
    assert plan.parameters == task.backbone.count_params()


@pytest.mark.one_backend
def test_export_is_the_way_back(both, tmp_path):
    model, processor, task = both
    kt.export_to_huggingface(task, tmp_path)
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    theirs = theirs_of(processor, conversations()[3])
    with torch.no_grad():
        expected, mine = (each(**theirs).logits.numpy() for each in (model, again.eval()))
    assert np.abs(mine - expected).max() <= 1e-6
    parts = json.loads((tmp_path / "processor_config.json").read_text())
    sounds = transformers.Gemma4AudioFeatureExtractor.from_dict(parts["feature_extractor"])
    given = [recording(7777)]
    assert np.array_equal(
        sounds(given)["input_features"], processor.sounds(given)["input_features"]
    )
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
def test_explanations(both):
    """The attention of the decoder is theirs, where a recording is, beside images and without."""
    model, processor, task = both
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    for conversation in conversations()[1:4]:
        found = task.explain(conversation, "the first")
        with torch.no_grad():
            theirs = model(**theirs_of(processor, conversation), output_attentions=True)
        for mine, expected in zip(found.attention, theirs.attentions, strict=True):
            length = expected.shape[-1]  # without the answer
            assert np.abs(mine[:, :length, :length] - expected[0].numpy()).max() <= 1e-4
        assert found.tokens[-3:] == ("the", "␣", "first")


@pytest.mark.one_backend
def test_fit_counts_the_answer(both, capsys):
    """Batches with and without sound; the towers stay, and both projectors learn."""
    *_, task = both
    rows = [[*some, said()] for some in conversations()]
    for inputs, targets, weights in task.make_dataset(rows, batch_size=2):
        assert {"encoder_patches", "sound_frames", "sound_padding_mask"} <= inputs.keys()
        for row, counts in zip(targets, weights, strict=True):
            assert task.tokenizer.decode(row[counts > 0]).split()[:2] == ["the", "first"]
    inputs, *_ = task.make_dataset(rows[1:3])[0]
    assert "encoder_patches" not in inputs
    task.show_example(rows[2])
    assert "[recording 3: 0.2 seconds]" in capsys.readouterr().out
    backbone = task.backbone
    parts = (backbone.projector, backbone.sound_projector, backbone.sound, backbone.sound_stem)
    before = [[to_numpy(v).copy() for v in part.variables] for part in parts]
    task.fit(rows, batch_size=2, epochs=1, verbose=0)
    changed = [
        any(
            np.abs(to_numpy(v) - old).max() > 0 for v, old in zip(part.variables, olds, strict=True)
        )
        for part, olds in zip(parts, before, strict=True)
    ]
    assert changed == [True, True, False, False]
    task.fit(rows[1:3], image_tower="trained", epochs=1, verbose=0)
    assert np.abs(to_numpy(backbone.sound.trainable_variables[0]) - before[2][0]).max() > 0


@pytest.mark.one_backend
def test_adapters(tmp_path):
    """Adapters of all three sides; merged, they are theirs."""
    model, processor = vision_chats.gemma4(tmp_path, sound=vision_chats.OF_SOUND)
    task = kt.ImageToText.from_preset(tmp_path)
    task.enable_lora(rank=2)
    paths = [v.path for v in task.trainable_variables]
    assert all("lora" in path for path in paths)
    assert all(any(f"/{side}/" in p for p in paths) for side in ("encoder", "sound", "decoder"))
    rows = [[*some, said()] for some in conversations()[:3]]
    losses = task.fit(rows, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    arrays, mask = arrays_of(task, conversations())
    adapted = outputs_of(task, arrays)
    task.merge_lora()
    kt.export_to_huggingface(task, tmp_path / "merged")
    merged = type(model).from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        expected = merged(**theirs_of(processor, conversations()[2])).logits[0].numpy()
    assert np.abs(adapted[2][mask[2]] - expected).max() <= 1e-4


def wav(samples, rate=16_000):
    soundfile.write(file := io.BytesIO(), samples, rate, format="wav", subtype="FLOAT")
    return file.getvalue()


@pytest.mark.one_backend
def test_recordings_in_every_form(both, tmp_path):
    """Paths, bytes, samples with their rate, OpenAI's form, and apart from their messages."""
    import base64

    *_, task = both
    samples = recording(4000)
    (tmp_path / "a.wav").write_bytes(wav(samples))
    coded = base64.b64encode(wav(samples)).decode()
    forms = [
        {"type": "audio", "audio": samples},
        {"type": "audio", "audio": (samples, 16_000)},
        {"type": "audio", "audio": samples.tolist(), "sampling_rate": 16_000},
        {"type": "audio", "audio": {"array": samples, "sampling_rate": 16_000}},
        {"type": "audio", "path": str(tmp_path / "a.wav")},
        {"type": "audio", "bytes": wav(samples)},
        {"type": "input_audio", "input_audio": {"data": coded, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{coded}"}},
    ]
    rows = [[user(form, "which ?")] for form in forms]
    images, ids, _ = task.asked(rows, None)
    assert all(row == ids[0] for row in ids)
    frames = task.arrays_of(images)["sound_frames"]
    assert all(np.allclose(frame, frames[0], atol=1e-6) for frame in frames)
    apart = kt.data.Conversation([user({"type": "audio"}, "which ?")], images=[Sound(samples)])
    assert task.asked([apart], None)[1] == ids[:1]


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("part", "told"),
    [
        (sound(0), "`sound 1` has no samples: it is empty"),
        (sound(160), "`sound 1` is too short: it has 160 samples at 16,000 Hz, and needs 161"),
        (sound(481_000), "`sound 1` takes 30.1 seconds, and this model hears at most 30.0"),
        ({"type": "audio", "audio": wav(np.zeros(481_000))}, "takes 30.1 seconds"),
        ({"type": "audio", "audio": np.array([0.1, np.nan] * 200)}, "samples that are NaN"),
        ({"type": "audio", "audio": (recording(400), 5)}, "must have a rate of 100 to 1,000,000"),
        ({"type": "audio", "audio": (recording(400), 200)}, "rate of 200 .* Is its rate correct"),
        ({"type": "audio", "audio": wav(recording(400)), "sampling_rate": 8000}, "states its own"),
        ({"type": "audio", "audio": b"nothing"}, "cannot be read as audio"),
        ({"type": "audio", "audio": "https://a/b.wav"}, "nothing is fetched"),
        ({"type": "audio"}, "is a recording without its samples"),
        (
            {"type": "audio", "sound": b""},
            r"has the keys \['type', 'sound'\]: beside 'type' a reco",
        ),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "must hold 'data'"),
        ({"type": "text", "text": "hear <|audio|>"}, "which stands for a recording"),
    ],
)
def test_bad_recordings_are_refused(both, part, told):
    *_, task = both
    with pytest.raises(ValueError, match=told):
        task.chat([user(part, "which ?")], max_new_tokens=1)


@pytest.mark.one_backend
def test_arrays_that_do_not_fit_are_refused(both):
    """More and fewer states than places, and states without their numbers."""
    *_, task = both
    arrays, _ = arrays_of(task, conversations()[1:2])
    placed = arrays["decoder_placed_states"]
    fewer = np.where(np.arange(placed.shape[1]) == 11, -1, placed)
    for wrong in (fewer, np.pad(placed[:, :12], ((0, 0), (0, 1)))):
        with pytest.raises(ValueError, match=r"has 12 placeholders, .* has 1[13] states"):
            task({**arrays, "decoder_placed_states": wrong})
    del arrays["decoder_placed_states"]
    with pytest.raises(ValueError, match="give `decoder_placed_states`"):
        task(arrays)


@pytest.mark.one_backend
def test_models_that_do_not_hear(both, tmp_path, monkeypatch):
    vision_chats.gemma4(tmp_path)
    deaf = kt.ImageToText.from_preset(tmp_path)
    with pytest.raises(ValueError, match="This model hears no sound"):
        deaf.chat([user(A, "which ?")])
    *_, task = both
    images = kt.processors.SoftTokenProcessor(14, patch_size=4, merge_size=2)
    source = task.processor.source
    images = type(source)(14, patch_size=source.patch_size, merge_size=source.merge_size)
    silent = kt.ImageToText(task.backbone, images, task.tokenizer)
    with pytest.raises(ValueError, match="The processor has no `sounds`"):
        silent.chat([user(A, "which ?")])
    with pytest.raises(ValueError, match="reads frames of 16 bands, but the processor has 20"):
        other = kt.processors.SoftTokenSoundProcessor(num_bins=20)
        kt.ImageToText(
            task.backbone,
            type(source)(
                14, patch_size=source.patch_size, merge_size=source.merge_size, sounds=other
            ),
            task.tokenizer,
        )
    monkeypatch.setattr(row_images, "MOST_PADDED", 1000)
    short = [sound(200, i) for i in range(9)]
    with pytest.raises(ValueError, match="10 recordings are padded to the longest of them"):
        task.chat([user(A, *short, "which ?")])


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "gemma3n_audio"}, "only 'gemma4_audio'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' of the tower of sound"),
        ({"residual_weight": 1.0}, "residual_weight=1.0"),
        ({"attention_context_right": 2}, "attention_context_right=2"),
        ({"attention_chunk_size": 20}, "attention_chunk_size must be"),
        ({"attention_context_left": 1}, "attention_chunk_size must be"),
        ({"subsampling_conv_channels": [126, 32]}, "a multiple of 4"),
        ({"subsampling_conv_channels": 128}, "must be two positive integers"),
        ({"num_attention_heads": 7}, "divisible by `num_heads`"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers|num_layers"),
        ({"output_proj_dims": 0}, "inner_dim"),
        ({"conv_kernel_size": 0}, "size"),
        ({"attention_logit_cap": -1.0}, "soft_cap"),
        ({"use_clipped_linears": 2}, "use_clipped_linears"),
    ],
)
def test_wrong_values_are_refused(values, message):
    usual = {"text_config": {}, "vision_config": {}}
    with pytest.raises(ValueError, match=message):
        FAMILIES["gemma4"].config({**usual, "audio_config": values})


@pytest.mark.backend_independent
def test_states_that_see_each_other_are_not_beside_sound():
    values = {"text_config": {"use_bidirectional_attention": "vision"}, "vision_config": {}}
    with pytest.raises(ValueError, match="not supported together"):
        FAMILIES["gemma4"].config({**values, "audio_config": {}})


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"feature_extractor_type": "WhisperFeatureExtractor"}, "not supported here"),
        ({"preemphasis": 0.97}, "preemphasis=0.97 is not supported"),
        ({"fft_length": 1024}, "fft_length=1024"),
        ({"max_frequency": 4000.0}, "max_frequency"),
        ({"feature_size": 0}, "num_bins"),
        ({"sampling_rate": 10**9}, "sampling_rate"),
        ({"audio_seq_length": 10**9}, "max_soft_tokens"),
    ],
)
def test_wrong_files_are_refused(tmp_path, values, message):
    parts = {"feature_extractor": {k: v for k, v in values.items() if k != "audio_seq_length"}}
    parts |= {k: v for k, v in values.items() if k == "audio_seq_length"}
    (tmp_path / "processor_config.json").write_text(json.dumps(parts))
    with pytest.raises(ValueError, match=f"processor_config.json: .*{message}"):
        kt.processors.SoftTokenSoundProcessor.from_files(tmp_path)
