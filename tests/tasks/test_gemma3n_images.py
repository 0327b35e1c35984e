"""Gemma 3n: conversations with images, alone and beside recordings, against Transformers."""

import copy
import json

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_transformer as kt
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.generation import BeamSearch, Rules
from tests.checkpoints import mobilenet_v5
from tests.checkpoints.test_families import _gradients, assert_gradients
from tests.compiled import outputs_of
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
from tests.tasks.vision_chats import pictures, user

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    model, processor = vision_chats.gemma3n(folder)
    return model, processor, kt.ImageToText.from_preset(folder)


A, B = sound(7777), sound(513, 1)


def conversations():
    """Rows with none, with one and with several images, with sound and without."""
    a, b, c = pictures()
    return [
        [user("which is dark ?")],
        [user(a, "which is dark ?")],
        [user("a : ", b, " b : ", a, " ?"), said(), user("which ?", c)],
        [user(A, "which ?")],
        [
            user(a.copy(), A, "or ", b, B, " ?"),
            said(),
            user("which ?", {**A, "audio": recording(900)}),
        ],
    ]


def embedded(model, ids):
    """Their embeddings of ids without states, and what they have for each layer."""
    inner, config, x = model.model, model.config, model.get_input_embeddings()(ids)
    images, of_sound = config.vision_config, config.audio_config
    for part, embedder, last in (
        (images, inner.embed_vision, of_sound.vocab_offset),
        (of_sound, inner.embed_audio, config.text_config.vocab_size),
    ):
        first = part.vocab_offset
        hard = embedder(input_ids=ids.clamp(first, last - 1))
        x = torch.where(((ids >= first) & (ids < last))[..., None], hard, x)
    vectors = inner.language_model.get_per_layer_inputs(ids)
    return {"inputs_embeds": x, "per_layer_inputs": vectors}


def inputs_of(model, processor, conversation):
    """Their inputs of a conversation, each of whose recordings is encoded by itself."""
    given, inner = theirs_of(processor, conversation), model.model
    ids = given["input_ids"]
    if "pixel_values" not in given and not processor.recordings(conversation):
        return given
    config, made = model.config, embedded(model, ids)
    rows = {config.image_token_id: [], config.audio_token_id: []}
    if "pixel_values" in given:
        states = inner.get_image_features(given["pixel_values"], return_dict=True).pooler_output
        rows[config.image_token_id] = list(states)
    padding = inner.embed_audio(input_ids=torch.tensor([[config.text_config.vocab_size - 1]]))[0]
    for each in processor.recordings(conversation):
        read = inner.get_audio_features(
            each["input_features"], ~each["input_features_mask"], return_dict=True
        )
        states = read.pooler_output[0]
        behind = padding.expand(processor.states - len(states), -1)
        rows[config.audio_token_id] += [states, behind]
    for token, found in rows.items():
        if found:
            x = made["inputs_embeds"]
            places = (ids == token)[..., None].expand_as(x)
            made["inputs_embeds"] = x.masked_scatter(places, torch.cat(found))
    return made


def ids_of(model, processor, conversation):
    """Their ids, with the token of images in all places, as ours have it."""
    ids = theirs_of(processor, conversation)["input_ids"][0].clone()
    ids[ids == model.config.audio_token_id] = model.config.image_token_id
    return ids.tolist()


def row_of(arrays, mask, i):
    return arrays["decoder_token_ids"][i][mask[i]].tolist()


def expected_logits(model, processor, conversation):
    with torch.no_grad():
        return model(**inputs_of(model, processor, conversation)).logits[0].numpy()


@pytest.mark.each_backend
def test_same_logits_in_one_batch(both):
    """Each row as theirs alone; an image in several places is encoded once.

    The last places are also compared with what Transformers computed with timm's own tower.
    """
    model, processor, task = both
    stored = json.loads(mobilenet_v5.VALUES.read_text())["logits"]
    arrays, mask = arrays_of(task, conversations())
    seen = np.unique(arrays["encoder_images"], axis=0)
    heard = np.unique(arrays["sound_frames"], axis=0)
    assert len(seen) <= 4 and len(heard) <= 4  # three of each, and a blank one
    found = outputs_of(task, arrays)
    for i, conversation in enumerate(conversations()):
        assert ids_of(model, processor, conversation) == row_of(arrays, mask, i)
        expected = expected_logits(model, processor, conversation)
        assert np.abs(found[i][mask[i]] - expected).max() <= 1e-4
        assert np.abs(found[i][mask[i]][-2:] - np.array(stored[i])).max() <= 1e-4


