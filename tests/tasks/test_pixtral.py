"""Pixtral and Mistral 3: conversations with images of any size, against Transformers."""

import copy
import json

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.generation import Rules
from tests.checkpoints.test_families import _gradients, assert_gradients
from tests.compiled import outputs_of
from tests.tasks import vision_chats
from tests.tasks.test_qwen_vl import said
from tests.tasks.test_vision_chats import arrays_of, theirs_of
from tests.tasks.vision_chats import conversations, user

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# A Mistral 3 of Mistral and one of Ministral 3, and Pixtral 12B, which is a LLaVA.
MODELS = [("mistral3", 0), ("mistral3", 1), ("llava", 0)]
ONE_MODEL = pytest.mark.parametrize("both", MODELS[:1], indirect=True, ids=str)


@pytest.fixture(scope="module", params=MODELS, ids=str)
def both(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    model, processor = vision_chats.pixtral(folder, *request.param)
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


@ONE_MODEL
@pytest.mark.each_backend
def test_answers_are_theirs(both):
    """64 tokens of a batch, through the cache."""
    model, processor, task = both
    bad = [[task.tokenizer.token_to_id(t)] for t in ("[IMG]", "[IMG_BREAK]", "[IMG_END]")]
    task.end_ids, ends = (), task.end_ids
    try:
        found = task.generate(
            conversations(), return_details=True, max_new_tokens=64, rules=Rules(bad_words=bad)
        )
    finally:
        task.end_ids = ends
    for conversation, completion in zip(conversations(), found, strict=True):
        ids = model.generate(
            **theirs_of(processor, conversation), max_new_tokens=64, do_sample=False,
            eos_token_id=[], pad_token_id=0, bad_words_ids=bad,
        )  # fmt: skip
        assert ids[0, -64:].tolist() == completion.token_ids


@ONE_MODEL
@pytest.mark.each_backend
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
    images = transformers.PixtralImageProcessorPil.from_pretrained(tmp_path)
    assert images.size == processor.images.size and dict(images.patch_size)["height"] == 4
    outer = json.loads((tmp_path / "processor_config.json").read_text())
    assert outer["patch_size"] * outer["spatial_merge_size"] == processor.square
    back = kt.ImageToText.from_preset(tmp_path)
    assert back.backbone.config == task.backbone.config
    assert back.task_values() == task.task_values()
    assert back.asked(conversations(), None)[1] == task.asked(conversations(), None)[1]


@ONE_MODEL
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


@pytest.mark.parametrize("both", MODELS[::2], indirect=True, ids=str)
@pytest.mark.one_backend
def test_fit_counts_the_answer(both):
    """Images and prompts, and conversations, of which some batches have no image."""
    *_, task = both
    pictures = vision_chats.pictures()
    assert len(task.generate(pictures, "which ?", max_new_tokens=2)) == 3
    rows = [[*some, said()] for some in conversations()]
    for inputs, targets, weights in task.make_dataset(rows, batch_size=2):
        assert not np.isin(targets[weights > 0], inputs["decoder_token_ids"][:, :1]).any()
        for row, counts in zip(targets, weights, strict=True):
            assert task.tokenizer.decode(row[counts > 0]).split()[-2:] == ["the", "first"]
    before = [keras.ops.convert_to_numpy(w) for w in task.backbone.projector.weights]
    task.fit(rows, batch_size=2, epochs=1, verbose=0)
    task.fit((pictures, ["which ?"] * 3), ["the first"] * 3, batch_size=2, epochs=1, verbose=0)
    after = task.backbone.projector.weights
    assert all(
        np.abs(keras.ops.convert_to_numpy(w) - b).max() > 0
        for w, b in zip(after, before, strict=True)
    )


@ONE_MODEL
@pytest.mark.one_backend
def test_what_does_not_fit_is_refused(both):
    """Before any work: the image token in a text, and images that cannot be read."""
    *_, task = both
    picture = vision_chats.pictures()[0]
    with pytest.raises(ValueError, match="the text has '.IMG.', which stands for an image"):
        task.chat([user(picture, "see [IMG] ?")])
    with pytest.raises(ValueError, match="`image 1`: .*more than 29 times"):
        task.chat([user(np.zeros((1, 500), "uint8"), "which ?")])
    with pytest.raises(ValueError, match="give the processor that belongs to the model"):
        processor = kt.processors.PatchRowProcessor(patch_size=8)
        kt.ImageToText(task.backbone, processor, task.tokenizer)
