"""Conversations of models that cut images into tiles, against Transformers on the same weights."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.generation import Rules
from tests.checkpoints.test_families import _gradients, assert_gradients
from tests.tasks import vision_chats
from tests.tasks.test_vision_chats import arrays_of, theirs_of
from tests.tasks.vision_chats import conversations, user

torch = pytest.importorskip("torch")

MODELS = {
    "smolvlm": vision_chats.smolvlm,
    "idefics3": lambda folder: vision_chats.smolvlm(folder, "Idefics3"),
    "smolvlm of whole images": lambda folder: vision_chats.smolvlm(
        folder, do_image_splitting=False
    ),
    "llava_next": vision_chats.llava_next,
    "internvl": vision_chats.internvl,
    "llava_onevision": lambda folder: vision_chats.llava_next(folder, "LlavaOnevision"),
}
# Behind the layer whose states are read, and so not in ours.
UNREAD = "post_layernorm"


@pytest.fixture(scope="module", params=MODELS)
def both(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    model, processor = MODELS[request.param](folder)
    return model, processor, kt.ImageToText.from_preset(folder)


def test_same_ids_and_logits_in_one_batch(both):
    """Rows with none, one, two and five images of several sizes and numbers of tiles."""
    model, processor, task = both
    arrays, mask = arrays_of(task, conversations())
    found = to_numpy(task(arrays))
    for i, conversation in enumerate(conversations()):
        theirs = theirs_of(processor, conversation)
        assert theirs["input_ids"][0].tolist() == arrays["decoder_token_ids"][i][mask[i]].tolist()
        with torch.no_grad():
            expected = model(**theirs).logits[0].numpy()
        assert np.abs(found[i][mask[i]] - expected).max() <= 1e-4


def test_answers_are_those_of_each_row_alone(both):
    model, processor, task = both
    task.end_ids, ends = (), task.end_ids
    token = task.backbone.config.placeholder_id
    options = {"max_new_tokens": 5, "rules": Rules(bad_words=[[token]])}
    try:
        found = task.generate(conversations(), return_details=True, **options)
        for conversation, completion in zip(conversations(), found, strict=True):
            theirs = theirs_of(processor, conversation)
            ids = model.generate(
                **theirs,
                max_new_tokens=5,
                do_sample=False,
                eos_token_id=[],
                bad_words_ids=[[token]],
            )
            assert ids[0, theirs["input_ids"].shape[1] :].tolist() == completion.token_ids
        assert task.chat(conversation, **options) == completion.text
    finally:
        task.end_ids = ends


@pytest.mark.one_backend
def test_the_way_back(both, tmp_path):
    model, processor, task = both
    kt.export_to_huggingface(task, tmp_path / "ours")
    again, info = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not [name for name in info.pop("missing_keys") if UNREAD not in name]
    assert not any(info.values()), info
    conversation = conversations()[2]
    theirs = theirs_of(processor, conversation)
    with torch.no_grad():
        difference = again.eval()(**theirs).logits - model(**theirs).logits
    assert difference.abs().max() <= 1e-5
    task.save_to_preset(tmp_path / "preset")
    for folder in ("ours", "preset"):
        back = kt.ImageToText.from_preset(tmp_path / folder)
        assert back.task_values() == task.task_values()
        assert back.backbone.config == task.backbone.config
        assert back.asked(conversation, None)[1] == task.asked(conversation, None)[1]


def answered():
    said = {"role": "assistant", "content": [{"type": "text", "text": "the second"}]}
    return [[*conversation, said] for conversation in conversations()]


def test_it_learns_from_conversations(both):
    """The loss is that of the answers, and goes down; rows are cut within an image."""
    model, processor, task = both
    theirs = theirs_of(processor, answered()[1], add_generation_prompt=False)
    prompt = theirs_of(processor, answered()[1][:1])["input_ids"].shape[1]
    with torch.no_grad():
        scores = torch.log_softmax(model(**theirs).logits[0, :-1], -1)
    expected = -scores.gather(1, theirs["input_ids"][0, 1:, None])[prompt - 1 :].mean().item()
    found = task.evaluate(answered()[1:2], verbose=0, return_dict=True)["loss"]
    assert abs(found - expected) <= 1e-4
    with pytest.warns(UserWarning, match="longer than max_length=30 and were cut"):
        dataset = task.make_dataset(answered(), max_length=30, batch_size=4)
    inputs, _, weights = dataset[0]
    assert np.isfinite(to_numpy(task(inputs))).all() and weights.sum() > 0


@pytest.mark.one_backend
def test_an_image_alone(both, capsys):
    """Questions about one image each: ids of the template, and the same image twice."""
    _, processor, task = both
    a, b, _ = vision_chats.pictures()
    token = task.tokenizer.id_to_token(task.backbone.config.placeholder_id)
    template = task.template.replace("{prompt}", "which ?")
    images, rows, _ = task.asked([a, a, b], ["which ?", template, "is ?"])
    theirs = processor(images=[a], text=[template])
    assert rows[0] == rows[1] == list(theirs["input_ids"][0])
    arrays = task.arrays_of(images)
    assert len(arrays["encoder_images"]) == images[0].layouts[0].tiles + images[2].layouts[0].tiles
    if "decoder_mixed_states" not in arrays:
        assert (arrays["decoder_placed_states"][0] == arrays["decoder_placed_states"][1]).all()
    assert isinstance(task.answer(a, "which ?", max_new_tokens=2), str)
    assert task.score([a], ["the first"], ["which ?"]).shape == (1,)
    inputs, *_ = task.make_dataset(([a, b], ["which ?", "is ?"]), ["the first", "b"])[0]
    assert to_numpy(task(inputs)).shape[:2] == inputs["decoder_token_ids"].shape
    task.show_example([user(a, "which ?"), {"role": "assistant", "content": "the first"}])
    assert "[image 1: 30 x 24 pixels]" in capsys.readouterr().out
    with pytest.raises(ValueError, match=rf"`prompts\[0\]` has '{token}' 2 times"):
        task.answer(a, token * 2)
    with pytest.raises(ValueError, match=f"the text has '{token}', which stands for an image"):
        task.chat([user(a, f"{token} ?")])
    wrong = kt.ImageProcessor(size=8, tiling=kt.processors.Thumbnail(8))
    with pytest.raises(ValueError, match="tiles of the processor are 8 x 8 .* the model reads"):
        kt.ImageToText(task.backbone, wrong, task.tokenizer)
    with pytest.raises(ValueError, match="`messages`: `image 2` cannot be read as an image"):
        task.chat([user(a, b"no image", "?")])


@pytest.mark.one_backend
def test_the_separator_and_the_tower_learn(tmp_path):
    """Their gradients, and that a fit on several batches of other numbers of tiles changes them."""
    model, processor = vision_chats.llava_next(tmp_path, "LlavaOnevision")
    task = kt.ImageToText.from_preset(tmp_path)
    backbone = task.backbone
    arrays, _ = arrays_of(task, conversations()[1:2])
    found = _gradients(
        backbone, lambda: keras.ops.mean(keras.ops.square(backbone.logits(backbone(arrays))))
    )
    (model(**theirs_of(processor, conversations()[1])).logits ** 2).mean().backward()
    assert_gradients(found, model, tmp_path / "gradients")
    before = {v.path: to_numpy(v) for v in backbone.trainable_variables}
    task.fit(answered(), epochs=2, batch_size=2, image_tower="trained", verbose=0)
    changed = [v.path for v in backbone.variables if not np.array_equal(before[v.path], v)]
    assert any(path.endswith("projector/separator") for path in changed)
    assert any("input_patches" in path for path in changed)