@pytest.mark.one_backend
def test_a_row_is_what_it_is_alone(both):
    *_, task = both
    arrays, mask = arrays_of(task, conversations())
    together = outputs_of(task, arrays)
    for i, conversation in enumerate(conversations()):
        alone, own = arrays_of(task, [conversation])
        expected = together[i][mask[i]]
        # Convolutions of other numbers of images round otherwise, and more so without AVX-512.
        bound = 2e-5 * np.abs(expected).max()
        assert np.abs(outputs_of(task, alone)[own] - expected).max() <= bound


@pytest.mark.each_backend
def test_same_states_of_images(both):
    """Pixels, states of the tower, and as they are put among the tokens."""
    model, processor, task = both
    given = pictures(2)
    theirs = processor.images(given, return_tensors="pt")["pixel_values"]
    pixels = task.processor.source(given)
    assert np.abs(pixels - np.moveaxis(theirs.numpy(), 1, -1)).max() <= 1e-5
    with torch.no_grad():
        read = model.model.get_image_features(theirs, return_dict=True)
        states = model.model.vision_tower(theirs).last_hidden_state.flatten(2).transpose(1, 2)
    seen, _ = task.backbone._of_side("encoder", {"images": pixels}, (), False)
    assert np.abs(to_numpy(seen["encoder_states"]) - states.numpy()).max() <= 2e-5
    placed = to_numpy(task.backbone.projector(seen["encoder_states"]))
    assert np.abs(placed - read.pooler_output.numpy()).max() <= 2e-5


@pytest.mark.each_backend
def test_tokens_of_images_and_sound(both):
    """Each of the last tokens has an embedding of its own width, as theirs."""
    model, _, task = both
    config = model.config
    first, size = config.vision_config.vocab_offset, config.text_config.vocab_size
    ids = [5, *range(first - 1, size), 6]
    ids = [n for n in ids if n not in (config.image_token_id,)]
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([ids])).logits[0].numpy()
    given = np.array([ids], "int32")
    placed = {"decoder_placed_states": np.full((1, 4), -1, "int32")}
    found = outputs_of(task, {"decoder_token_ids": given, **placed})
    assert np.abs(found[0] - expected).max() <= 1e-4


def test_answers_are_theirs(both):
    """8 tokens of a batch, through the cache; a conversation alone; beams; an image by itself."""
    model, processor, task = both
    task.end_ids, ends = (), task.end_ids
    names = ("<audio_soft_token>", "<image_soft_token>", "<further>")
    bad = [[task.tokenizer.token_to_id(name)] for name in names]
    options = {"max_new_tokens": 8, "rules": Rules(bad_words=bad)}
    try:
        found = task.generate(conversations(), return_details=True, **options)
        for conversation, completion in zip(conversations(), found, strict=True):
            ids = theirs_of(processor, conversation)["input_ids"]
            given = inputs_of(model, processor, conversation)
            if "input_ids" in given:
                given = embedded(model, ids)
            for token in completion.token_ids:
                with torch.no_grad():
                    scores = model(**given).logits[0, -1].clone()
                scores[[id for (id,) in bad]] = -np.inf
                assert scores.argmax() == token
                further = embedded(model, torch.tensor([[token]]))
                given = {n: torch.cat([x, further[n]], dim=1) for n, x in given.items()}
        assert len(found[0].token_ids) == 8
        last = conversations()[4]
        assert task.chat(last, **options) == found[4].text
        beams = task.generate(conversations()[3:], sampler=BeamSearch(2), **options)
        assert task.chat(last, sampler=BeamSearch(2), **options) == beams[-1]
        image = pictures(1)[0]
        asked = task.generate([image], ["which is dark ?"], **options)
        assert asked == [found[1].text]
    finally:
        task.end_ids = ends


@pytest.mark.each_backend
def test_same_gradients(both, tmp_path):
    model, processor, task = both
    model, conversation = copy.deepcopy(model), conversations()[4]
    arrays, _ = arrays_of(task, [conversation])
    (model(**inputs_of(model, processor, conversation)).logits ** 2).mean().backward()
    backbone = task.backbone
    found = _gradients(
        backbone, lambda: keras.ops.mean(keras.ops.square(backbone.logits(backbone(arrays))))
    )
    of_towers = [path for path in found if not path.startswith(("decoder", "token"))]
    names = [name for name, _ in model.named_parameters() if "language" not in name]
    assert len(of_towers) == len([name for name in names if name != "lm_head.weight"])
    assert all(np.abs(found[path]).max() > 0 for path in of_towers)
    assert_gradients(found, model, tmp_path / "gradients")


