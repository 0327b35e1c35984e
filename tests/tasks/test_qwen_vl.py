"""Qwen-VL models: conversations with images of any size, against Transformers."""

import copy

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.generation import BeamSearch, Rules
from tests.checkpoints.family_placed import OF_ANY_SIZE
from tests.checkpoints.test_families import _gradients, assert_gradients
from tests.compiled import outputs_of
from tests.tasks import vision_chats
from tests.tasks.test_vision_chats import arrays_of, theirs_of
from tests.tasks.vision_chats import conversations, user

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")
transformers = pytest.importorskip("transformers")

NAMES = list(OF_ANY_SIZE)


@pytest.fixture(scope="module", params=NAMES)
def both(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    model, processor = vision_chats.qwen(folder, request.param)
    return model, processor, kt.ImageToText.from_preset(folder)


def test_same_logits_in_one_batch(both):
    """Rows with none, one, two and five images of three sizes, each row with theirs alone."""
    model, processor, task = both
    arrays, mask = arrays_of(task, conversations())
    found = outputs_of(task, arrays)
    for i, conversation in enumerate(conversations()):
        theirs = theirs_of(processor, conversation)
        assert theirs["input_ids"][0].tolist() == arrays["decoder_token_ids"][i][mask[i]].tolist()
        with torch.no_grad():
            expected = model(**theirs).logits[0].numpy()
        assert np.abs(found[i][mask[i]] - expected).max() <= 1e-4


def test_answers_are_those_of_each_row_alone(both):
    """Through the cache: tokens behind images have smaller positions than places."""
    model, processor, task = both
    placeholder = task.backbone.config.placeholder_id
    task.end_ids, ends = (), task.end_ids
    options = {"max_new_tokens": 6, "rules": Rules(bad_words=[[placeholder], [placeholder + 1]])}
    try:
        found = task.generate(conversations(), return_details=True, **options)
        *_, last = conversations()
        assert task.chat(last, **options) == found[-1].text
        beams = task.generate(conversations()[2:], sampler=BeamSearch(2), **options)
        assert task.chat(last, sampler=BeamSearch(2), **options) == beams[-1]
        for conversation, completion in zip(conversations(), found, strict=True):
            ids = model.generate(
                **theirs_of(processor, conversation), max_new_tokens=6, do_sample=False,
                eos_token_id=[], pad_token_id=0, bad_words_ids=[[placeholder], [placeholder + 1]],
            )  # fmt: skip
            assert ids[0, -6:].tolist() == completion.token_ids
    finally:
        task.end_ids = ends


def test_same_gradients(both, tmp_path):
    model, processor, task = both
    model, conversation = copy.deepcopy(model), conversations()[2]
    arrays, _ = arrays_of(task, [conversation])
    outputs = model(**theirs_of(processor, conversation)).logits
    (outputs**2).mean().backward()
    backbone = task.backbone
    found = _gradients(
        backbone, lambda: keras.ops.mean(keras.ops.square(backbone.logits(backbone(arrays))))
    )
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
    images = transformers.Qwen2VLImageProcessorPil.from_pretrained(tmp_path)
    assert images(vision_chats.pictures())["image_grid_thw"].tolist() == (
        processor.image_processor(vision_chats.pictures())["image_grid_thw"].tolist()
    )
    back = kt.ImageToText.from_preset(tmp_path)
    assert back.backbone.config == task.backbone.config
    assert back.task_values() == task.task_values()
    assert back.asked(conversations(), None)[1] == task.asked(conversations(), None)[1]


@pytest.mark.one_backend
@pytest.mark.parametrize("transposed", [False, True], ids=["as saved", "as published"])
def test_experts_in_either_layout_of_their_matrices(tmp_path, transposed):
    """Published files have `(experts, in, out)`, and those of `save_pretrained` the transposes."""
    model, processor = vision_chats.qwen(tmp_path, "qwen3_vl_moe")
    file = tmp_path / "model.safetensors"
    tensors = safetensors_torch.load_file(file)
    for name, tensor in tensors.items():
        if transposed and ".experts." in name:
            tensors[name] = tensor.transpose(1, 2).contiguous()
    safetensors_torch.save_file(tensors, file, metadata={"format": "pt"})
    task = kt.ImageToText.from_preset(tmp_path)
    arrays, mask = arrays_of(task, conversations()[3:4])
    with torch.no_grad():
        expected = model(**theirs_of(processor, conversations()[3])).logits[0].numpy()
    assert np.abs(outputs_of(task, arrays)[0][mask[0]] - expected).max() <= 1e-4


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
def test_an_image_is_encoded_once(both):
    *_, task = both
    images, _, _ = task.asked(conversations(), None)
    assert [len(row.images) for row in images] == [0, 1, 2, 5]
    assert len(task.arrays_of(images)["encoder_patches"]) == 3  # on this backend not rounded
    assert "encoder_patches" not in task.arrays_of(images[:1])


def test_fit_and_captions(both):
    """Images and prompts, and conversations, of which some batches have no image."""
    *_, task = both
    pictures = vision_chats.pictures()
    assert len(task.generate(pictures, "which ?", max_new_tokens=2)) == 3
    rows = [[*some, said()] for some in conversations()]
    before = [keras.ops.convert_to_numpy(w) for w in task.backbone.projector.weights]
    task.fit(rows, batch_size=2, epochs=1, verbose=0)
    task.fit((pictures, ["which ?"] * 3), ["the first"] * 3, batch_size=2, epochs=1, verbose=0)
    after = task.backbone.projector.weights
    assert any(
        np.abs(keras.ops.convert_to_numpy(w) - b).max() > 0
        for w, b in zip(after, before, strict=True)
    )


def said():
    return {"role": "assistant", "content": "the first"}


@pytest.mark.one_backend
def test_what_does_not_fit_is_refused(both):
    """Before any work: placeholders, positions, and images that cannot be read."""
    *_, task = both
    picture = vision_chats.pictures()[0]
    with pytest.raises(ValueError, match="the text has '<.image_pad.>', which stands for an image"):
        task.chat([user(picture, "see <|image_pad|> ?")])
    with pytest.raises(ValueError, match="2 times, and an image goes there once"):
        task.generate([picture], "<|image_pad|> or <|image_pad|>")
    with pytest.raises(ValueError, match="`image 1`: .*more than 200 times"):
        task.chat([user(np.zeros((1, 500), "uint8"), "which ?")])
    arrays, _ = arrays_of(task, [[user(picture, "which ?")]])
    for name, message in (
        ("decoder_placed_offsets", "give `decoder_placed_states` and `decoder_placed_offsets`"),
        ("decoder_placed_states", "give `decoder_placed_states`"),
    ):
        with pytest.raises(ValueError, match=message):
            task({key: array for key, array in arrays.items() if key != name})
    one_less = {**arrays, "decoder_placed_states": arrays["decoder_placed_states"][:, 1:]}
    with pytest.raises(ValueError, match="must have a row of numbers for each|placeholders"):
        task(one_less)
    with pytest.raises(ValueError, match="give it a `processors.PatchSequenceProcessor`"):
        kt.ImageToText(task.backbone, kt.ImageProcessor(size=8), task.tokenizer)
    with pytest.raises(ValueError, match="give the processor that belongs to the model"):
        processor = kt.processors.PatchSequenceProcessor(patch_size=8)
        kt.ImageToText(task.backbone, processor, task.tokenizer)
