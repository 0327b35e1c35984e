"""Gemma 4: conversations with images of any aspect ratio, against Transformers."""

import copy

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.config.structure import is_frozen
from keras_transformer.generation import BeamSearch, Rules
from tests.checkpoints.conftest import assert_same_values
from tests.checkpoints.test_families import _gradients, assert_gradients
from tests.compiled import outputs_of
from tests.tasks import vision_chats
from tests.tasks.test_qwen_vl import said
from tests.tasks.test_video_chats import frames_of, video
from tests.tasks.test_vision_chats import arrays_of, theirs_of
from tests.tasks.vision_chats import conversations, pictures, user

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

# With clipped layers, shared keys and vectors for each layer; with states that see each other and
# keys as values; with experts.
SMALL, LARGE, EXPERTS = 0, 1, 2
TWO_MODELS = pytest.mark.parametrize("both", [SMALL, LARGE], indirect=True, ids=str)
ONE_MODEL = pytest.mark.parametrize("both", [SMALL], indirect=True, ids=str)


@pytest.fixture(scope="module", params=[SMALL, LARGE, EXPERTS], ids=str)
def both(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    model, processor = vision_chats.gemma4(folder, request.param, num_frames=3)
    return model, processor, kt.ImageToText.from_preset(folder)


@pytest.mark.each_backend
def test_same_logits_in_one_batch(both):
    """Rows with none, one, two and five images of three sizes, each row with theirs alone."""
    model, processor, task = both
    arrays, mask = arrays_of(task, conversations())
    assert "decoder_placed_offsets" not in arrays
    found = outputs_of(task, arrays)
    for i, conversation in enumerate(conversations()):
        theirs = theirs_of(processor, conversation)
        assert theirs["input_ids"][0].tolist() == arrays["decoder_token_ids"][i][mask[i]].tolist()
        with torch.no_grad():
            expected = model(**theirs).logits[0].numpy()
        assert np.abs(found[i][mask[i]] - expected).max() <= 1e-4


A, B = video(frames_of(7, 23, 31), 2.0), video(frames_of(90, 16, 44, 1), 0.5)


def with_videos():
    """Rows with a video, with two and images, and with one that comes twice, of minutes."""
    a, b, _ = pictures()
    return [
        [user(A, "which is dark ?")],
        [user("a : ", b, " b : ", B, " ?"), said(), user("which ?", a)],
        [user(A, "or ", a, B, "which ?"), said(), user({**A, "video": A["video"].copy()})],
    ]


@TWO_MODELS
@pytest.mark.each_backend
def test_same_logits_of_videos(both):
    """Beside rows without; their frames are images of a budget of their own."""
    model, processor, task = both
    some = [*with_videos(), *conversations()[:2]]
    arrays, mask = arrays_of(task, some)
    found = outputs_of(task, arrays)
    image = task.backbone.config.placeholder_id
    for i, conversation in enumerate(some):
        theirs = theirs_of(processor, conversation)
        ids = theirs["input_ids"][0].clone()
        ids[theirs["mm_token_type_ids"][0] == 2] = image  # of our videos too
        assert ids.tolist() == arrays["decoder_token_ids"][i][mask[i]].tolist()
        with torch.no_grad():
            expected = model(**theirs).logits[0].numpy()
        assert np.abs(found[i][mask[i]] - expected).max() <= 1e-4


@pytest.mark.each_backend
def test_same_states_of_images(both):
    """Wide, high and square images in one batch, as they are put among the tokens."""
    model, processor, task = both
    random = np.random.default_rng(2)
    sizes = ((40, 9), (8, 70), (21, 21), (300, 200))
    images = [random.integers(0, 256, (*size, 3), dtype="uint8") for size in sizes]
    given = processor.images(images, return_tensors="pt")
    with torch.no_grad():
        expected = model.model.get_image_features(
            given["pixel_values"], given["image_position_ids"]
        ).pooler_output
    counts = [task.processor.source.num_states(image) for image in images]
    assert [len(each) for each in expected] == counts and len({*counts}) > 2
    found = to_numpy(task.backbone.encode(**task.processor.source.arrays(images)))
    for mine, theirs in zip(found, expected, strict=True):
        assert np.abs(mine[: len(theirs)] - theirs.numpy()).max() <= 2e-5


@TWO_MODELS
def test_answers_are_theirs(both):
    """12 tokens of a batch, through the cache; a conversation alone; beams."""
    model, processor, task = both
    bad = [[task.tokenizer.token_to_id(t)] for t in ("<|image|>", "<|video|>")]
    some = [*conversations(), with_videos()[1]]
    task.end_ids, ends = (), task.end_ids
    options = {"max_new_tokens": 12, "rules": Rules(bad_words=bad)}
    try:
        found = task.generate(some, return_details=True, **options)
        *_, last = some
        assert task.chat(last, **options) == found[-1].text
        beams = task.generate(some[2:], sampler=BeamSearch(2), **options)
        assert task.chat(last, sampler=BeamSearch(2), **options) == beams[-1]
    finally:
        task.end_ids = ends
    for conversation, completion in zip(some, found, strict=True):
        ids = model.generate(
            **theirs_of(processor, conversation), max_new_tokens=12, do_sample=False,
            eos_token_id=[], pad_token_id=0, bad_words_ids=bad,
        )  # fmt: skip
        assert ids[0, -12:].tolist() == completion.token_ids


@TWO_MODELS
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
    assert_gradients(found, model, tmp_path / "gradients")


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
    images = transformers.Gemma4ImageProcessorPil.from_pretrained(tmp_path)
    assert np.array_equal(
        images(pictures())["pixel_values"], processor.images(pictures())["pixel_values"]
    )
    back = kt.ImageToText.from_preset(tmp_path)
    assert back.backbone.config == task.backbone.config
    assert back.task_values() == task.task_values()
    some = [*conversations(), *with_videos()]
    assert back.asked(some, None)[1] == task.asked(some, None)[1]
    assert_same_values(back.backbone, task.backbone)


@TWO_MODELS
@pytest.mark.one_backend
def test_presets_and_keras_files(both, tmp_path):
    *_, task = both
    arrays, mask = arrays_of(task, conversations())
    expected = outputs_of(task, arrays)
    task.save_to_preset(tmp_path / "preset")
    task.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.task_values() == task.task_values()
        mine, _ = arrays_of(again, conversations())
        assert np.abs(outputs_of(again, mine) - expected)[mask].max() <= 1e-6


@pytest.mark.one_backend
def test_plans_count_all_weights(both):
    *_, task = both
    plan = kt.planning.make_plan(task.backbone.config, batch_size=2, length=40)
    assert plan.parameters == task.backbone.count_params()


@pytest.mark.one_backend
def test_states_of_an_image_see_each_other(both):
    """In layers with a window alone, and only if the config says so: a later patch changes them."""
    *_, task = both
    picture, other = pictures(1)[0], pictures(1)[0].copy()
    other[-8:, -8:] = 255 - other[-8:, -8:]
    rows = [arrays_of(task, [[user(image, "which ?")]])[0] for image in (picture, other)]
    ids, token = rows[0]["decoder_token_ids"][0], task.backbone.config.placeholder_id
    first = int(np.flatnonzero(ids == token)[0])
    one, two = (to_numpy(task.backbone.encode(**images_of(row)))[0] for row in rows)
    assert np.abs(one - two).max() > 1e-2  # of all states: the tower sees both ways
    # Of the decoder alone: the states of one image, of which the last one is another.
    states = np.stack([one, one])
    states[1, len(ids[ids == token]) - 1] += 1
    given = {name: array for name, array in rows[0].items() if name.startswith("decoder")}
    # Each by itself: in a batch the place of a row may change how it is rounded.
    found = [outputs_of(task.backbone, {"encoder_states": x[None], **given})[0] for x in states]
    found = np.stack(found)
    change = np.abs(found[0, : first + 1] - found[1, : first + 1]).max(axis=-1)
    assert change[:first].max() == 0
    assert (change[first] > 1e-4) == (task.backbone.config.placeholder_visibility == "windows")


def images_of(arrays):
    return {
        name.removeprefix("encoder_"): array
        for name, array in arrays.items()
        if name.startswith("encoder_")
    }


@pytest.mark.parametrize("both", [SMALL, EXPERTS], indirect=True, ids=str)
@pytest.mark.one_backend
def test_fit_counts_the_answer(both):
    """Images and prompts, and conversations, of which some batches have no image."""
    *_, task = both
    assert len(task.generate(pictures(), "which ?", max_new_tokens=2)) == 3
    rows = [[*some, said()] for some in (*conversations(), *with_videos()[:1])]
    for inputs, targets, weights in task.make_dataset(rows, batch_size=2):
        assert not np.isin(targets[weights > 0], inputs["decoder_token_ids"][:, :1]).any()
        for row, counts in zip(targets, weights, strict=True):
            assert task.tokenizer.decode(row[counts > 0]).split()[:2] == ["the", "first"]
    ranges = [v for v in task.backbone.variables if v.path.endswith(("_min", "_max"))]
    before = [to_numpy(v) for v in (*task.backbone.projector.weights, *ranges)]
    task.fit(rows, batch_size=2, epochs=1, verbose=0)
    task.fit((pictures(), ["which ?"] * 3), ["the first"] * 3, batch_size=2, verbose=0)
    after = [to_numpy(v) for v in (*task.backbone.projector.weights, *ranges)]
    changed = [np.abs(a - b).max() > 0 for a, b in zip(after, before, strict=True)]
    trained = [v.trainable for v in (*task.backbone.projector.weights, *ranges)]
    assert changed == trained


@ONE_MODEL
@pytest.mark.one_backend
def test_adapters(both, tmp_path):
    """Train adapters of both sides: layers with ranges have them too, and are merged with them."""
    model, processor, _ = both
    vision_chats.gemma4(tmp_path / "again", SMALL)
    task = kt.ImageToText.from_preset(tmp_path / "again")
    task.enable_lora(rank=2)
    paths = [v.path for v in task.trainable_variables]
    assert all("lora" in path for path in paths)
    assert any("/encoder/" in path for path in paths)
    assert any("/decoder/" in path for path in paths)
    rows = [[*some, said()] for some in conversations()]
    losses = task.fit(rows, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    arrays, mask = arrays_of(task, conversations())
    adapted = outputs_of(task, arrays)
    task.merge_lora()
    assert np.abs(outputs_of(task, arrays) - adapted)[mask].max() <= 1e-4
    kt.export_to_huggingface(task, tmp_path / "merged")
    merged = type(model).from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        expected = merged(**theirs_of(processor, conversations()[2])).logits[0].numpy()
    assert np.abs(adapted[2][mask[2]] - expected).max() <= 1e-4


@pytest.mark.one_backend
def test_folders_with_sound(tmp_path):
    """They read images as others do; keys of layers that share them may be in files."""
    _, processor = vision_chats.gemma4(tmp_path, SMALL)
    config = transformers.Gemma4Config.from_pretrained(tmp_path).to_dict()
    config["audio_config"] = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "subsampling_conv_channels": [4, 2], "output_proj_dims": 12,
    }  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Gemma4ForConditionalGeneration(transformers.Gemma4Config(**config)).eval()
    tensors = model.state_dict()
    for name in ("k_proj", "v_proj", "k_norm"):
        name = f"model.language_model.layers.3.self_attn.{name}.weight"
        tensors[name] = torch.ones(3)
    model.save_pretrained(tmp_path, state_dict=tensors)
    task = kt.ImageToText.from_preset(tmp_path)
    theirs = theirs_of(processor, conversations()[2])
    arrays, _ = arrays_of(task, conversations()[2:3])
    with torch.no_grad():
        expected = model(**theirs).logits[0].numpy()
    assert np.abs(outputs_of(task, arrays)[0] - expected).max() <= 1e-4
    texts = kt.CausalLM.from_preset(tmp_path)
    assert texts.backbone.family == "gemma4_text"


@pytest.mark.one_backend
def test_ranges_that_are_no_numbers_are_refused(tmp_path):
    vision_chats.gemma4(tmp_path, SMALL)
    tensors = safetensors_torch.load_file(tmp_path / "model.safetensors")
    name = "model.vision_tower.encoder.layers.1.mlp.up_proj.output_max"
    for value in (torch.inf, torch.nan):
        tensors[name].fill_(value)
        safetensors_torch.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
        if value == torch.inf:
            assert kt.ImageToText.from_preset(tmp_path)
            continue
        with pytest.raises(ValueError, match=f"{name}.* holds NaN or infinity"):
            kt.ImageToText.from_preset(tmp_path)


@ONE_MODEL
@pytest.mark.one_backend
def test_what_does_not_fit_is_refused(both):
    """Before any work: the image token in a text, and images that cannot be read."""
    *_, task = both
    with pytest.raises(ValueError, match="the text has '<.image.>', which stands for an image"):
        task.chat([user(pictures(1)[0], "see <|image|> ?")])
    with pytest.raises(ValueError, match="`image 1` cannot be read as an image"):
        task.chat([user({"type": "image", "image": b"nothing"}, "which ?")])
    with pytest.raises(ValueError, match="give the processor that belongs to the model"):
        processor = kt.processors.SoftTokenProcessor(patch_size=8)
        kt.ImageToText(task.backbone, processor, task.tokenizer)
    with pytest.raises(ValueError, match="may have 400 patches .*, and the model has 240"):
        processor = kt.processors.SoftTokenProcessor(200, patch_size=2, merge_size=2)
        kt.ImageToText(task.backbone, processor, task.tokenizer)


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vision_config": {"model_type": "siglip_vision_model"}}, "only 'gemma4_vision'"),
        ({"vision_config": {"head_dim": 6}}, "must be a multiple of 4"),
        ({"vision_config": {"hidden_activation": ["silu"]}}, "hidden_activation=.* not supported"),
        ({"vision_config": {"rope_parameters": {"rope_type": "yarn"}}}, "'yarn' of the image"),
        ({"vision_config": {"attention_bias": True}}, "attention_bias=True"),
        ({"vision_config": {"use_clipped_linears": 2}}, "use_clipped_linears"),
        ({"vision_config": {"pooling_kernel_size": 0}}, "projector_pool"),
        ({"vision_config": {"position_embedding_size": 10**9}}, "axis_positions"),
        ({"text_config": {"model_type": "gemma3_text"}}, "only 'gemma4_text'"),
        ({"text_config": {"pad_token_id": 3}}, "pad_token_id=3 is not supported, only 0"),
        ({"text_config": {"use_bidirectional_attention": "all"}}, "only None and 'vision'"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FAMILIES["gemma4"].config(values)