@pytest.mark.one_backend
def test_export_is_the_way_back(both, tmp_path):
    model, processor, task = both
    kt.export_to_huggingface(task, tmp_path)
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    theirs = inputs_of(model, processor, conversations()[4])
    with torch.no_grad():
        expected, mine = (each(**theirs).logits.numpy() for each in (model, again.eval()))
    assert np.abs(mine - expected).max() <= 1e-6
    parts = json.loads((tmp_path / "processor_config.json").read_text())
    sounds = transformers.Gemma3nAudioFeatureExtractor.from_dict(parts["feature_extractor"])
    heard = [recording(7777)]
    assert np.array_equal(
        sounds(heard)["input_features"], processor.sounds(heard)["input_features"]
    )
    assert parts["audio_seq_length"] == processor.states
    images = transformers.SiglipImageProcessorPil.from_pretrained(tmp_path)
    pixels = [
        each(pictures(), return_tensors="np")["pixel_values"] for each in (images, processor.images)
    ]
    assert np.array_equal(*pixels)
    theirs, before = again.config, model.config
    for name in ("audio_token_id", "image_token_id", "vision_soft_tokens_per_image"):
        assert getattr(theirs, name) == getattr(before, name)
    for name in ("vocab_offset", "vocab_size"):
        for part in ("audio_config", "vision_config"):
            assert getattr(getattr(theirs, part), name) == getattr(getattr(before, part), name)
    assert theirs.vision_config.model_args == before.vision_config.model_args
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
    """Batches with and without images; the towers stay, and the projectors learn."""
    *_, task = both
    rows = [[*some, said()] for some in conversations()]
    for inputs, targets, weights in task.make_dataset(rows, batch_size=2):
        assert {"encoder_images", "sound_frames", "sound_padding_mask"} <= inputs.keys()
        for row, counts in zip(targets, weights, strict=True):
            assert task.tokenizer.decode(row[counts > 0]).split()[:2] == ["the", "first"]
    task.show_example(rows[4])
    shown = capsys.readouterr().out
    assert "[image 1: 30 x 24 pixels]" in shown and "[recording 2: 0.5 seconds]" in shown
    backbone = task.backbone
    parts = (
        backbone.projector, backbone.sound_projector, backbone.encoder_stem, backbone.sound,
        backbone.sound_stem,
    )  # fmt: skip
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
    assert changed() == [True, True, False, False, False]
    task.fit(rows[4:], image_tower="trained", epochs=1, verbose=0)
    assert changed() == [True] * 5


@pytest.mark.one_backend
def test_adapters(tmp_path):
    """Adapters of the layers in blocks; merged, they are theirs."""
    model, processor = vision_chats.gemma3n(tmp_path)
    task = kt.ImageToText.from_preset(tmp_path)
    task.enable_lora(rank=2)
    paths = [v.path for v in task.trainable_variables]
    assert all("lora" in path for path in paths)
    assert all(any(f"/{side}/" in p for p in paths) for side in ("sound", "decoder"))
    rows = [[*some, said()] for some in conversations()[1:]]
    losses = task.fit(rows, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    arrays, mask = arrays_of(task, conversations())
    adapted = outputs_of(task, arrays)
    task.merge_lora()
    kt.export_to_huggingface(task, tmp_path / "merged")
    merged = type(model).from_pretrained(tmp_path / "merged").eval()
    expected = expected_logits(merged, processor, conversations()[4])
    assert np.abs(adapted[4][mask[4]] - expected).max() <= 1e-4


@pytest.mark.one_backend
def test_integers_and_their_adapters(tmp_path):
    """Layers of blocks have integers, and their adapters learn; the tower of images has floats."""
    vision_chats.gemma3n(tmp_path)
    task = kt.ImageToText.from_preset(tmp_path, dtype="int8")
    stem = task.backbone.encoder_stem
    assert {str(v.dtype) for v in stem.variables} == {"float32"}
    kernels = [v for v in task.backbone.decoder.variables if v.path.endswith("query/kernel")]
    assert {str(v.dtype) for v in kernels} == {"int8"}
    task.enable_lora(rank=2)
    rows = [[*some, said()] for some in conversations()[1:]]
    losses = task.fit(rows, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    plan = kt.planning.make_plan(
        task.backbone.config, batch_size=2, length=40, dtype="int8", lora_rank=2
    )
    assert plan.memory.weights > sum(4 * v.size for v in map(to_numpy, stem.variables))


@pytest.mark.backend_independent
@pytest.mark.parametrize("size", [768, 64])
def test_same_pixels(size):
    """Images of odd sizes, larger and smaller, and long ones."""
    values = {
        "image_processor_type": "SiglipImageProcessorFast", "do_normalize": False,
        "do_rescale": True, "do_resize": True, "resample": 2, "do_convert_rgb": None,
        "size": {"height": size, "width": size}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }  # fmt: skip
    ours = kt.ImageProcessor.from_values(values)
    theirs = transformers.SiglipImageProcessorPil.from_dict({**values, "do_convert_rgb": True})
    random = np.random.default_rng(0)
    for shape in ((31, 17, 3), (769, 801, 3), (7, 5, 3), (1025, 33, 3)):
        image = random.integers(0, 256, shape, dtype="uint8")
        expected = np.moveaxis(theirs([image], return_tensors="np")["pixel_values"], 1, -1)
        assert np.abs(ours([image]) - expected).max() <= 1e-5
    written = ours.values()
    assert written["image_processor_type"] == "SiglipImageProcessor"
    assert (written["do_normalize"], written["size"]) == (False, values["size"])


@pytest.mark.one_backend
def test_what_does_not_fit_is_refused(both):
    """Counts of states, texts with tokens of states, videos, and recordings without numbers."""
    *_, task = both
    arrays, _ = arrays_of(task, conversations()[1:2])
    ids = arrays["decoder_token_ids"]
    token = task.backbone.config.placeholder_id
    fewer = np.where(np.cumsum(ids == token, axis=1) == 4, 5, ids)
    with pytest.raises(ValueError, match="has .* placeholders, tokens of the id"):
        task.backbone({**arrays, "decoder_token_ids": fewer})
    alone = {n: x for n, x in arrays.items() if n != "decoder_placed_states"}
    found = outputs_of(task.backbone, alone)  # an image for each row needs no numbers
    assert np.abs(found - outputs_of(task.backbone, arrays)).max() <= 1e-6
    with pytest.raises(ValueError, match="and the encoder makes 4 states of an input"):
        task.backbone({**alone, "decoder_token_ids": fewer})
    heard, _ = arrays_of(task, conversations()[3:4])
    del heard["decoder_placed_states"]
    with pytest.raises(ValueError, match="recordings are behind those of images: give `decoder_pl"):
        task.backbone(heard)
    with pytest.raises(ValueError, match=r"the text has '<image_soft_token>', which stands for"):
        task.chat([user("which <image_soft_token> ?")])
    with pytest.raises(ValueError, match="this model reads no videos"):
        task.chat([user({"type": "video", "video": np.zeros((2, 8, 8, 3), "uint8")}, "which ?")])
    with pytest.raises(ValueError, match="has 1 images? and 0|its chat template writes"):
        task.tokenizer.chat_template, kept = (
            "{{ messages[0]['role'] }}",
            task.tokenizer.chat_template,
        )
        try:
            task.chat([user(pictures(1)[0], "which ?")])
        finally:
            task.tokenizer.chat_template = kept


@pytest.mark.one_backend
def test_folders_without_the_tower_are_refused(tmp_path):
    """Its tensors are named; texts alone load."""
    vision_chats.gemma3n(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tower = {n: x for n, x in tensors.items() if n.startswith("model.vision_tower.")}
    assert "model.vision_tower.timm_model.conv_stem.conv.weight" in tower
    save_file({n: x for n, x in tensors.items() if n not in tower}, path)
    with pytest.raises(ValueError, match=r"vision_tower\.timm_model\.conv_stem"):
        kt.ImageToText.from_preset(tmp_path)
    assert kt.CausalLM.from_preset(tmp_path).backbone.config.kind == "decoder"


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vision_config": {"architecture": "resnet50"}}, "architecture='resnet50'"),
        ({"vision_config": {"model_type": "siglip_vision_model"}}, "only 'gemma3n_vision'"),
        ({"vision_config": {"vocab_offset": 262_143}}, "those before the tokens of sound"),
        ({"vision_config": {"vocab_size": 0}}, "those before the tokens of sound"),
        ({"vision_soft_tokens_per_image": 64}, "vision_soft_tokens_per_image=64 must be the numb"),
        ({"audio_token_id": 262_274}, "audio_token_id=262,274"),
        ({"text_config": {"pad_token_id": 1}}, "pad_token_id=1"),
        ({"image_token_id": "x"}, "image_token_id must be a number"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["gemma3n"].config(values)


@pytest.mark.backend_independent
def test_configs_that_have_no_place():
    """Images of one size stand beside sound under the conditions of others."""
    config = FAMILIES["gemma3n"].config({})
    assert config.num_placeholders == 256 and config.hearing_side == "sound"
    with pytest.raises(ValueError, match="The `stride` of a projector needs an encoder of sound"):
        config.replace(projector=config.projector.replace(stride=2))
    with pytest.raises(ValueError, match="`scaled` need the type 'norm_around'"):
        kt.config.Projector(type="mlp", scaled=True)
    most = config.vocabulary_size
    with pytest.raises(ValueError, match="`hard_tokens` are the last of the vocabulary, which has"):
        config.replace(
            projector=config.projector.replace(hard_tokens=2**16),
            decoder=config.decoder.replace(
                input=config.decoder.input.replace(vocabulary_size=2**16)
            ),
            placeholders=kt.config.Placeholders(token_id=5),
        )
    assert most == 262_400
